"""Compiled recursions over the cooldown counter of one example. This module imports numba; import it late.

Rows are independent; nothing depends on the number of threads. Sums of exponentials are stored as numbers,
scaled by powers of two, as long as all needed values lie in a range in which no term is lost, and as logs
otherwise.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

_Function = TypeVar("_Function", bound=Callable[..., Any])

if TYPE_CHECKING:

    def njit(**_options: object) -> Callable[[_Function], _Function]:
        """Typed substitute for numba.njit, which has no types."""

else:
    from numba import njit


Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# Numbers are rescaled once one leaves [1 / _UNIT, _UNIT], and stored as logs if others leave [_LEAST, _MOST]
# as a result. A term is at most e^_LARGEST times that: at 1e287 nothing overflows, and underflow costs at
# most 1e-28 of the sum.
_UNIT = 2.0**332
_LOG_UNIT = 332.0 * math.log(2.0)
_LEAST, _MOST = 1e-280, 1e200
_LARGEST = 200.0
# Limit on |j y| in sums over powers j of e^y: a coefficient that underflows relative to the largest one is
# then at most e^-400 of the sum.
_FARTHEST = 300.0


@njit(nogil=True, cache=True)
def _log_add(one: float, two: float) -> float:
    """log(e^one + e^two)."""
    if one < two:
        one, two = two, one
    if two == -math.inf:
        return one
    return one + math.log1p(math.exp(two - one))


@njit(nogil=True, cache=True)
def tails(gains: Array, log_prob: float, log_rest: float, min_sep: int) -> Array:
    """Log V_t = log E[prod of e^gains over the joined steps from t on], available at t.

    V_t = (1 - p) V_(t + 1) + p e^gains[t] V_(t + b), and 1 from the last step on. Shape (n + b,).
    """
    n = gains.size
    out = np.zeros(n + min_sep)
    for t in range(n - 1, -1, -1):
        out[t] = _log_add(log_rest + out[t + 1], log_prob + gains[t] + out[t + min_sep])
    return out


@njit(nogil=True, cache=True)
def _number(
    row: Array, scale: float, offsets: Array, prob: float, rest: float, starts: Array, tail: Array
) -> float:
    """Like `log_sums` for one row, in numbers; NaN if these leave the range. `tail` is overwritten."""
    n, min_sep = row.size, starts.size
    tail[n:] = 1.0
    shift, last = 0.0, 1.0
    for t in range(n - 1, -1, -1):
        exponent = scale * row[t] + offsets[t]
        if not exponent <= _LARGEST:
            return math.nan
        last = rest * last + prob * math.exp(exponent) * tail[t + min_sep]
        tail[t] = last
        if last > _UNIT or last < 1.0 / _UNIT:
            factor = 1.0 / _UNIT if last > 1.0 else _UNIT
            shift -= math.copysign(_LOG_UNIT, factor - 1.0)
            for k in range(t, t + min_sep):
                tail[k] *= factor
                if not _LEAST <= tail[k] <= _MOST:
                    return math.nan
            last = tail[t]
    total = 0.0
    for k in range(min_sep):
        total += starts[k] * tail[k]
    return math.log(total) + shift


@njit(nogil=True, cache=True)
def log_sums(
    values: Array, scale: float, offsets: Array, log_prob: float, log_rest: float, starts: Array, out: Array
) -> None:
    """For every row w of `values`, shape (m, n): log E[prod over joined t of e^(scale w_t + offsets_t)].

    Args:
        values: rows of shape (n,).
        scale: factor on the values.
        offsets: shape (n,).
        log_prob: log p.
        log_rest: log(1 - p), -inf for p = 1.
        starts: log of the law of the cooldown counter at step 0, shape (b,).
        out: shape (m,).
    """
    rows, n = values.shape
    min_sep = starts.size
    tail = np.ones(n + min_sep)
    prob, rest, law = math.exp(log_prob), math.exp(log_rest), np.exp(starts)
    for row in range(rows):
        out[row] = _number(values[row], scale, offsets, prob, rest, law, tail)
        if not math.isnan(out[row]):
            continue
        tail[n:] = 0.0
        for t in range(n - 1, -1, -1):
            tail[t] = _log_add(
                log_rest + tail[t + 1], log_prob + scale * values[row, t] + offsets[t] + tail[t + min_sep]
            )
        total = -math.inf
        for first in range(min_sep):
            total = _log_add(total, starts[first] + tail[first])
        out[row] = total


@njit(nogil=True, cache=True)
def log_powers(values: Array, logs: Array, out: Array) -> None:
    """Log of sum over j = 1, ..., J of e^(logs[j - 1, t] + j values[row, t]).

    Args:
        values: shape (m, n).
        logs: shape (J, n).
        out: shape (m, n).
    """
    rows, n = values.shape
    count = len(logs)
    tops, coefs = np.empty(n), np.empty((n, count))
    for t in range(n):
        tops[t] = np.max(logs[:, t])
        coefs[t] = np.exp(logs[:, t] - tops[t])
    for row in range(rows):
        for t in range(n):
            value = values[row, t]
            if abs(value) * count <= _FARTHEST:
                growth, total = math.exp(value), 0.0
                for j in range(count - 1, -1, -1):
                    total = (total + coefs[t, j]) * growth
                out[row, t] = tops[t] + math.log(total)
            else:
                found = -math.inf
                for j in range(count):
                    found = _log_add(found, logs[j, t] + (j + 1) * value)
                out[row, t] = found


@njit(nogil=True, cache=True)
def joined(joins: Array, starts: Array) -> Array:
    """The probability of joining each step, shape (n,).

    Args:
        joins: probability of joining step t when available, shape (n,).
        starts: law of the first step at which the example is available, shape (b,).
    """
    n, min_sep = joins.size, starts.size
    free = np.zeros(n + min_sep)
    free[:min_sep] = starts
    out = np.empty(n)
    for t in range(n):
        out[t] = free[t] * joins[t]
        free[t + 1] += free[t] - out[t]
        free[t + min_sep] += out[t]
    return out


@njit(nogil=True, cache=True)
def draw_patterns(uniforms: Array, joins: Array, starts: Array, out: Flags) -> None:
    """Draw the steps that each row joins, from uniforms of shape (m, n + 1).

    Args:
        uniforms: the first of a row draws the cooldown counter at step 0.
        joins: probability of joining step t when available, shape (n,).
        starts: cumulative law of the cooldown counter at step 0, shape (b,).
        out: shape (m, n).
    """
    rows, n = out.shape
    min_sep = starts.size
    for row in range(rows):
        free = 0
        while free < min_sep - 1 and uniforms[row, 0] * starts[min_sep - 1] >= starts[free]:
            free += 1
        for t in range(n):
            out[row, t] = t >= free and uniforms[row, t + 1] < joins[t]
            if out[row, t]:
                free = t + min_sep


@njit(nogil=True, cache=True)
def _joins(free: int, odds: float, growth: float) -> float:
    """The sum over j = 0, ..., free of binomial(free, j) odds^j growth^(j (j - 1) / 2)."""
    term = total = 1.0
    for joining in range(free):
        term *= (free - joining) / (joining + 1.0) * odds
        odds *= growth
        total += term
    return total


@njit(nogil=True, cache=True)
def largest_step(
    power: int,
    log_prob: float,
    log_rest: float,
    square: float,
    after: float,
    alpha: float,
    beta: float,
    least: float,
    most: float,
) -> float:
    """Lambda of one step; see `waiting_copies`."""
    found, growth = -math.inf, math.exp(square)
    for waiting in range(power + 1):
        for pull in (least * waiting, most * waiting):
            free, odds = power - waiting, math.exp(log_prob - log_rest + after + pull)
            term = free * log_rest + math.log(_joins(free, odds, growth))
            found = max(found, term - alpha * waiting - beta * pull)
    return found


@njit(nogil=True, cache=True)
def largest_steps(
    power: int,
    log_prob: float,
    log_rest: float,
    squares: Array,
    after: Array,
    alpha: float,
    beta: float,
    least: Array,
    most: Array,
    out: Array,
) -> None:
    """Lambda of every step; arrays of shape (n,)."""
    for t in range(out.size):
        out[t] = largest_step(power, log_prob, log_rest, squares[t], after[t], alpha, beta, least[t], most[t])


@njit(nogil=True, cache=True)
def draw_counts(
    uniforms: Array,
    starts: Array,
    log_prob: float,
    log_rest: float,
    squares: Array,
    products: Array,
    alpha: float,
    after: Array,
    out: Array,
    logs: Array,
) -> None:
    """Draw how many of m copies join each step, and the log of W / V^m; see `waiting_copies`.

    Args:
        uniforms: shape (count, m + n); the first m of a row draw the first waits.
        starts: cumulative weighted law of the first wait, shape (b,).
        log_prob: log p.
        log_rest: log(1 - p).
        squares: K_tt, shape (n,).
        products: K_(t, t-d) at [t, d - 1], shape (n, bands - 1).
        alpha: gain for a step of waiting.
        after: gains of joining, shape (n,).
        out: shape (count, n).
        logs: shape (count,).
    """
    count, n = out.shape
    min_sep, power = starts.size, uniforms.shape[1] - n
    waits, growths = np.empty(min_sep, dtype=np.int64), np.exp(squares)
    for row in range(count):
        waits[:] = 0
        log_weight = 0.0
        for copy in range(power):
            wait = 0
            while wait < min_sep - 1 and uniforms[row, copy] * starts[min_sep - 1] >= starts[wait]:
                wait += 1
            waits[wait] += 1
            log_weight -= alpha * min(wait, n)
        free = 0
        for t in range(n):
            free += waits[t] if t < min_sep else 0
            free += int(out[row, t - min_sep]) if t >= min_sep else 0
            gain = after[t]
            for d in range(1, min(products.shape[1], t) + 1):
                if out[row, t - d] != 0.0:
                    gain += products[t, d - 1] * out[row, t - d]
            odds = math.exp(log_prob - log_rest + gain)
            total, joining = _joins(free, odds, growths[t]), 0
            term = 1.0
            left = uniforms[row, power + t] * total - term
            while left >= 0.0 and joining < free:
                term *= (free - joining) / (joining + 1.0) * odds
                odds *= growths[t]
                joining += 1
                left -= term
            out[row, t] = joining
            log_weight += free * log_rest + math.log(total) - after[t] * joining
            free -= joining
        logs[row] = log_weight


@njit(nogil=True, cache=True)
def correlate(columns: Array, rows: Array, out: Array) -> None:
    """<c_t, x> for every row x, c_t[t + k] = columns[k, t]; rows and out of shape (m, n)."""
    count, n = rows.shape
    for row in range(count):
        for t in range(n):
            out[row, t] = columns[0, t] * rows[row, t]
        for k in range(1, len(columns)):
            for t in range(n - k):
                out[row, t] += columns[k, t] * rows[row, t + k]


@njit(nogil=True, cache=True)
def spread(columns: Array, weights: Array, out: Array) -> None:
    """Add sum_t weights[t] c_t to every row of `out`; both of shape (m, n)."""
    count, n = weights.shape
    width = columns.shape[1]
    for row in range(count):
        for t in range(n):
            weight = weights[row, t]
            if weight != 0.0:
                for k in range(min(width, n - t)):
                    out[row, t + k] += weight * columns[t, k]
