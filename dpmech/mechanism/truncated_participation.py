"""TruncatedPoisson: independent coins, and of a lot that is too large so many examples, uniformly."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar, Self

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism.participation import Participation, Pattern
from dpmech.numerics import (
    at_least,
    at_most,
    product_down,
    product_up,
    quotient_down,
    quotient_up,
    sum_down,
    sum_up,
)

__all__ = ["TruncatedPoisson", "Truncation"]

_LARGEST_DATASET = 1 << 53
Ends = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Truncation:
    """How a lot that is too large treats one example; all probabilities between two floats.

    Args:
        untruncated: that fewer than B of the others were drawn, so that the example stays if drawn.
        truncated: that B or more of the others were drawn.
        kept: that the example was drawn and kept, given that.
        joined: that the example is in the lot, whatever happened.
    """

    untruncated: Ends
    truncated: Ends
    kept: Ends
    joined: Ends


@dataclasses.dataclass(frozen=True)
class TruncatedPoisson(Participation):
    """Every example joins every step independently; of a lot of more than B examples, B are kept, uniformly.

    It is what `Poisson(q, max_lot_size=B, dataset_size=n)` makes. Under `Adjacency.ZERO_OUT`: an example
    whose gradient is zero in one of two neighbours keeps its coin, and its place in a lot.

    Args:
        sampling_prob: q in (0, 1], of each coin. With q = 1 lots are of one size, B, without replacement.
        max_lot_size: B, in [1, dataset_size - 1].
        dataset_size: n, the number of examples, in [2, 2^53]; a public number.

    Example:
        >>> import dpmech as dm
        >>> lots = dm.Poisson(0.01, max_lot_size=120, dataset_size=10_000)
        >>> lots
        TruncatedPoisson(sampling_prob=0.01, max_lot_size=120, dataset_size=10000)
        >>> f"{lots.truncation.truncated[1]:.4f}", f"{lots.expected_lot_size:.2f}"
        ('0.0260', '99.92')
    """

    sampling_prob: float
    max_lot_size: int
    dataset_size: int
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True
    plan_name: ClassVar[str] = "truncated-poisson"
    plan_settings: ClassVar[tuple[str, ...]] = ("max_lot_size",)
    add_remove_refused: ClassVar[str | None] = (
        "whether others are kept depends on whether an example is drawn, so that one which is missing changes "
        "whose gradients are added, and how many examples there are, on which the bound rests"
    )
    plan_sizes: ClassVar[tuple[str, ...]] = ("dataset_size",)

    def __post_init__(self) -> None:
        prob = check_real("sampling_prob", self.sampling_prob, minimum=0.0, maximum=1.0, open_minimum=True)
        size = check_integer("dataset_size", self.dataset_size, minimum=2, maximum=_LARGEST_DATASET)
        most = check_integer("max_lot_size", self.max_lot_size, minimum=1)
        if most >= size:
            raise InvalidParameterError(
                "max_lot_size",
                most,
                f"less than dataset_size={size}",
                "; where no lot can be too large, it is Poisson(sampling_prob)",
            )
        object.__setattr__(self, "sampling_prob", prob)
        object.__setattr__(self, "max_lot_size", most)
        object.__setattr__(self, "dataset_size", size)

    @functools.cached_property
    def truncation(self) -> Truncation:
        """What truncation does to one example, rounded outward.

        With N binomial of n coins: p = (B / n) P(N > B) / tau, and the example is in the lot with probability
        q (1 - tau) + (B / n) P(N > B), as it is in a lot of m + 1 drawn ones with probability B / (m + 1).
        """
        q, most, size = self.sampling_prob, self.max_lot_size, self.dataset_size
        untruncated, truncated = at_most(size - 1, q, most - 1), at_least(size - 1, q, most)
        full = at_least(size, q, most + 1)
        low = quotient_down(product_down(most, full[0]), size)
        high = quotient_up(product_up(most, full[1]), size)
        # Kept among B + 1 or more, each as likely.
        ceiling = quotient_up(product_up(q, most), most + 1)
        kept = (
            min(ceiling, quotient_down(low, truncated[1])) if truncated[1] > 0.0 else 0.0,
            min(ceiling, quotient_up(high, truncated[0])) if truncated[0] > 0.0 else ceiling,
        )
        joined = (
            sum_down([product_down(q, untruncated[0]), low]),
            min(q, sum_up([product_up(q, untruncated[1]), high])),
        )
        return Truncation(untruncated, truncated, kept, joined)

    @property
    def expected_lot_size(self) -> float:
        """The mean size of a lot."""
        return self.dataset_size * self.truncation.joined[1]

    @property
    def largest_lot(self) -> int:
        """B."""
        return self.max_lot_size

    @property
    def stated_size(self) -> int:
        """The n of the claim."""
        return self.dataset_size

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """All n."""
        return n

    def duty(self, n: int) -> str:
        """A coin for each example and step, and a uniform choice where too many show heads."""
        del n
        return (
            f"The dataset has exactly {self.dataset_size} examples, which is public; one whose data are "
            "withdrawn keeps its place in it, with gradients of zero. At every step draw every example "
            f"independently with probability {self.sampling_prob!r}; where more than {self.max_lot_size} are "
            f"drawn, keep {self.max_lot_size} of them, chosen uniformly and without regard to their data. "
            "Which ones were drawn, how many, and which were kept is kept secret."
        )

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """The sampling probability and the dataset of the plan."""
        del epochs, steps_per_epoch
        most, size = settings["max_lot_size"], settings["dataset_size"]
        if most is None or size is None:
            raise InvalidParameterError("max_lot_size", most, f"given with sampling {cls.plan_name}")
        return cls(sampling_prob, most, size)
