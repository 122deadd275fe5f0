"""The guarantee: a budget (eps, delta), and the neighbouring datasets it refers to."""

import dataclasses
import enum
import math

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_delta, check_eps, check_real


class Adjacency(enum.Enum):
    """Which pairs of datasets are neighbours.

    `ADD_REMOVE`: one example is added or removed. `ZERO_OUT`: one example's gradients are replaced by
    zeros. `REPLACE_ONE`: one example is replaced by another one in the same steps.

    Example:
        >>> import dpmech as dm
        >>> f"{dm.sensitivity(dm.Identity(4), adjacency=dm.Adjacency.REPLACE_ONE).upper:.3f}"
        '4.000'
    """

    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    REPLACE_ONE = "replace_one"

    @classmethod
    def check(cls, value: object) -> "Adjacency":
        """Return `value` if it is an Adjacency, else raise InvalidParameterError."""
        if not isinstance(value, cls):
            raise InvalidParameterError(
                "adjacency", value, "one of " + ", ".join(f"Adjacency.{member.name}" for member in cls)
            )
        return value


class Unit(enum.Enum):
    """The unit whose presence a claim hides.

    `EXAMPLE`: one example. The guarantee is weaker for people with several examples. `USER`: all examples of
    one person; a neighbouring dataset lacks all of them.

    Example:
        >>> import dpmech as dm
        >>> [unit.value for unit in dm.Unit]
        ['example', 'user']
    """

    EXAMPLE = "example"
    USER = "user"

    @classmethod
    def check(cls, value: object) -> "Unit":
        """Return `value` if it is a Unit, else raise InvalidParameterError."""
        if not isinstance(value, cls):
            raise InvalidParameterError(
                "unit", value, "one of " + ", ".join(f"Unit.{member.name}" for member in cls)
            )
        return value


class Unstated(enum.Enum):
    """The adjacency if none is stated: ADD_REMOVE, or that of a mechanism. Its repr is the default's."""

    UNSTATED = enum.auto()

    def __repr__(self) -> str:
        return "Adjacency.ADD_REMOVE"


UNSTATED = Unstated.UNSTATED

# Larger than all rounding of `attack_rate`.
_ROUNDING = 2.0**-48


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """An (eps, delta) differential-privacy guarantee.

    Args:
        eps: finite, > 0.
        delta: in (0, 1).

    Raises:
        InvalidParameterError: if a value is out of range.

    Example:
        >>> import dpmech as dm
        >>> dm.PrivacyBudget(eps=8.0, delta=1e-5)
        PrivacyBudget(eps=8.0, delta=1e-05)
    """

    eps: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", check_eps(self.eps))
        object.__setattr__(self, "delta", check_delta(self.delta))

    def attack_rate(self, fpr: float) -> float:
        """The largest true-positive rate of an attack under this pair, for every mechanism.

        min(e^eps fpr + delta, 1 - e^-eps (1 - delta - fpr)), at most 1. The whole curve of a mechanism
        (`dm.profile`) gives a rate that is not higher, and usually lower.

        **Guarantee:** upper bound, rounded up, for a budget that holds in both directions.

        Args:
            fpr: the attack's false-positive rate, in [0, 1].

        Raises:
            InvalidParameterError: if it is out of range.

        Example:
            >>> import dpmech as dm
            >>> round(dm.PrivacyBudget(1.0, 1e-5).attack_rate(0.01), 4)
            0.0272
        """
        rate = check_real("fpr", fpr, minimum=0.0, maximum=1.0)
        if self.eps > 700.0:  # e^eps is near or above the range of floats
            return 1.0 if rate > 0.0 else self.delta
        linear = math.exp(self.eps) * rate + self.delta
        steep = 1.0 - math.exp(-self.eps) * (1.0 - self.delta - rate)
        return min(1.0, (1.0 + _ROUNDING) * min(linear, steep))
