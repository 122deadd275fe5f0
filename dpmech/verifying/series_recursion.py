"""The inverse of a power series once more, for `verify`: forward substitution in pairs of floats.

It shares no code with the library's own inverse. Every coefficient is found from those before it,
g_t = -(f_1 g_(t-1) + f_2 g_(t-2) + ...) / f_0, and kept as an unevaluated sum of two floats, of 106 bits:
products are split into halves of 26 bits (Dekker 1971), sums keep what they round off. Zeros of f are left
out. This module imports numba; import it late.
"""

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

__all__ = ["recursive_inverse"]

_HALVES = 134217729.0  # 2^27 + 1


def recursive_inverse(f: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.float64]:
    """First n coefficients of 1 / f, each rounded once from 106 bits.

    Args:
        f: shape (p,), f_0 not 0.
        n: >= 1.

    Returns:
        Shape (n,). The recursion may lose up to all 106 bits where the poles are close together; nothing is
        bounded here.
    """
    lags = np.flatnonzero(f[:n])[1:]
    upper, lower = np.zeros(n), np.zeros(n)
    _recursion(float(f[0]), np.ascontiguousarray(f[lags]), lags, upper, lower)
    return upper + lower


@njit(nogil=True, cache=True)
def _product(x: float, y: float) -> tuple[float, float]:
    """The product and what it rounds off."""
    p = x * y
    scaled = _HALVES * x
    x_high = scaled - (scaled - x)
    x_low = x - x_high
    scaled = _HALVES * y
    y_high = scaled - (scaled - y)
    y_low = y - y_high
    return p, ((x_high * y_high - p) + x_high * y_low + x_low * y_high) + x_low * y_low


@njit(nogil=True, cache=True)
def _sum(x: float, y: float) -> tuple[float, float]:
    """The sum and what it rounds off."""
    s = x + y
    z = s - x
    return s, (x - (s - z)) + (y - z)


@njit(nogil=True, cache=True)
def _recursion(
    first: float,
    factors: npt.NDArray[np.float64],
    lags: npt.NDArray[np.int64],
    upper: npt.NDArray[np.float64],
    lower: npt.NDArray[np.float64],
) -> None:
    for t in range(upper.size):
        high, low = (1.0 if t == 0 else 0.0), 0.0
        for j in range(lags.size):
            past = t - lags[j]
            if past < 0:
                break
            p, missed = _product(-factors[j], upper[past])
            high, rest = _sum(high, p)
            low += rest + (missed - factors[j] * lower[past])
        # Long division: the quotient, and that of what it leaves.
        quotient = (high + low) / first
        p, missed = _product(quotient, first)
        correction = ((high - p) - missed + low) / first
        upper[t], lower[t] = _sum(quotient, correction)
