"""Compiled recursions over the rest counter of one example. This module imports numba; import it late.

Row by row; nothing depends on the number of threads. Sums of exponentials are kept as logs, so that no term
is lost however far apart they are.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

_Function = TypeVar("_Function", bound=Callable[..., Any])

if TYPE_CHECKING:

    def njit(**_options: object) -> Callable[[_Function], _Function]:
        """Stands for numba.njit, which has no types."""

else:
    from numba import njit

__all__ = ["correlate", "draw_patterns", "joined", "log_sums", "spread", "tails"]

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


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
    """Log V_t = log E[prod of e^gains over the steps from t on that are joined], free to join at t.

    V_t = (1 - p) V_(t + 1) + p e^gains[t] V_(t + b), and 1 from the last step on. Shape (n + b,).
    """
    n = gains.size
    out = np.zeros(n + min_sep)
    for t in range(n - 1, -1, -1):
        out[t] = _log_add(log_rest + out[t + 1], log_prob + gains[t] + out[t + min_sep])
    return out


@njit(nogil=True, cache=True)
def log_sums(
    values: Array, scale: float, offsets: Array, log_prob: float, log_rest: float, starts: Array, out: Array
) -> None:
    """For every row w of `values`, shape (m, n): log E[prod over joined t of e^(scale w_t + offsets_t)].

    Args:
        values: rows of shape (n,).
        scale: of the values.
        offsets: shape (n,).
        log_prob: log p.
        log_rest: log(1 - p), -inf for p = 1.
        starts: log of the law of the rest counter at step 0, shape (b,).
        out: shape (m,).
    """
    rows, n = values.shape
    min_sep = starts.size
    tail = np.zeros(n + min_sep)
    for row in range(rows):
        for t in range(n - 1, -1, -1):
            tail[t] = _log_add(
                log_rest + tail[t + 1], log_prob + scale * values[row, t] + offsets[t] + tail[t + min_sep]
            )
        total = -math.inf
        for rest in range(min_sep):
            total = _log_add(total, starts[rest] + tail[rest])
        out[row] = total


@njit(nogil=True, cache=True)
def joined(joins: Array, starts: Array) -> Array:
    """The probability of joining each step, shape (n,).

    Args:
        joins: probability of joining step t when free to, shape (n,).
        starts: law of the first step at which it is free to, shape (b,).
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
    """The steps that each row joins, from uniforms of shape (m, n + 1).

    Args:
        uniforms: the first of a row draws the rest counter at step 0.
        joins: probability of joining step t when free to, shape (n,).
        starts: cumulative law of the rest counter at step 0, shape (b,).
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
def correlate(columns: Array, rows: Array, out: Array) -> None:
    """<c_t, x> for every row x, c_t[t + k] = columns[t, k]; rows and out of shape (m, n)."""
    count, n = rows.shape
    width = columns.shape[1]
    for row in range(count):
        for t in range(n):
            total = 0.0
            for k in range(min(width, n - t)):
                total += columns[t, k] * rows[row, t + k]
            out[row, t] = total


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
