"""What is promised: a budget (eps, delta), and between which datasets."""

import dataclasses
import enum

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_delta, check_eps

__all__ = ["UNSTATED", "Adjacency", "PrivacyBudget", "Unit", "Unstated"]


class Adjacency(enum.Enum):
    """Which pairs of datasets are neighbours.

    `ADD_REMOVE`: one example is added or removed. `ZERO_OUT`: one example's gradients are replaced by
    zeros. `REPLACE_ONE`: one example is replaced by another one in the same slots.

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
    """Whose presence a claim hides.

    `EXAMPLE`: that of one example. Who holds several of them is protected less. `USER`: that of all examples
    of one person; a dataset without the user lacks all of them.

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
    """The adjacency where nobody stated one: ADD_REMOVE, or that of a mechanism. It shows as its default."""

    UNSTATED = enum.auto()

    def __repr__(self) -> str:
        return "Adjacency.ADD_REMOVE"


UNSTATED = Unstated.UNSTATED


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """An (eps, delta) differential-privacy guarantee.

    Args:
        eps: finite, > 0.
        delta: in (0, 1).

    Raises:
        InvalidParameterError: outside those ranges.

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
