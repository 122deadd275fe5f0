"""What `dm.audits.empirical_epsilon` is made of: the worst gradients, the best test and its bound.

Its runs against certificates, of every sampling scheme, are in tests/conformance/test_scheme.py.
"""

import numpy as np
import pytest
import scipy.stats

import dpmech as dm
from dpmech.audits.many_runs import _best_cut, _bounds
from dpmech.engines.likelihood_ratios import Algebra
from dpmech.schemes import scheme_of


def canary_of(mechanism):
    """The worst example, as the scheme of the participation has it."""
    return scheme_of(mechanism.participation).canary(mechanism.participation, mechanism)


ALPHA = 1e-9
REPLACE = dm.Adjacency.REPLACE_ONE


def test_the_mechanism_as_dpmech_defines_it_is_tested_by_default():
    cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.7), 1.0, 0.1, participation=dm.MinSep(4, 3))
    options = {"participation": cal.participation, "samples": 50_000, "confidence": 1.0 - ALPHA}
    true = dm.audits.empirical_epsilon(cal.strategy, cal.sigma, 0.1, rng=1, **options)
    assert 0.6 < true.lower <= 1.0
    again = dm.audits.empirical_epsilon(cal.strategy, cal.sigma, 0.1, rng=np.random.default_rng(1), **options)
    assert again == true
    # Half the noise, and a test that knows it.
    assert dm.audits.empirical_epsilon(cal.strategy, 0.5 * cal.sigma, 0.1, rng=1, **options).lower > 1.0


def test_long_runs_need_no_dense_matrix():
    strategy = dm.LambdaCGD(1100, 0.5)
    assert Algebra(strategy).dense is None
    rows = np.random.default_rng(1).standard_normal((3, 1100))
    exact = strategy.to_dense()
    np.testing.assert_allclose(Algebra(strategy).matmul(rows), rows @ exact.T, atol=1e-10)
    np.testing.assert_allclose(Algebra(strategy).solve(rows) @ exact.T, rows, atol=1e-10)
    found = dm.audits.empirical_epsilon(
        strategy, 2.0, 0.1, participation=dm.SingleParticipation(), samples=1000, rng=1
    )
    assert 0.0 <= found.lower < dm.epsilon(strategy, 2.0, 0.1, participation=dm.SingleParticipation()).upper


@pytest.mark.parametrize(
    "participation", [dm.EveryStep(), dm.MinSep(3, 2), dm.FixedEpochs(2), dm.SingleParticipation()], ids=repr
)
def test_the_canary_is_as_bad_as_the_sensitivity_allows(participation):
    strategy = dm.LambdaCGD(6, 0.8)
    canary = canary_of(dm.Mechanism(strategy, participation))
    worst = dm.sensitivity(strategy, participation).upper
    assert float(np.linalg.norm(canary.images[0])) == pytest.approx(worst, rel=1e-9)
    np.testing.assert_allclose(canary.images[0], strategy.matmul(canary.gradients[0]), rtol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "participation"),
    [
        (dm.Identity(3), dm.Poisson(0.3)),
        (dm.Identity(2), dm.Poisson(1.0)),
        (dm.BandedToeplitz(4, [1.0, 0.5]), dm.CyclicPoisson(0.4, 2)),
        (dm.Diagonal([1.0, 1.5]), dm.Poisson(0.3, max_examples_per_user=2)),
        (dm.BandedToeplitz(4, [1.0, 0.5]), dm.CyclicPoisson(0.4, 2, max_examples_per_user=3)),
        (dm.LambdaCGD(4, 0.6), dm.BallsInBins(2)),
        (dm.BandedToeplitz(8, [1.0, -0.5]), dm.RandomAllocation(2, cycle=2)),
        (dm.LambdaCGD(4, 0.6), dm.MinSep(2, 2)),
    ],
    ids=repr,
)
def test_the_score_is_the_log_likelihood_ratio(strategy, participation):
    """Against densities of the release itself, summed over every set of steps."""
    rng, sigma, n = np.random.default_rng(5), 1.3, strategy.n
    canary = canary_of(dm.Mechanism(strategy, participation))
    draws = canary.draw(20_000, rng, present=True)
    patterns, counts = np.unique(draws, axis=0, return_counts=True)
    inverse = np.linalg.inv(strategy.to_dense())
    law = scipy.stats.multivariate_normal(np.zeros(n), sigma**2 * inverse @ inverse.T)
    if participation.per_release:
        q, most = participation.sampling_prob, participation.examples
        each = scipy.stats.binom.pmf(patterns[:, canary.steps], most, q)
        weights = each.prod(axis=1)
        assert not np.any(np.delete(patterns, canary.steps, axis=1))
    else:
        weights = np.full(len(patterns), 1.0 / len(patterns))
    assert weights.sum() == pytest.approx(1.0)
    if len(patterns) > 1:
        assert scipy.stats.chisquare(counts, weights * counts.sum()).pvalue > ALPHA
    released = rng.standard_normal((50, n)) * 2.0
    present = sum(weight * law.pdf(released - row) for weight, row in zip(weights, patterns, strict=True))
    scores = canary.log_ratio(released @ strategy.to_dense().T, sigma)
    np.testing.assert_allclose(scores, np.log(present / law.pdf(released)), rtol=1e-8, atol=1e-10)
    assert not np.any(canary.draw(5, rng, present=False))


def test_opposite_worlds_under_replacement():
    strategy, sigma = dm.LambdaCGD(4, 0.6), 1.3
    canary = canary_of(dm.Mechanism(strategy, dm.MinSep(2, 2), dm.Adjacency.REPLACE_ONE))
    inverse = np.linalg.inv(strategy.to_dense())
    law = scipy.stats.multivariate_normal(np.zeros(4), sigma**2 * inverse @ inverse.T)
    rng = np.random.default_rng(5)
    one, other = canary.draw(1, rng, present=True)[0], canary.draw(1, rng, present=False)[0]
    np.testing.assert_array_equal(one, -other)
    released = rng.standard_normal((50, 4)) * 2.0
    expected = law.logpdf(released - one) - law.logpdf(released - other)
    np.testing.assert_allclose(canary.log_ratio(released @ strategy.to_dense().T, sigma), expected, rtol=1e-8)


def test_the_bound_is_clopper_and_pearson_on_both_sides():
    (found,) = _bounds(np.array([300]), np.array([20]), 1000, 0.05, 0.99)
    likely = scipy.stats.binomtest(300, 1000).proportion_ci(0.99).low
    unlikely = scipy.stats.binomtest(20, 1000).proportion_ci(0.99).high
    assert found == pytest.approx(np.log((likely - 0.05) / unlikely), rel=1e-9)
    nothing, everything = _bounds(np.array([0, 1000]), np.array([0, 1000]), 1000, 0.05, 0.99)
    assert nothing == -np.inf
    assert everything == pytest.approx(np.log(0.005 ** (1 / 1000) - 0.05), rel=1e-9)


def test_the_chosen_event_is_the_best_of_those_tried():
    rng = np.random.default_rng(2)
    inside, outside = rng.normal(1.0, 1.0, 4000), rng.normal(0.0, 1.0, 4000)
    bound, sign, cut = _best_cut(inside, outside, 0.05, 0.99, 1.0)
    for other in np.quantile(inside, np.linspace(0.0, 1.0, 50)):
        hits, false_hits = np.array([np.sum(inside > other)]), np.array([np.sum(outside > other)])
        assert _bounds(hits, false_hits, 4000, 0.05, 0.99)[0] <= bound + 0.02
    assert sign == 1.0
    assert inside.min() < cut < inside.max()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sigma": 0.0}, dm.InvalidParameterError, "sigma"),
        ({"delta": 1.0}, dm.InvalidParameterError, "delta"),
        ({"samples": 10}, dm.InvalidParameterError, "samples"),
        ({"confidence": 1.0}, dm.InvalidParameterError, "confidence"),
        ({"participation": dm.MinSep(9)}, dm.InvalidParameterError, "min_sep"),
        ({"rng": "x"}, dm.InvalidParameterError, "rng"),
        ({"mechanism": lambda gradients, rng: gradients[:, :2]}, dm.InvalidParameterError, "shape"),
        ({"mechanism": lambda gradients, rng: gradients * np.nan}, dm.InvalidParameterError, "finite"),
        (
            {"participation": dm.BallsInBins(2), "adjacency": REPLACE},
            dm.UnsupportedCombinationError,
            "REPLACE_ONE",
        ),
    ],
)
def test_bad_arguments_are_refused(changes, error, message):
    arguments = {"strategy": dm.Identity(4), "sigma": 1.0, "delta": 0.1, "samples": 1000, "rng": 1} | changes
    with pytest.raises(error, match=message):
        dm.audits.empirical_epsilon(**arguments)
