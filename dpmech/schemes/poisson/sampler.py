"""PoissonSampler: every example joins every step independently."""

from dpmech.drawing import Sampler, check_steps, coins, whole_epoch
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.poisson.participation import Poisson


class PoissonSampler(Sampler):
    """Every example joins every step independently with probability `sampling_prob`.

    Each example compares 80 independent random bits with the probability; two bytes per example and step are
    generated, about a millisecond for a million examples. Sampling the size of the batch first would be
    faster, but a binomial number from floating-point arithmetic only approximates the right distribution.

    Args:
        dataset_size: number of examples, >= 1; for users after contributions are bounded.
        sampling_prob: q in (0, 1].
        n: number of steps, >= 1.
        max_examples_per_user: m of a claim about users. It does not affect the batches, as the sampler does
            not know the user of an example. Bound the contributions beforehand, with `Contributions`.
        rng: None for entropy from the operating system, which private training requires; or a numpy Generator
            or a seed for a reproducible run.

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
