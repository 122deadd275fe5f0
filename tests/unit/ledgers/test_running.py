"""What a run has spent so far, against the whole computation at every step and against formulas."""

import itertools
import math

import mpmath
import pytest

import dpmech as dm
from dpmech.ledgers import RunningEpsilon
from tests.support import saved
from tests.support.oracles import gaussian_delta

QUICK = ["every step", "min-sep", "epochs"]
SLOW = ["poisson 30", "cyclic 20", "bins moments 24", "bins exact"]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_it_is_never_below_what_was_executed(name):
    cal = saved.calibration(name)
    n = cal.strategy.n
    truths = [dm.executed_epsilon(cal, steps) for steps in range(n + 1)]
    # Backwards too: what was computed for a later step must not stand in for an earlier one.
    for order in (range(n + 1), range(n, -1, -1)):
        running = RunningEpsilon(cal)
        for steps in order:
            found, truth = running.after(steps), truths[steps]
            assert found.upper >= truth.lower
            assert found.upper >= truth.upper * (1.0 - 1e-3)  # two searches end so far apart
            assert found.lower <= truth.upper
    last = [running.after(steps).upper for steps in range(n + 1)]
    assert all(later >= one * (1.0 - 1e-9) for one, later in itertools.pairwise(last))
    assert last[-1] == cal.achieved.upper


def test_it_is_never_below_what_was_executed_under_sampling():
    cal = saved.calibration("poisson 40")
    found, truth = RunningEpsilon(cal).after(33), dm.executed_epsilon(cal, 33)
    assert truth.lower <= found.upper <= 1.1 * truth.upper


@pytest.mark.parametrize("delta", [1e-5, 1e-3, 1e-9])
def test_steps_of_gaussian_noise_against_the_formula(delta):
    """Identity, everyone in every step: t steps are one Gaussian release at sigma / sqrt(t)."""
    n = 200
    cal = dm.calibrate_sigma(dm.Identity(n), 4.0, 1e-5)
    running = RunningEpsilon(cal)
    gaps = []
    for steps in (1, 2, 3, 7, 50, 99, 101, 150, 199, 200):
        found = running.after(steps, delta)
        sigma = cal.sigma / math.sqrt(steps)
        truth = mpmath.findroot(
            lambda eps, sigma=sigma: mpmath.log(gaussian_delta(sigma, eps) / delta),
            (found.upper / 2, found.upper),
            solver="anderson",
            tol=1e-12,
            verify=False,
        )
        assert found.lower <= truth * (1 + 1e-9)
        assert truth <= found.upper * (1 + 1e-9)
        gaps.append(float(found.upper / truth))
    assert max(gaps[4:]) < 1.05
    assert max(gaps) < 1.3
    assert gaps[-1] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.slow
def test_claims_that_rest_on_samples_draw_nothing_more():
    cal = saved.calibration("bins inside")
    running = RunningEpsilon(cal)
    for steps in (1, 4, 8):
        found = running.after(steps)
        assert found.guarantee.kind is dm.Kind.BOUND
        assert found.upper < cal.achieved.upper
        # By another accountant, which is two-sided up to 5 %.
        truth = dm.epsilon(
            cal.mechanism.prefix(steps), cal.sigma, cal.budget.delta, method=dm.methods.Deterministic(0.05)
        )
        assert found.upper >= truth.lower
    assert running.after(12) == cal.achieved
    assert running.after(12, 1e-3).upper <= cal.achieved.upper
    assert running.after(12, 1e-9).upper > cal.achieved.upper
    estimated = saved.calibration("bins")
    assert RunningEpsilon(estimated).after(12) == estimated.achieved


def test_most_steps_compute_nothing(monkeypatch):
    cal = dm.calibrate_sigma(dm.LambdaCGD(2000, 0.9), 8.0, 1e-5, participation=dm.MinSep(200, 10))
    asked = []
    original = dm.executed_epsilon
    monkeypatch.setattr(
        "dpmech.ledgers.executed.executed_epsilon",
        lambda claim, steps: asked.append(steps) or original(claim, steps),
    )
    running = RunningEpsilon(cal)
    values = [running.after(steps).upper for steps in range(1, 2001)]
    assert len(asked) < 60
    assert values == sorted(values)
    assert running.after(1000).upper <= 1.05 * original(cal, 1000).upper


def test_the_condition_is_in_the_words():
    running = RunningEpsilon(saved.calibration("min-sep"))
    assert "only if the number of steps was decided without looking at results" in str(running.after(5).by)
    assert running.after(0).upper == 0.0


def test_bad_arguments():
    running = RunningEpsilon(saved.calibration("min-sep"))
    with pytest.raises(dm.InvalidParameterError, match=r"steps must be an integer in \[0, 12\], got 13"):
        running.after(13)
    with pytest.raises(dm.InvalidParameterError, match="delta must be"):
        running.after(3, 1.5)
    with pytest.raises(dm.InvalidParameterError, match="claim must be a Calibration or a Certificate"):
        RunningEpsilon(1.0)
