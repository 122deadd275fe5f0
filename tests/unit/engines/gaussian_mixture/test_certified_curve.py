"""Certified nodes of both directions against quadrature, and a fault in the weights that they must show."""

import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal
from tests.support import bins_oracles

STRATEGY, BINS, SIGMA = dm.LambdaCGD(6, 0.5), dm.BallsInBins(2), 1.5
GRAM = bins_oracles.strategy_gram(6, 2, 0.5) / SIGMA**2


def profile(seed, rel_error=0.05):
    return dm.profile(STRATEGY, SIGMA, participation=BINS, rel_error=rel_error, rng=seed)


def contradicted(found):
    """How many nodes say what is not so, and how many say anything."""
    wrong = total = 0
    ((curve, _),) = found.parts.curves
    for place, nodes in enumerate((curve.remove, curve.add)):
        for eps, lower, upper in zip(nodes.eps, nodes.lower, nodes.upper, strict=True):
            if eps > 9.0:
                continue
            truth = bins_oracles.quadrature(GRAM, eps)[place]
            wrong += not lower <= truth * (1.0 + 1e-6) or not truth * (1.0 - 1e-6) <= upper
            total += 1
    return wrong, total


@pytest.mark.slow
def test_nodes_hold_against_quadrature_and_are_close():
    found = profile(3)
    assert found.guarantee == dm.Guarantee(dm.Kind.PROBABLE, 1e-9)
    wrong, total = contradicted(found)
    assert wrong == 0
    assert total > 40
    for eps in (0.2, 1.0, 3.0, 5.0):
        truth = max(bins_oracles.quadrature(GRAM, eps))
        ends = found.delta(eps)
        assert truth / 2.0 < ends.lower <= truth <= ends.upper < 1.5 * truth
    # Two runs: between one run and the basic composition of two.
    two = found.self_compose(2)
    assert found.delta(3.0).upper < two.delta(3.0).upper < 1.0
    assert two.epsilon(2e-5).upper < 1.9 * found.epsilon(1e-5).upper


@pytest.mark.slow
def test_the_same_seed_gives_the_same_curve():
    one, other = profile(4, 0.4), profile(4, 0.4)
    assert one.parts.curves[0][0] == other.parts.curves[0][0]
    assert profile(5, 0.4).parts.curves[0][0] != one.parts.curves[0][0]


@pytest.mark.slow
def test_weights_that_are_too_light_are_found(monkeypatch):
    for kind in (RemoveProposal, AddProposal):

        def lighter(self, payoffs, densities, levels, true=kind.level_weights):
            return true(self, payoffs, densities, levels) + math.log(0.6)

        monkeypatch.setattr(kind, "level_weights", lighter)
    wrong, total = contradicted(profile(3))
    assert wrong > total / 4


@pytest.mark.parametrize("kind", [RemoveProposal, AddProposal])
def test_payoffs_at_another_eps_are_those_drawn_there(kind):
    from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram

    gram = bin_gram(STRATEGY, 2).scaled(SIGMA**-2)
    one = kind.at(gram, 0.3)
    payoffs, _ = one.block(np.random.SeedSequence(1), 500)
    for eps in (0.3, 0.8, 2.0):
        there, _ = one.at_level(eps).block(np.random.SeedSequence(1), 500)
        moved = one.payoffs_at(payoffs, eps)
        assert np.array_equal(np.isfinite(moved), np.isfinite(there))
        hits = np.isfinite(there)
        assert np.exp(moved[hits]) == pytest.approx(np.exp(there[hits]), rel=1e-9, abs=1e-13)
        # The bound of the moved mixture holds for its weights.
        payoff, density = one.at_level(eps).block(np.random.SeedSequence(2), 4000)
        weights = one.log_weights(payoff, density)
        assert weights.max() <= one.at_level(eps).log_weight_bound + 1e-9
