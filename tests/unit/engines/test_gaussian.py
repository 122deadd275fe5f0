import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import scipy

import dpmech as dm
from dpmech.engines.gaussian import (
    GaussianAccountant,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_log_delta,
    gaussian_sigma,
)
from dpmech.numerics.bounds import Bounds
from dpmech.schemes import accountant_for
from tests.support import oracles as oracle

ONE = dm.Identity(1)
SINGLE = dm.SingleParticipation()


@pytest.mark.parametrize("sigma", [0.05, 0.3, 0.6, 1.0, 5.0, 100.0, 1e5])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-3, 0.1, 1.0, 8.0, 100.0, 1e4])
def test_delta_against_60_digits(sigma, eps):
    lower, upper = gaussian_delta(sigma, eps)
    truth = oracle.gaussian_delta(sigma, eps, digits=80)
    assert lower <= upper
    if truth < mp.mpf(10) ** -300:
        assert upper < 1e-290
        return
    assert lower <= truth <= upper
    if truth > mp.mpf(10) ** -280 and sigma * eps < 1e6:
        assert upper / lower - 1 < 1e-6


def test_log_delta_reaches_1e_300():
    log_delta, error = gaussian_log_delta(1.0, 37.0)
    truth = mp.log(oracle.gaussian_delta(1.0, 37.0, digits=80))
    assert truth < -300 * math.log(10) + 60
    assert abs(log_delta - truth) < error + 1e-15 * abs(truth)


def test_published_sigma():
    sigma = dm.calibrate_sigma(ONE, 8, 1e-5, participation=SINGLE).sigma
    assert 0.60022907 <= sigma <= 0.60023010
    assert sigma == pytest.approx(0.6002290722, abs=1e-10)


@pytest.mark.parametrize("eps", [1e-6, 1e-3, 0.1, 1.0, 8.0, 1e3, 1e4])
@pytest.mark.parametrize("delta", [0.9, 1e-3, 1e-5, 1e-12, 1e-100, 1e-300])
def test_sigma_is_safe_and_tight(eps, delta):
    sigma = gaussian_sigma(eps, delta)
    assert oracle.gaussian_delta(sigma, eps, digits=80) <= delta
    assert oracle.gaussian_delta(sigma * (1 - 1e-7), eps, digits=80) > delta


@pytest.mark.parametrize(
    ("sigma", "delta"), list(itertools.product([0.1, 0.6, 1.0, 20.0, 1e4], [0.3, 1e-5, 1e-20]))
)
def test_epsilon_brackets_the_truth(sigma, delta):
    low, high = gaussian_epsilon(sigma, delta, safe=False), gaussian_epsilon(sigma, delta, safe=True)
    assert 0.0 <= low <= high <= low * (1 + 1e-9) + 1e-12
    assert oracle.gaussian_delta(sigma, high, digits=80) <= delta
    if low > 0.0:
        assert oracle.gaussian_delta(sigma, low * (1 - 1e-12), digits=80) >= delta


def test_replace_one_is_not_forwarded_to_a_backend():
    bounds = dm.epsilon(ONE, 1.0, 1e-5, participation=SINGLE, adjacency=dm.Adjacency.REPLACE_ONE)
    assert bounds.exact
    assert round(bounds.upper, 3) == 9.997
    rdp = dm.epsilon(
        ONE, 1.0, 1e-5, participation=SINGLE, adjacency=dm.Adjacency.REPLACE_ONE, method=dm.methods.Rdp()
    )
    assert rdp.upper > bounds.upper


def test_participation_reaches_the_identity():
    bounds = dm.epsilon(dm.Identity(100), 5.0, 1e-5, participation=dm.EveryStep())
    assert round(bounds.upper, 3) == 9.997
    assert dm.epsilon(dm.Identity(100), 5.0, 1e-5, participation=SINGLE).upper == pytest.approx(
        0.726, abs=6e-4
    )


@pytest.mark.parametrize(
    "scalar", [5, np.int64(5), np.int8(5), np.float32(5), np.float64(5.0), np.longdouble(5)]
)
def test_the_type_of_sigma_does_not_matter(scalar):
    expected = dm.epsilon(dm.Identity(100), 5.0, 1e-5)
    assert dm.epsilon(dm.Identity(100), scalar, 1e-5) == expected
    assert dm.delta(dm.Identity(100), scalar, scalar) == dm.delta(dm.Identity(100), 5.0, 5.0)
    calibrated = dm.calibrate_sigma(dm.Identity(100), scalar, 1e-5)
    assert calibrated.sigma == dm.calibrate_sigma(dm.Identity(100), 5.0, 1e-5).sigma


def test_a_bracket_on_the_sensitivity_becomes_one_on_eps():
    accountant = accountant_for(dm.Mechanism(dm.BandedToeplitz(6, [1.0, -0.9, 0.5]), dm.MinSep(1, 3)), None)
    accountant.sensitivity = Bounds.bracket(1.0, 2.0, dm.numerics.Provenance("given"))
    bounds = accountant.epsilon(2.0, 1e-5, tolerance=1e-3)
    assert bounds.lower == pytest.approx(gaussian_epsilon(2.0, 1e-5, safe=False))
    assert bounds.upper == pytest.approx(gaussian_epsilon(1.0, 1e-5, safe=True))


def test_delta_is_a_probability_even_where_float64_gives_up():
    assert dm.delta(ONE, 1e-310, 1.0, participation=SINGLE).upper == 1.0
    assert dm.delta(ONE, 1e-200, 1.0, participation=SINGLE).upper == 1.0
    tiny = dm.delta(ONE, 1e14, 1.0, participation=SINGLE)
    assert 0.0 <= tiny.lower <= tiny.upper < 1e-13


@pytest.mark.parametrize(
    ("sigma", "eps"), [(1e8, 1.0), (1e9, 1e-9), (1e9, 1e-12), (3e10, 1e-10), (1e15, 1e-15)]
)
def test_beyond_what_float64_can_tell_delta_is_still_bounded(sigma, eps):
    bounds = dm.delta(ONE, sigma, eps, participation=SINGLE)
    with mp.workdps(80):
        s, e = mp.mpf(sigma), mp.mpf(eps)
        exact = mp.ncdf(0.5 / s - e * s) - mp.exp(e) * mp.ncdf(-0.5 / s - e * s)
        assert mp.mpf(bounds.lower) <= exact <= mp.mpf(bounds.upper)
        assert mp.mpf(bounds.upper) <= 20 * exact + mp.mpf("1e-319")


@pytest.mark.parametrize(("sigma", "delta"), [(1e8, 1e-12), (1e9, 1e-12), (1e12, 1e-15)])
def test_eps_of_huge_sigma(sigma, delta):
    bounds = dm.epsilon(ONE, sigma, delta, participation=SINGLE)
    assert 0.0 <= bounds.lower <= bounds.upper < 1e-7
    with mp.workdps(80):
        s, e = mp.mpf(sigma), mp.mpf(bounds.upper)
        assert mp.ncdf(0.5 / s - e * s) - mp.exp(e) * mp.ncdf(-0.5 / s - e * s) <= delta


def test_the_ends_of_float64_are_named():
    assert dm.delta(ONE, 1e300, 1e10, participation=SINGLE).upper <= 1e-319
    with pytest.raises(dm.NumericalError, match="leaves the range of float64"):
        dm.delta(dm.Identity(100), 1e200, 1.0, participation=dm.Poisson(0.1))


def test_eps_zero_is_reported_as_zero():
    bounds = dm.epsilon(ONE, 1e6, 0.5, participation=SINGLE)
    assert (bounds.lower, bounds.upper) == (0.0, 0.0)


def test_unattainable_and_unresolvable_budgets():
    with pytest.raises(dm.UnattainableBudgetError, match="eps=1e-300, delta=1e-300"):
        dm.calibrate_sigma(ONE, 1e-300, 1e-300, participation=SINGLE)
    with pytest.raises(dm.NumericalError, match="rounding errors hide delta"):
        dm.calibrate_sigma(ONE, 1.0, 1e-322, participation=SINGLE)


def _random_points(count):
    """Noise multipliers and eps over the whole range, where delta is a normal float."""
    rng = np.random.default_rng(15)
    for _ in range(count):
        sigma, eps = math.exp(rng.uniform(-7.0, 12.0)), math.exp(rng.uniform(-14.0, 9.0))
        log_delta, error = gaussian_log_delta(sigma, eps)
        if log_delta > -690.0 and error < 1.0:
            yield sigma, eps, log_delta, error


def test_the_stated_rounding_holds_and_is_not_a_thousand_times_what_is_seen():
    shares = []
    for sigma, eps, log_delta, error in _random_points(2000):
        truth = oracle.gaussian_delta(sigma, eps, digits=60)
        seen = abs(float(mp.mpf(math.exp(log_delta)) / truth - 1))
        assert seen <= error
        shares.append(seen / error)
        lower, upper = gaussian_delta(sigma, eps)
        assert lower <= truth <= upper
    assert len(shares) > 500
    assert np.median(shares) > 1e-3


def _erfcx(z):
    if z < 50.0:
        return mp.exp(z * z) * mp.erfc(z)
    term = total = mp.mpf(1)
    for k in range(1, 20):
        term *= -(2 * k - 1) / (2 * z * z)
        total += term
    return total / (z * mp.sqrt(mp.pi))


def test_functions_of_scipy_are_as_exact_as_the_bound_counts():
    """Erfcx to 12 units of 2^-53 for arguments >= 0 (seen: 8), to that and twice their squares below."""
    rng = np.random.default_rng(3)
    unit = 2.0**-53
    with mp.workdps(50):
        for x in np.concatenate([np.exp(rng.uniform(-30.0, 18.0, 600)), -rng.uniform(0.0, 26.0, 200)]):
            off = abs(float(scipy.special.erfcx(x)) / _erfcx(mp.mpf(float(x))) - 1)
            assert off <= unit * (12.0 + 2.0 * min(x, 0.0) ** 2)
        for x in np.concatenate(
            [-np.exp(rng.uniform(-30.0, 3.6, 400)), np.exp(rng.uniform(-30.0, 3.0, 200))]
        ):
            exact = mp.log(mp.ncdf(mp.mpf(float(x))))
            off = abs(float(scipy.special.log_ndtr(x)) - exact)
            assert off <= unit * (12.0 + 3.0 * x * x)


@pytest.mark.parametrize(("sigma", "eps"), [(1.0, 37.95), (0.1, 380.0), (3.0, 12.2), (0.5, 79.1)])
def test_ends_hold_where_delta_is_below_the_smallest_normal_float(sigma, eps):
    lower, upper = gaussian_delta(sigma, eps)
    assert lower <= oracle.gaussian_delta(sigma, eps, digits=60) <= upper


def test_a_noise_multiplier_is_rounded_to_less_noise():
    """To nearest, sigma over sensitivity may come out larger than it is."""
    truth = dm.Bounds.bracket(0.7, 0.7, dm.numerics.Provenance("given"))
    accountant = GaussianAccountant(truth)
    rounded_upwards = 0
    for sigma in np.random.default_rng(2).uniform(0.5, 5.0, size=40):
        quotient = float(sigma) / 0.7
        rounded_upwards += Fraction(quotient) > Fraction(float(sigma)) / Fraction(0.7)
        bounds = accountant.delta(float(sigma), 3.0, tolerance=0.0)
        exact = mp.mpf(float(sigma)) / mp.mpf(0.7)
        assert bounds.lower <= oracle.gaussian_delta(exact, 3.0, digits=60) <= bounds.upper
        assert bounds.upper == max(
            gaussian_delta(one, 3.0)[1] for one in _floats_around(quotient, sigma, 0.7)
        )
    assert rounded_upwards > 5


def _floats_around(quotient, sigma, sensitivity):
    exact = Fraction(float(sigma)) / Fraction(sensitivity)
    near = (math.nextafter(quotient, 0.0), quotient, math.nextafter(quotient, math.inf))
    return [max(one for one in near if Fraction(one) <= exact)]
