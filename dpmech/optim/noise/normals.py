"""Standard normal numbers as a function of a key and a position, without state.

A counter-based generator (Philox) turns a key and a counter into random words. Every chunk of every vector
of the noise has a separate range of counters, so that each can be regenerated at any time, in any
order, and no two of them share a number.

Words become float64 numbers with the same bits on every machine, using only additions, multiplications,
divisions, square roots and shifts, each rounded as in IEEE 754, in one numpy call each, so that nothing is
fused. Logarithms, sines and cosines of libraries differ in their last bits between
processors, and a run that resumes elsewhere would regenerate different rows. (`pairs` does the same with
tensors, on any device.)
"""

import abc
import hashlib
import math
import numbers
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.processes import Key

_Words = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.floating[Any]]
Values = TypeVar("Values", _Floats, torch.Tensor)

RADIUS_BITS = 80  # of u: one word, and the lowest 16 bits of the other
ANGLE_BITS = 48  # of the angle that are independent of u: the rest of that word
LARGEST = math.sqrt(2.0 * (RADIUS_BITS + 1) * math.log(2.0))  # r at the center of the first cell of u
ROUNDINGS = 2.0**-48  # largest total rounding error, in units of r

HALF_TURN = math.ldexp(math.pi, -64)
SQRT_HALF = 0x3FE6A09E667F3BCD  # bits of sqrt(1/2), the smallest mantissa
_SIGN = np.uint64(1 << 63)
_LOW = np.uint64((1 << 16) - 1)
# Taylor coefficients, highest first: the remainder is below 2^-54 of the value on the intervals used.
ATANH = [2.0 / (2 * k + 1) for k in range(10, 0, -1)]
SIN = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(8, 0, -1)]
COS = [(-1.0) ** k / math.factorial(2 * k) for k in range(9, 0, -1)]


def fill_with_pairs(words: _Words, out: npt.NDArray[Any]) -> None:
    r"""Overwrite `out` with pairs of independent standard normal numbers, each from two 64-bit words.

    The first word w and the lowest 16 bits k of the second give $u = (w + v)/2^{64}$, $v = (k + 1/2)/2^{16}$,
    and $r = \sqrt{-2\ln u}$; the lower 63 bits of the second, read with a sign, give $\varphi = \pi (i +
    1/2)/2^{63}$ in $(-\pi/2, \pi/2)$, its highest bit the sign of the cosine. The pair is $(\pm r\cos\varphi,
    r\sin\varphi)$ (Box and Muller): an exact pair whose u is moved to the center of its cell of $2^{-80}$,
    and whose angle is moved inside its cell of $2\pi/2^{48}$, given by the upper 48 bits. (The 16 bits shared
    by u and the angle are thus harmless; without them u would end at $2^{-65}$.) The largest number is
    `LARGEST`, 10.59.

    **Guarantee:** rounding changes a number by at most 2^-48 r: a bound, by counting errors to first order
    (about 22 of 2^-53). The largest observed is 2^-51.

    Args:
        words: shape (p, 2).
        out: shape (2 p,) or (2 p - 1,), float64 or float32: value 2 q is from the cosine of pair q, and
            2 q + 1 from the sine.

    References:
        Box and Muller 1958, "A note on the generation of random normal deviates".
    """
    first, second = words[:, 0], words[:, 1]
    radius = radii(first, ((second & _LOW) + 0.5) * 2.0**-16)
    cosine, sine = of_twice((((second << np.uint64(1)).view(np.int64) >> 1) + 0.5) * HALF_TURN)
    cosine.view(np.uint64)[:] ^= second & _SIGN
    np.multiply(radius, cosine, out=out[0::2], casting="same_kind")
    odd = out[1::2]
    np.multiply(radius[: len(odd)], sine[: len(odd)], out=odd, casting="same_kind")


def radii(word: _Words, low: _Floats) -> _Floats:
    """The radius sqrt(-2 ln u) of u = (word + low) / 2^64, for low in (0, 1).

    u = m 2^k with m in [sqrt(1/2), sqrt(2)), and ln m = 2 atanh((m - 1) / (m + 1)).
    """
    bits = (word + low).view(np.int64)  # of 2^64 u, a float64
    exponent = (bits - SQRT_HALF) >> 52
    fraction = (bits - (exponent << 52)).view(np.float64)
    fraction -= 1.0
    # Near 1, 1 - u has all its bits in the word, and m = u.
    near = np.flatnonzero(exponent == 64)
    fraction[near] = (~word[near] + (1.0 - low[near])) * -(2.0**-64)
    log = twice_log((64 - exponent).astype(np.float64), fraction)
    np.sqrt(log, out=log)
    return log


def twice_log(powers: Values, fraction: Values) -> Values:
    """2 (powers ln 2 - ln(1 + fraction)) of arrays or tensors, both overwritten."""
    fraction /= fraction + 2.0
    square = fraction * fraction
    series = _horner(ATANH, square)
    series *= square
    series += 2.0
    series *= fraction
    powers *= math.log(2.0)
    powers -= series
    powers += powers
    return powers


def of_twice(half: Values) -> tuple[Values, Values]:
    """Cosine and sine of twice an angle, of arrays or tensors: (b - a)(b + a) and 2 a b, a the sine of it."""
    square = half * half
    sine = _horner(SIN, square)
    sine *= square
    sine *= half
    sine += half
    cosine = _horner(COS, square)
    cosine *= square
    cosine += 1.0
    product = sine * cosine
    product += product
    return (cosine - sine) * (cosine + sine), product


def _horner(coefs: list[float], x: Values) -> Values:
    total = x * coefs[0]
    for coef in coefs[1:-1]:
        total += coef
        total *= x
    total += coefs[-1]
    return total


Generator: TypeAlias = (
    np.random.Generator | torch.Generator | int | Literal["secure", "secure-lattice", "philox"]
)
ACCEPTED = (
    'None, "secure", "secure-lattice", "philox", a numpy.random.Generator, a seeded torch.Generator or an '
    "integer >= 0"
)

_WORD = 64
_MAX_WORD = 2**_WORD - 1
_DEFAULT_TORCH_SEED = 67280421310721  # of every unseeded torch.Generator()
_RESERVED = _MAX_WORD  # the parameter index of numbers used only for a fingerprint


def noise_key(generator: Generator | None) -> Key:
    """128 bits that select the noise: from the operating system, or from a generator.

    Args:
        generator: None and "philox" use entropy of the operating system, as private training requires. A
            numpy generator (which advances), a torch generator (its 64-bit seed and one draw, so that it
            advances too) or an integer >= 0 makes the noise reproducible, and as secret as they are.

    Returns:
        Two integers below 2^64. Anyone who knows them can remove the noise.

    Raises:
        InvalidParameterError: on another type, or an unseeded torch generator.
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
        raise InvalidParameterError("generator", generator, ACCEPTED)
    return int(words[0]), int(words[1])


class Place(NamedTuple):
    """What numbers a chunk has: indices as for `NormalSource.fill`, and how many."""

    parameter: int
    shard: int
    chunk: int
    size: int


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
            out: the tensor to fill.
            step: row of Z, in [0, n - 1].
            parameter: index of the parameter.
            shard: index of the parameter's shard; 0 if it is not sharded.
            chunk: index of the shard's chunk.
        """

    def fill_all(self, out: torch.Tensor, step: int, places: Sequence[Place]) -> None:
        """As `fill`, for chunks that lie next to each other in `out`."""
        for part, place in zip(torch.split(out, [one.size for one in places]), places, strict=True):
            self.fill(part, step, *place[:3])

    @abc.abstractmethod
    def _fill_reserved(self) -> torch.Tensor:
        """Numbers at a position that no noise uses."""

    def fingerprint(self) -> str:
        """SHA-256 (hex) of numbers that no noise uses: equal if key and generator give the same numbers."""
        return hashlib.sha256(self._fill_reserved().cpu().numpy().tobytes()).hexdigest()


class HostNormals(NormalSource):
    """numpy's 128-bit Philox (4 x 64, ten rounds) with the ziggurat; on CPUs, copied to other devices.

    The counter has 256 bits: the lowest 64 count inside a chunk, then come chunk and shard (32 bits each),
    parameter and step (64 bits each). Ranges of different chunks are disjoint.

    Args:
        key: two integers below 2^64.
    """

    chunk = 1 << 15

    def __init__(self, key: Key) -> None:
        self._key = np.array(key, dtype=np.uint64)
        self._local = threading.local()

    def counter(self, step: int, parameter: int, shard: int, chunk: int) -> tuple[int, int, int, int]:
        """The first counter of a chunk, lowest word first; InvalidParameterError if an index does not fit."""
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


def fill_by_host(out: torch.Tensor, draw: Callable[[np.ndarray[Any, Any]], None]) -> None:
    """Fill a tensor on the CPU with `draw`, and copy it to `out` if that is on another device."""
    if out.device.type == "cpu":
        draw(out.numpy())
        return
    host = torch.empty(out.shape, dtype=out.dtype)
    draw(host.numpy())
    out.copy_(host)
