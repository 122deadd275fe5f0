"""Exact samples from the discrete Gaussian: integers and fractions only, no number is rounded."""

import math
import secrets
from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from dpmech.engines import check_variance
from dpmech.guards import check_integer, check_rng
from dpmech.numerics import IntArray

_Below: TypeAlias = Callable[[int], int]


def discrete_gaussian(sigma: float | Fraction, size: int = 1, *, rng: object = None) -> IntArray:
    """Independent integers y with probabilities proportional to e^{-y^2 / (2 sigma^2)}.

    **Guarantee:** the distribution is exact if the random integers are uniform: `sigma` is converted to a
    fraction without rounding, and every decision compares integers. The running time depends on the sampled
    values, so do not reveal it to anyone who must not learn the noise.

    Args:
        sigma: in [0.2, 1e5], a float, an integer or a Fraction.
        size: number of samples, >= 0.
        rng: None for random integers from the operating system, which private releases require; otherwise a
            numpy Generator or a seed.

    Returns:
        int64, shape (size,).

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        Canonne, Kamath and Steinke 2020, Algorithms 1 to 3.

    Examples:
        >>> from dpmech.samplers import discrete_gaussian
        >>> discrete_gaussian(3, 5, rng=1).dtype
        dtype('int64')
    """
    variance = check_variance(sigma)
    count = check_integer("size", size, minimum=0)
    generator = check_rng(rng)
    below = secrets.randbelow if generator is None else _integers(generator)
    return np.array([_draw(variance, below) for _ in range(count)], dtype=np.int64)


def _integers(generator: np.random.Generator) -> _Below:
    """Uniform integers below any bound, from the bits of a generator."""

    def below(bound: int) -> int:
        size = max(1, (bound.bit_length() + 7) // 8)
        while True:
            found = int.from_bytes(generator.bytes(size), "big") >> (8 * size - bound.bit_length())
            if found < bound:
                return found

    return below


def _draw(variance: Fraction, below: _Below) -> int:
    """Algorithm 3: a discrete Laplace number, accepted with the ratio of the two distributions."""
    scale = _floor_root(variance) + 1
    while True:
        found = _laplace(scale, below)
        if _coin_exp((abs(found) - variance / scale) ** 2 / (2 * variance), below):
            return found


def _floor_root(value: Fraction) -> int:
    """The largest integer whose square is at most `value`."""
    return math.isqrt(value.numerator // value.denominator)


def _laplace(scale: int, below: _Below) -> int:
    """Algorithm 2: y with probability proportional to e^{-|y| / scale}."""
    while True:
        start = below(scale)
        if not _coin_exp(Fraction(start, scale), below):
            continue
        times = 0
        while _coin_exp(Fraction(1), below):
            times += 1
        size = start + scale * times
        negative = below(2) == 1
        if negative and size == 0:
            continue  # zero is counted once, not twice
        return -size if negative else size


def _coin_exp(exponent: Fraction, below: _Below) -> bool:
    """Algorithm 1: True with probability e^{-exponent}, exponent >= 0."""
    while exponent > 1:
        if not _coin_exp(Fraction(1), below):
            return False
        exponent -= 1
    count = 1
    # Trials of probability exponent / 1, exponent / 2, ... up to a failure: P[odd number] = e^-exponent.
    while below(exponent.denominator * count) < exponent.numerator:
        count += 1
    return count % 2 == 1
