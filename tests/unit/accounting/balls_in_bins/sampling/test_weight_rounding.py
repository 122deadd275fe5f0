"""Weights of the proposals against 50 digits, at the draws that they were made for."""

import math

import mpmath
import numpy as np
import pytest
import scipy.special

from dpmech.accounting.balls_in_bins.gram.dense import DenseGram
from dpmech.accounting.balls_in_bins.proposals import AddProposal, RemoveProposal
from dpmech.accounting.balls_in_bins.sampling.bets import WEIGHT_ROUNDING
from dpmech.accounting.balls_in_bins.streams import Stage, stage_seed

SAFETY = 100.0
CASES = [(1, 0.2, 0.5), (8, 0.05, 0.3), (8, 2.0, 4.0), (40, 9.0, 20.0), (6, 80.0, 60.0)]


def drawn(proposal, monkeypatch, count=96):
    """The draws of a block with their payoffs and densities, those of weight 0 left out."""
    kept = []
    true = DenseGram.sample

    def sample(self, rng, size):
        kept.append(true(self, rng, size))
        return kept[-1]

    with monkeypatch.context() as patch:
        patch.setattr(DenseGram, "sample", sample)
        # blocks move these draws in place
        payoffs, densities = proposal.block(stage_seed((1, 2, 3, 4), Stage.REMOVE_MAIN, 0), count)
    hit = payoffs > -np.inf
    assert hit.sum() >= 5
    return kept[0][hit], payoffs[hit], densities[hit]


def gram_of(bins, size):
    index = np.arange(bins)
    return DenseGram(size * 0.6 ** np.abs(index[:, None] - index[None, :]))


def means(values, gram, scale=1):
    """E over bins of (e^(y - K / 2))^scale for every draw."""
    half = [mpmath.mpf(float(one)) / 2 for one in gram.diagonal]
    return [
        mpmath.fsum(mpmath.exp(scale * (mpmath.mpf(float(y)) - h)) for y, h in zip(row, half, strict=True))
        / len(half)
        for row in values
    ]


def moved(payoffs, densities, alphas, exact):
    """How far rounding moves the sum of weights at most, relative to it."""
    found = np.exp(payoffs - scipy.special.logsumexp(densities, axis=1, b=alphas))
    gaps = [abs(mpmath.mpf(float(one)) - other) for one, other in zip(found, exact, strict=True)]
    return float(mpmath.fsum(gaps) / mpmath.fsum(exact))


@pytest.mark.parametrize(("bins", "size", "eps"), CASES)
def test_weights_of_remove(bins, size, eps, monkeypatch):
    gram = gram_of(bins, size)
    proposal = RemoveProposal.at(gram, eps)
    values, payoffs, densities = drawn(proposal, monkeypatch)
    with mpmath.workdps(50):
        scaled = mpmath.mpf(float(proposal.scaled.scale))
        ratios, powers = means(values, gram), means(values, gram, scaled)
        bound = mpmath.exp(mpmath.mpf(float(proposal.scaled.log_bound)))
        exact = []
        for row, ratio, power in zip(densities, ratios, powers, strict=True):
            # the parts that the proved bound rests on anew, the others as they were found
            parts = [ratio, power / bound, *(mpmath.exp(mpmath.mpf(float(one))) for one in row[2:])]
            mixed = mpmath.fsum(
                mpmath.mpf(float(a)) * d for a, d in zip(proposal.weights, parts, strict=True)
            )
            exact.append(max(ratio - mpmath.exp(mpmath.mpf(eps)), mpmath.mpf(0)) / mixed)
        error = moved(payoffs, densities, proposal.weights, exact)
    assert 0.0 < SAFETY * error <= WEIGHT_ROUNDING


@pytest.mark.parametrize(("bins", "size", "eps"), CASES)
def test_weights_of_add(bins, size, eps, monkeypatch):
    gram = gram_of(bins, size)
    proposal = AddProposal.at(gram, eps)
    parts = proposal.tilts.size
    values, payoffs, densities = drawn(proposal, monkeypatch)
    with mpmath.workdps(50):
        direction = [mpmath.mpf(float(one)) for one in proposal.point.direction]
        exact = []
        for row, found, ratio in zip(values, densities, means(values, gram), strict=True):
            along = -mpmath.fsum(mpmath.mpf(float(y)) * d for y, d in zip(row, direction, strict=True))
            tilts = [mpmath.mpf(float(one)) for one in proposal.tilts]
            square = mpmath.mpf(float(proposal.point.square))
            each = [mpmath.exp(along * t - t * t * square / 2) for t in tilts]
            each += [mpmath.exp(mpmath.mpf(float(one))) for one in found[parts:]]
            mixed = mpmath.fsum(mpmath.mpf(float(a)) * d for a, d in zip(proposal.weights, each, strict=True))
            exact.append(max(1 - mpmath.exp(mpmath.mpf(eps)) * ratio, mpmath.mpf(0)) / mixed)
        error = moved(payoffs, densities, proposal.weights, exact)
    assert 0.0 < SAFETY * error <= WEIGHT_ROUNDING
    assert math.isfinite(error)
