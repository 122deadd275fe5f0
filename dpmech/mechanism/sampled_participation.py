"""Participations that chance decides: independent coins every step, or one allocation into bins."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism.epoch_bins import check_bins, epochs_begun, one_bin
from dpmech.mechanism.fixed_participation import FixedSizeLots
from dpmech.mechanism.min_sep_participation import MinSepSampling
from dpmech.mechanism.participation import Participation, Pattern, register
from dpmech.mechanism.truncated_participation import TruncatedPoisson, check_truncated
from dpmech.mechanism.user_participation import (
    UserBallsInBins,
    UserCyclicPoisson,
    UserPoisson,
    users_in_fresh_bins,
)

__all__ = ["BallsInBins", "CyclicPoisson", "FreshBallsInBins", "Poisson"]


@register
@dataclasses.dataclass(frozen=True)
class Poisson(Participation):
    """Every example joins every step independently with probability `sampling_prob`.

    Args:
        sampling_prob: q in (0, 1].
        max_examples_per_user: m for a claim about users, who have at most m examples each: what is made is
            then a `UserPoisson`.
        max_lot_size: B, for lots of at most so many examples, with `dataset_size`: what is made is then a
            `TruncatedPoisson`, for `Adjacency.ZERO_OUT` alone.
        dataset_size: n, with `max_lot_size` alone.

    Example:
        >>> import dpmech as dm
        >>> found = dm.epsilon(dm.Identity(12), 1.0, 1e-5, participation=dm.Poisson(sampling_prob=0.1))
        >>> f"{found.upper:.3f}"
        '3.021'
    """

    sampling_prob: float
    max_examples_per_user: dataclasses.InitVar[int | None] = None
    max_lot_size: dataclasses.InitVar[int | None] = dataclasses.field(default=None, kw_only=True)
    dataset_size: dataclasses.InitVar[int | None] = dataclasses.field(default=None, kw_only=True)
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True
    plan_name: ClassVar[str] = "poisson"

    def __new__(
        cls,
        sampling_prob: float = 1.0,
        max_examples_per_user: int | None = None,
        *,
        max_lot_size: int | None = None,
        dataset_size: int | None = None,
    ) -> Self:
        """Itself, or what is asked for: a `UserPoisson`, or a `TruncatedPoisson`."""
        if max_lot_size is not None or dataset_size is not None:
            check_truncated(max_examples_per_user, max_lot_size, dataset_size)
            return TruncatedPoisson(sampling_prob, max_lot_size, dataset_size)  # type: ignore[return-value,arg-type]  # not initialised again; both are there
        if max_examples_per_user is None:
            return super().__new__(cls)
        return UserPoisson(sampling_prob, max_examples_per_user)  # type: ignore[return-value]  # not initialised again

    def __post_init__(
        self, max_examples_per_user: int | None, max_lot_size: int | None, dataset_size: int | None
    ) -> None:
        del max_examples_per_user, max_lot_size, dataset_size
        object.__setattr__(self, "sampling_prob", _check_sampling_prob(self.sampling_prob))

    @property
    def certain(self) -> bool:
        """Whether everyone joins every step."""
        return self.sampling_prob == 1.0

    @property
    def release_prob(self) -> float:
        """The sampling probability."""
        return self.sampling_prob

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """All n."""
        return n

    def duty(self, n: int) -> str:
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


register(UserPoisson)
register(TruncatedPoisson)
register(FixedSizeLots)
register(MinSepSampling)


@register
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

    def __new__(
        cls, sampling_prob: float = 1.0, cycle: int = 1, *, max_examples_per_user: int | None = None
    ) -> Self:
        """Itself, or a `UserCyclicPoisson`."""
        if max_examples_per_user is None:
            return super().__new__(cls)
        return UserCyclicPoisson(sampling_prob, cycle, max_examples_per_user)  # type: ignore[return-value]  # not initialised again

    def __post_init__(self, max_examples_per_user: int | None) -> None:
        del max_examples_per_user
        object.__setattr__(self, "sampling_prob", _check_sampling_prob(self.sampling_prob))
        object.__setattr__(self, "cycle", check_integer("cycle", self.cycle, minimum=1))

    @property
    def certain(self) -> bool:
        """Whether everyone joins every step of the own group."""
        return self.sampling_prob == 1.0

    @property
    def release_prob(self) -> float:
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


register(UserCyclicPoisson)


@register
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
        ...     dm.LambdaCGD(12, 0.5), 2.0, 1e-5, participation=dm.BallsInBins(bins=4), method=dm.Rdp()
        ... )
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

    @property
    def allocation_bins(self) -> int | None:
        """The bins."""
        return self.bins

    def pattern(self, n: int) -> Pattern:
        """The worst-case support: that of FixedEpochs(n / b)."""
        return one_bin(self.bins, n)

    def duty(self, n: int) -> str:
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


register(UserBallsInBins)


@register
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

    @property
    def allocation_bins(self) -> None:
        """None: no allocation serves the whole run."""
        return None

    @property
    def epoch_bins(self) -> int:
        """The bins."""
        return self.bins

    def pattern(self, n: int) -> Pattern:
        """The worst-case support: once an epoch, last in one and first in the next one at the closest."""
        check_bins(self.bins, n)
        return Pattern(1, n // self.bins) if n > self.bins else Pattern(n, 1)

    def attained_pattern(self, n: int) -> Pattern:
        """The same bin in every epoch; `pattern` allows two steps of one epoch as well."""
        return super().pattern(n)

    def duty(self, n: int) -> str:
        """A new allocation for every epoch."""
        return (
            f"In each of {n // self.bins} epochs put every example, uniformly and independently of the "
            f"others and of all other epochs, into one of {self.bins} bins; step t trains on bin t mod "
            f"{self.bins} of its epoch. Every allocation is drawn anew and kept secret."
        )


def _check_sampling_prob(value: object) -> float:
    return check_real("sampling_prob", value, minimum=0.0, maximum=1.0, open_minimum=True)
