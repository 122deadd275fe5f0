"""Participation without randomness: patterns that a fixed order of the batches enforces."""

import dataclasses
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import (
    BoundedContributions,
    Participation,
    Pattern,
    Settings,
    check_examples_per_user,
)


@dataclasses.dataclass(frozen=True)
class SingleParticipation(Participation):
    """Every example takes part in at most one step.

    Example:
        >>> import dpmech as dm
        >>> dm.sensitivity(dm.Identity(12), dm.SingleParticipation()).upper
        1.0
    """

    plan_name: ClassVar[str] = "single"

    def pattern(self, n: int) -> Pattern:
        """One of n steps."""
        return Pattern(n, 1)

    def requirement(self, n: int) -> str:
        """One step for each example."""
        del n
        return "Every example takes part in at most one step."

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """The same for every plan."""
        del epochs, steps_per_epoch, sampling_prob, settings
        return cls()


@dataclasses.dataclass(frozen=True)
class MinSep(BoundedContributions):
    """An example takes part at most `max_participations` times, at least `min_sep` steps apart.

    With `max_examples_per_user`, the claim is about users, whose examples may be in any batches. The
    sensitivity is then m times that of one example, which is attained if all m examples are in the same
    batches.

    Args:
        min_sep: b, an integer in [1, n].
        max_participations: k >= 1, the maximum number of participations of one example; None is the largest
            possible number, ceil(n / b).
        max_examples_per_user: m in [1, 1000], for a claim about users, who have at most m examples each; None
            for a claim about examples.

    Example:
        >>> import dpmech as dm
        >>> three_times = dm.MinSep(min_sep=4)  # at most, in 12 steps
        >>> f"{dm.sensitivity(dm.Identity(12), three_times).upper:.3f}"
        '1.732'
        >>> three = dm.MinSep(4, max_examples_per_user=3)
        >>> f"{dm.sensitivity(dm.Identity(12), three).upper:.3f}"  # 3 sqrt(3)
        '5.196'
    """

    min_sep: int
    max_participations: int | None = None
    max_examples_per_user: int | None = dataclasses.field(default=None, kw_only=True)
    plan_name: ClassVar[str] = "min-sep"
    plan_settings: ClassVar[tuple[str, ...]] = ("min_sep", "max_participations", "max_examples_per_user")

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_sep", check_integer("min_sep", self.min_sep, minimum=1))
        if self.max_participations is not None:
            k = check_integer("max_participations", self.max_participations, minimum=1)
            object.__setattr__(self, "max_participations", k)
        object.__setattr__(self, "max_examples_per_user", check_examples_per_user(self.max_examples_per_user))

    def pattern(self, n: int) -> Pattern:
        """Pattern of one example: b-separated sets of at most min(k, ceil(n / b)) steps."""
        if self.min_sep > n:
            raise InvalidParameterError("min_sep", self.min_sep, f"an integer in [1, n={n}]")
        fitting = -(-n // self.min_sep)
        k = fitting if self.max_participations is None else min(self.max_participations, fitting)
        return Pattern(self.min_sep, k)

    def requirement(self, n: int) -> str:
        """Separation and number of participations within n steps, and maximum number of examples per user."""
        pattern = self.pattern(n)
        apart = (
            f"Participations of one example are at least {pattern.min_sep} steps apart, and at most "
            f"{pattern.max_participations} in number"
        )
        if self.max_examples_per_user is None:
            return f"{apart}."
        return f"{self.bounding()} {apart}; where the examples of a user stand to each other does not matter."

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """Once per epoch, one epoch apart, unless the plan says otherwise."""
        del sampling_prob
        min_sep, most, users = (settings[name] for name in cls.plan_settings)
        if min_sep is None:
            min_sep, most = steps_per_epoch, epochs if most is None else most
        return cls(min_sep, most, max_examples_per_user=users)

    def prefix(self, n: int, steps: int) -> tuple["MinSep", int]:
        """The same separation, reduced to `steps` if that is smaller."""
        self.pattern(n)
        count = check_integer("steps", steps, minimum=1, maximum=n)
        return dataclasses.replace(self, min_sep=min(self.min_sep, count)), count


@dataclasses.dataclass(frozen=True)
class FixedEpochs(Participation):
    """Every example takes part once per epoch, exactly every n / epochs steps.

    Args:
        epochs: k >= 1; n must be a multiple of it.

    Example:
        >>> import dpmech as dm
        >>> f"{dm.sensitivity(dm.Identity(12), dm.FixedEpochs(4)).upper:.3f}"
        '2.000'
    """

    epochs: int
    plan_name: ClassVar[str] = "epochs"
    plan_whole_epochs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "epochs", check_integer("epochs", self.epochs, minimum=1))

    def pattern(self, n: int) -> Pattern:
        """The sets {s, s + n/k, ...}."""
        if n % self.epochs:
            raise InvalidParameterError("epochs", self.epochs, f"a divisor of n={n}")
        return Pattern(n // self.epochs, self.epochs, evenly_spaced=True)

    def requirement(self, n: int) -> str:
        """The same batches in the same order."""
        return (
            f"{self.epochs} epochs over the same batches in the same order: every example takes "
            f"part exactly every {n // self.epochs} steps."
        )

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """The epochs of the plan."""
        del steps_per_epoch, sampling_prob, settings
        return cls(epochs)

    def prefix(self, n: int, steps: int) -> tuple["FixedEpochs", int]:
        """The number of epochs begun."""
        stride = self.pattern(n).min_sep
        begun = -(-check_integer("steps", steps, minimum=1, maximum=n) // stride)
        return FixedEpochs(begun), begun * stride
