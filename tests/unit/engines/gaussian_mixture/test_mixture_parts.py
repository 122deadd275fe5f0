"""Every part of a mixture beside one that is plain: draws and densities of the part must belong together."""

import math

import numpy as np
import pytest
import scipy

from dpmech.engines.gaussian_mixture import proposal as mixture
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.gram import CirculantGram
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal
from tests.support.bins_oracles import quadrature

COUNT = 8_000
SIGMAS = 6.12  # two-sided 1e-9
UNEVEN = np.array([[1.4, 0.5, 0.1], [0.5, 1.1, 0.6], [0.1, 0.6, 1.7]])
GRAMS = {
    "dense": (DenseGram(UNEVEN), UNEVEN),
    "circulant": (CirculantGram(np.array([1.3, 0.4, 0.4])), 0.9 * np.eye(3) + 0.4),
    "independent": (DenseGram(np.diag([1.2, 1.2, 1.2])), 1.2 * np.eye(3)),
}
EPS = 0.7


def mean_weight(proposal, alphas, seed):
    """Mean and standard error of the weights f / sum_j alpha_j D_j, which is delta for any alphas."""
    one = proposal.reweighted(alphas)
    payoffs, densities = one.block(np.random.SeedSequence([2026, seed]), COUNT)
    with np.errstate(divide="ignore"):
        weights = np.exp(one.log_weights(payoffs, densities))
    return float(weights.mean()), float(weights.std()) / math.sqrt(COUNT)


def halves(size, part, plain):
    alphas = np.zeros(size)
    alphas[plain] += 0.5
    alphas[part] += 0.5
    return alphas


@pytest.mark.parametrize("name", GRAMS)
def test_every_part_of_remove_beside_the_nominal_one(name):
    """On {L > eps} the nominal part has a density above 1, so that weights are at most 2."""
    gram, matrix = GRAMS[name]
    truth = quadrature(matrix, EPS)[0]
    proposal = RemoveProposal.at(gram, EPS)
    for part, label in enumerate(proposal.names):
        mean, error = mean_weight(proposal, halves(len(proposal.names), part, 0), part)
        assert error < 0.04 * truth, label
        assert abs(mean - truth) < SIGMAS * error, label


@pytest.mark.parametrize("name", GRAMS)
def test_every_part_of_add_beside_the_first_one(name):
    gram, matrix = GRAMS[name]
    truth = quadrature(matrix, EPS)[1]
    proposal = AddProposal.at(gram, EPS)
    for part, label in enumerate(proposal.names):
        mean, error = mean_weight(proposal, halves(len(proposal.names), part, 0), part)
        assert error < 0.04 * truth, label
        assert abs(mean - truth) < SIGMAS * error, label


@pytest.mark.parametrize("name", GRAMS)
@pytest.mark.parametrize("family", [RemoveProposal, AddProposal])
def test_no_weight_is_above_its_bound(family, name):
    proposal = family.at(GRAMS[name][0], EPS)
    payoffs, densities = proposal.block(np.random.SeedSequence(7), COUNT)
    top = float(np.max(proposal.log_weights(payoffs, densities)))
    assert top <= proposal.log_weight_bound <= top + 3.0


def test_a_mixture_whose_density_is_off_is_found_out(monkeypatch):
    """A half more density of one part is seen at this number of draws."""
    gram, matrix = GRAMS["dense"]
    truth = quadrature(matrix, EPS)[0]
    proposal = RemoveProposal.at(gram, EPS)
    true_block = RemoveProposal.block

    def off(self, seed, count):
        payoffs, densities = true_block(self, seed, count)
        return payoffs, densities + math.log(1.5) * (np.arange(densities.shape[1]) == 1)

    monkeypatch.setattr(RemoveProposal, "block", off)
    mean, error = mean_weight(proposal, halves(len(proposal.names), 1, 0), 1)
    assert abs(mean - truth) > SIGMAS * error


def test_densities_of_uneven_bins_one_by_one():
    """Nominal: mean of a_i = e^(y_i - K_ii / 2). Scaled: mean of a_i^s, over what bounds it; at every y."""
    gram = DenseGram(UNEVEN)
    proposal = RemoveProposal.at(gram, EPS)
    values = np.random.default_rng(4).normal(scale=2.0, size=(6, 3))
    terms = np.exp(values - 0.5 * np.diag(UNEVEN))
    loss = np.log(terms.mean(axis=1))
    found = proposal._densities(values.copy(), loss, [])
    np.testing.assert_allclose(found[:, 0], loss, rtol=1e-13)
    scaled = np.log((terms**proposal.scaled.scale).mean(axis=1)) - proposal.scaled.log_bound
    np.testing.assert_allclose(found[:, 1], scaled, rtol=1e-12, atol=1e-13)
    assert proposal.scaled.scale > 1.0


@pytest.mark.parametrize("direction", [RemoveProposal, AddProposal])
def test_blocks_are_the_same_however_few_rows_are_worked_on_at_once(direction, monkeypatch):
    index = np.arange(40)
    proposal = direction.at(DenseGram(3.0 * 0.3 ** np.abs(index[:, None] - index)), EPS)
    seed = np.random.SeedSequence([2026, 40])
    whole = proposal.block(seed, 50)
    monkeypatch.setattr(mixture, "BATCH_ENTRIES", 40 * 7 + 1)
    for few, many in zip(proposal.block(seed, 50), whole, strict=True):
        assert np.allclose(few, many, rtol=1e-10, atol=1e-10)
    assert np.any(whole[0] > -np.inf)
    monkeypatch.setattr(mixture, "BATCH_ENTRIES", 1)
    assert [(rows.start, rows.stop) for rows in mixture.row_batches(np.ones((3, 2)))] == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]


def test_the_log_of_a_mixture_is_that_of_scipy_with_parts_of_probability_zero():
    rng = np.random.default_rng(7)
    logs = 300.0 * rng.standard_normal((30, 4))
    for weights in (np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.0, 1.0, 0.0, 0.0])):
        exact = scipy.special.logsumexp(logs, axis=1, b=weights)
        assert np.allclose(mixture.log_mixture(logs, weights), exact, rtol=1e-14)
