"""Argument checks for public entry points; their errors name the argument."""

import math
import numbers
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmech.exceptions import InvalidParameterError

# Limit on the steps of a strategy, which stores one number per step.
MOST_STEPS = 10**9


def check_integer(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as an int in [minimum, maximum]; bools, floats and strings are refused."""
    accepted = f"an integer >= {minimum}" if maximum is None else f"an integer in [{minimum}, {maximum}]"
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise InvalidParameterError(name, value, accepted)
    number = int(value)
    if number < minimum or (maximum is not None and number > maximum):
        raise InvalidParameterError(name, value, accepted)
    return number


def check_real(
    name: str,
    value: object,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    open_minimum: bool = False,
    open_maximum: bool = False,
) -> float:
    """Return `value` as a finite float in the interval; bools, NaN, infinities and strings are refused."""
    left = "(" if open_minimum or math.isinf(minimum) else "["
    right = ")" if open_maximum or math.isinf(maximum) else "]"
    accepted = f"a finite number in {left}{minimum:g}, {maximum:g}{right}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise InvalidParameterError(name, value, accepted)
    try:
        number = float(value)
    except OverflowError:
        raise InvalidParameterError(name, value, accepted) from None
    too_low = number <= minimum if open_minimum else number < minimum
    too_high = number >= maximum if open_maximum else number > maximum
    if not math.isfinite(number) or too_low or too_high:
        raise InvalidParameterError(name, value, accepted)
    return number


def check_rng(value: object) -> np.random.Generator | None:
    """Return a Generator, or None for None; anything else but an integer seed >= 0 is refused."""
    if value is None or isinstance(value, np.random.Generator):
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InvalidParameterError("rng", value, "None, a numpy.random.Generator or an integer >= 0")
    return np.random.default_rng(int(value))


def check_vector(name: str, value: Any, *, maximum_length: int | None = None) -> npt.NDArray[np.float64]:  # noqa: ANN401 - any sequence of numbers is accepted
    """Return a read-only float64 copy of a non-empty sequence of finite numbers."""
    limit = " of" if maximum_length is None else f" of at most {maximum_length}"
    accepted = f"a non-empty one-dimensional sequence{limit} finite numbers"
    array = _check_numbers(name, value, accepted)
    if array.ndim != 1 or array.size == 0 or (maximum_length is not None and array.size > maximum_length):
        raise InvalidParameterError(name, value, accepted)
    return array


def check_matrix(name: str, value: Any) -> npt.NDArray[np.float64]:  # noqa: ANN401 - any nested sequence is accepted
    """Return a read-only float64 copy of a non-empty square matrix of finite numbers."""
    accepted = "a non-empty square matrix of finite numbers"
    array = _check_numbers(name, value, accepted)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise InvalidParameterError(name, value, accepted)
    return array


def _check_numbers(name: str, value: Any, accepted: str) -> npt.NDArray[np.float64]:  # noqa: ANN401 - the guard is what gives it a type
    if isinstance(value, str | bytes) or not (isinstance(value, Sequence) or hasattr(value, "__array__")):
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
    array.setflags(write=False)
    return array


def check_eps(value: object, *, zero_allowed: bool = False) -> float:
    """Return a valid eps as a float."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if number and not zero_allowed and value == 0.0:
        hint = "; delta at eps 0 is an attack's advantage: use calibrate_sigma_to and AdvantageTarget(delta)"
        raise InvalidParameterError("eps", value, "a finite number in (0, inf)", hint)
    return check_real("eps", value, minimum=0.0, open_minimum=not zero_allowed)


def check_delta(value: object) -> float:
    """Return a valid delta as a float."""
    return check_real("delta", value, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)


def check_confidence(value: object) -> float:
    """Return a valid confidence level as a float."""
    return check_real("confidence", value, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)


def check_sigma(value: object) -> float:
    """Return a valid sigma as a float."""
    return check_real("sigma", value, minimum=0.0, open_minimum=True)


def check_name(argument: str, value: object) -> str:
    """Return a non-empty string, or raise InvalidParameterError."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidParameterError(argument, value, "a non-empty string")
    return value


def check_identifier(argument: str, value: object) -> str:
    """As `check_name`, for a name that alone tells one thing from another: no other may look the same."""
    name = check_name(argument, value)
    if not name.isprintable() or name != name.strip() or not unicodedata.is_normalized("NFC", name):
        accepted = "printable text without spaces around it, in the Unicode normal form NFC"
        raise InvalidParameterError(argument, value, accepted)
    return name


def positive_numbers(name: str, values: object) -> tuple[float, ...]:
    """Return a non-empty tuple of finite floats > 0, or raise InvalidParameterError."""
    numbers = check_vector(name, values).tolist()
    return tuple(check_real(name, value, minimum=0.0, open_minimum=True) for value in numbers)
