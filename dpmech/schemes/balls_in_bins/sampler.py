"""Samplers of Balls-in-Bins: one random allocation of examples to bins for the run, or one every epoch."""

from dpmech.drawing import Allocation, Sampler, check_steps
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.balls_in_bins.participation import BallsInBins, FreshBallsInBins, UserBallsInBins


class _BinsInTurn(Sampler):
    """The steps of an epoch are the bins, in order."""

    def __init__(
        self, dataset_size: int, participation: BallsInBins | UserBallsInBins, n: int, rng: object
    ) -> None:
        size, steps = check_integer("dataset_size", dataset_size, minimum=1), check_steps(n)
        participation.pattern(steps)
        super().__init__(
            size,
            participation,
            steps,
            steps_per_epoch=participation.bins,
            expected_batch_size=size / participation.bins,
            rng=rng,
        )


class _OneAllocation(_BinsInTurn):
    """One allocation for the whole run."""

    def _prepare(self) -> None:
        self._allocation = Allocation(self._key, self.steps_per_epoch, self.dataset_size)

    def _batch(self, step: int) -> IntArray:
        return self._allocation.members(step % self.steps_per_epoch)


class BallsInBinsSampler(_OneAllocation):
    """Step t trains on bin t mod bins; every example is in one bin, drawn once, uniformly, for the whole run.

    Batches differ in size, which must stay secret with who is in them: normalise by `expected_batch_size`.
    Four bytes an example are held.

    Args:
        dataset_size: number of examples, >= 1.
        bins: b, steps of an epoch.
        n: number of steps, a multiple of b.
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

    def __init__(self, dataset_size: int, bins: int, n: int, *, rng: object = None) -> None:
        super().__init__(dataset_size, BallsInBins(bins), n, rng)


class UserBallsInBinsSampler(_OneAllocation):
    """The batches of `BallsInBinsSampler`, of examples of which a user has at most `max_examples_per_user`.

    Batches do not depend on whose an example is: every example has a bin of its own. That nobody has more
    than so many is up to the dataset, as `dpmech.optim.UserExamples`.

    Args:
        dataset_size: number of examples kept, >= 1.
        bins: b, steps of an epoch.
        max_examples_per_user: m, which says nothing about the batches.
        n: number of steps, a multiple of b.
        rng: None for entropy of the operating system, as private training must; or a numpy Generator or a
            seed for a run that must repeat.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> sampler = UserBallsInBinsSampler(10, 3, 2, 6, rng=1)
        >>> [len(batch) for batch in sampler]
        [2, 5, 3, 2, 5, 3]
    """

    def __init__(
        self, dataset_size: int, bins: int, max_examples_per_user: int, n: int, *, rng: object = None
    ) -> None:
        super().__init__(dataset_size, UserBallsInBins(bins, max_examples_per_user), n, rng)


class FreshBallsInBinsSampler(_BinsInTurn):
    """Step t trains on bin t mod bins of its epoch; every epoch puts every example into one bin, anew.

    The allocation of an epoch comes from random words of its own, so that all of them are independent.
    Batches differ in size, which must stay secret with who is in them: normalise by
    `expected_batch_size`. Four bytes an example are held, for one epoch at a time.

    Args:
        dataset_size: number of examples, >= 1.
        bins: b, steps of an epoch.
        n: number of steps, a multiple of b.
        rng: None for entropy of the operating system, as private training must; or a numpy Generator or a
            seed for a run that must repeat.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> sampler = FreshBallsInBinsSampler(10, 3, 6, rng=1)
        >>> [len(batch) for batch in sampler]
        [2, 5, 3, 2, 5, 3]
    """

    def __init__(self, dataset_size: int, bins: int, n: int, *, rng: object = None) -> None:
        super().__init__(dataset_size, FreshBallsInBins(bins), n, rng)

    def _prepare(self) -> None:
        self._epoch = -1

    def _batch(self, step: int) -> IntArray:
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._allocation = Allocation(self._key, self.steps_per_epoch, self.dataset_size, epoch)
            self._epoch = epoch
        return self._allocation.members(place)
