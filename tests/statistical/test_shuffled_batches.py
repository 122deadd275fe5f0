"""Shuffled runs, trained for real on data of gradients +1 and -1: events as likely as they are said to be.

Rate of false alarms: ALPHA for each test, at fixed seeds; each also rejects a planted fault.
"""

import math

import numpy as np
import pytest
import scipy

from dpmech.audits import Shuffled, shuffled_epsilon
from dpmech.audits.shuffled import Epoch

ALPHA = 1e-9
SIZE, BATCH = 24, 2


def _slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def runs(count, epochs, sigma, gradient, rng, *, once=False):
    """Noisy sums less their public mean, (count, epochs, batches); example 0 has the gradient, others -1."""
    gradients = np.full(SIZE, -1.0)
    gradients[0] = gradient
    orders = rng.permuted(np.tile(np.arange(SIZE), (count * (1 if once else epochs), 1)), axis=1)
    sums = gradients[orders].reshape(-1, SIZE // BATCH, BATCH).sum(axis=2) + BATCH
    sums = np.repeat(sums, epochs, axis=0) if once else sums
    return (sums + sigma * rng.normal(size=sums.shape)).reshape(count, epochs, -1)


def log_density(found, mean, sigma, *, once=False):
    """Of the runs above, up to what does not depend on the mean: which batch is raised is not known."""
    if once:
        found, sigma = found.mean(axis=1, keepdims=True), sigma / math.sqrt(found.shape[1])
    raised = (mean * found - 0.5 * mean**2) / sigma**2
    return scipy.special.logsumexp(raised, axis=2).sum(axis=1)


@pytest.mark.parametrize(("gradient", "mean"), [(1.0, 2.0), (0.0, 1.0)])
def test_the_largest_sum_is_as_high_as_it_is_said_to_be(gradient, mean):
    count, rng = 100_000, np.random.default_rng(20)
    largest = runs(count, 1, 0.8, gradient, rng)[:, 0].max(axis=1)
    epoch = Epoch(SIZE // BATCH, 0.8, 2.0, 1.0)
    thresholds = np.array([1.0, 1.8, 2.5, 3.2])
    for threshold, tail, other in zip(
        thresholds, epoch.tails(thresholds, mean), epoch.tails(thresholds, mean - 0.15), strict=True
    ):
        seen = int(np.count_nonzero(largest > threshold))
        assert scipy.stats.binomtest(seen, count, tail).pvalue > ALPHA
        assert scipy.stats.binomtest(seen, count, other).pvalue < ALPHA


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize(("epochs", "sigma"), [(1, 0.7), _slow(6, 1.2), _slow(12, 2.5)])
def test_no_lower_end_is_above_the_eps_of_the_run(epochs, sigma, once):
    """The mean of (1 - e^(eps - loss))+ over runs is delta at eps of this pair of datasets; Hoeffding."""
    count, delta = 100_000, 0.05
    rng = np.random.default_rng([epochs, once])
    found = runs(count, epochs, sigma, 1.0, rng, once=once)
    losses = log_density(found, 2.0, sigma, once=once) - log_density(found, 1.0, sigma, once=once)
    margin = math.sqrt(math.log(1.0 / ALPHA) / (2.0 * count))
    eps = shuffled_epsilon(12 * epochs, sigma, delta, Shuffled(SIZE, BATCH, once=once)).lower

    def highest(eps):
        return float(np.maximum(-np.expm1(eps - losses), 0.0).mean()) + margin

    assert eps > 0.2
    assert highest(eps) >= delta
    # A bound twice as large would have been seen to be none.
    assert highest(2.0 * eps) < delta
