"""Random words of AES-128 in counter mode, with the interface of the Philox words of `random_words`.

If AES is indistinguishable from a random permutation, these words are indistinguishable from random ones up
to n^2 / 2^129 for n blocks of 16 bytes: words do not reveal other words of the same key.
"""

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpmech.exceptions import MissingDependencyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext


CIPHER = "aes-128-ctr"
_BYTES = 16


class SecureKey(int):
    """128 bits for words from AES; a plain integer is a key of Philox."""

    __slots__ = ()


class SecureWords:
    """The stream of 64-bit words at a position.

    The counter starts at use (2 bytes), position (6 bytes) and 8 bytes of zeros, so that the streams of two
    positions cannot meet before 2^65 words.

    Args:
        key: in [0, 2^128).
        use: in [0, 2^16).
        position: in [0, 2^48).

    Raises:
        MissingDependencyError: without the package `cryptography`.
    """

    def __init__(self, key: int, use: int, position: int) -> None:
        start = use.to_bytes(2, "big") + position.to_bytes(6, "big") + bytes(8)
        self._stream = keystream(int(key).to_bytes(_BYTES, "big"), start)

    def random_raw(self, size: int) -> npt.NDArray[np.uint64]:
        """The next `size` words, little-endian in the stream on every machine."""
        drawn = self._stream.update(bytes(8 * size))
        return np.frombuffer(bytearray(drawn), dtype="<u8").astype(np.uint64, copy=False)


def keystream(key: bytes, start: bytes) -> "CipherContext":
    """A cipher context that turns zeros into the ciphertexts of `start`, `start` + 1, ..., under AES-128.

    Args:
        key: 16 bytes.
        start: the first counter, 16 bytes, big-endian.

    Raises:
        MissingDependencyError: without the package `cryptography`.
    """
    return _encryptor(key, lambda modes: modes.CTR(start))


def block_cipher(key: bytes) -> "CipherContext":
    """Enciphers blocks of 16 bytes under AES-128: any parts of keystreams, by their counters.

    Raises:
        MissingDependencyError: without the package `cryptography`.
    """
    return _encryptor(key, lambda modes: modes.ECB())


def _encryptor(key: bytes, mode: Callable[[Any], Any]) -> "CipherContext":
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError as error:
        raise MissingDependencyError("cryptography", "sign") from error
    return Cipher(algorithms.AES128(key), mode(modes)).encryptor()


def fresh_secure_key() -> SecureKey:
    """A key from the operating system.

    Raises:
        MissingDependencyError: without the package `cryptography`, here rather than at the first batch.
    """
    key = SecureKey(secrets.randbits(8 * _BYTES))
    SecureWords(key, 0, 0)
    return key
