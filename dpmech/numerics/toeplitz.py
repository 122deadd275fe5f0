"""Algebra of lower-triangular Toeplitz and banded matrices; maximum sums over b-separated index sets.

A lower-triangular Toeplitz matrix is represented by its first column and never formed; products of such
matrices are products of power series. Short recursions take O(n p) (a filter), long ones O(n log n) by FFT.

Sums that enter a guarantee are computed by a tree, so that float64 suffices and every processor gives the
same numbers: a sum of n terms involves at most 2 log2 n roundings per term. `sum_rounding` and
`convolution_rounding` give the bounds; no longer format is used, because not every processor has one.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.exceptions import NumericalError
from dpmech.numerics.rounding import UNIT

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]


# Below this many multiplications a recursion is faster than an FFT, and more accurate.
DIRECT_WORK = 400_000_000
_SHORT_FILTER = 64
_SEQUENTIAL = 8
# Range of column norms whose squares, and sums of a million of them, stay normal in float64.
_SMALLEST_NORM, _LARGEST_NORM = 1e-140, 1e140


def cumulative_sum(x: FloatArray, axis: int = 0) -> FloatArray:
    """Cumulative sums by a tree; each has error at most `sum_rounding(n)` times the sum of its moduli."""
    return np.moveaxis(_scan(np.moveaxis(x, axis, 0)), 0, axis)


def sum_rounding(n: int) -> float:
    """Bound on the relative rounding error of `cumulative_sum` of n terms >= 0, `total` and `norm`.

    No term takes part in more than 2 ceil(log2 n) additions, or 7 for n at most 8. A square, a root and two
    more operations are included: 2 ceil(log2 n) + 12 roundings, and 1 % for their product.
    """
    return 1.01 * (2 * math.ceil(math.log2(max(n, 2))) + 12) * UNIT


def total(x: FloatArray) -> float:
    """Sum of a vector by halves, within `sum_rounding(n)` times the sum of its moduli."""
    while x.size > _SEQUENTIAL:
        half = x.size // 2
        summed = x[:half] + x[half : 2 * half]
        x = np.append(summed, x[-1]) if x.size % 2 else summed
    return float(np.add.accumulate(x)[-1]) if x.size else 0.0


def norm(x: FloatArray) -> float:
    """Euclidean norm of a vector, to `sum_rounding(n)` relative if its square is normal in float64."""
    return math.sqrt(total(x * x))


def _scan(x: FloatArray) -> FloatArray:
    """Cumulative sums along the first axis, from those of sums of neighbouring pairs."""
    n = x.shape[0]
    if n <= _SEQUENTIAL:
        return np.asarray(np.add.accumulate(x, axis=0), dtype=np.float64)
    inner = _scan(x[0 : n - 1 : 2] + x[1::2])
    out = np.empty(x.shape)
    out[0] = x[0]
    out[1::2] = inner
    np.add(inner[: (n - 1) // 2], x[2::2], out=out[2::2])
    return out


def trimmed(coefs: FloatArray) -> FloatArray:
    """The coefficients without trailing zeros (at least one is kept)."""
    nonzero = np.flatnonzero(coefs)
    return coefs[: (int(nonzero[-1]) + 1 if nonzero.size else 1)]


def series_product(a: FloatArray, b: FloatArray, n: int) -> FloatArray:
    """First n coefficients of the product of two power series, shapes (p,) and (q,) -> (n,)."""
    product = _convolve(trimmed(a[:n]), trimmed(b[:n]))[:n]
    return np.pad(product, (0, n - product.size))


def toeplitz_matmul(coefs: FloatArray, x: FloatArray) -> FloatArray:
    """LTT(coefs) @ x for x of shape (n,) or (n, d); trailing zeros of coefs cost nothing."""
    short = trimmed(coefs)
    if short.size <= _SHORT_FILTER:
        return _filter(short, np.ones(1), x)
    return _columnwise(lambda column: _convolve(short, column)[: column.size], x)


def toeplitz_solve(coefs: FloatArray, x: FloatArray) -> FloatArray:
    """Solve LTT(coefs) y = x by forward recursion in O(n p), for short `coefs`."""
    return checked_finite(_filter(np.ones(1), trimmed(coefs), x), "the solution")


def is_short(coefs: FloatArray, n: int) -> bool:
    """Whether a recursion over these coefficients is affordable for n steps."""
    return trimmed(coefs).size * n <= DIRECT_WORK // 8


def checked_finite(x: FloatArray, what: str) -> FloatArray:
    """Return x, or raise NumericalError if an entry overflowed."""
    if not np.all(np.isfinite(x)):
        raise NumericalError(f"{what} overflows float64: the strategy is too ill-conditioned for its n")
    return x


def checked_norms(norms: FloatArray) -> FloatArray:
    """Return column norms, or raise NumericalError if their squares exceed the range of float64."""
    low, high = float(np.min(norms)), float(np.max(norms))
    if not (low >= _SMALLEST_NORM and high <= _LARGEST_NORM):
        raise NumericalError(
            f"column norms of the strategy run from {low:.3g} to {high:.3g}: outside of [{_SMALLEST_NORM:g}, "
            f"{_LARGEST_NORM:g}] squares leave float64; scale the strategy"
        )
    return norms


def _filter(numerator: FloatArray, denominator: FloatArray, x: FloatArray) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(scipy.signal.lfilter(numerator, denominator, x, axis=0), dtype=np.float64)


def _convolve(a: FloatArray, b: FloatArray) -> FloatArray:
    if min(a.size, b.size) <= _SHORT_FILTER:
        return np.convolve(a, b)
    size = _fft_size(a.size + b.size - 1)
    spectrum = scipy.fft.rfft(a, size) * scipy.fft.rfft(b, size)
    return np.asarray(scipy.fft.irfft(spectrum, size), dtype=np.float64)[: a.size + b.size - 1]


def convolution_rounding(a: FloatArray, b: FloatArray) -> float:
    """Bound on the error of every coefficient of a convolution by FFT, or by short sums.

    ||a|| ||b|| (17.9 L + 2.3) roundings for an FFT of 2^L points with correctly rounded roots of unity
    (Brent, Percival and Zimmermann 2007, Theorem 3.1), and twice that here: scipy's FFT merges steps of
    that algorithm.
    """
    levels = math.log2(_fft_size(a.size + b.size - 1))
    return (36.0 * levels + 8.0) * UNIT * norm(a) * norm(b)


def _fft_size(least: int) -> int:
    """A power of two, which the rounding bound requires."""
    return max(2, 1 << (least - 1).bit_length())


def _columnwise(apply: Callable[[FloatArray], FloatArray], x: FloatArray) -> FloatArray:
    if x.ndim == 1:
        return apply(x)
    return np.stack([apply(x[:, j]) for j in range(x.shape[1])], axis=1)


def best_separated_sum(weights: FloatArray, min_sep: int, count: int) -> float:
    """`best_separated_sums` of weights of shape (n,)."""
    return float(best_separated_sums(weights[None], min_sep, count)[0])


def best_separated_sums(weights: FloatArray, min_sep: int, count: int) -> FloatArray:
    """Largest sums of at most `count` weights of a row whose indices are pairwise at least `min_sep` apart.

    By dynamic programming: O(n) for a row if `count` is not binding, otherwise O(n count). Exact up to a
    relative rounding error of `count` times 2^-53, or `sum_rounding(n)` if that is more.

    Args:
        weights: non-negative, shape (rows, n).
        min_sep: b >= 1.
        count: k >= 0.

    Returns:
        Shape (rows,).
    """
    rows, n = weights.shape
    if count <= 0 or n == 0:
        return np.zeros(rows)
    if min_sep == 1:
        largest = weights if count >= n else np.partition(weights, n - count)[:, n - count :]
        return np.array([total(row) for row in largest])
    if count >= -(-n // min_sep):
        return _uncapped(weights, min_sep)
    best = np.maximum.accumulate(weights, axis=1)
    for _ in range(count - 1):
        candidate = weights.copy()
        candidate[:, min_sep:] += best[:, :-min_sep]
        best = np.maximum.accumulate(candidate, axis=1)
    return np.asarray(best[:, -1])


def _uncapped(weights: FloatArray, min_sep: int) -> FloatArray:
    """As above, without the count limit: best[i] = max(best[i-1], weights[i] + best[i-b])."""
    best = np.zeros((len(weights), 1))
    for start in range(0, weights.shape[1], min_sep):
        block = weights[:, start : start + min_sep]
        last = best[:, -1:]
        best = np.maximum(np.maximum.accumulate(block + best[:, : block.shape[1]], axis=1), last)
    return np.asarray(best[:, -1])


def windowed_sums(values: FloatArray, stride: int, count: int) -> FloatArray:
    """sum_{j < count} values[s + j stride] for every s, where entries past the end count as 0.

    From windows of 1, 2, 4, ... terms, without subtraction: each sum has error at most `sum_rounding(n)`
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
    width, start = 1, 0  # number of terms in `window`, and the term at which the remainder of `sums` begins
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
