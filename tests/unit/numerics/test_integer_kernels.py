"""Residues and mixed-radix digits against Python's integers."""

import itertools
import math

import numpy as np

from dpmech.numerics.integer_kernels import balanced_digits, residues

PRIME = 2**31 - 1


def test_residues_are_those_of_the_integer_cut_towards_zero():
    mantissas = [0, 1, -1, 5, -5, 2**53 - 1, -(2**53 - 1), PRIME, -PRIME]
    exponents = [0, 1, 7, 127, -1, -2, -52, -53, -1000]
    pairs = list(itertools.product(mantissas, exponents))
    out = np.full(len(pairs) + 3, 9, np.int64)
    given = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    residues(*given, PRIME, out)
    exact = []
    for mantissa, exponent in pairs:
        size = abs(mantissa) << exponent if exponent >= 0 else abs(mantissa) >> -exponent
        exact.append((size if mantissa > 0 else -size) % PRIME)
    assert out.tolist() == [*exact, 0, 0, 0]


def test_digits_are_balanced_and_those_of_the_integer():
    primes = [97, 101, 89]
    half = math.prod(primes) // 2
    values = [0, 1, -1, half, -half, half - 1, 48, 49, -48, -49, *range(-half, half, 4999)]
    digits = np.array([[value % prime for value in values] for prime in primes], np.int64)
    balanced_digits(digits, np.array(primes, np.int64))
    assert np.all(2 * np.abs(digits) < np.array(primes)[:, None])
    found = digits[0] + 97 * digits[1] + 97 * 101 * digits[2]
    assert found.tolist() == values
