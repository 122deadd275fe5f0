"""SequentialSampler: the same batches in the same order every epoch, for patterns without amplification."""

from typing import Any

import numpy as np

from dpmech.drawing import PHILOX, Sampler, check_steps, order
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.mechanism import Participation, Pattern, check_participation
from dpmech.numerics import IntArray


class SequentialSampler(Sampler):
    """Example i is in batch i mod b of every epoch of b batches; batch sizes differ by at most one.

    b is `min_sep`, n / epochs, n (SingleParticipation), or dataset_size / batch_size, rounded up, or down
    with `drop_last` (EveryStep). Nothing is sampled. Batches depend on the position of an example, not on its
    content; shuffle the data once before the run if their order matters for learning. Neighbouring datasets
    have the example or a gap at the same position: closing the gap would move all other examples.

    The number of batches of an epoch must not depend on a private number of examples, because removing one
    example would then move all others. Under ADD_REMOVE, EveryStep and `drop_last` therefore require a
    `declared_size`.

    Args:
        dataset_size: number of examples, >= 1.
        participation: MinSep, FixedEpochs, SingleParticipation or EveryStep.
        n: number of steps; at most b k under MinSep with max_participations k.
        batch_size: required for EveryStep; otherwise None, or the size that the pattern implies, as a check.
        drop_last: every batch has `batch_size` examples (EveryStep) or floor(dataset_size / b) examples, and
            the remaining examples never take part.
        reshuffle: use a new random order in every epoch; for EveryStep only.
        declared_size: a public number of examples, which determines b, the batch sizes that are checked, and
            the examples that `drop_last` omits; None uses dataset_size, which is then public. Every batch
            contains those of its examples that exist in the dataset.
        rng: random source for `reshuffle`, as for `sampler_for`.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: for a random participation, or if reshuffling would violate the pattern.

    Examples:
        >>> import dpmech as dm
        >>> sampler = SequentialSampler(5, dm.MinSep(2, 2), 4)
        >>> [batch.tolist() for batch in sampler]
        [[0, 2, 4], [1, 3], [0, 2, 4], [1, 3]]
    """

    def __init__(
        self,
        dataset_size: int,
        participation: Participation,
        n: int,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        reshuffle: bool = False,
        declared_size: int | None = None,
        rng: object = None,
    ) -> None:
        size = planned = check_integer("dataset_size", dataset_size, minimum=1)
        if declared_size is not None:
            planned = check_integer("declared_size", declared_size, minimum=1)
        steps = check_steps(n)
        for name, flag in (("drop_last", drop_last), ("reshuffle", reshuffle)):
            if not isinstance(flag, bool):
                raise InvalidParameterError(name, flag, "True or False")
        if rng is not None and not reshuffle:
            raise InvalidParameterError("rng", rng, "None: nothing is drawn without reshuffle=True")
        if batch_size is not None:
            batch_size = check_integer("batch_size", batch_size, minimum=1)
        batches = _batches(
            planned, check_participation(participation), steps, batch_size, drop_last=drop_last
        )
        if reshuffle and not _unrestricted(participation, steps):
            raise UnsupportedCombinationError(
                f"reshuffling breaks {participation!r}: an example may end one epoch and start the next, so "
                "participations are one step apart, and no theorem for this noise amplifies by shuffling",
                supported="the same order every epoch, EveryStep(), or a random participation such as "
                "BallsInBins",
            )
        if drop_last and planned < batches:
            raise InvalidParameterError(
                "dataset_size", planned, f"at least {batches}, the batches of an epoch, with drop_last"
            )
        full = batch_size if batch_size is not None and participation.unrestricted else planned // batches
        used = full * batches if drop_last else planned
        _check_batch_size(batch_size, participation, used, batches)
        self._places, self._declared = planned, declared_size
        self._used = min(used, size) if drop_last else size
        self._used_places = used
        self._batch_size, self._drop_last, self._reshuffle = batch_size, drop_last, reshuffle
        super().__init__(
            size,
            participation,
            steps,
            steps_per_epoch=batches,
            expected_batch_size=self._used / batches,
            rng=rng if reshuffle else PHILOX,  # nothing is sampled, so no cipher is needed
        )

    @property
    def reshuffled(self) -> bool:
        """Whether every epoch has a new order."""
        return self._reshuffle

    def _prepare(self) -> None:
        self._epoch: tuple[int, IntArray] | None = None

    def _batch(self, step: int) -> IntArray:
        epoch, number = divmod(step, self.steps_per_epoch)
        if not self._reshuffle:
            return np.arange(number, self._used, self.steps_per_epoch)
        kept = self._epoch
        if kept is None or kept[0] != epoch:
            kept = self._epoch = (epoch, order(self._key, epoch, self._places)[: self._used_places])
        places = kept[1][number :: self.steps_per_epoch]
        # Batches follow from positions modulo a public number of batches, so removing one example does not
        # change the order of the others.
        batch = np.add.outer(np.arange(0, self.dataset_size, self._places), places).ravel()
        return np.sort(batch[batch < self.dataset_size])

    def _configuration(self) -> dict[str, Any]:
        return (
            super()._configuration()
            | {
                "batch_size": self._batch_size,
                "drop_last": self._drop_last,
                "reshuffle": self._reshuffle,
            }
            | ({} if self._declared is None else {"declared_size": self._declared})
        )


def _batches(
    size: int, participation: Participation, n: int, batch_size: int | None, *, drop_last: bool
) -> int:
    if participation.random:
        raise UnsupportedCombinationError(
            f"{participation!r} is not realised by sequential batches",
            supported="EveryStep, MinSep, FixedEpochs, SingleParticipation; sampler_for finds the others",
        )
    if _unrestricted(participation, n):
        if batch_size is None:
            raise InvalidParameterError("batch_size", None, "an integer >= 1: EveryStep() implies none")
        if drop_last and size < batch_size:
            raise InvalidParameterError("batch_size", batch_size, f"at most dataset_size={size}")
        return size // batch_size if drop_last else -(-size // batch_size)
    pattern = participation.pattern(n)
    min_sep, k = pattern.min_sep, pattern.max_participations
    if n > min_sep * k:
        raise InvalidParameterError(
            "n",
            n,
            f"at most min_sep * max_participations = {min_sep * k} (step {min_sep * k} would be "
            f"participation {k + 1} of its examples)",
        )
    return min_sep


def _check_batch_size(batch_size: int | None, participation: Participation, used: int, batches: int) -> None:
    smallest, largest = used // batches, -(-used // batches)
    if batch_size is None or participation.unrestricted or smallest <= batch_size <= largest:
        return
    raise InvalidParameterError(
        "batch_size",
        batch_size,
        f"None or in [{smallest}, {largest}]: {participation!r} makes {batches} batches of {used} examples",
    )


def _unrestricted(participation: Participation, n: int) -> bool:
    """Whether the participation and its pattern assume nothing."""
    return participation.unrestricted and participation.pattern(n) == Pattern(1, n)
