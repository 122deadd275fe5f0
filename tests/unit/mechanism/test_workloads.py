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
            r"None, a Workload over n=4 steps, or a lower triangular matrix",
        ),
        (
            lambda: dm.rmse(dm.Identity(4), workload="prefix"),
            r"matrix of shape \(4, 4\), got 'prefix'",
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


LOWER = np.tril(np.random.default_rng(3).normal(size=(6, 6)))
LOWER[2] = 0.0
FORMS = {
    "matrix": (dm.workloads.lower_triangular(LOWER), LOWER),
    "identity": (dm.workloads.identity(6), np.eye(6)),
    "banded": (
        dm.workloads.banded(6, [1.0, -0.5, 2.0]),
        sum(c * np.eye(6, k=-lag) for lag, c in enumerate([1.0, -0.5, 2.0])),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_are_their_matrices(form):
    workload, matrix = FORMS[form]
    x = np.random.default_rng(0).normal(size=(6, 3))
    np.testing.assert_allclose(workload.to_dense(), matrix, atol=1e-15)
    np.testing.assert_allclose(workload.matmul(x), matrix @ x, atol=1e-14)
    np.testing.assert_allclose(workload.matmul(x[:, 1]), matrix @ x[:, 1], atol=1e-14)
    np.testing.assert_allclose(workload.adjoint(x), matrix.T @ x, atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "strategy",
    [
        dm.Identity(6),
        dm.LambdaCGD(6, 0.5),
        dm.SquareRoot(6),
        dm.ColumnNormalized(dm.LambdaCGD(6, 0.5)),
        dm.Diagonal([3.0, 2.0, 1.0, 1.0, 2.0, 3.0]),
    ],
    ids=repr,
)
def test_errors_are_norms_of_the_decoder(form, strategy):
    workload, matrix = FORMS[form]
    rows = np.linalg.norm(matrix @ np.linalg.inv(strategy.to_dense()), axis=1)
    np.testing.assert_allclose(dm.per_step_error(strategy, workload=workload), rows, rtol=1e-12, atol=1e-13)
    own = dm.sensitivity(strategy, dm.MinSep(2)).upper
    expected = own * np.linalg.norm(rows) / math.sqrt(6)
    assert dm.rmse(strategy, dm.MinSep(2), workload=workload) == pytest.approx(expected, rel=1e-12)
    assert dm.rmse(strategy, dm.MinSep(2), workload=matrix) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", [dm.Dense, dm.LambdaCGD, dm.BandedToeplitz, dm.BandedInverse, dm.BLT])
@pytest.mark.parametrize("column_normalized", [False, True])
def test_a_fit_is_for_the_given_sums(form, family, column_normalized):
    workload, matrix = FORMS[form]
    if family is dm.Dense and column_normalized:
        pytest.skip("Dense has free columns")
    more = {"column_normalized": column_normalized} if column_normalized else {}
    fit = dm.optimize(family, dm.MinSep(2), n=6, workload=workload, **more)
    rows = np.linalg.norm(matrix @ np.linalg.inv(fit.strategy.to_dense()), axis=1)
    own = dm.sensitivity(fit.strategy, dm.MinSep(2)).upper
    assert fit.error == pytest.approx(own * np.linalg.norm(rows) / math.sqrt(6), rel=1e-9)
    # No worse than independent noise, and than the same family fitted to prefix sums.
    other = dm.optimize(family, dm.MinSep(2), n=6, **more).strategy
    for strategy in (dm.Identity(6), other):
        assert fit.error <= dm.rmse(strategy, dm.MinSep(2), workload=matrix) * (1 + 1e-3)


def test_a_dense_fit_reaches_the_bound_of_one_participation():
    """With one participation, the error is at least the nuclear norm of A over n."""
    matrix = np.diag([1.0, 1.0, 1.0, 1.0]) + np.diag([0.5, 0.5, 0.5], -1)
    fit = dm.optimize(dm.Dense, dm.SingleParticipation(), n=4, workload=matrix)
    rng, best = np.random.default_rng(1), math.inf
    for _ in range(20_000):
        tried = np.tril(rng.normal(size=(4, 4), scale=0.4), -1) + np.diag(rng.uniform(0.6, 1.1, 4))
        error = np.linalg.norm(matrix @ np.linalg.inv(tried)) / 2 * np.linalg.norm(tried, axis=0).max()
        best = min(best, error)
    nuclear = np.linalg.norm(matrix, "nuc") / 4
    assert nuclear - 1e-12 <= fit.error <= best


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: dm.workloads.banded(2, [1.0, 1.0, 1.0]), "coefs must be at most 2 numbers, not all 0"),
        (lambda: dm.workloads.banded(2, [0.0]), "coefs must be at most 2 numbers, not all 0"),
        (lambda: dm.workloads.lower_triangular(np.ones((2, 2))), "matrix must be lower triangular"),
        (lambda: dm.workloads.lower_triangular(np.zeros((2, 2))), "not all 0"),
        (lambda: dm.workloads.lower_triangular([[math.nan]]), "finite"),
        (lambda: dm.workloads.Workload(2, matrix=np.eye(3)), r"of shape \(2, 2\)"),
        (lambda: dm.workloads.Workload(2, 0.5, coefs=[1.0]), "None with beta, rates or matrix"),
        (lambda: dm.workloads.Workload(1, coefs=[1.0], matrix=[[1.0]]), "None with beta, rates or matrix"),
        (lambda: dm.workloads.Workload(1, rates=[1.0], matrix=[[1.0]]), "None with beta or rates"),
        (lambda: dm.rmse(dm.Identity(3), workload=np.eye(2)), r"of shape \(3, 3\)"),
        (lambda: dm.rmse(dm.Identity(3), workload="identity"), "a lower triangular matrix"),
    ],
)
def test_other_forms_are_checked(build, message):
    with pytest.raises(dm.InvalidParameterError, match=message):
        build()
