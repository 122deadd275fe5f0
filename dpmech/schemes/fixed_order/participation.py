"""Participation that holds whatever chance does: patterns that the order of the batches keeps."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import (
    Participation,
    Pattern,
    Unit,
    check_examples_per_user,
    needed_setting,
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
        """One step of n."""
        return Pattern(n, 1)

    def requirement(self, n: int) -> str:
        """One step for each example."""
        del n
        return "Every example takes part in at most one step."

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """The same for every plan."""
        del epochs, steps_per_epoch, sampling_prob, settings
        return cls()


@dataclasses.dataclass(frozen=True)
class MinSep(Participation):
    """Participations of one example are at least `min_sep` steps apart, at most `max_participations`.

    Args:
        min_sep: b, an integer in [1, n].
        max_participations: k >= 1, or None for as many as fit, ceil(n / b).
        max_examples_per_user: m for a claim about users, who have at most m examples each: what is made is
            then a `UserMinSep`.

    Example:
        >>> import dpmech as dm
        >>> three_times = dm.MinSep(min_sep=4)  # at most, in 12 steps
        >>> f"{dm.sensitivity(dm.Identity(12), three_times).upper:.3f}"
        '1.732'
    """

    min_sep: int
    max_participations: int | None = None
    max_examples_per_user: dataclasses.InitVar[int | None] = dataclasses.field(default=None, kw_only=True)
    plan_name: ClassVar[str] = "min-sep"
    plan_settings: ClassVar[tuple[str, ...]] = ("min_sep", "max_participations")

    def __new__(
        cls,
        min_sep: int = 1,
        max_participations: int | None = None,
        *,
        max_examples_per_user: int | None = None,
    ) -> Self:
        """Itself, or a `UserMinSep`."""
        if max_examples_per_user is None:
            return super().__new__(cls)
        return UserMinSep(min_sep, max_participations, max_examples_per_user)  # type: ignore[return-value]  # not initialised again

    def __post_init__(self, max_examples_per_user: int | None) -> None:
        del max_examples_per_user
        object.__setattr__(self, "min_sep", check_integer("min_sep", self.min_sep, minimum=1))
        if self.max_participations is not None:
            k = check_integer("max_participations", self.max_participations, minimum=1)
            object.__setattr__(self, "max_participations", k)

    def pattern(self, n: int) -> Pattern:
        """b-separated sets of at most min(k, ceil(n / b)) steps."""
        if self.min_sep > n:
            raise InvalidParameterError("min_sep", self.min_sep, f"an integer in [1, n={n}]")
        fitting = -(-n // self.min_sep)
        k = fitting if self.max_participations is None else min(self.max_participations, fitting)
        return Pattern(self.min_sep, k)

    def requirement(self, n: int) -> str:
        """Separation and number of participations, as n steps allow them."""
        pattern = self.pattern(n)
        return (
            f"Participations of one example are at least {pattern.min_sep} steps apart, and at most "
            f"{pattern.max_participations} in number."
        )

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """One epoch apart and once an epoch, unless the plan says otherwise."""
        del sampling_prob
        min_sep, most = settings["min_sep"], settings["max_participations"]
        if min_sep is None:
            return cls(steps_per_epoch, epochs if most is None else most)
        return cls(min_sep, most)

    def prefix(self, n: int, steps: int) -> tuple["MinSep", int]:
        """The same separation, or `steps` where that is less."""
        self.pattern(n)
        count = check_integer("steps", steps, minimum=1, maximum=n)
        return MinSep(min(self.min_sep, count), self.max_participations), count


@dataclasses.dataclass(frozen=True)
class UserMinSep(Participation):
    """Every example takes part as under `MinSep`, and a user has at most so many of them, placed anyhow.

    It is what `MinSep(b, k, max_examples_per_user=m)` makes. Nothing is sampled. The sensitivity is m times
    that of one example, which all m reach if they are in the same batches.

    Args:
        min_sep: b, an integer in [1, n]: least distance of two participations of one example.
        max_participations: k >= 1, of one example, or None for as many as fit, ceil(n / b).
        max_examples_per_user: m >= 1, at most 1000.

    Example:
        >>> import dpmech as dm
        >>> three = dm.MinSep(4, max_examples_per_user=3)
        >>> three
        UserMinSep(min_sep=4, max_participations=None, max_examples_per_user=3)
        >>> f"{dm.sensitivity(dm.Identity(12), three).upper:.3f}"  # 3 sqrt(3)
        '5.196'
    """

    min_sep: int
    max_participations: int | None
    max_examples_per_user: int
    unit: ClassVar[Unit | None] = Unit.USER
    plan_name: ClassVar[str] = "user-min-sep"
    plan_shares: ClassVar[tuple[str, ...]] = ("min_sep", "max_participations", "max_examples_per_user")
    plan_due: ClassVar[tuple[str, ...]] = ("max_examples_per_user",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_sep", check_integer("min_sep", self.min_sep, minimum=1))
        if self.max_participations is not None:
            most = check_integer("max_participations", self.max_participations, minimum=1)
            object.__setattr__(self, "max_participations", most)
        object.__setattr__(self, "max_examples_per_user", check_examples_per_user(self.max_examples_per_user))

    @property
    def examples(self) -> int:
        """All m may be in one batch."""
        return self.max_examples_per_user

    def pattern(self, n: int) -> Pattern:
        """Of one example: b-separated sets of at most min(k, ceil(n / b)) steps."""
        if self.min_sep > n:
            raise InvalidParameterError("min_sep", self.min_sep, f"an integer in [1, n={n}]")
        fitting = -(-n // self.min_sep)
        most = self.max_participations
        return Pattern(self.min_sep, fitting if most is None else min(most, fitting))

    def requirement(self, n: int) -> str:
        """At most so many examples a user; separation and number of the participations of each."""
        pattern = self.pattern(n)
        return (
            f"Keep at most {self.max_examples_per_user} examples of every user, chosen before training and "
            "without regard to the data of others; an example belongs to one user. Participations of one "
            f"example are at least {pattern.min_sep} steps apart, and at most {pattern.max_participations} "
            "in number; where the examples of a user stand to each other does not matter."
        )

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """One epoch apart and once an epoch, unless the plan says otherwise."""
        del sampling_prob
        count = needed_setting(cls, settings, "max_examples_per_user")
        min_sep, most = settings["min_sep"], settings["max_participations"]
        if min_sep is None:
            return cls(steps_per_epoch, epochs if most is None else most, count)
        return cls(min_sep, most, count)

    def prefix(self, n: int, steps: int) -> tuple["UserMinSep", int]:
        """The same separation, or `steps` where that is less."""
        self.pattern(n)
        count = check_integer("steps", steps, minimum=1, maximum=n)
        return dataclasses.replace(self, min_sep=min(self.min_sep, count)), count


@dataclasses.dataclass(frozen=True)
class FixedEpochs(Participation):
    """Every example takes part once an epoch, exactly every n / epochs steps.

    Args:
        epochs: k >= 1; n must be a multiple of it.

    Example:
        >>> import dpmech as dm
        >>> f"{dm.sensitivity(dm.Identity(12), dm.FixedEpochs(4)).upper:.3f}"
        '2.000'
    """

    epochs: int
    plan_name: ClassVar[str] = "epochs"

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
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """The epochs of the plan."""
        del steps_per_epoch, sampling_prob, settings
        return cls(epochs)

    def prefix(self, n: int, steps: int) -> tuple["FixedEpochs", int]:
        """The epochs begun."""
        stride = self.pattern(n).min_sep
        begun = -(-check_integer("steps", steps, minimum=1, maximum=n) // stride)
        return FixedEpochs(begun), begun * stride
