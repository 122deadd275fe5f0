"""Where the nodes of the ring program stand: their reach, their spacing, and what pruning may cost."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.stats

from dpmech.engines.convex_order.dynamic_program import Curve, Direction, run_program
from dpmech.engines.convex_order.grid import (
    FREE,
    MOST_X_NODES,
    RingGrid,
    coarser,
    constant_nodes,
    place_nodes,
    spread_z,
)
from dpmech.engines.convex_order.ring import RingGram
from dpmech.exceptions import InvalidParameterError

REMOVE, ADD = Direction.REMOVE, Direction.ADD
RING = RingGram(7, 0.3, 1.7, 0.6, 0.2)
GRID = RingGrid(y_step=0.3, z_nodes=21, s_nodes=50, white_nodes=13, constant_nodes=11, tail=8.0, prune=1e-4)


def reach(direction, tail, variance, shift):
    """Ends of a normal law: `tail` deviations where what lies beyond is charged, from P's mean for REMOVE."""
    sd = math.sqrt(variance)
    return (-FREE * sd, tail * sd + shift * variance) if direction is REMOVE else (-tail * sd, FREE * sd)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_nodes_reach_as_far_as_is_said_at_the_step_that_is_said(direction):
    place = place_nodes(RING, 0.5, direction, GRID, 1.5)
    assert (place.bins, place.variance, place.decay, place.white) == (7, 1.7, 0.6, 0.3)
    assert (place.eps, place.tail, place.s_nodes) == (0.5, 8.0, 75)
    low, high = reach(direction, 8.0, 1.7, 1.0)
    step = 0.3 * math.sqrt(1.7 * (1.0 - 0.36))
    np.testing.assert_allclose(np.diff(place.x_nodes), step, rtol=1e-9)
    assert np.min(np.abs(place.x_nodes)) == 0.0
    assert low - step < place.x_nodes[0] <= low
    assert high <= place.x_nodes[-1] < high + step
    np.testing.assert_allclose(place.z_nodes, np.linspace(low, high, 21), rtol=1e-12, atol=1e-12)
    low, high = reach(direction, 8.0, 0.3, 1.0)
    np.testing.assert_allclose(place.white_nodes, np.linspace(low, high, 13) - 0.15, rtol=1e-12, atol=1e-12)
    low, high = reach(direction, 8.0, 0.2, 1.0)
    found = constant_nodes(0.2, direction, GRID)
    np.testing.assert_allclose(found, np.linspace(low, high, 11) - 0.1, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_places_of_z_are_taken_and_reach_the_end_that_is_charged(direction):
    _, high = reach(direction, 8.0, 1.7, 1.0)
    root = math.sqrt(1.7)
    for places in ((-1.0, 0.5, 2.0), (-1.0, 0.5, 20.0)):
        found = place_nodes(RING, 0.5, direction, dataclasses.replace(GRID, z_places=places), 1.0).z_nodes
        expected = [places[0] * root, places[1] * root, max(places[2] * root, high)]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_ring_without_decay_is_white():
    place = place_nodes(RingGram(4, 0.25, 0.5, 0.0, 0.0), 1.0, ADD, GRID, 1.0)
    assert (place.variance, place.decay, place.white) == (0.0, 0.0, 0.75)
    assert place.x_nodes.tolist() == place.z_nodes.tolist() == [0.0]


def test_the_number_of_nodes_is_limited():
    place = place_nodes(RING, 0.5, REMOVE, dataclasses.replace(GRID, y_step=1e-4), 1.0)
    assert MOST_X_NODES <= place.x_nodes.size <= MOST_X_NODES + 2


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize("prune", [1e-3, 1e-1])
def test_pruning_costs_no_more_than_is_said(direction, prune):
    ring, eps = RingGram(5, 0.0, 1.2, 0.7, 0.0), 0.4
    grid = RingGrid(y_step=0.4, z_nodes=11, s_nodes=24, tail=7.0)
    whole = run_program(place_nodes(ring, eps, direction, grid, 1.0), direction).delta(eps)
    place = place_nodes(ring, eps, direction, dataclasses.replace(grid, prune=prune), 1.0)
    pruned = run_program(place, direction).delta(eps)
    assert whole * (1.0 - 1e-12) <= pruned <= whole + prune
    assert pruned != whole
    # No cell of so many may cost more than its part, in the units in which it is charged.
    unit = math.exp(-eps) if direction is REMOVE else 1.0
    assert place.floor == pytest.approx(prune * unit / (5 * place.x_nodes.size * 24), rel=1e-12)


def test_a_coarser_grid_has_the_same_reach_and_fewer_nodes():
    places = tuple(np.linspace(-2.0, 3.0, 12).tolist())
    fine = RingGrid(0.1, 40, 400, 100, 256, 8.0, 1e-6, places)
    assert coarser(fine) == RingGrid(
        0.4, 17, 100, 25, 256, 8.0, 1e-6, (places[0], *places[2:-1:2], places[-1])
    )
    assert coarser(RingGrid(0.1, 40, 40, 40, 256, 8.0)) == RingGrid(0.4, 17, 16, 16, 256, 8.0)
    least = RingGrid(0.9, 3, 1, 2, 2, 8.0)
    assert coarser(least) == least
    assert coarser(dataclasses.replace(least, z_places=places[:6])).z_places == ()
    assert coarser(dataclasses.replace(least, z_places=places[:7])).z_places == (
        places[0], places[2], places[4], places[6],
    )  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"prune": -1e-9}, {"prune": 1.5}, {"constant_nodes": 1}, {"y_step": 10.5}, {"tail": math.nan}]
)
def test_a_grid_outside_its_range_is_refused(change):
    with pytest.raises(InvalidParameterError):
        RingGrid(**change)


def test_a_grid_on_the_edge_of_its_range_is_accepted():
    for edge in (RingGrid(10.0, 3, 1, 2, 2, 0.5, 0.0), RingGrid(1e-6, 3, 1, 2, 2, 30.0, 1.0)):
        assert dataclasses.replace(edge) == edge


def spread(direction, ends, goal, function, sd, count=400):
    """Places found from a curve that is known, as the nodes themselves."""
    z = np.linspace(*ends, count) * sd
    place = dataclasses.replace(place_nodes(RING, 0.5, direction, GRID, 1.0), z_nodes=z, variance=sd * sd)
    curve = Curve(direction, 0.5, np.zeros(1), 0.0, 0.0, 0.0, function(z))
    return sd * np.array(spread_z(place, curve, direction, goal, 30))


def missed(nodes, function, sd, heights):
    """By how much the chords between the nodes lie above the function in the mean, Y ~ N(0, sd^2)."""
    fine = np.linspace(nodes[0], nodes[-1], 400_001)
    chord = np.interp(heights(fine), heights(nodes), function(nodes))
    return float(np.trapezoid((chord - function(fine)) * scipy.stats.norm.pdf(fine / sd) / sd, fine))


@pytest.mark.parametrize("goal", [1e-3, 1e-4])
@pytest.mark.parametrize("sd", [0.6, 1.5])
@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_spread_nodes_miss_what_is_aimed_at_with_the_fewest(direction, sd, goal):
    """Nodes as dense as the cube root of density times bend have the least error of so many."""
    if direction is REMOVE:
        heights, ends = np.asarray, (-4.5, 6.0)

        def function(z):
            return np.exp(0.8 * z / sd)
    else:
        heights, ends = np.exp, (-6.0, 4.5)

        def function(z):
            return np.exp(-np.exp(z))

    nodes = spread(direction, ends, goal, function, sd)
    assert nodes[[0, -1]].tolist() == pytest.approx([ends[0] * sd, ends[1] * sd])
    assert missed(nodes, function, sd, heights) == pytest.approx(goal, rel=0.25)
    fine = np.linspace(*ends, 20_001) * sd
    slope = np.gradient(function(fine), heights(fine))
    bend = np.gradient(slope, heights(fine)) * np.gradient(heights(fine), fine) ** 2
    density = np.cbrt(np.maximum(bend, 0.0) * scipy.stats.norm.pdf(fine / sd) / sd / 12.0)
    least = math.sqrt(np.trapezoid(density, fine) ** 3 / goal)
    assert least * 0.97 <= len(nodes) <= least * 1.03 + 4


def test_spread_nodes_are_few_enough_and_increase():
    for goal, most in ((1e-12, 303), (10.0, 9)):
        nodes = spread(REMOVE, (-4.5, 6.0), goal, np.exp, 1.0)
        assert all(one < other for one, other in itertools.pairwise(nodes))
        assert most - 2 <= len(nodes) <= most


def test_a_curve_without_bend_has_few_places_and_each_once():
    nodes = spread(REMOVE, (-4.5, 6.0), 1e-3, np.zeros_like, 1.0)
    assert all(one < other for one, other in itertools.pairwise(nodes))
    assert nodes[[0, -1]].tolist() == pytest.approx([-4.5, 6.0])
