"""Argument guards for spectra and matrices of the analysis functions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.numerics import FloatArray


def check_numbers(
    name: str,
    value: npt.ArrayLike,
    *,
    minimum: float = 0.0,
    maximum: float = np.inf,
    open_minimum: bool = False,
) -> FloatArray:
    """Return a float64 copy of a number, or of an array of any shape, of finite numbers in the interval.

    Raises:
        InvalidParameterError: if a number is missing, not finite, or outside the interval.
    """
    left = "(" if open_minimum or np.isinf(minimum) else "["
    right = ")" if np.isinf(maximum) else "]"
    accepted = f"a number, or a non-empty array of numbers, in {left}{minimum:g}, {maximum:g}{right}"
    array = _numbers(name, value, accepted)
    inside = (array > minimum if open_minimum else array >= minimum) & (array <= maximum)
    if array.size == 0 or not np.all(inside):
        raise InvalidParameterError(name, value, accepted)
    return array


def check_matrices(name: str, value: npt.ArrayLike, *, stacked: bool = False) -> FloatArray:
    """Return a float64 copy of a real matrix, shape (m, n), or with `stacked` of shape (..., m, n).

    Raises:
        InvalidParameterError: if it has another shape, is empty, or contains a number that is not finite.
    """
    accepted = "a non-empty real matrix of finite numbers" + (", or a stack of them" if stacked else "")
    array = _numbers(name, value, accepted)
    if array.ndim < 2 or (array.ndim > 2 and not stacked) or array.size == 0:
        raise InvalidParameterError(name, value, accepted)
    return array


def check_result(result: FloatArray | np.floating[Any], what: str) -> FloatArray:
    """The result as float64, a scalar if the arguments were scalars.

    Raises:
        NumericalError: if it overflowed or is not a number.
    """
    array = np.asarray(result, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise NumericalError(f"{what} left the range of float64")
    scalar_or_array: FloatArray = array[()]
    return scalar_or_array


def _numbers(name: str, value: npt.ArrayLike, accepted: str) -> FloatArray:
    numeric = isinstance(value, int | float | np.number | Sequence) or hasattr(value, "__array__")
    if isinstance(value, str | bytes | bool) or not numeric:
        raise InvalidParameterError(name, value, accepted)
    try:
        raw = np.asarray(value)
    except (TypeError, ValueError):
        raise InvalidParameterError(name, value, accepted) from None
    if raw.dtype.kind not in "iuf":
        raise InvalidParameterError(name, value, accepted)
    array = np.array(raw, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise InvalidParameterError(name, value, accepted)
    return array
