"""Residues and mixed-radix digits against Python's integers."""

import itertools
import math

import numpy as np
import pytest

from dpmech.numerics.integer_kernels import (
    _backward,
    _forward,
    _power,
    _roots,
    balanced_digits,
    convolve_modulo,
    residues,
)

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


# Two of the primes that are used, one of them close to 2^31, and the largest size of a small one.
GROUPS = [(2113929217, 5, 8), (167772161, 3, 16), (97, 5, 32), (2113929217, 5, 1), (97, 5, 2)]


def values_of(seed, prime, size):
    values = np.random.default_rng(seed).integers(0, prime, size)
    values[:2] = prime - 1, 0
    return values[:size]


@pytest.mark.parametrize(("prime", "generator", "size"), GROUPS)
def test_a_cyclic_convolution_modulo_a_prime(prime, generator, size):
    a, b = (values_of(seed, prime, max(size, 2))[:size].copy() for seed in (1, 2))
    exact = [sum(int(a[i]) * int(b[(k - i) % size]) for i in range(size)) % prime for k in range(size)]
    convolve_modulo(a, b, prime, generator)
    assert a.tolist() == exact


@pytest.mark.parametrize(("prime", "generator", "size"), [one for one in GROUPS if one[2] > 1])
def test_a_transform_is_the_polynomial_at_the_powers_of_a_root(prime, generator, size):
    root = pow(generator, (prime - 1) // size, prime)
    table, quotients = np.ones(size, np.int64), np.ones(size, np.int64)
    _roots(root, size, prime, table, quotients)
    given = values_of(3, prime, size)
    found = given.copy()
    _forward(found, prime, table, quotients)
    assert np.all((found >= 0) & (found < prime))
    bits = size.bit_length() - 1
    for place in range(size):
        power = int(format(place, f"0{bits}b")[::-1], 2)
        at = pow(root, power, prime)
        assert found[place] == sum(int(c) * pow(at, i, prime) for i, c in enumerate(given)) % prime
    _roots(pow(root, -1, prime), size, prime, table, quotients)
    _backward(found, prime, table, quotients)
    assert np.all((found >= 0) & (found < prime))
    assert found.tolist() == [size * int(value) % prime for value in given]


def test_powers_modulo_a_prime():
    for base, exponent, prime in ((5, 0, 97), (5, 1, 97), (7, 94, 97), (31, 2**30 + 5, 2013265921)):
        assert _power(base, exponent, prime) == pow(base, exponent, prime)
