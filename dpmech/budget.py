"""What is promised: a budget (eps, delta), and between which datasets."""

import dataclasses
import enum

from dpmech.exceptions import InvalidParameterError, check_real

__all__ = ["Adjacency", "PrivacyBudget"]


class Adjacency(enum.Enum):
    """Which pairs of datasets are neighbours.

    `ADD_REMOVE`: one example is added or removed. `ZERO_OUT`: one example's gradients are replaced by
    zeros. `REPLACE_ONE`: one example is replaced by another one in the same slots.
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


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """An (eps, delta) differential-privacy guarantee.

    Args:
        eps: finite, > 0.
        delta: in (0, 1).

    Raises:
        InvalidParameterError: outside those ranges.
    """

    eps: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", check_eps(self.eps))
        object.__setattr__(self, "delta", check_delta(self.delta))


def check_eps(value: object, *, zero_allowed: bool = False) -> float:
    """Return a valid eps as a float."""
    return check_real("eps", value, minimum=0.0, open_minimum=not zero_allowed)


def check_delta(value: object) -> float:
    """Return a valid delta as a float."""
    return check_real("delta", value, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)


def check_sigma(value: object) -> float:
    """Return a valid sigma as a float."""
    return check_real("sigma", value, minimum=0.0, open_minimum=True)
