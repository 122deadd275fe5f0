r"""Squared sensitivity as a maximum over cuts, each of them smooth in the coefficients.

A cut is a set of columns with weights W >= 0; its value at C is `sum_uv W_uv |<C_u, C_v>|`. The squared
sensitivity of a participation set pi is the cut with W = 1 on pi x pi, where the inner products are >= 0,
and at most that otherwise. The row-wise bound of `dpmech.mechanism.sensitivities` is the maximum over cuts
too: one for every choice of a best set for each row of a best set.
"""

import dataclasses

import numpy as np

from dpmech.mechanism import Pattern, Strategy
from dpmech.numerics import FloatArray, IntArray, best_separated_sum, cumulative_sum, windowed_sums

__all__ = ["Cut", "CutValue", "column_squares", "leftmost_cut", "worst_cut"]


@dataclasses.dataclass(frozen=True, eq=False)
class CutValue:
    """The value of a cut and its gradient.

    Attributes:
        value: an upper bound on the squared norm that the cut stands for.
        by_coefs: derivative by the first column of T, shape (n,).
        by_scale: derivative by the column scales, shape (n,); None where there are none.
    """

    value: float
    by_coefs: FloatArray
    by_scale: FloatArray | None


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """Columns and the weights of their inner products.

    Attributes:
        columns: distinct steps, shape (u,).
        weights: W >= 0, shape (u, u).
    """

    columns: IntArray
    weights: FloatArray

    def at(self, coefs: FloatArray, scale: FloatArray | None) -> CutValue:
        """Value and gradient at C = LTT(coefs) diag(scale), in O(u^2 n)."""
        n = coefs.size
        chosen = self.columns
        rows = np.zeros((chosen.size, n))
        for row, column in zip(rows, chosen, strict=True):
            row[column:] = coefs[: n - column]
        factors = np.ones(chosen.size) if scale is None else scale[chosen]
        scaled = rows * factors[:, None]
        gram = scaled @ scaled.T
        signed = self.weights * np.where(gram >= 0.0, 1.0, -1.0)
        back = (signed + signed.T) @ scaled
        by_coefs = np.zeros(n)
        for row, column, factor in zip(back, chosen, factors, strict=True):
            by_coefs[: n - column] += factor * row[column:]
        by_scale = None
        if scale is not None:
            by_scale = np.zeros(n)
            by_scale[chosen] = np.sum(back * rows, axis=1)
        return CutValue(float(np.sum(signed * gram)), by_coefs, by_scale)


def leftmost_cut(n: int, pattern: Pattern) -> Cut:
    """The columns 0, b, 2 b, ..."""
    return _spaced(0, n, pattern)


def _spaced(start: int, n: int, pattern: Pattern) -> Cut:
    columns = np.arange(start, n, pattern.min_sep)[: pattern.max_participations]
    return Cut(columns, np.ones((columns.size, columns.size)))


def column_squares(coefs: FloatArray) -> FloatArray:
    """Squared column norms of LTT(coefs), shape (n,)."""
    return cumulative_sum(coefs**2)[::-1]


def worst_cut(strategy: Strategy, pattern: Pattern) -> Cut:
    """The cut that gives the certified row-wise bound of `sensitivity`, or the worst evenly spaced set.

    O(n^2) for a pattern that is not evenly spaced, as the bound itself.
    """
    n, b, k = strategy.n, pattern.min_sep, pattern.max_participations
    if pattern.evenly_spaced:
        totals = np.zeros(n)
        for m in range(k):
            entries = np.pad(np.abs(strategy.gram_diagonal(m * b)), (0, m * b)) * (2.0 if m else 1.0)
            totals += windowed_sums(entries, b, k - m)
        return _spaced(int(totals[:b].argmax()), n, pattern)
    rows = np.empty(n)
    for i, row in strategy.gram_rows():
        weights = _others(row, i, b)
        rows[i] = abs(row[i]) + best_separated_sum(weights, b, k - 1)
    outer = set(best_separated_set(rows, b, k))
    partners: dict[int, list[int]] = {}
    for i, row in strategy.gram_rows():
        if i in outer:
            partners[i] = [i, *best_separated_set(_others(row, i, b), b, k - 1)]
    columns = np.array(sorted({step for steps in partners.values() for step in steps}))
    place = {int(step): index for index, step in enumerate(columns)}
    weights = np.zeros((columns.size, columns.size))
    for i, steps in partners.items():
        weights[place[i], [place[step] for step in steps]] = 1.0
    return Cut(columns, weights)


def _others(row: FloatArray, i: int, b: int) -> FloatArray:
    weights = np.abs(row)
    weights[max(0, i - b + 1) : i + b] = 0.0
    return weights


def best_separated_set(weights: FloatArray, min_sep: int, count: int) -> list[int]:
    """The steps behind `best_separated_sum`, those of weight 0 left out.

    Args:
        weights: non-negative, shape (n,).
        min_sep: b >= 1.
        count: k >= 0.
    """
    n = weights.size
    levels = min(count, -(-n // min_sep))
    if levels <= 0:
        return []
    # best[m][i]: largest sum of m + 1 steps among 0, ..., i
    tables: list[tuple[FloatArray, FloatArray]] = []
    candidate = weights.astype(np.float64)
    for level in range(levels):
        if level:
            candidate = weights.copy()
            candidate[min_sep:] += tables[-1][1][:-min_sep]
        tables.append((candidate, np.maximum.accumulate(candidate)))
    chosen: list[int] = []
    end = n
    for level in range(levels - 1, -1, -1):
        if end <= 0:
            break
        step = int(np.argmax(tables[level][0][:end]))
        if weights[step] > 0.0:
            chosen.append(step)
        end = step - min_sep + 1
    return chosen[::-1]
