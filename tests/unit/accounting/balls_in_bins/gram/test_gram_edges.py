"""Gram matrices of the bins against exact fractions of the strategy's own entries."""

from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.accounting.balls_in_bins.dominating_pair import bin_gram, ring_profile


def exact_gram(matrix, bins):
    """Of the sums of columns i, i + b, ...; rows of fractions."""
    entries = [[Fraction(float(x)) for x in row] for row in matrix]
    sums = [[sum(row[i::bins]) for row in entries] for i in range(bins)]
    return [[sum(x * y for x, y in zip(one, other, strict=True)) for other in sums] for one in sums]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("bins", [2, 3, 6])
def test_a_ring_profile_is_nowhere_below_the_exact_one(seed, bins):
    matrix = np.tril(np.abs(np.random.default_rng(seed).standard_normal((12, 12))) + 0.1)
    gram = exact_gram(matrix, bins)
    profile = ring_profile(dm.Dense(matrix), bins)
    for d in range(bins // 2 + 1):
        largest = max(gram[i][(i + d) % bins] for i in range(bins))
        assert largest <= Fraction(float(profile[d])) <= largest * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize(
    ("strategy", "bins"),
    [
        (dm.Diagonal([1.0, 2.0, 2.0, 1.0]), 2),
        (dm.Identity(6), 3),
        (dm.LambdaCGD(12, 0.7), 3),
        (dm.Dense(np.tril(np.ones((8, 8)))), 4),
    ],
)
def test_a_gram_matrix_is_that_of_the_sums_of_columns(strategy, bins):
    exact = np.array([[float(x) for x in row] for row in exact_gram(strategy.to_dense(), bins)])
    gram = bin_gram(strategy, bins)
    assert np.allclose(gram.columns(np.arange(bins)), exact, rtol=1e-12, atol=1e-14)
    assert np.allclose(gram.diagonal, np.diag(exact), rtol=1e-12)
