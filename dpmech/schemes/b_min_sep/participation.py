"""b-min-sep sampling: after taking part an example waits b - 1 steps, then joins with probability p."""

import dataclasses
import math
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import (
    Participation,
    Pattern,
    Settings,
)


@dataclasses.dataclass(frozen=True)
class BMinSep(Participation):
    """After taking part, an example waits b - 1 steps, then joins each step with a fixed probability.

    At step 0, the cooldown has its stationary distribution. The expected batch size is therefore the same at
    all steps: the dataset size times p / (1 + p (b - 1)). Examples are independent of each other.

    Args:
        min_sep: b, an integer in [1, n], at least the number of bands of the strategy. With b = 1, it equals
            Poisson(sampling_prob), which has a tighter accountant.
        sampling_prob: p in (0, 1], the probability of joining a step at which the example is not waiting.

    Example:
        >>> import dpmech as dm
        >>> sampling, method = dm.BMinSep(min_sep=4, sampling_prob=0.1), dm.methods.Importance(0.1)
        >>> strategy = dm.SquareRoot(16, 4)
        >>> found = dm.delta(strategy, 3.0, 1.0, participation=sampling, method=method, rng=1)
        >>> found.guarantee.kind.name, 4e-6 < found.upper < 6e-6
        ('ESTIMATE', True)
    """

    min_sep: int
    sampling_prob: float
    random: ClassVar[bool] = True
    plan_name: ClassVar[str] = "b-min-sep"
    plan_settings: ClassVar[tuple[str, ...]] = ("separation",)
    plan_due: ClassVar[tuple[str, ...]] = ("separation",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_sep", check_integer("min_sep", self.min_sep, minimum=1))
        prob = check_real("sampling_prob", self.sampling_prob, minimum=0.0, maximum=1.0, open_minimum=True)
        object.__setattr__(self, "sampling_prob", prob)

    @property
    def certain(self) -> bool:
        """Whether every example joins every step."""
        return self.min_sep == 1 and self.sampling_prob == 1.0

    @property
    def rate(self) -> float:
        """The probability of joining, p / (1 + p (b - 1)), at every step."""
        return self.sampling_prob / (1.0 + self.sampling_prob * (self.min_sep - 1))

    @property
    def waiting(self) -> float:
        """The probability of waiting, p (b - 1) / (1 + p (b - 1)), at every step."""
        wait = self.sampling_prob * (self.min_sep - 1)
        return wait / (1.0 + wait)

    def chance(self, n: int) -> float:
        """The probability that an example joins any of n steps, approximately."""
        never = 1.0 - self.sampling_prob
        waits = self.rate * math.fsum(never ** max(n - wait, 0) for wait in range(1, self.min_sep))
        return 1.0 - (1.0 - self.waiting) * never**n - waits

    def pattern(self, n: int) -> Pattern:
        """The worst-case support: that of MinSep(b)."""
        if self.min_sep > n:
            raise InvalidParameterError("min_sep", self.min_sep, f"an integer in [1, n={n}]")
        return Pattern(self.min_sep, -(-n // self.min_sep))

    def requirement(self, n: int) -> str:
        """An independent decision for every example that is not waiting."""
        del n
        return (
            f"An example that took part waits for the next {self.min_sep - 1} steps. At every other step it "
            f"joins with probability {self.sampling_prob!r}, independently of all other examples and steps. "
            "Before step 0 every example draws, independently, for how many steps it still waits: 0 with "
            f"probability 1 / (1 + {self.sampling_prob!r} * {self.min_sep - 1}), and each of 1, ..., "
            f"{self.min_sep - 1} with {self.sampling_prob!r} times that. Who took part is kept secret."
        )

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """The p whose rate is the sampling probability of the plan, which keeps the expected batch size."""
        del epochs, steps_per_epoch
        min_sep = settings["separation"]
        if min_sep is None:
            raise InvalidParameterError("separation", min_sep, f"given with sampling {cls.plan_name}")
        least = check_integer("separation", min_sep, minimum=1)
        if sampling_prob * least > 1.0:
            most = int((1.0 + 1e-9) / sampling_prob)
            accepted = f"at most {most}: once in so many steps an example has to take part"
            raise InvalidParameterError("separation", least, accepted)
        return cls(least, min(1.0, sampling_prob / (1.0 - sampling_prob * (least - 1))))

    def prefix(self, n: int, steps: int) -> tuple["BMinSep", int]:
        """The same scheme over `steps` steps, with b reduced to `steps` if that is smaller."""
        self.pattern(n)
        return self, max(check_integer("steps", steps, minimum=1, maximum=n), self.min_sep)
