import math
import types

import numpy as np
import pytest
from prv_accountant.domain import Domain
from scipy import special

import dpmech as dm
from dpmech.engines.losses.lattice import Loss
from dpmech.engines.losses.lattice_route import Side
from dpmech.engines.losses.prv import PrvAccountant, _PrivacyLoss
from dpmech.engines.losses.release import PoissonRelease
from dpmech.schemes import accountant_for
from tests.support import oracles as oracle
from tests.support.quick_cases import slow_but

GRID = [(8.0, 1e-5, 1 / 390, 3900), (0.5, 1e-6, 0.01, 1000), (0.05, 1e-6, 0.01, 1000)]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("eps", "delta", "q", "steps"),
    [*(pytest.param(*one, marks=pytest.mark.slow) for one in GRID), (2.0, 1e-8, 0.2, 50)],
)
def test_prv_and_pld_intervals_overlap(eps, delta, q, steps):
    strategy, schema = dm.Identity(steps), dm.Poisson(q)
    pld = dm.calibrate_sigma(strategy, eps, delta, participation=schema, method=dm.methods.Pld())
    prv = dm.calibrate_sigma(strategy, eps, delta, participation=schema, method=dm.methods.Prv(), rtol=1e-2)
    assert prv.achieved.upper <= eps
    assert "PRV" in prv.method
    assert pld.sigma / 1.001 <= prv.sigma <= pld.sigma * 1.01 * (1 + 1e-9)
    for sigma in (prv.sigma, 1.03 * pld.sigma):
        for call, level in ((dm.delta, eps), (dm.epsilon, delta)):
            one = call(strategy, sigma, level, participation=schema, method=dm.methods.Prv())
            other = call(strategy, sigma, level, participation=schema, method=dm.methods.Pld())
            assert one.lower <= other.upper
            assert other.lower <= one.upper
            assert one.upper < 1.3 * other.upper


@pytest.mark.parametrize(
    ("q", "sigma", "eps"),
    slow_but([(0.01, 1.0, 0.5), (0.3, 2.0, 0.5), (0.9, 1.0, 2.0), (0.5, 20.0, 0.03)], 0, 3),
)
@pytest.mark.parametrize("steps", [1, 2])
def test_prv_against_closed_form_and_quadrature(q, sigma, eps, steps):
    exact = oracle.sampled_delta if steps == 1 else oracle.sampled_delta_two_steps
    truth = max(exact(q, sigma, eps, remove=side, digits=25) for side in (True, False))
    bounds = dm.delta(dm.Identity(steps), sigma, eps, participation=dm.Poisson(q), method=dm.methods.Prv())
    assert bounds.lower <= truth <= bounds.upper
    assert bounds.upper <= 1.3 * truth + 1e-12


@pytest.mark.slow
def test_both_directions():
    # The ADD direction alone: its delta is above 0 at eps < -log(1 - q) only.
    bounds = dm.delta(dm.Identity(1), 1.0, 0.0, participation=dm.Poisson(0.5), method=dm.methods.Prv())
    truth = oracle.sampled_delta(0.5, 1.0, 0.0, remove=False)
    assert bounds.lower <= truth <= bounds.upper
    accountant = accountant_for(dm.Mechanism(dm.Identity(20), dm.Poisson(0.5)), dm.methods.Prv())
    assert isinstance(accountant, PrvAccountant)
    assert {side.loss.remove for side in accountant._sides(1.0)} == {True, False}


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.5, 10.0, 200), (0.2, 2.0, 50)])
def test_each_direction_by_itself_is_that_of_the_lattices(q, sigma, steps):
    """The larger direction hides what the other does, whose losses fall from output to output."""
    release = accountant_for(dm.Mechanism(dm.Identity(steps), dm.Poisson(q)), dm.methods.Prv()).release
    for remove in (True, False):
        found, off, error = _PrivacyLoss(Loss(q, sigma, remove), steps).composed(1e-3, 1e-6)
        low, _, high = found.compute_epsilon(1e-6, off, error)
        assert 0.0 < high - low < 5e-3
        side = Side(release, sigma, remove=remove)
        assert side.delta(low - 1e-3, 1e-4)[0] > 1e-6
        assert side.delta(high + 1e-3, 1e-4)[1] < 1e-6


@pytest.mark.parametrize(("call", "sigma", "level"), [(dm.delta, 5.0, 2.0), (dm.epsilon, 5.0, 1e-14)])
def test_below_its_resolution_it_raises(call, sigma, level):
    with pytest.raises(dm.NumericalError, match=r"use dm\.methods\.Pld\(\)"):
        call(dm.Identity(1000), sigma, level, participation=dm.Poisson(0.01), method=dm.methods.Prv())


@pytest.mark.slow
def test_a_fault_of_two_percent_is_seen():
    strategy, schema = dm.Identity(1000), dm.Poisson(0.01)
    sigma = dm.calibrate_sigma(strategy, 1.0, 1e-6, participation=schema).sigma
    low = dm.delta(strategy, 0.98 * sigma, 1.0, participation=schema, method=dm.methods.Prv())
    more = dm.delta(strategy, sigma, 1.0, participation=dm.Poisson(0.0102), method=dm.methods.Prv())
    assert low.lower > 1e-6
    assert more.lower > 1e-6


def test_a_single_step_more_is_seen():
    schema = dm.Poisson(0.01)
    steps = dm.epsilon(dm.Identity(10), 1.0, 1e-6, participation=schema)
    more = dm.epsilon(dm.Identity(11), 1.0, 1e-6, participation=schema, method=dm.methods.Prv())
    assert more.lower > steps.upper


# ---- what the error theorem asks of the domain


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("steps", [1, 400])
@pytest.mark.parametrize("wanted", [1e-9, 0.05])
def test_the_domain_has_the_tails_and_the_mesh_of_the_theorem(monkeypatch, remove, steps, wanted):
    asked = []

    def noted(low, high, mesh):
        asked.append((low, high, mesh))
        raise InterruptedError

    monkeypatch.setattr(Domain, "create_aligned", noted)
    q, s, delta = 0.05, 0.9, 1e-5
    side = _PrivacyLoss(Loss(q, s, remove=remove), steps)
    with pytest.raises(InterruptedError):
        side.composed(wanted, delta)
    ((low, high, mesh),) = asked
    allowed = 1e-3 * delta  # delta_error
    # Single tails of at most allowed / (8 T), tails of the sum of at most allowed / 8 each, by Chernoff.
    reach = -float(special.ndtri(allowed / (8 * steps)))
    outputs = np.array([-reach * s, 1.0 + reach * s])
    single = np.log1p(q * np.expm1((outputs - 0.5) / s**2))
    window = side.moments.window(0.0, math.log(allowed / 8))
    extent = 1.01 * max(*np.abs(single), *map(abs, window)) + wanted
    assert (-low, high) == pytest.approx((extent, extent), rel=1e-12)
    steepness = math.sqrt(steps / 2 * math.log(12 / allowed))
    # As fine as asked, or as 2^20 points allow.
    assert mesh == pytest.approx(max(wanted / steepness, 2 * extent / 2**20), rel=1e-12)


def test_what_a_composed_variable_may_be_off_by_is_told():
    side = _PrivacyLoss(Loss(0.05, 0.9, remove=True), 20)
    _, delta_error, eps_error = side.composed(0.05, 1e-5)
    assert delta_error == pytest.approx(1e-3 * 1e-5 + 4 * 2.0**-52 * 20, rel=1e-12, abs=0.0)
    assert eps_error == 0.05


@pytest.mark.parametrize("remove", [True, False])
def test_the_law_of_one_loss_is_that_of_its_outputs(remove):
    q, s = 0.2, 0.8
    side = _PrivacyLoss(Loss(q, s, remove=remove), 3)
    x = np.array([-2.0, -0.3, 0.4, 1.7])
    ratio = np.log1p(q * np.expm1((x - 0.5) / s**2))
    pure = special.ndtr(x / s)
    if remove:
        mixed = (1 - q) * pure + q * special.ndtr((x - 1) / s)
        assert side._cdf(ratio) == pytest.approx(mixed, rel=1e-9)
        assert side._cdf(np.array([math.log1p(-q) - 1e-3])).tolist() == [0.0]
    else:
        assert side._cdf(-ratio) == pytest.approx(1 - pure, rel=1e-9)
        assert side._cdf(np.array([1e-3 - math.log1p(-q)])).tolist() == [1.0]
    side.low, side.high = sorted(float(one) for one in (ratio if remove else -ratio)[[0, 3]])
    low, high = (side._cdf(np.array([end]))[0] for end in (side.low, side.high))
    inner = np.sort(ratio if remove else -ratio)[1:3]
    expected = (side._cdf(inner[1:])[0] - side._cdf(inner[:1])[0]) / (high - low)
    assert side.probability(inner[:1], inner[1:]) == pytest.approx([expected], rel=1e-12)
    # Clipped to the domain.
    assert side.probability(np.array([-50.0]), np.array([50.0])) == pytest.approx([1.0], rel=1e-12)
    # The mean given the domain, by the trapezoidal rule on outputs.
    ends = np.sort(x[[0, 3]])
    grid = np.linspace(ends[0], ends[1], 400_001)
    losses = np.log1p(q * np.expm1((grid - 0.5) / s**2)) * (1 if remove else -1)
    density = np.exp(-0.5 * (grid / s) ** 2)
    density = density * (1 + q * np.expm1((grid - 0.5) / s**2)) if remove else density
    assert side.mean() == pytest.approx(float(losses @ density / density.sum()), abs=3e-4)


@pytest.mark.parametrize("tight", [True, False])
def test_bounds_are_read_where_the_errors_leave_them(monkeypatch, tight):
    def side(size):
        composed = types.SimpleNamespace(
            compute_delta_estimate=lambda eps: size * math.exp(-eps),
            compute_epsilon=lambda *_: (1.0 - size, 2.0, 3.0 + size),
        )
        moments = types.SimpleNamespace(saddle_log_delta=lambda eps: -9.0, chernoff_eps=lambda log: 1.0)
        return types.SimpleNamespace(moments=moments, composed=lambda *_: (composed, 1e-3, 0.25))

    release = PoissonRelease(0.1, 5, dm.sensitivity(dm.Identity(5), dm.Poisson(0.1)), tight=tight)
    accountant = PrvAccountant(release)
    monkeypatch.setattr(accountant, "_sides", lambda sigma: (side(0.4), side(0.5), side(0.3)))
    found = accountant.delta(1.0, 1.0, tolerance=0.1)
    # The worst direction, eps off by 0.25 and delta by 1e-3 either way.
    assert found.upper == pytest.approx(0.5 * math.exp(-0.75) + 1e-3, rel=1e-12)
    assert found.lower == (pytest.approx(0.5 * math.exp(-1.25) - 1e-3, rel=1e-12) if tight else 0.0)
    found = accountant.epsilon(1.0, 1e-2, tolerance=0.1)
    assert (found.lower, found.upper) == (0.7 if tight else 0.0, 3.5)
    # Where nothing is left at eps = 0, no eps is needed.
    found = accountant.epsilon(1.0, 0.9, tolerance=0.1)
    assert (found.lower, found.upper) == (0.0, 0.0)


def test_no_eps_is_needed_only_where_all_errors_leave_delta_below(monkeypatch):
    """Off by 0.25 in eps and 1e-3 in delta, the estimate at eps = 0 may be 0.4 e^0.25 + 1e-3."""
    composed = types.SimpleNamespace(
        compute_delta_estimate=lambda eps: 0.4 * math.exp(-eps), compute_epsilon=lambda *_: (0.1, 0.2, 0.3)
    )
    moments = types.SimpleNamespace(saddle_log_delta=lambda eps: -9.0, chernoff_eps=lambda log: 1.0)
    side = types.SimpleNamespace(moments=moments, composed=lambda *_: (composed, 1e-3, 0.25))
    release = PoissonRelease(0.1, 5, dm.sensitivity(dm.Identity(5), dm.Poisson(0.1)))
    accountant = PrvAccountant(release)
    monkeypatch.setattr(accountant, "_sides", lambda sigma: (side,))
    most = 0.4 * math.exp(0.25) + 1e-3
    assert accountant.epsilon(1.0, most * (1.0 - 1e-9), tolerance=0.1).upper == 0.3
    assert accountant.epsilon(1.0, most, tolerance=0.1).upper == 0.0
    # A delta is never told to be above 1.
    large = types.SimpleNamespace(compute_delta_estimate=lambda eps: 0.7 - 2.0 * eps)
    side.composed = lambda *_: (large, 1e-3, 0.25)
    assert accountant.delta(1.0, 0.0, tolerance=0.1).upper == 1.0
