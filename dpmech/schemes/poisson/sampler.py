"""PoissonSampler: every example joins every step independently."""

from dpmech.drawing import Sampler, check_steps, coins, whole_epoch
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.poisson.participation import Poisson


class PoissonSampler(Sampler):
    """Every example joins every step independently with probability `sampling_prob`.

    Each example compares 80 random bits of its own with the probability; two bytes an example and step are
    drawn, about a millisecond for a million examples. Drawing the size of the batch first would be faster,
    but a binomial number from floating-point arithmetic has the right law only nearly.

    Args:
        dataset_size: number of examples, >= 1; of users those that were kept.
        sampling_prob: q in (0, 1].
        n: number of steps, >= 1.
        max_examples_per_user: m of a claim about users, which says nothing about the batches: who holds which
            example is not known here. Bound the contributions before, with `Contributions`.
        rng: None for entropy of the operating system, as private training must; or a numpy Generator or a
            seed for a run that must repeat.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> sampler = PoissonSampler(100, 0.05, 4, rng=1)
        >>> [len(batch) for batch in sampler], sampler.expected_batch_size
        ([5, 8, 6, 4], 5.0)
    """

    def __init__(
        self,
        dataset_size: int,
        sampling_prob: float,
        n: int,
        *,
        max_examples_per_user: int | None = None,
        rng: object = None,
    ) -> None:
        size = check_integer("dataset_size", dataset_size, minimum=1)
        participation = Poisson(sampling_prob, max_examples_per_user)
        self._prob = participation.sampling_prob
        super().__init__(
            size,
            participation,
            check_steps(n),
            steps_per_epoch=whole_epoch(1, self._prob),
            expected_batch_size=self._prob * size,
            rng=rng,
        )

    def _batch(self, step: int) -> IntArray:
        return coins(self._key, step, self._prob, self.dataset_size)
