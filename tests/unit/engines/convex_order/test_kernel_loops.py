"""The compiled loops of the ring program against plain sums, cell by cell."""

import math

import mpmath
import numpy as np
import pytest

from dpmech.engines.convex_order import dynamic_program as ring_walk
from dpmech.engines.convex_order import kernels
from dpmech.engines.convex_order.dynamic_program import CHARGE, EXCESS, MASS, Window, start_walk

# the law of a step


@pytest.mark.parametrize("q", [0.3, 1.4])
@pytest.mark.parametrize("t", [-3.2, -0.4, 0.0, 0.7, 4.1])
def test_the_four_tails_of_a_normal_law(t, q):
    def gain(x):
        return mpmath.expm1(q * (x - t)) * mpmath.npdf(x)

    with mpmath.workdps(25):
        above = float(mpmath.quad(gain, [t, t + 4, mpmath.inf]))
        below = -float(mpmath.quad(gain, [-mpmath.inf, t - 4, t]))
        call = float(mpmath.npdf(t) - t * mpmath.ncdf(-t))
        upper = float(mpmath.ncdf(-t))
    assert kernels._upper(t) == pytest.approx(upper, rel=1e-13)
    assert kernels._call(t) == pytest.approx(call, rel=1e-12)
    assert kernels._exp_call(t, q) == pytest.approx(above, rel=1e-9)
    assert kernels._exp_put(t, q) == pytest.approx(below, rel=1e-9)


def clipped(nodes, mean, q, below, beyond):
    """First and last node that are kept: the ones that enclose the tails, inside the grid."""
    low = max((j for j, node in enumerate(nodes) if node <= mean - below * q), default=0)
    high = min((j for j, node in enumerate(nodes) if node >= mean + beyond * q), default=len(nodes) - 1)
    return low, high


def spread(puts, places):
    """Chances of the nodes that an increasing law is moved to: second differences of its put E(u - X)_+.

    The put's slope is P(X <= u); what lies under the first node or over the last is moved to them.
    """
    count = len(puts)
    chances = []
    for j in range(count):
        rising = (puts[j] - puts[j - 1]) / (places[j] - places[j - 1]) if j else mpmath.mpf(0)
        falling = (puts[j + 1] - puts[j]) / (places[j + 1] - places[j]) if j + 1 < count else mpmath.mpf(1)
        chances.append(falling - rising)
    return chances


# step over sd from 0.1 to 4; windows that the grid cuts on either side, and that end within it
STEPS = [
    (0.05, 0.5, 0.9, 1.3, 0.8),
    (0.4, 0.5, 0.8, 4.0, 5.0),
    (0.4, 0.1, 1.0, 3.0, 2.0),
    (0.6, 0.55, 0.0, 1.1, 1.6),
    (4.0, 6.0, 0.9, 3.0, 7.0),
]


@pytest.mark.parametrize(("h", "q", "slope", "below", "beyond"), STEPS)
def test_a_step_is_the_law_of_the_interpolant_between_its_edges(h, q, slope, below, beyond):
    """The puts E(u - X)_+ have slope P(X <= u): hats are their second differences, in 30 digits."""
    nodes = h * np.arange(-5, 8)
    count = nodes.size
    out, edge, top = np.full((count, count), math.nan), np.empty(count), np.zeros(count, dtype=np.int64)
    worst = kernels.normal_steps(nodes, slope, q, below, beyond, out, edge, top)
    assert 0.0 <= worst < 1e-11
    with mpmath.workdps(30):
        for i in range(count):
            mean = mpmath.mpf(slope) * mpmath.mpf(float(nodes[i]))
            low, high = clipped(nodes, slope * nodes[i], q, below, beyond)
            places = [mpmath.mpf(float(node)) for node in nodes[low : high + 1]]
            scaled = [(node - mean) / q for node in places]
            puts = [q * (t * mpmath.ncdf(t) + mpmath.npdf(t)) for t in scaled]
            chances = spread(puts, places)
            assert top[i] == high
            assert not out[:low, i].any()
            assert not out[high + 1 :, i].any()
            np.testing.assert_allclose(out[low : high + 1, i], [float(one) for one in chances], rtol=1e-9)
            t = scaled[-1]
            lost = mpmath.exp(q * q / 2 - q * t) * mpmath.ncdf(q - t) - mpmath.ncdf(-t)
            assert edge[i] == pytest.approx(float(lost), rel=1e-9)


@pytest.mark.parametrize(("h", "q", "slope", "below", "beyond"), STEPS)
def test_a_step_in_the_exponential_keeps_zero_as_a_node(h, q, slope, below, beyond):
    nodes = h * np.arange(-5, 8)
    count = nodes.size
    out, edge = np.full((count, count), math.nan), np.empty(count)
    worst = kernels.split_steps(nodes, slope, q, below, beyond, out, edge)
    assert 0.0 <= worst < 1e-11
    with mpmath.workdps(30):
        for i in range(count):
            mean = mpmath.mpf(slope) * mpmath.mpf(float(nodes[i]))
            low, high = clipped(nodes, slope * nodes[i], q, below, beyond)
            places = [mpmath.mpf(0), *(mpmath.exp(float(node)) for node in nodes[low : high + 1])]
            puts = [mpmath.mpf(0)]
            for place in places[1:]:
                t = (mpmath.log(place) - mean) / q
                puts.append(place * mpmath.ncdf(t) - mpmath.exp(mean + q * q / 2) * mpmath.ncdf(t - q))
            zero, *chances = (float(one) for one in spread(puts, places))
            assert edge[i] == pytest.approx(zero, rel=1e-9)
            assert not out[:low, i].any()
            assert not out[high + 1 :, i].any()
            np.testing.assert_allclose(out[low : high + 1, i], chances, rtol=2e-9)


def test_weights_that_do_not_sum_to_one_are_told():
    """A gap of 0.12 among gaps of 0.1: the columns whose law has its mean there are off, and it is told."""
    nodes = np.array([-0.3, -0.2, -0.1, 0.02, 0.1, 0.2, 0.3])
    out, edge, top = np.empty((7, 7)), np.empty(7), np.zeros(7, dtype=np.int64)
    worst = kernels.normal_steps(nodes, 0.5, 0.15, 3.0, 3.0, out, edge, top)
    sums = np.abs(out.sum(axis=0) - 1.0)
    np.testing.assert_allclose(sums[[0, 2, 6]], [0.0, 0.2, 0.0], atol=1e-12)
    assert worst == pytest.approx(0.2, rel=1e-9)
    worst = kernels.split_steps(nodes, 0.5, 0.15, 3.0, 3.0, out, edge)
    sums = np.abs(out.sum(axis=0) + edge - 1.0)
    assert sums[0] < 1e-12
    assert 0.1 < worst == pytest.approx(sums.max(), rel=1e-9)


# the moves of the rows


def banded(generator, count, *, low=3, high=6):
    """Weights of a step: row j is zero outside first[j]..last[j], both nondecreasing."""
    first = np.maximum(np.arange(count) - low, 0)
    last = np.minimum(np.arange(count) + high, count - 1)
    weights = generator.random((count, count))
    for j in range(count):
        weights[j, : first[j]] = 0.0
        weights[j, last[j] + 1 :] = 0.0
    return weights, first.astype(np.int64), last.astype(np.int64)


def kept_to(state, window):
    """The state with NaN where nothing may be read."""
    hidden = np.full_like(state, math.nan)
    rows, cols = slice(window.row_lo, window.row_hi + 1), slice(window.col_lo, window.col_hi + 1)
    hidden[rows, cols] = state[rows, cols]
    return hidden


@pytest.mark.parametrize("rows", [1, 6, 9, 12])
@pytest.mark.parametrize("window", [(0, 11, 0, 4), (2, 9, 1, 3), (5, 5, 2, 2), (4, 7, 3, 530)])
def test_rows_are_mixed_as_a_product_of_matrices(rows, window):
    generator = np.random.default_rng(5)
    count, columns = 12, max(6, window[3] + 3)
    weights, first, last = banded(generator, count, low=2, high=3)
    state = generator.random((count, columns))
    window = Window(*window)
    out = np.full((count, columns), 7.0)
    found = kernels.mix_rows(weights, first, last, kept_to(state, window), window, rows, out)
    inner = slice(window.row_lo, window.row_hi + 1)
    want = weights[:, inner] @ state[inner]
    active = slice(window.col_lo, window.col_hi + 1)
    np.testing.assert_allclose(out[:rows, active], want[:rows, active], rtol=1e-13, atol=0.0)
    out[:rows, active] = 7.0
    assert np.all(out == 7.0)
    filled = np.flatnonzero(want[:rows, window.col_lo])
    assert (found.col_lo, found.col_hi) == (window.col_lo, window.col_hi)
    if filled.size:
        # Two rows are done at a time: a neighbour without mass may be counted in.
        assert filled[0] - 1 <= found.row_lo <= filled[0]
        assert filled[-1] <= found.row_hi <= min(filled[-1] + 1, rows - 1)
    else:
        assert found.row_hi < 0


def test_no_rows_are_no_window():
    weights, first, last = banded(np.random.default_rng(5), 12, low=1, high=1)
    found = kernels.mix_rows(weights, first, last, np.ones((12, 3)), Window(9, 11, 0, 2), 4, np.ones((12, 3)))
    assert found.row_hi < 0


@pytest.mark.parametrize("window", [(0, 8, 0, 5), (2, 6, 1, 3), (7, 8, 4, 4)])
@pytest.mark.parametrize("rows", [0, 4, 8])
def test_rows_that_one_increment_carries_past_one_go_to_the_totals(rows, window):
    generator = np.random.default_rng(6)
    count, columns = 9, 6
    weights, first, last = banded(generator, count, low=2, high=1)
    state, window = generator.random((count, columns)), Window(*window)
    increments, future = 1.0 + generator.random(count), generator.random(count)
    start = generator.random(3)
    totals = start.copy()
    kernels.stop_rows(weights, first, last, kept_to(state, window), window, rows, increments, future, totals)
    want = start.copy()
    for j in range(rows, count):
        for i in range(window.row_lo, window.row_hi + 1):
            for s in range(window.col_lo, window.col_hi + 1):
                mass = weights[j, i] * state[i, s]
                want[MASS] += mass
                want[EXCESS] += mass * (s / columns + increments[j] - 1.0 + future[j])
    np.testing.assert_allclose(totals, want, rtol=1e-13)


def test_a_step_past_the_last_row_of_the_state_stops_nothing():
    weights, first, last = banded(np.random.default_rng(6), 9, low=1, high=1)
    totals = np.zeros(3)
    ones = np.ones(9)
    kernels.stop_rows(weights, first, last, np.ones((9, 4)), Window(0, 2, 0, 3), 5, ones, ones, totals)
    assert not totals.any()


@pytest.mark.parametrize("window", [(0, 4, 0, 5), (1, 3, 2, 4), (3, -1, 0, 5)])
def test_rows_are_added_up_with_their_weights(window):
    generator = np.random.default_rng(7)
    state, window = generator.random((5, 6)), Window(*window)
    row_weights = np.array([0.5, 0.0, 2.0, 1.0, 0.25])
    start = generator.random(6)
    out = start.copy()
    gained = kernels.weighted_rows(kept_to(state, window), window, row_weights, out)
    added = np.zeros(6)
    for i in range(window.row_lo, window.row_hi + 1):
        for s in range(window.col_lo, window.col_hi + 1):
            added[s] += row_weights[i] * state[i, s]
    np.testing.assert_allclose(out, start + added, rtol=1e-14)
    assert gained == pytest.approx(added.sum(), rel=1e-14, abs=0.0)


# the increments


def test_an_increment_is_split_so_that_its_mean_is_kept():
    sizes, chances = np.array([0.0, 0.4, 1.0, 2.6, 7.0, 9.0]), np.array([0.1, 0.2, 0.3, 0.2, 0.15, 0.05])
    law = np.full(6, math.nan)
    reach = kernels._increment_law(1.0, sizes, chances, law)
    np.testing.assert_allclose(law, [0.1 + 0.12, 0.08 + 0.3, 0.08, 0.12, 0.0, 0.0], rtol=1e-15)
    assert (reach.lowest, reach.highest) == (0, 3)
    assert reach.over_mass == pytest.approx(0.2, rel=1e-15)
    assert reach.over_sum == pytest.approx(0.15 * 7.0 + 0.05 * 9.0, rel=1e-15)
    assert law @ np.arange(6) + reach.over_sum == pytest.approx(sizes @ chances, rel=1e-15)
    # Exactly at the last node it is over; just under it, it reaches the last entry.
    assert kernels._increment_law(5.0, np.ones(1), np.ones(1), law)[:2] == (6, -1)
    below = kernels._increment_law(4.5, np.ones(1), np.ones(1), law)
    assert below == (4, 5, 0.0, 0.0)
    assert law.tolist() == [0.0, 0.0, 0.0, 0.0, 0.5, 0.5]


def test_light_cells_are_emptied_and_counted():
    row = np.array([9.0, 0.25, 2.0, 0.5, 1.0, 0.125, 9.0])
    found = kernels._empty_light_cells(row, 1, 5, 1.0)
    assert found == (2, 4, 0.875)
    assert row.tolist() == [9.0, 0.0, 2.0, 0.0, 1.0, 0.0, 9.0]
    assert kernels._empty_light_cells(row, 1, 1, 1.0) == (7, -1, 0.0)


def test_what_stays_below_one_and_what_does_not():
    """S = s / 5 of chances `source`, plus 0, 2 or 3 fifths, or 8 fifths: every pair by itself."""
    source = np.array([math.nan, 0.2, 0.3, 0.1, math.nan])
    law = np.array([0.4, 0.0, 0.3, 0.2, 0.0, 0.0])
    reach = kernels.Reach(0, 3, 0.1, 0.8)
    below, totals = np.full(5, math.nan), np.array([1.0, 2.0, 3.0])
    want, stopped = np.zeros(5), totals.copy()
    for s in (1, 2, 3):
        for k, chance in ((0, 0.4), (2, 0.3), (3, 0.2), (8, 0.1)):
            if s + k < 5:
                want[s + k] += source[s] * chance
            else:
                stopped[MASS] += source[s] * chance
                stopped[EXCESS] += source[s] * chance * ((s + k) / 5 - 1.0 + 0.75)
    kernels._add_below_one(source, 1, 3, law, reach, below)
    kernels._stop_at_one(source, 1, 3, law, reach, 0.75, totals)
    np.testing.assert_allclose(below, want, rtol=1e-14)
    np.testing.assert_allclose(totals, stopped, rtol=1e-14)
    assert totals[CHARGE] == 3.0


@pytest.mark.parametrize("place", [9.6, 10.0, 10.3, 11.0, 11.5])
def test_an_increment_close_to_one_is_split_around_it(place):
    """Ten intervals of S: from place 9 on part of the mass reaches 1, from 10 on all of it."""
    state, totals = np.empty((1, 10)), np.zeros(3)
    mixed = np.zeros((1, 10))
    mixed[0, :2] = 0.5, 0.25
    law = np.ones(1), np.ones(1), 1e-300
    arrays = np.array([place / 10.0]), np.array([0.5])
    window = kernels.accumulate(mixed, Window(0, 0, 0, 1), *arrays, *law, state, totals)
    under = max(10.0 - place, 0.0)
    assert state[0, :9].tolist() == [0.0] * 9
    assert state[0, 9] == pytest.approx(0.5 * under, rel=1e-12, abs=0.0)
    mass = 0.5 * (1.0 - under) + 0.25
    mean = 0.5 * max(place - 10.0, 0.0) + 0.25 * (place - 9.0 if under == 0.0 else 1.0 - under)
    assert totals[MASS] == pytest.approx(mass, rel=1e-12)
    assert totals[EXCESS] == pytest.approx(mean / 10.0 + 0.5 * mass, rel=1e-12)
    assert window == ((0, 0, 9, 9) if under else (1, -1, 10, -1))


def test_a_walk_starts_with_all_its_mass_at_the_middle():
    walk = start_walk(0.7, np.array([-0.5, -0.25, 0.01, 0.25]), 6)
    assert walk.z == 0.7
    assert walk.mixed.shape == walk.state.shape == (4, 6)
    assert walk.mixed[2, 0] == walk.mixed.sum() == 1.0
    assert walk.window == (2, 2, 0, 0)
    assert walk.law.tolist() == [0.0] * 6
    assert walk.totals.tolist() == [0.0] * 3
    # Every total has an entry of its own.
    assert {ring_walk.MASS, ring_walk.EXCESS, ring_walk.CHARGE} == {*range(walk.totals.size)}
    assert not walk.state.any()
