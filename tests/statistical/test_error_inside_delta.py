"""Draw, calibrate and train as one mechanism, on a toy whose divergences are known exactly.

Two bins, delta = 0.3 and beta = 0.2 of it, so that a calibration is good where delta(sigma) <= 0.1. What is
claimed of the whole is the mixture, over the draws R, of the divergences at the noise scales that they give:
at most delta. The reason is that R is bad with probability at most beta; that is tested by itself, as the
mixture alone would forgive much. The divergences come from quadrature, not from dpmech.
"""

import functools

import numpy as np
import pytest
import scipy.stats

import dpmech as dm
from dpmech.engines.gaussian_mixture import certified_accountant
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal
from tests.conftest import ALPHA
from tests.support import bins_oracles

EPS, DELTA, BETA = 0.5, 0.3, 0.2
STRATEGY, SCHEME = dm.LambdaCGD(6, 0.5), dm.BallsInBins(2)
GRAM = bins_oracles.strategy_gram(6, 2, 0.5)
RUNS, FAULTY_RUNS = 50, 20

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]  # a minute of calibrations


@functools.cache
def divergence(sigma):
    """The exact delta at EPS: the larger one of both directions."""
    return max(bins_oracles.quadrature(GRAM / sigma**2, EPS))


@pytest.fixture
def sigmas(monkeypatch):
    """Noise scales of independent calibrations, as a user without a generator gets them.

    Their entropy, which would be the operating system's, comes from one seed: the test can be repeated.
    """
    source, true = np.random.default_rng(20), certified_accountant.draw_entropy

    def entropy(rng):
        if rng is not None:
            return true(rng)
        return tuple(int(word) for word in source.integers(0, 2**32, size=4, dtype=np.uint64))

    monkeypatch.setattr(certified_accountant, "draw_entropy", entropy)
    # The lower end of eps, at a delta three times the certified one, is far away; nothing here rests on it.
    kind = certified_accountant.CertifiedAccountant
    monkeypatch.setattr(kind, "_lower_epsilon", lambda *_, **__: 0.0, raising=False)

    def drawn(runs, method=None):
        found = []
        for _ in range(runs):
            cal = dm.calibrate_sigma(
                STRATEGY, EPS, DELTA, participation=SCHEME, method=method or dm.methods.Certified(BETA)
            )
            assert cal.guarantee == dm.Guarantee(dm.Kind.PROBABLE, BETA, inside_delta=True)
            found.append(cal.sigma)
        return found

    return drawn


def bad_ones(found):
    return sum(divergence(sigma) > DELTA - BETA for sigma in found)


def too_many(bad, runs):
    """Whether a draw that is bad with probability BETA at most is that often with probability below ALPHA."""
    return scipy.stats.binom.sf(bad - 1, runs, BETA) < ALPHA


def test_the_whole_procedure_meets_its_claim(sigmas):
    found = sigmas(RUNS)
    assert not too_many(bad_ones(found), RUNS)
    mixture = np.mean([divergence(sigma) for sigma in found])
    assert mixture <= DELTA
    # Not for nothing: a hundredth less noise would be bad every time, and what is claimed is not far off.
    assert bad_ones([0.9 * sigma for sigma in found]) == RUNS
    assert divergence(min(found)) > 0.05


def test_weights_that_are_too_light_are_found(sigmas, monkeypatch):
    for kind in (RemoveProposal, AddProposal):

        def lighter(self, payoffs, densities, true=kind.log_weights):
            return true(self, payoffs, densities) + np.log(0.75)

        monkeypatch.setattr(kind, "log_weights", lighter)
    assert too_many(bad_ones(sigmas(FAULTY_RUNS)), FAULTY_RUNS)


def test_a_beta_that_is_not_taken_out_of_delta_is_found(sigmas, monkeypatch):
    monkeypatch.setattr(dm.Guarantee, "mechanism_delta", lambda self, delta: delta)
    assert too_many(bad_ones(sigmas(FAULTY_RUNS)), FAULTY_RUNS)
