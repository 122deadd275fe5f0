"""Float64 algebra of lower-triangular Toeplitz and banded matrices, without forming them.

A lower-triangular Toeplitz matrix is its first column; products of such matrices are products of power
series. Short recursions run in O(n p) (a linear filter, which keeps relative accuracy entry by entry);
long ones by FFT in O(n log n).
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import signal

from dpmech.exceptions import NumericalError

__all__ = [
    "checked_norms",
    "cumulative_sum",
    "series_inverse",
    "series_product",
    "toeplitz_matmul",
    "toeplitz_solve",
]

FloatArray: TypeAlias = npt.NDArray[np.float64]

# Below this many multiplications the direct recursion wins over an FFT, and is the more accurate one.
_DIRECT_WORK = 400_000_000
_SHORT_FILTER = 64
# Of the float64 recursion, relative; extended precision then is off by 2^-11 of it or less.
_MOST_LOST = 1e-10
# Column norms whose squares, and sums of a million of them, stay in the normal range of float64.
_SMALLEST_NORM, _LARGEST_NORM = 1e-140, 1e140


def cumulative_sum(x: FloatArray, axis: int = 0) -> FloatArray:
    """Running sums in extended precision where the platform has it, rounded to float64 once."""
    return np.cumsum(x, axis=axis, dtype=np.longdouble).astype(np.float64)


def trimmed(coefs: FloatArray) -> FloatArray:
    """The coefficients without trailing zeros (at least one is kept)."""
    nonzero = np.flatnonzero(coefs)
    return coefs[: (int(nonzero[-1]) + 1 if nonzero.size else 1)]


def series_product(a: FloatArray, b: FloatArray, n: int) -> FloatArray:
    """First n coefficients of the product of two power series, shapes (p,) and (q,) -> (n,)."""
    product = _convolve(trimmed(a[:n]), trimmed(b[:n]))[:n]
    return np.pad(product, (0, n - product.size))


def series_inverse(coefs: FloatArray, n: int) -> FloatArray:
    """First n coefficients of 1 / (c_0 + c_1 x + ...), shape (p,) -> (n,).

    The recursion loses digits where poles nearly coincide. It runs in extended precision where the platform
    has it, and its distance from the one in float64 says how many: what is left of it in extended precision
    is smaller by the ratio of the precisions, or it is refused.

    Raises:
        NumericalError: if the coefficients overflow, or lose too many digits.
    """
    short = trimmed(coefs[:n])
    if n * short.size <= _DIRECT_WORK:
        impulse = np.zeros(n)
        impulse[0] = 1.0
        inverse = _filter(np.ones(1), short, impulse)
        if short.size > 1:
            with np.errstate(over="ignore", invalid="ignore"):
                wide = np.asarray(
                    signal.lfilter(np.ones(1, np.longdouble), short.astype(np.longdouble), impulse)
                )
                checked_finite(wide.astype(np.float64), "the inverse of the strategy")
                largest = np.abs(wide).max()
                lost = np.linalg.norm(((wide - inverse) / largest).astype(np.float64))
                lost /= np.linalg.norm((wide / largest).astype(np.float64))
            if lost > _MOST_LOST:
                raise NumericalError(
                    f"the inverse of the strategy over {n} steps loses its digits to cancellation (float64 "
                    f"is {lost:.1e} off): its poles are too close together"
                )
            inverse = wide.astype(np.float64)
    else:
        inverse = _newton_inverse(short, n)
    return checked_finite(inverse, "the inverse of the strategy")


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
    return trimmed(coefs).size * n <= _DIRECT_WORK // 8


def checked_finite(x: FloatArray, what: str) -> FloatArray:
    """Return x, or raise NumericalError if an entry overflowed."""
    if not np.all(np.isfinite(x)):
        raise NumericalError(f"{what} overflows float64: the strategy is too ill-conditioned for its n")
    return x


def checked_norms(norms: FloatArray) -> FloatArray:
    """Return column norms, or raise NumericalError where their squares leave float64."""
    low, high = float(np.min(norms)), float(np.max(norms))
    if not (low >= _SMALLEST_NORM and high <= _LARGEST_NORM):
        raise NumericalError(
            f"column norms of the strategy run from {low:.3g} to {high:.3g}: outside of [{_SMALLEST_NORM:g}, "
            f"{_LARGEST_NORM:g}] squares leave float64; scale the strategy"
        )
    return norms


def _filter(numerator: FloatArray, denominator: FloatArray, x: FloatArray) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(signal.lfilter(numerator, denominator, x, axis=0), dtype=np.float64)


def _convolve(a: FloatArray, b: FloatArray) -> FloatArray:
    if min(a.size, b.size) <= _SHORT_FILTER:
        return np.convolve(a, b)
    return np.asarray(signal.fftconvolve(a, b), dtype=np.float64)


def _columnwise(apply: Callable[[FloatArray], FloatArray], x: FloatArray) -> FloatArray:
    if x.ndim == 1:
        return apply(x)
    return np.stack([apply(x[:, j]) for j in range(x.shape[1])], axis=1)


def _newton_inverse(coefs: FloatArray, n: int) -> FloatArray:
    """Newton's doubling g <- g (2 - f g), exact modulo x^(2 m) once it is exact modulo x^m."""
    inverse = np.array([1.0 / coefs[0]])
    length = 1
    while length < n:
        length = min(2 * length, n)
        residual = -series_product(coefs, inverse, length)
        residual[0] += 2.0
        inverse = series_product(inverse, residual, length)
    return inverse
