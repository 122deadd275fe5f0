"""FixedSizeSampler: at every step a uniform set of a fixed number of examples."""

import numpy as np

from dpmech.drawing import Sampler, check_steps, chosen
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.fixed_size.participation import FixedSizeBatches


class FixedSizeSampler(Sampler):
    """Every step samples a uniform set of exactly `batch_size` examples, independently of all other steps.

    Every example gets a random word of 64 bits at every step, and the examples with the smallest words form
    the batch. Ties at the boundary are regenerated, so that every set has exactly the same probability.

    Args:
        dataset_size: number of examples, which must equal the n of the participation.
        stated_size: n of the participation.
        batch_size: B, in [1, n].
        n: number of steps, >= 1.
        rng: None for entropy from the operating system, which private training requires; or a numpy Generator
            or a seed for a reproducible run.

    Raises:
        InvalidParameterError: if an argument is invalid, or the size of the dataset differs from the claim.

    Examples:
        >>> sampler = FixedSizeSampler(100, 100, 3, 4, rng=1)
        >>> [batch.tolist() for batch in sampler][:2], sampler.expected_batch_size, sampler.steps_per_epoch
        ([[16, 36, 70], [2, 35, 37]], 3.0, 33)
    """

    def __init__(
        self, dataset_size: int, stated_size: int, batch_size: int, n: int, *, rng: object = None
    ) -> None:
        size = check_integer("dataset_size", dataset_size, minimum=1)
        participation = FixedSizeBatches(stated_size, batch_size)
        if size != participation.dataset_size:
            raise InvalidParameterError(
                "dataset_size", size, f"{participation.dataset_size}, on which the claim depends"
            )
        super().__init__(
            size,
            participation,
            check_steps(n),
            steps_per_epoch=size // participation.batch_size,
            expected_batch_size=float(participation.batch_size),
            rng=rng,
        )
        self._most = participation.batch_size

    def _batch(self, step: int) -> IntArray:
        if self._most == self.dataset_size:
            return np.arange(self.dataset_size)
        return chosen(self._key, step, self._most, self.dataset_size)
