"""Normal numbers from a cipher, AES-128 in counter mode: one for each word, or a pair for each block."""

import secrets
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpmech.drawing import CIPHER, keystream
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.optim.noise.box_muller import PairMaker
from dpmech.optim.noise.normals import ACCEPTED, NormalSource, fill_by_host
from dpmech.optim.noise.state import PHILOX
from dpmech.optim.noise.ziggurat import ZigguratMaker
from dpmech.optim.processes import Key

__all__ = ["ON_LATTICE", "ZIGGURAT", "SecureNormals", "ZigguratNormals", "secure_key", "source_of"]

ZIGGURAT = f"{CIPHER}, ziggurat"
ON_LATTICE = f"{CIPHER}, lattice"
# What a stream may be made with, by name; CIPHER alone is in the states of runs that were begun with it.
_NAMES = {"secure": ZIGGURAT, "secure-lattice": ON_LATTICE, "philox": PHILOX}
# The states that one with such a generator goes on from.
_TAKEN_UP = {ZIGGURAT: {ZIGGURAT, CIPHER}, ON_LATTICE: {ON_LATTICE}, PHILOX: {PHILOX}}
_BYTES = 16  # of a block of AES
_STEPS = _CHUNKS = 2**32
_PARAMETERS = _SHARDS = 2**24
_RESERVED = _PARAMETERS - 1  # the parameter index of numbers that serve as a fingerprint only
_PAIRS = 1 << 13  # made at once
_VALUES = 1 << 14  # likewise, from one word each
_AGAIN = 1 << 15  # blocks of a chunk from there on are for numbers that take more words


def source_of(generator: object, devices: Iterable[torch.device]) -> tuple[str, set[str]]:
    """What states and records call the source of numbers that a caller gives as `generator`.

    Args:
        generator: as for a NoiseStream. None is the cipher where all devices are CPUs, and Philox elsewhere:
            numbers from the cipher are made on the CPU, and an accelerator would wait for them.
        devices: those of the parameters.

    Returns:
        The source, and those whose states a stream with this generator goes on from: any for None.

    Raises:
        InvalidParameterError: for a name that is not known.
    """
    if generator is None:
        host = all(device.type == "cpu" for device in devices)
        return ZIGGURAT if host else PHILOX, {ZIGGURAT, CIPHER, ON_LATTICE, PHILOX}
    if not isinstance(generator, str):
        return PHILOX, {PHILOX}
    if generator not in _NAMES:
        raise InvalidParameterError("generator", generator, ACCEPTED)
    return _NAMES[generator], _TAKEN_UP[_NAMES[generator]]


def secure_key() -> Key:
    """128 bits from the operating system, as two integers below 2^64.

    Raises:
        MissingDependencyError: without the package `cryptography`, and not at the first step.
    """
    keystream(bytes(_BYTES), bytes(_BYTES))
    return secrets.randbits(64), secrets.randbits(64)


class SecureNormals(NormalSource):
    """AES-128 in counter mode, two numbers of float64 a block (see PairMaker); made on the CPU, and copied.

    A counter block is, highest first: step (32 bits), parameter (24), shard (24), chunk (32) and the place of
    the pair in its chunk (16). Ranges of different chunks cannot meet. Value i of a chunk is a function of
    its counter alone, whatever the length of the chunk and the machine.

    **Guarantee:** whoever tells the numbers of N blocks from those of random words tells AES-128 from a
    random permutation, or has an advantage of at most N^2 / 2^129.

    Args:
        key: two integers below 2^64.
    """

    chunk = 1 << 15

    def __init__(self, key: Key) -> None:
        self._key = b"".join(word.to_bytes(8, "big") for word in key)
        self._local = threading.local()

    def counter(self, step: int, parameter: int, shard: int, chunk: int) -> bytes:
        """The first counter block of a chunk.

        Raises:
            InvalidParameterError: if an index does not fit its bits.
        """
        if step >= _STEPS or parameter >= _PARAMETERS or shard >= _SHARDS or chunk >= _CHUNKS:
            raise InvalidParameterError(
                "(step, parameter, shard, chunk)",
                (step, parameter, shard, chunk),
                "below (2^32, 2^24, 2^24, 2^32)",
            )
        parts = ((step, 4), (parameter, 3), (shard, 3), (chunk, 4), (0, 2))
        return b"".join(value.to_bytes(size, "big") for value, size in parts)

    def fill(self, out: torch.Tensor, step: int, parameter: int, shard: int, chunk: int) -> None:
        """As in the base class; safe to call from several threads.

        Raises:
            InvalidParameterError: if an index does not fit, or is that of the fingerprint.
        """
        if parameter == _RESERVED:
            raise InvalidParameterError("parameter", parameter, f"below {_RESERVED}")
        start = self.counter(step, parameter, shard, chunk)
        fill_by_host(out, lambda host: self._draw(host, start))

    def _draw(self, out: np.ndarray[Any, Any], start: bytes) -> None:
        try:
            maker, zeros, drawn = self._local.tools
        except AttributeError:
            maker, zeros = PairMaker(_PAIRS), bytes(_BYTES * _PAIRS)
            drawn = bytearray(_BYTES * _PAIRS + _BYTES)  # the cipher asks for room for a block more
            self._local.tools = maker, zeros, drawn
        cipher = keystream(self._key, start)
        for first in range(0, len(out), 2 * _PAIRS):
            part = out[first : first + 2 * _PAIRS]
            pairs = (len(part) + 1) // 2
            cipher.update_into(memoryview(zeros)[: _BYTES * pairs], drawn)
            words = np.frombuffer(drawn, dtype="<u8", count=2 * pairs).astype(np.uint64, copy=False)
            maker.make(words.reshape(-1, 2), part)

    def _fill_reserved(self) -> torch.Tensor:
        out = torch.empty(4096, dtype=torch.float64)
        self._draw(out.numpy(), self.counter(0, _RESERVED, 0, 0))
        return out


class ZigguratNormals(SecureNormals):
    """The same cipher and counters with one word a number (see ZigguratMaker): as fast as Philox.

    Block i of a chunk makes numbers 2 i and 2 i + 1. Numbers that take more than one word have theirs from
    the upper half of the blocks, in order, so that a value depends on how many the chunk has.
    """

    chunk = 1 << 16

    def _draw(self, out: np.ndarray[Any, Any], start: bytes) -> None:
        try:
            maker, zeros, drawn = self._local.tools
        except AttributeError:
            maker, zeros = ZigguratMaker(_VALUES), bytes(8 * _VALUES)
            drawn = bytearray(8 * _VALUES + _BYTES)  # as above
            self._local.tools = maker, zeros, drawn
        cipher = keystream(self._key, start)

        def words(count: int) -> npt.NDArray[np.uint64]:
            cipher.update_into(memoryview(zeros)[: 8 * count], drawn)
            return np.frombuffer(drawn, dtype="<u8", count=count).astype(np.uint64, copy=False)

        maker.make(words, _Again(self._key, start), out)


class _Again:
    """Words for numbers that take more than one, from the upper half of the blocks of a chunk."""

    def __init__(self, key: bytes, start: bytes) -> None:
        self._key, self._start = key, start
        self._left = 2 * _AGAIN

    def __call__(self, count: int) -> npt.NDArray[np.uint64]:
        if self._left == 2 * _AGAIN:
            first = int.from_bytes(self._start, "big") + _AGAIN
            self._cipher = keystream(self._key, first.to_bytes(_BYTES, "big"))
        self._left -= count
        if self._left < 0:
            raise NumericalError("a chunk of noise took more words than are reserved for it")
        drawn = self._cipher.update(bytes(8 * count))
        return np.frombuffer(drawn, dtype="<u8").astype(np.uint64, copy=False)
