import math

import numpy as np
import pytest

import dpmech as dm
from tests.support import oracles as oracle

RATES = [0.5, 1.0, 0.25, 0.0, 2.0]


@pytest.mark.parametrize(
    ("workload", "beta", "rates"),
    [
        (dm.workloads.prefix_sum(5), 0.0, None),
        (dm.workloads.momentum(5, 0.9), 0.9, None),
        (dm.workloads.learning_rate_weighted(RATES), 0.0, RATES),
        (dm.workloads.learning_rate_weighted(RATES, beta=0.5), 0.5, RATES),
    ],
)
def test_dense_form_and_products(workload, beta, rates):
    matrix = oracle.workload_matrix(5, beta, rates)
    np.testing.assert_allclose(workload.to_dense(), matrix, rtol=1e-14)
    x = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(workload.matmul(x), matrix @ x, atol=1e-13)
    np.testing.assert_allclose(workload.matmul(x[:, 0]), matrix @ x[:, 0], atol=1e-13)
    assert workload.toeplitz == (rates is None)


def test_iterates_of_momentum_sgd():
    gradients = np.random.default_rng(1).normal(size=5)
    buffer, weight, iterates = 0.0, 0.0, []
    for rate, gradient in zip(RATES, gradients, strict=True):
        buffer = 0.5 * buffer + gradient
        weight += rate * buffer
        iterates.append(weight)
    workload = dm.workloads.learning_rate_weighted(RATES, beta=0.5)
    np.testing.assert_allclose(workload.matmul(gradients), iterates, atol=1e-14)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dm.workloads.prefix_sum(0), r"n must be an integer in \[1, 1000000000\], got 0"),
        (lambda: dm.workloads.prefix_sum(True), r"n must be an integer in \[1, 1000000000\], got True"),
        (lambda: dm.workloads.momentum(3, 1.0), r"beta must be a finite number in \[0, 1\), got 1\.0"),
        (lambda: dm.workloads.momentum(3, -0.1), r"beta must be a finite number in \[0, 1\)"),
        (lambda: dm.workloads.momentum(3, "0.9"), r"beta must be a finite number in \[0, 1\), got '0\.9'"),
        (lambda: dm.workloads.learning_rate_weighted([0.1, -0.1]), "rates must be 2 numbers >= 0"),
        (lambda: dm.workloads.learning_rate_weighted([]), "rates must be a non-empty"),
        (lambda: dm.workloads.learning_rate_weighted([math.nan]), "rates must be a non-empty"),
        (lambda: dm.workloads.Workload(3, rates=[1.0]), "rates must be 3 numbers >= 0"),
        (
            lambda: dm.rmse(dm.Identity(4), workload=dm.workloads.prefix_sum(3)),
            r"None or a Workload over n=4 steps",
        ),
        (
            lambda: dm.rmse(dm.Identity(4), workload="prefix"),
            r"None or a Workload over n=4 steps, got 'prefix'",
        ),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        build()


def test_rates_are_copied_and_locked():
    rates = np.array([1.0, 2.0])
    workload = dm.workloads.learning_rate_weighted(rates)
    rates[0] = 5.0
    assert workload.rates.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        workload.rates[0] = 3.0
