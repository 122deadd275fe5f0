import itertools
import operator
from decimal import Decimal, localcontext
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

import dpmech as dm
from dpmech.numerics import toeplitz as linalg
from tests.support import oracles as oracle

pytestmark = pytest.mark.usefixtures("longdouble")


@pytest.mark.parametrize("size", [1, 5, 63, 65, 200])
@pytest.mark.parametrize("columns", [None, 2])
def test_toeplitz_matmul_short_and_long(size, columns):
    rng = np.random.default_rng(size)
    n = 200
    coefs = np.zeros(n)
    coefs[:size] = rng.normal(size=size)
    x = rng.normal(size=n if columns is None else (n, columns))
    np.testing.assert_allclose(linalg.toeplitz_matmul(coefs, x), oracle.toeplitz(coefs, n) @ x, atol=1e-12)


@pytest.mark.parametrize("columns", [None, 2])
def test_toeplitz_solve(columns):
    rng = np.random.default_rng(3)
    coefs = np.array([2.0, -0.5, 0.25])
    x = rng.normal(size=50 if columns is None else (50, columns))
    expected = np.linalg.solve(oracle.toeplitz(coefs, 50), x)
    np.testing.assert_allclose(linalg.toeplitz_solve(coefs, x), expected, rtol=1e-12, atol=1e-14)


def test_series_product_keeps_n_terms():
    np.testing.assert_allclose(
        linalg.series_product(np.array([1.0, 1.0]), np.array([1.0, 2.0]), 2), [1.0, 3.0]
    )
    np.testing.assert_allclose(
        linalg.series_product(np.array([1.0, 1.0]), np.array([1.0, 2.0]), 5), [1.0, 3.0, 2.0, 0.0, 0.0]
    )


@pytest.mark.parametrize("build", [dm.BandedToeplitz, dm.BandedInverse])
def test_overflow_is_an_error_not_an_infinity(build):
    strategy = build(3000, [1.0, 2.0])
    with pytest.raises(dm.NumericalError, match="overflows float64"):
        dm.rmse(strategy)


def test_trimmed_keeps_one_entry():
    assert linalg.trimmed(np.zeros(4)).tolist() == [0.0]
    assert linalg.trimmed(np.array([1.0, 0.0, 2.0, 0.0])).tolist() == [1.0, 0.0, 2.0]


def test_cumulative_sum_does_not_drift():
    # 0.1 is not a binary fraction: naive float64 sums of a million of them are off by 1e-11 relative.
    sums = linalg.cumulative_sum(np.full(10**6, 0.1))
    assert sums[-1] == pytest.approx(1e5, rel=1e-13)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 100, 4095, 4096, 4097])
def test_sums_stay_within_their_bound(n):
    rng = np.random.default_rng(n)
    x = rng.normal(size=n) * 10.0 ** rng.integers(-8, 8, size=n)
    exact, size = Fraction(0), Fraction(0)
    sums, bound = linalg.cumulative_sum(x), Fraction(linalg.sum_rounding(n))
    for entry, found in zip(x, sums, strict=True):
        exact += Fraction(float(entry))
        size += abs(Fraction(float(entry)))
        assert abs(Fraction(float(found)) - exact) <= bound * size
    assert abs(Fraction(linalg.total(x)) - exact) <= bound * size
    assert linalg.norm(x) ** 2 == pytest.approx(float(sum(Fraction(float(e)) ** 2 for e in x)), rel=1e-14)
    both = linalg.cumulative_sum(np.stack([x, -x]), axis=1)
    np.testing.assert_array_equal(both, [sums, -sums])


def test_a_sum_one_after_another_would_leave_the_bound():
    x = np.full(10**6, 0.1)
    exact = Fraction(0.1) * 10**6
    plain = Fraction(float(np.add.accumulate(x)[-1]))
    assert abs(plain - exact) > 100 * Fraction(linalg.sum_rounding(x.size)) * exact


@pytest.mark.parametrize(("p", "q"), [(5, 300), (65, 65), (100, 400), (500, 500)])
def test_convolutions_stay_within_their_bound(p, q):
    rng = np.random.default_rng(p)
    a, b = rng.normal(size=p) * 10.0 ** rng.integers(-9, 3, size=p), rng.normal(size=q)
    found, bound = linalg.series_product(a, b, p + q - 1), linalg.convolution_rounding(a, b)
    exact_a, exact_b = [Fraction(x) for x in a], [Fraction(x) for x in b]
    for t in range(0, p + q - 1, 7):
        exact = sum(exact_a[j] * exact_b[t - j] for j in range(max(0, t - q + 1), min(t, p - 1) + 1))
        assert abs(Fraction(float(found[t])) - exact) <= Fraction(bound)


@pytest.mark.parametrize("decays", [(0.9999, 0.9998, 0.9997, 0.9996, 0.9995), (0.999, 0.999, 0.5)])
def test_blt_inverse_stays_accurate_where_decays_are_close(decays):
    n = 2000
    strategy = dm.BLT(n, decays, [0.1] * len(decays))
    coefs = [Decimal(float(c)) for c in strategy.toeplitz_coefs]
    with localcontext() as context:
        context.prec = 40
        inverse = [Decimal(1)]
        for t in range(1, n):
            inverse.append(-sum(map(operator.mul, coefs[t:0:-1], inverse), Decimal(0)))
        sums = [float(value) for value in itertools.accumulate(inverse)]
    np.testing.assert_allclose(np.cumsum(strategy.inverse_coefs), sums, rtol=1e-10)


@pytest.mark.parametrize(
    "build",
    [
        lambda: dm.Diagonal([2.6e-162] * 4),
        lambda: dm.BandedToeplitz(4, [1.5e-162]),
        lambda: dm.Dense(2.7e-162 * np.eye(2)),
        lambda: dm.Dense(1e160 * np.eye(2)),
        lambda: dm.ColumnNormalized(dm.BandedToeplitz(4, [2.6e-162])),
        lambda: dm.ColumnNormalized(dm.Dense(1e-165 * np.eye(4))),
    ],
)
@pytest.mark.parametrize("schema", [dm.SingleParticipation(), dm.MinSep(2), dm.EveryStep()], ids=repr)
def test_norms_whose_squares_leave_float64_are_refused(build, schema):
    """At 2.6e-162 the square is subnormal and the norm 18 % low; at 1e-165 there would be no noise."""
    strategy = build()
    with pytest.raises(dm.NumericalError, match="squares leave float64"):
        dm.sensitivity(strategy, schema)
    if isinstance(strategy, dm.ColumnNormalized):
        with pytest.raises(dm.NumericalError, match="squares leave float64"):
            strategy.solve(np.ones(strategy.n))


@pytest.mark.parametrize("scale", [1e-139, 1e139])
def test_norms_within_the_range_are_exact(scale):
    bounds = dm.sensitivity(dm.Diagonal([scale] * 4), dm.EveryStep())
    assert bounds.upper == pytest.approx(2.0 * scale, rel=1e-12)


@pytest.mark.parametrize(("lam", "n"), [(0.999999, 10**6), (0.9, 3900)])
def test_a_million_multiplications_stay_within_the_slack(lam, n):
    bounds = dm.sensitivity(dm.BandedInverse(n, [1.0, -lam]), dm.SingleParticipation())
    with mp.workdps(50):
        exact = mp.sqrt((1 - mp.mpf(lam) ** (2 * n)) / (1 - mp.mpf(lam) ** 2))
        assert mp.mpf(bounds.lower) <= exact <= mp.mpf(bounds.upper)
    assert bounds.exact


@pytest.mark.parametrize(("p", "q"), [(100, 157), (100, 158), (1, 2), (3, 900)])
def test_the_rounding_of_a_convolution_grows_with_the_levels_of_its_transform(p, q):
    # 256, 512, 2 and 1024 points: twice the 17.9 L + 2.3 roundings of the theorem, and a little more.
    levels = {257 - 1: 8, 258 - 1: 9, 2: 1, 902: 10}[p + q - 1]
    a, b = np.linspace(1.0, 2.0, p), np.linspace(-3.0, 5.0, q)
    expected = (36 * levels + 8) * 2.0**-53 * float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    assert linalg.convolution_rounding(a, b) == pytest.approx(expected, rel=1e-12, abs=0.0)
    assert expected >= 2 * (17.9 * levels + 2.3) * 2.0**-53 * float(np.linalg.norm(a) * np.linalg.norm(b))


def test_a_recursion_is_short_up_to_fifty_million_multiplications():
    coefs = np.zeros(80)
    coefs[:50] = 1.0
    assert linalg.is_short(coefs, 10**6)
    assert not linalg.is_short(coefs, 10**6 + 1)
    coefs[50] = 1.0
    assert not linalg.is_short(coefs, 10**6)
