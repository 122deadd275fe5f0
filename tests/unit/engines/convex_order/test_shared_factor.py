"""The part that all bins share: a sum over its nodes, never below the integral, and what it leaves out."""

import dataclasses
import math

import numpy as np
import pytest

from dpmech.engines.convex_order import bound as shared_factor
from dpmech.engines.convex_order.bound import bound_on
from dpmech.engines.convex_order.dynamic_program import Direction, run_program
from dpmech.engines.convex_order.grid import RingGrid
from dpmech.engines.convex_order.ring import RingGram
from tests.support.bins_oracles import gaussian, quadrature

REMOVE, ADD = Direction.REMOVE, Direction.ADD
GRID = RingGrid(y_step=0.3, z_nodes=25, s_nodes=120, white_nodes=40, constant_nodes=60, tail=7.0)
RINGS = [RingGram(2, 0.0, 0.9, 0.4, 0.5), RingGram(2, 0.6, 0.0, 0.0, 0.3), RingGram(2, 0.3, 0.5, 0.6, 0.2)]


def full(ring):
    index = np.arange(ring.bins)
    distance = np.abs(index[:, None] - index[None, :])
    return ring.profile()[np.minimum(distance, ring.bins - distance)]


@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize("eps", [0.3, 1.2])
def test_sums_over_a_shared_factor_lie_closely_above_quadrature(ring, eps):
    for direction, truth in zip((REMOVE, ADD), quadrature(full(ring), eps), strict=True):
        coarse = bound_on(ring, eps, direction, GRID, coarse_only=True)[0]
        fine = bound_on(ring, eps, direction, GRID)[0]
        assert truth * (1.0 - 1e-9) <= fine <= 1.15 * truth
        assert fine <= coarse <= 1.6 * truth


def test_what_is_left_out_is_charged(monkeypatch):
    """With next to nothing run, the rest at the price of one Gaussian a node: still above, and not far."""
    ring, eps = RINGS[0], 0.3
    whole = [bound_on(ring, eps, direction, GRID)[0] for direction in (REMOVE, ADD)]
    monkeypatch.setattr(shared_factor, "LEFT_OUT", 0.5)
    monkeypatch.setattr(shared_factor, "LEFT_COARSE", 0.9)
    for direction, before in zip((REMOVE, ADD), whole, strict=True):
        assert before < bound_on(ring, eps, direction, GRID)[0] <= 2.0 * before


def test_a_short_range_of_the_shared_factor_is_charged():
    ring, eps = RINGS[0], 0.3
    grid = dataclasses.replace(GRID, tail=0.5)
    for direction, truth in zip((REMOVE, ADD), quadrature(full(ring), eps), strict=True):
        common = shared_factor._Common(ring, eps, direction, grid)
        assert common.beyond > 0.01
        assert truth * (1.0 - 1e-9) <= bound_on(ring, eps, direction, grid)[0]


@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_every_node_has_its_level_its_weight_and_its_cap(direction):
    """The nodes of R = e^(sqrt(c) G - c/2), and one Gaussian of the rest for each of them."""
    ring, eps = RINGS[0], 0.3
    common = shared_factor._Common(ring, eps, direction, GRID)
    sizes = np.exp(common.logs)
    chances = common.weights / sizes if direction is REMOVE else common.weights
    # Mean and mass of R are kept but for what lies beyond an end, which is charged.
    assert float(chances @ sizes) == pytest.approx(1.0, abs=1e-4)
    assert float(chances.sum()) == pytest.approx(1.0, abs=1e-4)
    sign = 1.0 if direction is ADD else -1.0
    np.testing.assert_allclose(common.levels, eps + sign * common.logs, rtol=1e-12, atol=1e-12)
    assert sorted(np.concatenate(common.members).tolist()) == list(range(GRID.constant_nodes))
    for members in common.members:
        assert np.ptp(common.logs[members]) <= math.log(shared_factor.GROUP_RATIO) * (1.0 + 1e-9)
        caps = [1.0 if level <= 0.0 else gaussian(0.9, level) for level in common.levels[members]]
        assert common._cap(members) == pytest.approx(float(common.weights[members] @ caps), rel=1e-9)
    shares, left = common.coarse()
    kept = [common._cap(members) for group, members in enumerate(common.members) if group not in shares]
    assert kept
    assert left == pytest.approx(sum(kept) + common.beyond, rel=1e-9)


def test_a_bound_without_a_constant_part_is_that_of_its_run_with_its_rounding(monkeypatch):
    """At a level lower by the shift, and higher by it and by what sums of the run may have lost."""
    ring, grid = RingGram(3, 0.0, 1.5, 0.8, 0.0), RingGrid(y_step=0.6, z_nodes=16, s_nodes=16, tail=6.0)
    monkeypatch.setattr(shared_factor, "level_shift", lambda *_: 0.25)
    bound, place, _ = shared_factor.bound_on(ring, 1.5, Direction.REMOVE, grid)
    exact = run_program(place, Direction.REMOVE).delta(1.25)
    assert place.eps == 1.25
    assert bound == pytest.approx(exact * shared_factor.sums_factor(place) * 1.25, rel=1e-12)
    monkeypatch.setattr(shared_factor, "level_shift", lambda *_: 9.0)
    assert shared_factor.bound_on(ring, 9.5, Direction.REMOVE, grid)[0] == 1.0
