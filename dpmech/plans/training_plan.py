"""TrainingPlan: integer steps from the size of a dataset, a batch and the epochs."""

import dataclasses

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import Participation
from dpmech.numerics import short
from dpmech.plans.names import owners, sampling_kind

__all__ = ["TrainingPlan"]

_LARGEST = 10**15  # examples


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """Whole batches, epoch after epoch: n = epochs * (dataset_size // batch_size) steps.

    The sizes from which a strategy and a participation are made, in integers throughout.

    Args:
        dataset_size: number of examples, a public number: under ADD_REMOVE the real one is private, so that
            this is written down, and not computed from the data.
        batch_size: expected batch size, in [1, dataset_size].
        epochs: number of passes, an integer >= 1.

    Raises:
        InvalidParameterError: on a size that is no integer, or out of its range.

    Examples:
        >>> import dpmech as dm
        >>> plan = dm.TrainingPlan(dataset_size=50_000, batch_size=128, epochs=10)
        >>> plan.n, plan.steps_per_epoch, plan.q
        (3900, 390, 0.00256)
        >>> plan.participation("balls-in-bins")
        BallsInBins(bins=390)
        >>> strategy = dm.LambdaCGD(plan.n, 0.9)
    """

    dataset_size: int
    batch_size: int
    epochs: int

    def __post_init__(self) -> None:
        size = check_integer("dataset_size", self.dataset_size, minimum=1, maximum=_LARGEST)
        batch = check_integer("batch_size", self.batch_size, minimum=1, maximum=size)
        for name, value in (
            ("dataset_size", size),
            ("batch_size", batch),
            ("epochs", check_integer("epochs", self.epochs, minimum=1)),
        ):
            object.__setattr__(self, name, value)  # of numpy's integers, whose products overflow

    def __str__(self) -> str:
        return (
            f"{self!r}: {self.n} steps, {self.steps_per_epoch} an epoch; expected lot {self.batch_size} "
            f"under Poisson sampling, {short(self.dataset_size / self.bins)} under Balls-in-Bins"
        )

    @property
    def steps_per_epoch(self) -> int:
        """dataset_size // batch_size; the examples left over are not used in that epoch."""
        return self.dataset_size // self.batch_size

    @property
    def n(self) -> int:
        """Number of training steps."""
        return self.epochs * self.steps_per_epoch

    @property
    def q(self) -> float:
        """batch_size / dataset_size: how likely an example takes part in a step, where lots are sampled."""
        return self.batch_size / self.dataset_size

    @property
    def bins(self) -> int:
        """Bins of Balls-in-Bins: one for every step of an epoch."""
        return self.steps_per_epoch

    def participation(
        self,
        sampling: str,
        *,
        min_sep: int | None = None,
        max_participations: int | None = None,
        cycle: int | None = None,
        **own: int | None,
    ) -> Participation:
        """The participation schema of a sampling name, sized by this plan.

        Poisson samples with batch_size / dataset_size; CyclicPoisson with `cycle` times that from each
        of `cycle` groups, so that the expected batch size stays. min-sep defaults to one epoch apart.

        Args:
            sampling: name of a registered participation: every-step, single, min-sep, epochs, poisson,
                user-poisson, truncated-poisson, fixed-size-lots, b-min-sep, cyclic-poisson, user-cyclic,
                balls-in-bins, user-balls-in-bins, balls-in-bins-fresh.
            min_sep: of min-sep and user-min-sep: least distance of two participations.
            max_participations: of the same.
            cycle: of cyclic-poisson and user-cyclic: number of groups.
            **own: `max_examples_per_user` of user-poisson, user-cyclic, user-min-sep and user-balls-in-bins,
                `max_lot_size` of truncated-poisson, `separation` of b-min-sep, and settings of participations
                that were registered from outside.

        Raises:
            InvalidParameterError: on an unknown name, or a setting that this sampling does not take.
        """
        kind = sampling_kind(sampling)
        details = {"min_sep": min_sep, "max_participations": max_participations, "cycle": cycle, **own}
        belongs, taken = owners(), (*kind.plan_settings, *kind.plan_shares)
        for name, value in details.items():
            if value is not None and name not in taken:
                owner = f" (it belongs to {belongs[name]})" if name in belongs else ""
                raise InvalidParameterError(name, value, f"left out with sampling {sampling}{owner}")
        settings = {name: details.get(name) for name in taken}
        settings |= {name: getattr(self, name) for name in kind.plan_sizes}
        return kind.planned(self.epochs, self.steps_per_epoch, self.q, settings)
