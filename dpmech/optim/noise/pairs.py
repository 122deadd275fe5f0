"""Pairs of normal numbers with the same bits on every device: counter-based words, rounded operations only.

The words are those of ChaCha20 at a position, and become numbers as in `fill_with_pairs`, one torch
operation at a time: integers, additions, multiplications, divisions and square roots of float64, each rounded
as in IEEE 754. `kernels` does the same inside one kernel, without memory for words and numbers.
"""

import hashlib

import numpy as np
import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.noise.normals import HALF_TURN, SQRT_HALF, NormalSource, of_twice, twice_log
from dpmech.optim.processes import Key

UNIT_WORDS = 8  # words of 64 bits of a unit: a block of ChaCha20
LANES = 128  # units of a tile
TILE = LANES * UNIT_WORDS  # values of a tile

CHACHA_ROUNDS = 10  # double rounds
CHACHA_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"

_INDEX = 2**32  # every index of a position is below it
_RESERVED = _INDEX - 1  # the parameter index of numbers used only for a fingerprint
_LOW = (1 << 32) - 1
_QUARTERS = (
    ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)


class ChaChaNormals(NormalSource):
    """Pairs from ChaCha20, as a function of (step, parameter, shard) and their place in a vector.

    The key has 256 bits, a hash (BLAKE2b) of ours. A unit is a block of 64 bytes; the last four words of the
    cipher's state are unit, step, parameter and shard, 32 bits each.

    A vector is divided into tiles of 1024 values; unit u gives the values u mod 128 + 128 k of tile u / 128
    (rounded down), k = 0, ..., 7. Of each unit's eight words two make a pair, as in `fill_with_pairs`: k even
    is from the cosine, k odd from the sine. Values depend neither on the length of a chunk nor on the device.

    **Guarantee:** anyone who distinguishes the numbers from those of random words distinguishes ChaCha20 from
    random functions.

    Args:
        key: two integers below 2^64.
        device: where the numbers are computed.

    Attributes:
        key_words: the key of the cipher, eight integers below 2^32.

    References:
        Bernstein 2008, "ChaCha, a variant of Salsa20"; RFC 8439 section 2.3.
    """

    def __init__(self, key: Key, device: torch.device) -> None:
        self.device = device
        self.chunk = 1 << 14 if device.type == "cpu" else 1 << 22
        whole = b"".join(word.to_bytes(8, "little") for word in key)
        digest = hashlib.blake2b(whole, digest_size=32, person=b"dpmech chacha20").digest()
        self.key_words = tuple(int.from_bytes(digest[4 * i : 4 * i + 4], "little") for i in range(8))

    def check_position(self, step: int, parameter: int, shard: int, last: int) -> None:
        """Raise InvalidParameterError if an index does not fit, or is that of the fingerprint."""
        if max(step, parameter + 1, shard, last) >= _INDEX:
            raise InvalidParameterError(
                "(step, parameter, shard, unit of 8 values)",
                (step, parameter, shard, last),
                "below (2^32, 2^32 - 1, 2^32, 2^32)",
            )

    def fill(self, out: Tensor, step: int, parameter: int, shard: int, chunk: int) -> None:
        """As in the base class; raises as `check_position`."""
        tiles = -(-out.numel() // TILE)
        first = chunk * (self.chunk // TILE) * LANES
        self.check_position(step, parameter, shard, first + max(tiles * LANES - 1, 0))
        out.copy_(self._values((step, parameter, shard), first, tiles)[: out.numel()])

    def _values(self, position: tuple[int, int, int], first: int, tiles: int) -> Tensor:
        units = torch.arange(first, first + tiles * LANES, dtype=torch.int64, device=self.device)
        words = self.words(position, units)
        numbers = pairs_of(words[0::2], words[1::2])
        # From (pair, cosine or sine, tile, unit) to (tile, value of the unit, unit).
        return torch.stack(numbers, 1).view(UNIT_WORDS, tiles, LANES).transpose(0, 1).reshape(-1)

    def words(self, position: tuple[int, int, int], units: Tensor) -> Tensor:
        """Words of units, int64 read as 64 bits each.

        Args:
            position: (step, parameter, shard).
            units: int64, shape (u,), each below 2^32.

        Returns:
            Shape (8, u).
        """
        start = torch.empty(16, len(units), dtype=torch.int32, device=units.device)
        for row, word in enumerate((*CHACHA_CONSTANTS, *self.key_words, 0, *position)):
            start[row] = _signed(word)
        start[12] = ((units ^ (1 << 31)) - (1 << 31)).to(torch.int32)  # the same 32 bits
        state = start.clone()
        for _ in range(CHACHA_ROUNDS):
            for quarters in _QUARTERS:
                for a, b, c, d in quarters:
                    _quarter(state[a], state[b], state[c], state[d])
        state.add_(start)
        return (state[1::2].to(torch.int64) << 32) | (state[0::2].to(torch.int64) & _LOW)

    def _fill_reserved(self) -> Tensor:
        return self._values((0, _RESERVED, 0), 0, 2)


def pairs_of(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs of `fill_with_pairs` with the same bits, on any device that rounds float64 as IEEE 754 does.

    Args:
        first: int64, read as 64 bits each.
        second: of the same shape.

    Returns:
        The numbers from the cosine, and those from the sine; float64.
    """
    low = ((second & ((1 << 16) - 1)).double() + 0.5) * 2.0**-16
    radius = _radius(first, low)
    cosine, sine = of_twice((((second << 1) >> 1).double() + 0.5) * HALF_TURN)
    return radius * torch.where(second < 0, -cosine, cosine), radius * sine


def _radius(word: Tensor, low: Tensor) -> Tensor:
    total = _unsigned(word) + low
    bits = total.view(torch.int64)
    exponent = (bits - SQRT_HALF) >> 52
    fraction = (bits - (exponent << 52)).view(torch.float64) - 1.0
    # Near 1, 1 - u has all its bits in the word.
    near = (_unsigned(~word) + (1.0 - low)) * -(2.0**-64)
    fraction = torch.where(exponent == 64, near, fraction)
    return _root(twice_log((64 - exponent).double(), fraction))


def _root(x: Tensor) -> Tensor:
    if x.device.type == "cpu":  # the vector libraries of torch round some roots up and others down
        return torch.from_numpy(np.sqrt(x.numpy()))
    return torch.sqrt(x)


def _unsigned(words: Tensor) -> Tensor:
    """The 64 bits of int64 as float64 in [0, 2^64], rounded once."""
    return ((words >> 32) & _LOW).double() * 2.0**32 + (words & _LOW).double()


def _signed(word: int) -> int:
    """The integer of two's complement with the same 32 bits."""
    return (word + (1 << 31)) % (1 << 32) - (1 << 31)


def _quarter(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """A quarter round of ChaCha in place; int32 wraps."""
    for x, y, z, places in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x.add_(y)
        z.bitwise_xor_(x)
        high = z << places
        # The shift to the right repeats the sign, which the mask removes.
        z.bitwise_right_shift_(32 - places).bitwise_and_((1 << places) - 1).bitwise_or_(high)
