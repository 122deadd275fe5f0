import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.losses import convolution as composition
from dpmech.engines.losses.convolution import LossMoments, compose
from dpmech.engines.losses.lattice import LatticeLoss, Loss, lower_lattice, upper_lattice
from tests.support import oracles as oracle


def convolved(masses, times):
    result = np.ones(1)
    for _ in range(times):
        result = np.convolve(result, masses)
    return result


def both(loss, times, theta, eps):
    """Lower and upper delta of one lattice."""
    return tuple(compose(loss, times, theta, upper=upper).delta(eps) for upper in (False, True))


LATTICE = LatticeLoss(0.25, -2, np.array([0.05, 0.3, 0.3, 0.2, 0.1]), 0.01, offset=0.03)


@pytest.mark.parametrize("times", [1, 2, 7])
@pytest.mark.parametrize("theta", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("eps", [0.0, 0.4, 1.1])
def test_composition_is_convolution(times, theta, eps):
    masses = convolved(LATTICE.masses, times)
    losses = times * (0.03 - 0.5) + 0.25 * np.arange(masses.size)
    above = losses > eps
    infinite = 1 - 0.99**times
    truth = float(np.sum(masses[above] * -np.expm1(eps - losses[above])))
    lower, upper = both(LATTICE, times, theta, eps)
    assert lower <= truth <= truth + infinite <= upper
    assert upper - lower - infinite < 1e-10


def test_relative_accuracy_far_below_machine_epsilon():
    masses = np.array([1 - 1e-9, 1e-9])
    # More than 14.5 of 1000 steps have loss 1.
    truth = sum(
        math.comb(1000, k) * 1e-9**k * (1 - 1e-9) ** (1000 - k) * -math.expm1(14.5 - k) for k in range(15, 40)
    )
    lower, upper = both(LatticeLoss(1.0, 0, masses, 0.0), 1000, 16.5, 14.5)
    assert truth < 1e-100
    assert lower <= truth <= upper
    assert upper / lower - 1 < 1e-6


def test_too_many_lattice_points_is_an_error(monkeypatch):
    monkeypatch.setattr(composition, "MAX_LENGTH", 10)
    with pytest.raises(dm.NumericalError, match="tolerance too small"):
        compose(LATTICE, 50, 1.0, upper=True)


@pytest.mark.parametrize("eps", [0.0, 0.5, 1.2])
def test_chernoff_is_an_upper_bound_and_saddle_point_is_close(eps):
    loss = Loss(0.1, 1.0, True)
    moments = LossMoments(*loss.sampled(), 20)
    step = 0.01
    lower = compose(lower_lattice(loss, step), 20, moments.tilt_for_eps(eps), upper=False).delta(eps)
    upper = compose(upper_lattice(loss, step), 20, moments.tilt_for_eps(eps), upper=True).delta(eps)
    assert math.exp(moments.chernoff_log_delta(eps)) > lower
    assert math.exp(moments.saddle_log_delta(eps)) == pytest.approx(upper, rel=0.2)
    assert moments.chernoff_eps(math.log(upper)) >= eps * (1 - 1e-9)


def test_moments_against_the_definition():
    moments = LossMoments.of(LATTICE, 3)
    losses, masses = LATTICE.losses(), LATTICE.masses
    for theta in (-1.0, 0.0, 2.5):
        weights = masses * np.exp(theta * losses)
        mean = (weights * losses).sum() / weights.sum()
        log_m, first, second = moments.cumulants(theta)
        assert log_m == pytest.approx(math.log(weights.sum()), rel=1e-13)
        assert first == pytest.approx(mean, rel=1e-12)
        assert second == pytest.approx((weights * (losses - mean) ** 2).sum() / weights.sum(), rel=1e-12)


def test_tilts_solve_their_equations():
    moments = LossMoments.of(LATTICE, 3)
    theta = moments.tilt_for_eps(1.0)
    assert 3 * moments.cumulants(theta)[1] == pytest.approx(1.0, rel=1e-3)
    assert moments.tilt_for_eps(-10.0) == 0.0
    assert moments.tilt_for_eps(10.0) == composition._MAX_TILT


def test_window_holds_the_composed_mass():
    moments = LossMoments.of(LatticeLoss(0.25, -2, LATTICE.masses / LATTICE.masses.sum(), 0.0), 40)
    low, high = moments.window(0.0, math.log(1e-6))
    masses = convolved(LATTICE.masses / LATTICE.masses.sum(), 40)
    losses = -0.5 * 40 + 0.25 * np.arange(masses.size)
    assert masses[losses > high].sum() <= 1e-6
    assert masses[losses < low].sum() <= 1e-6
    assert high < losses[-1]
    assert low > losses[0]


def test_the_order_of_the_outputs_does_not_matter():
    losses, log_masses = np.linspace(-3.0, 3.0, 101), -0.5 * np.linspace(-3.0, 3.0, 101) ** 2
    rising, falling = (LossMoments(losses[::way], log_masses[::way], 5) for way in (1, -1))
    assert falling.window(0.5, -30.0) == pytest.approx(rising.window(0.5, -30.0), rel=1e-12)


@pytest.mark.parametrize(("q", "s", "eps"), [(0.05, 0.6, 2.0), (0.3, 2.0, 0.7), (0.01, 1.0, 12.0)])
@pytest.mark.parametrize("remove", [True, False])
def test_two_steps_against_quadrature(q, s, eps, remove):
    if not remove:
        eps = -1.4 * math.log1p(-q)  # losses of this direction stay below -2 log(1 - q)
    truth = oracle.sampled_delta_two_steps(q, s, eps, remove=remove, digits=15)
    loss = Loss(q, s, remove)
    moments = LossMoments(*loss.sampled(), 2)
    step = 0.02 * math.sqrt(moments.cumulants(0.0)[2])
    theta = moments.tilt_for_eps(eps)
    lower = compose(lower_lattice(loss, step), 2, theta, upper=False).delta(eps)
    upper = compose(upper_lattice(loss, step), 2, theta, upper=True).delta(eps)
    assert lower <= truth <= upper
    assert upper / lower - 1 < 0.05
