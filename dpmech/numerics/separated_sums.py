"""Best sums over b-separated index sets: the combinatorial part of sensitivities."""

import numpy as np

from dpmech.numerics.arrays import FloatArray
from dpmech.numerics.toeplitz import total

__all__ = ["best_separated_sum", "windowed_sums"]


def best_separated_sum(weights: FloatArray, min_sep: int, count: int) -> float:
    """Largest sum of at most `count` weights whose indices are pairwise at least `min_sep` apart.

    By dynamic programming: O(n) where `count` does not bind, else O(n count). Exact, up to a relative
    rounding error of `count` times 2^-53, or `sum_rounding(n)` if that is more.

    Args:
        weights: non-negative, shape (n,).
        min_sep: b >= 1.
        count: k >= 0.
    """
    n = weights.size
    if count <= 0 or n == 0:
        return 0.0
    if min_sep == 1:
        return total(weights if count >= n else np.partition(weights, n - count)[n - count :])
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

    From windows of 1, 2, 4, ... terms, without a difference: each sum is off by at most `sum_rounding(n)`
    times the sum of the moduli in it.

    Args:
        values: shape (n,).
        stride: >= 1.
        count: >= 1.

    Returns:
        Shape (n,).
    """
    n = values.size
    left = min(count, -(-n // stride))
    window = np.array(values, dtype=np.float64)
    sums = np.zeros(n)
    width, start = 1, 0  # how many terms `window` has, and at which one the rest of `sums` begins
    while left:
        if left & 1:
            _add_shifted(sums, window, start * stride)
            start += width
        left >>= 1
        if left:
            window = _add_shifted(window.copy(), window, width * stride)
            width *= 2
    return sums


def _add_shifted(target: FloatArray, source: FloatArray, shift: int) -> FloatArray:
    """target[s] += source[s + shift], in place."""
    if shift < source.size:
        target[: source.size - shift] += source[shift:]
    return target
