"""Bounds: the only way in which a number enters a guarantee."""

import dataclasses
import math

from dpmech.exceptions import InvalidParameterError

__all__ = ["Bounds"]

EXACT_RTOL = 1e-9


@dataclasses.dataclass(frozen=True)
class Bounds:
    """An interval that holds a true value, and how it was found.

    Only `upper` may flow into a noise scale. Where `confidence` is None the interval is a theorem
    (rounding included); otherwise it is a confidence interval of that level.

    Args:
        lower: not above the true value.
        upper: not below the true value; may be infinite.
        method: the theorem or the accountant, in words.
        confidence: None, or the level of the interval, in (0, 1).

    Raises:
        InvalidParameterError: if an end is NaN, or lower > upper.

    Examples:
        >>> from dpmech.bounds import Bounds
        >>> Bounds(1.0, 1.0, "closed form").exact
        True
    """

    lower: float
    upper: float
    method: str
    confidence: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", float(self.lower))
        object.__setattr__(self, "upper", float(self.upper))
        if math.isnan(self.lower) or math.isnan(self.upper) or self.lower > self.upper:
            raise InvalidParameterError(
                "(lower, upper)", (self.lower, self.upper), "two numbers, lower <= upper, neither NaN"
            )

    @property
    def exact(self) -> bool:
        """Whether the ends agree to 1e-9 relative, and no confidence level is attached."""
        if self.confidence is not None or math.isinf(self.upper):
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
