"""BallsInBinsSampler: a random allocation of examples to bins, for the run or new in every epoch."""

from dpmech.drawing import Allocation, Sampler, check_steps
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.balls_in_bins.participation import BallsInBins


class BallsInBinsSampler(Sampler):
    """Step t trains on bin t mod bins; every example is assigned to one bin, uniformly, for the whole run.

    With `fresh`, every epoch assigns every example to a new bin, with separate random words, so all
    allocations are independent. Batch sizes vary and must stay secret, like the batches; divide by
    `expected_batch_size`. The memory is four bytes per example.

    Args:
        dataset_size: number of examples, >= 1; for users after contributions are bounded.
        bins: b, steps per epoch.
        n: number of steps, >= b; with `fresh`, a multiple of b. Otherwise, the last epoch may be incomplete.
        fresh: True for a new allocation in every epoch.
        max_examples_per_user: m of a claim about users. It does not affect the batches, because every example
            is assigned independently. The dataset must bound the number of examples per user, as
            `dpmech.optim.UserExamples` does.
        rng: None for entropy from the operating system, which private training requires; or a numpy Generator
            or a seed for a reproducible run.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        lambda_cgd Algorithm 1, with the bins taken in turn (`cgd.alg1_line13`).

    Examples:
        >>> sampler = BallsInBinsSampler(10, 3, 6, rng=1)
        >>> [len(batch) for batch in sampler]
        [2, 5, 3, 2, 5, 3]
    """

    def __init__(
        self,
        dataset_size: int,
        bins: int,
        n: int,
        *,
        fresh: bool = False,
        max_examples_per_user: int | None = None,
        rng: object = None,
    ) -> None:
        participation = BallsInBins(bins, fresh, max_examples_per_user=max_examples_per_user)
        size, steps = check_integer("dataset_size", dataset_size, minimum=1), check_steps(n)
        participation.pattern(steps)
        self._fresh = fresh
        super().__init__(
            size,
            participation,
            steps,
            steps_per_epoch=participation.bins,
            expected_batch_size=size / participation.bins,
            rng=rng,
        )

    def _prepare(self) -> None:
        self._allocate(0)

    def _batch(self, step: int) -> IntArray:
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._fresh and epoch != self._epoch:
            self._allocate(epoch)
        return self._allocation.members(place)

    def _allocate(self, epoch: int) -> None:
        self._allocation = Allocation(self._key, self.steps_per_epoch, self.dataset_size, epoch)
        self._epoch = epoch
