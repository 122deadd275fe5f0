"""Error types, and the argument guards that raise them.

Every error carries the objects it speaks of, and its message names the argument, the value given and
what would be accepted. Guards run once, at public entry points.
"""

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "CertificateError",
    "DpmechError",
    "HorizonError",
    "InvalidParameterError",
    "MissingDependencyError",
    "NumericalError",
    "UnattainableBudgetError",
    "UnsupportedCombinationError",
    "WorkLimitError",
]


class DpmechError(Exception):
    """Base class of every error that dpmech raises on purpose."""


class InvalidParameterError(DpmechError, ValueError):
    """An argument is outside its range, or of the wrong type.

    Attributes:
        name: the argument.
        value: what was given.
        accepted: what would be accepted, in words.
    """

    def __init__(self, name: str, value: object, accepted: str) -> None:
        self.name = name
        self.value = value
        self.accepted = accepted
        shown = repr(value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{name} must be {accepted}, got {shown}")


class UnsupportedCombinationError(DpmechError, NotImplementedError):
    """No theorem covers this strategy, participation, adjacency and method together.

    Attributes:
        reason: which hypothesis fails.
        supported: what is covered instead.
    """

    def __init__(self, reason: str, *, supported: str) -> None:
        self.reason = reason
        self.supported = supported
        super().__init__(f"{reason}; supported: {supported}")


class UnattainableBudgetError(DpmechError, ValueError):
    """No finite sigma reaches the budget.

    Attributes:
        eps: the eps asked for.
        delta: the delta asked for.
        reason: why not.
    """

    def __init__(self, eps: float, delta: float, reason: str) -> None:
        self.eps = eps
        self.delta = delta
        self.reason = reason
        super().__init__(f"no sigma found for eps={eps!r}, delta={delta!r}: {reason}")


class NumericalError(DpmechError, ArithmeticError):
    """A tolerance was missed, a NaN appeared or monotonicity was lost: there is no number to return."""


class CertificateError(DpmechError, ValueError):
    """A certificate could not be read or did not hold.

    Attributes:
        claimed: what the certificate says.
        recomputed: what a second route finds.
    """

    def __init__(self, message: str, *, claimed: object = None, recomputed: object = None) -> None:
        self.claimed = claimed
        self.recomputed = recomputed
        super().__init__(message)


class WorkLimitError(DpmechError, RuntimeError):
    """A check would cost more than it may; nothing was found out about the claim.

    Attributes:
        what: the work, in words.
        estimate: (seconds of one core, bytes of memory) that it takes, on the high side.
        allowed: the same of the budget.
    """

    def __init__(self, what: str, estimate: tuple[float, float], allowed: tuple[float, float]) -> None:
        self.what = what
        self.estimate = estimate
        self.allowed = allowed
        named = []
        if not estimate[0] <= allowed[0]:
            named.append("max_seconds (--max-seconds)")
        if not estimate[1] <= allowed[1]:
            named.append("max_memory (--max-memory)")
        super().__init__(
            f"{what} takes the work to about {estimate[0]:.3g} s and {estimate[1] / 1e9:.3g} GB, above the "
            f"allowed {allowed[0]:g} s and {allowed[1] / 1e9:g} GB; raise {' and '.join(named)} to go on"
        )


class HorizonError(DpmechError, RuntimeError):
    """A step past the last one was asked for.

    Attributes:
        step: the step asked for, counted from 0.
        n: the number of steps that were calibrated.
    """

    def __init__(self, step: int, n: int) -> None:
        self.step = step
        self.n = n
        super().__init__(f"step must be in [0, {n - 1}], got {step}: the noise is calibrated for n={n} steps")


class MissingDependencyError(DpmechError, ImportError):
    """An optional dependency is not installed.

    Attributes:
        package: what is missing.
        extra: the dpmech extra that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(
            f"{package} is needed here: pip install {package}, or the extra {extra!r}, from a checkout: "
            f"pip install '.[{extra}]'"
        )


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
    """Return a Generator, or None for None; anything but a Generator or an integer seed >= 0 is refused."""
    if value is None or isinstance(value, np.random.Generator):
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InvalidParameterError("rng", value, "None, a numpy.random.Generator or an integer >= 0")
    return np.random.default_rng(int(value))


def check_vector(name: str, value: Any, *, maximum_length: int | None = None) -> npt.NDArray[np.float64]:  # noqa: ANN401 - any sequence of numbers is accepted
    """Return a read-only float64 copy of a non-empty sequence of finite numbers."""
    limit = "" if maximum_length is None else f" of at most {maximum_length}"
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
