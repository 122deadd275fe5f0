import math

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import dpmech as dm
from tests.support import generators as gen
from tests.support import oracles as oracle

EPS = gen.finite(math.log(0.01), math.log(50.0)).map(math.exp)
DELTAS = gen.finite(math.log(1e-12), math.log(0.2)).map(math.exp)
SAMPLED_EPS = gen.finite(math.log(0.05), math.log(8.0)).map(math.exp)
SAMPLED_DELTAS = gen.finite(math.log(1e-9), math.log(1e-3)).map(math.exp)
PROBS = gen.finite(math.log(0.01), math.log(0.5)).map(math.exp)
FEW = settings(max_examples=max(5, settings.default.max_examples // 8))


def known_delta(steps, q, sigma, eps):
    """Bounds on delta; a problem that the accountant refuses as too hard is no example."""
    try:
        return dm.delta(dm.Identity(steps), sigma, eps, participation=dm.Poisson(q))
    except dm.NumericalError:
        reject()


@given(gen.strategy_and_participation(of=gen.unsampled), EPS, DELTAS, st.sampled_from(dm.Adjacency))
def test_unsampled_calibration_is_safe_and_tight(drawn, eps, delta, adjacency):
    strategy, schema = drawn
    options = {"participation": schema, "adjacency": adjacency}
    calibration = dm.calibrate_sigma(strategy, eps, delta, **options)
    assert calibration.achieved.lower <= calibration.achieved.upper <= eps
    assert dm.delta(strategy, calibration.sigma, eps, **options).upper <= delta
    # Safe and tight by the 60-digit formula at the upper sensitivity.
    multiplier = calibration.sigma / dm.sensitivity(strategy, schema, adjacency=adjacency).upper
    assert oracle.gaussian_delta(multiplier, eps) <= delta * (1 + 1e-12)
    assert oracle.gaussian_delta(multiplier * (1 - 1e-7), eps) > delta


@given(gen.finite(0.3, 20.0), gen.finite(1.0, 1.5), EPS, DELTAS)
def test_unsampled_monotone(sigma, factor, eps, delta):
    one = dm.Identity(1)
    assert dm.delta(one, sigma * factor, eps).lower <= dm.delta(one, sigma, eps).upper
    assert dm.delta(one, sigma, eps * factor).lower <= dm.delta(one, sigma, eps).upper
    assert dm.epsilon(one, sigma * factor, delta).lower <= dm.epsilon(one, sigma, delta).upper
    assert dm.epsilon(one, sigma, min(0.9, delta * factor)).lower <= dm.epsilon(one, sigma, delta).upper
    more = dm.epsilon(dm.Identity(2), sigma, delta)
    assert dm.epsilon(one, sigma, delta).upper <= more.upper


@given(PROBS, st.integers(20, 300), SAMPLED_EPS, SAMPLED_DELTAS)
@FEW
@pytest.mark.slow
def test_sampled_calibration_is_safe_and_tight(q, steps, eps, delta):
    strategy, schema = dm.Identity(steps), dm.Poisson(q)
    calibration = dm.calibrate_sigma(strategy, eps, delta, participation=schema)
    assert 0.0 <= calibration.achieved.lower <= calibration.achieved.upper <= eps
    assert dm.delta(strategy, calibration.sigma, eps, participation=schema).upper <= delta
    assert dm.delta(strategy, calibration.sigma / 1.001, eps, participation=schema).lower > delta
    # Sampling never needs more noise than taking part in every step does.
    assert calibration.sigma <= dm.calibrate_sigma(strategy, eps, delta).sigma * (1 + 1e-3)


@pytest.mark.slow
@given(PROBS, st.integers(20, 200), gen.finite(0.5, 8.0), gen.finite(1.02, 1.5), SAMPLED_EPS)
@FEW
def test_sampled_monotone(q, steps, sigma, factor, eps):
    def delta(q=q, steps=steps, sigma=sigma, eps=eps):
        return known_delta(steps, q, sigma, eps)

    here = delta()
    assert here.lower <= here.upper
    assert delta(sigma=sigma * factor).lower <= here.upper
    assert delta(eps=eps * factor).lower <= here.upper
    assert here.lower <= delta(steps=steps + 1).upper
    assert here.lower <= delta(q=min(0.95, q * factor)).upper


@given(PROBS, gen.finite(0.3, 10.0), gen.finite(0.0, 12.0))
@FEW
def test_one_sampled_step_against_the_closed_form(q, sigma, eps):
    sides = [oracle.sampled_delta(q, sigma, eps, remove=remove) for remove in (True, False)]
    bounds = known_delta(1, q, sigma, eps)
    assert bounds.lower <= max(sides) * (1 + 1e-12)
    assert bounds.upper * (1 + 1e-12) >= max(sides)


@pytest.mark.slow
@given(PROBS, gen.finite(0.5, 5.0), SAMPLED_EPS, st.integers(10, 40), st.integers(10, 40))
@FEW
def test_splitting_a_run_in_two_composes(q, sigma, eps, first, second):
    parts = [known_delta(steps, q, sigma, eps) for steps in (first, second)]
    whole = known_delta(first + second, q, sigma, 2 * eps)
    # Basic composition is valid, and looser than the accountant of the whole run.
    assert whole.lower <= sum(part.upper for part in parts)


@given(gen.finite(0.5, 5.0), DELTAS, st.integers(1, 30), st.integers(1, 30))
def test_gaussian_runs_compose_exactly(sigma, delta, first, second):
    whole = dm.epsilon(dm.Identity(first + second), sigma, delta)
    joint = (first / sigma**2 + second / sigma**2) ** -0.5
    single = dm.epsilon(dm.Identity(1), joint, delta)
    assert math.isclose(whole.upper, single.upper, rel_tol=1e-9)


@given(gen.finite(0.05, 0.9), gen.finite(0.5, 4.0))
@FEW
def test_a_dropped_direction_would_be_seen(q, sigma):
    # Just above the largest loss of ADD, -log(1 - q), only REMOVE is left: REMOVE cannot be dropped.
    eps = -1.01 * math.log1p(-q)
    bounds = known_delta(1, q, sigma, eps)
    assert oracle.sampled_delta(q, sigma, eps, remove=False) == 0
    assert bounds.upper >= oracle.sampled_delta(q, sigma, eps, remove=True) > 0
