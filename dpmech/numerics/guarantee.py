"""Guarantee: how sure a number is, apart from the number; what decides by it reads no words."""

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping
from typing import Any

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.numerics.rounding import sum_up

__all__ = ["BOUND", "EXACT", "Guarantee", "Kind", "error_of_level", "joined"]


class Kind(enum.IntEnum):
    """What stands behind a number; ordered, the surest first.

    `EXACT`: a theorem gives the value itself, and the interval holds rounding alone. `BOUND`: a theorem
    bounds it. `PROBABLE`: a proved bound that fails with a stated probability, over dpmech's own random
    numbers. `ESTIMATE`: the end of a confidence interval that is not proved for the sample at hand.
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

    The probability of failure is kept, not one minus it: 1 - 1e-17 is 1 in float64. `one & other` is what
    holds where both must hold: the less sure kind, and the errors added up.

    Args:
        kind: what stands behind the number.
        error: the probability that it fails, over dpmech's own random numbers: in (0, 1] for PROBABLE and
            ESTIMATE (of an estimate the nominal one), 0 for the others.

    Raises:
        InvalidParameterError: if `error` does not go with `kind`.

    Examples:
        >>> from dpmech import Guarantee, Kind
        >>> print(Guarantee(Kind.EXACT) & Guarantee(Kind.PROBABLE, 1e-9))
        with probability 1 - beta
    """

    kind: Kind
    error: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, Kind):
            raise InvalidParameterError("kind", self.kind, f"one of {', '.join(Kind.__members__)}")
        error = check_real("error", self.error, minimum=0.0, maximum=1.0)
        object.__setattr__(self, "error", error)
        if (self.kind >= Kind.PROBABLE) != (error > 0.0):
            raise InvalidParameterError(
                "error", error, "in (0, 1] for PROBABLE and ESTIMATE, and 0 for EXACT and BOUND"
            )

    @property
    def rigorous(self) -> bool:
        """Whether it is proved, be it with a probability of failure."""
        return self.kind is not Kind.ESTIMATE

    def __and__(self, other: "Guarantee") -> "Guarantee":
        return joined((self, other))

    def __str__(self) -> str:
        return _WORDS[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the name of the kind, and the error."""
        return {"kind": self.kind.name, "error": self.error}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Guarantee":
        """Rebuild from `to_dict`.

        Raises:
            InvalidParameterError: if it is not made of such data.
        """
        if set(data) != {"kind", "error"} or data["kind"] not in Kind.__members__:
            raise InvalidParameterError(
                "guarantee", dict(data), f"a kind among {', '.join(Kind.__members__)}, and an error"
            )
        return Guarantee(Kind[data["kind"]], data["error"])


EXACT = Guarantee(Kind.EXACT)
BOUND = Guarantee(Kind.BOUND)


def joined(guarantees: Iterable[Guarantee]) -> Guarantee:
    """What holds where all of them must: the least sure kind, and the sum of the errors, rounded up."""
    given = list(guarantees)
    errors = [one.error for one in given if one.error > 0.0]
    total = errors[0] if len(errors) == 1 else min(1.0, sum_up(errors))
    return Guarantee(max((one.kind for one in given), default=Kind.EXACT), total)


def error_of_level(level: float) -> float:
    """1 - level for a confidence level in [0, 1], never below it: exact from 1/2 on, else rounded up."""
    return 1.0 - level if level >= 0.5 else min(1.0, math.nextafter(1.0 - level, math.inf))
