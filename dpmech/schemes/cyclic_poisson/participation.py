"""Cyclic Poisson sampling: fixed groups take turns, and the group whose turn it is is Poisson-sampled."""

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
    check_sampling_prob,
    needed_setting,
)


@dataclasses.dataclass(frozen=True)
class CyclicPoisson(Participation):
    """The data are split into `cycle` fixed groups; step t samples group t mod cycle with `sampling_prob`.

    Args:
        sampling_prob: q in (0, 1].
        cycle: number of groups, at least the number of bands of the strategy.
        max_examples_per_user: m for a claim about users, who have at most m examples each, all of them in one
            group: what is made is then a `UserCyclicPoisson`.

    Example:
        >>> import dpmech as dm
        >>> participation = dm.CyclicPoisson(sampling_prob=0.3, cycle=4)
        >>> f"{dm.calibrate_sigma(dm.SquareRoot(12, 2), 2.0, 1e-5, participation=participation).sigma:.3f}"
        '1.796'
    """

    sampling_prob: float
    cycle: int
    max_examples_per_user: dataclasses.InitVar[int | None] = dataclasses.field(default=None, kw_only=True)
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True
    plan_name: ClassVar[str] = "cyclic-poisson"
    plan_settings: ClassVar[tuple[str, ...]] = ("cycle",)
    plan_due: ClassVar[tuple[str, ...]] = ("cycle",)

    def __new__(
        cls, sampling_prob: float = 1.0, cycle: int = 1, *, max_examples_per_user: int | None = None
    ) -> Self:
        """Itself, or a `UserCyclicPoisson`."""
        if max_examples_per_user is None:
            return super().__new__(cls)
        return UserCyclicPoisson(sampling_prob, cycle, max_examples_per_user)  # type: ignore[return-value]  # not initialised again

    def __post_init__(self, max_examples_per_user: int | None) -> None:
        del max_examples_per_user
        object.__setattr__(self, "sampling_prob", check_sampling_prob(self.sampling_prob))
        object.__setattr__(self, "cycle", check_integer("cycle", self.cycle, minimum=1))

    @property
    def certain(self) -> bool:
        """Whether everyone joins every step of the own group."""
        return self.sampling_prob == 1.0

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """The turns of one group, rounded up."""
        return -(-n // self.cycle)

    def requirement(self, n: int) -> str:
        """Fixed groups that take turns, and a coin for each example of the one whose turn it is."""
        del n
        return (
            f"Split the examples into {self.cycle} groups, independently of their content; "
            f"step t offers group t mod {self.cycle}, each of whose examples joins "
            f"independently with probability {self.sampling_prob!r}; which ones did is kept "
            "secret."
        )

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """`cycle` times the sampling probability of the plan, so that the expected batch size stays."""
        del epochs, steps_per_epoch
        cycle = settings["cycle"]
        if cycle is None:
            raise InvalidParameterError("cycle", cycle, f"given with sampling {cls.plan_name}")
        return cls(min(1.0, sampling_prob * cycle), cycle)


@dataclasses.dataclass(frozen=True)
class UserCyclicPoisson(Participation):
    """Users are split into `cycle` groups, with all of their examples, of which a user has at most so many.

    It is what `CyclicPoisson(q, cycle, max_examples_per_user=m)` makes. Step t offers the examples of group
    t mod cycle, each of which joins independently. The claim is about users, as for `UserPoisson`; between
    two steps that one user may join lie `cycle` steps, so that noise may be correlated over so many.

    Args:
        sampling_prob: q in (0, 1), of each example of the group whose turn it is.
        cycle: number of groups, at least the number of bands of the strategy.
        max_examples_per_user: m >= 1, at most 1000.

    Example:
        >>> import dpmech as dm
        >>> participation = dm.CyclicPoisson(0.3, 4, max_examples_per_user=2)
        >>> participation
        UserCyclicPoisson(sampling_prob=0.3, cycle=4, max_examples_per_user=2)
        >>> f"{dm.calibrate_sigma(dm.SquareRoot(12, 2), 2.0, 1e-5, participation=participation).sigma:.3f}"
        '3.039'
    """

    sampling_prob: float
    cycle: int
    max_examples_per_user: int
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True
    unit: ClassVar[Unit | None] = Unit.USER
    users_together: ClassVar[bool] = True
    plan_name: ClassVar[str] = "user-cyclic"
    plan_shares: ClassVar[tuple[str, ...]] = ("cycle", "max_examples_per_user")
    plan_due: ClassVar[tuple[str, ...]] = ("cycle", "max_examples_per_user")

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_prob", check_sampling_prob(self.sampling_prob, below_one=True))
        object.__setattr__(self, "cycle", check_integer("cycle", self.cycle, minimum=1))
        object.__setattr__(self, "max_examples_per_user", check_examples_per_user(self.max_examples_per_user))

    @property
    def examples(self) -> int:
        """All m may be in one batch."""
        return self.max_examples_per_user

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """The turns of one group, rounded up."""
        return -(-n // self.cycle)

    def requirement(self, n: int) -> str:
        """At most so many examples a user, all in one group; groups take turns, and examples toss coins."""
        del n
        return (
            f"Keep at most {self.max_examples_per_user} examples of every user, chosen before training and "
            "without regard to the data of others; an example belongs to one user. Put every user, with all "
            f"of these examples, into one of {self.cycle} groups, independently of other users and of all "
            f"data; step t offers group t mod {self.cycle}, each of whose examples joins independently with "
            f"probability {self.sampling_prob!r}; which ones did is kept secret."
        )

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """`cycle` times the sampling probability of the plan, so that the expected batch size stays.

        Raises:
            InvalidParameterError: also where that is 1 or more: groups that all take part are not sampled.
        """
        del epochs, steps_per_epoch
        cycle = needed_setting(cls, settings, "cycle")
        count = needed_setting(cls, settings, "max_examples_per_user")
        if sampling_prob * cycle >= 1.0:
            raise InvalidParameterError(
                "cycle", cycle, f"below 1 / {sampling_prob:g}, so that examples of a group are sampled"
            )
        return cls(sampling_prob * cycle, cycle, count)
