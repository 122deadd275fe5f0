"""Sampler: the interface of every sampler to the training loop and to the record of the run."""

import abc
import hashlib
import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmech.drawing.random_words import KEY_BITS, PHILOX, SECURE, fresh_key, groups
from dpmech.drawing.secure_words import CIPHER, SecureKey
from dpmech.exceptions import CertificateError, HorizonError, InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism import Participation
from dpmech.numerics import IntArray

_FORMAT = 1  # of the sampling rules: a version that would generate other batches refuses a state
# Entries of a configuration that follow from the data: they are stored only in states, which are secret.
_OF_DATA = {"dataset_size", "users"}
_STATE = {"type", "format", "configuration", "key", "seeded", "steps_taken"}


class Sampler(abc.ABC):
    """The batches of a run: a deterministic function of a key and the step.

    Iteration yields the batches of the remaining steps, each once. `indices` returns the batch of any step
    without advancing. The batches are as secret as the training data, because amplification by sampling holds
    only if nobody learns which examples took part. Without `rng`, the key comes from the operating system,
    and a cipher (AES) generates the batches. With a seed or a numpy Generator, Philox generates them.
    "philox" selects Philox with a key from the operating system. "secure" requests the default explicitly,
    and refuses states of Philox.

    **Guarantee:** the realised participations are those of `participation`, with its exact distribution.

    Under ADD_REMOVE, the number of examples is private, so it is neither printed nor part of `fingerprint`.

    Attributes:
        dataset_size: number of examples, which are the integers from 0 to dataset_size - 1. Private under
            ADD_REMOVE.
        n: number of steps.
        participation: the participation of the examples.
        steps_per_epoch: number of steps in which every example takes part once; for Poisson and
            CyclicPoisson, once in expectation, rounded down.
        mean_batch_size: mean number of examples in a batch, as private as `dataset_size`.
        expected_batch_size: a public denominator for sums. For a sampler that `sampler_for` returned for a
            claim under ADD_REMOVE, it is that of the claim, or None if the claim states none. Otherwise, it
            is `mean_batch_size`.
        steps_taken: number of batches returned by iteration.
        seeded: whether the caller supplied the random numbers. The batches are then only as secret as these
            numbers.
    """

    def __init__(
        self,
        dataset_size: int,
        participation: Participation,
        n: int,
        *,
        steps_per_epoch: int,
        expected_batch_size: float,
        rng: object = None,
    ) -> None:
        self.dataset_size = dataset_size
        self.participation = participation
        self.n = n
        self.steps_per_epoch = steps_per_epoch
        self.mean_batch_size = expected_batch_size
        self.expected_batch_size: float | None = expected_batch_size
        self.steps_taken = 0
        self.seeded = not (rng is None or isinstance(rng, str))
        self._cipher_only = isinstance(rng, str) and rng == SECURE
        self._key = fresh_key(rng)
        self._prepare()

    @property
    def generator(self) -> str:
        """The generator of the batches: "aes-128-ctr", or "philox" with a seed or if nothing is sampled."""
        return CIPHER if isinstance(self._key, SecureKey) else PHILOX

    @property
    def reshuffled(self) -> bool:
        """Whether every epoch has a new order; only SequentialSampler supports it."""
        return False

    def indices(self, step: int) -> IntArray:
        """The whole batch of a step: int64, increasing, without repetitions, possibly empty.

        Args:
            step: t in [0, n - 1].

        Raises:
            HorizonError: past the last step.
            InvalidParameterError: if step is not an integer >= 0.
        """
        index = check_integer("step", step, minimum=0)
        if index >= self.n:
            raise HorizonError(index, self.n)
        return self._batch(index)

    def __iter__(self) -> Iterator[IntArray]:
        while self.steps_taken < self.n:
            batch = self._batch(self.steps_taken)
            self.steps_taken += 1
            yield batch

    def __len__(self) -> int:
        return self.n - self.steps_taken

    def state_dict(self) -> dict[str, Any]:
        """Configuration, key and steps taken, as plain data. Secret: it reveals all participations."""
        # States without a generator name are from versions that had only Philox.
        generator = {} if self.generator == PHILOX else {"generator": self.generator}
        return {
            "type": type(self).__name__,
            "format": _FORMAT,
            "configuration": self._configuration(),
            "key": f"{self._key:032x}",
            "seeded": self.seeded,
            "steps_taken": self.steps_taken,
        } | generator

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state with the same batches; allowed only before the first batch.

        The generator of the state replaces that of this sampler, unless the latter is "secure".

        Raises:
            CertificateError: if the state belongs to a different sampler or configuration, or if its
                generator is unknown, or is Philox although "secure" was requested.
            InvalidParameterError: if it is not a state of a sampler, or batches were already returned.
        """
        if self.steps_taken:
            raise InvalidParameterError(
                "state", f"after {self.steps_taken} batches", "loaded before the first batch"
            )
        if not isinstance(state, dict) or set(state) - {"generator"} != _STATE:
            raise InvalidParameterError("state", type(state).__name__, f"a mapping with {sorted(_STATE)}")
        mine = self.state_dict()
        state = {"generator": PHILOX} | state
        mine["generator"] = CIPHER
        if state["generator"] == PHILOX and not self._cipher_only:
            mine["generator"] = PHILOX
        for name in ("type", "format", "configuration", "generator"):
            if state[name] != mine[name]:
                theirs, own = (_publishable(one[name]) for one in (state, mine))
                differ = f"{theirs!r}, here {own!r}" if theirs != own else "another dataset"
                raise CertificateError(
                    f"the state has another {name} than this sampler: {differ}",
                    claimed=theirs,
                    recomputed=own,
                )
        if not isinstance(state["seeded"], bool):
            raise InvalidParameterError("state['seeded']", state["seeded"], "True or False")
        steps_taken = check_integer("state['steps_taken']", state["steps_taken"], minimum=0, maximum=self.n)
        key = _parsed_key(state["key"])
        self._key = SecureKey(key) if state["generator"] == CIPHER else key
        self.seeded = state["seeded"]
        self.steps_taken = steps_taken
        self._prepare()

    def fingerprint(self) -> str:
        """SHA-256 (hex) of key and configuration: identifies the randomness of the run without revealing it.

        A key from the operating system cannot be recovered from the fingerprint, but a key from a seed can
        (`seeded`). The fingerprint does not depend on the number of examples or on the data.
        """
        named = {"type", "format", "configuration", "key", "generator"}
        content = {name: _publishable(value) for name, value in self.state_dict().items() if name in named}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def __repr__(self) -> str:
        settings = ", ".join(
            f"{name}={value!r}"
            for name, value in _publishable(self._configuration()).items()
            if name != "participation"
        )
        return f"{type(self).__name__}({self.participation!r}, {settings}, steps_taken={self.steps_taken})"

    @abc.abstractmethod
    def _batch(self, step: int) -> IntArray:
        """The batch of a step in [0, n - 1], a new array."""

    def _prepare(self) -> None:  # noqa: B027 - most samplers generate nothing in advance
        """Generate what is fixed for the run; called whenever the key is set."""

    def _configuration(self) -> dict[str, Any]:
        """The settings that two samplers must share for the same key to give the same batches."""
        return {
            "dataset_size": self.dataset_size,
            "n": self.n,
            "participation": self.participation.to_dict(),
        }


def _publishable(value: Any) -> Any:  # noqa: ANN401 - an entry of a state
    """A configuration without entries that follow from the data; any other value unchanged."""
    if not isinstance(value, dict):
        return value
    return {name: one for name, one in value.items() if name not in _OF_DATA}


def _parsed_key(text: object) -> int:
    # The value is not shown: it may be most of a key.
    digits = KEY_BITS // 4
    if not isinstance(text, str) or len(text) != digits or not set(text) <= set("0123456789abcdef"):
        raise InvalidParameterError("state['key']", type(text).__name__, f"{digits} hexadecimal digits")
    return int(text, 16)


def whole_epoch(cycle: int, prob: float) -> int:
    """Steps of an epoch: cycle / prob, rounded down."""
    # 1 / q may be just below the integer that q was computed from. Fractions do not overflow.
    return int(cycle / Fraction(prob) * (1 + Fraction(1, 10**12)))


class Allocation:
    """Examples assigned to groups uniformly and independently, sorted by group.

    Parts of equal size would not be valid, because removing one example would move others to another part.

    Args:
        key: the key of the run.
        count: number of groups.
        size: number of examples.
        epoch: epoch of the allocation, >= 0; 0 for one that is used for the whole run.
        owners: None; or, for every example, the index of its user, shape (size,), below `size`. All examples
            of a user are then in one group, which is drawn for the user.
    """

    def __init__(
        self, key: int, count: int, size: int, epoch: int = 0, *, owners: IntArray | None = None
    ) -> None:
        if owners is None:
            chosen = groups(key, count, size, epoch)
        else:
            chosen = groups(key, count, int(owners.max()) + 1, epoch)[owners]
        self._starts = np.concatenate(([0], np.cumsum(np.bincount(chosen, minlength=count))))
        narrow = chosen.astype(np.uint16) if count <= 1 << 16 else chosen  # sixteen bits sort in linear time
        kind: npt.DTypeLike = np.int32 if size <= 1 << 31 else np.int64
        self._sorted = np.argsort(narrow, kind="stable").astype(kind)

    def members(self, group: int) -> IntArray:
        """The examples of a group, increasing."""
        return self._sorted[self._starts[group] : self._starts[group + 1]].astype(np.int64)
