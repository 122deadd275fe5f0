"""PoissonSampler: every example joins every step independently."""

from collections.abc import Sequence

from dpmech.drawing import Sampler, check_steps, coins, whole_epoch
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.poisson.participation import Poisson


class PoissonSampler(Sampler):
    """Every example joins every step independently, with probability `sampling_prob` or that of the step.

    For each example, 80 independent random bits are compared with the probability. Usually, only two bytes
    per example and step are generated, which takes about a millisecond for a million examples. Sampling the
    size of the batch first would be faster, but a binomial number from floating-point arithmetic has only
    approximately the correct distribution.

    Args:
        dataset_size: number of examples, >= 1; for users after contributions are bounded.
        sampling_prob: q in (0, 1]; or one in (0, 1) for each of the n steps. `expected_batch_size`, a
            constant, is then the mean over all steps.
        n: number of steps, >= 1.
        max_examples_per_user: m of a claim about users. It does not affect the batches, because the sampler
            does not know the users. Bound the contributions beforehand with `Contributions`.
        rng: None for entropy from the operating system, which private training requires; or a numpy Generator
            or a seed for a reproducible run.

    Raises:
        InvalidParameterError: if an argument is invalid.

    Examples:
        >>> sampler = PoissonSampler(100, 0.05, 4, rng=1)
        >>> [len(batch) for batch in sampler], sampler.expected_batch_size
        ([5, 8, 6, 4], 5.0)
    """

    def __init__(
        self,
        dataset_size: int,
        sampling_prob: float | Sequence[float],
        n: int,
        *,
        max_examples_per_user: int | None = None,
        rng: object = None,
    ) -> None:
        size = check_integer("dataset_size", dataset_size, minimum=1)
        participation = Poisson(sampling_prob, max_examples_per_user)  # type: ignore[arg-type]  # any sequence
        participation.pattern(check_steps(n))
        self._mean = mean = participation.mean_prob
        self._schedule = participation.schedule
        super().__init__(
            size,
            participation,
            n,
            steps_per_epoch=whole_epoch(1, mean),
            expected_batch_size=mean * size,
            rng=rng,
        )

    def _batch(self, step: int) -> IntArray:
        prob = self._mean if self._schedule is None else self._schedule[step]
        return coins(self._key, step, prob, self.dataset_size)
