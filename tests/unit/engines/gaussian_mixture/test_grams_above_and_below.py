"""Gram matrices above that of the bins, for upper bounds, and below it, for lower ones."""

from fractions import Fraction

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture import dominating_pair
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram, lower_gram, sampling_gram
from dpmech.engines.gaussian_mixture.estimate import estimate_delta
from dpmech.engines.gaussian_mixture.gram import CirculantGram

STRATEGIES = {
    "lambda": lambda n: dm.LambdaCGD(n, 0.8),
    "banded": lambda n: dm.SquareRoot(n, 4),
    "inverse": lambda n: dm.InverseSquareRoot(n, 6),
    "tree": lambda n: dm.BandedToeplitz(n, [1.0, 0.5, 0.25]),
    "normalised": lambda n: dm.ColumnNormalized(dm.LambdaCGD(n, 0.8)),
}


def matrix(gram):
    return gram.matmat(np.eye(gram.bins))


def exact_gram(strategy, bins):
    """K in exact fractions of the entries of C that float64 holds."""
    columns = [[Fraction(float(x)) for x in row] for row in strategy.to_dense().T]
    n = len(columns)
    means = [
        [sum((columns[i + j * bins][t] for j in range(n // bins)), Fraction(0)) for t in range(n)]
        for i in range(bins)
    ]
    return [[sum((a * b for a, b in zip(x, y, strict=True)), Fraction(0)) for y in means] for x in means]


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_is_nowhere_below_and_the_other_nowhere_above(name):
    strategy = STRATEGIES[name](12)
    exact = exact_gram(strategy, 4)
    low, high = matrix(lower_gram(strategy, 4)), matrix(bin_gram(strategy, 4))
    for i in range(4):
        for j in range(4):
            assert Fraction(float(low[i, j])) <= exact[i][j] <= Fraction(float(high[i, j]))
    assert np.max(high - low) < 1e-11 * np.max(high)


@pytest.mark.parametrize("name", ["lambda", "banded", "inverse", "tree"])
def test_the_circulant_one_is_above(name, monkeypatch):
    monkeypatch.setattr(dominating_pair, "_CIRCULANT_BINS", 8)
    strategy = STRATEGIES[name](72)
    above, true = sampling_gram(strategy, 24), bin_gram(strategy, 24)
    assert isinstance(above, CirculantGram)
    assert np.min(matrix(above) - matrix(true)) > -1e-13 * true.diagonal.max()
    assert lower_gram(strategy, 24) is None
    # What its sampler draws has at least those covariances, rounding apart.
    spectrum = np.fft.fft(above.columns(np.zeros(1, dtype=np.int64))[0]).real
    assert spectrum.min() > 0.0


def test_a_profile_that_is_no_gram_matrix_is_raised_or_given_up(monkeypatch):
    monkeypatch.setattr(dominating_pair, "_CIRCULANT_BINS", 8)
    strategy = STRATEGIES["lambda"](72)
    true = dominating_pair.ring_profile(strategy, 24)
    for lifted, expected in ((5e-4, CirculantGram), (0.5, DenseGram)):
        profile = true.copy()
        # The alternating row has its whole spectrum at one frequency, where this makes it negative.
        signs = 1.0 - 2.0 * (np.arange(profile.size) % 2)
        spectrum = np.fft.rfft(np.concatenate([profile, profile[-2:0:-1]])).real
        profile += (spectrum.min() + lifted * profile[0]) / 24.0 * -signs
        profile = np.maximum(profile, 0.0)
        monkeypatch.setattr(dominating_pair, "ring_profile", lambda *_, found=profile: found.copy())
        gram = sampling_gram(strategy, 24)
        row = np.concatenate([profile, profile[-2:0:-1]])
        if np.fft.rfft(row).real.min() < 0.0:
            assert isinstance(gram, expected)
        if isinstance(gram, CirculantGram):
            assert np.all(gram.columns(np.zeros(1, dtype=np.int64))[0] >= row)


def test_few_bins_and_other_strategies_keep_their_own():
    assert isinstance(sampling_gram(STRATEGIES["lambda"](12), 4), DenseGram)
    assert isinstance(sampling_gram(STRATEGIES["normalised"](3200), 1600), DenseGram)


@pytest.mark.slow
def test_many_bins_cost_little_in_delta():
    strategy = dm.LambdaCGD(16384, 0.9)
    above, true = sampling_gram(strategy, 2048), DenseGram(matrix(bin_gram(strategy, 2048)))
    found = [
        estimate_delta(gram.scaled(2.4**-2), 8.0, rel_error=0.02, rng=np.random.default_rng(1))
        for gram in (above, true)
    ]
    assert found[0].upper > found[1].lower
    assert found[0].lower < 1.03 * found[1].upper
