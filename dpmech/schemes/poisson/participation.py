"""Poisson sampling: every example joins every step independently."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

from dpmech.mechanism import (
    Participation,
    Pattern,
    Unit,
    check_examples_per_user,
    check_sampling_prob,
    needed_setting,
)
from dpmech.schemes.truncated_poisson import TruncatedPoisson, check_truncated


@dataclasses.dataclass(frozen=True)
class Poisson(Participation):
    """Every example joins every step independently with probability `sampling_prob`.

    Args:
        sampling_prob: q in (0, 1].
        max_examples_per_user: m for a claim about users, who have at most m examples each: what is made is
            then a `UserPoisson`.
        truncated_batch_size: B, for batches of at most so many examples, with `dataset_size`: what is made is
            then a
            `TruncatedPoisson`, for `Adjacency.ZERO_OUT` alone.
        dataset_size: n, with `truncated_batch_size` alone.

    Example:
        >>> import dpmech as dm
        >>> found = dm.epsilon(dm.Identity(12), 1.0, 1e-5, participation=dm.Poisson(sampling_prob=0.1))
        >>> f"{found.upper:.3f}"
        '3.021'
    """

    sampling_prob: float
    max_examples_per_user: dataclasses.InitVar[int | None] = None
    truncated_batch_size: dataclasses.InitVar[int | None] = dataclasses.field(default=None, kw_only=True)
    dataset_size: dataclasses.InitVar[int | None] = dataclasses.field(default=None, kw_only=True)
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True
    every_step_alike: ClassVar[bool] = True
    plan_name: ClassVar[str] = "poisson"

    def __new__(
        cls,
        sampling_prob: float = 1.0,
        max_examples_per_user: int | None = None,
        *,
        truncated_batch_size: int | None = None,
        dataset_size: int | None = None,
    ) -> Self:
        """Itself, or what is asked for: a `UserPoisson`, or a `TruncatedPoisson`."""
        if truncated_batch_size is not None or dataset_size is not None:
            check_truncated(max_examples_per_user, truncated_batch_size, dataset_size)
            return TruncatedPoisson(sampling_prob, truncated_batch_size, dataset_size)  # type: ignore[return-value,arg-type]  # not initialised again; both are there
        if max_examples_per_user is None:
            return super().__new__(cls)
        return UserPoisson(sampling_prob, max_examples_per_user)  # type: ignore[return-value]  # not initialised again

    def __post_init__(
        self, max_examples_per_user: int | None, truncated_batch_size: int | None, dataset_size: int | None
    ) -> None:
        del max_examples_per_user, truncated_batch_size, dataset_size
        object.__setattr__(self, "sampling_prob", check_sampling_prob(self.sampling_prob))

    @property
    def certain(self) -> bool:
        """Whether everyone joins every step."""
        return self.sampling_prob == 1.0

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """All n."""
        return n

    def requirement(self, n: int) -> str:
        """An independent coin for each example and step."""
        del n
        return (
            "At every step every example joins independently with probability "
            f"{self.sampling_prob!r}; which ones did is kept secret."
        )

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """The sampling probability of the plan."""
        del epochs, steps_per_epoch, settings
        return cls(sampling_prob)


@dataclasses.dataclass(frozen=True)
class UserPoisson(Participation):
    """Every example joins every step independently, and a user has at most so many of them.

    It is what `Poisson(q, max_examples_per_user=m)` makes. The claim is about users: two datasets are
    neighbours if one has all examples of one user more. How many of them are in a batch is binomial.

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
    plan_due: ClassVar[tuple[str, ...]] = ("max_examples_per_user",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_prob", check_sampling_prob(self.sampling_prob, below_one=True))
        object.__setattr__(self, "max_examples_per_user", check_examples_per_user(self.max_examples_per_user))

    @property
    def examples(self) -> int:
        """All m may be in one batch."""
        return self.max_examples_per_user

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """All n."""
        return n

    def requirement(self, n: int) -> str:
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
        return cls(sampling_prob, needed_setting(cls, settings, "max_examples_per_user"))
