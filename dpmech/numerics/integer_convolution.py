"""How far a long series is from being the inverse of another: f g - 1, from an exact product.

Both series are put on a grid of fixed step and multiplied as integers, modulo six primes, by
number-theoretic transforms: no rounding, and no bound to trust. What is left out of f by the grid is bounded.
"""

import math

import numpy as np

from dpmech.exceptions import NumericalError
from dpmech.numerics.arrays import FloatArray
from dpmech.numerics.toeplitz import norm, total

__all__ = ["LONGEST", "exact_residual"]

# Primes 1 + m 2^25 and a generator of each group.
_PRIMES = (
    (167772161, 3),
    (469762049, 3),
    (1107296257, 10),
    (1811939329, 13),
    (2013265921, 31),
    (2113929217, 5),
)
# Products of two series of this length fit the transforms.
LONGEST = 2**24
_GRID_BITS = 52


def exact_residual(f: FloatArray, g: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """The first coefficients of f g - 1.

    Args:
        f: shape (p,), f_0 in [1, 2), p <= n.
        g: shape (n,), n <= LONGEST.

    Returns:
        (g rounded to multiples of 2^-52 of its largest entry, f g - 1 for this g to 1e-15 relative entry by
        entry, shape (n,), and a bound on the sum of moduli of what else it may be off by).

    Raises:
        NumericalError: if the series grow too much for the range of the integers.
    """
    from dpmech.numerics import integer_kernels as kernels  # numba starts slowly: only when it is needed

    n = g.size
    b = _GRID_BITS - math.frexp(float(np.abs(g).max()))[1]
    integers = np.rint(np.ldexp(g, b)).astype(np.int64)
    rounded = np.ldexp(integers.astype(np.float64), -b)
    range_bits = sum(math.log2(prime) for prime, _ in _PRIMES) - 2.0
    # The modulus of every coefficient of the product is at most ||f|| ||g||, and so is 1.
    product_bits = math.log2(norm(f) * norm(rounded) * 1.001 + 1.0)
    # As ||f|| ||g|| is at least the product of their largest entries, no entry of f is shifted by 127 bits.
    a = math.floor(range_bits - product_bits) - b
    if a + b < 0 or a < _GRID_BITS:
        raise NumericalError(
            f"the inverse of the strategy over {n} steps loses its digits to cancellation: "
            "its coefficients grow too much for their product with the strategy to be had exactly"
        )
    fractions, exponents = np.frexp(f)
    mantissas = np.ldexp(fractions, 53).astype(np.int64)
    shifts = exponents.astype(np.int64) - 53 + a
    size = 1 << max(1, (f.size + n - 2).bit_length())
    primes = np.array([prime for prime, _ in _PRIMES], dtype=np.int64)
    values = np.empty((primes.size, n), dtype=np.int64)
    one, other = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    for row, (prime, generator) in enumerate(_PRIMES):
        kernels.residues(mantissas, shifts, prime, one)
        other[:n] = integers % prime
        other[n:] = 0
        kernels.convolve_modulo(one, other, prime, generator)
        one[0] = (one[0] - pow(2, a + b, prime)) % prime
        values[row] = one[:n]
    kernels.balanced_digits(values, primes)
    # From the smallest digit up: a higher one that is not 0 outweighs all below it.
    residual = np.zeros(n)
    radix = 1
    for digits, prime in zip(values, primes, strict=True):
        residual += digits.astype(np.float64) * math.ldexp(float(radix), -a - b)
        radix *= int(prime)
    left_out = math.ldexp(float(np.count_nonzero(shifts < 0)), -a) * total(np.abs(rounded)) * 1.001
    return rounded, residual, left_out
