"""ParticipationTracker: checks realised batches and refuses the first that violates the certified pattern."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmech.drawing import check_steps, numbered_users
from dpmech.exceptions import CertificateError, HorizonError, InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import Participation, Unit, check_participation
from dpmech.numerics import IntArray
from dpmech.samplers.choice import check_indices
from dpmech.schemes import scheme_of

_STATE = {"configuration", "steps", "last", "counts"}
_BEFORE = {"smallest_separation"}  # entry of older states, no longer used


class ParticipationTracker:
    """Records the participations of every example, and refuses a batch that the pattern forbids.

    It checks what is visible in the batches: repetition, range, order of the steps, separation and number of
    participations. For FixedEpochs and BallsInBins, every epoch must have the batches of the first epoch;
    with a new allocation in every epoch, every example of the first epoch must occur once in each epoch. If
    groups take turns, an example must stay in its group. A maximum or fixed batch size must be met. For
    claims about users with several examples, `user_ids` states the user of each example. No user may have
    more examples than certified, and for CyclicPoisson, all examples of a user must stay in one group.
    Batches cannot show whether a random participation was sampled with the correct distribution.

    **Guarantee:** if every batch of a run was recorded and none was refused, the participations of the run
    conform to the pattern (for users, only with `user_ids`). The memory is eight bytes per example; it is
    zero for Poisson, and additionally four bytes per user for groups of users. The records are as secret as
    the batches.

    Args:
        participation: the certified pattern.
        n: the certified number of steps.
        dataset_size: number of examples, >= 1; as private as the data under ADD_REMOVE.
        user_ids: the user of each example, as for `Contributions.bounded`, shape (dataset_size,), under a
            participation with `max_examples_per_user`; None checks nothing about users.

    Raises:
        InvalidParameterError: if an argument is invalid, or if the pattern does not fit n steps.
        CertificateError: if a user has more examples than the pattern allows.

    Examples:
        >>> import dpmech as dm
        >>> tracker = ParticipationTracker(dm.MinSep(2, 2), 4, 10)
        >>> tracker.record(0, [3, 5])
        >>> tracker.record(1, [3])
        Traceback (most recent call last):
        ...
        dpmech.exceptions.CertificateError: step 1: an example takes part less than 2 steps after it ...
    """

    def __init__(
        self,
        participation: Participation,
        n: int,
        dataset_size: int,
        *,
        user_ids: Sequence[Hashable] | npt.NDArray[np.generic] | None = None,
    ) -> None:
        self._participation = check_participation(participation)
        self._n = check_steps(n)
        self._size = check_integer("dataset_size", dataset_size, minimum=1)
        rule = self._rule = scheme_of(participation).batch_rule(participation, self._n)
        if rule.dataset_size is not None and self._size != rule.dataset_size:
            stated = f"{rule.dataset_size}, on which the claim depends"
            raise InvalidParameterError("dataset_size", self._size, stated)
        self._pattern = participation.pattern(self._n)
        self._steps = 0
        held = 0 if rule.pattern is None else self._size
        self._last = np.full(held, -1, dtype=np.int32)
        self._counts = np.zeros(held, dtype=np.int32)
        # Sizes of the batches of the last epoch: a batch with equal size and contained members is equal.
        self._sizes: IntArray = np.zeros(
            self._pattern.min_sep if self._pattern.evenly_spaced else 0, dtype=np.int64
        )
        owners = None if user_ids is None else self._checked_owners(user_ids)
        self._owners = owners if self._participation.users_together else None  # otherwise only counted once
        self._groups = np.full(0 if self._owners is None else int(self._owners.max()) + 1, -1, dtype=np.int32)

    @property
    def steps(self) -> int:
        """Number of batches recorded."""
        return self._steps

    def record(self, step: int, indices: Any) -> None:  # noqa: ANN401 - any sequence of integers
        """Record the whole batch of a step, from all processes and microbatches together.

        Args:
            step: must be `steps`: every batch is recorded once and in order.
            indices: the batch, shape (m,), in any order.

        Raises:
            CertificateError: if the batch violates the pattern. It names the step and the rule, never the
                example, and nothing is recorded.
            HorizonError: after the last step.
            InvalidParameterError: if the arguments are not integers.
        """
        index = check_integer("step", step, minimum=0)
        batch = check_indices(indices)
        if index >= self._n:
            raise HorizonError(index, self._n)
        if index != self._steps:
            raise CertificateError(
                f"step {index}: the batch of step {self._steps} comes next; each is recorded once, in order",
                claimed=self._steps,
                recomputed=index,
            )
        if batch.size and (batch.min() < 0 or batch.max() >= self._size):
            raise _refusal(index, "an index is outside of the dataset", self._participation)
        if np.unique(batch).size != batch.size:
            raise _refusal(index, "an example is in the batch more than once", self._participation)
        if self._rule.largest is not None and batch.size > self._rule.largest:
            broken = f"the batch has more than {self._rule.largest} examples"
            raise _refusal(index, broken, self._participation)
        if self._rule.exactly is not None and batch.size != self._rule.exactly:
            broken = f"the batch has not exactly {self._rule.exactly} examples"
            raise _refusal(index, broken, self._participation)
        if self._last.size:
            self._check_pattern(index, batch)
            self._last[batch] = index
            if self._owners is not None and self._rule.cycle is not None:
                self._groups[self._owners[batch]] = index % self._rule.cycle
            self._counts[batch] += 1
        self._steps += 1

    def summary(self) -> dict[str, int | None]:
        """Publishable numbers: steps, smallest separation (None if no example repeats), most participations.

        For Poisson and CyclicPoisson, only the number of steps, because the number of participations is
        secret. For all others, the bounds that the checked rule implies for an example of the first batch.
        The realised values are not returned, because they depend on the data, and could reveal that an
        example is present or which bins are empty.
        """
        if self._participation.per_release:
            return {"steps": self._steps}
        apart = self._pattern.min_sep
        most = min(-(-self._steps // (self._rule.epoch or apart)), self._pattern.max_participations)
        return {
            "steps": self._steps,
            "smallest_separation": apart if most > 1 else None,
            "most_participations": most,
        }

    def state_dict(self) -> dict[str, Any]:
        """Last step (-1 for none) and number of participations of every example. Secret, like the batches."""
        return {
            "configuration": self._configuration(),
            "steps": self._steps,
            "last": self._last.copy(),
            "counts": self._counts.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned; allowed only before the first batch.

        Raises:
            CertificateError: if the state belongs to a different pattern, n or dataset size.
            InvalidParameterError: if it is not a state of a tracker, or batches were already recorded.

        States contain nothing about users: their participations follow from those of their examples.
        """
        if self._steps:
            raise InvalidParameterError(
                "state", f"after {self._steps} batches", "loaded before the first batch"
            )
        if not isinstance(state, dict) or set(state) - _BEFORE != _STATE:
            raise InvalidParameterError("state", type(state).__name__, f"a mapping with {sorted(_STATE)}")
        if state["configuration"] != self._configuration():
            # The error does not reveal the number of examples.
            raise CertificateError(
                f"the state has another configuration than this tracker, which has {self._participation!r}, "
                f"n={self._n} and the examples of its dataset",
                claimed=None,
                recomputed=self._participation,
            )
        steps = check_integer("state['steps']", state["steps"], minimum=0, maximum=self._n)
        last, counts = check_indices(state["last"]), check_indices(state["counts"])
        if not last.size == counts.size == self._last.size or not _consistent(last, counts, steps):
            raise InvalidParameterError(
                "state", "its arrays", f"steps below {steps} with their counts, one for each example"
            )
        if self._owners is not None and self._rule.cycle is not None:
            self._groups = self._groups_after(last, self._owners, self._rule.cycle)
        self._steps = steps
        self._last, self._counts = last.astype(np.int32), counts.astype(np.int32)
        period = self._sizes.size
        if period:
            # Every example that took part at all also did so in the last epoch, as the rules require.
            self._sizes = np.bincount(last[last >= 0] % period, minlength=period)

    def __repr__(self) -> str:
        return f"ParticipationTracker({self._participation!r}, n={self._n}, steps={self._steps})"

    # ---- the rules

    def _check_pattern(self, step: int, batch: IntArray) -> None:
        """Refuse a batch that violates the pattern; otherwise store its size."""
        last = self._last[batch].astype(np.int64)
        before = last[last >= 0]
        if self._rule.cycle is not None:
            if np.any(before % self._rule.cycle != step % self._rule.cycle):
                raise _refusal(
                    step, f"an example is in two of the {self._rule.cycle} groups", self._participation
                )
            if self._owners is not None:
                groups = self._groups[self._owners[batch]]
                if np.any((groups >= 0) & (groups != step % self._rule.cycle)):
                    rule = f"examples of one user are in two of the {self._rule.cycle} groups"
                    raise _refusal(step, rule, self._participation)
            if self._participation.per_release:
                return
        if self._rule.epoch is not None:
            self._check_allocation(step, batch.size, last, self._rule.epoch)
        elif self._pattern.evenly_spaced:
            self._check_epoch(step, batch.size, last)
        else:
            self._check_separation(step, batch, before)

    def _check_epoch(self, step: int, size: int, last: IntArray) -> None:
        period = self._sizes.size
        if step < period:
            if np.any(last >= 0):
                raise _refusal(
                    step, f"an example takes part twice within {period} steps", self._participation
                )
        elif np.any(last != step - period):
            rule = f"an example takes part that did not {period} steps earlier"
            raise _refusal(step, rule, self._participation)
        elif size != self._sizes[step % period]:
            rule = f"an example is missing that took part {period} steps earlier"
            raise _refusal(step, rule, self._participation)
        self._sizes[step % period] = size

    def _check_allocation(self, step: int, size: int, last: IntArray, bins: int) -> None:
        """Once per epoch for each example: none twice, none new after the first, none missing at its end."""
        begun = step - step % bins
        if np.any(last >= begun):
            raise _refusal(
                step, f"an example takes part twice in an epoch of {bins} steps", self._participation
            )
        if begun and np.any(last < 0):
            raise _refusal(step, "an example takes part that did not in the first epoch", self._participation)
        if begun and step == begun + bins - 1:
            came = int(np.count_nonzero(self._last >= begun)) + size
            if came != int(np.count_nonzero(self._last >= 0)):
                raise _refusal(step, "an example is missing in the epoch that ends", self._participation)

    def _check_separation(self, step: int, batch: IntArray, before: IntArray) -> None:
        min_sep, most = self._pattern.min_sep, self._pattern.max_participations
        if np.any(self._counts[batch] >= most):
            raise _refusal(step, f"an example takes part more than {most} times", self._participation)
        if before.size and step - before.max() < min_sep:
            rule = f"an example takes part less than {min_sep} steps after it last did"
            raise _refusal(step, rule, self._participation)

    def _checked_owners(self, user_ids: Sequence[Hashable] | npt.NDArray[np.generic]) -> IntArray:
        """The index of each example's user, after checking that no user has too many examples."""
        own = self._participation
        if own.unit is not Unit.USER:
            raise InvalidParameterError(
                "user_ids", type(user_ids).__name__, f"None: {own!r} says nothing about users"
            )
        owners, _ = numbered_users(user_ids)
        if owners.size != self._size:
            raise InvalidParameterError(
                "user_ids", f"{owners.size} ids", f"one for each of {self._size} examples"
            )
        most = int(np.bincount(owners).max())
        if most > own.examples:
            raise CertificateError(
                f"a user has {most} examples; certified is {own!r}", claimed=own.examples, recomputed=most
            )
        return owners

    def _groups_after(self, last: IntArray, owners: IntArray, cycle: int) -> npt.NDArray[np.int32]:
        """The group of every user, -1 without participation, from the last step of each example."""
        came = last >= 0
        groups = np.full(self._groups.size, -1, dtype=np.int32)
        groups[owners[came]] = last[came] % cycle
        if np.any(groups[owners[came]] != last[came] % cycle):
            raise CertificateError(
                f"the state has examples of one user in two of the {cycle} groups; certified is "
                f"{self._participation!r}",
                claimed=self._participation,
            )
        return groups

    def _configuration(self) -> dict[str, Any]:
        return {
            "participation": self._participation.to_dict(),
            "n": self._n,
            "dataset_size": self._size,
        }


def _refusal(step: int, rule: str, participation: Participation) -> CertificateError:
    return CertificateError(f"step {step}: {rule}; certified is {participation!r}", claimed=participation)


def _consistent(last: IntArray, counts: IntArray, steps: int) -> bool:
    within = bool(np.all((last >= -1) & (last < steps) & (counts >= 0) & (counts <= steps)))
    return within and np.array_equal(last >= 0, counts > 0)
