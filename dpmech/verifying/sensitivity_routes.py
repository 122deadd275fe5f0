r"""The sensitivity again, from the entries of C: explicit columns, all sets, or another dynamic programme.

For a set pi of steps the value lies between the best signed sum and the root of sum_{i,j in pi} |G_ij|,
G = C^T C (docs/sensitivity.md). Where `dpmech.sensitivity` uses structure (running sums, monotone
coefficients), this module forms columns and Gram entries and adds them up; where it walks over counts, this
one walks over steps. Up to 12 steps it tries every set. Where C is given by a banded inverse, the entries are
found again by a recursion of its own.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np

from dpmech.mechanism import Adjacency, Mechanism, Pattern, Strategy
from dpmech.numerics import UNIT, Bounds, FloatArray, Provenance, spend

__all__ = ["second_bracket"]

_ALL_SETS = 12
_DENSE_STEPS = 4096
# Relative, for two inner products of as many terms; a sum of m terms one after another adds m roundings. A
# bracket is compared with a claim to 1e-9 and handed out nowhere: columns with signs, where it may be k times
# that, need no more.
_SLACK = 2.0 * _DENSE_STEPS * UNIT
_LOWER_WORK = 1_000_000_000
# Multiplications of pairs of floats in a recursion, about 10 ns each.
_RECURSION_WORK = 2_000_000_000


def second_bracket(mechanism: Mechanism) -> Bounds:
    """A bracket of the sensitivity at clip norm 1, by routes other than those of `dpmech.sensitivity`.

    Args:
        mechanism: what runs; REPLACE_ONE doubles the value, and m examples of a user in one step make it m
            times as large.

    Returns:
        The narrowest bracket of the routes that are affordable at this n; `by` names those of its ends.
        The upper end is infinite where none is.
    """
    factor = 2.0 if mechanism.adjacency is Adjacency.REPLACE_ONE else 1.0
    factor *= mechanism.participation.examples
    found = list(_routes(mechanism.strategy, mechanism.pattern))
    if not found:
        return Bounds.bracket(0.0, math.inf, Provenance("second.none"))
    low = max(found, key=lambda bounds: bounds.lower)
    high = min(found, key=lambda bounds: bounds.upper)
    by = high.by if low.by == high.by else dataclasses.replace(high.by, rests_on=(low.by,))
    return Bounds.bracket(min(low.lower, high.upper), high.upper, by).scaled(factor)


def _routes(strategy: Strategy, pattern: Pattern) -> Iterator[Bounds]:
    n, b, k = strategy.n, pattern.min_sep, pattern.max_participations
    coefs = _coefficients(strategy)
    if strategy.factored is not None and coefs is None:
        return
    if n <= _DENSE_STEPS:
        spend(1e-7 * n * n, 64.0 * n * n, what=f"explicit columns of {n} steps")
    columns = _columns(strategy, coefs) if n <= _DENSE_STEPS else None
    if columns is not None and n <= _ALL_SETS:
        yield _all_sets(columns, pattern)
        return
    norms = _column_norms(strategy, coefs, columns)
    if norms is not None:
        if k == 1:
            yield _bracket(norms.max(), norms.max(), Provenance("second.largest_column"), math.isqrt(n))
            return
        if _orthogonal(coefs, columns, b):
            weights = norms[None, :] ** 2
            value = math.sqrt(
                max(float(weights[0, start::b].sum()) for start in range(b))
                if pattern.evenly_spaced
                else float(best_sums(weights, b, k)[0])
            )
            yield _bracket(value, value, Provenance("second.orthogonal_columns"), math.isqrt(n) + k)
            return
    known = list(_leftmost(strategy, coefs, columns, b, k))
    yield from known
    if columns is None or any(bounds.exact for bounds in known):
        return
    if b == 1 and k == n and np.all(columns >= 0.0):
        value = float(np.linalg.norm(columns.sum(axis=1)))
        yield _bracket(value, value, Provenance("second.all_columns"))
    elif pattern.evenly_spaced:
        yield _spaced_sets(columns, b)
    else:
        spend(1e-9 * n**3 + 1e-8 * _LOWER_WORK, 64.0 * n * n, what=f"the dense Gram matrix of {n} steps")
        yield _all_rows(columns.T @ columns, b, k)


def _coefficients(strategy: Strategy) -> FloatArray | None:
    """The first column of the Toeplitz factor, not as the strategy found it where it is an inverse.

    None where there is none, or the recursion would take too long.
    """
    factors = strategy.factored
    if factors is None:
        return None
    if factors.inverse_bands is None or factors.bands is not None:
        return factors.coefs
    from dpmech.verifying.series_recursion import recursive_inverse  # numba starts slowly

    short = factors.inverse_coefs[: factors.inverse_bands]
    work = int(np.count_nonzero(short)) * strategy.n
    if work > _RECURSION_WORK:
        return None
    spend(2e-8 * work + 5.0, 64.0 * strategy.n, what=f"the inverse again, {strategy.n} coefficients")
    return recursive_inverse(short, strategy.n)


def _columns(strategy: Strategy, coefs: FloatArray | None) -> FloatArray:
    """C, entry by entry."""
    factors = strategy.factored
    if factors is None or coefs is None:
        return strategy.to_dense()
    columns = np.zeros((strategy.n, strategy.n))
    for j, scale in enumerate(factors.scales()):
        columns[j:, j] = coefs[: strategy.n - j] * scale
    return columns


def _bracket(lower: float, upper: float, by: Provenance, terms: int = 0) -> Bounds:
    slack = _SLACK + terms * UNIT
    return Bounds.bracket(min(lower, upper) * (1.0 - slack), upper * (1.0 + slack), by)


def _all_sets(columns: FloatArray, pattern: Pattern) -> Bounds:
    """Every admissible set, by its Gram matrix: a sum of moduli above, the best signs below."""
    n, b, k = columns.shape[0], pattern.min_sep, pattern.max_participations
    gram = columns.T @ columns
    if pattern.evenly_spaced:
        sets = [tuple(range(start, n, b)) for start in range(b)]
    else:
        sets = [
            steps
            for size in range(1, k + 1)
            for steps in itertools.combinations(range(n), size)
            if all(after - before >= b for before, after in itertools.pairwise(steps))
        ]
    low = high = 0.0
    for steps in sets:
        part = gram[np.ix_(steps, steps)]
        ceiling = float(np.abs(part).sum())
        high = max(high, ceiling)
        if ceiling > low:
            low = max(low, _best_signs(part))
    return _bracket(math.sqrt(low), math.sqrt(high), Provenance("second.all_sets", {"sets": len(sets)}))


def _best_signs(gram: FloatArray) -> float:
    """Largest s^T G s over sign vectors: all of them up to 12 entries, else the signs of each row."""
    size = gram.shape[0]
    if size <= _ALL_SETS:
        signs = 1.0 - 2.0 * (np.arange(2 ** (size - 1))[:, None] >> np.arange(size) & 1)
    else:
        signs = np.vstack([np.ones(size), np.where(gram >= 0.0, 1.0, -1.0)])
    return float(((signs @ gram) * signs).sum(axis=1).max())


def _column_norms(
    strategy: Strategy, coefs: FloatArray | None, columns: FloatArray | None
) -> FloatArray | None:
    if columns is not None:
        return np.asarray(np.sqrt((columns**2).sum(axis=0)))
    factors = strategy.factored
    if factors is None or coefs is None:
        return None
    # Blocks of about sqrt(n): no square passes more than 2 sqrt(n) additions.
    width = math.isqrt(strategy.n - 1) + 1
    squares = np.zeros(width * width)
    squares[: strategy.n] = coefs**2
    within = np.cumsum(squares.reshape(width, width), axis=1)
    before = np.append(0.0, np.cumsum(within[:-1, -1]))
    sums = (within + before[:, None]).ravel()[: strategy.n]
    return np.asarray(np.sqrt(sums[::-1]) * factors.scales())


def _orthogonal(coefs: FloatArray | None, columns: FloatArray | None, b: int) -> bool:
    """Whether columns b or more apart share no row, seen from the entries."""
    if columns is not None:
        return not np.any(np.tril(columns, -b))
    return coefs is not None and not np.any(coefs[b:])


def _leftmost(
    strategy: Strategy, coefs: FloatArray | None, columns: FloatArray | None, b: int, k: int
) -> Iterator[Bounds]:
    """lambda_cgd Theorem 1 for the least non-increasing sequence above |c|, and Lemma 8, column by column."""
    factors = strategy.factored
    if factors is None or coefs is None:
        return
    n = strategy.n
    spend(n * (1e-6 + 1e-8 * k), 160.0 * n, what=f"adding up {k} columns of {n} steps")
    envelope = np.empty(n)
    highest = 0.0
    for t in range(n - 1, -1, -1):
        highest = max(highest, abs(float(coefs[t])))
        envelope[t] = highest
    scales = factors.scales()
    actual, above = np.zeros(n), np.zeros(n)
    for j in range(0, min(k * b, n), b):
        actual[j:] += columns[j:, j] if columns is not None else coefs[: n - j] * scales[j]
        above[j:] += envelope[: n - j]
    lower = float(np.sqrt(np.sum(actual**2)))
    upper = float(np.sqrt(np.sum(above**2)) * scales.max())
    yield _bracket(lower, upper, Provenance("second.leftmost"), terms=k)
    if n > 1 and factors.scale is not None:
        ratio = float(coefs[1] / coefs[0])
        norms = _column_norms(strategy, coefs, columns)
        # How close counts as geometric is far below what a claim is compared to.
        geometric = 0.0 <= ratio < 1.0 and np.all(np.abs(coefs[1:] - ratio * coefs[:-1]) <= 1e-14 * coefs[0])
        if geometric and norms is not None and np.ptp(norms) <= (1e-13 + 2 * math.isqrt(n) * UNIT) * norms[0]:
            yield _bracket(lower, lower, Provenance("second.geometric"), terms=k)


def _spaced_sets(columns: FloatArray, b: int) -> Bounds:
    """The sets {s, s + b, ...}, each by the Gram matrix of its explicit columns."""
    low = high = 0.0
    spend(1e-9 * columns.size * (columns.shape[0] / b), 64.0 * columns.size, what=f"{b} evenly spaced sets")
    for start in range(b):
        chosen = columns[:, start::b]
        part = chosen.T @ chosen
        ceiling = float(np.abs(part).sum())
        high = max(high, ceiling)
        if ceiling > low:
            low = max(low, _best_signs(part))
    return _bracket(math.sqrt(low), math.sqrt(high), Provenance("second.evenly_spaced", {"sets": b}))


def _all_rows(gram: FloatArray, b: int, k: int) -> Bounds:
    """Upper: every row's best set through it, then the best set of rows. Lower: the evenly spaced sets."""
    n = gram.shape[0]
    steps = np.arange(n)
    weights = np.where(np.abs(steps[:, None] - steps[None, :]) >= b, np.abs(gram), 0.0)
    rows = np.diagonal(gram) + (best_sums(weights, b, k - 1) if k > 1 else 0.0)
    high = float(best_sums(rows[None, :], b, k)[0])
    widest, low = steps[:1], 0.0
    # Only the lower end rests on these sets: not all of them where they are many and large.
    stride = 1 + n * k * k // _LOWER_WORK
    for start in range(min(b, n)):
        chosen = steps[start::b]
        for first in range(0, max(1, chosen.size - k + 1), stride):
            part = gram[np.ix_(chosen[first : first + k], chosen[first : first + k])]
            low = max(low, float(part.sum()))
            if np.abs(part).sum() > np.abs(gram[np.ix_(widest, widest)]).sum():
                widest = chosen[first : first + k]
    low = max(low, _best_signs(gram[np.ix_(widest, widest)]))
    return _bracket(math.sqrt(low), math.sqrt(high), Provenance("second.dense_gram"))


def best_sums(weights: FloatArray, b: int, k: int) -> FloatArray:
    """For every row, the largest sum of at most k weights at least b steps apart.

    By dynamic programming over the steps, all rows at once: best[t][j] = max(best[t-1][j],
    w_t + best[t-b][j-1]).

    Args:
        weights: >= 0, shape (m, n).
        b: >= 1.
        k: >= 1.

    Returns:
        Shape (m,).
    """
    m, n = weights.shape
    limit = min(k, -(-n // b))
    spend(
        n * (1e-5 + 2e-8 * m * (limit + 1)),
        8.0 * (m * n + (b + 3) * m * (limit + 1)),
        what=f"the programme over {n} steps and {limit} participations",
    )
    # A ring buffer of the last b steps; entry j is the best of at most j weights.
    past = np.zeros((b, m, limit + 1))
    current = np.zeros((m, limit + 1))
    for t in range(n):
        before = past[t % b]
        taken = weights[:, t, None] + before[:, :-1]
        current = current.copy()
        np.maximum(current[:, 1:], taken, out=current[:, 1:])
        past[t % b] = current
    return np.asarray(current[:, -1])
