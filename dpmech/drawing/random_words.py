"""Random choices as pure functions of a key and a position, from raw bits only.

The words are those of AES-128, or of numpy's Philox: both are the same in every version, unlike numpy's
distributions, so a run that is resumed years later gets the same batches. No choice uses floating-point
numbers, so the distributions below are exact if the words are uniform and independent.
"""

import enum
import math
import secrets

import numpy as np
import numpy.typing as npt

from dpmech.drawing.secure_words import SecureKey, SecureWords, fresh_secure_key
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_rng
from dpmech.numerics import IntArray

KEY_BITS = 128
PHILOX = "philox"
SECURE = "secure"
_ACCEPTED = f'None, "{SECURE}", "{PHILOX}", a numpy.random.Generator or an integer >= 0'
_WORD = 1 << 64
_FIRST = 1 << 16  # values of the first part of a Bernoulli trial
_LARGEST_N = (1 << 31) - 1
_CHUNK = 1 << 20  # words held at once while groups are generated


class Use(enum.IntEnum):
    """The use of a range of the counter: its highest word. The next word is the step or the epoch."""

    GROUPS = 0
    COINS = 1
    TIES = 2
    ORDER = 3
    KEEP = 4


def fresh_key(rng: object) -> int:
    """128 bits from the operating system, or from a generator or seed.

    Args:
        rng: None or "secure", for a key of AES; "philox", for a key of Philox; or a numpy Generator (which
            advances) or an integer seed, from which a key of Philox is derived.

    Raises:
        InvalidParameterError: for any other rng.
        MissingDependencyError: for a key of AES without the package `cryptography`.
    """
    if isinstance(rng, str):
        if rng not in (PHILOX, SECURE):
            raise InvalidParameterError("rng", rng, _ACCEPTED)
        return fresh_secure_key() if rng == SECURE else secrets.randbits(KEY_BITS)
    try:
        generator = check_rng(rng)
    except InvalidParameterError:
        raise InvalidParameterError("rng", rng, _ACCEPTED) from None
    if generator is None:
        return fresh_secure_key()
    high, low = generator.integers(0, _WORD, size=2, dtype=np.uint64)
    return int(high) * _WORD + int(low)


def check_steps(n: object) -> int:
    """Return a number of steps that fits 32 bits, else raise InvalidParameterError."""
    return check_integer("n", n, minimum=1, maximum=_LARGEST_N)


def words(key: int, use: Use, position: int) -> np.random.Philox | SecureWords:
    """The stream of 64-bit words at a position; streams of two positions cannot meet before 2^65 words."""
    if isinstance(key, SecureKey):
        return SecureWords(key, use, position)
    counter = np.array([0, 0, position, use], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter)


def groups(key: int, count: int, size: int, epoch: int = 0) -> npt.NDArray[np.int32 | np.int64]:
    """A group for each of `size` examples, uniform in [0, count) and independent.

    A word w becomes w mod count; words past the last multiple of count are regenerated, so that all groups
    are equally likely. Every epoch has separate words; sampling once for the run uses those of epoch 0.
    """
    chosen: npt.NDArray[np.int32 | np.int64] = np.empty(
        size, dtype=np.int32 if count <= 1 << 31 else np.int64
    )
    limit = _WORD - _WORD % count
    stream = words(key, Use.GROUPS, epoch)
    for start in range(0, size, _CHUNK):
        part = stream.random_raw(min(_CHUNK, size - start))
        if limit < _WORD:
            late = np.flatnonzero(part >= np.uint64(limit))
            while late.size:
                part[late] = stream.random_raw(late.size)
                late = late[part[late] >= np.uint64(limit)]
        chosen[start : start + part.size] = part % np.uint64(count)
    return chosen


def coins(key: int, step: int, prob: float, count: int) -> IntArray:
    """The examples, in increasing order, for which `count` independent Bernoulli trials succeed.

    Trial i reads 80 bits as a number in [0, 1) and compares it with prob. Sixteen bits decide all but one
    trial in 65,536; the other 64 are generated only if needed. The probability is floor(2^80 prob) / 2^80:
    prob itself if prob >= 2^-27, and otherwise less by under 2^-80, which is conservative.
    """
    first, second = divmod(int(math.ldexp(prob, 80)), _WORD)
    if first == _FIRST:  # prob = 1
        return np.arange(count)
    raw = words(key, Use.COINS, step).random_raw(-(-count // 4)).astype("<u8", copy=False)
    begun = raw.view("<u2")[:count]
    possible = np.flatnonzero(begun <= first)
    heads = begun[possible] < first
    tied = np.flatnonzero(~heads)
    heads[tied] = words(key, Use.TIES, step).random_raw(tied.size) < np.uint64(second)
    return possible[heads]


def chosen(key: int, step: int, most: int, count: int) -> IntArray:
    """`most` of `count` numbers, in increasing order; every set has the same probability.

    Each number gets a random word, and the smallest words win. If the last winner and the first loser have
    the same word, all words are regenerated: this is symmetric, so the distribution is exact.
    """
    stream = words(key, Use.KEEP, step)
    while True:
        drawn = stream.random_raw(count)
        ranked = np.argpartition(drawn, (most - 1, most))
        if drawn[ranked[most - 1]] < drawn[ranked[most]]:
            return np.sort(ranked[:most])


def order(key: int, epoch: int, size: int) -> IntArray:
    """A permutation of `size` examples, from random words."""
    return np.argsort(words(key, Use.ORDER, epoch).random_raw(size), kind="stable")
