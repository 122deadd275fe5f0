"""Participations of examples in claims about users who have several of them."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism.budget import Unit
from dpmech.mechanism.epoch_bins import epochs_begun, one_bin
from dpmech.mechanism.participation import Participation, Pattern

__all__ = ["UserBallsInBins", "UserCyclicPoisson", "UserMinSep", "UserPoisson", "users_in_fresh_bins"]


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
        object.__setattr__(self, "sampling_prob", _check_prob(self.sampling_prob))
        object.__setattr__(self, "max_examples_per_user", _check_count(self.max_examples_per_user))

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
        return cls(sampling_prob, _given(cls, settings, "max_examples_per_user"))


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampling_prob", _check_prob(self.sampling_prob))
        object.__setattr__(self, "cycle", check_integer("cycle", self.cycle, minimum=1))
        object.__setattr__(self, "max_examples_per_user", _check_count(self.max_examples_per_user))

    @property
    def examples(self) -> int:
        """All m may be in one lot."""
        return self.max_examples_per_user

    @property
    def example_prob(self) -> float:
        """The sampling probability within the group whose turn it is."""
        return self.sampling_prob

    @property
    def groups(self) -> int:
        """The cycle."""
        return self.cycle

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """The turns of one group, rounded up."""
        return -(-n // self.cycle)

    def duty(self, n: int) -> str:
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
        cycle = _given(cls, settings, "cycle")
        count = _given(cls, settings, "max_examples_per_user")
        if sampling_prob * cycle >= 1.0:
            raise InvalidParameterError(
                "cycle", cycle, f"below 1 / {sampling_prob:g}, so that examples of a group are sampled"
            )
        return cls(sampling_prob * cycle, cycle, count)


@dataclasses.dataclass(frozen=True)
class UserMinSep(Participation):
    """Every example takes part as under `MinSep`, and a user has at most so many of them, placed anyhow.

    It is what `MinSep(b, k, max_examples_per_user=m)` makes. Nothing is sampled. The sensitivity is m times
    that of one example, which all m reach if they are in the same lots.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_sep", check_integer("min_sep", self.min_sep, minimum=1))
        if self.max_participations is not None:
            most = check_integer("max_participations", self.max_participations, minimum=1)
            object.__setattr__(self, "max_participations", most)
        object.__setattr__(self, "max_examples_per_user", _check_count(self.max_examples_per_user))

    @property
    def examples(self) -> int:
        """All m may be in one lot."""
        return self.max_examples_per_user

    def pattern(self, n: int) -> Pattern:
        """Of one example: b-separated sets of at most min(k, ceil(n / b)) steps."""
        if self.min_sep > n:
            raise InvalidParameterError("min_sep", self.min_sep, f"an integer in [1, n={n}]")
        fitting = -(-n // self.min_sep)
        most = self.max_participations
        return Pattern(self.min_sep, fitting if most is None else min(most, fitting))

    def duty(self, n: int) -> str:
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
        count = _given(cls, settings, "max_examples_per_user")
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
class UserBallsInBins(Participation):
    """Every example is put into one of `bins` bins once, uniformly, and a user has at most so many examples.

    It is what `BallsInBins(b, max_examples_per_user=m)` makes. The claim is about users: two datasets are
    neighbours if one has all examples of one user more. These may be in one bin, or in several.

    Args:
        bins: b, an integer in [1, n]; n must be a multiple of it.
        max_examples_per_user: m >= 1; accounted for where b^m is at most 10,000.

    Example:
        >>> import dpmech as dm
        >>> two = dm.BallsInBins(4, max_examples_per_user=2)
        >>> two
        UserBallsInBins(bins=4, max_examples_per_user=2)
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 2.0, 1e-5, participation=two, method=dm.Rdp())
        >>> f"{cal.sigma:.3f}"
        '7.016'
    """

    bins: int
    max_examples_per_user: int
    random: ClassVar[bool] = True
    unit: ClassVar[Unit | None] = Unit.USER
    plan_name: ClassVar[str] = "user-balls-in-bins"
    plan_shares: ClassVar[tuple[str, ...]] = ("max_examples_per_user",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=1))
        object.__setattr__(self, "max_examples_per_user", _check_count(self.max_examples_per_user))

    @property
    def certain(self) -> bool:
        """Whether there is one bin only."""
        return self.bins == 1

    @property
    def examples(self) -> int:
        """All m may be in one lot."""
        return self.max_examples_per_user

    @property
    def user_bins(self) -> int:
        """The bins."""
        return self.bins

    def pattern(self, n: int) -> Pattern:
        """The worst-case support of one example: that of FixedEpochs(n / b)."""
        return one_bin(self.bins, n)

    def duty(self, n: int) -> str:
        """At most so many examples a user; one allocation of examples, drawn once, for all epochs."""
        return (
            f"Keep at most {self.max_examples_per_user} examples of every user, chosen before training and "
            "without regard to the data of others; an example belongs to one user. Put every example kept "
            f"once, uniformly and independently, those of one user too, into one of {self.bins} bins; step t "
            f"trains on bin t mod {self.bins}. The allocation serves all {n // self.bins} epochs and is kept "
            "secret."
        )

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """A bin for every step of an epoch."""
        del epochs, sampling_prob
        return cls(steps_per_epoch, _given(cls, settings, "max_examples_per_user"))

    def prefix(self, n: int, steps: int) -> tuple["UserBallsInBins", int]:
        """The epochs begun."""
        return self, epochs_begun(self.bins, n, steps)


def users_in_fresh_bins(bins: object, examples: object) -> UnsupportedCombinationError:
    """Why users with several examples are not put into bins anew every epoch, and what there is instead."""
    return UnsupportedCombinationError(
        f"no theorem here covers users with {examples} examples, each put into one of {bins} bins by itself "
        "anew every epoch: they may meet in one bin, or share noise in several",
        supported=f"BallsInBins({bins}, max_examples_per_user={examples}), one allocation for all epochs; "
        f"Mechanism(strategy, BallsInBins({bins}, fresh=True), unit=Unit.USER), where users are put into "
        "bins as wholes (dpmech.optim.UserDataset); Poisson and CyclicPoisson with max_examples_per_user",
    )


def _given(kind: type[Participation], settings: Mapping[str, int | None], name: str) -> int:
    value = settings[name]
    if value is None:
        raise InvalidParameterError(name, value, f"given with sampling {kind.plan_name}")
    return value


def _check_prob(value: object) -> float:
    return check_real("sampling_prob", value, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)


def _check_count(value: object) -> int:
    return check_integer("max_examples_per_user", value, minimum=1, maximum=1000)
