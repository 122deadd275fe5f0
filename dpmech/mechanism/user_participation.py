"""UserPoisson: examples sampled by independent coins, in a claim about users who have several of them."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism.budget import Unit
from dpmech.mechanism.participation import Participation, Pattern

__all__ = ["UserPoisson"]


@dataclasses.dataclass(frozen=True)
class UserPoisson(Participation):
    """Every example joins every step independently, and a user has at most so many of them.

    It is what `Poisson(q, max_examples_per_user=m)` makes. The claim is about users: two datasets are
    neighbours if one has all examples of one user more. How many of them are in a lot is binomial.

    Args:
        sampling_prob: q in (0, 1). With q = 1 nothing is sampled, and m examples are one of norm m.
        max_examples_per_user: m >= 1, at most 1000.

    Example:
        >>> import dpmech as dm
        >>> participation = dm.Poisson(0.1, max_examples_per_user=4)
        >>> participation, participation.unit
        (UserPoisson(sampling_prob=0.1, max_examples_per_user=4), <Unit.USER: 'user'>)
    """

    sampling_prob: float
    max_examples_per_user: int
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True
    unit: ClassVar[Unit | None] = Unit.USER
    plan_name: ClassVar[str] = "user-poisson"
    plan_settings: ClassVar[tuple[str, ...]] = ("max_examples_per_user",)

    def __post_init__(self) -> None:
        prob = check_real(
            "sampling_prob",
            self.sampling_prob,
            minimum=0.0,
            maximum=1.0,
            open_minimum=True,
            open_maximum=True,
        )
        count = check_integer("max_examples_per_user", self.max_examples_per_user, minimum=1, maximum=1000)
        object.__setattr__(self, "sampling_prob", prob)
        object.__setattr__(self, "max_examples_per_user", count)

    @property
    def examples(self) -> int:
        """All m may be in one lot."""
        return self.max_examples_per_user

    @property
    def example_prob(self) -> float:
        """The sampling probability."""
        return self.sampling_prob

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """All n."""
        return n

    def duty(self, n: int) -> str:
        """At most so many examples a user, and an independent coin for each example and step."""
        del n
        return (
            f"Keep at most {self.max_examples_per_user} examples of every user, chosen before training and "
            "without regard to the data of others; an example belongs to one user. At every step every "
            f"example kept joins independently with probability {self.sampling_prob!r}; which ones did is "
            "kept secret."
        )

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """The sampling probability of the plan."""
        del epochs, steps_per_epoch
        count = settings["max_examples_per_user"]
        if count is None:
            raise InvalidParameterError(
                "max_examples_per_user", count, f"given with sampling {cls.plan_name}"
            )
        return cls(sampling_prob, count)
