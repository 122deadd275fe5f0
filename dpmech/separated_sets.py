"""Best sums over b-separated index sets: the combinatorial part of sensitivities."""

import numpy as np

from dpmech.linalg import FloatArray

__all__ = ["best_separated_sum", "windowed_sums"]


def best_separated_sum(weights: FloatArray, min_sep: int, count: int) -> float:
    """Largest sum of at most `count` weights whose indices are pairwise at least `min_sep` apart.

    Exact, by dynamic programming: O(n) where `count` does not bind, else O(n count).

    Args:
        weights: non-negative, shape (n,).
        min_sep: b >= 1.
        count: k >= 0.
    """
    n = weights.size
    if count <= 0 or n == 0:
        return 0.0
    if min_sep == 1:
        return float(weights.sum() if count >= n else np.partition(weights, n - count)[n - count :].sum())
    if count >= -(-n // min_sep):
        return _uncapped(weights, min_sep)
    best = np.maximum.accumulate(weights)
    for _ in range(count - 1):
        candidate = weights.copy()
        candidate[min_sep:] += best[:-min_sep]
        best = np.maximum.accumulate(candidate)
    return float(best[-1])


def _uncapped(weights: FloatArray, min_sep: int) -> float:
    """The same without a limit on the number: best[i] = max(best[i-1], weights[i] + best[i-b])."""
    blocks = -(-weights.size // min_sep)
    padded = np.pad(weights, (0, blocks * min_sep - weights.size)).reshape(blocks, min_sep)
    best = np.zeros(min_sep)
    for block in padded:
        best = np.maximum(np.maximum.accumulate(block + best), best[-1])
    return float(best[-1])


def windowed_sums(values: FloatArray, stride: int, count: int) -> FloatArray:
    """sum_{j < count} values[s + j stride] for every s, entries past the end counting as 0.

    Args:
        values: shape (n,).
        stride: >= 1.
        count: >= 1.

    Returns:
        Shape (n,).
    """
    n = values.size
    rows = -(-n // stride)
    table = np.zeros((rows + 1, stride), dtype=np.longdouble)
    table[:rows].ravel()[:n] = values
    # Suffix sums along each residue class; a window is the difference of two of them.
    suffix = np.cumsum(table[::-1], axis=0)[::-1]
    window = suffix[:rows].copy()
    if count < rows:
        window[: rows - count] -= suffix[count:rows]
    return np.asarray(window, dtype=np.float64).ravel()[:n]
