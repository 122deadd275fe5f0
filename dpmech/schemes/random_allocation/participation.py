"""Random allocation: every example takes part in exactly k of n steps, in a uniformly random set of them."""

import dataclasses
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import Participation, Pattern, Settings


@dataclasses.dataclass(frozen=True)
class RandomAllocation(Participation):
    """Every example takes part in exactly k of the n steps; all sets of k steps have the same probability.

    The sets of different examples are independent. The scheme is also known as k-out-of-t random allocation
    and as balanced iteration subsampling. The default method requires independent noise of one size
    (`Identity`); `Certified()` and `Importance()` also take strategies with entries >= 0 and few bands. With
    k = 1 it is one epoch of `BallsInBins(n)`; with k = n nothing is sampled.

    The bounds are for one unit of privacy. For users with several examples let every user be one unit that is
    allocated as a whole (the unit user, `dpmech.optim.UserDataset`), or use `Poisson` with
    `max_examples_per_user`.

    Args:
        participations: k, an integer in [1, n].

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        Feldman and Shenfeld 2025 (arXiv:2502.08202).

    Examples:
        >>> import dpmech as dm
        >>> allocation = dm.RandomAllocation(participations=4)
        >>> f"{dm.sensitivity(dm.Identity(12), allocation).upper:.3f}"  # of all 4 steps together
        '2.000'
        >>> sampler = dm.samplers.sampler_for(allocation, 1000, n=12, rng=1)
        >>> f"{sampler.expected_batch_size:.1f}", sum(len(batch) for batch in sampler)
        ('333.3', 4000)
    """

    participations: int
    random: ClassVar[bool] = True
    plan_name: ClassVar[str] = "random-allocation"

    def __post_init__(self) -> None:
        count = check_integer("participations", self.participations, minimum=1)
        object.__setattr__(self, "participations", count)

    def pattern(self, n: int) -> Pattern:
        """Any k of the n steps."""
        if self.participations > n:
            raise InvalidParameterError("participations", self.participations, f"an integer in [1, n={n}]")
        return Pattern(1, self.participations)

    def requirement(self, n: int) -> str:
        """One set of steps for every example, drawn once for the run."""
        return (
            f"For every example draw once a uniformly random set of exactly {self.participations} of the {n} "
            "steps, without regard to its data and independently of all other examples; the example takes "
            "part in these steps and in no other. The sets, and how many examples each step has, are kept "
            "secret."
        )

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """As many participations as the plan has epochs."""
        del steps_per_epoch, sampling_prob, settings
        return cls(epochs)

    def prefix(self, n: int, steps: int) -> tuple["RandomAllocation", int]:
        """The whole run.

        In the first steps an example takes part a random number of times, between 0 and k. These steps are a
        projection of the whole run, whose bound covers them; the bound for k of fewer steps is larger.
        """
        self.pattern(n)
        check_integer("steps", steps, minimum=1, maximum=n)
        return self, n
