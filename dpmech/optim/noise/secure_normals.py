"""Normal numbers from a cipher: AES-128 in counter mode, each block of which makes one pair."""

import secrets
import threading
from typing import Any

import numpy as np
import torch

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.noise.box_muller import PairMaker
from dpmech.optim.noise.normals import NormalSource, fill_by_host
from dpmech.optim.noise.state import PHILOX
from dpmech.optim.processes import Key
from dpmech.samplers import CIPHER, keystream

__all__ = ["ON_LATTICE", "SecureNormals", "secure_key", "source_of"]

ON_LATTICE = f"{CIPHER}, lattice"
_NAMES = {"secure": CIPHER, "secure-lattice": ON_LATTICE}
_BYTES = 16  # of a block of AES
_STEPS = _CHUNKS = 2**32
_PARAMETERS = _SHARDS = 2**24
_RESERVED = _PARAMETERS - 1  # the parameter index of numbers that serve as a fingerprint only
_PAIRS = 1 << 13  # made at once


def source_of(generator: object) -> str:
    """What states and records call the source of numbers that a caller names as `generator`."""
    return _NAMES.get(generator, PHILOX) if isinstance(generator, str) else PHILOX


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
