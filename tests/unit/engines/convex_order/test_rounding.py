"""What is said about the rounding of the ring program, against its compiled loops and 450 digits."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest

from dpmech.engines.convex_order import kernels
from dpmech.engines.convex_order.bound import bound_on
from dpmech.engines.convex_order.dynamic_program import Direction, RingBridge
from dpmech.engines.convex_order.grid import (
    SPLIT_SAFETY,
    RingGrid,
    common_factor,
    level_shift,
    place_nodes,
    raised_ring,
    split_rounding,
    sums_factor,
)
from dpmech.engines.convex_order.node_laws import lognormal_split, normal_split
from dpmech.engines.convex_order.ring import RingGram

DIGITS = 450  # a second difference of calls 29 deviations below the mean is 1e-183 of them
RING = RingGram(3, 0.0, 1.0, 0.5, 0.0)


def over(t):
    return mpmath.erfc(t / mpmath.sqrt(2)) / 2


def exact_weight(nodes, mean, sd, j, *, exponential):
    """Of node j, inside: the slope of the call to its left less that to its right, for X or e^X."""

    def place(k):
        node = mpmath.mpf(float(nodes[k]))
        return mpmath.exp(node) if exponential else node

    def call(k):
        t = (mpmath.mpf(float(nodes[k])) - mean) / sd
        if exponential:
            return mpmath.exp(mean + sd * sd / 2) * over(t - sd) - place(k) * over(t)
        return sd * (mpmath.npdf(t) - t * over(t))

    left = (call(j - 1) - call(j)) / (place(j) - place(j - 1))
    return left - (call(j) - call(j + 1)) / (place(j + 1) - place(j))


def worst_error(nodes, weights, mean, sd, *, exponential):
    """The largest relative error of a few weights between the ends; signed, exact over found."""
    inner = np.flatnonzero(weights > 0.0)[1:-1]
    chosen = np.unique(inner[np.linspace(0, inner.size - 1, 9).astype(int)])
    with mpmath.workdps(DIGITS):
        errors = [
            float(
                exact_weight(nodes, mean, mpmath.mpf(sd), int(j), exponential=exponential)
                / mpmath.mpf(float(weights[j]))
                - 1
            )
            for j in chosen
        ]
    return max(errors, key=abs)


CASES = [
    (sd, gap, tail, row)
    for sd, gap, (tail, row) in itertools.product(
        (0.01, 0.3, 2.0), (0.02, 0.2, 1.0, 4.0), ((5.0, 1000.0), (9.0, 20.0), (29.0, 20.0))
    )
    if gap >= 0.2 or tail < 29.0
]


@pytest.mark.parametrize("exponential", [False, True])
@pytest.mark.parametrize(("sd", "gap", "tail", "row"), CASES)
def test_weights_of_a_step_are_as_close_as_is_said(sd, gap, tail, row, exponential):
    # every mean stays among the nodes, as in a run
    h, slope = gap * sd, 1.0 - 0.9 / row
    middle = round(row * sd / h)
    reach = math.ceil((tail + 1.0) / gap) + 2
    nodes = h * np.arange(middle - reach, middle + reach + 1).astype(float)
    source = reach
    weights, edge = np.zeros((nodes.size, nodes.size)), np.zeros(nodes.size)
    # REMOVE keeps `tail` above and 4.5 below, ADD the other way round
    if exponential:
        kernels.split_steps(nodes, slope, sd, tail, 4.5, weights, edge)
    else:
        top = np.zeros(nodes.size, dtype=np.int64)
        kernels.normal_steps(nodes, slope, sd, 4.5, tail, weights, edge, top)
    column = weights[:, source]
    if np.count_nonzero(column) < 4:
        pytest.skip("no node has two neighbours")
    with mpmath.workdps(DIGITS):
        mean = mpmath.mpf(slope) * mpmath.mpf(float(nodes[source]))
    error = abs(worst_error(nodes, column, mean, sd, exponential=exponential))
    farthest = float(np.max(np.abs(nodes))) / sd
    assert SPLIT_SAFETY * error <= float(split_rounding(gap, sd, tail, farthest))


@pytest.mark.parametrize(("sd", "gap", "tail"), [(0.3, 0.02, 9.0), (0.01, 0.2, 29.0), (2.0, 0.2, 29.0)])
def test_what_is_said_is_not_needlessly_loose(sd, gap, tail):
    """Within 500 times what a step loses, in the worse direction; and weights do come out too small."""
    reach = math.ceil((tail + 1.0) / gap) + 2
    nodes = gap * sd * np.arange(-reach, reach + 1).astype(float)
    found = []
    for exponential in (False, True):
        weights, edge = np.zeros((nodes.size, nodes.size)), np.zeros(nodes.size)
        if exponential:
            kernels.split_steps(nodes, 0.9, sd, tail, 4.5, weights, edge)
        else:
            top = np.zeros(nodes.size, dtype=np.int64)
            kernels.normal_steps(nodes, 0.9, sd, 4.5, tail, weights, edge, top)
        for source in (reach - 3, reach, reach + 7):
            with mpmath.workdps(DIGITS):
                mean = mpmath.mpf(0.9) * mpmath.mpf(float(nodes[source]))
            found.append(worst_error(nodes, weights[:, source], mean, sd, exponential=exponential))
    said = float(split_rounding(gap, sd, tail, tail))
    assert max(found) > 0.0
    assert max(abs(one) for one in found) * 500.0 > said


@pytest.mark.parametrize("sd", [0.05, 0.6, 3.0])
@pytest.mark.parametrize("points", [40, 300])
def test_weights_of_whole_laws_are_as_close_as_is_said(sd, points):
    nodes = np.linspace(-9.0 * sd, 9.0 * sd, points)
    gap = float(np.min(np.diff(nodes))) / sd
    said = float(split_rounding(gap, sd, 9.0, 9.0))
    plain, raised = normal_split(nodes, sd).weights, lognormal_split(nodes, 0.0, sd).weights
    assert SPLIT_SAFETY * abs(worst_error(nodes, plain, mpmath.mpf(0), sd, exponential=False)) <= said
    assert SPLIT_SAFETY * abs(worst_error(nodes, raised, mpmath.mpf(0), sd, exponential=True)) <= said


def test_increments_are_within_the_shift_of_eps():
    """Exponentials of x + rho z - V/2 - ln b - eps, from coefficients at 50 digits."""
    ring, eps, grid = RingGram(24, 0.0, 7.3, 0.93, 0.0), 3.7, RingGrid(tail=12.0)
    bridge, shift = RingBridge(ring.bins, ring.amplitude, ring.decay), level_shift(ring, 3.7, grid)
    offset = 0.5 * ring.amplitude + math.log(ring.bins) + eps
    rng = np.random.default_rng(0)
    worst = 0.0
    with mpmath.workdps(50):
        decay = mpmath.mpf(ring.decay)
        for bin_ in range(1, ring.bins):
            x, z = rng.uniform(-12.0, 12.0, 2) * math.sqrt(ring.amplitude)
            found = float(np.exp(x + bridge.correlation(bin_) * z - offset))
            rho = (decay**bin_ + decay ** (ring.bins - bin_)) / (1 + decay**ring.bins)
            exact = mpmath.exp(
                mpmath.mpf(x) + rho * mpmath.mpf(z) - mpmath.mpf(7.3) / 2 - mpmath.log(24) - mpmath.mpf(3.7)
            )
            worst = max(worst, abs(float(mpmath.log(mpmath.mpf(found) / exact))))
    assert 0.0 < 4.0 * worst <= shift < 1e-11


def test_the_walk_of_a_raised_ring_has_no_smaller_covariance():
    """K of the walk with slopes and deviations as float64 has them, in exact arithmetic."""
    bins = 9
    below = []
    for variance, decay in itertools.product((0.3, 1.7, 11.0), (0.05, 0.3, 0.5, 0.8, 0.97, 0.9999)):
        ring = RingGram(bins, 0.0, variance, decay, 0.0)
        for walked, certain in ((raised_ring(ring), True), (ring, False)):
            bridge = RingBridge(bins, walked.amplitude, decay)
            with mpmath.workdps(50):
                entries = walk_covariance(bridge, bins, mpmath.mpf(walked.amplitude))
                exact, short = mpmath.mpf(decay), False
                for i, j in itertools.combinations_with_replacement(range(bins), 2):
                    d = j - i
                    truth = variance * (exact**d + exact ** (bins - d)) / (1 + exact**bins)
                    short |= bool(entries[i][j] < truth)
                    assert abs(entries[i][j] / truth - 1) < 1e-12
            if certain:
                assert not short
            else:
                below.append(short)
    assert any(below)


def walk_covariance(bridge, bins, variance):
    """Of y_m = x_m + rho_m z, x a walk from 0 with the bridge's slopes and deviations."""
    steps = [bridge.step(start) for start in range(bins - 1)]
    spread = [[mpmath.mpf(0)] * bins for _ in range(bins)]
    for m in range(1, bins):
        slope, sd = (mpmath.mpf(float(one)) for one in steps[m - 1])
        for i in range(m):
            spread[i][m] = slope * spread[i][m - 1]
        spread[m][m] = slope * slope * spread[m - 1][m - 1] + sd * sd
    rho = [mpmath.mpf(float(bridge.correlation(m))) for m in range(bins)]
    return [
        [spread[min(i, j)][max(i, j)] + rho[i] * rho[j] * variance for j in range(bins)] for i in range(bins)
    ]


def test_factors_grow_with_what_is_summed():
    grid = RingGrid(y_step=0.25, tail=9.0)

    def lost(ring, grid=grid):
        return sums_factor(place_nodes(ring, 0.5, Direction.REMOVE, grid, 1.0)) - 1.0

    assert 0.0 < lost(RING) < lost(dataclasses.replace(RING, bins=30)) < 1e-8
    assert lost(RING) < lost(RING, dataclasses.replace(grid, y_step=0.01)) < 1e-6
    assert lost(RING) < lost(RING, dataclasses.replace(grid, s_nodes=10**6))
    assert lost(RING) < lost(RING, dataclasses.replace(grid, tail=29.0))
    # the white law is split anew in every bin
    white = [RingGram(bins, 0.7, 0.0, 0.0, 0.0) for bins in (10, 100)]
    assert lost(white[1]) == pytest.approx(10.0 * lost(white[0]), rel=0.15)
    logs = np.linspace(-3.0, 3.0, 100)
    assert 1.0 < common_factor(logs, 0.4) < common_factor(np.linspace(-3.0, 3.0, 1000), 0.4) < 1.0 + 1e-6


@pytest.mark.parametrize("direction", [Direction.REMOVE, Direction.ADD])
def test_a_bound_is_that_of_the_run_with_every_margin(direction, monkeypatch):
    """Each of the three makes it larger by itself."""
    from dpmech.engines.convex_order import bound as shared_factor

    ring, grid = RingGram(3, 0.0, 0.9, 0.4, 0.2), RingGrid(z_nodes=9, s_nodes=32, constant_nodes=24)
    for rings in (ring, dataclasses.replace(ring, constant=0.0)):
        whole = bound_on(rings, 0.4, direction, grid)[0]
        for name, none in (
            ("raised_ring", lambda ring: ring),
            ("level_shift", lambda *_: 0.0),
            ("sums_factor", lambda _: 1.0),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(shared_factor, name, none)
                assert bound_on(rings, 0.4, direction, grid)[0] < whole
        assert whole < 1.01 * bound_on(rings, 0.4 + 1e-3, direction, grid)[0]


def said_of(ring, grid):
    """Log of the factor of one run, and where its nodes stand."""
    place = place_nodes(ring, 0.5, Direction.REMOVE, grid, 1.0)
    return math.log(sums_factor(place)) / 1.01, place


@pytest.mark.parametrize("white", [0.04, 9.0])
def test_the_law_of_every_bin_of_its_own_is_part_of_the_factor(white):
    said, place = said_of(dataclasses.replace(RING, white=white), RingGrid(y_step=0.25, tail=9.0))
    nodes, deviation = place.white_nodes + 0.5 * white, math.sqrt(white)
    reach, gap = np.max(np.abs(nodes)) / deviation, np.min(np.diff(nodes)) / deviation
    own = place.bins * float(split_rounding(gap, deviation, reach, reach))
    assert own < said < 1e-6


def test_steps_shorter_than_the_distance_of_nodes_lose_no_less():
    ring = RingGram(5, 0.0, 1.0, 0.9999, 0.0)
    said, place = said_of(ring, RingGrid(y_step=0.8, tail=9.0))
    bridge = RingBridge(place.bins, place.variance, place.decay)
    steps = np.array([bridge.step(start)[1] for start in range(place.bins - 1)])
    gaps = (place.x_nodes[1] - place.x_nodes[0]) / steps
    assert np.all(gaps > 1.0)
    farthest = np.max(np.abs(place.x_nodes)) / steps
    assert float(np.sum(split_rounding(np.ones(steps.size), steps, place.tail, farthest))) < said


def test_more_bins_and_faster_decays_are_allowed_more():
    grid = RingGrid(tail=12.0)
    few, many = (level_shift(dataclasses.replace(RING, bins=bins), 1.0, grid) for bins in (2, 2 * 10**6))
    assert (many - few) / (1.01 * 2.0**-53 * 48.0 * math.log(1e6)) == pytest.approx(1.0, rel=1e-9)
    for decay in (0.05, 1e-12):
        ring = dataclasses.replace(RING, decay=decay, bins=100_000)
        raised = raised_ring(ring).amplitude - 1.0
        # The logarithm of the decay carries its error as often as it is large, 8 roundings each.
        assert raised >= 2.0 * 100_002.0 * 8.0 * 2.0**-53 * (5.0 + abs(math.log(decay))) * (1.0 - 1e-6)
