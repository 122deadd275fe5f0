"""Standard normal numbers as a function of a key and a position: nothing to store, nothing shared.

A counter-based generator (Philox) turns a key and a counter into random words. Every chunk of every vector
of the noise has a range of counters of its own, so that any of them can be drawn again at any time, in any
order, and no two of them share a number.
"""

import abc
import hashlib
import numbers
import secrets
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.optim.noise.box_muller import torch_pairs
from dpmech.optim.processes import Key

__all__ = ["ACCEPTED", "CudaNormals", "Generator", "HostNormals", "NormalSource", "fill_by_host", "noise_key"]

Generator: TypeAlias = (
    np.random.Generator | torch.Generator | int | Literal["secure", "secure-lattice", "philox"]
)
ACCEPTED = (
    'None, "secure", "secure-lattice", "philox", a numpy.random.Generator, a seeded torch.Generator or an '
    "integer >= 0"
)

_WORD = 64
_MAX_WORD = 2**_WORD - 1
_DEFAULT_TORCH_SEED = 67280421310721  # of every torch.Generator() that nobody seeded
_RESERVED = _MAX_WORD  # the parameter index of numbers that serve as a fingerprint only


def noise_key(generator: Generator | None) -> Key:
    """128 bits that select the noise: from the operating system, or from a generator.

    Args:
        generator: None and "philox" take entropy from the operating system, as private training must. A numpy
            generator (which moves on), a torch generator (its 64-bit seed and one draw, so that it moves
            on too) or an integer >= 0 makes the noise reproducible, and as secret as they are.

    Returns:
        Two integers below 2^64. Whoever knows them can take the noise away.

    Raises:
        InvalidParameterError: on another type, or a torch generator that was never seeded.
    """
    if generator is None or (isinstance(generator, str) and generator == "philox"):
        return secrets.randbits(_WORD), secrets.randbits(_WORD)
    if isinstance(generator, np.random.Generator):
        words = generator.integers(0, _MAX_WORD, size=2, dtype=np.uint64, endpoint=True)
    elif isinstance(generator, torch.Generator):
        if generator.initial_seed() == _DEFAULT_TORCH_SEED:
            raise InvalidParameterError(
                "generator", generator, "seeded: a torch.Generator without manual_seed is always the same"
            )
        # A CPU generator keeps 32 bits of its seed in its state, so the seed itself goes into the key.
        draw = torch.randint(2**62, (1,), generator=generator, device=generator.device, dtype=torch.int64)
        return generator.initial_seed() & _MAX_WORD, int(draw.item())
    elif isinstance(generator, numbers.Integral) and not isinstance(generator, bool) and generator >= 0:
        words = np.random.SeedSequence(int(generator)).generate_state(2, np.uint64)
    else:
        raise InvalidParameterError(
            "generator",
            generator,
            ACCEPTED,
        )
    return int(words[0]), int(words[1])


class NormalSource(abc.ABC):
    """Chunks of standard normal numbers, each a pure function of its position.

    Attributes:
        chunk: largest number of values drawn at once.
    """

    chunk: int

    @abc.abstractmethod
    def fill(self, out: torch.Tensor, step: int, parameter: int, shard: int, chunk: int) -> None:
        """Overwrite `out`, one-dimensional and contiguous, float32 or float64, with at most `chunk` values.

        Args:
            out: what is filled.
            step: which row of Z, in [0, n - 1].
            parameter: which parameter.
            shard: which shard of the parameter; 0 where it is not sharded.
            chunk: which chunk of the shard.
        """

    @abc.abstractmethod
    def _fill_reserved(self) -> torch.Tensor:
        """Numbers at a position that no noise uses."""

    def fingerprint(self) -> str:
        """SHA-256 (hex) of numbers that no noise uses: equal where key and generator draw the same."""
        return hashlib.sha256(self._fill_reserved().cpu().numpy().tobytes()).hexdigest()


class HostNormals(NormalSource):
    """numpy's 128-bit Philox (4 x 64, ten rounds) with the ziggurat; for CPUs, and copied to other devices.

    The counter has 256 bits: the lowest 64 count inside a chunk, then come chunk and shard (32 bits each),
    parameter and step (64 bits each). Ranges of different chunks cannot meet.

    Args:
        key: two integers below 2^64.
    """

    chunk = 1 << 15

    def __init__(self, key: Key) -> None:
        self._key = np.array(key, dtype=np.uint64)
        self._local = threading.local()

    def counter(self, step: int, parameter: int, shard: int, chunk: int) -> tuple[int, int, int, int]:
        """The first counter of a chunk, lowest word first.

        Raises:
            InvalidParameterError: if an index does not fit its word.
        """
        if max(shard, chunk) >= 2**32 or max(step, parameter) > _MAX_WORD:
            raise InvalidParameterError(
                "(step, parameter, shard, chunk)",
                (step, parameter, shard, chunk),
                "below (2^64, 2^64, 2^32, 2^32)",
            )
        return 0, (shard << 32) | chunk, parameter, step

    def fill(self, out: torch.Tensor, step: int, parameter: int, shard: int, chunk: int) -> None:
        """As in the base class; safe to call from several threads."""
        words = self.counter(step, parameter, shard, chunk)
        fill_by_host(out, lambda host: self._draw(host, words))

    def _draw(self, out: np.ndarray[Any, Any], words: tuple[int, int, int, int]) -> None:
        try:
            generator, state = self._local.generator, self._local.state
        except AttributeError:
            generator = np.random.Generator(np.random.Philox(key=self._key))
            state = generator.bit_generator.state
            self._local.generator, self._local.state = generator, state
        state["state"]["counter"][:] = words
        generator.bit_generator.state = state  # its buffers are empty: the state was read before any draw
        generator.standard_normal(dtype=out.dtype, out=out)

    def _fill_reserved(self) -> torch.Tensor:
        out = torch.empty(256, dtype=torch.float32)
        self._draw(out.numpy(), self.counter(0, _RESERVED, 0, 0))
        return out


class CudaNormals(NormalSource):
    """Pairs (see `torch_pairs`) of words of torch's CUDA Philox (4 x 32, 64-bit key) at explicit offsets.

    torch's own normal numbers end at 6.76 standard deviations on CUDA; these, in float64 before they are
    rounded to the dtype that is asked for, at 10.59.

    The offset has 64 bits. Every chunk reserves at least as many as any launch configuration can use, and
    what a draw did use is checked. What is drawn depends on the launch configuration, so a run resumes bit
    for bit on the same kind of device only; `fingerprint` tells.

    Args:
        key: the seed is 64 bits of a hash of it.
        generator: a torch.Generator of the device, for this object alone.
        sizes: number of values of every parameter, all shards together.
        n: number of steps.
        shards: an upper bound on the number of shards of any parameter.

    Raises:
        InvalidParameterError: if the offsets do not fit 64 bits.
    """

    chunk = 1 << 22

    def __init__(
        self, key: Key, generator: torch.Generator, *, sizes: tuple[int, ...], n: int, shards: int
    ) -> None:
        self._generator = generator
        # Of both words: keys from one torch generator have the first in common.
        digest = hashlib.sha256(b"".join(word.to_bytes(8, "little") for word in key)).digest()
        self._generator.manual_seed(int.from_bytes(digest[:8], "little"))
        self._n = n
        self._starts = [self.reserved(self.chunk)]  # the numbers before it make the fingerprint
        for size in sizes:
            chunks = -(-size // self.chunk)
            self._starts.append(self._starts[-1] + chunks * self.reserved(self.chunk))
        self._row = self._starts[-1]
        if self._row * n * shards > _MAX_WORD // 2:
            raise InvalidParameterError(
                "params",
                f"{sum(sizes)} values, {n} steps, {shards} shards",
                "few enough for 63 bits of offset",
            )

    @staticmethod
    def reserved(size: int) -> int:
        """Offsets kept for `size` words: four for every 128 of them, more than a single block uses."""
        return 4 * (size // 128 + 2)

    def offset(self, step: int, parameter: int, shard: int, chunk: int) -> int:
        """The first offset of a chunk."""
        start = self._starts[parameter] + chunk * self.reserved(self.chunk)
        return (shard * self._n + step) * self._row + start

    def fill(self, out: torch.Tensor, step: int, parameter: int, shard: int, chunk: int) -> None:
        """As in the base class."""
        self._draw(out, self.offset(step, parameter, shard, chunk))

    def _draw(self, out: torch.Tensor, offset: int) -> None:
        words = torch.empty(-(-out.numel() // 2), 2, dtype=torch.int64, device=self._generator.device)
        self._generator.set_offset(offset)
        fill_words(words, self._generator)
        out.copy_(torch_pairs(words).view(-1)[: out.numel()])
        used = self._generator.get_offset() - offset
        if not 0 < used <= self.reserved(out.numel()):
            raise NumericalError(
                f"a draw of {out.numel()} numbers used {used} offsets of the generator, "
                f"{self.reserved(out.numel())} are reserved"
            )

    def _fill_reserved(self) -> torch.Tensor:
        out = torch.empty(1 << 20, dtype=torch.float32, device=self._generator.device)
        self._draw(out, 0)
        return out


def fill_by_host(out: torch.Tensor, draw: Callable[[np.ndarray[Any, Any]], None]) -> None:
    """Have a tensor of the CPU filled by `draw`, and copied to `out` where that is elsewhere."""
    if out.device.type == "cpu":
        draw(out.numpy())
        return
    host = torch.empty(out.shape, dtype=out.dtype)
    draw(host.numpy())
    out.copy_(host)


def fill_words(out: torch.Tensor, generator: torch.Generator) -> None:
    """Overwrite `out`, int64, with words of 64 random bits of a torch generator."""
    out.random_(-(2**63), None, generator=generator)
