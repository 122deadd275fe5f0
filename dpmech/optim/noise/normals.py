"""Standard normal numbers as a function of a key and a position, without state.

A counter-based generator (Philox) turns a key and a counter into random words. Every chunk of every vector
of the noise has a separate range of counters, so that each can be regenerated at any time, in any
order, and no two of them share a number.

Words become float64 numbers with the same bits on every machine, using only additions, multiplications,
divisions, square roots and shifts, each rounded as in IEEE 754, in one numpy call each, so that nothing is
fused. Logarithms, sines and cosines of libraries differ in their last bits between
processors, and a run that resumes elsewhere would regenerate different rows. (`pairs` does the same with
torch, on any device.)
"""

import abc
import hashlib
import math
import numbers
import secrets
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.processes import Key

_Words = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float64]

RADIUS_BITS = 80  # of u: one word, and the lowest 16 bits of the other
ANGLE_BITS = 48  # of the angle that are independent of u: the rest of that word
LARGEST = math.sqrt(2.0 * (RADIUS_BITS + 1) * math.log(2.0))  # r at the center of the first cell of u
ROUNDINGS = 2.0**-48  # largest total rounding error, in units of r

SQRT_HALF = 0x3FE6A09E667F3BCD  # bits of sqrt(1/2), the smallest mantissa
_SIGN = np.uint64(1 << 63)
_LOW = np.uint64((1 << 16) - 1)
# Taylor coefficients, highest first: the remainder is below 2^-54 of the value on the intervals used.
ATANH = [2.0 / (2 * k + 1) for k in range(10, 0, -1)]
SIN = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(8, 0, -1)]
COS = [(-1.0) ** k / math.factorial(2 * k) for k in range(9, 0, -1)]


class PairMaker:
    r"""Pairs of independent standard normal numbers, each from two 64-bit words (Box and Muller).

    The first word w and the lowest 16 bits k of the second give $u = (w + v)/2^{64}$, $v = (k + 1/2)/2^{16}$,
    and $r = \sqrt{-2\ln u}$; the lower 63 bits of the second, read with a sign, give $\varphi = \pi (i +
    1/2)/2^{63}$ in $(-\pi/2, \pi/2)$, its highest bit the sign of the cosine. The pair is $(\pm r\cos\varphi,
    r\sin\varphi)$: an exact pair whose u is moved to the center of its cell of $2^{-80}$, and whose angle is
    moved inside its cell of $2\pi/2^{48}$, given by the upper 48 bits. (The 16 bits shared by u and the angle
    are thus harmless; without them u would end at $2^{-65}$.) The largest number is `LARGEST`, 10.59.

    **Guarantee:** rounding changes a number by at most 2^-48 r: a bound, by counting errors to first order
    (about 22 of 2^-53). The largest observed is 2^-51.

    Args:
        most: number of pairs computed at once.

    References:
        Box and Muller 1958, "A note on the generation of random normal deviates".
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._floats = [np.empty(most) for _ in range(4)]
        self._words = [np.empty(most, dtype=np.uint64) for _ in range(2)]
        self._mask = np.empty(most, dtype=bool)

    def make(self, words: _Words, out: npt.NDArray[Any]) -> None:
        """Overwrite `out` with the numbers of `words`.

        Args:
            words: shape (p, 2), p at most `most`.
            out: shape (2 p,) or (2 p - 1,), float64 or float32: value 2 q is from the cosine of pair q, and
                2 q + 1 from the sine.
        """
        count = len(words)
        radius, sine, cosine, spare = (array[:count] for array in self._floats)
        first, second = (array[:count] for array in self._words)
        np.bitwise_and(words[:, 1], _LOW, out=first)
        np.add(first, 0.5, out=cosine)
        np.multiply(cosine, 2.0**-16, out=cosine)
        self._radius(words[:, 0], radius, (sine, cosine, spare), (first, second), self._mask[:count])
        _half_angle(words[:, 1], spare, first)
        _sine_and_cosine(spare, sine, cosine, second.view(np.float64))
        # From half the angle to the angle: 2 a b and (b - a)(b + a).
        np.subtract(cosine, sine, out=spare)
        product = second.view(np.float64)
        np.multiply(sine, cosine, out=product)
        np.add(cosine, sine, out=cosine)
        np.multiply(spare, cosine, out=cosine)
        np.add(product, product, out=product)
        np.bitwise_and(words[:, 1], _SIGN, out=first)
        np.bitwise_xor(cosine.view(np.uint64), first, out=cosine.view(np.uint64))
        np.multiply(radius, cosine, out=out[0::2], casting="same_kind")
        odd = out[1::2]
        np.multiply(radius[: len(odd)], product[: len(odd)], out=odd, casting="same_kind")

    def radii(self, words: _Words, low: _Floats) -> _Floats:
        """R = sqrt(-2 ln u) of u = (word + low) / 2^64, each in (0, 1); any number of values."""
        count = len(words)
        out, fraction, series = (np.empty(count) for _ in range(3))
        spare = (np.empty(count, dtype=np.uint64), np.empty(count, dtype=np.uint64))
        self._radius(words, out, (fraction, low.copy(), series), spare, np.empty(count, dtype=bool))
        return out

    def _radius(
        self,
        word: _Words,
        out: _Floats,
        floats: tuple[_Floats, _Floats, _Floats],
        words: tuple[_Words, _Words],
        near_one: npt.NDArray[np.bool_],
    ) -> None:
        """sqrt(-2 ln u): u = m 2^k with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)).

        On input the second of `floats` is v.
        """
        fraction, square, series = floats
        mantissa, exponent = words[0].view(np.int64), words[1].view(np.int64)
        bits = out.view(np.int64)
        np.add(word, square, out=out)  # 2^64 u, a float64
        np.subtract(bits, SQRT_HALF, out=exponent)
        np.right_shift(exponent, 52, out=exponent)
        np.left_shift(exponent, 52, out=mantissa)
        np.subtract(bits, mantissa, out=mantissa)
        np.subtract(words[0].view(np.float64), 1.0, out=fraction)
        # Near 1, 1 - u has all its bits in the word, and m = u.
        np.equal(exponent, 64, out=near_one)
        np.invert(word, out=words[0])
        np.subtract(1.0, square, out=square)
        np.add(words[0], square, out=square)
        np.multiply(square, -(2.0**-64), out=square)
        np.copyto(fraction, square, where=near_one)
        np.add(fraction, 2.0, out=square)
        np.divide(fraction, square, out=fraction)
        np.multiply(fraction, fraction, out=square)
        _horner(ATANH, square, series)
        np.multiply(series, square, out=series)
        np.add(series, 2.0, out=series)
        np.multiply(series, fraction, out=series)
        np.subtract(64, exponent, out=exponent)
        np.multiply(exponent, math.log(2.0), out=out)
        np.subtract(out, series, out=out)
        np.add(out, out, out=out)
        np.sqrt(out, out=out)


def _half_angle(word: _Words, out: _Floats, spare: _Words) -> None:
    """Half of pi (i + 1/2) / 2^63, i the lower 63 bits of a word, signed."""
    number = spare.view(np.int64)
    np.left_shift(word, np.uint64(1), out=spare)
    np.right_shift(number, 1, out=number)
    np.add(number, 0.5, out=out)
    np.multiply(out, math.ldexp(math.pi, -64), out=out)


def _sine_and_cosine(angle: _Floats, sine: _Floats, cosine: _Floats, square: _Floats) -> None:
    """Sine and cosine of angles in [-pi/4, pi/4]."""
    np.multiply(angle, angle, out=square)
    _horner(SIN, square, sine)
    np.multiply(sine, square, out=sine)
    np.multiply(sine, angle, out=sine)
    np.add(sine, angle, out=sine)
    _horner(COS, square, cosine)
    np.multiply(cosine, square, out=cosine)
    np.add(cosine, 1.0, out=cosine)


def _horner(coefs: list[float], x: _Floats, out: _Floats) -> None:
    np.multiply(x, coefs[0], out=out)
    for coef in coefs[1:-1]:
        np.add(out, coef, out=out)
        np.multiply(out, x, out=out)
    np.add(out, coefs[-1], out=out)


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
            out: the tensor to fill.
            step: row of Z, in [0, n - 1].
            parameter: index of the parameter.
            shard: index of the parameter's shard; 0 if it is not sharded.
            chunk: index of the shard's chunk.
        """

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
