import json
import math
import pathlib
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

import dpmech as dm
from dpmech.mechanism import sensitivities
from tests.support import oracles as oracle

REFERENCE = json.loads((pathlib.Path(__file__).parents[2] / "reference" / "toeplitz_65536.json").read_text())
N = REFERENCE["n"]
LARGE = {
    "LambdaCGD 0.9": dm.LambdaCGD(N, 0.9),
    "SquareRoot": dm.SquareRoot(N),
    "SquareRoot 64": dm.SquareRoot(N, 64),
    "InverseSquareRoot 16": dm.InverseSquareRoot(N, 16),
    "BLT": dm.BLT(N, [0.99527, 0.87344, 0.42784], [0.1293, 0.2059, 0.1672]),
    "BandedToeplitz": dm.BandedToeplitz(N, [1.0, -0.5, 0.25, -0.1]),
}


def test_kappa():
    bounds = dm.sensitivity(dm.LambdaCGD(8, 0.9), dm.SingleParticipation())
    assert round(bounds.upper, 4) == 2.0707
    assert bounds.exact
    for lam, n in ((0.5, 4), (0.95, 10), (0.99, 120), (0.0, 3)):
        kappa = math.sqrt((1 - lam ** (2 * n)) / (1 - lam**2))
        value = dm.sensitivity(dm.LambdaCGD(n, lam), dm.SingleParticipation()).upper
        assert value == pytest.approx(kappa, rel=1e-12)


def test_norm_of_the_wrong_matrix_is_refuted():
    wrong = math.sqrt(1 + 0.9**2)
    bounds = dm.sensitivity(dm.LambdaCGD(120, 0.9), dm.SingleParticipation())
    assert bounds.lower > 1.7 * wrong
    assert wrong == pytest.approx(dm.LambdaCGD(120, 0.9).noising_row_norms().max())


@pytest.mark.parametrize(
    ("lam", "n", "b", "k", "printed"),
    [(0.9, 12, 4, 3, 4.92640), (0.5, 12, 4, 3, 2.08275), (0.9, 10, 3, 2, 3.82107), (0.95, 12, 1, 3, 7.63802)],
)
def test_published_multi_participation_values(lam, n, b, k, printed):
    bounds = dm.sensitivity(dm.LambdaCGD(n, lam), dm.MinSep(b, k))
    assert bounds.exact
    assert bounds.upper == pytest.approx(printed, abs=6e-6)


@pytest.mark.parametrize(("n", "b", "k", "squared"), [(10, 4, 3, 19.099), (20, 4, 3, 32.306)])
def test_closed_form_for_whole_epochs_is_not_used_elsewhere(n, b, k, squared):
    # The closed form gives 24.269 for both.
    assert dm.sensitivity(dm.LambdaCGD(n, 0.9), dm.MinSep(b, k)).upper ** 2 == pytest.approx(
        squared, abs=6e-4
    )


@pytest.mark.parametrize(
    ("coefs", "n", "b", "k", "leftmost", "truth"),
    [
        ([1, 0, 1], 3, 1, 2, math.sqrt(3), math.sqrt(5)),
        ([1, 0, 1, 0, 1], 5, 1, 2, math.sqrt(5), 3.0),
        ([1, -0.5], 2, 1, 2, math.sqrt(1.25), math.sqrt(3.25)),
        ([1, -0.9], 4, 1, 4, 1.0149, 3.4395),
    ],
)
def test_leftmost_columns_are_not_always_the_worst(coefs, n, b, k, leftmost, truth):
    bounds = dm.sensitivity(dm.BandedToeplitz(n, coefs), dm.MinSep(b, k))
    assert bounds.lower <= truth * (1 + 1e-4)
    assert bounds.upper >= truth * (1 - 2e-5)
    assert bounds.upper > 1.2 * leftmost


def test_replace_one_doubles_and_zero_out_does_not():
    strategy, schema = dm.LambdaCGD(9, 0.5), dm.MinSep(2, 3)
    single = dm.sensitivity(strategy, schema)
    assert dm.sensitivity(strategy, schema, adjacency=dm.Adjacency.ZERO_OUT) == single
    double = dm.sensitivity(strategy, schema, adjacency=dm.Adjacency.REPLACE_ONE)
    assert (double.lower, double.upper) == (2 * single.lower, 2 * single.upper)


def test_default_is_every_step():
    strategy = dm.LambdaCGD(6, 0.5)
    assert dm.sensitivity(strategy) == dm.sensitivity(strategy, dm.EveryStep())
    assert dm.sensitivity(strategy).upper == pytest.approx(
        oracle.sensitivity_floor(strategy.to_dense(), oracle.separated_sets(6, 1, 6)), rel=1e-12
    )


@pytest.mark.parametrize(
    ("schema", "value"),
    [(dm.Poisson(0.1), 3.0), (dm.CyclicPoisson(0.1, 2), 3.0), (dm.BallsInBins(2), math.sqrt(9 + 1))],
)
def test_random_schemas(schema, value):
    assert dm.sensitivity(dm.Diagonal([3.0, 2.0, 1.0, 0.5]), schema).upper == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("strategy", "schema", "words"),
    [
        (dm.LambdaCGD(9, 0.5), dm.SingleParticipation(), "largest column norm"),
        (dm.SquareRoot(9, 3), dm.MinSep(3), "squared column norms add"),
        (dm.LambdaCGD(9, 0.5), dm.EveryStep(), "all columns, C >= 0"),
        (dm.LambdaCGD(9, 0.5), dm.MinSep(2, 3), "Theorem 1"),
        (dm.ColumnNormalized(dm.LambdaCGD(9, 0.5)), dm.MinSep(2, 3), "Lemma 8"),
        (dm.BandedToeplitz(9, [1, 0, 1]), dm.FixedEpochs(9), "all columns"),
        (dm.BandedToeplitz(9, [1, -0.2, 0.5, 0.5]), dm.FixedEpochs(3), "evenly spaced sets"),
        (dm.Dense(np.tril(np.ones((9, 9)))), dm.MinSep(2, 2), "row-wise best separated sets"),
    ],
)
def test_the_method_is_named(strategy, schema, words):
    assert words in str(dm.sensitivity(strategy, schema).by)


def rational_examples(n):
    half = Fraction(1, 2)
    ones = [Fraction(1)]
    roots, inverses = [Fraction(1)], [Fraction(1)]
    for t in range(1, n):
        roots.append(roots[-1] * (t - half) / t)
        inverses.append(inverses[-1] * (t - 1 - half) / t)
    lam = Fraction(0.9)
    decays, scales = (Fraction(0.875), Fraction(0.3)), (Fraction(0.25), Fraction(0.5))
    blt = [Fraction(1), *(sum(s * d**t for s, d in zip(scales, decays, strict=True)) for t in range(n - 1))]
    yield dm.Identity(n), ones, ones
    yield dm.LambdaCGD(n, 0.9), [lam**t for t in range(n)], [Fraction(1), -lam]
    yield dm.SquareRoot(n), roots, inverses
    yield dm.SquareRoot(n, 5), roots[:5], oracle.rational_inverse(roots[:5], n)
    yield dm.InverseSquareRoot(n, 5), oracle.rational_inverse(inverses[:5], n), inverses[:5]
    yield dm.InverseSquareRoot(n, n), roots, inverses
    yield dm.BLT(n, [0.875, 0.3], [0.25, 0.5]), blt, oracle.rational_inverse(blt, n)
    coefs = [Fraction(value) for value in (2.0, 1.5, 1.25)]
    yield dm.BandedToeplitz(n, [2.0, 1.5, 1.25]), coefs, oracle.rational_inverse(coefs, n)
    signed = [Fraction(value) for value in (1.0, -0.5, -0.25)]
    yield dm.BandedInverse(n, [1.0, -0.5, -0.25]), oracle.rational_inverse(signed, n), signed


@pytest.mark.parametrize("n", [5, 23, 40])
@pytest.mark.parametrize(("b", "k"), [(1, 5), (2, 3), (5, 1), (4, 2), (3, None)])
def test_toeplitz_against_exact_rational_arithmetic(n, b, k):
    for strategy, coefs, inverse in rational_examples(n):
        steps = range(0, n, b)[:k]
        columns, total, largest = oracle.rational_squares(coefs, inverse, n, steps)
        bounds = dm.sensitivity(strategy, dm.MinSep(b, k))
        sens, rows = math.sqrt(columns), math.sqrt(largest)
        assert bounds.exact, strategy
        assert bounds.lower <= sens <= bounds.upper
        assert dm.rmse(strategy, dm.MinSep(b, k)) == pytest.approx(sens * math.sqrt(total / n), rel=1e-12)
        assert dm.max_se(strategy, dm.MinSep(b, k)) == pytest.approx(sens * rows, rel=1e-12)


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda case: f"{case['strategy']}-{case['min_sep']}")
def test_toeplitz_against_50_digits_at_65536(case):
    strategy = LARGE[case["strategy"]]
    schema = dm.MinSep(case["min_sep"], case["max_participations"])
    bounds = dm.sensitivity(strategy, schema)
    with mp.workdps(50):
        truth = {name: mp.mpf(case[name]) for name in ("sensitivity", "rmse", "max_se")}
        assert bounds.lower <= truth["sensitivity"] <= bounds.upper
        assert abs(bounds.upper / truth["sensitivity"] - 1) < 1e-12
        assert abs(dm.rmse(strategy, schema) / truth["rmse"] - 1) < 1e-12
        assert abs(dm.max_se(strategy, schema) / truth["max_se"] - 1) < 1e-12


def test_a_stored_digit_set_is_reproduced_by_closed_forms():
    case = next(
        case
        for case in REFERENCE["cases"]
        if case["strategy"] == "LambdaCGD 0.9" and case["max_participations"] == 16
    )
    with mp.workdps(60):
        lam, b, k = mp.mpf(0.9), 4096, 16
        weights = sum((1 - lam ** (b * j)) ** 2 for j in range(1, k + 1))
        sens = mp.sqrt((1 - lam ** (2 * b)) / ((1 - lam**2) * (1 - lam**b) ** 2) * weights)
        rmse = sens * mp.sqrt(1 + (1 - lam) ** 2 * (N - 1) / 2)
        max_se = sens * mp.sqrt(1 + (1 - lam) ** 2 * (N - 1))
        for name, value in (("sensitivity", sens), ("rmse", rmse), ("max_se", max_se)):
            assert abs(mp.mpf(case[name]) / value - 1) < mp.mpf(10) ** -48


def test_float32_would_be_noticed_at_65536():
    coefs = dm.SquareRoot(N).toeplitz_coefs.astype(np.float32)
    low = float(np.sqrt(np.cumsum(coefs**2)[-1]))
    exact = dm.sensitivity(dm.SquareRoot(N), dm.SingleParticipation())
    assert exact.lower > low * (1 + 1e-6)


def test_column_normalised_bisr_bracket_is_narrow():
    strategy = dm.ColumnNormalized(dm.InverseSquareRoot(120, 6))
    bounds = dm.sensitivity(strategy, dm.MinSep(25, 4))
    assert bounds.relative_gap < 2e-3


def steep(n, seed):
    """A column-normalised Toeplitz matrix whose coefficients fall, some by much and some not at all."""
    rng = np.random.default_rng(seed)
    steps = rng.exponential(size=n) * rng.integers(0, 2, size=n)
    return dm.ColumnNormalized(dm.BandedToeplitz(n, np.append(steps[::-1].cumsum()[::-1] + 0.01, 0.0)[:n]))


@pytest.mark.parametrize("blocks", [2, 3, 5, 12])
@pytest.mark.parametrize(("b", "k"), [(2, 6), (3, 4), (4, 2), (5, 3), (6, 2), (7, 2)])
def test_blocks_of_columns_bound_every_set(blocks, b, k, monkeypatch):
    n = 12
    sets = oracle.separated_sets(n, b, k)
    for seed in range(20):
        strategy = steep(n, seed)
        rows = dm.sensitivity(strategy, dm.MinSep(b, k))
        with monkeypatch.context() as patched:
            patched.setattr(sensitivities, "_EXACT_SECONDS", 0.0)
            patched.setattr(sensitivities, "_BLOCKS", blocks)
            found = dm.sensitivity(strategy, dm.MinSep(b, k))
        assert found.lower <= oracle.sensitivity_ceiling(strategy.to_dense(), sets) <= found.upper
        assert found.upper >= rows.upper * (1.0 - 1e-12)
        if blocks == n:
            assert found.upper <= rows.upper * (1.0 + 1e-12)


def test_blocks_of_columns_lose_little(monkeypatch):
    strategy, pattern = dm.ColumnNormalized(dm.SquareRoot(2000, 2000)), dm.MinSep(200)
    exact = dm.sensitivity(strategy, pattern)
    monkeypatch.setattr(sensitivities, "_EXACT_SECONDS", 0.0)
    monkeypatch.setattr(sensitivities, "_BLOCKS", 500)
    assert exact.upper < dm.sensitivity(strategy, pattern).upper < 1.001 * exact.upper


def test_columns_of_a_hundred_thousand_steps():
    """Ten participations, for which row after row takes minutes."""
    bounds = dm.sensitivity(dm.ColumnNormalized(dm.SquareRoot(100_000, 100_000)), dm.MinSep(10_000))
    assert bounds.relative_gap < 2e-4


def test_blocks_of_columns_are_for_falling_coefficients(monkeypatch):
    """Rows of the Gram matrix are not monotone otherwise; then every row is computed."""
    strategy = dm.ColumnNormalized(dm.BandedToeplitz(12, [1.0, 0.1, 0.2, 0.9]))
    rows = dm.sensitivity(strategy, dm.MinSep(3, 3))
    monkeypatch.setattr(sensitivities, "_EXACT_SECONDS", 0.0)
    monkeypatch.setattr(sensitivities, "_BLOCKS", 6)
    assert dm.sensitivity(strategy, dm.MinSep(3, 3)) == rows


def test_large_problems_fall_back_to_the_cheap_bound_or_refuse(monkeypatch):
    monkeypatch.setattr(sensitivities, "_BRACKET_WORK", 0)
    monkeypatch.setattr(sensitivities, "_LOWER_WORK", 0)
    strategy = dm.ColumnNormalized(dm.InverseSquareRoot(10, 3))
    sets = oracle.separated_sets(10, 3, 3)
    bounds = dm.sensitivity(strategy, dm.MinSep(3, 3))
    assert str(bounds.by) == "monotone envelope times the largest scale"
    assert bounds.lower <= oracle.sensitivity_ceiling(strategy.to_dense(), sets) <= bounds.upper
    with pytest.raises(
        dm.UnsupportedCombinationError, match="min_sep=3, max_participations=3 at n=10; supported"
    ):
        dm.sensitivity(dm.Dense(strategy.to_dense()), dm.MinSep(3, 3))
    with pytest.raises(dm.UnsupportedCombinationError):
        dm.sensitivity(dm.Dense(strategy.to_dense()), dm.FixedEpochs(5))


def test_long_sign_vectors():
    # More than 12 signed columns: signs come from rows of the Gram matrix, still a valid floor.
    strategy = dm.BandedToeplitz(40, [1.0, -0.9, 0.0, 0.1])
    bounds = dm.sensitivity(strategy, dm.MinSep(1, 20))
    matrix = strategy.to_dense()
    best = oracle.rank_sensitivity(matrix, tuple(range(20)), 1, np.random.default_rng(0))
    assert best <= bounds.upper
    assert bounds.lower >= 0.95 * best


@pytest.mark.parametrize("value", ["Identity", None, dm.Identity, np.eye(3)])
def test_only_strategies_are_strategies(value):
    with pytest.raises(dm.InvalidParameterError, match="strategy must be a Strategy such as"):
        dm.sensitivity(value)


@pytest.mark.parametrize("participation", [dm.SingleParticipation(), dm.Poisson(0.1), dm.MinSep(40)])
def test_one_column_of_the_identity_has_norm_one_to_the_last_bit(participation):
    found = dm.sensitivity(dm.Identity(40), participation)
    assert (found.lower, found.upper) == (1.0, 1.0)
    twice = dm.sensitivity(dm.Identity(40), dm.SingleParticipation(), adjacency=dm.Adjacency.REPLACE_ONE)
    assert (twice.lower, twice.upper) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("strategy", "schema", "value"),
    [
        (dm.Identity(1000), dm.MinSep(250), 2.0),
        (dm.Identity(1000), dm.FixedEpochs(25), 5.0),
        (dm.Identity(9), dm.MinSep(1), 3.0),
        (dm.Identity(1000), dm.MinSep(333, 3), None),  # the root of 3
        (dm.Diagonal([math.sqrt(11.0), 5.0, 5.0]), dm.MinSep(2), None),  # sqrt(11)^2 is 11 in float64 only
    ],
)
def test_roots_of_squares_of_integers_are_exact(strategy, schema, value):
    found = dm.sensitivity(strategy, schema)
    if value is None:
        squared = 3 if isinstance(strategy, dm.Identity) else Fraction(math.sqrt(11.0)) ** 2 + 25
        assert found.lower < found.upper
        assert Fraction(found.lower) ** 2 < squared < Fraction(found.upper) ** 2
    else:
        assert (found.lower, found.upper) == (value, value)
