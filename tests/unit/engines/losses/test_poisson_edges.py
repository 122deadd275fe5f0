"""Poisson sampling where a bracket ends: almost certain sampling, delta below every number."""

import math
import types

import mpmath as mp
import pytest

import dpmech as dm
from dpmech.engines.gaussian import gaussian_epsilon
from dpmech.engines.losses import accountants as one_step
from dpmech.engines.losses.accountants import PoissonAccountant
from dpmech.engines.losses.prv import PrvAccountant
from dpmech.engines.losses.release import PoissonRelease
from dpmech.numerics import Bounds, Provenance
from tests.support import oracles as oracle

ONE = Bounds.bracket(1.0, 1.0, Provenance("one"))


def hockey_stick(log_growth, sigma):
    """H at e^a of N(1, sigma^2) against N(0, sigma^2)."""
    a = mp.mpf(log_growth)
    return mp.ncdf(1 / (2 * sigma) - a * sigma) - mp.exp(a) * mp.ncdf(-1 / (2 * sigma) - a * sigma)


def both_directions(q, sigma, eps):
    """REMOVE and ADD of one step."""
    with mp.workdps(60):
        q, eps, sigma = mp.mpf(q), mp.mpf(eps), mp.mpf(sigma)
        remove = q * hockey_stick(mp.log1p(mp.expm1(eps) / q), sigma)
        share = 1 - mp.exp(eps) * (1 - q)
        add = share * hockey_stick(mp.log(q) + eps - mp.log(share), sigma) if share > 0 else mp.mpf(0)
        return remove, add


@pytest.mark.parametrize("q", [0.01, 0.5, 0.99, 1.0 - 1e-13])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 1.0 - 1e-12, 1.5])
def test_one_step_is_the_larger_direction(q, sigma, part):
    eps = -part * math.log1p(-q)  # ADD vanishes from part = 1 on
    accountant = PoissonAccountant(PoissonRelease(q, 1, ONE))
    bounds = accountant.delta(sigma, eps, tolerance=1e-3)
    remove, add = both_directions(q, sigma, eps)
    # No less than ADD, which is the smaller direction: equal at eps = 0 only.
    assert add <= remove * (1 + 1e-14)
    assert bounds.lower <= remove <= bounds.upper
    assert bounds.upper <= remove * (1 + mp.mpf(10) ** -9) + mp.mpf(10) ** -299


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_almost_certain_sampling_keeps_the_epsilon_of_no_sampling(sigma):
    q = 1.0 - 2.0**-50
    accountant = PoissonAccountant(PoissonRelease(q, 1, ONE))
    upper = accountant.epsilon(sigma, 1e-6, tolerance=1e-3).upper
    assert max(both_directions(q, sigma, upper)) <= 1e-6
    assert upper == pytest.approx(gaussian_epsilon(sigma, 1e-6, safe=True), abs=1e-11)


@pytest.mark.parametrize("steps", [1, 10])
def test_a_delta_below_every_number_is_known_to_be_so(steps):
    bounds = PoissonAccountant(PoissonRelease(0.01, steps, ONE)).delta(50.0, 40.0, tolerance=1e-3)
    assert bounds.lower == 0.0
    assert 0.0 < bounds.upper <= 1e-300


@pytest.mark.slow
def test_prv_brackets_are_close():
    sigma, release = 0.8, PoissonRelease(0.01, 500, ONE)
    exact = PoissonAccountant(release).delta(sigma, 1.0, tolerance=1e-4)
    bounds = PrvAccountant(release).delta(sigma, 1.0, tolerance=1e-3)
    assert bounds.lower <= exact.upper
    assert exact.lower <= bounds.upper
    assert bounds.lower >= 0.9 * exact.lower
    assert bounds.upper <= 1.1 * exact.upper


@pytest.mark.parametrize("eps", [699.5, 700.5, 720.0])
@pytest.mark.parametrize("q", [0.5, 1e-3])
def test_one_step_where_an_exponential_nears_the_end_of_float64(eps, q):
    """The loss of the plain mechanism is about eps: delta depends on every digit of it."""
    sigma = 1.0 / math.sqrt(2.0 * (eps - math.log(q)))
    bounds = PoissonAccountant(PoissonRelease(q, 1, ONE)).delta(sigma, eps, tolerance=1e-3)
    remove, _ = both_directions(q, sigma, eps)
    assert bounds.lower <= remove <= bounds.upper
    assert bounds.upper <= bounds.lower * (1.0 + 1e-9)


def side(ceiling, lower, upper, asked):
    def delta(eps, tolerance):
        asked.append(ceiling)
        return lower, upper, 3.0

    return types.SimpleNamespace(log_ceiling=lambda eps: ceiling, delta=delta)


@pytest.mark.parametrize(("excess", "looked_at"), [(-0.01, False), (0.01, True), (0.5, True)])
def test_the_second_direction_is_looked_at_where_it_may_be_the_larger(excess, looked_at, monkeypatch):
    """It is not where Chernoff's bound on it is below the lower end of the other one."""
    accountant, asked = PoissonAccountant(PoissonRelease(0.1, 9, ONE)), []
    first, second = side(-1.0, 0.1, 0.11, asked), side(math.log(0.1) + excess, 0.09, 0.12, asked)
    monkeypatch.setattr(accountant, "_directions", lambda sigma: (second, first))
    found = accountant._bracket(1.0, 0.5, 1e-3)
    assert found == ((0.1, 0.12, 3.0) if looked_at else (0.1, 0.11, 3.0))
    assert len(asked) == 1 + looked_at
    # The same question is not worked out twice.
    assert accountant._bracket(1.0, 0.5, 1e-3) == found
    assert len(asked) == 1 + looked_at
    # The larger lower end counts, too.
    monkeypatch.setattr(accountant, "_directions", lambda sigma: (first, side(-1.5, 0.105, 0.12, asked)))
    assert accountant._bracket(1.0, 0.6, 1e-3)[:2] == (0.105, 0.12)


@pytest.mark.parametrize(
    ("q", "sigma", "eps"),
    [(1.8196004269911e-05, 40.18965581371271, 2.4881140125214963e-18),
     (8.374155915434785e-05, 85.72946559010683, 2.6837396823747514e-18),
     (1.9648520061149536e-06, 87.75133583079761, 1.0637481543237484e-18)],
)  # fmt: skip
def test_one_step_where_both_directions_are_equal_but_for_rounding(q, sigma, eps):
    bounds = PoissonAccountant(PoissonRelease(q, 1, ONE)).delta(sigma, eps, tolerance=1e-3)
    remove, add = both_directions(q, sigma, eps)
    assert remove == pytest.approx(add, rel=1e-12, abs=0.0)
    assert bounds.lower <= remove <= bounds.upper


def test_ends_of_eps_are_where_those_of_delta_cross(monkeypatch):
    accountant = PoissonAccountant(PoissonRelease(0.5, 1, ONE))
    monkeypatch.setattr(
        one_step, "one_step_delta", lambda q, multipliers, eps: (0.5 * math.exp(-eps), 0.6 * math.exp(-eps))
    )
    found = accountant.epsilon(1.0, 0.1, tolerance=1e-3)
    assert (found.lower, found.upper) == pytest.approx((math.log(5.0), math.log(6.0)), rel=1e-9)
    assert 0.5 * math.exp(-found.lower) >= 0.1 * (1.0 - 1e-15)
    assert 0.6 * math.exp(-found.upper) <= 0.1


@pytest.mark.parametrize(("sigma", "eps"), [(5.0, 1.0), (8.0, 1.0)])
def test_a_negligible_delta_is_bounded_though_its_bounds_are_far_apart(sigma, eps):
    """At least that of one step; at most that of less noise."""
    plan = {"participation": dm.Poisson(1e-3)}
    found = dm.delta(dm.Identity(1000), sigma, eps, **plan)
    assert oracle.sampled_delta(1e-3, sigma, eps, remove=True, digits=60) < found.upper < 1e-100
    assert found.upper < dm.delta(dm.Identity(1000), 1.5, eps, **plan).lower
