"""TruncatedPoissonSampler: batches of at most B examples, also as padded arrays of one shape."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dpmech.drawing import Sampler, check_steps, chosen, coins
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.poisson.participation import Poisson


class TruncatedPoissonSampler(Sampler):
    """Every example joins every step independently; at most B of them, chosen uniformly, are kept.

    The random decisions are those of `PoissonSampler`. An example whose gradient is zeroed out keeps its
    index, its random decision and its place in a batch.

    Args:
        dataset_size: number of examples, which must equal the n of the participation.
        sampling_prob: q in (0, 1].
        truncated_batch_size: B, in [1, n - 1].
        stated_size: n of the participation.
        n: number of steps, >= 1.
        rng: None for entropy from the operating system, which private training requires; or a numpy Generator
            or a seed for a reproducible run.

    Raises:
        InvalidParameterError: if an argument is invalid, or the size of the dataset differs from the claim.

    Examples:
        >>> sampler = TruncatedPoissonSampler(100, 0.05, 6, 100, 4, rng=1)
        >>> [len(batch) for batch in sampler], round(sampler.expected_batch_size, 3)
        ([5, 6, 6, 4], 4.529)
        >>> indices, mask = sampler.padded(3)
        >>> indices.shape, mask.tolist()
        ((6,), [True, True, True, True, False, False])
    """

    def __init__(
        self,
        dataset_size: int,
        sampling_prob: float,
        truncated_batch_size: int,
        stated_size: int,
        n: int,
        *,
        rng: object = None,
    ) -> None:
        size = check_integer("dataset_size", dataset_size, minimum=1)
        most = check_integer("truncated_batch_size", truncated_batch_size, minimum=1)
        stated = check_integer("dataset_size", stated_size, minimum=2)
        participation = Poisson(sampling_prob, truncated_batch_size=most, dataset_size=stated)
        if size != stated or participation.truncation is None:
            raise InvalidParameterError(
                "dataset_size",
                size,
                f"{stated}, on which the claim depends",
                "; how many batches are truncated depends on it",
            )
        expected = participation.truncation.expected_batch_size
        super().__init__(
            size,
            participation,
            check_steps(n),
            # A mean just below an integer fraction of n counts as that fraction.
            steps_per_epoch=int(size / Fraction(expected) * (1 + Fraction(1, 10**12))),
            expected_batch_size=expected,
            rng=rng,
        )
        self._prob, self._most = participation.one_prob, most

    def padded(self, step: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """The batch of a step in the shape (B,), for hardware that requires a fixed shape.

        Where the mask is False there is no example: the index there is 0, and values computed from it must be
        multiplied by zero before gradients are summed.

        Args:
            step: t in [0, n - 1].

        Returns:
            Indices, int64, and the mask of those in the batch, both of shape (B,).

        Raises:
            HorizonError: past the last step.
            InvalidParameterError: if step is not an integer >= 0.
        """
        batch = self.indices(step)
        indices, mask = np.zeros(self._most, dtype=np.int64), np.zeros(self._most, dtype=np.bool_)
        indices[: batch.size], mask[: batch.size] = batch, True
        return indices, mask

    def _batch(self, step: int) -> IntArray:
        drawn = coins(self._key, step, self._prob, self.dataset_size)
        if drawn.size <= self._most:
            return drawn
        return drawn[chosen(self._key, step, self._most, drawn.size)]
