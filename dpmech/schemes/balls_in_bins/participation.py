"""Balls-in-Bins: every example is assigned to one random bin; bin i is step i of every epoch."""

import dataclasses
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.mechanism import BoundedContributions, Pattern, Settings, check_examples_per_user


@dataclasses.dataclass(frozen=True)
class BallsInBins(BoundedContributions):
    """Every example is assigned once, uniformly, to one of the bins; bin i is step i of every epoch.

    With `fresh`, every epoch has a new allocation. The allocations of all epochs and examples are
    independent.

    With `max_examples_per_user`, the claim is about users: two datasets are neighbours if one contains all
    examples of one additional user. These examples may be in one bin or in several bins.

    Args:
        bins: b, an integer in [1, n]. The last epoch may be incomplete; with `fresh`, n must be a multiple of
            b.
        fresh: True for a new allocation in every epoch.
        max_examples_per_user: m in [1, 1000], for a claim about users, who have at most m examples each, in
            independent bins; supported if b^m is at most 10,000. None is a claim about examples. Refused with
            `fresh`.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: for users with several examples and a new allocation in every epoch.

    Examples:
        >>> import dpmech as dm
        >>> strategy, method = dm.LambdaCGD(12, 0.5), dm.methods.Rdp()
        >>> one = dm.BallsInBins(bins=4)
        >>> cal = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=one, method=method)
        >>> f"{cal.sigma:.3f}"
        '3.602'
        >>> two = dm.BallsInBins(4, max_examples_per_user=2)
        >>> cal = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=two, method=method)
        >>> f"{cal.sigma:.3f}"
        '7.016'
        >>> dm.BallsInBins(10, fresh=True)
        BallsInBins(bins=10, fresh=True)
    """

    bins: int
    fresh: bool = False
    max_examples_per_user: int | None = dataclasses.field(default=None, kw_only=True)
    random: ClassVar[bool] = True
    plan_name: ClassVar[str] = "balls-in-bins"
    plan_settings: ClassVar[tuple[str, ...]] = ("fresh", "max_examples_per_user")

    def __post_init__(self) -> None:
        if not isinstance(self.fresh, bool):
            raise InvalidParameterError("fresh", self.fresh, "True or False")
        if self.fresh and self.max_examples_per_user is not None:
            raise users_in_fresh_bins(self.bins, self.max_examples_per_user)
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=1))
        object.__setattr__(self, "max_examples_per_user", check_examples_per_user(self.max_examples_per_user))

    @property
    def certain(self) -> bool:
        """Whether there is only one bin."""
        return self.bins == 1

    @property
    def renewed(self) -> bool:
        """Whether every epoch has a new random allocation: `fresh`, and more than one bin."""
        return self.fresh and not self.certain

    def pattern(self, n: int) -> Pattern:
        """The worst-case support of one example: every b steps, from one of the first b.

        With new allocations: one step in each epoch, which may be the last of one and the first of the next.
        """
        if self.fresh:
            check_whole(self.bins, n)
            return Pattern(1, n // self.bins) if n > self.bins else Pattern(n, 1)
        return one_bin(self.bins, n)

    def attained_pattern(self, n: int) -> Pattern:
        """The same bin in every epoch; with new allocations `pattern` also allows two steps of one epoch."""
        return one_bin(self.bins, n)

    def requirement(self, n: int) -> str:
        """One allocation, sampled once, for all epochs; or a new one for each."""
        if self.fresh:
            return (
                f"In each of {n // self.bins} epochs put every example, uniformly and independently of the "
                f"others and of all other epochs, into one of {self.bins} bins; step t trains on bin t mod "
                f"{self.bins} of its epoch. Every allocation is drawn anew and kept secret."
            )
        if self.max_examples_per_user is not None:
            return (
                f"{self.bounding()} Put every example kept once, uniformly and independently, those of one "
                f"user too, into one of {self.bins} bins; step t trains on bin t mod {self.bins}. The "
                f"allocation serves all {epochs_of(self.bins, n)} and is kept secret."
            )
        return (
            f"Put every example once, uniformly and independently, into one of {self.bins} "
            f"bins; step t trains on bin t mod {self.bins}. The allocation serves all "
            f"{epochs_of(self.bins, n)} and is kept secret."
        )

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """A bin for every step of an epoch."""
        del epochs, sampling_prob
        fresh, users = settings["fresh"], settings["max_examples_per_user"]
        return cls(steps_per_epoch, False if fresh is None else fresh, max_examples_per_user=users)

    def prefix(self, n: int, steps: int) -> tuple["BallsInBins", int]:
        """The epochs begun."""
        return self, epochs_begun(self.bins, n, steps)


def users_in_fresh_bins(bins: object, examples: object) -> UnsupportedCombinationError:
    """Why users with several examples do not get new bins in every epoch, and the alternatives."""
    return UnsupportedCombinationError(
        f"no theorem in dpmech covers users with {examples} examples that are assigned to {bins} bins "
        "independently in every epoch: they may be in one bin, or share noise in several",
        supported="one allocation for all epochs, without fresh; users assigned to bins as a whole: the unit "
        "user without max_examples_per_user (dpmech.optim.UserDataset); Poisson and CyclicPoisson with "
        "max_examples_per_user",
    )


def check_bins(bins: int, n: int) -> None:
    """Refuse more bins than steps."""
    if bins > n:
        raise InvalidParameterError("bins", bins, f"at most n={n}")


def check_whole(bins: int, n: int) -> None:
    """Refuse a last epoch that is cut short."""
    check_bins(bins, n)
    if n % bins:
        way_out = f"; without it the last epoch may be cut short; or plan {n + -n % bins} steps, stop early"
        raise InvalidParameterError("bins", bins, f"a divisor of n={n}, with fresh", way_out)


def epochs_of(bins: int, n: int) -> str:
    """The number of epochs in words."""
    whole, left = divmod(n, bins)
    return f"{whole} epochs" if not left else f"{whole} epochs, the {left} steps of one that is cut short,"


def one_bin(bins: int, n: int) -> Pattern:
    """The worst-case support of an example in one bin: every `bins` steps, from one of the first."""
    check_bins(bins, n)
    return Pattern(bins, -(-n // bins), evenly_spaced=True)


def epochs_begun(bins: int, n: int, steps: int) -> int:
    """The steps of all epochs that the first `steps` of n have begun."""
    check_bins(bins, n)
    begun = -(-check_integer("steps", steps, minimum=1, maximum=n) // bins) * bins
    return min(begun, n)
