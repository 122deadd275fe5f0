"""BMinSepSampler: an example that took part has a cooldown; otherwise it joins independently."""

import numpy as np

from dpmech.drawing import Sampler, check_steps, coins, groups, whole_epoch
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.b_min_sep.participation import BMinSep


class BMinSepSampler(Sampler):
    """After taking part, an example waits b - 1 steps (cooldown), then joins each step with probability p.

    The cooldowns at step 0 have their stationary distribution, so all batches have the same expected size.
    All random decisions, including those at step 0, use probabilities that are rounded as in
    `PoissonSampler`. The memory is four bytes per example. Batches are generated in the order of the steps,
    so a batch that is requested out of order costs as much as all batches before it.

    Args:
        dataset_size: number of examples, >= 1.
        min_sep: b, in [1, n].
        sampling_prob: p in (0, 1].
        n: number of steps, >= 1.
        rng: None for entropy from the operating system, which private training requires; or a numpy Generator
            or a seed for a reproducible run.

    Raises:
        InvalidParameterError: if an argument is invalid.

    Examples:
        >>> sampler = BMinSepSampler(100, 4, 0.1, 6, rng=1)
        >>> [len(batch) for batch in sampler], round(sampler.expected_batch_size, 3), sampler.steps_per_epoch
        ([6, 9, 8, 9, 3, 7], 7.692, 13)
    """

    def __init__(
        self, dataset_size: int, min_sep: int, sampling_prob: float, n: int, *, rng: object = None
    ) -> None:
        size, steps = check_integer("dataset_size", dataset_size, minimum=1), check_steps(n)
        participation = BMinSep(min_sep, sampling_prob)
        participation.pattern(steps)
        self._law = participation
        super().__init__(
            size,
            participation,
            steps,
            steps_per_epoch=whole_epoch(1, participation.sampling_prob) + participation.min_sep - 1,
            expected_batch_size=participation.rate * size,
            rng=rng,
        )

    def _prepare(self) -> None:
        # The first step that each example may join, and the first step that is not generated yet.
        self._free = np.zeros(self.dataset_size, dtype=np.int32)
        self._drawn = 0
        if self._law.min_sep > 1:
            # Position n of the random words is past the last step, so no step uses it.
            cooling_down = coins(self._key, self.n, self._law.waiting, self.dataset_size)
            waits = groups(self._key, self._law.min_sep - 1, self.dataset_size)
            self._free[cooling_down] = waits[cooling_down] + 1

    def _batch(self, step: int) -> IntArray:
        if step < self._drawn:
            self._prepare()
        batch = np.empty(0, dtype=np.int64)
        for at in range(self._drawn, step + 1):
            heads = coins(self._key, at, self._law.sampling_prob, self.dataset_size)
            batch = heads[self._free[heads] <= at]
            self._free[batch] = at + self._law.min_sep
        self._drawn = step + 1
        return batch
