"""Compiled recursions over the states of one example, or of several copies. Imports numba; import it late.

A state of one example holds how many participations are left, and which of its last steps it joined. `joins`
and `rests` have shape (n, S): factors of going to `to_join[s]` and to `to_rest[s]` from state s at step t.
Only states in [low[t], high[t]) can be reached at step t. Rows are independent. Sums are stored as in
`chain_kernels`.
"""

import math

import numpy as np
import numpy.typing as npt

from dpmech.engines.gaussian_mixture.chain_kernels import (
    _LARGEST,
    _LEAST,
    _LOG_UNIT,
    _MOST,
    _UNIT,
    Array,
    Flags,
    _log_add,
    njit,
)

Indices = npt.NDArray[np.int64]


@njit(nogil=True, cache=True)
def _number(
    row: Array,
    scale: float,
    offsets: Array,
    joins: Array,
    rests: Array,
    to_join: Indices,
    to_rest: Indices,
    low: Indices,
    high: Indices,
    work: Array,
) -> float:
    """Like `state_sums` for one row, in numbers; NaN if these leave the range. `work` is overwritten."""
    n, shift = row.size, 0.0
    work[:] = 1.0
    for t in range(n - 1, -1, -1):
        exponent = scale * row[t] + offsets[t]
        if not -_LARGEST <= exponent <= _LARGEST:
            return math.nan
        growth, here, later = math.exp(exponent), t % 2, (t + 1) % 2
        top, least = 0.0, math.inf
        for s in range(low[t], high[t]):
            value = rests[t, s] * work[later, to_rest[s]]
            value += joins[t, s] * growth * work[later, to_join[s]]
            work[here, s] = value
            top, least = max(top, value), min(least, value)
        if not (least >= _LEAST and top <= _MOST):
            return math.nan
        if top > _UNIT or top < 1.0 / _UNIT:
            factor = 1.0 / _UNIT if top > 1.0 else _UNIT
            shift -= math.copysign(_LOG_UNIT, factor - 1.0)
            if least * factor < _LEAST:
                return math.nan
            for s in range(low[t], high[t]):
                work[here, s] *= factor
    return math.log(work[0, high[0] - 1]) + shift


@njit(nogil=True, cache=True)
def state_sums(
    values: Array,
    scale: float,
    offsets: Array,
    log_joins: Array,
    log_rests: Array,
    to_join: Indices,
    to_rest: Indices,
    low: Indices,
    high: Indices,
    largest: float,
    out: Array,
) -> None:
    """For every row w, shape (m, n): log E[prod of factors, and of e^(scale w_t + offsets_t) at joined t].

    Args:
        values: rows of shape (n,).
        scale: factor on the values.
        offsets: shape (n,).
        log_joins: logs of `joins`, shape (n, S).
        log_rests: logs of `rests`, shape (n, S).
        to_join: the state after joining, shape (S,).
        to_rest: the state after not joining, shape (S,).
        low: shape (n + 1,).
        high: shape (n + 1,); the first state is high[0] - 1.
        largest: bound on the logs of factors that are not probabilities.
        out: shape (m,).
    """
    rows, n = values.shape
    joins, rests = np.exp(log_joins), np.exp(log_rests)
    work = np.ones((2, to_join.size))
    gains = np.empty(n)
    tails = np.zeros((n + 1, to_join.size))
    for row in range(rows):
        out[row] = math.nan
        if largest <= _LARGEST:
            out[row] = _number(values[row], scale, offsets, joins, rests, to_join, to_rest, low, high, work)
        if math.isnan(out[row]):
            for t in range(n):
                gains[t] = scale * values[row, t] + offsets[t]
            state_tails(gains, log_joins, log_rests, to_join, to_rest, low, high, tails)
            out[row] = tails[0, high[0] - 1]


@njit(nogil=True, cache=True)
def state_tails(
    gains: Array,
    log_joins: Array,
    log_rests: Array,
    to_join: Indices,
    to_rest: Indices,
    low: Indices,
    high: Indices,
    out: Array,
) -> None:
    """Logs of the same expectations from every step and state on, with gains of joined steps; (n + 1, S)."""
    n = gains.size
    out[:] = 0.0
    for t in range(n - 1, -1, -1):
        for s in range(low[t], high[t]):
            out[t, s] = _log_add(
                log_rests[t, s] + out[t + 1, to_rest[s]], log_joins[t, s] + gains[t] + out[t + 1, to_join[s]]
            )


@njit(nogil=True, cache=True)
def state_marginals(chances: Array, to_join: Indices, to_rest: Indices, start: int) -> Array:
    """The probability of joining each step, from that in each state, shape (n, S)."""
    n, count = chances.shape
    here, out = np.zeros(count), np.zeros(n)
    here[start] = 1.0
    for t in range(n):
        later = np.zeros(count)
        for s in range(count):
            joined = here[s] * chances[t, s]
            out[t] += joined
            later[to_join[s]] += joined
            later[to_rest[s]] += here[s] - joined
        here = later
    return out


@njit(nogil=True, cache=True)
def draw_states(
    uniforms: Array, chances: Array, to_join: Indices, to_rest: Indices, start: int, out: Flags
) -> None:
    """Draw the steps that each row joins; uniforms and out of shape (m, n)."""
    rows, n = out.shape
    for row in range(rows):
        state = start
        for t in range(n):
            out[row, t] = uniforms[row, t] < chances[t, state]
            state = to_join[state] if out[row, t] else to_rest[state]


@njit(nogil=True, cache=True)
def _moves(
    states: Indices,
    masks: Indices,
    ways: Array,
    ends: Indices,
    chances: Array,
    near: Array,
    square: float,
    later: Array,
    out: Array,
) -> float:
    """Ways times probability times growth times later value of each move of a state; returns their sum.

    Args:
        states: state of each copy, shape (m,).
        masks: for each move, the copies that join, as bits.
        ways: for each move, how many there are like it.
        ends: for each move, the state of the copies after it.
        chances: probability of joining in each state at this step, shape (S,).
        near: product of this step's column with those that a state remembers, shape (S,).
        square: that with itself.
        later: value of each state of the copies after this step, shape (M,).
        out: at least as long as there are moves.
    """
    together, total = 0.0, 0.0
    for u in range(states.size):
        together += near[states[u]]
    for move in range(masks.size):
        value, joined, pull = ways[move] * later[ends[move]], 0, 0.0
        for u in range(states.size):
            q = chances[states[u]]
            if masks[move] >> u & 1:
                value *= q
                joined += 1
                pull += together - near[states[u]]
            else:
                value *= 1.0 - q
        if value > 0.0 and (joined > 1 or pull > 0.0):
            value *= math.exp(0.5 * joined * (joined - 1) * square + pull)
        out[move] = value
        total += value
    return total


@njit(nogil=True, cache=True)
def copies_values(
    states: Indices,
    first: Indices,
    masks: Indices,
    ways: Array,
    ends: Indices,
    chances: Array,
    near: Array,
    squares: Array,
    out: Array,
) -> float:
    """Expectations of the growth from every step on, divided by the largest of a step.

    Args:
        states: states of the copies, increasing in each row, shape (M, m).
        first: the moves of row i are those in [first[i], first[i + 1]), shape (M + 1,).
        masks: as in `_moves`, of all rows.
        ways: the same.
        ends: the same.
        chances: probability of joining at each step and state, shape (n, S).
        near: as in `_moves` for every step, shape (n, S).
        squares: shape (n,).
        out: shape (n + 1, M); the last row is given.

    Returns:
        The sum of the logs of the divisors.
    """
    moves, total = np.empty(masks.size), 0.0
    for t in range(squares.size - 1, -1, -1):
        top = 0.0
        for i in range(len(states)):
            own = slice(first[i], first[i + 1])
            out[t, i] = _moves(
                states[i],
                masks[own],
                ways[own],
                ends[own],
                chances[t],
                near[t],
                squares[t],
                out[t + 1],
                moves,
            )
            top = max(top, out[t, i])
        for i in range(len(states)):
            out[t, i] /= top
        total += math.log(top)
    return total


@njit(nogil=True, cache=True)
def draw_copies(
    uniforms: Array,
    states: Indices,
    first: Indices,
    masks: Indices,
    ways: Array,
    ends: Indices,
    chances: Array,
    near: Array,
    squares: Array,
    values: Array,
    out: Array,
) -> None:
    """How many copies join each step, shape (m, n); arguments as for `copies_values`, and its result."""
    moves = np.empty(masks.size)
    for row in range(len(out)):
        place = len(states) - 1
        for t in range(squares.size):
            own = slice(first[place], first[place + 1])
            total = _moves(
                states[place],
                masks[own],
                ways[own],
                ends[own],
                chances[t],
                near[t],
                squares[t],
                values[t + 1],
                moves,
            )
            aim, chosen = uniforms[row, t] * total, first[place]
            for move in range(first[place], first[place + 1]):
                value = moves[move - first[place]]
                if value > 0.0:
                    chosen = move
                    aim -= value
                    if aim < 0.0:
                        break
            for u in range(states.shape[1]):
                out[row, t] += masks[chosen] >> u & 1
            place = ends[chosen]
