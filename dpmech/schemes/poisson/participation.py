"""Poisson sampling: every example joins every step independently; for examples or users, or truncated."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from dpmech.engines import Truncation
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer, check_vector
from dpmech.mechanism import (
    EXAMPLES_ONLY,
    BoundedContributions,
    Participation,
    Pattern,
    Settings,
    check_examples_per_user,
    check_sampling_prob,
)

_LARGEST_DATASET = 1 << 53
_SHOWN = 6  # numbers of a schedule


@dataclasses.dataclass(frozen=True)
class Poisson(BoundedContributions):
    """Every example joins every step independently with probability `sampling_prob`.

    With `max_examples_per_user`, the claim is about users: two datasets are neighbours if one contains all
    examples of one additional user. The number of these examples in a batch is binomial.

    With `truncated_batch_size` and `dataset_size`, batches are truncated: of a batch of more than B examples,
    a uniformly random set of B is kept. This requires `Adjacency.ZERO_OUT`, under which an example whose
    gradient is zero in one of two neighbours keeps its random decision and its place in a batch.

    A sequence of n probabilities is a schedule, with one probability for each step. For noise that changes
    from step to step, use `Diagonal(entries)`, whose noise in a step is sigma divided by the entry of the
    step.

    Args:
        sampling_prob: q in (0, 1], for each example and step; or one probability in (0, 1) for each of the n
            steps, for claims about examples without truncation. With `max_examples_per_user`, q must be below
            1: with q = 1, nothing is sampled, and m examples are equivalent to one of norm m. With q = 1, all
            truncated batches have size B and are sampled without replacement.
        max_examples_per_user: m in [1, 1000], for a claim about users, who have at most m examples each; None
            for a claim about examples.
        truncated_batch_size: B, in [1, dataset_size - 1], the maximum batch size; None without a limit.
        dataset_size: n, the number of examples, in [2, 2^53], a public number; only with
            `truncated_batch_size`.

    Raises:
        InvalidParameterError: if an argument is invalid, or if only one setting of truncated batches is
            passed.
        UnsupportedCombinationError: for truncated batches of users with several examples, and for schedules
            with either.

    Examples:
        >>> import dpmech as dm
        >>> found = dm.epsilon(dm.Identity(12), 1.0, 1e-5, participation=dm.Poisson(sampling_prob=0.1))
        >>> f"{found.upper:.3f}"
        '3.021'
        >>> users = dm.Poisson(0.1, max_examples_per_user=4)
        >>> users, users.unit
        (Poisson(sampling_prob=0.1, max_examples_per_user=4), <Unit.USER: 'user'>)
        >>> truncated = dm.Poisson(0.01, truncated_batch_size=120, dataset_size=10_000).truncation
        >>> f"{truncated.truncated[1]:.4f}", f"{truncated.expected_batch_size:.2f}"
        ('0.0275', '99.90')
        >>> growing = dm.Poisson([0.05] * 6 + [0.1] * 6)
        >>> growing.prefix(12, 4)[0]
        Poisson(sampling_prob=(0.05, 0.05, 0.05, 0.05))
        >>> f"{dm.epsilon(dm.Identity(12), 1.0, 1e-5, participation=growing).upper:.3f}"
        '2.570'
    """

    sampling_prob: float | tuple[float, ...]
    max_examples_per_user: int | None = None
    truncated_batch_size: int | None = dataclasses.field(default=None, kw_only=True)
    dataset_size: int | None = dataclasses.field(default=None, kw_only=True)
    random: ClassVar[bool] = True
    per_release: ClassVar[bool] = True
    plan_name: ClassVar[str] = "poisson"
    plan_settings: ClassVar[tuple[str, ...]] = (
        "max_examples_per_user",
        "truncated_batch_size",
        "sampling_probs",
    )
    plan_sizes: ClassVar[tuple[str, ...]] = ("dataset_size",)

    def __post_init__(self) -> None:
        users = self.max_examples_per_user is not None
        if not isinstance(self.sampling_prob, str) and isinstance(self.sampling_prob, Sequence | np.ndarray):
            self._check_schedule()
            return
        if self.truncated_batch_size is not None or self.dataset_size is not None:
            self._check_truncated()
        prob = check_sampling_prob(self.sampling_prob, below_one=users)
        object.__setattr__(self, "sampling_prob", prob)
        object.__setattr__(self, "max_examples_per_user", check_examples_per_user(self.max_examples_per_user))

    def _check_schedule(self) -> None:
        if not self.by_coins or self.dataset_size is not None:
            raise UnsupportedCombinationError(
                "no bound here covers sampling probabilities that change for users with several examples, or "
                "for truncated batches",
                supported="Poisson(sampling_prob) of one number with these; of several numbers without them",
            )
        probs = check_vector("sampling_prob", self.sampling_prob)
        if not np.all((probs > 0.0) & (probs < 1.0)):
            raise InvalidParameterError(
                "sampling_prob",
                self.sampling_prob,
                "of numbers in (0, 1), one for each step",
                "; a step that all examples join is a release of its own, for `profile.compose` or a ledger",
            )
        object.__setattr__(self, "sampling_prob", tuple(probs.tolist()))

    @property
    def schedule(self) -> tuple[float, ...] | None:
        """The probability of every step; None if it is the same for any number of steps."""
        return self.sampling_prob if isinstance(self.sampling_prob, tuple) else None

    @property
    def mean_prob(self) -> float:
        """The mean of the probabilities of all steps."""
        own = self.sampling_prob
        return math.fsum(own) / len(own) if isinstance(own, tuple) else own

    @property
    def one_prob(self) -> float:
        """The probability of every step.

        Raises:
            UnsupportedCombinationError: for a schedule.
        """
        if isinstance(self.sampling_prob, tuple):
            raise UnsupportedCombinationError(
                f"{self!r} has a probability for every step", supported="Poisson(sampling_prob) of one number"
            )
        return self.sampling_prob

    def __repr__(self) -> str:
        """As of the base class, with only the ends of a long schedule."""
        own = self.schedule
        if own is None or len(own) <= _SHOWN:
            return super().__repr__()
        return (
            f"Poisson(sampling_prob=<{len(own)} from {own[0]!r} to {own[-1]!r}, mean {self.mean_prob:.6g}>)"
        )

    def _check_truncated(self) -> None:
        if self.max_examples_per_user is not None:
            raise UnsupportedCombinationError(
                "no theorem in dpmech covers truncated batches for users with several examples, which are "
                "not kept independently of each other",
                supported="Poisson with max_examples_per_user, or with truncated_batch_size and dataset_size",
            )
        if self.truncated_batch_size is None or self.dataset_size is None:
            name = "truncated_batch_size" if self.truncated_batch_size is None else "dataset_size"
            raise InvalidParameterError(
                name, None, "given: truncated_batch_size and dataset_size belong together"
            )
        size = check_integer("dataset_size", self.dataset_size, minimum=2, maximum=_LARGEST_DATASET)
        most = check_integer("truncated_batch_size", self.truncated_batch_size, minimum=1)
        if most >= size:
            raise InvalidParameterError(
                "truncated_batch_size",
                most,
                f"less than dataset_size={size}",
                "; if no batch can be too large, use Poisson(sampling_prob)",
            )
        object.__setattr__(self, "truncated_batch_size", most)
        object.__setattr__(self, "dataset_size", size)

    @property
    def certain(self) -> bool:
        """Whether every example joins every step."""
        return self.sampling_prob == 1.0 and self.truncated_batch_size is None

    @property
    def every_step_alike(self) -> bool:
        """True for examples, unless batches are truncated or probabilities change."""
        return self.by_coins and self.schedule is None

    @property
    def by_coins(self) -> bool:
        """Whether examples join independently, and the claim is about a single example."""
        return self.max_examples_per_user is None and self.truncated_batch_size is None

    @property
    def add_remove_refused(self) -> str | None:
        """Truncation is only for ZERO_OUT."""
        if self.truncated_batch_size is None:
            return None
        return (
            "whether others are kept depends on whether an example is drawn, so that one which is missing "
            "changes whose gradients are added, and how many examples there are, on which the bound depends"
        )

    @property
    def replace_one_refused(self) -> str | None:
        """None for claims about examples without truncation, which a theorem covers."""
        if self.max_examples_per_user is not None:
            return EXAMPLES_ONLY
        if self.truncated_batch_size is None:
            return None
        return (
            "in a truncated batch two gradients take the place of others; without truncated_batch_size, or "
            "with ZERO_OUT or FixedSizeBatches, there is a bound"
        )

    @functools.cached_property
    def truncation(self) -> Truncation | None:
        """The effect of truncation on one example; None if batches are not truncated."""
        if self.truncated_batch_size is None or self.dataset_size is None:
            return None
        return Truncation.of(self.one_prob, self.truncated_batch_size, self.dataset_size)

    def pattern(self, n: int) -> Pattern:
        """One release; the accountant composes them.

        Raises:
            InvalidParameterError: for a schedule of another number of steps.
        """
        if self.schedule is not None and len(self.schedule) != n:
            accepted = f"one probability for each of n={n} steps"
            raise InvalidParameterError("sampling_prob", f"{len(self.schedule)} numbers", accepted)
        return Pattern(n, 1)

    def prefix(self, n: int, steps: int) -> tuple[Participation, int]:
        """The probabilities of the first steps, for a schedule."""
        found, covered = super().prefix(n, steps)
        if self.schedule is None:
            return found, covered
        return Poisson(self.schedule[:covered]), covered

    def releases(self, n: int) -> int:
        """All n steps."""
        return n

    def requirement(self, n: int) -> str:
        """An independent decision for each example and step, and the bounds per user and per batch."""
        if self.max_examples_per_user is not None:
            return (
                f"{self.bounding()} At every step every example kept joins independently with probability "
                f"{self.sampling_prob!r}; which ones did is kept secret."
            )
        if self.truncated_batch_size is not None:
            return (
                f"The dataset has exactly {self.dataset_size} examples, which is public; one whose data are "
                "withdrawn keeps its place in it, with gradients of zero. At every step draw every example "
                f"independently with probability {self.sampling_prob!r}; where more than "
                f"{self.truncated_batch_size} are drawn, keep {self.truncated_batch_size} of them, chosen "
                "uniformly and without regard to their data. Which ones were drawn, how many, and which were "
                "kept is kept secret."
            )
        if self.schedule is not None:
            return (
                "At step t every example joins independently with the probability that `sampling_prob` of "
                f"the participation has for t = 0, ..., {n - 1}, from {min(self.schedule)!r} to "
                f"{max(self.schedule)!r}. "
                "The probabilities are public and fixed before the run; which examples joined is kept secret."
            )
        return (
            "At every step every example joins independently with probability "
            f"{self.sampling_prob!r}; which ones did is kept secret."
        )

    @classmethod
    def planned(cls, epochs: int, steps_per_epoch: int, sampling_prob: float, settings: Settings) -> Self:
        """The sampling probability of the plan or its schedule, and the size of the data for truncation.

        Raises:
            InvalidParameterError: for a schedule whose mean batch size, as an integer, is not that of the
                plan.
        """
        del epochs, steps_per_epoch
        probs, size = settings["sampling_probs"], settings["dataset_size"]
        most = settings["truncated_batch_size"]
        found = cls(
            sampling_prob if probs is None else probs,
            settings["max_examples_per_user"],
            truncated_batch_size=most,
            dataset_size=None if most is None else size,
        )
        # Sums are divided by the batch size of the plan: it has to be that of the batches.
        if probs is not None and abs(found.mean_prob - sampling_prob) * float(size) > 0.5 + 1e-9:
            raise InvalidParameterError(
                "sampling_probs",
                f"a mean of {found.mean_prob:.6g}",
                f"numbers with a mean of about batch_size / dataset_size = {sampling_prob:.6g}",
                f"; the batch size of these is {max(1, round(found.mean_prob * float(size)))}",
            )
        return found

    @classmethod
    def of_entries(cls, entries: Mapping[str, Any]) -> Self:
        """The size of the dataset is a field of truncated batches only."""
        if entries.get("truncated_batch_size") is None:
            entries = {name: value for name, value in entries.items() if name != "dataset_size"}
        return super().of_entries(entries)
