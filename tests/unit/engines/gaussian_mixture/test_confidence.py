import math

import numpy as np
import pytest
import scipy.stats

from dpmech.engines.gaussian_mixture.samples import likelihood_interval, pareto_shape, summarise
from dpmech.exceptions import InvalidParameterError, NumericalError

ALPHA = 1e-9


def log(values):
    with np.errstate(divide="ignore"):
        return np.log(values)


def test_summary_against_definitions():
    weights = np.array([0.0, 1.0, 2.0, 5.0])
    summary = summarise(log(weights))
    assert math.exp(summary.log_mean) == pytest.approx(2.0)
    assert summary.relative_error == pytest.approx(weights.std(ddof=1) / 2.0 / 2.0)
    assert summary.effective_samples == pytest.approx(64.0 / 30.0)
    assert summary.largest_share == pytest.approx(5.0 / 8.0)
    assert math.isnan(summary.tail_shape)


def test_summary_of_nothing_and_of_tiny_weights():
    empty = summarise(np.full(10, -np.inf))
    assert empty.log_mean == -math.inf
    assert empty.largest_share == 1.0
    assert (empty.effective_samples, empty.relative_error, empty.samples) == (0.0, math.inf, 10)
    assert summarise(np.full(10, -700.0)).log_mean == pytest.approx(-700.0)


@pytest.mark.parametrize("shape", [0.1, 0.5, 0.9])
def test_pareto_shape_recovers_the_tail(shape):
    draws = scipy.stats.genpareto.rvs(shape, size=200_000, random_state=np.random.default_rng(1))
    assert pareto_shape(draws) == pytest.approx(shape, abs=0.12)


def test_pareto_shape_edges():
    assert pareto_shape(np.random.default_rng(0).random(100_000)) < 0.0
    assert pareto_shape(np.ones(100_000)) == -math.inf
    assert math.isnan(pareto_shape(np.ones(10)))


def test_likelihood_interval_against_a_direct_profile():
    weights = np.random.default_rng(2).exponential(size=400)
    lower, upper = likelihood_interval(np.log(weights), 0.95)
    for end in (lower, upper):
        centred = weights - end
        edges = -1.0 / centred.max() * 0.999999, -1.0 / centred.min() * 0.999999
        best = max(float(np.sum(np.log1p(bet * centred))) for bet in np.linspace(*edges, 4001))
        assert 2.0 * best == pytest.approx(scipy.stats.chi2.ppf(0.95, 1), rel=1e-3)
    assert lower < weights.mean() < upper


def test_likelihood_interval_scales_with_its_weights():
    weights = np.random.default_rng(3).exponential(size=1000)
    weights[::2] = 0.0
    one = likelihood_interval(log(weights), 0.9999)
    two = likelihood_interval(log(weights) - 600.0, 0.9999)
    assert np.array(two) / math.exp(-600.0) == pytest.approx(np.array(one), rel=1e-9)


def test_likelihood_interval_refuses_constant_weights():
    with pytest.raises(NumericalError, match="equal weights"):
        likelihood_interval(np.zeros(10), 0.99)
    with pytest.raises(NumericalError):
        likelihood_interval(np.full(10, -np.inf), 0.99)
    with pytest.raises(InvalidParameterError):
        likelihood_interval(np.arange(3.0), 1.0)


def test_likelihood_interval_covers_skewed_means():
    rng = np.random.default_rng(4)
    missed, level, runs = 0, 0.99, 2000
    for _ in range(runs):
        weights = np.exp(rng.standard_normal(1500)) * (rng.random(1500) < 0.5)
        lower, upper = likelihood_interval(log(weights), level)
        missed += not lower <= 0.5 * math.exp(0.5) <= upper
    # lognormal(1): the finite-sample error of the asymptotics is allowed a factor 2.5
    assert scipy.stats.binom.sf(missed - 1, runs, 2.5 * (1.0 - level)) > ALPHA


@pytest.mark.parametrize("size", [300, 5000])
def test_the_pareto_shape_is_that_of_zhang_and_stephens(size):
    """Their estimator written out: a mean of log(1 - theta x) at the posterior mean of theta, and a prior."""
    weights = scipy.stats.genpareto.rvs(0.3, size=size, random_state=np.random.default_rng(6))
    tail = int(min(size / 5, 3 * math.sqrt(size)))
    ordered = sorted(weights.tolist())
    threshold = ordered[-tail - 1]
    x = [value - threshold for value in ordered[-tail:]]
    points = 30 + int(math.sqrt(tail))
    quartile = x[int(tail / 4 + 0.5) - 1]
    thetas = [1 / x[-1] + (1 - math.sqrt(points / (j - 0.5))) / (3 * quartile) for j in range(1, points + 1)]

    def shape(theta):
        return math.fsum(math.log1p(-theta * value) for value in x) / tail

    heights = [tail * (math.log(-theta / shape(theta)) - shape(theta) - 1) for theta in thetas]
    chances = [1 / math.fsum(math.exp(other - own) for other in heights) for own in heights]
    found = shape(math.fsum(theta * chance for theta, chance in zip(thetas, chances, strict=True)))
    assert pareto_shape(weights) == pytest.approx((tail * found + 10 * 0.5) / (tail + 10), rel=1e-9)
    # Zeros count for nothing.
    assert pareto_shape(np.append(weights, np.zeros(99))) == pytest.approx(pareto_shape(weights), rel=1e-12)


def test_one_weight_above_all_others_is_no_bounded_tail():
    assert pareto_shape(np.append(np.ones(400), 2.0)) > -math.inf
