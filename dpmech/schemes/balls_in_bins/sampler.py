"""BallsInBinsSampler: a random allocation of examples to bins, for the run or anew for every epoch."""

from dpmech.drawing import Allocation, Sampler, check_steps
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.balls_in_bins.participation import BallsInBins


class BallsInBinsSampler(Sampler):
    """Step t trains on bin t mod bins; every example is in one bin, drawn once, uniformly, for the whole run.

    With `fresh` every epoch puts every example into one bin, anew, by random words of its own, so that all
    allocations are independent. Batches differ in size, which must stay secret with who is in them: normalise
    by `expected_batch_size`. Four bytes an example are held.

    Args:
        dataset_size: number of examples, >= 1; of users those that were kept.
        bins: b, steps of an epoch.
        n: number of steps, a multiple of b.
        fresh: True for a new allocation every epoch.
        max_examples_per_user: m of a claim about users, which says nothing about the batches: every example
            has a bin of its own. That nobody has more than so many is up to the dataset, as
            `dpmech.optim.UserExamples`.
        rng: None for entropy of the operating system, as private training must; or a numpy Generator or a
            seed for a run that must repeat.

    Raises:
        InvalidParameterError: on a bad argument.

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
