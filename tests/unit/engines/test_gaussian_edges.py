"""The Gaussian accountant where rounding decides: enormous eps, noise that looks infinite to float64."""

import math

import mpmath as mp
import pytest

from dpmech.engines.gaussian import GaussianAccountant, gaussian_delta, gaussian_epsilon
from dpmech.numerics import Bounds, Provenance


def true_delta(sigma, eps):
    """Phi(a) - e^eps Phi(b), with digits for what cancels."""
    with mp.workdps(80):
        sigma, eps = mp.mpf(sigma), mp.mpf(eps)
        a, b = 1 / (2 * sigma) - eps * sigma, -1 / (2 * sigma) - eps * sigma
        # The complement keeps e^eps Phi(b) finite where eps is enormous.
        scaled = mp.exp(eps - b * b / 2) * mp.hyperu(0.5, 0.5, b * b / 2) / (2 * mp.sqrt(mp.pi))
        return mp.ncdf(a) - scaled


@pytest.mark.parametrize("eps", [1e2, 1e4, 1e6, 1e8, 1e10])
@pytest.mark.parametrize("a", [-0.1, -1.0, -3.0, -8.0, -20.0])
def test_rounding_bound_covers_what_cancels_in_its_argument(eps, a):
    # a = 1 / (2 sigma) - eps sigma is the difference of terms near sqrt(eps / 2).
    for factor in (1.0, 1.0 + 1e-9, 1.0 - 3e-10):
        sigma = (-a + math.sqrt(a * a + 2.0 * eps)) / (2.0 * eps) * factor
        lower, upper = gaussian_delta(sigma, eps)
        truth = true_delta(sigma, eps)
        assert lower <= truth <= upper
        assert upper - lower <= 1e-6 * upper


@pytest.mark.parametrize("a", [0.0, -1.0, -3.0, -6.0])
@pytest.mark.parametrize("sigma", [1e17, 1e30])
def test_delta_of_noise_that_float64_cannot_tell_from_infinite(sigma, a):
    eps = -a / sigma
    lower, upper = gaussian_delta(sigma, eps)
    truth = true_delta(sigma, eps)
    assert lower <= truth <= upper
    if a == 0.0:
        assert upper <= 1.01 * truth


@pytest.mark.parametrize(("sigma", "eps"), [(1.3, 1.0), (0.2, 8.0), (5.0, 0.0)])
def test_both_ends_are_those_of_the_sensitivity_on_that_side(sigma, eps):
    exact = GaussianAccountant(Bounds.bracket(2.0, 2.0, Provenance("exact"))).delta(
        sigma, eps, tolerance=1e-3
    )
    assert exact.lower <= true_delta(sigma / 2.0, eps) <= exact.upper
    assert exact.lower >= exact.upper * (1.0 - 1e-12)
    wide = GaussianAccountant(Bounds.bracket(1.0, 4.0, Provenance("bracket"))).delta(
        sigma, eps, tolerance=1e-3
    )
    assert float(wide.lower) == pytest.approx(float(true_delta(sigma, eps)), rel=1e-12)
    assert float(wide.upper) == pytest.approx(float(true_delta(sigma / 4.0, eps)), rel=1e-12)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 20.0])
def test_epsilon_is_the_root_on_its_side(sigma):
    for safe in (True, False):
        eps = gaussian_epsilon(sigma, 1e-6, safe=safe)
        assert (true_delta(sigma, eps) <= 1e-6) == safe or eps == 0.0
        assert float(true_delta(sigma, eps)) == pytest.approx(1e-6, rel=1e-9)
