"""Balls-in-Bins: every example is put into one of so many bins; bin i is step i of every epoch."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.mechanism import Participation, Pattern, Unit, check_examples_per_user, needed_setting


@dataclasses.dataclass(frozen=True)
class BallsInBins(Participation):
    """Every example is put into one of `bins` bins once, uniformly; bin i is step i of every epoch.

    Args:
        bins: b, an integer in [1, n]; n must be a multiple of it.
        fresh: True for a new allocation every epoch: what is made is then a `FreshBallsInBins`.
        max_examples_per_user: m for a claim about users, who have at most m examples each, in bins of their
            own: what is made is then a `UserBallsInBins`; refused with `fresh`.

    Example:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(
        ...     dm.LambdaCGD(12, 0.5), 2.0, 1e-5, participation=dm.BallsInBins(bins=4),
        method=dm.methods.Rdp() ... )
        >>> f"{cal.sigma:.3f}"
        '3.602'
    """

    bins: int
    fresh: dataclasses.InitVar[bool] = False
    max_examples_per_user: dataclasses.InitVar[int | None] = dataclasses.field(default=None, kw_only=True)
    _anew: ClassVar[bool] = False
    random: ClassVar[bool] = True
    plan_name: ClassVar[str] = "balls-in-bins"

    def __new__(
        cls,
        bins: int = 1,
        fresh: bool = False,  # noqa: FBT001, FBT002 - as __init__
        *,
        max_examples_per_user: int | None = None,
    ) -> Self:
        """An allocation for the run, or with `fresh` one for every epoch; or a `UserBallsInBins`."""
        if not isinstance(fresh, bool):
            raise InvalidParameterError("fresh", fresh, "True or False")
        if max_examples_per_user is not None:
            if fresh:
                raise users_in_fresh_bins(bins, max_examples_per_user)
            return UserBallsInBins(bins, max_examples_per_user)  # type: ignore[return-value]  # not initialised again
        kind = FreshBallsInBins if fresh and cls is BallsInBins else cls
        return super().__new__(kind)  # type: ignore[return-value]  # a kind of what was called

    def __post_init__(self, fresh: bool, max_examples_per_user: int | None) -> None:
        del max_examples_per_user
        if fresh is not self._anew:
            raise InvalidParameterError("fresh", fresh, f"{self._anew} for a {type(self).__name__}")
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=1))

    @property
    def certain(self) -> bool:
        """Whether there is one bin only."""
        return self.bins == 1

    def pattern(self, n: int) -> Pattern:
        """The worst-case support: that of FixedEpochs(n / b)."""
        return one_bin(self.bins, n)

    def requirement(self, n: int) -> str:
        """One allocation, drawn once, for all epochs."""
        return (
            f"Put every example once, uniformly and independently, into one of {self.bins} "
            f"bins; step t trains on bin t mod {self.bins}. The allocation serves all "
            f"{n // self.bins} epochs and is kept secret."
        )

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """A bin for every step of an epoch."""
        del epochs, sampling_prob, settings
        return cls(steps_per_epoch)

    def prefix(self, n: int, steps: int) -> tuple["BallsInBins", int]:
        """The epochs begun."""
        return self, epochs_begun(self.bins, n, steps)


@dataclasses.dataclass(frozen=True)
class FreshBallsInBins(BallsInBins):
    """Every epoch anew, every example is put into one of `bins` bins, uniformly; bin i is its step i.

    The allocations of all epochs and examples are independent. It is what `BallsInBins(bins, fresh=True)`
    makes.

    Args:
        bins: b, an integer in [1, n]; n must be a multiple of it.
        fresh: True.

    Example:
        >>> import dpmech as dm
        >>> dm.BallsInBins(10, fresh=True)
        FreshBallsInBins(bins=10)
    """

    fresh: dataclasses.InitVar[bool] = True
    _anew: ClassVar[bool] = True
    plan_name: ClassVar[str] = "balls-in-bins-fresh"

    def __new__(
        cls,
        bins: int = 1,
        fresh: bool = True,  # noqa: FBT001, FBT002 - as __init__
        *,
        max_examples_per_user: int | None = None,
    ) -> Self:
        """Itself."""
        return super().__new__(cls, bins, fresh, max_examples_per_user=max_examples_per_user)

    def pattern(self, n: int) -> Pattern:
        """The worst-case support: once an epoch, last in one and first in the next one at the closest."""
        check_bins(self.bins, n)
        return Pattern(1, n // self.bins) if n > self.bins else Pattern(n, 1)

    def attained_pattern(self, n: int) -> Pattern:
        """The same bin in every epoch; `pattern` allows two steps of one epoch as well."""
        return super().pattern(n)

    def requirement(self, n: int) -> str:
        """A new allocation for every epoch."""
        return (
            f"In each of {n // self.bins} epochs put every example, uniformly and independently of the "
            f"others and of all other epochs, into one of {self.bins} bins; step t trains on bin t mod "
            f"{self.bins} of its epoch. Every allocation is drawn anew and kept secret."
        )


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
        >>> method = dm.methods.Rdp()
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 2.0, 1e-5, participation=two, method=method)
        >>> f"{cal.sigma:.3f}"
        '7.016'
    """

    bins: int
    max_examples_per_user: int
    random: ClassVar[bool] = True
    unit: ClassVar[Unit | None] = Unit.USER
    plan_name: ClassVar[str] = "user-balls-in-bins"
    plan_shares: ClassVar[tuple[str, ...]] = ("max_examples_per_user",)
    plan_due: ClassVar[tuple[str, ...]] = ("max_examples_per_user",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=1))
        object.__setattr__(self, "max_examples_per_user", check_examples_per_user(self.max_examples_per_user))

    @property
    def certain(self) -> bool:
        """Whether there is one bin only."""
        return self.bins == 1

    @property
    def examples(self) -> int:
        """All m may be in one batch."""
        return self.max_examples_per_user

    def pattern(self, n: int) -> Pattern:
        """The worst-case support of one example: that of FixedEpochs(n / b)."""
        return one_bin(self.bins, n)

    def requirement(self, n: int) -> str:
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
        return cls(steps_per_epoch, needed_setting(cls, settings, "max_examples_per_user"))

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


def check_bins(bins: int, n: int) -> None:
    """Refuse a number of bins that is no divisor of n."""
    if bins > n or n % bins:
        raise InvalidParameterError("bins", bins, f"a divisor of n={n}")


def one_bin(bins: int, n: int) -> Pattern:
    """The worst-case support of an example in one bin: that of FixedEpochs(n / bins)."""
    check_bins(bins, n)
    return Pattern(bins, n // bins, evenly_spaced=True)


def epochs_begun(bins: int, n: int, steps: int) -> int:
    """The steps of all epochs that the first `steps` of n have begun."""
    check_bins(bins, n)
    return -(-check_integer("steps", steps, minimum=1, maximum=n) // bins) * bins
