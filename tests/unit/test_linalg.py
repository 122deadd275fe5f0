import mpmath as mp
import numpy as np
import oracles as oracle
import pytest

import dpmech as dm
from dpmech import linalg


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


def test_series_inverse_direct_and_newton_agree():
    coefs = np.array([1.5, 0.4, -0.3, 0.2, 0.1])
    direct = linalg.series_inverse(coefs, 1000)
    product = linalg.series_product(coefs, direct, 1000)
    np.testing.assert_allclose(product, np.eye(1, 1000)[0], atol=1e-14)
    np.testing.assert_allclose(linalg._newton_inverse(coefs, 1000), direct, atol=1e-14)


def test_newton_is_used_for_long_series_and_inverts(monkeypatch):
    monkeypatch.setattr(linalg, "_DIRECT_WORK", 0)
    coefs = 1.0 / (1.0 + np.arange(300)) ** 1.5
    inverse = linalg.series_inverse(coefs, 300)
    expected = np.linalg.inv(oracle.toeplitz(coefs, 300))[:, 0]
    np.testing.assert_allclose(inverse, expected, atol=1e-14)


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


@pytest.mark.parametrize("decays", [(0.9999, 0.9998, 0.9997, 0.9996, 0.9995), (0.999, 0.999, 0.5)])
def test_blt_inverse_stays_accurate_where_decays_are_close(decays):
    n = 2000
    strategy = dm.BLT(n, decays, [0.1] * len(decays))
    coefs = strategy.toeplitz_coefs.astype(np.longdouble)
    inverse = np.zeros(n, dtype=np.longdouble)
    inverse[0] = 1.0
    for t in range(1, n):
        inverse[t] = -np.dot(coefs[1 : t + 1][::-1], inverse[:t])
    sums = np.cumsum(inverse)
    np.testing.assert_allclose(np.cumsum(strategy.inverse_coefs), sums.astype(float), rtol=1e-10)


def triple_pair(angle):
    """A polynomial with three equal pairs of zeros on the unit circle."""
    pair = np.array([1.0, -2.0 * np.cos(angle), 1.0])
    return np.convolve(pair, np.convolve(pair, pair))


def exact_inverse(coefs, n):
    """The recursion in 300 bits."""
    with mp.workprec(300):
        taps = [mp.mpf(float(c)) for c in coefs]
        found = [1 / taps[0]]
        for t in range(1, n):
            total = mp.fsum(taps[j] * found[t - j] for j in range(1, min(t, len(taps) - 1) + 1))
            found.append(-total / taps[0])
        return found


@pytest.mark.parametrize(
    ("coefs", "n"),
    [
        ([1.0, -2.9, 2.81, -0.909], 1500),
        (triple_pair(0.3), 300),
        ([1.0, -1.9, 0.9025], 1500),
        ([1.0, -0.9], 300),
    ],
    ids=["three poles", "triple pair", "double pole", "one pole"],
)
def test_the_inverse_is_exact_or_refused(coefs, n):
    found = linalg.series_inverse(np.array(coefs), n)
    exact = exact_inverse(coefs, n)
    with mp.workprec(300):
        error = mp.sqrt(mp.fsum((mp.mpf(float(a)) - b) ** 2 for a, b in zip(found, exact, strict=True)))
        assert error / mp.sqrt(mp.fsum(b * b for b in exact)) < 1e-13


@pytest.mark.parametrize(
    ("coefs", "n"),
    [(triple_pair(0.003), 8000), ([1.0, -2.9997, 2.9994, -0.9997], 2000)],
    ids=["triple pair", "three poles near 1"],
)
def test_an_inverse_that_loses_its_digits_is_refused(coefs, n):
    """Their largest column norms in float64 are 7 % and 6e-10 below the truth."""
    with pytest.raises(dm.NumericalError, match="loses its digits"):
        dm.sensitivity(dm.BandedInverse(n, coefs), dm.SingleParticipation())


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
