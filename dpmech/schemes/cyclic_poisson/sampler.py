"""CyclicPoissonSampler: groups take turns, and the active group is Poisson-sampled."""

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmech.drawing import Allocation, Sampler, check_steps, coins, numbered_users, whole_epoch
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.numerics import IntArray
from dpmech.schemes.cyclic_poisson.participation import CyclicPoisson


class CyclicPoissonSampler(Sampler):
    """Step t samples group t mod cycle, each of its examples independently with probability `sampling_prob`.

    Every example is assigned to its group once, uniformly and independently, so its group does not depend on
    the other examples. Users are assigned in the same way, together with all of their examples.

    Args:
        dataset_size: number of examples, >= 1; for users after contributions are bounded.
        sampling_prob: q in (0, 1].
        cycle: number of groups, >= 1.
        n: number of steps, >= 1.
        max_examples_per_user: m of a claim about users; None for a claim about examples.
        user_ids: only with `max_examples_per_user`: the user of each example, as for `Contributions.bounded`,
            shape (dataset_size,). No user may have more than m examples.
        rng: None for entropy from the operating system, which private training requires; or a numpy Generator
            or a seed for a reproducible run.

    Raises:
        InvalidParameterError: if an argument is invalid, or if a user has more than m examples.

    Examples:
        >>> sampler = CyclicPoissonSampler(100, 0.2, 4, 8, rng=1)
        >>> sampler.expected_batch_size, sampler.steps_per_epoch
        (5.0, 20)
        >>> ids = [example // 2 for example in range(12)]  # two examples each
        >>> sampler = CyclicPoissonSampler(12, 0.9, 2, 4, max_examples_per_user=2, user_ids=ids, rng=3)
        >>> [batch.tolist() for batch in sampler]
        [[0, 1, 4, 5, 6, 10, 11], [2, 3, 8, 9], [0, 5, 6, 7, 10], [2, 3, 8, 9]]
    """

    def __init__(
        self,
        dataset_size: int,
        sampling_prob: float,
        cycle: int,
        n: int,
        *,
        max_examples_per_user: int | None = None,
        user_ids: Sequence[Hashable] | npt.NDArray[np.generic] | None = None,
        rng: object = None,
    ) -> None:
        participation = CyclicPoisson(sampling_prob, cycle, max_examples_per_user=max_examples_per_user)
        size = check_integer("dataset_size", dataset_size, minimum=1)
        self._prob, self._cycle = participation.sampling_prob, participation.cycle
        self._owners = _owners(participation, size, user_ids)
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

    def _batch(self, step: int) -> IntArray:
        group = self._allocation.members(step % self._cycle)
        return group[coins(self._key, step, self._prob, group.size)]

    def _configuration(self) -> dict[str, Any]:
        own = super()._configuration()
        if self._owners is None:
            return own
        # The assignment of examples to users determines the batches, as the key does.
        return own | {"users": hashlib.sha256(np.asarray(self._owners, dtype="<i8").tobytes()).hexdigest()}


def _owners(
    participation: CyclicPoisson,
    size: int,
    user_ids: Sequence[Hashable] | npt.NDArray[np.generic] | None,
) -> IntArray | None:
    """The index of each example's user; None for a claim about examples."""
    if not participation.users_together:
        if user_ids is not None:
            raise InvalidParameterError(
                "user_ids", type(user_ids).__name__, "None: without max_examples_per_user batches ignore them"
            )
        return None
    if user_ids is None:
        raise InvalidParameterError(
            "user_ids", None, "whose each example is: all examples of a user go into one group"
        )
    owners, _ = numbered_users(user_ids)
    if owners.size != size:
        raise InvalidParameterError("user_ids", f"{owners.size} ids", f"one for each of {size} examples")
    most = int(np.bincount(owners).max())
    if most > participation.examples:
        raise InvalidParameterError(
            "user_ids",
            f"a user with {most} examples",
            f"at most {participation.examples} of everyone, as Contributions.bounded keeps",
        )
    return owners
