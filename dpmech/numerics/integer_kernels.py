"""Compiled number-theoretic transforms: convolutions of integers modulo primes below 2^31, without rounding.

This module imports numba; import it late. All numbers are int64 and stay below 2^63: products of two
residues below 2^62, and products with a root by Shoup's quotient floor(2^32 w / p).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

_Function = TypeVar("_Function", bound=Callable[..., Any])

if TYPE_CHECKING:

    def njit(**_options: object) -> Callable[[_Function], _Function]:
        """A typed replacement for numba.njit, which has no types."""

else:
    from numba import njit


Integers = npt.NDArray[np.int64]


@njit(nogil=True, cache=True)
def _power(base: int, exponent: int, prime: int) -> int:
    result = 1
    while exponent > 0:
        if exponent & 1:
            result = result * base % prime
        base = base * base % prime
        exponent >>= 1
    return result


@njit(nogil=True, cache=True)
def residues(mantissas: Integers, exponents: Integers, prime: int, out: Integers) -> None:
    """Write mantissa 2^exponent modulo a prime to `out`; negative exponents truncate towards 0.

    Args:
        mantissas: shape (m,), moduli below 2^53.
        exponents: shape (m,), below 128.
        prime: below 2^31.
        out: shape (size,) with size >= m; filled with zeros beyond m.
    """
    powers = np.ones(128, np.int64)
    for i in range(1, 128):
        powers[i] = powers[i - 1] * 2 % prime
    out[:] = 0
    for i in range(mantissas.size):
        mantissa = mantissas[i]
        sign = 1
        if mantissa < 0:
            mantissa, sign = -mantissa, -1
        exponent = exponents[i]
        if exponent < 0:
            value = (mantissa >> min(62, -exponent)) % prime
        else:
            value = mantissa % prime * powers[exponent] % prime
        out[i] = value if sign > 0 or value == 0 else prime - value


@njit(nogil=True, cache=True)
def _roots(root: int, size: int, prime: int, table: Integers, quotients: Integers) -> None:
    """Powers of a primitive root of unity of order 2 l at [l, 2 l), for l = 1, 2, 4, ..., size / 2."""
    length = size // 2
    while length >= 1:
        value = 1
        for j in range(length):
            table[length + j] = value
            quotients[length + j] = (value << 32) // prime
            value = value * root % prime
        root = root * root % prime
        length //= 2


@njit(nogil=True, cache=True)
def _forward(a: Integers, prime: int, table: Integers, quotients: Integers) -> None:
    """Decimation in frequency: natural order in, bit-reversed order out."""
    length = a.size // 2
    while length >= 1:
        for start in range(0, a.size, 2 * length):
            for j in range(length):
                u, v = a[start + j], a[start + length + j]
                total = u + v
                a[start + j] = total - prime if total >= prime else total
                w = u - v
                if w < 0:
                    w += prime
                rest = w * table[length + j] - ((w * quotients[length + j]) >> 32) * prime
                a[start + length + j] = rest - prime if rest >= prime else rest
        length //= 2


@njit(nogil=True, cache=True)
def _backward(a: Integers, prime: int, table: Integers, quotients: Integers) -> None:
    """Decimation in time with the inverse roots: bit-reversed order in, natural order out, times size."""
    length = 1
    while length < a.size:
        for start in range(0, a.size, 2 * length):
            for j in range(length):
                u, w = a[start + j], a[start + length + j]
                v = w * table[length + j] - ((w * quotients[length + j]) >> 32) * prime
                if v >= prime:
                    v -= prime
                total = u + v
                a[start + j] = total - prime if total >= prime else total
                difference = u - v
                a[start + length + j] = difference + prime if difference < 0 else difference
        length *= 2


@njit(nogil=True, cache=True)
def convolve_modulo(a: Integers, b: Integers, prime: int, generator: int) -> None:
    """The cyclic convolution of two vectors of residues, in place of the first.

    Args:
        a: shape (size,), size a power of two that divides prime - 1.
        b: the same; destroyed.
        prime: below 2^31.
        generator: a generator of the multiplicative group modulo the prime.
    """
    size = a.size
    table, quotients = np.ones(size, np.int64), np.ones(size, np.int64)
    root = _power(generator, (prime - 1) // size, prime)
    _roots(root, size, prime, table, quotients)
    _forward(a, prime, table, quotients)
    _forward(b, prime, table, quotients)
    for i in range(size):
        a[i] = a[i] * b[i] % prime
    _roots(_power(root, prime - 2, prime), size, prime, table, quotients)
    _backward(a, prime, table, quotients)
    shrink = _power(size, prime - 2, prime)
    for i in range(size):
        a[i] = a[i] * shrink % prime


@njit(nogil=True, cache=True)
def balanced_digits(values: Integers, primes: Integers) -> None:
    """Mixed-radix digits of integers given by their residues, in place: Garner's algorithm.

    The integer is d_0 + d_1 p_0 + d_2 p_0 p_1 + ... with |d_i| <= p_i / 2; it is the unique integer with
    these residues whose modulus is below half the product of the primes.

    Args:
        values: residues in, digits out, shape (len(primes), m).
        primes: shape (len(primes),).
    """
    count = primes.size
    inverses = np.zeros((count, count), np.int64)
    for i in range(count):
        for j in range(i):
            inverses[j, i] = _power(primes[j] % primes[i], primes[i] - 2, primes[i])
    for column in range(values.shape[1]):
        for i in range(count):
            prime = primes[i]
            digit = values[i, column]
            for j in range(i):
                digit = (digit - values[j, column]) % prime * inverses[j, i] % prime
            values[i, column] = digit - prime if 2 * digit > prime else digit
