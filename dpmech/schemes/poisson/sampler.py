"""Samplers of Poisson batches: every example joins every step independently."""

from dpmech.drawing import Sampler, check_steps, coins, whole_epoch
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.poisson.participation import Poisson, UserPoisson


class _CoinsOfAll(Sampler):
    """Every example tosses a coin of its own at every step."""

    def __init__(self, dataset_size: int, participation: Poisson | UserPoisson, n: int, rng: object) -> None:
        size = check_integer("dataset_size", dataset_size, minimum=1)
        super().__init__(
            size,
            participation,
            check_steps(n),
            steps_per_epoch=whole_epoch(1, participation.sampling_prob),
            expected_batch_size=participation.sampling_prob * size,
            rng=rng,
        )
        self._prob = participation.sampling_prob

    def _batch(self, step: int) -> IntArray:
        return coins(self._key, step, self._prob, self.dataset_size)


class PoissonSampler(_CoinsOfAll):
    """Every example joins every step independently with probability `sampling_prob`.

    Each example compares 80 random bits of its own with the probability; two bytes an example and step are
    drawn, about a millisecond for a million examples. Drawing the size of the batch first would be faster,
    but a binomial number from floating-point arithmetic has the right law only nearly.

    Args:
        dataset_size: number of examples, >= 1.
        sampling_prob: q in (0, 1].
        n: number of steps, >= 1.
        rng: None for entropy of the operating system, as private training must; or a numpy Generator or a
            seed for a run that must repeat.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> sampler = PoissonSampler(100, 0.05, 4, rng=1)
        >>> [len(batch) for batch in sampler], sampler.expected_batch_size
        ([5, 8, 6, 4], 5.0)
    """

    def __init__(self, dataset_size: int, sampling_prob: float, n: int, *, rng: object = None) -> None:
        super().__init__(dataset_size, Poisson(sampling_prob), n, rng)


class UserPoissonSampler(_CoinsOfAll):
    """The batches of `PoissonSampler`, of a dataset in which no user has more than so many examples.

    Who holds which example is not known to it: bound the contributions before, with
    `Contributions`.

    Args:
        dataset_size: number of examples that were kept, >= 1.
        sampling_prob: q in (0, 1).
        max_examples_per_user: m >= 1.
        n: number of steps, >= 1.
        rng: None for entropy of the operating system, as private training must; or a numpy Generator or a
            seed for a run that must repeat.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> [len(batch) for batch in UserPoissonSampler(100, 0.05, 4, 4, rng=1)]
        [5, 8, 6, 4]
    """

    def __init__(
        self,
        dataset_size: int,
        sampling_prob: float,
        max_examples_per_user: int,
        n: int,
        *,
        rng: object = None,
    ) -> None:
        super().__init__(dataset_size, UserPoisson(sampling_prob, max_examples_per_user), n, rng)
