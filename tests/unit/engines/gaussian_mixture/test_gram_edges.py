"""Gram matrices of the bins against exact fractions of the strategy's own entries."""

from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture import dominating_pair
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram, ring_profile
from dpmech.engines.gaussian_mixture.gram import CirculantGram, factor_rounding


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


def uneven(seed):
    rng = np.random.default_rng(seed)
    return [
        (dm.Dense(np.tril(rng.uniform(0.1, 1.0, (24, 24)))), 3),
        (dm.BandedToeplitz(24, rng.uniform(0.1, 1.0, 24)), 4),
        (dm.Diagonal(rng.uniform(0.5, 0.6) * np.ones(24)), 6),
    ]


def below(strategy, bins, sigma):
    """How far entries of K at sigma are below the exact ones, relative to them: most and least."""
    exact = exact_gram(strategy.to_dense(), bins)
    found = bin_gram(strategy, bins).scaled(sigma**-2).columns(np.arange(bins))
    short = [
        1 - Fraction(float(found[i, j])) * Fraction(sigma) ** 2 / exact[i][j]
        for i in range(bins)
        for j in range(bins)
        if exact[i][j]
    ]
    return float(max(short)), float(min(short))


def test_no_gram_entry_is_below_the_exact_one(monkeypatch):
    """Kahane: a matrix that is nowhere smaller bounds delta, with every rounding on the way counted."""
    cases = [(*one, sigma) for seed in range(8) for one in uneven(seed) for sigma in (1.0, 0.7, 3.1)]
    for case in cases:
        worst, best = below(*case)
        assert worst <= 0.0
        assert best >= -300 * 2.0**-53
    monkeypatch.setattr(dominating_pair, "_rounding", lambda strategy, bins: 0.0)
    assert any(below(*case)[0] > 0.0 for case in cases)


@pytest.mark.slow
def test_sums_over_many_epochs_are_inside_what_is_counted():
    """Rows of C^T C are added one after the other."""
    n, bins = 600, 2
    matrix = np.diag(np.random.default_rng(3).uniform(0.1, 1.0, n))
    matrix[1:, 0] = 0.1
    worst, _ = below(dm.Dense(matrix), bins, 1.0)
    assert worst <= 0.0


def test_bins_that_are_almost_equal_get_the_largest_entry():
    weights = np.ones(4)
    weights[2] += 3e-15
    gram = bin_gram(dm.Diagonal(weights), 4)
    assert gram.circulant
    assert np.all(gram.diagonal >= weights.max() ** 2)


@pytest.mark.parametrize("kind", ["dense", "circulant"])
def test_entries_that_differ_from_their_mirror_image_count_as_the_larger(kind):
    if kind == "dense":
        found = DenseGram([[1.0, 0.5], [0.5 + 4e-13, 1.0]]).columns(np.arange(2))
    else:
        found = CirculantGram([1.0, 0.5, 0.1, 0.5 + 4e-13]).columns(np.array([0, 1]))[:, :2]
    assert found[0, 1] == found[1, 0] == 0.5 + 4e-13


@pytest.mark.parametrize("bins", [2, 20, 150])
def test_factors_miss_the_matrix_by_no_more_than_is_said(bins):
    """Definite and singular ones, against longdouble."""
    rng = np.random.default_rng(bins)
    for rank in (bins, max(bins // 3, 1)):
        means = rng.uniform(0.0, 1.0, (bins, rank))
        gram = DenseGram(means @ means.T)
        factor = gram._factor.astype(np.longdouble)
        missed = np.max(np.abs(factor @ factor.T - gram._matrix)) / gram.diagonal.max()
        assert 0.0 < missed <= 0.5 * factor_rounding(bins)


def test_a_factor_that_misses_the_matrix_is_refused(monkeypatch):
    true = np.linalg.cholesky
    monkeypatch.setattr(np.linalg, "cholesky", lambda matrix: true(matrix) * (1.0 + 2e-13))
    with pytest.raises(dm.NumericalError, match="misses it"):
        DenseGram([[1.0, 0.5], [0.5, 1.0]])
