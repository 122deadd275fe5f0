import itertools

import numpy as np
import pytest
import scipy.special

from dpmech.engines.convex_order.exponentials import Majorant

POINTS = np.unique(np.concatenate([np.linspace(0.0, 3.0, 3001), np.geomspace(3.0, 200.0, 400)]))
CASES = [
    Majorant(width, 1.0 + 8.0 * width + more, damping, 0.5)
    for width, more, damping in itertools.product((0.02, 0.1, 0.4), (0.0, 1.0), (4.0, 12.0))
]


def value(majorant, theta, points):
    """The sum of exponentials without its line, at every point."""
    waves = np.exp(-np.multiply.outer(points, majorant.exponents()))
    return (waves @ majorant.coefficients(theta)).real


@pytest.mark.parametrize("majorant", CASES)
@pytest.mark.parametrize("theta", [0.5, 0.77, 1.0])
def test_it_lies_above_the_payoff_everywhere(majorant, theta):
    high, slope = majorant.line(theta)
    found = value(majorant, theta, POINTS) + majorant.remainder(theta) - high + slope * POINTS
    payoff = np.maximum(1.0 - POINTS / theta, 0.0)
    assert np.all(found >= payoff - 1e-13)
    # a kink that is 1 % off is not
    assert np.any(found < np.maximum(1.0 - POINTS / (theta * 1.2), 0.0))


@pytest.mark.parametrize("majorant", CASES)
def test_below_the_first_copy_it_is_the_smoothed_payoff(majorant):
    """Closed form: E (1 - u - w xi)_+ = w (phi(t) + t Phi(t)), t = (1 - u) / w."""
    points = POINTS[POINTS < 1.0]
    high, slope = majorant.line(1.0)
    found = value(majorant, 1.0, points) - high + slope * points
    t = (1.0 - points) / majorant.width
    smooth = majorant.width * (np.exp(-0.5 * t * t) / np.sqrt(2 * np.pi) + t * scipy.special.ndtr(t))
    copies = np.exp(majorant.damping) * majorant.width * 1e-15
    np.testing.assert_allclose(
        found, smooth, atol=1e-11 * np.exp(majorant.damping / majorant.period) + copies
    )


def test_what_is_cut_off_is_bounded():
    short = Majorant(0.2, 2.6, 4.0)
    cut = 8
    waves = np.exp(-np.multiply.outer(POINTS, short.exponents()))
    rest = np.abs((waves[:, cut:] @ short.coefficients(1.0)[cut:]).real)
    assert np.max(rest) <= np.sum(np.abs(short.coefficients(1.0)[cut:]))
    assert 0.0 < short.remainder(1.0) < 1e-8
    assert short.remainder(0.5) > short.remainder(1.0)  # least = 1: a smaller kink is cut earlier
