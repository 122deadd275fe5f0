import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

import dpmech as dm
from dpmech.engines.gaussian_mixture.all_bins_tilt import CollectiveParts
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram
from dpmech.engines.gaussian_mixture.estimate import estimate_delta
from dpmech.engines.gaussian_mixture.gram import CirculantGram
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal
from tests.support.bins_oracles import identity_delta, strategy_gram
from tests.support.quick_cases import slow_but

ALPHA = 1e-9
DEVIATIONS = scipy.stats.norm.isf(ALPHA / 2)


def identity(bins, square):
    row = np.zeros(bins)
    row[0] = square
    return CirculantGram(row)


BANDED = DenseGram(0.5 * (np.eye(9) + 0.4 * np.eye(9, k=1) + 0.4 * np.eye(9, k=-1)))
UNEVEN = DenseGram(np.diag([0.2, 0.5, 0.9, 0.4]))


@pytest.mark.parametrize("gram", [identity(6, 0.4), UNEVEN, BANDED], ids=["circulant", "uneven", "banded"])
def test_densities_are_the_densities_of_the_draws(gram):
    """E_Q[D / (1 + D)] = E_part[1 / (1 + D)], both bounded, for the density D of every part."""
    count = 60_000
    plain = gram.sample(np.random.default_rng(0), count)
    base = gram.sample(np.random.default_rng(1), count)
    for parts in (CollectiveParts.rising(gram, 0.4), CollectiveParts.falling(gram, 0.4)):
        for which in range(len(parts.parts)):
            drawn = parts.draw(np.full(count, which), base, np.random.default_rng(2))
            logs = parts.log_densities(plain)[:, which], parts.log_densities(drawn)[:, which]

            def distance(fault, logs=logs):
                one, two = scipy.special.expit(logs[0] + fault), scipy.special.expit(-logs[1] - fault)
                return abs(one.mean() - two.mean()) * math.sqrt(count / (one.var() + two.var()))

            assert distance(0.0) < DEVIATIONS
            assert distance(0.1) > DEVIATIONS  # a denominator that is off by a tenth


def test_draws_raise_or_lower_the_mean():
    gram, eps = bin_gram(dm.SquareRoot(390, 2), 39).scaled(1 / 16.0), 0.4
    for parts, sign in ((CollectiveParts.rising(gram, eps), 1.0), (CollectiveParts.falling(gram, eps), -1.0)):
        base = gram.sample(np.random.default_rng(1), 4000)
        drawn = parts.draw(np.zeros(4000, dtype=np.int64), base, np.random.default_rng(2))
        losses = np.log(np.exp(drawn - 0.5 * gram.diagonal).mean(axis=1))
        assert 0.2 < np.mean(sign * losses > eps) < 0.9


def test_where_they_are_used():
    assert CollectiveParts.rising(identity(50, 0.25), 0.5).names[:2] == ("all bins", "all bins, one 3%")
    assert CollectiveParts.falling(identity(50, 0.25), 0.5).names == ("all bins",)
    # too few bins, correlated bins, a single bin far likelier, a huge loss, a singular matrix
    for gram, eps in (
        (identity(2, 0.25), 0.5),
        (DenseGram(strategy_gram(390, 39, 0.95) / 9.0), 0.5),
        (identity(390, 1.0), 3.0),
        (identity(3, 1.0), 1e4),
        (DenseGram(np.ones((5, 5))), 0.5),
    ):
        assert CollectiveParts.rising(gram, eps) is None
        assert CollectiveParts.falling(gram, eps) is None
        assert "all bins" not in RemoveProposal.at(gram, eps).names + AddProposal.at(gram, eps).names


def test_nearly_singular_bins_are_left_to_the_other_parts():
    matrix = 0.3 * np.eye(6)
    matrix[0, 1] = matrix[1, 0] = 0.3 * (1.0 - 1e-9)
    assert CollectiveParts.rising(DenseGram(matrix), 0.4) is None


@pytest.mark.parametrize(
    "gram",
    [BANDED, BANDED.scaled(2.5), UNEVEN, identity(5, 0.7)],
    ids=["banded", "scaled", "uneven", "circulant"],
)
def test_whitening_inverts_the_factor(gram):
    values = np.random.default_rng(0).standard_normal((7, gram.bins))
    found = gram.factor
    scales = found.scales
    if isinstance(gram, CirculantGram):
        factor = np.diag(scales)
    else:
        factor = np.zeros((gram.bins, gram.bins))
        for start in range(0, gram.bins, 4):
            rows = found.rows(start, min(start + 4, gram.bins))
            factor[start : start + 4, : rows.shape[1]] = rows
        assert found.sums() == pytest.approx(factor.sum(axis=0))
    assert np.diag(factor) == pytest.approx(scales)
    assert factor @ factor.T == pytest.approx(gram.columns(np.arange(gram.bins)))
    assert found.whiten(values) @ factor.T == pytest.approx(values)


def test_correlated_or_singular_bins_have_no_triangular_factor():
    assert CirculantGram([1.0, 0.3, 0.3]).factor is None
    assert DenseGram(np.ones((2, 2))).factor is None


@pytest.mark.slow
def test_a_fault_of_two_percent_in_the_gram_matrix_is_seen():
    remove, add = identity_delta(0.25, 12, 0.6)
    right, wrong = (
        estimate_delta(
            identity(12, square), 0.6, rel_error=0.006, confidence=1 - 1e-9, rng=np.random.default_rng(3)
        )
        for square in (0.25, 0.255)
    )
    assert right.remove.lower < remove < right.remove.upper
    assert right.add.lower < add < right.add.upper
    assert not wrong.remove.lower < remove < wrong.remove.upper


def test_the_bounds_say_what_carried_them():
    bounds = dm.delta(
        dm.Identity(50), 2.0, 0.4, participation=dm.BallsInBins(50), rng=1, method=dm.methods.Importance()
    )
    assert "carried by all bins" in str(bounds.by)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_bands_at_small_eps():
    """Weakly correlated bins, which Gaussians with shifted means alone do not reach."""
    gram = bin_gram(dm.SquareRoot(3900, 2), 390).scaled(1 / 25.0)
    results = [estimate_delta(gram, 0.25, rng=np.random.default_rng(seed)) for seed in (0, 1)]
    assert all(one.remove.tail_shape < 0.5 and one.relative_error < 0.03 for one in results)
    assert results[0].lower < results[1].upper
    assert results[1].lower < results[0].upper
    # entries lowered to independent bins: delta may only fall
    assert results[0].upper > max(identity_delta(float(gram.diagonal.min()), 390, 0.25))


@pytest.mark.parametrize("eps", slow_but([20.0, 50.0, 200.0], 1))
def test_far_levels_do_without_collective_tilts(eps):
    """The table over the levels of later bins would be astronomically large there."""
    strategy, participation = dm.LambdaCGD(20, 0.7), dm.BallsInBins(10)
    sigma = dm.calibrate_sigma(strategy, eps, 1e-5, participation=participation, rng=1).sigma
    moments = dm.calibrate_sigma(
        strategy, eps, 1e-5, participation=participation, method=dm.methods.Rdp()
    ).sigma
    assert 0.9 * moments < sigma < moments
