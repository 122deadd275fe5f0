"""Generators of random numbers, also the global ones: store, restore and seed them."""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dpmech.exceptions import UnsupportedCombinationError

GENERATORS = (
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    random.Random,
    torch.Generator,
)
# State of torch's CPU generator: a header, then the words of its Mersenne Twister, 8 bytes each.
_HEADER, _WORDS, _STATE_BYTES = 24, 624, 5056


def stored(generator: Any) -> Callable[[], None]:
    """A function that restores the current state of a generator."""
    if isinstance(generator, np.random.Generator | np.random.BitGenerator):
        bits: Any = getattr(generator, "bit_generator", generator)
        state = bits.state
        return lambda: setattr(bits, "state", state)
    if isinstance(generator, random.Random):
        held = generator.getstate()
        return lambda: generator.setstate(held)
    own = generator.get_state()
    return lambda: generator.set_state(own)


def drawn(generator: Any) -> bytes:
    """32 bytes from a generator, as a secret for `seed`: as random as its state."""
    if isinstance(generator, torch.Generator):
        words = torch.randint(256, (32,), generator=generator, device=generator.device)
        return bytes(words.tolist())
    if isinstance(generator, np.random.BitGenerator):
        return bytes(np.asarray(generator.random_raw(4), np.uint64).tobytes())
    return bytes(generator.bytes(32) if hasattr(generator, "bytes") else generator.randbytes(32))


def seed(generator: Any, secret: bytes) -> None:
    """Seed a generator with a whole secret of 32 bytes: torch's on the CPU use only 32 bits of an integer."""
    if isinstance(generator, torch.Generator):
        _seed_torch(generator, secret)
    elif isinstance(generator, random.Random):
        generator.seed(secret)
    elif isinstance(generator, np.random.Generator | np.random.BitGenerator):
        bits: Any = getattr(generator, "bit_generator", generator)
        bits.state = type(bits)(np.frombuffer(secret, np.uint32)).state
    else:
        generator.seed(np.frombuffer(secret, np.uint32))


def _seed_torch(generator: torch.Generator, secret: bytes) -> None:
    number = int.from_bytes(secret[:8], "little")
    generator.manual_seed(number)  # on devices all 64 bits are used
    if generator.device.type != "cpu":
        return
    state = generator.get_state()
    words = state.numpy()[_HEADER : _HEADER + 8 * _WORDS].view(np.uint64)
    if len(state) != _STATE_BYTES or words[0] != number % (1 << 32):
        raise UnsupportedCombinationError(
            f"torch {torch.__version__} stores the state of its generator in another format",
            supported="a release of torch that this version was tested with",
        )
    words[:] = np.frombuffer(hashlib.shake_256(secret).digest(4 * _WORDS), np.uint32)
    generator.set_state(state)


def global_generators() -> list[Any]:
    """Those of Python, of numpy, and of torch on the CPU and on CUDA devices in use."""
    devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]  # torch's
    return [random._inst, np.random.mtrand._rand, torch.default_generator, *devices]


def seeds_of_torch() -> list[int]:
    """The numbers with which torch's global generators were seeded."""
    return [one.initial_seed() for one in global_generators()[2:]]


def seed_globals(secret: bytes) -> None:
    """Seed the global generators with a whole secret of 32 bytes."""
    if torch.accelerator.current_accelerator() is not None:
        # Without one it would only format the stack once for each kind of device.
        torch.manual_seed(int.from_bytes(secret[:8], "little"))
    for generator in (random._inst, np.random.mtrand._rand, torch.default_generator):
        seed(generator, secret)


def set_globals(number: int) -> None:
    """Seed the global generators with a number below 2^32, to repeat their draws."""
    for generator in global_generators()[:2]:  # whatever has replaced the functions of their modules
        generator.seed(number)
    set_torch(number)


def set_torch(number: int) -> None:
    """Seed torch's global generators, of the CPU and of every device: dropout draws where its input is."""
    for one in global_generators()[2:]:
        one.manual_seed(number)


def stored_globals() -> Callable[[], None]:
    """A function that restores the current states of the global generators."""
    states = [stored(one) for one in global_generators()]

    def restore() -> None:
        for one in states:
            one()

    return restore


def marks_of_globals() -> list[object]:
    """What changes with every draw from a global generator, to be compared."""
    kind, keys, *others = np.random.get_state(legacy=True)  # noqa: NPY002 - used by other people's code
    own = [_state(one) for one in global_generators()[2:]]
    return [random.getstate(), (kind, np.asarray(keys).tobytes(), *others), *own]


class Streams:
    """Tells whether draws from torch's generators go on where the draws before ended.

    After a seed, or in a state that was there before, what is drawn follows from it. Generators are known by
    their states: operations get other Python objects for them.

    Args:
        others: generators in addition to the global ones.
    """

    def __init__(self, others: Iterable[Any] = ()) -> None:
        self._globals = [_state(one) for one in global_generators()[2:]]
        self._others = [_state(one) for one in others if isinstance(one, torch.Generator)]
        self._place: tuple[list[bytes], int] | None = None

    def is_known(self, generator: torch.Generator | None) -> bool:
        """Whether the next draw from a generator, None for a global one, goes on; before the draw."""
        self._place = None
        if generator is None:
            # Not strict: devices may be used for the first time.
            every = zip(global_generators()[2:], self._globals, strict=False)
            return all(_state(one) == known for one, known in every)
        now = _state(generator)
        for states in (self._others, self._globals):
            if now in states:
                self._place = states, states.index(now)
        return self._place is not None

    def note(self, generator: torch.Generator | None) -> None:
        """Note the state after the draw."""
        if generator is None:
            self._globals = [_state(one) for one in global_generators()[2:]]
        elif self._place is not None:
            states, number = self._place
            states[number] = _state(generator)


def _state(generator: torch.Generator) -> bytes:
    return bytes(generator.get_state().numpy().tobytes())


@contextmanager
def spared() -> Iterator[None]:
    """Restore the states of the global generators on exit."""
    restore = stored_globals()
    try:
        yield
    finally:
        restore()
