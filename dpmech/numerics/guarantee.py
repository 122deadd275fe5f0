"""Guarantee: how sure a number is, apart from the number; what decides by it reads no words."""

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.numerics.printed import typed, up
from dpmech.numerics.rounding import rounded_down, sum_up

__all__ = ["BOUND", "EXACT", "Guarantee", "Kind", "error_of_level", "joined"]


class Kind(enum.IntEnum):
    """What stands behind a number; ordered, the surest first.

    `EXACT`: a theorem gives the value itself, and the interval holds rounding alone. `BOUND`: a theorem
    bounds it. `PROBABLE`: a proved bound that fails with a stated probability, over dpmech's own random
    numbers. `ESTIMATE`: the end of a confidence interval that is not proved for the sample at hand.

    Example:
        >>> import dpmech as dm
        >>> [kind.value for kind in sorted(dm.Kind)]
        [0, 1, 2, 3]
    """

    EXACT = 0
    BOUND = 1
    PROBABLE = 2
    ESTIMATE = 3


_WORDS = {
    Kind.EXACT: "exact",
    Kind.BOUND: "deterministic upper bound",
    Kind.PROBABLE: "with probability 1 - beta",
    Kind.ESTIMATE: "estimate",
}


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """How sure a number is.

    The probability of failure is kept, not one minus it: 1 - 1e-17 is 1 in float64.

    An error *outside* delta says how often the number is wrong. One *inside* delta is counted already: the
    numbers that dpmech drew are a part of the mechanism "draw, calibrate, train", the noise scale was
    certified for delta less the error, and the claim about the whole holds without any "with probability"
    (docs/guarantees.md has the theorem and what it asks for).

    `one & other` is what holds where both must hold: the less sure kind, and the errors outside delta added
    up. An error inside delta is not added again: beside others it vanishes, and among its like the largest is
    kept, as what any of those claims spends of its own delta. What several such claims spend together, and
    how often one draw counts, is for the composition to say (`Ledger`).

    Args:
        kind: what stands behind the number.
        error: the probability that it fails, over dpmech's own random numbers: in (0, 1] for PROBABLE and
            ESTIMATE (of an estimate the nominal one), 0 for the others.
        inside_delta: whether the delta of the claim holds this error already; of PROBABLE only.

    Raises:
        InvalidParameterError: if `error` or `inside_delta` does not go with `kind`.

    Examples:
        >>> from dpmech import Guarantee, Kind
        >>> print(Guarantee(Kind.EXACT) & Guarantee(Kind.PROBABLE, 1e-9))
        with probability 1 - beta
        >>> print(Guarantee(Kind.PROBABLE, 1e-9, inside_delta=True))
        with probability 1 - beta, beta 1e-09, inside delta
    """

    kind: Kind
    error: float = 0.0
    inside_delta: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.kind, Kind):
            raise InvalidParameterError("kind", self.kind, f"one of {', '.join(Kind.__members__)}")
        error = check_real("error", self.error, minimum=0.0, maximum=1.0)
        object.__setattr__(self, "error", error)
        if (self.kind >= Kind.PROBABLE) != (error > 0.0):
            raise InvalidParameterError(
                "error", error, "in (0, 1] for PROBABLE and ESTIMATE, and 0 for EXACT and BOUND"
            )
        if not isinstance(self.inside_delta, bool) or (self.inside_delta and self.kind is not Kind.PROBABLE):
            raise InvalidParameterError(
                "inside_delta", self.inside_delta, "False, or True where the kind is PROBABLE"
            )

    @property
    def rigorous(self) -> bool:
        """Whether it is proved, be it with a probability of failure."""
        return self.kind is not Kind.ESTIMATE

    @property
    def outside_error(self) -> float:
        """The probability that the claim fails: the error, or 0 where it is inside delta."""
        return 0.0 if self.inside_delta else self.error

    def mechanism_delta(self, delta: float) -> float:
        """The delta that is left to the mechanism itself: less the error where that is inside, rounded down.

        Args:
            delta: of the claim.

        Raises:
            InvalidParameterError: if nothing is left.
        """
        if not self.inside_delta:
            return delta
        left = rounded_down(Fraction(delta) - Fraction(self.error))
        if left <= 0.0:
            raise InvalidParameterError(
                "beta",
                self.error,
                f"below delta={delta!r}, which it is a part of (a supplied rng leaves it outside)",
            )
        return left

    def __and__(self, other: "Guarantee") -> "Guarantee":
        return joined((self, other))

    def __str__(self) -> str:
        words = _WORDS[self.kind]
        if not self.inside_delta:
            return words
        # What somebody typed is told as it was typed; of the rest six digits, rounded up, suffice.
        beta = min(typed(self.error), up(self.error), key=len)
        return f"{words}, beta {beta}, inside delta"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the name of the kind, the error, and where it is inside delta, that."""
        data: dict[str, Any] = {"kind": self.kind.name, "error": self.error}
        return data | {"inside_delta": True} if self.inside_delta else data

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Guarantee":
        """Rebuild from `to_dict`.

        Raises:
            InvalidParameterError: if it is not made of such data.
        """
        if set(data) - {"inside_delta"} != {"kind", "error"} or data["kind"] not in Kind.__members__:
            raise InvalidParameterError(
                "guarantee", dict(data), f"a kind among {', '.join(Kind.__members__)}, and an error"
            )
        return Guarantee(Kind[data["kind"]], data["error"], data.get("inside_delta", False))


EXACT = Guarantee(Kind.EXACT)
BOUND = Guarantee(Kind.BOUND)


def joined(guarantees: Iterable[Guarantee]) -> Guarantee:
    """What holds where all of them must: the least sure kind, and the sum of the errors, rounded up.

    Errors inside delta are not added again; see `Guarantee`.
    """
    given = list(guarantees)
    kind = max((one.kind for one in given), default=Kind.EXACT)
    errors = [one.error for one in given if one.outside_error > 0.0]
    if not errors and kind is Kind.PROBABLE:
        return Guarantee(kind, max(one.error for one in given), inside_delta=True)
    total = errors[0] if len(errors) == 1 else min(1.0, sum_up(errors))
    return Guarantee(kind, total)


def error_of_level(level: float) -> float:
    """1 - level for a confidence level in [0, 1], never below it: exact from 1/2 on, else rounded up."""
    return 1.0 - level if level >= 0.5 else min(1.0, math.nextafter(1.0 - level, math.inf))
