import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, ctx

from dpmech.checker import sensitivity as module
from dpmech.checker.documents import BadDocument
from dpmech.checker.sensitivity import Pattern, sensitivity
from dpmech.checker.strategies import PRECISION, NotChecked, Strategy, strategy_of


@pytest.fixture(autouse=True)
def precision():
    with ctx.workprec(PRECISION):
        yield


def toeplitz(column):
    n = len(column)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def matrix_of(strategy):
    if strategy.coefs is None:
        return np.array(strategy.matrix)
    scale = [1.0] * strategy.n if strategy.scale is None else [float(s) for s in strategy.scale]
    return toeplitz([float(c) for c in strategy.coefs]) * scale


def roots(count, power):
    """Coefficients of (1 - x)^power, as fractions."""
    found = [Fraction(1)]
    for t in range(1, count):
        found.append(found[-1] * (t - 1 - power) / t)
    return [float(c) for c in found]


N = 6
ROOT, INVERSE = roots(N, Fraction(-1, 2)), roots(N, Fraction(1, 2))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"type": "Identity", "n": N}, np.eye(N)),
        ({"type": "Diagonal", "entries": [2.0, 1.0, 0.5]}, np.diag([2.0, 1.0, 0.5])),
        ({"type": "LambdaCGD", "n": N, "lam": 0.8}, toeplitz([0.8**t for t in range(N)])),
        ({"type": "SquareRoot", "n": N, "bands": None}, toeplitz(ROOT)),
        ({"type": "SquareRoot", "n": N, "bands": 2}, toeplitz([*ROOT[:2], 0, 0, 0, 0])),
        (
            {"type": "InverseSquareRoot", "n": N, "inverse_bands": 3},
            np.linalg.inv(toeplitz([*INVERSE[:3], 0, 0, 0])),
        ),
        ({"type": "InverseSquareRoot", "n": N, "inverse_bands": 1}, np.eye(N)),
        ({"type": "BandedToeplitz", "n": N, "coefs": [2.0, -1.0]}, toeplitz([2, -1, 0, 0, 0, 0])),
        (
            {"type": "BandedInverse", "n": N, "coefs": [2.0, -1.0]},
            np.linalg.inv(toeplitz([2, -1, 0, 0, 0, 0])),
        ),
        (
            {"type": "BLT", "n": N, "decays": [0.9, 0.5], "scales": [0.2, -0.1]},
            toeplitz([1.0, *(0.2 * 0.9**t - 0.1 * 0.5**t for t in range(N - 1))]),
        ),
        ({"type": "Dense", "matrix": [[1.0, 0.0], [-0.5, 2.0]]}, [[1, 0], [-0.5, 2]]),
    ],
)
def test_strategies_are_their_definitions(record, expected):
    found = strategy_of(record)
    np.testing.assert_allclose(matrix_of(found), expected, rtol=1e-13, atol=1e-15)
    norms = [float(x) for x in found.squared_norms()]
    np.testing.assert_allclose(norms, (np.array(expected) ** 2).sum(axis=0), rtol=1e-13)
    rows, columns = np.nonzero(np.array(expected))
    assert found.bands() == (rows - columns).max() + 1
    assert found.nonnegative() == (np.min(expected) >= 0.0)
    if record["type"] == "Dense":
        return
    normal = strategy_of(
        {"type": "ColumnNormalized", "strategy": {"type": "ColumnNormalized", "strategy": record}}
    )
    np.testing.assert_allclose(
        matrix_of(normal), expected / np.linalg.norm(expected, axis=0), rtol=1e-13, atol=1e-15
    )
    assert all(x == 1 for x in normal.squared_norms())


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "claim.strategy"),
        ({"type": "Other"}, "claim.strategy"),
        ({"type": ["Identity"]}, "claim.strategy"),
        ({"type": "Identity"}, "entries"),
        ({"type": "Identity", "n": 4, "more": 1}, "entries"),
        ({"type": "Identity", "n": 0}, "n is 0"),
        ({"type": "Identity", "n": True}, "n of the Identity strategy is True, not int"),
        ({"type": "LambdaCGD", "n": 4, "lam": 1.0}, "lam"),
        ({"type": "LambdaCGD", "n": 4, "lam": 0}, "lam"),
        ({"type": "SquareRoot", "n": 4, "bands": 5}, "bands"),
        ({"type": "BandedToeplitz", "n": 2, "coefs": [1.0, 1.0, 1.0]}, "coefs"),
        ({"type": "BandedToeplitz", "n": 2, "coefs": [0.0]}, "coefs"),
        ({"type": "BandedToeplitz", "n": 2, "coefs": [1]}, "coefs"),
        ({"type": "BLT", "n": 4, "decays": [1.0], "scales": [0.1]}, "decays"),
        ({"type": "BLT", "n": 4, "decays": [0.5], "scales": [0.1, 0.2]}, "decays"),
        ({"type": "Diagonal", "entries": [1.0, 0.0]}, "entries"),
        ({"type": "Dense", "matrix": []}, "square"),
        ({"type": "Dense", "matrix": [[1.0, 0.0]]}, "square"),
        ({"type": "Dense", "matrix": [[1]]}, "floats"),
        ({"type": "Dense", "matrix": [[1.0, 1.0], [0.0, 1.0]]}, "lower-triangular"),
        ({"type": "Dense", "matrix": [[0.0]]}, "lower-triangular"),
    ],
)
def test_other_strategies_are_refused(record, words):
    with pytest.raises(BadDocument, match=words):
        strategy_of(record)


def test_nesting_is_bounded():
    record = {"type": "Identity", "n": 2}
    for _ in range(9):
        record = {"type": "ColumnNormalized", "strategy": record}
    with pytest.raises(BadDocument, match="nested"):
        strategy_of(record)


@pytest.mark.parametrize(
    "record",
    [
        {"type": "Identity", "n": 10**8},
        {"type": "BLT", "n": 2_000_000, "decays": [0.5] * 64, "scales": [0.1] * 64},
        {"type": "ColumnNormalized", "strategy": {"type": "Dense", "matrix": [[1.0]]}},
    ],
)
def test_what_would_take_too_long_is_not_begun(record):
    with pytest.raises(NotChecked):
        strategy_of(record)


def test_an_inverse_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setattr("dpmech.checker.strategies.arb_series", lambda values, prec: NotFinite())
    with pytest.raises(BadDocument, match="not finite"):
        strategy_of({"type": "BandedInverse", "n": 2, "coefs": [1.0, 1.0]})


class NotFinite:
    def __rtruediv__(self, one):
        return self

    def coeffs(self):
        return [arb(1), arb("nan")]


def allowed(n, pattern):
    if pattern.evenly:
        for start in range(pattern.apart):
            yield tuple(range(start, n, pattern.apart))[: pattern.most]
        return
    for size in range(1, pattern.most + 1):
        for steps in itertools.combinations(range(n), size):
            if all(after - before >= pattern.apart for before, after in itertools.pairwise(steps)):
                yield steps


def by_enumeration(matrix, pattern):
    gram = np.abs(matrix.T @ matrix)
    return max(gram[np.ix_(steps, steps)].sum() for steps in allowed(len(matrix), pattern)) ** 0.5


def drawn_record(rng, n):
    def numbers(low, high, count):
        return [rng.uniform(low, high) for _ in range(count)]

    dense = [[rng.uniform(-1, 1) if j < i else float(i == j) for j in range(n)] for i in range(n)]
    return rng.choice(
        [
            {"type": "Identity", "n": n},
            {"type": "Diagonal", "entries": numbers(0.2, 3.0, n)},
            {"type": "LambdaCGD", "n": n, "lam": 0.99 * rng.random()},
            {"type": "SquareRoot", "n": n, "bands": rng.choice([None, rng.randint(1, n)])},
            {"type": "InverseSquareRoot", "n": n, "inverse_bands": rng.randint(1, n)},
            {"type": "BandedToeplitz", "n": n, "coefs": [1.0, *numbers(-1, 1, rng.randint(0, n - 1))]},
            {"type": "BandedToeplitz", "n": n, "coefs": [1.0, *numbers(0, 1, rng.randint(0, n - 1))]},
            {"type": "BandedInverse", "n": n, "coefs": [1.0, *numbers(-1, 0.3, rng.randint(0, n - 1))]},
            {"type": "BLT", "n": n, "decays": [0.9, 0.5], "scales": numbers(-0.3, 0.6, 2)},
            {"type": "Dense", "matrix": dense},
        ]
    )


def test_sensitivities_hold_the_one_found_by_enumeration():
    rng = random.Random(5)
    exact = {}
    for _ in range(300):
        n = rng.randint(1, 9)
        record = drawn_record(rng, n)
        if record["type"] != "Dense" and rng.random() < 0.4:
            record = {"type": "ColumnNormalized", "strategy": record}
        pattern = Pattern(rng.randint(1, n), rng.randint(1, n))
        if rng.random() < 0.4:
            apart = rng.randint(1, n)
            pattern = Pattern(apart, -(-n // apart), evenly=True)
        strategy = strategy_of(record)
        found, true = sensitivity(strategy, pattern), by_enumeration(matrix_of(strategy), pattern)
        assert true <= float(found.upper.upper()) * (1 + 1e-13), (record, pattern)
        assert float(found.lower.lower()) <= true * (1 + 1e-13), (record, pattern)
        exact.setdefault(found.theorem, []).append(float(found.upper) <= true * (1 + 1e-12))
    assert set(exact) == {
        "largest column",
        "orthogonal columns",
        "leftmost columns",
        "leftmost columns, normalised geometric",
        "first evenly spaced set",
        "rows of the Gram matrix",
    }
    # Only the last one is a bound in general.
    assert all(all(hits) for name, hits in exact.items() if name != "rows of the Gram matrix")


@pytest.mark.parametrize(("n", "apart", "most"), [(9, 2, 3), (9, 1, 4), (8, 3, 2)])
def test_unequal_orthogonal_columns_by_dynamic_programme(n, apart, most):
    rng = random.Random(n)
    strategy = strategy_of({"type": "Diagonal", "entries": [rng.uniform(0.1, 3.0) for _ in range(n)]})
    found = sensitivity(strategy, Pattern(apart, most))
    assert float(found.upper) == pytest.approx(
        by_enumeration(matrix_of(strategy), Pattern(apart, most)), rel=1e-13
    )


def test_numbers_of_the_papers():
    def upper(record, pattern):
        return float(sensitivity(strategy_of(record), pattern).upper)

    assert upper({"type": "LambdaCGD", "n": 8, "lam": 0.9}, Pattern(8, 1)) == pytest.approx(
        2.070721, abs=1e-6
    )
    plan = {"type": "LambdaCGD", "n": 3900, "lam": 0.9}
    assert upper(plan, Pattern(390, 10)) == pytest.approx(7.254763, abs=1e-6)
    # The leftmost columns are not the worst ones here: 1.7321 would be too little.
    assert upper(
        {"type": "BandedToeplitz", "n": 3, "coefs": [1.0, 0.0, 1.0]}, Pattern(1, 2)
    ) == pytest.approx(5**0.5)
    # Nor may signs be taken for what they are with equal gradients: 1.0149.
    assert upper({"type": "BandedToeplitz", "n": 4, "coefs": [1.0, -0.9]}, Pattern(1, 4)) == pytest.approx(
        3.4395, abs=1e-4
    )


def test_beyond_the_largest_matrix_a_closed_form_bound_is_left(monkeypatch):
    monkeypatch.setattr(module, "_LARGEST_GRAM", 4)
    inner = {"type": "BLT", "n": 6, "decays": [0.5], "scales": [0.5]}
    general = strategy_of({"type": "ColumnNormalized", "strategy": inner})
    found = sensitivity(general, Pattern(2, 2))
    assert found.theorem == "leftmost columns"
    together = np.linalg.norm(matrix_of(general)[:, [0, 2]].sum(axis=1))
    assert float(found.lower) == pytest.approx(together, rel=1e-13)
    monkeypatch.setattr(module, "_LONGEST_PRODUCT", 4)
    assert float(sensitivity(general, Pattern(2, 2)).lower) == 1.0
    assert float(found.upper) >= by_enumeration(matrix_of(general), Pattern(2, 2))


def test_too_many_steps_for_a_matrix_are_refused(monkeypatch):
    monkeypatch.setattr(module, "_LARGEST_GRAM", 4)
    dense = strategy_of({"type": "Dense", "matrix": (np.tril(np.ones((6, 6)))).tolist()})
    with pytest.raises(NotChecked, match="closed form"):
        sensitivity(dense, Pattern(2, 2))


def test_too_many_sums_are_refused(monkeypatch):
    monkeypatch.setattr(module, "_MOST_SUMS", 5)
    with pytest.raises(NotChecked, match="unequal columns"):
        sensitivity(strategy_of({"type": "Diagonal", "entries": [1.0, 2.0, 1.0, 2.0]}), Pattern(1, 2))
    monkeypatch.setattr(module, "_LARGEST_GRAM", 6)
    monkeypatch.setattr(module, "_MOST_ROWS", 1)
    dense = strategy_of({"type": "Dense", "matrix": (np.tril(np.ones((6, 6)))).tolist()})
    with pytest.raises(NotChecked, match="row by row"):
        sensitivity(dense, Pattern(1, 2))


def test_products_out_of_range_are_refused():
    with pytest.raises(NotChecked, match="float64"), np.errstate(all="ignore"):
        sensitivity(strategy_of({"type": "Dense", "matrix": [[1e200, 0.0], [1e200, 1.0]]}), Pattern(1, 2))


def test_a_ball_that_may_be_zero_is_no_band_of_zeros():
    blurred = Strategy(3, [arb(1), arb(0, 1e-30), arb(0)])
    assert blurred.bands() == 2
    assert not blurred.nonnegative()


def test_rows_of_a_matrix_need_coefficients_that_are_known():
    blurred = Strategy(3, [arb(1), arb(-0.5, 1e-9), arb(0.1)])
    with pytest.raises(NotChecked, match="well enough"):
        module._absolute_gram(blurred)
    # But one that is next to nothing is covered by a constant.
    tiny = Strategy(3, [arb(1), arb(-1e-60, 1e-60), arb(0.5)])
    gram = module._absolute_gram(tiny)
    assert 0.0 < gram[0, 1] < 1e-38
    assert gram[0, 0] == pytest.approx(1.25)
