"""Bounds for very little noise, against closed forms, enumeration, simulation and the other accountants."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.losses.accountants import PoissonAccountant, UserAccountant
from dpmech.engines.losses.release import PoissonRelease, UserRelease
from dpmech.engines.losses.revealed import Revealed, RevealedSchedule
from dpmech.numerics import Bounds, Provenance
from dpmech.schemes import accountant_for

ONE = Bounds.bracket(1.0, 1.0, Provenance("one"))
PLANS = {
    "poisson": (dm.Identity(100), dm.Poisson(0.1), dm.Adjacency.ADD_REMOVE),
    "often": (dm.Identity(30), dm.Poisson(0.8), dm.Adjacency.ADD_REMOVE),
    "cyclic": (dm.SquareRoot(20, 2), dm.CyclicPoisson(0.1, 2), dm.Adjacency.ADD_REMOVE),
    "users": (dm.Identity(20), dm.Poisson(0.1, max_examples_per_user=2), dm.Adjacency.ADD_REMOVE),
    "fixed": (dm.Identity(20), dm.FixedSizeBatches(100, 10), dm.Adjacency.REPLACE_ONE),
    "truncated": (
        dm.Identity(20),
        dm.Poisson(0.1, truncated_batch_size=15, dataset_size=100),
        dm.Adjacency.ZERO_OUT,
    ),
}


def pieces(steps, weights, s, eps):
    """Both sides of delta by all sequences of participations: without and with the shift by log(1 / w)."""
    with mp.workdps(50):
        s, plain, shifted = mp.mpf(s), mp.mpf(0), mp.mpf(0)

        def curve(square, at):
            mu = mp.sqrt(square) / s
            return mp.ncdf(mu / 2 - at / mu) - mp.exp(at) * mp.ncdf(-mu / 2 - at / mu)

        for numbers in itertools.product(range(len(weights)), repeat=steps):
            w, square = mp.fprod(weights[j] for j in numbers), sum(j * j for j in numbers)
            if square:
                plain += w * curve(square, mp.mpf(eps))
                shifted += w * curve(square, eps - mp.log(w))
        return plain, shifted, 2 * steps * mp.ncdf(-1 / (2 * s))


@pytest.mark.parametrize("s", [0.03, 0.05, 0.08])
@pytest.mark.parametrize("part", [0.3, 1.0, 1.02, 2.5])
@pytest.mark.parametrize(("steps", "q"), [(1, 0.3), (4, 0.1), (5, 0.9)])
def test_bounds_contain_those_by_enumeration(s, part, steps, q):
    eps = part / (2 * s * s)
    plain, shifted, strays = pieces(steps, [1 - mp.mpf(q), mp.mpf(q)], s, eps)
    bounds = Revealed(steps, (q, q), ONE)
    lower, upper = bounds._lower(s, eps), bounds._upper(s, eps)
    assert lower <= shifted
    assert upper >= min(plain, shifted)
    # And they are no wider than the two formulas.
    assert upper <= min(plain, shifted + strays) * (1 + 1e-9) + 1e-290
    assert lower >= (shifted - strays) * (1 - 1e-6) - 1e-290


@pytest.mark.parametrize("s", [0.03, 0.05, 0.08])
@pytest.mark.parametrize("part", [0.3, 1.0, 1.02, 2.5])
def test_schedules_by_enumeration(s, part):
    """Every step with a probability of its own: all sequences, each with its own log(1 / w)."""
    probs, eps = [0.1, 0.1, 0.1, 0.6, 0.6], part / (2 * s * s)
    with mp.workdps(50):
        plain, strays = mp.mpf(0), 2 * len(probs) * mp.ncdf(-1 / (2 * mp.mpf(s)))
        shifted = mp.mpf(0)
        for joins in itertools.product((False, True), repeat=len(probs)):
            w = mp.fprod(mp.mpf(q) if join else 1 - mp.mpf(q) for q, join in zip(probs, joins, strict=True))
            if any(joins):
                mu = mp.sqrt(sum(joins)) / mp.mpf(s)
                for at in (mp.mpf(eps), eps - mp.log(w)):
                    value = w * (mp.ncdf(mu / 2 - at / mu) - mp.exp(at) * mp.ncdf(-mu / 2 - at / mu))
                    plain, shifted = (plain + value, shifted) if at == eps else (plain, shifted + value)
    bounds = RevealedSchedule(5, (0.1, 0.6), ONE, kinds=((0.1, 3), (0.6, 2)))
    lower, upper = bounds._lower(s, eps), bounds._upper(s, eps)
    assert lower <= shifted
    # At least delta, which is at least what outputs that show who took part tell.
    assert shifted - strays <= upper
    assert upper <= plain * (1 + 1e-9) + 1e-290
    with mp.workdps(50):
        law = [mp.mpf(1)]
        for q in probs:
            law = [
                (law[j] if j < len(law) else 0) * (1 - mp.mpf(q)) + (law[j - 1] * mp.mpf(q) if j else 0)
                for j in range(len(law) + 1)
            ]
        for k in range(7):
            least, most = bounds._tail(k)
            tail = min(mp.fsum(law[k:]), mp.mpf(1))
            assert least <= tail <= most <= least * (1 + 1e-12) + 1e-290


@pytest.mark.parametrize("eps", [1e4, 1e5, 1e6, 1e8])
def test_schedules_lie_between_their_ends_at_every_eps(eps):
    steps = 200
    mixed, low, high = (
        dm.calibrate_sigma(dm.Identity(steps), eps, 1e-5, participation=dm.Poisson(q))
        for q in ([0.01] * 100 + [0.02] * 100, 0.01, 0.02)
    )
    assert low.sigma < mixed.sigma < high.sigma
    assert mixed.achieved.lower >= 0.998 * eps
    # 1 % less noise is too little.
    below = dm.delta(
        dm.Identity(steps), 0.99 * mixed.sigma, eps, participation=dm.Poisson([0.01] * 100 + [0.02] * 100)
    )
    assert below.lower > 1e-5


def test_users_by_enumeration():
    q, s, eps = mp.mpf(0.2), 0.04, 1000.0
    weights = [(1 - q) ** 2, 2 * q * (1 - q), q**2]
    plain, shifted, strays = pieces(4, weights, s, eps)
    bounds = Revealed(4, (0.2, 0.2), ONE, 2)
    assert bounds._lower(s, eps) <= shifted <= shifted + strays <= plain
    assert shifted <= bounds._upper(s, eps) <= plain
    assert bounds._lower(s, eps) >= 0.9 * bounds._upper(s, eps)


def loss_of_one_sample(rng, steps, q, s, eps, draws):
    """Mean of (1 - e^(eps - loss))_+ under P, direction REMOVE, and the range that holds except for 1e-9."""
    values = []
    for _ in range(10):
        taken = rng.random((draws // 10, steps)) < q
        x = taken + s * rng.standard_normal(taken.shape)
        losses = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * s * s)).sum(axis=1)
        values.append(-np.expm1(np.minimum(0.0, eps - losses)))
    found = np.concatenate(values)
    # Bernstein's inequality with the variance of a variable in [0, 1] at most its mean.
    log_term = math.log(2 / 1e-9)
    wide = math.sqrt(2 * found.mean() * 1.2 * log_term / found.size) + log_term / found.size
    return found.mean(), wide


@pytest.mark.parametrize(("s", "share"), [(0.05, 2.9), (0.02, 3.0), (0.08, 4.1)])
def test_a_simulation_agrees_and_finds_a_planted_fault(s, share):
    steps, q = 10, 0.25
    eps = share / (2 * s * s)
    mean, wide = loss_of_one_sample(np.random.default_rng(5), steps, q, s, eps, 200_000)
    bounds = Revealed(steps, (q, q), ONE)
    lower, upper = bounds._lower(s, eps), bounds._upper(s, eps)
    assert lower <= mean + wide
    assert upper >= mean - wide
    # 20 % more noise than there is, and one participation forgotten.
    assert bounds._upper(1.2 * s, eps) < mean - wide
    assert Revealed(steps - 3, (q, q), ONE)._upper(s, eps) < mean - wide


@pytest.mark.parametrize(("steps", "q"), [(10, 0.1), (200, 0.02)])
def test_resolved_losses_agree(steps, q):
    accountant = PoissonAccountant(PoissonRelease(q, steps, ONE))
    for s, eps in ((0.09, 150.0), (0.07, 400.0)):
        other = accountant.resolved_delta(s, eps, tolerance=1e-3)
        lower, upper = accountant.revealed._lower(s, eps), accountant.revealed._upper(s, eps)
        assert lower <= other.upper
        assert other.lower <= upper
        assert lower > 0.5 * other.lower


def test_users_agree_with_their_lattices():
    accountant = UserAccountant(UserRelease(0.1, 2, 2, ONE), ONE)
    other = accountant.resolved_delta(0.095, 60.0, tolerance=1e-3)
    assert accountant.revealed._lower(0.095, 60.0) <= other.upper
    assert other.lower <= accountant.revealed._upper(0.095, 60.0)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("eps", [1e5, 1e6, 1e8])
def test_every_eps_is_calibrated_tightly_and_proved(name, eps):
    strategy, participation, adjacency = PLANS[name]
    mechanism = dm.Mechanism(strategy, participation, adjacency)
    cal = dm.calibrate_sigma(mechanism, eps, 1e-5)
    assert dm.delta(mechanism, cal.sigma, eps).upper <= 1e-5
    if cal.achieved.lower:  # none under CyclicPoisson where column norms differ
        assert dm.delta(mechanism, cal.sigma / 1.001, eps).lower > 1e-5
        assert cal.achieved.lower > 0.998 * eps
    assert cal.achieved.upper <= eps
    assert dm.epsilon(mechanism, cal.sigma, 1e-5).upper == pytest.approx(eps, rel=2e-3)
    found = dm.verify(cal.certificate())
    assert found.ok
    assert "PROVED" in str(found)


@pytest.mark.parametrize("eps", [350.0, 380.0])
def test_unequal_columns_need_no_more_noise_than_by_their_losses(monkeypatch, eps):
    """There is no lower bound then, but the bound is used only where it is close to a finer one."""
    plan = dm.Mechanism(dm.Diagonal([1.0, 0.9] * 30), dm.CyclicPoisson(0.05, 3))
    sigma = dm.calibrate_sigma(plan, eps, 1e-5).sigma
    at = dm.epsilon(plan, sigma, 1e-5).upper
    monkeypatch.setattr(PoissonAccountant, "__init__", _without_revealed(PoissonAccountant.__init__))
    assert sigma == pytest.approx(dm.calibrate_sigma(plan, eps, 1e-5).sigma, rel=2e-3)
    assert at == pytest.approx(dm.epsilon(plan, sigma, 1e-5).upper, rel=4e-3)


def _without_revealed(begin):
    def begun(self, *arguments):
        begin(self, *arguments)
        self.revealed = None

    return begun


def test_too_little_noise_is_not_proved():
    for name in ("poisson", "users", "fixed", "truncated"):
        strategy, participation, adjacency = PLANS[name]
        mechanism = dm.Mechanism(strategy, participation, adjacency)
        sigma = dm.calibrate_sigma(mechanism, 1e6, 1e-5).sigma
        assert accountant_for(mechanism, None).revealed._upper(0.99 * sigma, 1e6) > 1e-5


def test_delta_that_nobody_exceeds_is_refused():
    with pytest.raises(dm.UnattainableBudgetError, match="takes part with probability"):
        dm.calibrate_sigma(dm.Identity(3), 1e6, 0.5, participation=dm.Poisson(0.01))


@pytest.mark.parametrize("eps", [1e5, 1e8])
@pytest.mark.parametrize(
    ("strategy", "participation"),
    [
        (dm.LambdaCGD(20, 0.5), dm.BallsInBins(5)),
        (dm.Identity(20), dm.BallsInBins(5)),
        (dm.LambdaCGD(20, 0.5), dm.BallsInBins(5, max_examples_per_user=2)),
    ],
)
def test_bins_have_a_bound_near_that_of_no_sampling(strategy, participation, eps):
    mechanism = dm.Mechanism(strategy, participation)
    cal = dm.calibrate_sigma(mechanism, eps, 1e-5)
    plain = mechanism.sensitivity.upper * dm.calibrate_sigma(dm.Identity(1), eps, 1e-5).sigma
    assert 0.97 * plain < cal.sigma < 1.01 * plain
    assert "PROVED" in str(dm.verify(cal.certificate()))
