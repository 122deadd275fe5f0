"""Bounds: the only way in which a number enters a guarantee."""

import dataclasses
import math
import sys
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.numerics.guarantee import BOUND, EXACT, Guarantee, Kind
from dpmech.numerics.printed import between
from dpmech.numerics.provenance import Provenance
from dpmech.numerics.rounding import outward, product_down, product_up

__all__ = ["Bounds"]

# Ends of a bracket that agree to this, relative, give the value itself.
EXACT_RTOL = 1e-9
# What rounding may make of such a value further on.
_EXACT_GAP = 1e-6


@dataclasses.dataclass(frozen=True)
class Bounds:
    """An interval that holds a true value, how sure that is, and how it was found.

    Only `upper` may flow into a noise scale. Every operation rounds outward.

    Args:
        lower: not above the true value.
        upper: not below the true value; may be infinite.
        guarantee: how sure that is.
        by: the theorem or the accountant, as data.

    Raises:
        InvalidParameterError: if an end is NaN, lower > upper, or an exact value is not known to 1e-6.

    Examples:
        >>> import dpmech as dm
        >>> bounds = dm.sensitivity(dm.Identity(9), dm.SingleParticipation())
        >>> bounds.lower, bounds.upper, str(bounds.guarantee), str(bounds.by)
        (1.0, 1.0, 'exact', 'largest column norm')
        >>> print(dm.epsilon(dm.Identity(9), 2.0, 1e-5, participation=dm.Poisson(0.1)))
        [0.764918, 0.764995], deterministic upper bound
    """

    lower: float
    upper: float
    guarantee: Guarantee
    by: Provenance

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", float(self.lower))
        object.__setattr__(self, "upper", float(self.upper))
        if math.isnan(self.lower) or math.isnan(self.upper) or self.lower > self.upper:
            raise InvalidParameterError(
                "(lower, upper)", (self.lower, self.upper), "two numbers, lower <= upper, neither NaN"
            )
        if not isinstance(self.guarantee, Guarantee):
            raise InvalidParameterError("guarantee", self.guarantee, "a Guarantee")
        if not isinstance(self.by, Provenance):
            raise InvalidParameterError("by", self.by, "a Provenance")
        if self.exact and not _agree(self.lower, self.upper, _EXACT_GAP):
            raise InvalidParameterError(
                "(lower, upper)",
                (self.lower, self.upper),
                "two numbers that agree to 1e-6, for an exact value",
            )

    def __str__(self) -> str:
        return f"{between(self.lower, self.upper)}, {self.guarantee}"

    @classmethod
    def bracket(cls, lower: float, upper: float, by: Provenance) -> "Bounds":
        """Two proved ends: exact where they agree to 1e-9, relative, else a bound."""
        return cls(lower, upper, EXACT if _agree(lower, upper, EXACT_RTOL) else BOUND, by)

    @classmethod
    def derived(cls, lower: float, upper: float, guarantee: Guarantee, by: Provenance) -> "Bounds":
        """Ends found from numbers with that guarantee: no longer exact where they are 1e-6 or more apart."""
        known = _agree(lower, upper, _EXACT_GAP)
        return cls(lower, upper, guarantee if known else guarantee & BOUND, by)

    @classmethod
    def rounded(cls, value: float, relative: float, by: Provenance) -> "Bounds":
        """The value >= 0 of a formula with the bound on its relative rounding error that the formula has."""
        return cls.bracket(*outward(value, value, relative), by)

    @property
    def exact(self) -> bool:
        """Whether a theorem gives the value itself."""
        return self.guarantee.kind is Kind.EXACT

    @property
    def midpoint(self) -> float:
        """The middle of the interval: for display, never for a guarantee."""
        return 0.5 * (self.lower + self.upper)

    @property
    def relative_gap(self) -> float:
        """(upper - lower) / upper; 0 where upper is 0."""
        return 0.0 if self.upper == 0.0 else (self.upper - self.lower) / self.upper

    def scaled(self, factor: float) -> "Bounds":
        """Both ends, which are >= 0, times a positive factor, rounded outward."""
        return dataclasses.replace(
            self, lower=product_down(self.lower, factor), upper=product_up(self.upper, factor)
        )

    def times_root(self, count: int) -> "Bounds":
        """Both ends, which are >= 0, times the square root of an integer >= 1, rounded outward."""
        return dataclasses.replace(
            self,
            lower=_root_product(self.lower, count, 0.0),
            upper=_root_product(self.upper, count, math.inf),
        )

    def widened(self, relative: float) -> "Bounds":
        """Ends >= 0 moved apart by a relative error; an exact value stays one while they agree to 1e-9."""
        lower, upper = outward(self.lower, self.upper, relative)
        if self.exact:
            return Bounds.bracket(lower, upper, self.by)
        return dataclasses.replace(self, lower=lower, upper=upper)

    def meet(self, other: "Bounds", by: Provenance | None = None) -> "Bounds":
        """What holds where both do: the intersection, from the one with the lower upper end.

        Args:
            other: bounds on the same value.
            by: how it was found; None takes that of the lower upper end.

        Raises:
            NumericalError: if they have no number in common, rounding allowed for.
        """
        if max(self.lower, other.lower) * (1.0 - EXACT_RTOL) > min(self.upper, other.upper):
            raise NumericalError(f"{self!r} and {other!r} contradict each other")
        best = min(self, other, key=lambda one: one.upper)
        lower = min(max(self.lower, other.lower), best.upper)
        how = best.by if by is None else by
        guarantee = self.guarantee & other.guarantee
        if guarantee.kind <= Kind.BOUND:
            return Bounds.bracket(lower, best.upper, how)
        return Bounds(lower, best.upper, guarantee, how)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "lower": self.lower,
            "upper": self.upper,
            "guarantee": self.guarantee.to_dict(),
            "by": self.by.to_dict(),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Bounds":
        """Rebuild from `to_dict`.

        Raises:
            InvalidParameterError: if it is not made of such data.
        """
        if set(data) != {"lower", "upper", "guarantee", "by"}:
            raise InvalidParameterError("bounds", dict(data), "lower, upper, guarantee and by")
        return Bounds(
            data["lower"],
            data["upper"],
            Guarantee.from_dict(data["guarantee"]),
            Provenance.from_dict(data["by"]),
        )


def _agree(lower: float, upper: float, relative: float) -> bool:
    return not math.isinf(upper) and upper - lower <= relative * abs(upper)


def _root_product(value: float, count: int, towards: float) -> float:
    """The value >= 0 times the square root of an integer >= 1: the nearest float on that side of it."""
    found = value * math.sqrt(count)
    if math.isinf(value) or found == towards:
        return found
    exact = Fraction(value) ** 2 * count
    if math.isinf(found):
        return sys.float_info.max if towards == 0.0 else found
    while (Fraction(found) ** 2 > exact) if towards == 0.0 else (Fraction(found) ** 2 < exact):
        found = math.nextafter(found, towards)
    return found
