"""The Gram matrix of tuples of bins, its moments and the bounds on weights, against tuples written out."""

import itertools
import pickle

import numpy as np
import pytest
import scipy

import dpmech as dm
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram
from dpmech.engines.gaussian_mixture.mixtures import add_mixture, remove_mixture
from dpmech.engines.gaussian_mixture.moments import log_moment_bound, moment_rounding
from dpmech.engines.gaussian_mixture.user_gram import UserGram, lower_tuple_gram, tuple_gram


def written_out(strategy, bins, examples, sigma):
    """All ordered tuples, the mean of the outputs under each, and their Gram matrix."""
    dense = strategy.to_dense() / sigma
    single = np.stack([dense[:, start::bins].sum(axis=1) for start in range(bins)])
    tuples = np.array(list(itertools.product(range(bins), repeat=examples)))
    means = single[tuples].sum(axis=1)
    return tuples, means, means @ means.T


@pytest.mark.parametrize(("bins", "examples"), [(3, 1), (4, 2), (3, 3), (2, 5)])
def test_every_operation_is_that_of_the_matrix_written_out(bins, examples):
    strategy, sigma = dm.LambdaCGD(2 * bins, 0.6), 1.7
    _, _, dense = written_out(strategy, bins, examples, sigma)
    size = bins**examples
    gram = tuple_gram(strategy, bins, examples).scaled(sigma**-2)
    rng = np.random.default_rng(1)
    assert gram.bins == size
    assert gram.facts == {"bins": bins, "examples": examples}
    np.testing.assert_allclose(gram.diagonal, np.diag(dense), rtol=1e-12)
    np.testing.assert_allclose(gram.columns(np.arange(size)), dense, rtol=1e-12)
    values = rng.standard_normal((size, 3))
    np.testing.assert_allclose(gram.matmat(values), dense @ values, atol=1e-10)
    chosen = rng.integers(size, size=(5, 4))
    counts = np.zeros((5, size))
    for row, own in zip(counts, chosen, strict=True):
        np.add.at(row, own, 1.0)
    np.testing.assert_allclose(gram.column_sums(chosen), counts @ dense, rtol=1e-12)
    fields = np.take_along_axis(counts @ dense, chosen, axis=1)
    np.testing.assert_allclose(gram.tuple_fields(chosen), fields, rtol=1e-12)
    assert gram.columns(np.zeros(0, dtype=np.int64)).shape == (0, size)
    assert gram.column_sums(np.zeros((0, 2), dtype=np.int64)).shape == (0, size)
    rows = np.arange(size)
    for offsets in (np.zeros(size), rng.standard_normal(size)):
        due = scipy.special.logsumexp(0.7 * dense + offsets, axis=1) - np.log(size)
        np.testing.assert_allclose(gram.log_row_means(0.7, offsets, rows), due, rtol=1e-12)
    again = pickle.loads(pickle.dumps(gram))
    np.testing.assert_array_equal(again.diagonal, gram.diagonal)


def test_entries_are_raised_and_lowered_by_rounding_alone():
    strategy, bins, examples = dm.LambdaCGD(12, 0.6), 4, 2
    _, _, dense = written_out(strategy, bins, examples, 1.0)
    every = np.arange(16)
    above = tuple_gram(strategy, bins, examples).columns(every)
    below = lower_tuple_gram(strategy, bins, examples).columns(every)
    assert np.all(below < above)
    assert np.all(above < dense * (1.0 + 1e-12))
    assert np.all(below > dense * (1.0 - 1e-12))
    single = bin_gram(strategy, bins).columns(np.arange(bins))
    tuples, _, _ = written_out(strategy, bins, examples, 1.0)
    exact = [[sum(single[i, k] for i in one for k in other) for other in tuples] for one in tuples]
    assert np.all(above >= np.array(exact))


def test_draws_have_this_covariance():
    strategy, bins, examples = dm.LambdaCGD(6, 0.4), 3, 2
    _, _, dense = written_out(strategy, bins, examples, 2.0)
    drawn = tuple_gram(strategy, bins, examples).scaled(0.25).sample(np.random.default_rng(3), 40_000)
    found = drawn.T @ drawn / len(drawn)
    error = np.sqrt((np.outer(np.diag(dense), np.diag(dense)) + dense**2) / len(drawn))
    assert np.all(np.abs(found - dense) < 6.5 * error)


def test_a_moment_is_the_power_of_means():
    strategy = dm.LambdaCGD(8, 0.5)
    _, _, dense = written_out(strategy, 4, 2, 1.3)
    gram = tuple_gram(strategy, 4, 2).scaled(1.3**-2)
    for order in (2, 5, 16):
        means = scipy.special.logsumexp(0.5 * order * dense, axis=1) - np.log(16)
        due = scipy.special.logsumexp((order - 1) * means) - np.log(16)
        off = abs(log_moment_bound(gram, 1.0, order) - due)
        assert off <= moment_rounding(gram, order) + 1e-12 * due
    assert moment_rounding(gram, 2) > moment_rounding(bin_gram(strategy, 4).scaled(1.3**-2), 2)


@pytest.mark.parametrize(("eps", "sigma"), [(1.0, 3.0), (3.0, 1.5)])
def test_no_weight_is_above_its_bound(eps, sigma):
    """By the ratio and the densities written out for drawn outputs: three bins, two examples."""
    strategy = dm.LambdaCGD(6, 0.5)
    gram = tuple_gram(strategy, 3, 2).scaled(sigma**-2)
    for mixture in (remove_mixture(gram, eps), add_mixture(gram, eps)):
        payoffs, densities = mixture.block(np.random.SeedSequence(5), 4000)
        weights = mixture.log_weights(payoffs, densities)
        assert np.isfinite(weights).any()
        assert np.all(weights[np.isfinite(weights)] <= mixture.log_weight_bound + 1e-9)


def test_too_many_tuples_are_refused_by_number():
    with pytest.raises(dm.UnsupportedCombinationError, match=r"101\^2 ways.*at most 10000"):
        tuple_gram(dm.Identity(101), 101, 2)
    with pytest.raises(dm.UnsupportedCombinationError, match="max_examples_per_user"):
        dm.delta(dm.Identity(4), 9.0, 1.0, participation=dm.BallsInBins(4, max_examples_per_user=1000))
    assert tuple_gram(dm.Identity(100), 100, 2).bins == 10_000


def test_it_says_what_it_is():
    gram = UserGram(bin_gram(dm.Identity(6), 3), 2)
    assert repr(gram).startswith("UserGram(")
    assert (gram.family, gram.words, gram.row_factors) == ("users", "9 tuples of bins", 2)
    assert gram.cheap_columns
