import functools
import math
import warnings

import pytest

import dpmech as dm
from dpmech.engines.losses import accountants as poisson
from dpmech.engines.losses import direction
from dpmech.engines.losses.accountants import PoissonAccountant
from dpmech.engines.losses.release import PoissonRelease
from dpmech.numerics.bounds import Bounds
from tests.support import oracles as oracle
from tests.support.quick_cases import slow_but


@functools.cache
def calibrated(eps, delta, q, steps):
    return dm.calibrate_sigma(dm.Identity(steps), eps, delta, participation=dm.Poisson(q))


def independent_delta(sigma, q, steps, eps, interval, *, pessimistic):
    """Both directions by the PLD of dp-accounting, connect-the-dots above and privacy buckets below."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting.pld import privacy_loss_distribution as pld

        composed = pld.from_gaussian_mechanism(
            sigma,
            sampling_prob=q,
            value_discretization_interval=interval,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        ).self_compose(steps)
        return float(composed.get_delta_for_epsilon(eps))


# (eps, delta, q, T), with a grid that the independent accountant can afford there.
CORNERS = [
    (1e-3, 1e-3, 0.01, 1000, 2e-6),
    (1e-3, 1e-6, 0.01, 1000, 2e-7),
    (1e-3, 1e-12, 0.01, 1000, 1e-7),
    # A finer grid makes this one looser: its masses are differences of float64 deltas, divided by the step.
    (1e-3, 1e-3, 0.001, 100_000, 8e-7),
    (1000.0, 1e-3, 0.01, 1000, 2e-2),
    (1000.0, 1e-12, 0.01, 1000, 2e-2),
    pytest.param(1.0, 1e-5, 0.001, 100_000, 1e-5, marks=pytest.mark.slow),
    (10.0, 1e-8, 0.01, 1000, 1e-3),
]


@pytest.mark.parametrize(("eps", "delta", "q", "steps", "interval"), CORNERS)
def test_corners_against_an_independent_accountant(eps, delta, q, steps, interval):
    calibration = calibrated(eps, delta, q, steps)
    sigma = calibration.sigma
    assert calibration.achieved.upper <= eps
    assert str(calibration.guarantee) == "deterministic upper bound"
    bounds = dm.delta(dm.Identity(steps), sigma, eps, participation=dm.Poisson(q))
    assert bounds.upper <= delta * (1 + 1e-9)
    # The independent upper bound is a little loose, by its grid; the faults below are not covered by that.
    # At 1e-12 it also carries about 3 % of rounding noise from its untilted FFT, whatever the grid.
    noise = 1.004 if delta > 1e-10 else 1.05
    limit = noise * delta
    pessimistic = functools.partial(independent_delta, q=q, eps=eps, interval=interval, pessimistic=True)
    assert bounds.lower <= noise * pessimistic(sigma, steps=steps) <= noise * limit
    assert pessimistic(0.98 * sigma, steps=steps) > limit
    assert independent_delta(sigma, 1.02 * q, steps, eps, interval, pessimistic=True) > limit


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "delta"), [(1000.0, 1e-3), (1000.0, 1e-12)])
def test_many_steps_at_huge_eps(eps, delta):
    calibration = calibrated(eps, delta, 0.001, 100_000)
    # Near 1e-12 the other accountant's FFT over 100,000 steps is off by a few 1e-12 either way, as changing
    # its grid shows; sigma 2 % low still gives 2e-10.
    limit = (1.02 if delta > 1e-10 else 10.0) * delta
    assert independent_delta(calibration.sigma, 0.001, 100_000, eps, 0.02, pessimistic=True) <= limit
    assert independent_delta(0.98 * calibration.sigma, 0.001, 100_000, eps, 0.02, pessimistic=True) > limit


def test_small_eps_does_not_ask_for_4800():
    assert 765 <= calibrated(1e-3, 1e-6, 0.01, 1000).sigma <= 775


@pytest.mark.parametrize(
    ("eps", "printed"),
    slow_but([(8.0, 21.82), (4.0, 26.27), (2.0, 31.68), (1.0, 40.10), (0.5, 59.17), (0.25, 100.27)], 0, 5),
)
def test_published_dp_sgd_row(eps, printed):
    assert calibrated(eps, 1e-5, 1 / 390, 3900).rmse() == pytest.approx(printed, rel=1e-2)


def test_published_adam_run():
    bounds = dm.epsilon(dm.Identity(120), 0.4672241211, 1e-5, participation=dm.Poisson(256 / 42061))
    assert bounds.upper == pytest.approx(6.393, abs=0.002)
    assert bounds.lower == pytest.approx(6.393, abs=0.002)


@pytest.mark.parametrize(
    ("q", "steps", "delta", "sigma", "printed"),
    [
        (0.0064, 15_600, 1e-5, 0.5, 34.545),
        (0.0064, 15_600, 1e-5, 1.0, 4.744),
        (0.0064, 15_600, 1e-5, 4.0, 0.740),
        (0.00256, 39_000, 1e-5, 0.8, 4.445),
        (0.00256, 39_000, 1e-5, 12.0, 0.133),
        (64 / 246_092, 192_250, 1e-6, 0.5, 5.809),
        (64 / 246_092, 192_250, 1e-6, 1.0, 0.616),
        (64 / 246_092, 192_250, 1e-6, 2.0, 0.234),
        (1024 / 42_043, 410, 8e-6, 2.3395 / 7, 61.95),
    ],
)
def test_published_certified_values(q, steps, delta, sigma, printed):
    bounds = dm.epsilon(dm.Identity(steps), sigma, delta, participation=dm.Poisson(q))
    assert bounds.upper == pytest.approx(printed, rel=5e-3)
    assert bounds.lower == pytest.approx(printed, rel=5e-3)


ONE_STEP = [
    (0.01, 0.3, 5.0), (0.01, 0.3, 40.0), (0.01, 1.0, 4.0), (0.01, 1.0, 9.0), (0.3, 5.0, 0.1), (0.3, 5.0, 1.9),
    (0.9, 1.0, 2.2), (0.9, 1.0, 11.0), (0.5, 100.0, 0.05), (1e-4, 0.5, 20.0),
]  # fmt: skip


@pytest.mark.parametrize(("q", "sigma", "eps"), ONE_STEP)
def test_one_step_against_the_closed_form(q, sigma, eps):
    schema = dm.Poisson(q)
    remove = oracle.sampled_delta(q, sigma, eps, remove=True)
    add = oracle.sampled_delta(q, sigma, eps, remove=False)
    truth = max(remove, add)
    bounds = dm.delta(dm.Identity(1), sigma, eps, participation=schema)
    assert bounds.lower <= truth <= bounds.upper
    assert bounds.upper <= 1.1 * bounds.lower
    if 1e-290 < truth < 0.5:
        delta = float(truth)
        inverse = dm.epsilon(dm.Identity(1), sigma, delta, participation=schema)
        assert inverse.lower <= eps * (1 + 1e-9)
        assert inverse.upper >= eps * (1 - 1e-9)
        calibration = dm.calibrate_sigma(dm.Identity(1), eps, delta, participation=schema)
        assert calibration.sigma >= sigma * (1 - 1e-9)
        assert calibration.sigma <= sigma * (1 + 1e-3) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("q", "sigma", "eps"),
    [(1e-9, 300.0, 1e-11), (1.62e-7, 37.5, 1.44e-7), (1e-3, 5.0, 1e-17), (0.1, 5.0, 1e-13),
     (0.1, 0.5, 0.10536051), (1e-3, 40.0, 0.0010005), (0.999, 5.0, 6.9077), (1e-300, 1.0, 650.0)],
)  # fmt: skip
def test_one_step_where_digits_cancel(q, sigma, eps):
    """(e^eps - 1) / q from e^eps near 1, and c = 1 - e^eps (1 - q) where ADD is about to end."""
    truth = max(oracle.sampled_delta(q, sigma, eps, remove=remove, digits=60) for remove in (True, False))
    bounds = dm.delta(dm.Identity(1), sigma, eps, participation=dm.Poisson(q))
    assert bounds.lower <= truth <= bounds.upper
    assert bounds.upper <= 1.0001 * bounds.lower or truth < 1e-280


def test_one_step_down_to_eps_zero():
    one, schema = dm.Identity(1), dm.Poisson(0.001)
    least = dm.delta(one, 5.0, 0.0, participation=schema)
    assert dm.epsilon(one, 5.0, least.upper, participation=schema).upper == 0.0
    close = dm.epsilon(one, 5.0, least.upper * (1.0 - 1e-10), participation=schema)
    assert 0.0 <= close.lower <= close.upper < 1e-12
    sigma = dm.calibrate_sigma(one, 1e-17, 1e-5, participation=dm.Poisson(0.1)).sigma
    assert sigma == pytest.approx(0.1 / (1e-5 * math.sqrt(2.0 * math.pi)), rel=1e-3)


def test_closed_form_reaches_below_1e_30():
    assert oracle.sampled_delta(0.01, 0.3, 40.0, remove=True) < 1e-30
    assert oracle.sampled_delta(0.3, 5.0, 1.9, remove=True) < 1e-30


@pytest.mark.parametrize(
    ("q", "sigma", "eps"), [(0.05, 0.6, 3.0), (0.3, 2.0, 0.7), (0.3, 2.0, 6.0), (0.6, 10.0, 1.4)]
)
def test_two_steps_against_quadrature(q, sigma, eps):
    truth = max(
        oracle.sampled_delta_two_steps(q, sigma, eps, remove=side, digits=25) for side in (True, False)
    )
    bounds = dm.delta(dm.Identity(2), sigma, eps, participation=dm.Poisson(q))
    assert bounds.lower <= truth <= bounds.upper
    assert bounds.upper <= 1.1 * bounds.lower
    # The count of steps and both parameters matter: the interval excludes their neighbours.
    for changed in ((0.98 * q, sigma), (q, 0.98 * sigma)):
        wrong = oracle.sampled_delta_two_steps(*changed, eps, remove=True, digits=15)
        assert not bounds.lower <= wrong <= bounds.upper
    once = max(oracle.sampled_delta(q, sigma, eps, remove=side) for side in (True, False))
    assert once < bounds.lower


def test_two_steps_reach_below_1e_30():
    assert oracle.sampled_delta_two_steps(0.6, 10.0, 1.4, remove=True, digits=25) < 1e-30


@pytest.mark.parametrize(("q", "sigma", "eps", "larger"), [(0.9, 1.0, 0.5, True), (0.5, 1.0, 0.0, None)])
def test_both_directions_count_in_one_step(q, sigma, eps, larger):
    remove = float(oracle.sampled_delta(q, sigma, eps, remove=True))
    add = float(oracle.sampled_delta(q, sigma, eps, remove=False))
    assert larger is None or (remove > add) == larger
    bounds = dm.delta(dm.Identity(1), sigma, eps, participation=dm.Poisson(q))
    assert bounds.lower <= max(remove, add) <= bounds.upper


def sides(release, sigma, eps):
    accountant = PoissonAccountant(release)
    return {side.loss.remove: side.delta(eps, 1e-4) for side in accountant._directions(sigma)}


def test_dropping_the_remove_direction_would_be_seen():
    release = PoissonRelease(0.01, 100, Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("given")))
    directions = sides(release, 1.0, 0.3)
    assert directions[True][0] > 10 * directions[False][1]
    assert PoissonAccountant(release).delta(1.0, 0.3, tolerance=1e-3).lower > 10 * directions[False][1]


def test_each_direction_is_bounded_by_the_result():
    for q, steps, sigma in ((0.9, 3, 2.0), (0.5, 50, 8.0), (0.1, 10, 1.0)):
        release = PoissonRelease(q, steps, Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("given")))
        for eps in (0.01, 0.1, 0.5):
            bounds = PoissonAccountant(release).delta(sigma, eps, tolerance=1e-3)
            for lower, _, _ in sides(release, sigma, eps).values():
                assert bounds.upper >= lower


@pytest.mark.parametrize("eps", [0.001, 0.05, 1.0])
@pytest.mark.parametrize("q", [0.001, 0.1])
def test_bounds_are_as_narrow_as_promised(q, eps):
    sigma = calibrated(eps, 1e-6, q, 500).sigma
    bounds = dm.delta(dm.Identity(500), sigma, eps, participation=dm.Poisson(q))
    assert 0.9 * bounds.upper < bounds.lower <= 1e-6
    inverse = dm.epsilon(dm.Identity(500), sigma, 1e-6, participation=dm.Poisson(q))
    assert inverse.upper - inverse.lower <= 1e-3 * inverse.upper + 1e-9
    below = dm.delta(dm.Identity(500), sigma / 1.001, eps, participation=dm.Poisson(q))
    assert below.lower > 1e-6


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_scaling_the_strategy_scales_sigma(scale):
    schema = dm.Poisson(0.05)
    plain = dm.calibrate_sigma(dm.Identity(20), 1.0, 1e-5, participation=schema)
    scaled = dm.calibrate_sigma(dm.Diagonal([scale] * 20), 1.0, 1e-5, participation=schema)
    assert scaled.sigma == pytest.approx(scale * plain.sigma, rel=1e-9)
    assert (plain.noise_multiplier, scaled.noise_multiplier) == (plain.sigma, None)
    assert scaled.rmse() == pytest.approx(plain.rmse(), rel=1e-9)


def test_impossible_tolerance_is_an_error(monkeypatch):
    monkeypatch.setattr(direction, "_HALVINGS", 1)
    monkeypatch.setattr(poisson, "_WIDEST", 1e-12)
    release = PoissonRelease(0.01, 100, Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("given")))
    accountant = PoissonAccountant(release)
    with pytest.raises(dm.NumericalError, match=r"delta at sigma=1\.0 is only known to lie in"):
        accountant.delta(1.0, 1.0, tolerance=1e-13)
    with pytest.raises(dm.NumericalError, match=r"eps at sigma=1\.0 is only known to lie in"):
        accountant.epsilon(1.0, 1e-5, tolerance=1e-11)


def test_loose_release_has_no_lower_bound():
    release = PoissonRelease(
        0.01, 100, Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("given")), tight=False
    )
    accountant = PoissonAccountant(release)
    assert accountant.delta(1.0, 1.0, tolerance=1e-3).lower == 0.0
    assert accountant.epsilon(1.0, 1e-5, tolerance=1e-3).lower == 0.0


def test_first_guess_is_close():
    release = PoissonRelease(0.01, 1000, Bounds.bracket(1.0, 1.0, dm.numerics.Provenance("given")))
    guess = poisson.saddle_point_sigma(release, 1.0, 1e-6)
    assert math.log(guess / calibrated(1.0, 1e-6, 0.01, 1000).sigma) == pytest.approx(0.0, abs=0.02)


@pytest.mark.slow
def test_a_lattice_that_never_gets_fine_enough_widens_the_bounds():
    """Here the lower lattice gets worse as it is refined, long before it gets better."""
    schema = dm.Poisson(64 / 246_092)
    bounds = dm.epsilon(dm.Identity(192_250), 0.7, 1e-6, participation=schema)
    other = dm.epsilon(dm.Identity(192_250), 0.7, 1e-6, participation=schema, method=dm.methods.Prv())
    assert other.lower <= bounds.upper
    assert bounds.lower <= other.upper
    assert bounds.upper <= 1.01 * bounds.lower
