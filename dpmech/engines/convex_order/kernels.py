"""Compiled inner loops of the dynamic program. This module imports numba; import it late.

No loop reorders a sum or depends on the number of threads.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dpmech.engines.convex_order.dynamic_program import CHARGE, EXCESS, MASS, Window

_Function = TypeVar("_Function", bound=Callable[..., Any])

if TYPE_CHECKING:

    def njit(**_options: object) -> Callable[[_Function], _Function]:
        """Typed substitute for numba.njit, which has no types."""

else:
    from numba import njit


Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

BLOCK = 256
_SQRT_HALF = math.sqrt(0.5)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


@njit(nogil=True, cache=True)
def _upper(t: float) -> float:
    """P(N > t)."""
    return 0.5 * math.erfc(t * _SQRT_HALF)


@njit(nogil=True, cache=True)
def _call(t: float) -> float:
    """E(N - t)_+; the relative error grows like t^2 roundings."""
    return _DENSITY * math.exp(-0.5 * t * t) - t * _upper(t)


@njit(nogil=True, cache=True)
def _exp_call(t: float, q: float) -> float:
    """E(e^(q (N - t)) - 1)_+."""
    return math.exp(0.5 * q * q - q * t) * _upper(t - q) - _upper(t)


@njit(nogil=True, cache=True)
def _exp_put(t: float, q: float) -> float:
    """E(1 - e^(q (N - t)))_+."""
    return _upper(-t) - math.exp(0.5 * q * q - q * t) * _upper(q - t)


@njit(nogil=True, cache=True)
def normal_steps(
    nodes: Array, slope: float, q: float, below: float, beyond: float, out: Array, edge: Array, top: Indices
) -> float:
    """Split N(slope * nodes[i], q^2) onto equally spaced nodes, for every i (REMOVE).

    Column i of `out` gets the law; mass more than `below` q under its mean is moved up, mass more than
    `beyond` q over it is moved down to node top[i], with edge[i] = E(e^(X - nodes[top[i]]) - 1)_+.
    Returns the worst |sum of weights - 1|.
    """
    count = nodes.size
    h = nodes[1] - nodes[0]
    worst = 0.0
    calls, puts = np.empty(count), np.empty(count)
    out[:, :] = 0.0
    for i in range(count):
        mean = slope * nodes[i]
        lo = max(0, math.floor((mean - below * q - nodes[0]) / h))
        hi = min(count - 1, math.ceil((mean + beyond * q - nodes[0]) / h))
        for j in range(lo, hi + 1):
            t = (nodes[j] - mean) / q
            calls[j] = q * _call(t) if t > -2.0 - h / q else 0.0
            puts[j] = q * _call(-t) if t < 2.0 + h / q else 0.0
        out[lo, i] = (puts[lo + 1] - puts[lo]) / h
        out[hi, i] = (calls[hi - 1] - calls[hi]) / h
        for j in range(lo + 1, hi):
            if nodes[j] >= mean:
                out[j, i] = (calls[j - 1] - 2.0 * calls[j] + calls[j + 1]) / h
            else:
                out[j, i] = (puts[j - 1] - 2.0 * puts[j] + puts[j + 1]) / h
        total = 0.0
        for j in range(lo, hi + 1):
            total += out[j, i]
            out[j, i] = max(out[j, i], 0.0)
        worst = max(worst, abs(total - 1.0))
        top[i] = hi
        edge[i] = max(_exp_call((nodes[hi] - mean) / q, q), 0.0)
    return worst


@njit(nogil=True, cache=True)
def split_steps(
    nodes: Array, slope: float, q: float, below: float, beyond: float, out: Array, edge: Array
) -> float:
    """Split e^X, X ~ N(slope * nodes[i], q^2), linearly in e^X onto e^nodes and 0, for every i (ADD).

    Column i of `out` gets the law without the node 0, whose probability is edge[i]. Mass more than `beyond` q
    over the mean is moved down; more than `below` q under it, the next node is 0.
    Returns the worst |sum of weights - 1|.
    """
    count = nodes.size
    h = nodes[1] - nodes[0]
    rise = math.expm1(h)
    worst = 0.0
    calls, puts = np.empty(count), np.empty(count)
    out[:, :] = 0.0
    for i in range(count):
        mean = slope * nodes[i]
        lo = max(0, math.floor((mean - below * q - nodes[0]) / h))
        hi = min(count - 1, math.ceil((mean + beyond * q - nodes[0]) / h))
        for j in range(lo, hi + 1):
            t = (nodes[j] - mean) / q
            calls[j] = _exp_call(t, q) if t > 0.5 * q - 2.0 - h / q else 0.0
            puts[j] = _exp_put(t, q) if t < 0.5 * q + 2.0 + h / q else 0.0
        # calls and puts are in units of their node: the slope after j is (calls[j] - e^h calls[j+1]) / rise
        edge[i] = max(puts[lo], 0.0)
        out[lo, i] = (math.exp(h) * puts[lo + 1] - puts[lo]) / rise - puts[lo]
        middle = mean + 0.5 * q * q  # the mean of e^X: above it calls are smaller, below it puts
        if nodes[hi] >= middle:
            out[hi, i] = (math.exp(-h) * calls[hi - 1] - calls[hi]) / -math.expm1(-h)
        else:
            out[hi, i] = 1.0 - (puts[hi] - math.exp(-h) * puts[hi - 1]) / -math.expm1(-h)
        for j in range(lo + 1, hi):
            if nodes[j] >= middle:
                left = (math.exp(-h) * calls[j - 1] - calls[j]) / -math.expm1(-h)
                out[j, i] = left - (calls[j] - math.exp(h) * calls[j + 1]) / rise
            else:
                left = (puts[j] - math.exp(-h) * puts[j - 1]) / -math.expm1(-h)
                out[j, i] = (math.exp(h) * puts[j + 1] - puts[j]) / rise - left
        total = edge[i]
        for j in range(lo, hi + 1):
            total += out[j, i]
            out[j, i] = max(out[j, i], 0.0)
        worst = max(worst, abs(total - 1.0))
    return worst


@njit(nogil=True, cache=True)
def mix_rows(
    weights: Array, first: Indices, last: Indices, state: Array, window: Window, rows: int, out: Array
) -> Window:
    """out[j, s] = sum_i weights[j, i] state[i, s] for j < rows, over the active rows and columns of `state`.

    Row j of `weights` is zero outside first[j]..last[j]. Returns the window of `out`.
    """
    row_lo, row_hi, col_lo, col_hi = window
    filled_lo, filled_hi = out.shape[0], -1
    spare = np.zeros(BLOCK)
    for start in range(col_lo, col_hi + 1, BLOCK):
        stop = min(start + BLOCK, col_hi + 1)
        width = stop - start
        for j in range(0, rows, 2):
            pair = j + 1 < rows
            lo = max(first[j], row_lo)
            hi = min(last[j + 1] if pair else last[j], row_hi)
            target = out[j, start:stop]
            other = out[j + 1, start:stop] if pair else spare[:width]
            target[:] = 0.0
            other[:] = 0.0
            if hi >= lo:
                filled_lo = min(filled_lo, j)
                filled_hi = max(filled_hi, j + 1 if pair else j)
            k = j + 1 if pair else j
            # two rows by four: enough work per loaded number; the compiler does not reorder sums
            i = lo
            while i + 3 <= hi:
                a0, a1, a2, a3 = weights[j, i], weights[j, i + 1], weights[j, i + 2], weights[j, i + 3]
                b0, b1, b2, b3 = weights[k, i], weights[k, i + 1], weights[k, i + 2], weights[k, i + 3]
                r0, r1 = state[i, start:stop], state[i + 1, start:stop]
                r2, r3 = state[i + 2, start:stop], state[i + 3, start:stop]
                for s in range(width):
                    u0, u1, u2, u3 = r0[s], r1[s], r2[s], r3[s]
                    target[s] += (a0 * u0 + a1 * u1) + (a2 * u2 + a3 * u3)
                    other[s] += (b0 * u0 + b1 * u1) + (b2 * u2 + b3 * u3)
                i += 4
            while i <= hi:
                a0, b0 = weights[j, i], weights[k, i]
                r0 = state[i, start:stop]
                for s in range(width):
                    target[s] += a0 * r0[s]
                    other[s] += b0 * r0[s]
                i += 1
    return Window(filled_lo, filled_hi, col_lo, col_hi)


class Reach(NamedTuple):
    """First and last node of the law of an increment, and mass and sum beyond the nodes."""

    lowest: int
    highest: int
    over_mass: float
    over_sum: float


@njit(nogil=True, cache=True)
def _increment_law(step: float, sizes: Array, chances: Array, law: Array) -> Reach:
    """Split step * sizes (in S nodes) onto 0..n of `law`, n = law.size - 1."""
    nodes = law.size - 1
    lowest, highest = nodes + 1, -1
    over_mass, over_sum = 0.0, 0.0
    law[:] = 0.0
    for m in range(sizes.size):
        place = step * sizes[m]
        if place >= nodes:
            over_mass += chances[m]
            over_sum += chances[m] * place
        else:
            k = int(place)
            share = place - k
            law[k] += chances[m] * (1.0 - share)
            law[k + 1] += chances[m] * share
            lowest = min(lowest, k)
            highest = max(highest, k + 1)
    return Reach(lowest, highest, over_mass, over_sum)


@njit(nogil=True, cache=True)
def _add_below_one(source: Array, col_lo: int, col_hi: int, law: Array, reach: Reach, target: Array) -> None:
    """Set `target` to the law of S + increment on the nodes below 1, S of law source[col_lo..col_hi]."""
    target[:] = 0.0
    for k in range(reach.lowest, reach.highest + 1):
        w = law[k]
        if w > 0.0:
            for s in range(col_lo, min(col_hi, target.size - 1 - k) + 1):
                target[s + k] += w * source[s]


@njit(nogil=True, cache=True)
def _empty_light_cells(row: Array, start: int, stop: int, least: float) -> tuple[int, int, float]:
    """Empty cells below `least` in row[start..stop]; return first and last kept, and the mass removed."""
    kept_lo, kept_hi, taken = row.size, -1, 0.0
    for s in range(start, stop + 1):
        if row[s] >= least:
            kept_hi = s
            kept_lo = min(kept_lo, s)
        else:
            taken += row[s]
            row[s] = 0.0
    return kept_lo, kept_hi, taken


@njit(nogil=True, cache=True)
def _stop_at_one(
    source: Array, col_lo: int, col_hi: int, law: Array, reach: Reach, later: float, totals: Array
) -> None:
    """Add the mass with S + increment >= 1 to `totals`; `later` is the further gain of such a path."""
    nodes = source.size
    # the larger S, the smaller the required increment: the tail of the law grows from its top down
    mass, total = reach.over_mass, reach.over_sum
    k = min(reach.highest, nodes)
    for s in range(col_lo, col_hi + 1):
        while k >= reach.lowest and k >= nodes - s:
            mass += law[k]
            total += law[k] * k
            k -= 1
        if mass > 0.0 and source[s] > 0.0:
            excess = max((s - nodes) * mass + total, 0.0) / nodes
            totals[MASS] += source[s] * mass
            totals[EXCESS] += source[s] * (excess + mass * later)


@njit(nogil=True, cache=True)
def accumulate(
    mixed: Array,
    window: Window,
    increments: Array,
    future: Array,
    sizes: Array,
    chances: Array,
    floor: float,
    state: Array,
    totals: Array,
) -> Window:
    """Add this bin's increment to S: `state` gets the cells below 1, `totals` the mass that reached 1.

    Column s of `mixed` is S = s / n, n = number of columns. Row j adds increments[j] * W, W of law
    (sizes, chances). totals[MASS] += mass with S >= 1, totals[EXCESS] += mass * (S - 1 + future[j]).
    A cell below `floor` / (1 + future[j]) is emptied, and totals[CHARGE] += mass * (1 + future[j]).
    Returns the window that contains all mass of `state`.
    """
    count, nodes = mixed.shape
    law = np.empty(nodes + 1)
    row_lo, row_hi, col_lo, col_hi = count, -1, nodes, -1
    for j in range(window.row_lo, window.row_hi + 1):
        reach = _increment_law(increments[j] * nodes, sizes, chances, law)
        _add_below_one(mixed[j], window.col_lo, window.col_hi, law, reach, state[j])
        if reach.highest >= 0:
            worth = 1.0 + future[j]
            start = window.col_lo + reach.lowest
            stop = min(window.col_hi + reach.highest, nodes - 1)
            kept_lo, kept_hi, taken = _empty_light_cells(state[j], start, stop, floor / worth)
            totals[CHARGE] += taken * worth
            if kept_hi >= 0:
                row_lo, row_hi = min(row_lo, j), max(row_hi, j)
                col_lo, col_hi = min(col_lo, kept_lo), max(col_hi, kept_hi)
        _stop_at_one(mixed[j], window.col_lo, window.col_hi, law, reach, future[j], totals)
    return Window(row_lo, row_hi, col_lo, col_hi)


@njit(nogil=True, cache=True)
def stop_rows(
    weights: Array,
    first: Indices,
    last: Indices,
    state: Array,
    window: Window,
    rows: int,
    increments: Array,
    future: Array,
    totals: Array,
) -> None:
    """Move the mass of rows >= `rows`, where one increment is at least 1, directly to `totals`."""
    count, nodes = state.shape
    masses, sums = np.zeros(count), np.zeros(count)
    for i in range(window.row_lo, window.row_hi + 1):
        if last[rows] >= first[rows] and i >= first[rows]:
            for s in range(window.col_lo, window.col_hi + 1):
                masses[i] += state[i, s]
                sums[i] += state[i, s] * s
    for j in range(rows, count):
        mass, total = 0.0, 0.0
        for i in range(max(first[j], window.row_lo), min(last[j], window.row_hi) + 1):
            mass += weights[j, i] * masses[i]
            total += weights[j, i] * sums[i]
        totals[MASS] += mass
        totals[EXCESS] += total / nodes + mass * (increments[j] - 1.0 + future[j])


@njit(nogil=True, cache=True)
def weighted_rows(state: Array, window: Window, row_weights: Array, out: Array) -> float:
    """out[s] += sum_i row_weights[i] state[i, s] over the active part; returns the sum of what is added."""
    total = 0.0
    for i in range(window.row_lo, window.row_hi + 1):
        if row_weights[i] > 0.0:
            source = state[i]
            for s in range(window.col_lo, window.col_hi + 1):
                added = row_weights[i] * source[s]
                out[s] += added
                total += added
    return total
