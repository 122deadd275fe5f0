"""The proved bounds on weights against what weights reach, and what is left of a mixture is no other one."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal
from dpmech.engines.gaussian_mixture.proposal import log_largest_weight
from dpmech.engines.gaussian_mixture.samples import pilot_sample, weight_sample
from dpmech.engines.gaussian_mixture.streams import Stage
from tests.support.bins_oracles import quadrature
from tests.support.quick_cases import slow_but

ROUNDING = 1e-9
TWO = np.array([[1.0, 0.3], [0.3, 1.2]])
THREE = np.array([[1.0, 0.3, 0.1], [0.3, 1.2, 0.2], [0.1, 0.2, 0.8]])
KINDS = pytest.mark.parametrize("kind", [RemoveProposal, AddProposal])


def uneven(proposal, seed):
    """The mixture with random probabilities, some of them tiny."""
    weights = np.random.default_rng(seed).exponential(size=proposal.weights.size) ** 3 + 1e-3
    return proposal.reweighted(weights / weights.sum())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), parts=st.integers(1, 4))
def test_the_largest_quotient_against_a_dense_scan(seed, parts):
    rng = np.random.default_rng(seed)
    slopes = rng.exponential(size=parts) * 10.0 ** rng.uniform(-3, 2)
    slopes[rng.random(parts) < 0.3] = 0.0
    logs, weights = rng.normal(size=parts) * 10.0 ** rng.uniform(-1, 1.5), rng.random(parts) + 1e-3
    found = log_largest_weight(slopes, logs, weights)
    x = np.concatenate([np.geomspace(1e-12, 1e6, 20_000), rng.exponential(size=2000)])
    mixed = scipy.special.logsumexp(logs[:, None] + slopes[:, None] * x, axis=0, b=weights[:, None])
    largest = float(np.max(np.log(-np.expm1(-x)) - mixed))
    assert largest <= found + 1e-12
    assert found <= largest + 0.02 + 0.02 * float(slopes.max()) * 0.01


def weight_at(proposal, values):
    """Log of a weight at y, shape (b,), from the parts of the proved bound alone.

    What the other parts add makes a weight smaller; they may be as little as nothing.
    """
    half = 0.5 * proposal.gram.diagonal
    loss = scipy.special.logsumexp(values - half) - math.log(values.size)
    if isinstance(proposal, AddProposal):
        if loss >= -proposal.eps:
            return -math.inf
        along = -float(values @ proposal.point.direction)
        square = float(
            proposal.point.direction
            @ proposal.gram.columns(np.arange(values.size))
            @ proposal.point.direction
        )
        parts = along * proposal.tilts - 0.5 * proposal.tilts**2 * square
        mixed = scipy.special.logsumexp(parts, b=proposal.weights[: parts.size])
        return math.log(-math.expm1(proposal.eps + loss)) - float(mixed)
    if loss <= proposal.eps:
        return -math.inf
    parts = [loss]
    for law in (proposal.scaled, proposal.star):
        power = scipy.special.logsumexp(law.scale * (values - half)) - math.log(values.size)
        # The tuple of the largest ratio is the one that hurts.
        parts.append(law.order * power - law.log_bound)
    mixed = scipy.special.logsumexp(parts, b=proposal.weights[:3])
    return loss + math.log(-math.expm1(proposal.eps - loss)) - float(mixed)


@pytest.mark.slow
@KINDS
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), bins=st.integers(1, 3), eps=st.floats(0.01, 6.0))
def test_no_point_has_a_weight_above_the_bound(kind, seed, bins, eps):
    """A search that pushes the weight up, from many starts."""
    rng = np.random.default_rng(seed)
    rows = rng.random((bins, 2 * bins))
    matrix = rows @ rows.T + 0.1 * np.eye(bins)
    matrix *= rng.uniform(0.05, 8.0) / matrix.max()
    proposal = uneven(kind.at(DenseGram(matrix), eps), seed)
    sign, best = (1.0 if kind is RemoveProposal else -1.0), -math.inf
    for _ in range(6):
        start = sign * (eps + rng.exponential(size=bins)) + 0.5 * np.diag(matrix)
        found = scipy.optimize.minimize(
            lambda y: -max(weight_at(proposal, y), -1e3), start, method="Nelder-Mead", options={"maxfev": 300}
        )
        best = max(best, -float(found.fun))
    assert best <= proposal.log_weight_bound + ROUNDING
    assert best > -1e3


@KINDS
@pytest.mark.parametrize("matrix", slow_but([np.eye(1), TWO, 4.0 * THREE, 0.3 * np.eye(12)], 1, 2))
def test_no_draw_of_many_has_a_weight_above_the_bound(kind, matrix):
    proposal = uneven(kind.at(DenseGram(matrix), 1.0), 3)
    logs = weight_sample(proposal, (1, 2, 3, 4), Stage.REMOVE_MAIN, 100_000).log_weights
    assert logs.max() <= proposal.log_weight_bound + ROUNDING


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize("matrix", [np.eye(1), TWO, 4.0 * THREE])
def test_no_draw_of_millions_has_a_weight_above_the_bound(kind, matrix):
    for seed, eps in ((1, 0.1), (2, 1.0), (3, 4.0)):
        proposal = uneven(kind.at(DenseGram(matrix), eps), seed)
        logs = weight_sample(proposal, (seed, 2, 3, 4), Stage.REMOVE_MAIN, 1_000_000).log_weights
        assert logs.max() <= proposal.log_weight_bound + ROUNDING


@KINDS
def test_a_bound_that_is_three_per_cent_too_small_is_seen(kind):
    """One bin: the bound is reached, up to what the cells of its search leave."""
    proposal = uneven(kind.at(DenseGram(np.eye(1)), 0.5), 3)
    found = scipy.optimize.minimize_scalar(
        lambda y: -max(weight_at(proposal, np.array([y])), -1e3), bounds=(-30.0, 30.0), method="bounded"
    )
    best = max(-float(found.fun), *(weight_at(proposal, np.array([y])) for y in np.linspace(-30, 30, 4001)))
    assert math.log(0.97) + proposal.log_weight_bound < best <= proposal.log_weight_bound + ROUNDING


@KINDS
@pytest.mark.parametrize(("matrix", "eps"), [(TWO, 1.0), (0.2 * THREE, 0.3)])
def test_what_is_left_of_a_mixture_has_the_same_mean_weight(kind, matrix, eps):
    exact = quadrature(matrix, eps)[kind is AddProposal]
    whole = uneven(kind.at(DenseGram(matrix), eps), 5)
    for names in ((), whole.names[-1:], whole.names[::2], ("no such part",)):
        left = whole.restricted(names)
        assert set(left.names) >= {name for name in names if name in whole.names}
        assert left.weights.sum() == pytest.approx(1.0, abs=1e-12)
        kept = [whole.names.index(name) for name in left.names]
        assert left.weights == pytest.approx(whole.weights[kept] / whole.weights[kept].sum())
        again = kind.at(DenseGram(matrix), eps, left.names)
        assert again.names == left.names
        weights = np.exp(weight_sample(left, (1, 2, 3, 4), Stage.ADD_MAIN, 60_000).log_weights)
        error = weights.std() / math.sqrt(weights.size)
        assert error < 0.05 * exact
        assert abs(weights.mean() - exact) < 6.5 * error  # 1e-10 for a normal mean
        payoffs, densities = pilot_sample(left, (1, 2, 3, 4), Stage.ADD_MAIN, 1000)
        assert densities.shape == (payoffs.size, len(left.names))
