"""RandomAllocationSampler: for every example a uniformly random set of k steps, or of those of its group."""

import numpy as np

from dpmech.drawing import Sampler, check_steps, groups
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.random_allocation.participation import RandomAllocation

# Entries of the table of steps that are taken, for the examples that are drawn together.
_CELLS = 1 << 22


class RandomAllocationSampler(Sampler):
    """Every example takes part in exactly k of the n steps, drawn for the run by Floyd's algorithm.

    For j = n - k, ..., n - 1, an example draws a uniform integer u in [0, j], and takes step u, or step j if
    it already has u. Every set of k steps then has the same probability. If k > n / 2, the n - k steps
    without the example are drawn instead. Batch sizes vary and must stay secret, like the batches; divide by
    `expected_batch_size`. The memory is four bytes per example and drawn step, and about five times as much
    during sorting.

    With `cycle`, every example is assigned to a group once, uniformly and independently, and draws its k
    steps from the n / cycle steps of its group.

    Args:
        dataset_size: number of examples, >= 1.
        participations: k, in [1, n / cycle].
        n: number of steps, >= 1.
        cycle: number of groups, a divisor of n.
        rng: None for entropy from the operating system, which private training requires; or a numpy Generator
            or a seed for a reproducible run.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        Bentley and Floyd 1987, "Programming pearls: a sample of brilliance".

    Examples:
        >>> sampler = RandomAllocationSampler(10, 2, 5, rng=1)
        >>> [len(batch) for batch in sampler], sampler.expected_batch_size
        ([5, 3, 3, 5, 4], 4.0)
        >>> sampler = RandomAllocationSampler(12, 1, 4, cycle=2, rng=1)  # steps 0 and 2, or 1 and 3
        >>> [batch.tolist() for batch in sampler]
        [[2, 4], [8, 10], [0, 5, 9], [1, 3, 6, 7, 11]]
    """

    def __init__(
        self, dataset_size: int, participations: int, n: int, *, cycle: int = 1, rng: object = None
    ) -> None:
        size, steps = check_integer("dataset_size", dataset_size, minimum=1), check_steps(n)
        participation = RandomAllocation(participations, cycle=cycle)
        self._turns, self._cycle = participation.turns(steps), participation.cycle
        count = participation.participations
        self._left_out = 2 * count > self._turns
        self._drawn = self._turns - count if self._left_out else count
        super().__init__(
            size,
            participation,
            steps,
            steps_per_epoch=steps // count,
            expected_batch_size=size * count / steps,
            rng=rng,
        )

    def _prepare(self) -> None:
        """Draw the steps of every example, and sort the examples by step."""
        size, n, drawn, cycle = self.dataset_size, self._turns, self._drawn, self._cycle
        taken = np.empty((drawn, size), dtype=np.int32)
        for row in range(drawn):
            # Every row has separate random words.
            taken[row] = groups(self._key, n - drawn + row + 1, size, row)
        for start in range(0, size, max(1, _CELLS // n)):
            part = taken[:, start : start + max(1, _CELLS // n)]
            examples = np.arange(part.shape[1])
            known = np.zeros((part.shape[1], n), dtype=np.bool_)
            for row, last in enumerate(range(n - drawn, n)):
                part[row] = np.where(known[examples, part[row]], last, part[row])
                known[examples, part[row]] = True
        if cycle > 1:
            group = groups(self._key, cycle, size, drawn)
            taken = taken * cycle + group
            # For batches from which the drawn examples are left out.
            self._members = [np.flatnonzero(group == one) for one in range(cycle)] if self._left_out else []
        steps = taken.ravel()
        self._starts = np.concatenate(([0], np.cumsum(np.bincount(steps, minlength=self.n))))
        narrow = steps.astype(np.uint16) if self.n <= 1 << 16 else steps  # sixteen bits sort in linear time
        kind = np.int32 if size <= 1 << 31 else np.int64
        self._examples = (np.argsort(narrow, kind="stable") % size).astype(kind)

    def _batch(self, step: int) -> IntArray:
        drawn = np.sort(self._examples[self._starts[step] : self._starts[step + 1]]).astype(np.int64)
        if not self._left_out:
            return drawn
        if self._cycle == 1:
            return np.delete(np.arange(self.dataset_size), drawn)
        return np.setdiff1d(self._members[step % self._cycle], drawn, assume_unique=True)
