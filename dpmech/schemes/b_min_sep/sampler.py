"""BMinSepSampler: every example rests after it took part, and tosses a coin of its own when it does not."""

import numpy as np

from dpmech.drawing import Sampler, check_steps, coins, groups, whole_epoch
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.b_min_sep.participation import BMinSep


class BMinSepSampler(Sampler):
    """An example that took part rests for b - 1 steps; then it joins every step with probability p.

    The rest counters at step 0 have their stationary law, so that batches have one expected size; each of the
    coins behind it and of those of the steps has the probability of `PoissonSampler`. Four bytes an example
    are held. Batches are found in the order of the steps: one that is asked for out of order costs as much as
    all before it.

    Args:
        dataset_size: number of examples, >= 1.
        min_sep: b, in [1, n].
        sampling_prob: p in (0, 1].
        n: number of steps, >= 1.
        rng: None for entropy of the operating system, as private training must; or a numpy Generator or a
            seed for a run that must repeat.

    Raises:
        InvalidParameterError: on a bad argument.

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
        # The step from which on each example is free to join, and the first step that is not drawn yet.
        self._free = np.zeros(self.dataset_size, dtype=np.int32)
        self._drawn = 0
        if self._law.min_sep > 1:
            # Past the last step there are coins that no step tosses.
            cooling_down = coins(self._key, self.n, self._law.waiting, self.dataset_size)
            rests = groups(self._key, self._law.min_sep - 1, self.dataset_size)
            self._free[cooling_down] = rests[cooling_down] + 1

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
