import itertools
import math
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
            {"type": "InverseSquareRoot", "n": N, "inverse_bands": 5},
            np.linalg.inv(toeplitz([*INVERSE[:5], 0])),
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
        ({"type": "BLT", "n": 4, "decays": [1.0625], "scales": [0.1]}, "decays"),
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


def test_a_strategy_by_an_unknown_name_is_not_checked():
    for record in ({"type": "Other"}, {"type": "ColumnNormalized", "strategy": {"type": "Other"}}):
        with pytest.raises(NotChecked, match="the strategy 'Other' is unknown"):
            strategy_of(record)


def test_nesting_is_bounded():
    record = {"type": "Identity", "n": 2}
    for _ in range(8):
        record = {"type": "ColumnNormalized", "strategy": record}
    assert strategy_of(record).n == 2
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


def test_a_leading_block_is_that_of_the_matrix():
    inner = {"type": "LambdaCGD", "n": N, "lam": 0.5}
    whole = strategy_of({"type": "ColumnNormalized", "strategy": inner})
    for steps in (2, N - 1, N):
        block = whole.leading(steps)
        assert block.unit_columns is (steps == N)
        exact = matrix_of(whole)[:steps, :steps]
        np.testing.assert_allclose(matrix_of(block), exact, rtol=1e-14)
        norms = [float(x) for x in block.squared_norms()]
        np.testing.assert_allclose(norms, (exact**2).sum(axis=0), rtol=1e-13)


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


def test_the_lower_end_of_dense_columns_over_epochs_is_that_of_the_worst_batch():
    """With products >= 0, both ends are exact, whichever batch of an epoch has the largest sum."""
    rng = random.Random(6)
    worst = set()
    for n, apart in [(12, 3), (9, 4), (10, 5)] * 4:
        matrix = [[rng.random() if j <= i else 0.0 for j in range(n)] for i in range(n)]
        sums = [[sum(row[s::apart]) for row in matrix] for s in range(apart)]
        norms = [math.sqrt(sum(x * x for x in one)) for one in sums]
        worst.add(norms.index(max(norms)))
        found = sensitivity(
            strategy_of({"type": "Dense", "matrix": matrix}), Pattern(apart, -(-n // apart), evenly=True)
        )
        assert float(found.lower) == pytest.approx(max(norms), rel=1e-13)
        assert float(found.upper) == pytest.approx(max(norms), rel=1e-13)
    assert len(worst) > 1  # not always the first one


def test_the_lower_end_of_signed_dense_columns_is_that_of_the_best_signs():
    """Gradients of +1 and -1 on evenly spaced steps attain it."""
    rng, better = random.Random(9), 0
    for _ in range(30):
        n, apart = rng.randint(2, 8), rng.randint(1, 3)
        most = rng.randint(2, 4)
        matrix = np.array([[rng.uniform(-1, 1) if j <= i else 0.0 for j in range(n)] for i in range(n)])
        attained = max(
            np.linalg.norm(matrix[:, steps] @ signs)
            for start in range(n)
            for steps in [list(range(start, n, apart))[:most]]
            for signs in itertools.product((1.0, -1.0), repeat=len(steps))
        )
        found = sensitivity(
            strategy_of({"type": "Dense", "matrix": matrix.tolist()}), Pattern(apart, most, evenly=True)
        )
        largest = np.linalg.norm(matrix, axis=0).max()
        assert float(found.lower) == pytest.approx(max(attained, largest), rel=1e-13)
        better += attained > largest
    assert better > 20


def test_the_lower_end_of_many_dense_columns_takes_their_signs_from_their_products():
    """Columns with one sign each: both ends are those of the absolute values."""
    rng = random.Random(10)
    signs = [rng.choice((-1.0, 1.0)) for _ in range(26)]
    matrix = [[signs[j] * rng.random() if j <= i else 0.0 for j in range(26)] for i in range(26)]
    found = sensitivity(strategy_of({"type": "Dense", "matrix": matrix}), Pattern(2, 13, evenly=True))
    exact = max(np.linalg.norm(np.abs(matrix)[:, s::2].sum(axis=1)) for s in (0, 1))
    assert float(found.lower) == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize(("n", "apart", "most"), [(9, 2, 3), (9, 1, 4), (8, 3, 2)])
def test_unequal_orthogonal_columns_by_dynamic_program(n, apart, most):
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
    monkeypatch.setattr(module, "_MOST_WORK", 4)
    monkeypatch.setattr(module, "_MOST_BLOCKS", 1)
    inner = {"type": "BLT", "n": 6, "decays": [0.5], "scales": [0.5]}
    general = strategy_of({"type": "ColumnNormalized", "strategy": inner})
    found = sensitivity(general, Pattern(2, 2))
    assert found.theorem == "leftmost columns"
    together = np.linalg.norm(matrix_of(general)[:, [0, 2]].sum(axis=1))
    assert float(found.lower) == pytest.approx(together, rel=1e-13)
    monkeypatch.setattr(module, "_LONGEST_PRODUCT", 4)
    assert float(sensitivity(general, Pattern(2, 2)).lower) == 1.0
    assert float(found.upper) >= by_enumeration(matrix_of(general), Pattern(2, 2))


def normalised_record(rng, n):
    """Columns of norm 1 of a Toeplitz matrix, in most cases with a non-increasing first column."""
    falling = sorted((rng.random() for _ in range(n)), reverse=True)
    signed = [1.0, *(rng.uniform(-1, 1) for _ in range(rng.randint(1, n - 1)))]
    inner = rng.choice(
        [
            {"type": "SquareRoot", "n": n, "bands": None},
            {"type": "BandedToeplitz", "n": n, "coefs": falling},
            {"type": "BandedToeplitz", "n": n, "coefs": signed},
            {"type": "BandedInverse", "n": n, "coefs": [1.0, -0.6]},
        ]
    )
    return {"type": "ColumnNormalized", "strategy": inner}


def test_blocks_of_columns_are_never_below_the_enumeration(monkeypatch):
    """Beyond the largest matrix; without limits, blocks of one column are the rows of the matrix."""
    rng, seen = random.Random(11), set()
    monkeypatch.setattr(module, "_MOST_WORK", -1)
    for _ in range(400):
        n = rng.randint(5, 11)
        monkeypatch.setattr(module, "_MOST_BLOCKS", rng.randint(2, n))
        strategy = strategy_of(normalised_record(rng, n))
        pattern = Pattern(rng.randint(1, 5), rng.randint(2, n), evenly=rng.random() < 0.2)
        if pattern.evenly:
            pattern = Pattern(pattern.apart, -(-n // pattern.apart), evenly=True)
        found, true = sensitivity(strategy, pattern), by_enumeration(matrix_of(strategy), pattern)
        assert true <= float(found.upper.upper()) * (1 + 1e-14), (strategy, pattern)
        seen.add((found.theorem, pattern.evenly))
    assert {("blocks of columns", False), ("blocks of columns", True)} <= seen


def test_blocks_of_one_column_are_the_rows_of_the_matrix(monkeypatch):
    record = {"type": "ColumnNormalized", "strategy": {"type": "SquareRoot", "n": 40, "bands": None}}
    for pattern in (Pattern(5, 8), Pattern(3, 4), Pattern(7, 2)):
        rows = sensitivity(strategy_of(record), pattern)
        with monkeypatch.context() as limits:
            limits.setattr(module, "_MOST_WORK", 40 * 40 * 20)
            norms = strategy_of(record).squared_norms()
            coefs = [abs(c) for c in strategy_of(record).coefs]
            found = module._best_blocks(strategy_of(record), norms, coefs, pattern) ** 0.5
        assert float(rows.upper) * (1 - 1e-14) <= found <= float(rows.upper) * (1 + 1e-13)


@pytest.mark.slow
def test_one_hundred_thousand_normalised_columns():
    """The lower end is attained by equal gradients; a claim of 1 % less would be refuted."""
    inner = {"type": "SquareRoot", "n": 100_000, "bands": None}
    strategy = strategy_of({"type": "ColumnNormalized", "strategy": inner})
    for pattern in (Pattern(10_000, 10), Pattern(10_000, 10, evenly=True)):
        found = sensitivity(strategy, pattern)
        exact = 4.679629072784865
        assert float(found.lower) == pytest.approx(exact, rel=1e-14)
        assert exact <= float(found.upper) < exact * (1 + (1e-13 if pattern.evenly else 1e-4))


def test_a_limit_on_participations_is_dropped_where_it_takes_long(monkeypatch):
    record = {"type": "ColumnNormalized", "strategy": {"type": "SquareRoot", "n": 30, "bands": None}}
    strategy = strategy_of(record)
    coefs, norms = [abs(c) for c in strategy.coefs], strategy.squared_norms()
    all_of_them, four = (module._best_blocks(strategy, norms, coefs, Pattern(3, k)) for k in (10, 4))
    monkeypatch.setattr(module, "_MOST_WORK", -1)
    dropped = module._best_blocks(strategy, norms, coefs, Pattern(3, 4))
    assert four < dropped == pytest.approx(all_of_them, rel=1e-13)


def test_too_many_steps_for_a_matrix_are_refused(monkeypatch):
    monkeypatch.setattr(module, "_MOST_WORK", 4)
    dense = strategy_of({"type": "Dense", "matrix": (np.tril(np.ones((6, 6)))).tolist()})
    with pytest.raises(NotChecked, match="closed form"):
        sensitivity(dense, Pattern(2, 2))


def test_too_many_sums_are_refused(monkeypatch):
    monkeypatch.setattr(module, "_MOST_SUMS", 5)
    with pytest.raises(NotChecked, match="unequal columns"):
        sensitivity(strategy_of({"type": "Diagonal", "entries": [1.0, 2.0, 1.0, 2.0]}), Pattern(1, 2))


def test_products_out_of_range_are_refused():
    with pytest.raises(NotChecked, match="float64"), np.errstate(all="ignore"):
        sensitivity(strategy_of({"type": "Dense", "matrix": [[1e200, 0.0], [1e200, 1.0]]}), Pattern(1, 2))
    # A number that overflows is not lost among finite ones, in whichever row it is.
    for place in range(6):
        gram = np.ones((6, 6))
        gram[place, (place + 2) % 6] = np.nan
        for evenly in (False, True):
            assert not module._best_rows(iter(gram[::-1]), 6, Pattern(2, 3, evenly)) < np.inf
    tail = {"type": "BandedToeplitz", "n": 4, "coefs": [1.0, -1e150, 1e150, 1.0]}
    with np.errstate(all="ignore"):
        normal = strategy_of({"type": "ColumnNormalized", "strategy": tail})
        assert not module._evenly(normal, Pattern(2, 2, evenly=True)) < 1.0
    with pytest.raises(ArithmeticError):
        module._evenly(strategy_of(tail | {"coefs": [1.0, 1e200]}), Pattern(2, 2, evenly=True))


def test_a_ball_that_may_be_zero_is_no_band_of_zeros():
    blurred = Strategy(3, [arb(1), arb(0, 1e-30), arb(0)])
    assert blurred.bands() == 2
    assert not blurred.nonnegative()


def test_rows_of_a_matrix_need_coefficients_that_are_known():
    blurred = Strategy(3, [arb(1), arb(-0.5, 1e-9), arb(0.1)])
    with pytest.raises(NotChecked, match="well enough"):
        gram_of(blurred)
    # But one that is next to nothing is covered by a constant.
    tiny = Strategy(3, [arb(1), arb(-1e-60, 1e-60), arb(0.5)])
    gram = gram_of(tiny)
    assert 0.0 < gram[0, 1] < 1e-38
    assert gram[0, 0] == pytest.approx(1.25)


# ---- rounding: a bound from above is above the exact number, and by no more than a few units of it

UNIT = Fraction(1, 2**53)


def gram_of(strategy):
    """The rows of G, first to last; its diagonals are as large or almost."""
    rows = np.stack(list(module._gram_rows(strategy))[::-1])
    for away, entries in enumerate(module._diagonals(strategy, range(strategy.n))):
        assert entries == pytest.approx(np.diagonal(rows, away), abs=1e-13 * rows.max())
    return rows


def exact_gram(matrix):
    """|<C_i, C_j>| and <|C_i|, |C_j|>, as fractions."""
    columns = [[Fraction(x) for x in column] for column in zip(*matrix, strict=True)]

    def products(vectors):
        return [[sum(a * b for a, b in zip(x, y, strict=True)) for y in vectors] for x in vectors]

    sizes = products([[abs(x) for x in column] for column in columns])
    return [[abs(entry) for entry in row] for row in products(columns)], sizes


def check_gram(found, matrix, units, nothing=0):
    """Entries are above the exact ones, by at most so many units of the sum of the absolute products."""
    gram, sizes = exact_gram(matrix)
    for i, j in itertools.product(range(len(gram)), repeat=2):
        value = Fraction(float(found[i, j]))
        assert gram[i][j] <= value <= gram[i][j] + units * UNIT * sizes[i][j] + Fraction(nothing), (i, j)


@pytest.mark.parametrize("signed", [False, True])
def test_the_gram_matrix_of_a_dense_matrix_is_rounded_up(signed):
    rng = np.random.default_rng(4)
    for n in (1, 3, 24):
        matrix = np.tril(rng.uniform(-1.0 if signed else 0.0, 1.0, (n, n)))
        np.fill_diagonal(matrix, 1.0 + rng.random(n))
        strategy = Strategy(n, matrix=matrix.tolist())
        check_gram(gram_of(strategy), matrix, 2 * (n + 8) + 12, 2e-290)
    # Products that float64 cannot hold are not lost.
    gram = gram_of(Strategy(2, matrix=[[1e-160, 0.0], [-1e-160, 1e-160]]))
    assert np.all((gram > 0.0) & (gram < 1.5e-290))


@pytest.mark.parametrize("signed", [False, True])
def test_the_gram_matrix_of_toeplitz_columns_is_rounded_up(signed):
    rng = np.random.default_rng(5)
    for n in (2, 5, 24):
        values = [1.0, *rng.uniform(-1.0 if signed else 0.0, 1.0, n - 1)]
        coefs = [arb(value) for value in values]
        check_gram(gram_of(Strategy(n, coefs)), toeplitz(values), 60, 5 * n * 1e-40)
        scale = rng.uniform(0.5, 2.0, n).tolist()
        found = gram_of(Strategy(n, coefs, [arb(x) for x in scale]))
        scaled = [
            [Fraction(c) * Fraction(x) for c, x in zip(row, scale, strict=True)] for row in toeplitz(values)
        ]
        check_gram(found, scaled, 80, 20 * n * 1e-40)
    gram = gram_of(Strategy(2, [arb(1e-160), arb(1e-160)]))
    assert np.all((gram > 0.0) & (gram < 1.5e-290))


def test_terms_that_float64_would_lose_one_by_one_are_not_lost():
    """1 + x^2 is 1 in float64, and 1 + 200 x^2 is 160 units more."""
    values = [1.0, *[(0.4 * 2.0**-52) ** 0.5] * 200]
    exact = sum(Fraction(x) ** 2 for x in values)
    found = Fraction(float(gram_of(Strategy(201, [arb(x) for x in values]))[0, 0]))
    assert exact <= found <= exact * (1 + 60 * UNIT)
    gram = np.full((200, 200), 0.4 * 2.0**-52)
    gram[:, 0] = 1.0
    exact = 200 * (1 + 199 * Fraction(0.4 * 2.0**-52))
    assert (
        exact
        <= Fraction(module._best_rows(iter(gram[::-1]), 200, Pattern(1, 200)))
        <= exact * (1 + 1700 * UNIT)
    )


def test_products_that_cancel_are_off_by_what_their_terms_round():
    rng = np.random.default_rng(8)
    for _ in range(20):
        matrix = np.tril(rng.uniform(-1.0, 1.0, (8, 8))) + 2.0 * np.eye(8)
        for j in range(1, 7):  # orthogonal to the column before, but for rounding
            rest = matrix[j + 1 :, j - 1] @ matrix[j + 1 :, j]
            matrix[j, j] = -rest / matrix[j, j - 1]
        check_gram(gram_of(Strategy(8, matrix=matrix.tolist())), matrix, 50, 2e-290)


def test_coefficients_that_are_next_to_nothing_are_made_up_for():
    tiny = 0.9e-38
    for size in (100.0, 1e-3):
        values = [size, *[tiny * size / 100.0] * 7]
        gram = gram_of(Strategy(8, [arb(value) for value in values]))
        assert np.all(module._known([arb(value) for value in values], size * 1e-40)[1:] == 0.0)
        check_gram(gram, toeplitz(values), 60, 20 * 1e-40 * size**2)


def test_what_is_known_of_a_coefficient():
    assert module._known([arb("0.1"), arb(-2), arb(0)], 0.0).tolist() == [0.1, -2.0, 0.0]
    for digits, known in ((2.0**-64, True), (2.0**-56, False)):
        balls = [arb(3, 3 * digits)]
        if known:
            assert module._known(balls, 0.0)[0] == 3.0
        else:
            with pytest.raises(NotChecked, match="well enough"):
                module._known(balls, 0.0)


def by_rows(gram, pattern):
    """What `_best_rows` rounds up, in fractions, by enumeration."""
    n = len(gram)
    sets = list(allowed(n, pattern))
    if pattern.evenly:
        return max(sum(gram[i][j] for i in one for j in one) for one in sets)
    best = [max(sum(gram[i][j] for j in one) for one in sets if i in one) for i in range(n)]
    return max(sum(best[i] for i in one) for one in sets)


def best_of(gram, pattern):
    if pattern.evenly:
        return module._evenly(Strategy(8, matrix=np.linalg.cholesky(gram).T.tolist()), pattern)
    return module._best_rows(iter(gram[::-1]), len(gram), pattern)


@pytest.mark.parametrize("pattern", [(2, 3), (1, 2), (2, 2), (3, 9)])
def test_the_best_rows_are_rounded_up(pattern):
    rng, own = np.random.default_rng(6), Pattern(*pattern)
    for _ in range(12):
        gram = rng.random((8, 8))
        gram += gram.T
        exact = by_rows([[Fraction(x) for x in row] for row in gram.tolist()], own)
        found = Fraction(best_of(gram, own))
        units = 6 if own.evenly else 4.1 * (2 * own.most + 4)
        assert exact <= found <= exact * (1 + Fraction(units) * UNIT)


def test_scaled_columns_beyond_the_largest_matrix(monkeypatch):
    """Columns shorter than 1 are made longer, and the bound is that of the longest."""
    monkeypatch.setattr(module, "_MOST_WORK", 4)
    monkeypatch.setattr(module, "_MOST_BLOCKS", 1)
    coefs = [0.3, 0.2, 0.15, 0.1, 0.05, 0.01]
    inner = {"type": "BandedToeplitz", "n": 6, "coefs": coefs}
    found = sensitivity(strategy_of({"type": "ColumnNormalized", "strategy": inner}), Pattern(2, 2))
    together = np.array(coefs) + np.append([0.0, 0.0], coefs[:4])
    # The last column is (0.3), so that it is divided by 0.3.
    assert float(found.upper) == pytest.approx(np.linalg.norm(together) / 0.3, rel=1e-13)
