"""Samplers of Poisson lots: every example tosses a coin of its own."""

import hashlib
from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import CyclicPoisson, Poisson, UserCyclicPoisson, UserPoisson
from dpmech.numerics import IntArray
from dpmech.samplers.balls_in_bins import Allocation
from dpmech.samplers.base import Sampler
from dpmech.samplers.contributions import numbered_users
from dpmech.samplers.random_words import check_steps, coins

__all__ = [
    "CyclicPoissonSampler",
    "PoissonSampler",
    "UserCyclicPoissonSampler",
    "UserPoissonSampler",
    "whole_epoch",
]


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

    def _lot(self, step: int) -> IntArray:
        return coins(self._key, step, self._prob, self.dataset_size)


class PoissonSampler(_CoinsOfAll):
    """Every example joins every step independently with probability `sampling_prob`.

    Each example compares 80 random bits of its own with the probability; two bytes an example and step are
    drawn, about a millisecond for a million examples. Drawing the size of the lot first would be faster, but
    a binomial number from floating-point arithmetic has the right law only nearly.

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
        >>> [len(lot) for lot in sampler], sampler.expected_batch_size
        ([5, 8, 6, 4], 5.0)
    """

    def __init__(self, dataset_size: int, sampling_prob: float, n: int, *, rng: object = None) -> None:
        super().__init__(dataset_size, Poisson(sampling_prob), n, rng)


class UserPoissonSampler(_CoinsOfAll):
    """The lots of `PoissonSampler`, of a dataset in which no user has more than so many examples.

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
        >>> [len(lot) for lot in UserPoissonSampler(100, 0.05, 4, 4, rng=1)]
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


class _GroupsInTurn(Sampler):
    """Step t samples group t mod cycle, each of its examples independently."""

    def __init__(
        self,
        dataset_size: int,
        participation: CyclicPoisson | UserCyclicPoisson,
        n: int,
        rng: object,
        owners: IntArray | None = None,
    ) -> None:
        size = check_integer("dataset_size", dataset_size, minimum=1)
        self._prob, self._cycle, self._owners = participation.sampling_prob, participation.cycle, owners
        super().__init__(
            size,
            participation,
            check_steps(n),
            steps_per_epoch=whole_epoch(self._cycle, self._prob),
            expected_batch_size=self._prob * size / self._cycle,
            rng=rng,
        )

    def _prepare(self) -> None:
        self._allocation = Allocation(self._key, self._cycle, self.dataset_size, owners=self._owners)

    def _lot(self, step: int) -> IntArray:
        group = self._allocation.members(step % self._cycle)
        return group[coins(self._key, step, self._prob, group.size)]


class CyclicPoissonSampler(_GroupsInTurn):
    """Step t samples group t mod cycle, each of its examples independently with probability `sampling_prob`.

    Every example is put into its group once, uniformly and independently, so that the groups do not depend
    on the other examples.

    Args:
        dataset_size: number of examples, >= 1.
        sampling_prob: q in (0, 1].
        cycle: number of groups, >= 1.
        n: number of steps, >= 1.
        rng: None for entropy of the operating system, as private training must; or a numpy Generator or a
            seed for a run that must repeat.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> sampler = CyclicPoissonSampler(100, 0.2, 4, 8, rng=1)
        >>> sampler.expected_batch_size, sampler.steps_per_epoch
        (5.0, 20)
    """

    def __init__(
        self, dataset_size: int, sampling_prob: float, cycle: int, n: int, *, rng: object = None
    ) -> None:
        super().__init__(dataset_size, CyclicPoisson(sampling_prob, cycle), n, rng)


class UserCyclicPoissonSampler(_GroupsInTurn):
    """Step t samples group t mod cycle, and all examples of a user are in one group.

    Every user is put into a group once, uniformly and independently, so that the groups do not depend on
    other users. How many examples a group has is left to chance.

    Args:
        dataset_size: number of examples that were kept, >= 1.
        sampling_prob: q in (0, 1).
        cycle: number of groups, >= 1.
        max_examples_per_user: m >= 1.
        n: number of steps, >= 1.
        user_ids: whose each example is, as for `Contributions.bounded`, shape (dataset_size,). Nobody may
            have more than m examples.
        rng: None for entropy of the operating system, as private training must; or a numpy Generator or a
            seed for a run that must repeat.

    Raises:
        InvalidParameterError: on a bad argument, or a user with more examples.

    Examples:
        >>> ids = [example // 2 for example in range(12)]  # two examples each
        >>> sampler = UserCyclicPoissonSampler(12, 0.9, 2, 2, 4, user_ids=ids, rng=3)
        >>> [lot.tolist() for lot in sampler]
        [[0, 1, 4, 5, 6, 10, 11], [2, 3, 8, 9], [0, 5, 6, 7, 10], [2, 3, 8, 9]]
    """

    def __init__(
        self,
        dataset_size: int,
        sampling_prob: float,
        cycle: int,
        max_examples_per_user: int,
        n: int,
        *,
        user_ids: Sequence[Hashable] | npt.NDArray[np.generic] | None = None,
        rng: object = None,
    ) -> None:
        participation = UserCyclicPoisson(sampling_prob, cycle, max_examples_per_user)
        size = check_integer("dataset_size", dataset_size, minimum=1)
        if user_ids is None:
            raise InvalidParameterError(
                "user_ids", None, "whose each example is: all examples of a user go into one group"
            )
        owners, _ = numbered_users(user_ids)
        if owners.size != size:
            raise InvalidParameterError("user_ids", f"{owners.size} ids", f"one for each of {size} examples")
        most = int(np.bincount(owners).max())
        if most > participation.max_examples_per_user:
            raise InvalidParameterError(
                "user_ids",
                f"a user with {most} examples",
                f"at most {participation.max_examples_per_user} of everyone, as Contributions.bounded keeps",
            )
        super().__init__(size, participation, n, rng, owners)

    def _configuration(self) -> dict[str, Any]:
        # Whose examples are whose decides the lots, as the key does.
        whose = hashlib.sha256(np.asarray(self._owners, dtype="<i8").tobytes()).hexdigest()
        return super()._configuration() | {"users": whose}


def whole_epoch(cycle: int, prob: float) -> int:
    """Steps of an epoch: cycle / prob, rounded down."""
    # 1 / q may fall just short of the integer that q was made from. Fractions do not overflow.
    return int(cycle / Fraction(prob) * (1 + Fraction(1, 10**12)))
