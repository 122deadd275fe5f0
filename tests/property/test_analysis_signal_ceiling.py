"""Correlated noise in sums and averages, and the ceiling: the library against dense matrices."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.analysis.noise_share import moments as first
from dpmech.analysis.noise_share import signal_ceiling as ceiling
from tests.support import generators as gen
from verification.noise_share import prefix as exact
from verification.oracles import noise_share as oracle

LAMBDAS = st.one_of(st.just(0.0), gen.finite(0.0, 0.9), gen.finite(0.9, 0.999))


@given(LAMBDAS, st.integers(1, 60))
def test_sensitivities_in_both_conventions(lam, steps):
    noising = oracle.bidiagonal(lam, steps)
    norm = float(np.linalg.norm(np.linalg.inv(noising), axis=0).max())
    assert math.isclose(ceiling.column_norm(lam, steps), norm, rel_tol=1e-9)
    covariance = oracle.secret_covariance(lam, steps)
    secret = math.sqrt(float(np.diag(np.linalg.inv(covariance)).max()))
    assert math.isclose(ceiling.secret_start_norm(lam, steps), secret, rel_tol=1e-8)
    assert ceiling.secret_start_norm(lam, steps) <= ceiling.column_norm(lam, steps) * (1 + 1e-12)
    assert ceiling.column_norm(lam, steps) <= ceiling.column_norm(lam) * (1 + 1e-12)
    plain = dm.sensitivity(dm.LambdaCGD(steps, lam), dm.SingleParticipation()).upper
    assert math.isclose(ceiling.column_norm(lam, steps), plain, rel_tol=1e-9)


@given(LAMBDAS, st.integers(1, 60), st.data())
def test_variance_ratios_in_both_conventions(lam, steps, data):
    prefix = data.draw(st.integers(1, steps))
    zero = exact.zero_start(lam, steps, np.ones(steps))
    secret = exact.secret_start(lam, steps)
    assert math.isclose(ceiling.prefix_variance_ratio(lam, steps), zero, rel_tol=1e-8)
    assert math.isclose(ceiling.prefix_variance_ratio(lam, steps, secret_start=True), secret, rel_tol=1e-7)
    early = exact.prefix_ratio(lam, steps, prefix)
    assert math.isclose(ceiling.prefix_variance_ratio(lam, steps, prefix=prefix), early, rel_tol=1e-8)
    assert (1 - lam) / (1 + lam) * (1 - 1e-9) <= zero <= 1 + 1e-9
    assert secret <= 1 + 1e-9
    summed = float(oracle.secret_covariance(lam, steps).sum())
    assert math.isclose(ceiling.integrated_variance(lam, steps, secret_start=True), summed, rel_tol=1e-9)
    plain = float(np.sum((np.ones(steps) @ oracle.bidiagonal(lam, steps)) ** 2))
    assert math.isclose(ceiling.integrated_variance(lam, steps), plain, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("lam", "steps", "plain", "secret"),
    [
        (0.9, 8, 2.070721, 1.515636),
        (0.95, 10, 2.565079, 1.672238),
        (0.5, 4, 1.152443, 1.109807),
        (0.99, 120, 6.763675, 5.222280),
        (0.9, 120, 2.294157, 2.294151),
    ],
)
def test_printed_sensitivities(lam, steps, plain, secret):
    assert abs(ceiling.column_norm(lam, steps) - plain) < 6e-7
    assert abs(ceiling.secret_start_norm(lam, steps) - secret) < 6e-7


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.9])
def test_limit_of_the_sensitivity(lam):
    dense = float(np.linalg.norm(np.linalg.inv(oracle.bidiagonal(lam, 400)), axis=0).max())
    assert math.isclose(ceiling.column_norm(lam), dense, rel_tol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_secret_start_of_short_runs(steps):
    exact_norm = float(np.diag(np.linalg.inv(oracle.secret_covariance(0.8, steps))).max()) ** 0.5
    assert math.isclose(ceiling.secret_start_norm(0.8, steps), exact_norm, rel_tol=1e-12)


@pytest.mark.parametrize(("where", "ratios"), exact.TABLE.items())
def test_printed_ratios(where, ratios):
    assert abs(ceiling.prefix_variance_ratio(*where) - ratios[0]) < 6e-5
    assert abs(ceiling.prefix_variance_ratio(*where, secret_start=True) - ratios[1]) < 6e-5


@pytest.mark.parametrize(("prefix", "ratio"), [(1, 5.26), (5, 1.095), (10, 0.574), (20, 0.313), (50, 0.157)])
def test_early_prefixes_can_be_worse_than_independent_noise(prefix, ratio):
    assert abs(ceiling.prefix_variance_ratio(0.9, 120, prefix=prefix) - ratio) < 5e-3


@given(
    LAMBDAS,
    st.lists(gen.finite(-2.0, 2.0), min_size=1, max_size=40).filter(lambda w: max(map(abs, w)) > 1e-3),
)
def test_ratio_of_any_weights(lam, weights):
    found = ceiling.weighted_variance_ratio(lam, weights)
    dense = exact.zero_start(lam, len(weights), np.array(weights))
    assert math.isclose(found, dense, rel_tol=1e-8, abs_tol=1e-12)


def test_weights_of_any_size():
    assert math.isclose(
        ceiling.weighted_variance_ratio(0.5, [1e-200, 2e-200]), ceiling.weighted_variance_ratio(0.5, [1, 2])
    )


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_steady_average_is_the_limit_of_its_weights(lam, beta):
    dense = exact.zero_start(lam, 500, oracle.weights_by_recursion(beta, 500))
    assert math.isclose(ceiling.average_variance_ratio(lam, beta), dense, rel_tol=1e-9)
    # The first-moment module computes the same quantity for any strategy.
    strategy = dm.LambdaCGD(500, lam)
    ratio = first.correlated_average_variances(strategy, beta)[-1] / first.average_variance(beta, 500)
    assert math.isclose(ratio * ceiling.column_norm(lam, 500) ** 2, dense, rel_tol=1e-9)


@given(gen.finite(0.0, 0.9999))
def test_best_correlation_is_a_minimum(beta):
    lam, ratio = ceiling.best_correlation(beta)
    assert math.isclose(ceiling.average_variance_ratio(lam, beta), ratio, rel_tol=1e-9)
    for other in (lam * 0.97, lam + 0.03 * (1 - lam)):
        assert ceiling.average_variance_ratio(other, beta) >= ratio * (1 - 1e-12)


def test_printed_averages():
    assert abs(ceiling.average_variance_ratio(0.9, 0.9) - 1.0) < 1e-12
    assert abs(ceiling.average_variance_ratio(0.95, 0.9) - 1.974) < 5e-4
    assert abs(ceiling.average_variance_ratio(0.99, 0.0) - 99.5) < 0.01
    np.testing.assert_allclose(ceiling.best_correlation(0.9), (0.6268, 0.4359), atol=5e-5)


POSITIVE = gen.finite(0.01, 3.0)


@given(
    POSITIVE, gen.finite(0.0, 3.0), POSITIVE, gen.finite(0.0, 3.0), gen.finite(0.0, 1.0), gen.finite(0.1, 1.0)
)
def test_bounds_are_attained_by_constant_curvature(kappa, curve, bias, variance, theta, part):
    def loss(u):
        return kappa * u + 0.5 * curve * u**2

    error = {"bias_squared": bias, "variance": variance}
    assert math.isclose(ceiling.loss_bound(kappa, curve, **error), loss(bias + variance), rel_tol=1e-12)
    gain = loss(bias + variance) - loss(bias + theta * variance)
    found = ceiling.gain_bound(kappa, curve, theta=theta, **error)
    assert math.isclose(found, gain, rel_tol=1e-9, abs_tol=1e-12)
    floor = part * bias
    relative = ceiling.relative_gain_bound(kappa, curve, bias_floor=floor, theta=theta, **error)
    assert gain / loss(bias) <= relative * (1 + 1e-9) + 1e-12
    form = (1 - theta) * variance / floor * (1 + curve / kappa * (bias + variance))
    assert math.isclose(relative, form, rel_tol=1e-9, abs_tol=1e-15)


@given(
    gen.finite(0.05, 1.0),
    gen.finite(0.1, 5.0),
    gen.finite(-2.0, 2.0),
    gen.finite(-3.0, 3.0),
    gen.finite(-3.0, 3.0),
)
def test_descent_bound_on_a_parabola(product, curvature, gradient, low, high):
    eta = product / curvature
    moves = np.array([low, high])
    for sign in (1.0, -1.0):  # convex and concave
        change = float(np.mean(-eta * gradient * moves + 0.5 * sign * curvature * (eta * moves) ** 2))
        error = float(np.mean((moves - gradient) ** 2))
        bound = ceiling.descent_bound(eta, curvature, gradient_squared=gradient**2, error=error)
        assert change <= bound + 1e-12
    assert math.isclose(bound, 0.5 * eta * (error - gradient**2), rel_tol=1e-12, abs_tol=1e-15)
