"""Cyclic Poisson sampling: fixed groups take turns, and the active group is Poisson-sampled."""

import dataclasses
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import (
    EXAMPLES_ONLY,
    BoundedContributions,
    Pattern,
    Settings,
    check_examples_per_user,
    check_sampling_prob,
    needed_setting,
)


@dataclasses.dataclass(frozen=True)
class CyclicPoisson(BoundedContributions):
    """The data are split into `cycle` fixed groups; step t samples from group t mod cycle.

    With `max_examples_per_user`, each user is in one group with all of their examples, and each example joins
    independently when the group is active. The claim is about users, as for `Poisson`. Two steps that one
    user may join are at least `cycle` steps apart, so noise may be correlated over `cycle` steps.

    Args:
        sampling_prob: q in (0, 1], the probability that an example of the active group joins; below 1 with
            `max_examples_per_user`.
        cycle: number of groups, at least the number of bands of the strategy.
        max_examples_per_user: m in [1, 1000], for a claim about users, who have at most m examples each, all
            of them in one group; None for a claim about examples.

    Example:
        >>> import dpmech as dm
        >>> participation = dm.CyclicPoisson(sampling_prob=0.3, cycle=4)
        >>> f"{dm.calibrate_sigma(dm.SquareRoot(12, 2), 2.0, 1e-5, participation=participation).sigma:.3f}"
        '1.796'
        >>> users = dm.CyclicPoisson(0.3, 4, max_examples_per_user=2)
        >>> f"{dm.calibrate_sigma(dm.SquareRoot(12, 2), 2.0, 1e-5, participation=users).sigma:.3f}"
        '3.039'
    """

    sampling_prob: float
    cycle: int
    max_examples_per_user: int | None = dataclasses.field(default=None, kw_only=True)
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True
    plan_name: ClassVar[str] = "cyclic-poisson"
    plan_settings: ClassVar[tuple[str, ...]] = ("cycle", "max_examples_per_user")
    plan_due: ClassVar[tuple[str, ...]] = ("cycle",)

    def __post_init__(self) -> None:
        users = self.max_examples_per_user is not None
        prob = check_sampling_prob(self.sampling_prob, below_one=users)
        object.__setattr__(self, "sampling_prob", prob)
        object.__setattr__(self, "cycle", check_integer("cycle", self.cycle, minimum=1))
        object.__setattr__(self, "max_examples_per_user", check_examples_per_user(self.max_examples_per_user))

    @property
    def certain(self) -> bool:
        """Whether every example joins every step of its group."""
        return self.sampling_prob == 1.0

    @property
    def replace_one_refused(self) -> str | None:
        """None for claims about examples, which a theorem covers."""
        return None if self.max_examples_per_user is None else EXAMPLES_ONLY

    @property
    def users_together(self) -> bool:
        """All examples of a user are in one group."""
        return self.max_examples_per_user is not None

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes them."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """The turns of one group, rounded up."""
        return -(-n // self.cycle)

    def requirement(self, n: int) -> str:
        """Fixed groups that take turns, and an independent decision for each example of the active group."""
        del n
        if self.max_examples_per_user is not None:
            return (
                f"{self.bounding()} Put every user, with all of these examples, into one of {self.cycle} "
                "groups, independently of other users and of all data; step t offers group t mod "
                f"{self.cycle}, each of whose examples joins independently with probability "
                f"{self.sampling_prob!r}; which ones did is kept secret."
            )
        return (
            f"Split the examples into {self.cycle} groups, independently of their content; "
            f"step t offers group t mod {self.cycle}, each of whose examples joins "
            f"independently with probability {self.sampling_prob!r}; which ones did is kept "
            "secret."
        )

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """`cycle` times the sampling probability of the plan, which keeps the expected batch size.

        Raises:
            InvalidParameterError: if this is above 1, because a group is then smaller than a batch; also if
                it is 1 for users, because groups that take part as a whole are not sampled.
        """
        del epochs, steps_per_epoch
        cycle, users = needed_setting(cls, settings, "cycle"), settings["max_examples_per_user"]
        if users is not None and sampling_prob * cycle >= 1.0:
            raise InvalidParameterError(
                "cycle", cycle, f"below 1 / {sampling_prob:g}, so that examples of a group are sampled"
            )
        if sampling_prob * cycle > 1.0:
            most = int((1.0 + 1e-9) / sampling_prob)
            raise InvalidParameterError("cycle", cycle, f"at most {most}: a group has to fill a batch")
        return cls(sampling_prob * cycle, cycle, max_examples_per_user=users)
