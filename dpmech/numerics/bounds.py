"""Bounds: the only way in which a number enters a guarantee."""

import dataclasses
import math
from collections.abc import Iterable

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real

__all__ = ["Bounds", "error_of_level", "union_error"]

EXACT_RTOL = 1e-9


@dataclasses.dataclass(frozen=True)
class Bounds:
    """An interval that holds a true value, and how it was found.

    Only `upper` may flow into a noise scale. Where `error` is 0 the interval is a theorem (rounding
    included); otherwise it fails with at most that probability. The probability itself is kept, not one
    minus it: 1 - 1e-17 is 1 in float64.

    Args:
        lower: not above the true value.
        upper: not below the true value; may be infinite.
        method: the theorem or the accountant, in words.
        error: the probability that the interval fails, in [0, 1]; 0 for a theorem.

    Raises:
        InvalidParameterError: if an end is NaN, lower > upper, or `error` is no probability.

    Examples:
        >>> from dpmech.numerics.bounds import Bounds
        >>> Bounds(1.0, 1.0, "closed form").exact
        True
    """

    lower: float
    upper: float
    method: str
    error: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", float(self.lower))
        object.__setattr__(self, "upper", float(self.upper))
        if math.isnan(self.lower) or math.isnan(self.upper) or self.lower > self.upper:
            raise InvalidParameterError(
                "(lower, upper)", (self.lower, self.upper), "two numbers, lower <= upper, neither NaN"
            )
        object.__setattr__(self, "error", check_real("error", self.error, minimum=0.0, maximum=1.0))

    @property
    def confidence(self) -> float | None:
        """The level of the interval, 1 - `error` as float64 rounds it (for display); None for a theorem."""
        return None if self.error == 0.0 else 1.0 - self.error

    @property
    def exact(self) -> bool:
        """Whether the ends agree to 1e-9 relative, and nothing is left to chance."""
        if self.error > 0.0 or math.isinf(self.upper):
            return False
        return self.upper - self.lower <= EXACT_RTOL * abs(self.upper)

    @property
    def midpoint(self) -> float:
        """The middle of the interval: for display, never for a guarantee."""
        return 0.5 * (self.lower + self.upper)

    @property
    def relative_gap(self) -> float:
        """(upper - lower) / upper; 0 where upper is 0."""
        return 0.0 if self.upper == 0.0 else (self.upper - self.lower) / self.upper

    def scaled(self, factor: float) -> "Bounds":
        """Both ends times a positive factor."""
        return dataclasses.replace(self, lower=self.lower * factor, upper=self.upper * factor)


def error_of_level(level: float) -> float:
    """1 - level for a confidence level in [0, 1], never below it: exact from 1/2 on, else rounded up."""
    return 1.0 - level if level >= 0.5 else min(1.0, math.nextafter(1.0 - level, math.inf))


def union_error(errors: Iterable[float]) -> float:
    """The probability that any of several statements fails, at most: the sum, rounded up, at most 1."""
    given = [error for error in errors if error > 0.0]
    if len(given) < 2:
        return given[0] if given else 0.0
    return min(1.0, math.nextafter(math.fsum(given), math.inf))
