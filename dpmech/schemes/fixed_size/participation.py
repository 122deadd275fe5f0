"""Batches of a fixed size: at every step a uniform set of examples, without replacement."""

import dataclasses
from typing import ClassVar, Self

from dpmech.engines import FixedDraw
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import Participation, Pattern, Settings

_LARGEST_DATASET = 1 << 53


@dataclasses.dataclass(frozen=True)
class FixedSizeBatches(Participation):
    """Every step uses a uniformly random set of B of the n examples, independently of all other steps.

    It requires `Adjacency.REPLACE_ONE`: two neighbours have n examples each, and differ in one of them.

    Args:
        dataset_size: n, the number of examples, in [1, 2^53]; a public number.
        batch_size: B, in [1, dataset_size]. With B = n, every example joins every step.

    Example:
        >>> import dpmech as dm
        >>> batches = dm.FixedSizeBatches(dataset_size=10_000, batch_size=100)
        >>> found = dm.epsilon(
        ...     dm.Identity(1), 2.0, 1e-5, participation=batches, adjacency=dm.Adjacency.REPLACE_ONE
        ... )
        >>> f"{found.upper:.4f}"
        '0.1995'
    """

    dataset_size: int
    batch_size: int
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True
    plan_name: ClassVar[str] = "fixed-size"
    plan_sizes: ClassVar[tuple[str, ...]] = ("dataset_size", "batch_size")

    def __post_init__(self) -> None:
        size = check_integer("dataset_size", self.dataset_size, minimum=1, maximum=_LARGEST_DATASET)
        batch = check_integer("batch_size", self.batch_size, minimum=1)
        if batch > size:
            raise InvalidParameterError("batch_size", batch, f"at most dataset_size={size}")
        object.__setattr__(self, "dataset_size", size)
        object.__setattr__(self, "batch_size", batch)

    @property
    def certain(self) -> bool:
        """Whether a batch is the whole dataset."""
        return self.batch_size == self.dataset_size

    @property
    def add_remove_refused(self) -> str:
        """Removing an example would change the sampling probability."""
        return (
            "with one example less the others fill its place, and the sampling probability B / n is another "
            "one"
        )

    @property
    def zero_out_refused(self) -> str:
        """Truncated batches of Poisson sampling cover it instead."""
        return (
            "for an example whose gradient is zero in one of two neighbours it is Poisson(1.0, "
            "truncated_batch_size=B, dataset_size=n), which has a bound of its own"
        )

    @property
    def replace_one_refused(self) -> None:
        """None, because a theorem covers REPLACE_ONE."""
        return

    @property
    def fixed_draw(self) -> FixedDraw:
        """Its dataset size and batch size."""
        return FixedDraw(self.dataset_size, self.batch_size)

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes them."""
        return Pattern(n, 1)

    def releases(self, n: int) -> int:
        """All n steps."""
        return n

    def requirement(self, n: int) -> str:
        """A new set of examples at every step."""
        del n
        return (
            f"The dataset has exactly {self.dataset_size} examples, which is public. At every step draw "
            f"exactly {self.batch_size} different ones of them, every set of so many as likely, without "
            "regard to their data and independently of all other steps: no shuffled order, and no set that "
            "serves twice. Which ones were drawn is kept secret."
        )

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """The dataset size and the batch size of the plan."""
        del epochs, steps_per_epoch, sampling_prob
        size, batch = settings["dataset_size"], settings["batch_size"]
        if size is None or batch is None:
            raise InvalidParameterError("dataset_size", size, f"given with sampling {cls.plan_name}")
        return cls(size, batch)
