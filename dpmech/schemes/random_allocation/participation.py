"""Random allocation: every example takes part in exactly k of n steps, or of the steps of its group."""

import dataclasses
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import Participation, Pattern, Settings


@dataclasses.dataclass(frozen=True)
class RandomAllocation(Participation):
    """Every example takes part in exactly k of the n steps; all sets of k steps have the same probability.

    The sets of different examples are independent. The scheme is also known as k-out-of-t random allocation
    and as balanced iteration subsampling. The default method requires independent noise of constant scale
    (`Identity`); `Certified()` and `Importance()` also accept strategies with entries >= 0 and few bands.
    With k = 1, the scheme is one epoch of `BallsInBins(n)`; with k = n, nothing is sampled.

    With `cycle`, the data are split into that many fixed groups, as for `CyclicPoisson`. Step t belongs to
    group t mod cycle, and the k steps of an example are drawn from the n / cycle steps of its group. These
    steps are at least `cycle` steps apart, so all methods accept noise that is correlated over `cycle` steps.

    The bounds are for one privacy unit. For users with several examples, allocate every user as a whole
    (`Unit.USER`, `dpmech.optim.UserDataset`), or use `Poisson` with `max_examples_per_user`.

    Args:
        participations: k, an integer in [1, n / cycle].
        cycle: number of groups, a divisor of n. If it is above 1, it must be at least the number of bands of
            the strategy.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        Feldman and Shenfeld 2025 (arXiv:2502.08202); Choquette-Choo et al. 2023 (arXiv:2306.08153), Section
        4, for groups.

    Examples:
        >>> import dpmech as dm
        >>> allocation = dm.RandomAllocation(participations=4)
        >>> f"{dm.sensitivity(dm.Identity(12), allocation).upper:.3f}"  # of all 4 steps together
        '2.000'
        >>> sampler = dm.samplers.sampler_for(allocation, 1000, n=12, rng=1)
        >>> f"{sampler.expected_batch_size:.1f}", sum(len(batch) for batch in sampler)
        ('333.3', 4000)
        >>> groups = dm.RandomAllocation(participations=2, cycle=4)  # 2 of the 3 steps of a group
        >>> cal = dm.calibrate_sigma(dm.SquareRoot(12, 3), 2.0, 1e-5, participation=groups)
        >>> cal.sigma < 2.85  # by samples: about 2.75
        True
    """

    participations: int
    cycle: int = dataclasses.field(default=1, kw_only=True)
    random: ClassVar[bool] = True
    plan_name: ClassVar[str] = "random-allocation"
    plan_whole_epochs: ClassVar[bool] = True
    plan_settings: ClassVar[tuple[str, ...]] = ("cycle",)

    def __post_init__(self) -> None:
        count = check_integer("participations", self.participations, minimum=1)
        object.__setattr__(self, "participations", count)
        object.__setattr__(self, "cycle", check_integer("cycle", self.cycle, minimum=1))

    def turns(self, n: int) -> int:
        """The number of steps of one group.

        Raises:
            InvalidParameterError: if the groups do not have the same number of steps, or have fewer than k.
        """
        turns, left = divmod(n, self.cycle)
        if left:
            way_out = f"; or plan {n + self.cycle - left} steps, stop early"
            raise InvalidParameterError("cycle", self.cycle, f"a divisor of n={n}", way_out)
        if self.participations > turns:
            most = f"n={n}" if self.cycle == 1 else f"n / cycle={turns}"
            raise InvalidParameterError("participations", self.participations, f"an integer in [1, {most}]")
        return turns

    def pattern(self, n: int) -> Pattern:
        """Any k of the n steps, or of those of a group."""
        together = self.turns(n) == self.participations and self.cycle > 1
        return Pattern(self.cycle, self.participations, evenly_spaced=together)

    def attained_pattern(self, n: int) -> Pattern:
        """With groups, k successive turns of one of them: `pattern` also allows steps of several groups."""
        count = self.participations
        return self.pattern(n) if self.cycle == 1 else Pattern(self.cycle, count, evenly_spaced=True)

    def requirement(self, n: int) -> str:
        """One set of steps for every example, drawn once for the run."""
        if self.cycle > 1:
            return (
                f"Split the examples into {self.cycle} groups, independently of their content; step t offers "
                f"group t mod {self.cycle}. For every example draw once a uniformly random set of exactly "
                f"{self.participations} of the {self.turns(n)} steps of its group, without regard to its "
                "data and independently of all other examples; the example takes part in these steps and in "
                "no other. The sets, and how many examples each step has, are kept secret."
            )
        return (
            f"For every example draw once a uniformly random set of exactly {self.participations} of the {n} "
            "steps, without regard to its data and independently of all other examples; the example takes "
            "part in these steps and in no other. The sets, and how many examples each step has, are kept "
            "secret."
        )

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """As many participations as the plan has epochs."""
        del steps_per_epoch, sampling_prob
        return cls(epochs, cycle=1 if settings["cycle"] is None else settings["cycle"])

    def prefix(self, n: int, steps: int) -> tuple["RandomAllocation", int]:
        """The whole run.

        In the first steps, an example takes part a random number of times, between 0 and k. These steps are a
        projection of the whole run, so the bound for the whole run covers them. The bound for k of fewer
        steps is larger.
        """
        self.pattern(n)
        check_integer("steps", steps, minimum=1, maximum=n)
        return self, n
