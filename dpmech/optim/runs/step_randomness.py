"""StepRandomness: what models and datasets draw at random, from a secret of the run, step by step."""

import hashlib
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dpmech.exceptions import UnsupportedCombinationError

__all__ = ["StepRandomness", "WorkerRandomness"]

# Of the state of torch's CPU generator: a header, then the words of its Mersenne Twister, 8 bytes each.
_HEADER, _WORDS, _STATE_BYTES = 24, 624, 5056


class StepRandomness:
    """Seeds Python's, numpy's and torch's generators by a secret and a use, and puts them back.

    One example that is absent moves the draws (dropout, masking) of all others in its batch. Under a seed
    that somebody knows these are other numbers, and sums differ by far more than one clip norm. Where nobody
    knows the seed, and every use has another one, they are numbers of the same law whatever was drawn
    before, so that a sum with one example less can be compared under the same masks of all others.

    A step that is taken again after a failure draws the same, as it adds the same noise.

    Args:
        secret: 32 bytes for a use; None takes a key of its own.
    """

    def __init__(self, secret: Callable[[str], bytes] | None = None) -> None:
        key = secrets.token_bytes(32)
        self.secret = secret or (lambda use: hashlib.blake2b(use.encode(), key=key, digest_size=32).digest())
        self._outside: tuple[Any, ...] | None = None

    @contextmanager
    def at(self, use: str) -> Iterator[None]:
        """Draw what follows from the use, until the end of the block."""
        before = _states()
        try:
            _seed(self.secret(use))
            yield
        finally:
            _restore(before)

    def begin(self, use: str) -> None:
        """Draw what follows from the use, until `end`."""
        if self._outside is None:
            self._outside = _states()
        _seed(self.secret(use))

    def end(self) -> None:
        """Put the generators back to where they were before the first `begin`."""
        if self._outside is not None:
            _restore(self._outside)
            self._outside = None


class WorkerRandomness:
    """The `worker_init_fn` of a DataLoader whose workers draw by a secret.

    Args:
        secret: what all workers share.
        then: the user's own `worker_init_fn`.
    """

    def __init__(self, secret: bytes, then: Callable[[int], object] | None) -> None:
        self._secret = secret
        self._then = then

    def __call__(self, worker: int) -> None:
        """Seed a worker by its number."""
        _seed(hashlib.blake2b(str(worker).encode(), key=self._secret, digest_size=32).digest())
        if self._then is not None:
            self._then(worker)


def _seed(secret: bytes) -> None:
    """Seed all generators with all of a secret: of an integer torch's CPU generator takes 32 bits."""
    random.seed(secret)
    np.random.seed(np.frombuffer(secret, np.uint32))  # noqa: NPY002 - what other people's code draws from
    number = int.from_bytes(secret[:8], "little")
    torch.manual_seed(number)  # CUDA's generators take all 64 bits
    state = torch.get_rng_state()
    words = state.numpy()[_HEADER : _HEADER + 8 * _WORDS].view(np.uint64)
    if len(state) != _STATE_BYTES or words[0] != number % (1 << 32):
        raise UnsupportedCombinationError(
            f"torch {torch.__version__} keeps the state of its generator in another form",
            supported="a release of torch that this one was tested with",
        )
    words[:] = np.frombuffer(hashlib.shake_256(secret).digest(4 * _WORDS), np.uint32)
    torch.set_rng_state(state)


def _states() -> tuple[Any, ...]:
    return (
        random.getstate(),
        np.random.get_state(),  # noqa: NPY002 - as above
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]  # torch's
    )


def _restore(states: tuple[Any, ...]) -> None:
    python, numpy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002 - as above
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
