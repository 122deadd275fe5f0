"""Normal numbers of float64 from random words: the same bits on every machine.

Additions, multiplications, divisions, square roots and shifts only, each rounded as IEEE 754 says, one numpy
call each, so that nothing is fused. Logarithms, sines and cosines of a library differ in their last bits from
one processor to the next, and a run that goes on elsewhere would draw other rows again. (`torch_pairs` is for
accelerators, whose words differ by device anyway.)
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["ANGLE_BITS", "LARGEST", "RADIUS_BITS", "ROUNDINGS", "PairMaker", "torch_pairs"]

_Words = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float64]

RADIUS_BITS = 80  # of u: a word, and the lowest 16 bits of the other one
ANGLE_BITS = 48  # of the circle that u knows nothing of: the rest of that word
LARGEST = math.sqrt(2.0 * (RADIUS_BITS + 1) * math.log(2.0))  # r at the centre of the first cell of u
ROUNDINGS = 2.0**-48  # what all roundings together may change, in units of r

_SQRT_HALF = np.int64(0x3FE6A09E667F3BCD)  # bits of sqrt(1/2): mantissas are taken from there on
_SIGN = np.uint64(1 << 63)
_LOW = np.uint64((1 << 16) - 1)
# Taylor coefficients, highest first: what is left out is below 2^-54 of the value on the intervals used.
_ATANH = [2.0 / (2 * k + 1) for k in range(10, 0, -1)]
_SIN = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(8, 0, -1)]
_COS = [(-1.0) ** k / math.factorial(2 * k) for k in range(9, 0, -1)]


class PairMaker:
    r"""Pairs of independent standard normal numbers, each from two words of 64 bits (Box and Muller).

    The first word w and the lowest 16 bits k of the second give $u = (w + v)/2^{64}$, $v = (k + 1/2)/2^{16}$,
    and $r = \sqrt{-2\ln u}$; the lower 63 bits of the second, read with a sign, give
    $\varphi = \pi (i + 1/2)/2^{63}$ in $(-\pi/2, \pi/2)$, its highest bit the sign of the cosine. The pair is
    $(\pm r\cos\varphi, r\sin\varphi)$: that of an exact pair whose u is moved to the centre of its cell of
    $2^{-80}$, and whose angle is moved inside its cell of $2\pi/2^{48}$, which the upper 48 bits name. (So it
    does no harm that u and angle have 16 bits in common; without them u would end at $2^{-65}$.) Numbers
    reach to `LARGEST`, 10.59.

    **Guarantee:** roundings change a number by at most 2^-48 r: a bound, by counting them to first order
    (about 22 of 2^-53). The most that was seen is 2^-51.

    Args:
        most: how many pairs are made at once.

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
            out: shape (2 p,) or (2 p - 1,), float64 or float32: value 2 q is the cosine's of pair q, and
                2 q + 1 the sine's.
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
        """R = sqrt(-2 ln u) of u = (word + low) / 2^64, each in (0, 1); any number of them."""
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

        The second of `floats` comes in as v.
        """
        fraction, square, series = floats
        mantissa, exponent = words[0].view(np.int64), words[1].view(np.int64)
        bits = out.view(np.int64)
        np.add(word, square, out=out)  # 2^64 u, a float64
        np.subtract(bits, _SQRT_HALF, out=exponent)
        np.right_shift(exponent, 52, out=exponent)
        np.left_shift(exponent, 52, out=mantissa)
        np.subtract(bits, mantissa, out=mantissa)
        np.subtract(words[0].view(np.float64), 1.0, out=fraction)
        # Near 1 it is 1 - u that has all its bits in the word, and m = u there.
        np.equal(exponent, 64, out=near_one)
        np.invert(word, out=words[0])
        np.subtract(1.0, square, out=square)
        np.add(words[0], square, out=square)
        np.multiply(square, -(2.0**-64), out=square)
        np.copyto(fraction, square, where=near_one)
        np.add(fraction, 2.0, out=square)
        np.divide(fraction, square, out=fraction)
        np.multiply(fraction, fraction, out=square)
        _horner(_ATANH, square, series)
        np.multiply(series, square, out=series)
        np.add(series, 2.0, out=series)
        np.multiply(series, fraction, out=series)
        np.subtract(64, exponent, out=exponent)
        np.multiply(exponent, math.log(2.0), out=out)
        np.subtract(out, series, out=out)
        np.add(out, out, out=out)
        np.sqrt(out, out=out)


def torch_pairs(words: torch.Tensor) -> torch.Tensor:
    """The pairs of PairMaker on any device, with torch's logarithm, sine and cosine.

    Their last bits may differ from one kind of device to the next, and from PairMaker's.

    Args:
        words: int64, shape (p, 2), read as 64 bits each.

    Returns:
        float64, shape (p, 2), on the device of `words`.
    """
    first, second = words.unbind(1)
    low = ((second & int(_LOW)).double() + 0.5) * 2.0**-16
    # Each side of u = 1/2 from the end that has its bits.
    below = torch.log((_unsigned(first) + low) * 2.0**-64)
    above = torch.log1p((_unsigned(~first) + (1.0 - low)) * -(2.0**-64))
    radius = torch.sqrt(-2.0 * torch.where(first >= 0, below, above))
    angle = (((second << 1) >> 1).double() + 0.5) * (math.pi * 2.0**-63)
    cosine = torch.where(second < 0, -radius, radius) * torch.cos(angle)
    return torch.stack([cosine, radius * torch.sin(angle)], 1)


def _unsigned(words: torch.Tensor) -> torch.Tensor:
    """The 64 bits of int64 as float64 in [0, 2^64]."""
    low = (1 << 32) - 1
    return ((words >> 32) & low).double() * 2.0**32 + (words & low).double()


def _half_angle(word: _Words, out: _Floats, spare: _Words) -> None:
    """Half of pi (i + 1/2) / 2^63, i the lower 63 bits of a word with their sign."""
    number = spare.view(np.int64)
    np.left_shift(word, np.uint64(1), out=spare)
    np.right_shift(number, 1, out=number)
    np.add(number, 0.5, out=out)
    np.multiply(out, math.ldexp(math.pi, -64), out=out)


def _sine_and_cosine(angle: _Floats, sine: _Floats, cosine: _Floats, square: _Floats) -> None:
    """Of angles in [-pi/4, pi/4]."""
    np.multiply(angle, angle, out=square)
    _horner(_SIN, square, sine)
    np.multiply(sine, square, out=sine)
    np.multiply(sine, angle, out=sine)
    np.add(sine, angle, out=sine)
    _horner(_COS, square, cosine)
    np.multiply(cosine, square, out=cosine)
    np.add(cosine, 1.0, out=cosine)


def _horner(coefs: list[float], x: _Floats, out: _Floats) -> None:
    np.multiply(x, coefs[0], out=out)
    for coef in coefs[1:-1]:
        np.add(out, coef, out=out)
        np.multiply(out, x, out=out)
    np.add(out, coefs[-1], out=out)
