"""Truncated Poisson sampling: of a batch that is too large so many examples are kept, uniformly."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar, Self

from dpmech.engines import Truncation
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Participation, Pattern

_LARGEST_DATASET = 1 << 53


@dataclasses.dataclass(frozen=True)
class TruncatedPoisson(Participation):
    """Every example joins every step independently; of more than B examples B are kept, uniformly.

    It is what `Poisson(q, truncated_batch_size=B, dataset_size=n)` makes. Under `Adjacency.ZERO_OUT`: an
    example whose gradient is zero in one of two neighbours keeps its coin, and its place in a batch.

    Args:
        sampling_prob: q in (0, 1], of each coin. With q = 1 batches are of one size, B, without replacement.
        truncated_batch_size: B, in [1, dataset_size - 1].
        dataset_size: n, the number of examples, in [2, 2^53]; a public number.

    Example:
        >>> import dpmech as dm
        >>> batches = dm.Poisson(0.01, truncated_batch_size=120, dataset_size=10_000)
        >>> batches
        TruncatedPoisson(sampling_prob=0.01, truncated_batch_size=120, dataset_size=10000)
        >>> f"{batches.truncation.truncated[1]:.4f}", f"{batches.truncation.expected_batch_size:.2f}"
        ('0.0275', '99.90')
    """

    sampling_prob: float
    truncated_batch_size: int
    dataset_size: int
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True
    plan_name: ClassVar[str] = "truncated-poisson"
    plan_settings: ClassVar[tuple[str, ...]] = ("truncated_batch_size",)
    plan_due: ClassVar[tuple[str, ...]] = ("truncated_batch_size",)
    add_remove_refused: ClassVar[str | None] = (
        "whether others are kept depends on whether an example is drawn, so that one which is missing "
        "changes whose gradients are added, and how many examples there are, on which the bound rests"
    )
    plan_sizes: ClassVar[tuple[str, ...]] = ("dataset_size",)

    def __post_init__(self) -> None:
        prob = check_real("sampling_prob", self.sampling_prob, minimum=0.0, maximum=1.0, open_minimum=True)
        size = check_integer("dataset_size", self.dataset_size, minimum=2, maximum=_LARGEST_DATASET)
        most = check_integer("truncated_batch_size", self.truncated_batch_size, minimum=1)
        if most >= size:
            raise InvalidParameterError(
                "truncated_batch_size",
                most,
                f"less than dataset_size={size}",
                "; where no batch can be too large, it is Poisson(sampling_prob)",
            )
        object.__setattr__(self, "sampling_prob", prob)
        object.__setattr__(self, "truncated_batch_size", most)
        object.__setattr__(self, "dataset_size", size)

    @functools.cached_property
    def truncation(self) -> Truncation:
        """What truncation does to one example."""
        return Truncation.of(self.sampling_prob, self.truncated_batch_size, self.dataset_size)

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """All n."""
        return n

    def requirement(self, n: int) -> str:
        """A coin for each example and step, and a uniform choice where too many show heads."""
        del n
        return (
            f"The dataset has exactly {self.dataset_size} examples, which is public; one whose data are "
            "withdrawn keeps its place in it, with gradients of zero. At every step draw every example "
            f"independently with probability {self.sampling_prob!r}; where more than "
            f"{self.truncated_batch_size} are drawn, keep {self.truncated_batch_size} of them, chosen "
            "uniformly and without regard to their data. Which ones were drawn, how many, and which were "
            "kept is kept secret."
        )

    @classmethod
    def planned(
        cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Mapping[str, int | None]
    ) -> Self:
        """The sampling probability and the dataset of the plan."""
        del epochs, steps_per_epoch
        most, size = settings["truncated_batch_size"], settings["dataset_size"]
        if most is None or size is None:
            raise InvalidParameterError("truncated_batch_size", most, f"given with sampling {cls.plan_name}")
        return cls(sampling_prob, most, size)


def check_truncated(examples: int | None, most: int | None, size: int | None) -> None:
    """Refuse half of the settings of truncated batches, and them beside users."""
    if examples is not None:
        raise UnsupportedCombinationError(
            "no theorem here covers batches that are cut down and users with several examples: which of "
            "these are kept depends on each other",
            supported="Poisson with max_examples_per_user, or with truncated_batch_size and dataset_size",
        )
    if most is None or size is None:
        name = "truncated_batch_size" if most is None else "dataset_size"
        raise InvalidParameterError(
            name, None, "given: truncated_batch_size and dataset_size belong together"
        )
