"""Audits under a new allocation every epoch: likelihood ratios against all allocations, and refusals."""

import itertools

import numpy as np
import pytest
import scipy.stats

import dpmech as dm
from dpmech.engines.likelihood_ratios import Epochs

FRESH = dm.BallsInBins(3, fresh=True)
STRATEGY = dm.Diagonal([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])
SIGMA = 1.3


def by_enumeration(outputs, norms, gradients, bins):
    """Of C gradients + sigma Z, averaged over where the example may be in every epoch."""
    n = norms.size
    epochs = -(-n // bins)
    absent = scipy.stats.norm.pdf(outputs, 0.0, SIGMA).prod(axis=1)
    present = np.zeros(len(outputs))
    for chosen in itertools.product(range(bins), repeat=epochs):
        joins = np.isin(np.arange(n), [epoch * bins + bin_ for epoch, bin_ in enumerate(chosen)])
        present += scipy.stats.norm.pdf(outputs, norms * gradients * joins, SIGMA).prod(axis=1)
    return np.log(present / bins**epochs / absent)


@pytest.mark.parametrize("steps", [6, 5, 4, 3, 1])
def test_ratios_are_those_of_all_allocations(steps):
    rng = np.random.default_rng(steps)
    rows, strengths = rng.standard_normal((20, steps)), rng.uniform(0.2, 1.0, steps)
    norms = STRATEGY.column_norms()[:steps]
    expected = by_enumeration(rows * norms, norms, strengths, 3)
    found = dm.audits.canary_scores(rows, STRATEGY, SIGMA, FRESH, strengths=strengths)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    # One allocation for the run is another law.
    if steps > 3:
        other = dm.audits.canary_scores(rows, STRATEGY, SIGMA, dm.BallsInBins(3), strengths=strengths)
        assert np.abs(other - expected).max() > 1e-2


def test_draws_join_once_an_epoch_and_anywhere():
    law = Epochs.of(STRATEGY, 3, np.ones(6))
    drawn = law.draw(4000, np.random.default_rng(1), present=True).reshape(-1, 2, 3)
    assert np.all(drawn.sum(axis=2) == 1.0)
    together = np.einsum("rab,rcd->abcd", drawn, drawn)[0, :, 1, :] / len(drawn)
    # Nine pairs, each of probability 1/9: within five standard errors.
    assert np.abs(together - 1.0 / 9.0).max() < 5.0 * np.sqrt(8.0 / 81.0 / len(drawn))
    assert not law.draw(5, np.random.default_rng(1), present=False).any()


def test_correlated_noise_is_refused_and_one_bin_is_every_step():
    rows = np.zeros((1, 6))
    with pytest.raises(dm.UnsupportedCombinationError, match="allocation of its own"):
        dm.audits.canary_scores(rows, dm.LambdaCGD(6, 0.5), SIGMA, FRESH)
    for one in (dm.BallsInBins(1, fresh=True), dm.BallsInBins(1)):
        found = dm.audits.canary_scores(rows, dm.LambdaCGD(6, 0.5), SIGMA, one)
        assert found == pytest.approx(-0.5 * np.sum(dm.LambdaCGD(6, 0.5).matmul(np.ones(6)) ** 2) / SIGMA**2)
