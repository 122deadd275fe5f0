import itertools
import math

import mpmath as mp
import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_log_delta, gaussian_sigma
from dpmech.numerics.bounds import Bounds
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
        ONE, 1.0, 1e-5, participation=SINGLE, adjacency=dm.Adjacency.REPLACE_ONE, method=dm.Rdp()
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
    accountant = dm.calibration.accountant_for(
        dm.Mechanism(dm.BandedToeplitz(6, [1.0, -0.9, 0.5]), dm.MinSep(1, 3)), None
    )
    accountant.sensitivity = Bounds.bracket(1.0, 2.0, dm.Provenance("given"))
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
    with pytest.raises(dm.NumericalError, match="leave the range of float64"):
        dm.delta(dm.Identity(100), 1e200, 1.0, participation=dm.Poisson(0.1))


def test_eps_zero_is_reported_as_zero():
    bounds = dm.epsilon(ONE, 1e6, 0.5, participation=SINGLE)
    assert (bounds.lower, bounds.upper) == (0.0, 0.0)


def test_unattainable_and_unresolvable_budgets():
    with pytest.raises(dm.UnattainableBudgetError, match="eps=1e-300, delta=1e-300"):
        dm.calibrate_sigma(ONE, 1e-300, 1e-300, participation=SINGLE)
    with pytest.raises(dm.NumericalError, match="rounding errors hide delta"):
        dm.calibrate_sigma(ONE, 1.0, 1e-322, participation=SINGLE)
