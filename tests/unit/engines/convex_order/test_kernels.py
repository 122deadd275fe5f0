import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpmech.engines.convex_order import kernels as ring_kernels
from dpmech.engines.convex_order.dynamic_program import CHARGE, EXCESS, MASS, Window
from dpmech.engines.convex_order.node_laws import lognormal_split, normal_split
from dpmech.exceptions import InvalidParameterError


def test_normal_split_keeps_mean_and_sum():
    nodes = np.array([-30.0, -3.0, -1.0, 0.2, 0.9, 2.5, 30.0])
    split = normal_split(nodes, 1.7)
    assert split.weights.sum() == pytest.approx(1.0, abs=1e-14)
    assert split.weights @ nodes == pytest.approx(0.0, abs=1e-13)
    for slope in (0.3, 1.0):
        assert split.weights @ np.exp(slope * nodes) >= math.exp(slope**2 * 1.7**2 / 2)


def test_lognormal_split_keeps_mean_and_sum():
    logs = np.linspace(-9.0, 12.0, 40)
    split = lognormal_split(logs, -0.32, 0.8)
    assert split.weights.sum() + split.zero == pytest.approx(1.0, abs=1e-14)
    assert split.weights @ np.exp(logs) + split.excess == pytest.approx(1.0, rel=1e-12)
    for power in (0.25, 0.75):  # concave in e^Y: never above
        assert split.weights @ np.exp(power * logs) <= math.exp(-0.32 * power + 0.32 * power**2)


def test_split_weights_keep_relative_precision_in_the_tails():
    with mpmath.workdps(40):
        nodes = np.linspace(-11.0, 11.0, 111)
        weights = normal_split(nodes, 1.0).weights

        def call(t):
            return mpmath.npdf(t) - t * mpmath.ncdf(-t)

        for i in (1, 20, 54, 80, 109):
            low, mid, high = (mpmath.mpf(float(nodes[i + k])) for k in (-1, 0, 1))
            exact = (call(low) - call(mid)) / (mid - low) - (call(mid) - call(high)) / (high - mid)
            assert float(weights[i]) == pytest.approx(float(exact), rel=1e-11)


def test_step_weights_keep_relative_precision_in_the_tails():
    q, slope = 0.5, 0.9
    nodes = 0.05 * np.arange(-100, 101)
    out, edge, top = np.empty((201, 201)), np.empty(201), np.zeros(201, dtype=np.int64)
    assert ring_kernels.normal_steps(nodes, slope, q, 9.0, 9.0, out, edge, top) < 1e-12
    with mpmath.workdps(40):

        def call(u, mean):
            t = (u - mean) / q
            return q * (mpmath.npdf(t) - t * mpmath.ncdf(-t))

        for i in (60, 100, 130):
            mean = slope * mpmath.mpf(float(nodes[i]))
            for j in (i - 50, i, i + 40, i + 60):
                low, mid, high = (mpmath.mpf(float(nodes[j + k])) for k in (-1, 0, 1))
                exact = (call(low, mean) - 2 * call(mid, mean) + call(high, mean)) / (mid - low)
                assert out[j, i] == pytest.approx(float(exact), rel=1e-10)
    assert ring_kernels.split_steps(nodes, slope, q, 9.0, 9.0, out, edge) < 1e-12
    with mpmath.workdps(40):

        def lognormal_call(u, mean):
            d = (mean - mpmath.log(u)) / q
            return mpmath.exp(mean + q * q / 2) * mpmath.ncdf(d + q) - u * mpmath.ncdf(d)

        for i in (60, 100, 130):
            mean = slope * mpmath.mpf(float(nodes[i]))
            for j in (i - 50, i, i + 40, i + 60):
                low, mid, high = (mpmath.exp(float(nodes[j + k])) for k in (-1, 0, 1))
                calls = [lognormal_call(u, mean) for u in (low, mid, high)]
                exact = (calls[0] - calls[1]) / (mid - low) - (calls[1] - calls[2]) / (high - mid)
                assert out[j, i] == pytest.approx(float(exact), rel=1e-10)


@pytest.mark.parametrize("nodes", [[0.0, 1.0], [-1.0, 1.0, 1.0], [-1.0], [1.0, 2.0]])
def test_normal_split_refuses(nodes):
    with pytest.raises(InvalidParameterError):
        normal_split(np.array(nodes), 1.0)


def test_lognormal_split_refuses():
    with pytest.raises(InvalidParameterError):
        lognormal_split(np.array([1.0, 0.5]), 0.0, 1.0)


def test_kernels_do_the_same_uncompiled():
    generator = np.random.default_rng(3)
    nodes = 0.4 * np.arange(-4, 6)
    count = nodes.size
    results = []
    for name in ("py_func", None):

        def run(kernel, *args, name=name):
            return (getattr(kernel, name) if name else kernel)(*args)

        out, other = np.empty((count, count)), np.empty((count, count))
        edge, hole = np.empty(count), np.empty(count)
        top = np.zeros(count, dtype=np.int64)
        worst = run(ring_kernels.normal_steps, nodes, 0.8, 0.5, 4.0, 5.0, out, edge, top)
        worst += run(ring_kernels.split_steps, nodes, 0.8, 0.5, 5.0, 4.0, other, hole)
        assert worst < 1e-12
        first, last = np.zeros(count, dtype=np.int64), np.full(count, count - 1)
        state = np.random.default_rng(1).random((count, 6))
        window, totals = Window(0, count - 1, 0, 5), np.zeros(3)
        mixed, law = np.zeros((count, 6)), np.zeros(6)
        steps, later = np.exp(nodes - 1.0), np.exp(0.5 * nodes)
        run(ring_kernels.stop_rows, out, first, last, state, window, count - 3, steps, later, totals)
        window = run(ring_kernels.mix_rows, out, first, last, state, window, count - 3, mixed)
        sizes, chances = np.array([0.0, 0.5, 2.0, 40.0]), np.array([0.2, 0.4, 0.3, 0.1])
        law_of_w = sizes, chances, 1e-3
        window = run(ring_kernels.accumulate, mixed, window, steps, later, *law_of_w, state, totals)
        gained = run(ring_kernels.weighted_rows, state, window, np.ones(count), law)
        results.append(
            np.concatenate([out.ravel(), other.ravel(), edge, hole, totals, law, [gained], window])
        )
        if name:  # the helpers, which the compiled callers inline
            t = float(generator.random())
            assert ring_kernels._call.py_func(t) == ring_kernels._call(t)
            assert ring_kernels._upper.py_func(t) == ring_kernels._upper(t)
            assert ring_kernels._exp_call.py_func(t, 0.3) == pytest.approx(ring_kernels._exp_call(t, 0.3))
            assert ring_kernels._exp_put.py_func(t, 0.3) == pytest.approx(ring_kernels._exp_put(t, 0.3))
            block = np.empty(9)
            law_a = ring_kernels._increment_law.py_func(0.7, sizes, chances, block)
            assert law_a == ring_kernels._increment_law(0.7, sizes, chances, np.empty(9))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("white", [False, True])
@pytest.mark.parametrize("floor", [1e-300, 2e-3])
def test_accumulate_against_each_increment_of_each_cell(white, floor):
    """One cell and one size at a time, in exact fractions of the floats: no window, no running tail."""
    generator = np.random.default_rng(11)
    count, nodes = 4, 12
    mixed = generator.random((count, nodes)) / 40.0
    mixed[:, 9:] = 0.0
    mixed[:, :2] = 0.0
    mixed[0] = mixed[1, 4] = 0.0
    increments, future = np.array([0.2, 0.31, 0.9, 7.0]), np.array([0.0, 0.5, 2.0, 9.0])
    sizes, chances = (
        (np.array([0.0, 0.4, 1.1, 3.0]), np.array([0.2, 0.5, 0.2, 0.1])) if white else ([1.0],) * 2
    )
    sizes, chances = np.asarray(sizes), np.asarray(chances)
    want, totals = np.zeros((count, nodes)), np.zeros(3)
    for j, s, m in itertools.product(range(count), range(nodes), range(sizes.size)):
        mass, step = mixed[j, s] * chances[m], increments[j] * nodes * sizes[m]
        if step >= nodes:
            parts = [(1.0, step)]
        else:
            share = Fraction(step) - math.floor(step)
            parts = [(float(1 - share), math.floor(step)), (float(share), math.floor(step) + 1)]
        for share, rise in parts:
            if s + rise < nodes:
                want[j, s + rise] += mass * share
            else:
                totals[MASS] += mass * share
                totals[EXCESS] += mass * share * ((s + rise) / nodes - 1.0 + future[j])
    worth = 1.0 + future[:, None]
    light = want * worth < floor
    totals[CHARGE] = (want * worth)[light].sum()
    want[light] = 0.0
    state, got = generator.random((count, nodes)), np.zeros(3)
    # rows in the window are overwritten, whatever stood there; totals are added to
    window = ring_kernels.accumulate(
        mixed, Window(0, count - 1, 2, 8), increments, future, sizes, chances, floor, state, got
    )
    np.testing.assert_allclose(state, want, rtol=1e-13, atol=0.0)
    np.testing.assert_allclose(got, totals, rtol=1e-13, atol=1e-300)
    rows, cols = np.nonzero(want)
    assert window == (rows.min(), rows.max(), cols.min(), cols.max())
    again = ring_kernels.accumulate(
        mixed, Window(0, count - 1, 2, 8), increments, future, sizes, chances, floor, state, got
    )
    assert again == window
    np.testing.assert_allclose(got, 2.0 * totals, rtol=1e-13, atol=1e-300)


def test_accumulate_of_a_state_without_mass_is_an_empty_window():
    state, totals = np.ones((3, 5)), np.zeros(3)
    window = ring_kernels.accumulate(
        np.zeros((3, 5)),
        Window(3, -1, 0, 4),
        np.ones(3),
        np.ones(3),
        np.ones(1),
        np.ones(1),
        1e-9,
        state,
        totals,
    )
    assert window.row_hi < 0
    assert not totals.any()
