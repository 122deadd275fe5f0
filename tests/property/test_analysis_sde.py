"""The formulas of the SDE analysis against the oracles of the verification."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from dpmech.analysis.sde.bounds import (
    critical_epsilon,
    critical_noise_multiplier,
    optimal_sgd_rate,
    optimal_sign_rate,
    scaling_law_epsilon,
    sgd_gradient_bound,
    sgd_loss_bound,
    sign_gradient_bound,
    sign_loss_bound,
    tuned_bounds,
)
from dpmech.analysis.sde.dynamics import (
    GradientNoise,
    clipped_gain,
    direction_factor,
    direction_moments,
    euler_maruyama,
    private_gradient,
    sgd_covariance,
    sgd_diffusion,
    sgd_drift,
    sign_diffusion,
    sign_drift,
    sign_gain,
    sign_variance,
)
from dpmech.analysis.sde.stationary import (
    sgd_moments,
    sgd_stationary_variance,
    sign_moments,
    sign_stationary_variance,
)
from dpmech.exceptions import InvalidParameterError
from verification.oracles import sde as oracle

positive = st.floats(0.05, 20.0)
shares = st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0])
freedoms = st.sampled_from([math.inf, 1.0, 3.0, 40.0])


@st.composite
def noises(draw, dimension=None):
    return GradientNoise(
        dimension=draw(st.integers(2, 6)) if dimension is None else dimension,
        clip_norm=draw(positive),
        batch_size=draw(st.integers(1, 64)),
        batch_noise=draw(positive),
        noise_multiplier=draw(positive),
        degrees_of_freedom=draw(freedoms),
    )


def gradients(dimension):
    return st.lists(st.floats(-5, 5), min_size=dimension, max_size=dimension).map(np.array)


def gaussian_spread(norm, scale, dimension):
    """E[X_2^2 / |X|^2] for a Gaussian with mean along the first axis: 1/|x|^2 is int e^(-t |x|^2) dt."""

    # Substituted t = e^v times where the integrand falls off.
    knee = 1.0 / (dimension * scale**2 + norm**2)

    def integrand(v):
        t = knee * math.exp(v)
        wide = 1.0 + 2.0 * t * scale**2
        return t * scale**2 * math.exp(-(dimension / 2 + 1) * math.log(wide) - t * norm**2 / wide)

    return sum(integrate.quad(integrand, v, v + 4.0, epsabs=1e-15)[0] for v in np.arange(-40.0, 60.0, 4.0))


@given(st.floats(0.01, 5000.0))
def test_direction_factor_against_gamma_functions(freedom):
    assert direction_factor(freedom) == pytest.approx(oracle.student_factor(freedom), rel=1e-12)


@pytest.mark.parametrize("freedom", [300.5, 301.0, 340.0, 1000.0])
def test_the_series_of_the_direction_factor_has_all_its_terms(freedom):
    """Its last term is 1e-12 where it takes over."""
    assert direction_factor(freedom) == pytest.approx(oracle.student_factor(freedom), rel=0.0, abs=4e-14)


def test_directions_of_gradients_far_above_the_noise():
    """u tends to g / ||g||: the gain to 1 / ||g||, the spread to (s / ||g||)^2."""
    norms = np.array([1e6, 1e10, 1e14])
    moments = direction_moments(norms, 3.0, 5)
    np.testing.assert_allclose(moments.gain * norms, 1.0, rtol=1e-10)
    np.testing.assert_allclose(moments.spread * (norms / 3.0) ** 2, 1.0, rtol=1e-9)
    # Student t: E[s^2 chi] = nu / (nu - 2).
    moments = direction_moments(norms, 3.0, 5, degrees_of_freedom=6.0)
    np.testing.assert_allclose(moments.spread * (norms / 3.0) ** 2, 1.5, rtol=1e-8)


def test_directions_under_very_heavy_tails():
    moments = direction_moments(2.0, 1.3, 7, degrees_of_freedom=0.5)
    assert 2.0 * moments.gain == pytest.approx(oracle.student_mean_direction(2.0, 1.3, 7, 0.5), rel=1e-6)


@settings(max_examples=40)
@given(st.floats(0.0, 30.0), positive, st.integers(1, 400))
def test_gaussian_directions_against_kummer_and_quadrature(norm, scale, dimension):
    moments = direction_moments(norm, scale, dimension)
    expected = oracle.confluent_mean(norm, scale, dimension)
    assert moments.gain * norm == pytest.approx(expected, rel=1e-11)
    if dimension > 1:
        assert moments.spread == pytest.approx(gaussian_spread(norm, scale, dimension), rel=1e-8)
    assert moments.along + (dimension - 1) * moments.spread == pytest.approx(1.0, rel=1e-12)


@settings(max_examples=12)
@given(st.floats(0.1, 20.0), st.integers(2, 200), st.sampled_from([1.0, 1.5, 4.0, 25.0]))
def test_student_directions_against_an_average_of_gaussian_ones(norm, dimension, freedom):
    moments = direction_moments(norm, 1.3, dimension, degrees_of_freedom=freedom)
    expected = oracle.student_mean_direction(norm, 1.3, dimension, freedom)
    assert moments.gain * norm == pytest.approx(expected, rel=1e-8)


@given(st.lists(st.floats(0.0, 50.0), min_size=2, max_size=6), st.integers(1, 10**6), freedoms)
def test_gain_falls_and_spread_turns_as_gradients_grow(norms, dimension, freedom):
    moments = direction_moments(np.sort(norms), 1.0, dimension, degrees_of_freedom=freedom)
    assert np.all(np.diff(moments.gain) <= 1e-15)
    assert np.all(np.diff(moments.spread) <= 1e-15)
    assert np.all(moments.along >= moments.spread)
    assert np.all(moments.gain * np.sort(norms) <= 1.0 + 1e-15)


@given(st.data(), noises(), shares)
def test_covariance_is_that_of_a_mixture(data, noise, share):
    gradient = data.draw(gradients(noise.dimension))
    norm = float(np.linalg.norm(gradient))
    moments = direction_moments(
        norm, noise.batch_noise, noise.dimension, degrees_of_freedom=noise.degrees_of_freedom
    )
    clip = noise.clip_norm
    unit = gradient / norm if norm > 0 else np.zeros_like(gradient)
    second = moments.spread * np.eye(noise.dimension)
    second = second + (moments.along - moments.spread) * np.outer(unit, unit)
    clipped_mean, identity = clip * moments.gain * gradient, np.eye(noise.dimension)
    # Law of total variance, through second moments about 0.
    mean = share * clipped_mean + (1.0 - share) * gradient
    raw = share * clip**2 * second
    raw = raw + (1.0 - share) * (noise.batch_noise**2 * identity + np.outer(gradient, gradient))
    expected = (raw - np.outer(mean, mean)) / noise.batch_size
    expected = expected + (noise.noise_multiplier * clip / noise.batch_size) ** 2 * identity
    scale = float(np.trace(expected)) + norm**2 + clip**2
    np.testing.assert_allclose(
        sgd_covariance(noise, gradient, clipped_share=share), expected, atol=1e-12 * scale
    )
    np.testing.assert_allclose(sgd_drift(noise, gradient, clipped_share=share), -mean, atol=1e-12 * scale)


@given(st.data(), noises(), shares)
def test_diffusion_is_a_root_of_the_covariance(data, noise, share):
    gradient = data.draw(gradients(noise.dimension))
    rows = np.tile(gradient, (noise.dimension, 1))
    root = sgd_diffusion(noise, rows, np.eye(noise.dimension), clipped_share=share)
    covariance = sgd_covariance(noise, gradient, clipped_share=share)
    np.testing.assert_allclose(root.T @ root, covariance, atol=1e-10 * np.trace(covariance))
    np.testing.assert_allclose(root, root.T, atol=1e-12 * np.sqrt(np.trace(covariance)))
    signs = sign_diffusion(noise, rows, np.eye(noise.dimension), clipped_share=share)
    np.testing.assert_allclose(
        np.diag(signs) ** 2, sign_variance(noise, gradient, clipped_share=share), atol=1e-12
    )
    assert np.all(signs - np.diag(np.diag(signs)) == 0.0)


@given(st.data(), noises())
def test_traces_stay_within_the_bounds(data, noise):
    gradient = data.draw(gradients(noise.dimension))
    clipped = np.trace(sgd_covariance(noise, gradient, clipped_share=1.0))
    privacy = noise.dimension * noise.privacy_variance
    assert clipped <= (noise.clip_norm**2 / noise.batch_size + privacy) * (1 + 1e-12)
    unclipped = np.trace(sgd_covariance(noise, gradient))
    assert unclipped == pytest.approx(noise.dimension * noise.total_variance, rel=1e-12)


@given(st.data(), noises(), shares)
def test_mean_sign_is_that_of_a_gaussian_coordinate(data, noise, share):
    gradient = data.draw(gradients(noise.dimension))
    mean = -sgd_drift(noise, gradient, clipped_share=share)
    spread = np.sqrt(np.diag(sgd_covariance(noise, gradient, clipped_share=share)))
    expected = 2.0 * special.ndtr(mean / spread) - 1.0
    np.testing.assert_allclose(-sign_drift(noise, gradient, clipped_share=share), expected, atol=1e-12)
    np.testing.assert_allclose(
        sign_variance(noise, gradient, clipped_share=share), 1.0 - expected**2, atol=1e-12
    )


@given(noises(dimension=3), st.floats(0.0, 10.0))
def test_slope_of_the_sign_is_a_chord(noise, coordinate):
    gradient = np.array([max(coordinate, 1e-6), 0.0, 0.0])
    chord = -sign_drift(noise, gradient)[0] / gradient[0]
    assert sign_gain(noise, coordinate=gradient[0]) == pytest.approx(chord, rel=1e-12)
    assert sign_gain(noise) == pytest.approx(
        -sign_drift(noise, np.array([1e-7, 0.0, 0.0]))[0] / 1e-7, rel=1e-9
    )
    assert sign_gain(noise, coordinate=coordinate) <= sign_gain(noise) * (1 + 1e-12)


@given(noises(dimension=4), st.floats(0.0, 5.0))
def test_clipped_slope_is_that_of_the_drift_at_small_gradients(noise, norm):
    tiny = np.full(4, 1e-7)
    slope = -sign_drift(noise, tiny, clipped_share=1.0)[0] / 1e-7
    assert sign_gain(noise, clipped=True) == pytest.approx(slope, rel=1e-6)
    gain = clipped_gain(noise, gradient_norm=norm)
    point = np.array([norm, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(
        -sgd_drift(noise, point, clipped_share=1.0), gain * point, rtol=1e-12, atol=1e-300
    )
    ratio = sign_gain(noise, clipped=True, gradient_norm=norm) / sign_gain(noise, clipped=True)
    assert ratio == pytest.approx(gain / clipped_gain(noise), rel=1e-12)


@settings(max_examples=30)
@given(noises(dimension=3), st.floats(0.01, 5.0), st.floats(0.0, 4.0), st.booleans())
def test_loss_bounds_solve_the_moment_equation(noise, mu, time, clipped):
    smooth, rate, start = 1.5 * mu, 0.01, 2.0
    slope = clipped_gain(noise) if clipped else 1.0
    trace = noise.clip_norm**2 / noise.batch_size + 3 * noise.privacy_variance
    trace = trace if clipped else 3 * noise.total_variance
    bound = sgd_loss_bound(noise, learning_rate=rate, pl_constant=mu, smoothness=smooth, clipped=clipped)
    time /= mu * slope
    expected = oracle.linear_flow(2 * mu * slope, 0.5 * rate * smooth * trace, start, time)
    assert bound.at(start, time) == pytest.approx(expected, rel=1e-7)
    slope_sign = sign_gain(noise, clipped=clipped)
    sign = sign_loss_bound(noise, learning_rate=rate, pl_constant=mu, smoothness=smooth, clipped=clipped)
    late = time * slope / slope_sign
    expected = oracle.linear_flow(2 * mu * slope_sign, 0.5 * rate * smooth * 3, start, late)
    assert sign.at(start, late) == pytest.approx(expected, rel=1e-7)


@settings(max_examples=25)
@given(
    st.lists(st.floats(0.2, 3.0), min_size=3, max_size=3),
    st.lists(st.floats(-2.0, 2.0), min_size=3, max_size=3),
    noises(dimension=3),
)
def test_bounds_hold_for_the_iterates_on_quadratics(curvatures, start, noise):
    rate, steps = 0.01, 400
    h, x = np.array(curvatures), np.array(start)
    smooth = float(h.max())
    # The iterates differ from the equation by a factor 1 + O(rate h).
    slack = 1.0 / (1.0 - rate * smooth)
    loss = 0.5 * float(h @ x**2)
    squares = [
        oracle.sgd_walk(h_i, noise.total_variance, rate, x_i, steps)[1] for h_i, x_i in zip(h, x, strict=True)
    ]
    bound = sgd_loss_bound(noise, learning_rate=rate, pl_constant=float(h.min()), smoothness=smooth)
    assert 0.5 * sum(h_i * s[-1] for h_i, s in zip(h, squares, strict=True)) <= slack * bound.at(
        loss, rate * steps
    )
    mean = sum(float(h_i**2 * s[:-1].mean()) for h_i, s in zip(h, squares, strict=True))
    arguments = {"learning_rate": rate, "steps": steps, "smoothness": smooth, "initial_loss": loss}
    assert mean <= slack * sgd_gradient_bound(noise, **arguments)


@given(st.data(), noises(dimension=3), shares, st.sampled_from([0.2, 1.0, 7.0]))
def test_mixed_bound_rests_on_drift_and_trace_of_every_mixture(data, noise, share, smooth):
    gradient = data.draw(gradients(3))
    norm = float(np.linalg.norm(gradient))
    gain = clipped_gain(noise, gradient_norm=norm)
    # Small enough for the bound to exist.
    rate = min(1e-2, 2.0 * noise.batch_size * min(1.0, gain) / (1.0 - gain) ** 2) / smooth
    problem = {"learning_rate": rate, "steps": 10, "smoothness": smooth, "gradient_norm": norm}
    rest = sgd_gradient_bound(noise, initial_loss=0.0, mixed=True, **problem)
    whole = sgd_gradient_bound(noise, initial_loss=1.0, mixed=True, **problem)
    slope = 1.0 / (10 * rate * (whole - rest))
    lost = rate * smooth * (1.0 - gain) ** 2 / (8.0 * noise.batch_size)
    assert slope == pytest.approx(min(1.0, gain) - lost, rel=1e-6)
    trace = float(np.trace(sgd_covariance(noise, gradient, clipped_share=share)))
    fall = -float(gradient @ sgd_drift(noise, gradient, clipped_share=share)) - 0.5 * rate * smooth * trace
    assert fall >= slope * (norm**2 - rest) - 1e-8 * (1.0 + abs(slope * rest))
    assert sgd_gradient_bound(noise, initial_loss=1.0, **problem) <= whole * (1 + 1e-12)


@settings(max_examples=15)
@given(st.floats(0.3, 3.0), st.floats(0.0, 6.0), st.floats(0.1, 4.0))
def test_sign_bounds_hold_within_their_limit(curvature, share, variance):
    rate, steps = 0.002, 1500
    noise = GradientNoise(
        dimension=1, clip_norm=1.0, batch_size=1, batch_noise=math.sqrt(variance), noise_multiplier=0.0
    )
    start = share * math.sqrt(variance) / curvature
    square = oracle.sign_walk(curvature, variance, rate, start, steps)[1]
    loss = 0.5 * curvature * start**2
    limit = curvature * (start + 40.0 * rate)
    bound = sign_loss_bound(
        noise, learning_rate=rate, pl_constant=curvature, smoothness=curvature, coordinate=limit
    )
    slack = 1.0 + 4.0 * rate * sign_gain(noise) * curvature
    assert 0.5 * curvature * square[-1] <= slack * bound.at(loss, rate * steps)
    mean = curvature**2 * square[:-1].mean()
    clip_free = sign_gain(noise, coordinate=limit)
    assert mean <= slack * (loss / (rate * steps) + 0.5 * rate * curvature) / clip_free
    assert sign_gradient_bound(
        noise, learning_rate=rate, steps=steps, smoothness=curvature, initial_loss=loss, coordinate=limit
    ) >= (loss / (rate * steps) + 0.5 * rate * curvature) / clip_free * (1 - 1e-12)


def test_the_linear_sign_bound_fails_far_out_and_the_limited_one_does_not():
    noise = GradientNoise(dimension=1, clip_norm=1, batch_size=1, batch_noise=1.0, noise_multiplier=0.0)
    found = 0.5 * oracle.sign_walk(1.0, 1.0, 0.01, 100.0, 100)[1][-1]
    linear = sign_loss_bound(noise, learning_rate=0.01, pl_constant=1.0, smoothness=1.0)
    limited = sign_loss_bound(noise, learning_rate=0.01, pl_constant=1.0, smoothness=1.0, coordinate=101.0)
    assert found == pytest.approx(4900.5, abs=0.1)
    assert linear.at(5000.0, 1.0) == pytest.approx(1013.8, abs=0.1)
    assert linear.at(5000.0, 1.0) < found <= limited.at(5000.0, 1.0)


@settings(max_examples=40)
@given(noises(dimension=2), st.floats(0.05, 3.0), st.floats(-2, 2), st.floats(0.0, 3.0), st.floats(1e-4, 0.1))
def test_quadratic_moments_against_the_moment_equations(noise, curvature, start, time, rate):
    h = np.array([curvature, 2.0 * curvature])
    found = sgd_moments(noise, curvatures=h, start=[start, -start], learning_rate=rate, time=time)
    for place in range(2):
        begin = (start, -start)[place]
        expected = oracle.linear_flow(h[place], 0.0, begin, time)
        assert found.mean[place] == pytest.approx(expected, rel=1e-8, abs=1e-9)
        spread = oracle.linear_flow(2 * h[place], rate * noise.total_variance, 0.0, time)
        assert found.variance[place] == pytest.approx(spread, rel=1e-8, abs=1e-14)
    slope = sign_gain(noise) * h
    begin = 0.9 * start / 2.0 / slope
    found = sign_moments(noise, curvatures=h, start=begin, learning_rate=rate, time=time)
    for place in range(2):
        mean = oracle.linear_flow(slope[place], 0.0, begin[place], time)
        decay = 2.0 * slope[place] + rate * slope[place] ** 2
        square = oracle.linear_flow(decay, rate, begin[place] ** 2, time)
        scale = begin[place] ** 2 + rate * time
        assert found.mean[place] == pytest.approx(mean, rel=1e-8, abs=1e-9 * math.sqrt(scale))
        assert found.variance[place] == pytest.approx(square - mean**2, abs=1e-8 * scale + 1e-14)


@given(noises(dimension=2), st.floats(0.05, 3.0), st.floats(1e-4, 0.1))
def test_stationary_variances_are_the_late_ones(noise, curvature, rate):
    h = np.array([curvature, 0.5 * curvature])
    late = sgd_moments(noise, curvatures=h, start=[0, 0], learning_rate=rate, time=100.0 / curvature)
    settled = sgd_stationary_variance(noise, curvatures=h, learning_rate=rate)
    np.testing.assert_allclose(settled, late.variance, rtol=1e-12)
    slope = sign_gain(noise) * curvature
    late = sign_moments(noise, curvatures=h, start=[0, 0], learning_rate=rate, time=100.0 / slope)
    settled = sign_stationary_variance(noise, curvatures=h, learning_rate=rate)
    np.testing.assert_allclose(settled, late.variance, rtol=1e-12)


@settings(max_examples=20)
@given(st.floats(0.2, 2.0), st.floats(0.1, 4.0))
def test_stationary_variances_against_the_iterates(curvature, variance):
    rate = 0.02
    noise = GradientNoise(
        dimension=1, clip_norm=1, batch_size=1, batch_noise=math.sqrt(variance), noise_multiplier=0.0
    )
    exact = oracle.sgd_walk(curvature, variance, rate, 0.0, 6000)[1][-1]
    discrete = sgd_stationary_variance(noise, curvatures=[curvature], learning_rate=rate, discrete=True)
    assert discrete[0] == pytest.approx(exact, rel=1e-9)
    walk = oracle.sign_stationary_square(curvature, variance, rate)
    settled = sign_stationary_variance(noise, curvatures=[curvature], learning_rate=rate)[0]
    small = rate * sign_gain(noise) * curvature
    assert walk / settled - 1.0 == pytest.approx(small, abs=0.35 * small + 1e-4)


@given(st.floats(1, 200), st.floats(0, 15), positive, positive, positive, positive)
def test_critical_multiplier_is_where_the_floors_cross(
    batch, batch_noise, sgd_rate, sign_rate, sgd_clip, sign_clip
):
    found = critical_noise_multiplier(
        batch_size=batch,
        batch_noise=batch_noise,
        sgd_rate=sgd_rate,
        sign_rate=sign_rate,
        sgd_clip=sgd_clip,
        sign_clip=sign_clip,
    )

    def advantage(sigma):
        """DP-SGD's floor over DP-SignSGD's, from the bounds; d = mu = L = 1."""
        noise = GradientNoise(
            dimension=1, clip_norm=sgd_clip, batch_size=batch, batch_noise=batch_noise, noise_multiplier=sigma
        )
        sgd = sgd_loss_bound(noise, learning_rate=sgd_rate, pl_constant=1, smoothness=1).floor
        noise = dataclasses.replace(noise, clip_norm=sign_clip)
        return sgd / sign_loss_bound(noise, learning_rate=sign_rate, pl_constant=1, smoothness=1).floor

    unit = found if found > 0 else batch
    for factor in (1.001, 1.1, 2.0, 100.0):
        assert advantage(unit * factor) > 1.0 - 1e-6
    if found > 1e-3:
        assert advantage(found) == pytest.approx(1.0, rel=1e-6)
        label = critical_epsilon(
            1e-5,
            dataset_size=1000 * batch,
            steps=50,
            batch_size=batch,
            batch_noise=batch_noise,
            sgd_rate=sgd_rate,
            sign_rate=sign_rate,
            sgd_clip=sgd_clip,
            sign_clip=sign_clip,
        )
        expected = scaling_law_epsilon(found, 1e-5, sampling_prob=1e-3, steps=50)
        assert label == pytest.approx(expected, rel=1e-12)


@settings(max_examples=12)
@given(noises(), st.integers(1, 10**6), positive, positive)
def test_optimal_rates_minimise_the_bounds(noise, steps, smooth, loss):
    problem = {"steps": steps, "smoothness": smooth, "initial_loss": loss}
    best, value = oracle.minimum_over_rates(
        lambda rate: sgd_gradient_bound(noise, learning_rate=rate, **problem)
    )
    rate = optimal_sgd_rate(noise, **problem)
    assert rate == pytest.approx(best, rel=1e-3)
    assert sgd_gradient_bound(noise, learning_rate=rate, **problem) <= value * (1 + 1e-12)
    best, value = oracle.minimum_over_rates(
        lambda rate: sign_gradient_bound(noise, learning_rate=rate, **problem)
    )
    rate = optimal_sign_rate(dimension=noise.dimension, **problem)
    assert rate == pytest.approx(best, rel=1e-3)
    assert sign_gradient_bound(noise, learning_rate=rate, **problem) <= value * (1 + 1e-12)


@settings(max_examples=25)
@given(noises(), st.lists(positive, min_size=1, max_size=4))
def test_retuning_never_hurts_and_only_dp_sgd_needs_it(noise, multipliers):
    problem = {"steps": 1000, "smoothness": 1.0, "initial_loss": 1.0}
    fixed = tuned_bounds(noise, multipliers, retuned=False, **problem)
    tuned = tuned_bounds(noise, multipliers, retuned=True, **problem)
    assert np.all(tuned.sgd_bounds <= fixed.sgd_bounds * (1 + 1e-12))
    np.testing.assert_array_equal(tuned.sign_rates, fixed.sign_rates)
    np.testing.assert_array_equal(tuned.sign_bounds, fixed.sign_bounds)
    assert np.all(fixed.sgd_rates == optimal_sgd_rate(noise, **problem))
    for sigma, rate, bound in zip(multipliers, tuned.sgd_rates, tuned.sgd_bounds, strict=True):
        here = dataclasses.replace(noise, noise_multiplier=sigma)
        assert rate == optimal_sgd_rate(here, **problem)
        assert bound == sgd_gradient_bound(here, learning_rate=rate, **problem)


def test_euler_maruyama_has_the_moments_of_the_recursion():
    rate, steps, count = 0.1, 30, 40_000
    noise = GradientNoise(dimension=1, clip_norm=1, batch_size=4, batch_noise=1.0, noise_multiplier=2.0)
    ends = euler_maruyama(
        lambda x: sgd_drift(noise, 1.5 * x),
        lambda x, z: sgd_diffusion(noise, 1.5 * x, z),
        np.ones((count, 1)),
        learning_rate=rate,
        steps=steps,
        rng=np.random.default_rng(7),
    )
    means, squares = oracle.sgd_walk(1.5, noise.total_variance, rate, 1.0, steps)
    spread = squares[-1] - means[-1] ** 2

    def rejects(mean, variance):
        limit = oracle.STANDARD_ERRORS
        return abs(ends.mean() - mean) > limit * math.sqrt(spread / count) or abs(
            ends.var() / variance - 1.0
        ) > limit * math.sqrt(2.0 / count)

    assert not rejects(means[-1], spread)
    assert rejects(means[-1], 1.1 * spread)
    assert rejects(means[-1] + 0.05 * math.sqrt(spread), spread)


def test_finer_steps_come_closer_to_the_equation():
    count, rate = 40_000, 0.4
    flow = sgd_moments(
        GradientNoise(dimension=1, clip_norm=1, batch_size=1, batch_noise=1, noise_multiplier=0),
        curvatures=[1.0],
        start=[0.0],
        learning_rate=rate,
        time=4 * rate,
    ).variance[0]
    errors = []
    for pieces in (1, 16):
        ends = euler_maruyama(
            lambda x: -x,
            lambda _, z: z,
            np.zeros((count, 1)),
            learning_rate=rate,
            steps=4,
            rng=np.random.default_rng(8),
            substeps=pieces,
        )
        errors.append(abs(ends.var() / flow - 1.0))
    assert errors[1] < 6.2 * math.sqrt(2.0 / count) + 0.02 < 0.15 < errors[0]


def test_private_gradient_of_many_replicas_is_that_of_each():
    noise = GradientNoise(dimension=3, clip_norm=1, batch_size=4, batch_noise=1.0, noise_multiplier=2.0)
    rows = np.random.default_rng(9).normal(size=(5, 2, 3))
    together = private_gradient(noise, rows, clipped_share=0.4)
    assert together.gain.shape == (5, 2, 1)
    alone = private_gradient(noise, rows[3, 1], clipped_share=0.4)
    for stacked, single in zip(together, alone, strict=True):
        assert stacked[3, 1, 0] == pytest.approx(single[0], rel=1e-13)
    assert sgd_covariance(noise, rows).shape == (5, 2, 3, 3)


def test_pushes_have_the_sign_of_their_normals():
    noise = GradientNoise(dimension=3, clip_norm=1, batch_size=4, batch_noise=1.0, noise_multiplier=2.0)
    gradient, normals = np.array([0.3, -0.2, 0.9]), np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(
        sign_diffusion(noise, gradient, normals), np.sqrt(sign_variance(noise, gradient)) * normals
    )
    root = math.sqrt(noise.total_variance)
    np.testing.assert_allclose(sgd_diffusion(noise, gradient, normals), root * normals)
    for share in (0.4, 1.0):
        push = sgd_diffusion(noise, gradient, normals, clipped_share=share)
        assert normals @ push > 0.0
    # A constant push adds up: 12 pieces of sqrt(0.04) sqrt(0.04 / 4).
    end = euler_maruyama(
        np.zeros_like,
        lambda x, _: np.ones_like(x),
        np.zeros(2),
        learning_rate=0.04,
        steps=3,
        rng=np.random.default_rng(0),
        substeps=4,
    )
    np.testing.assert_allclose(end, 0.24)


def test_the_iterates_have_a_variance_up_to_twice_the_inverse_curvature():
    noise = GradientNoise(dimension=1, clip_norm=1, batch_size=4, batch_noise=1.0, noise_multiplier=2.0)
    for rate in (0.7, 0.95):  # lr h = 1.4 and 1.9: every step overshoots
        found = sgd_stationary_variance(noise, curvatures=[2.0], learning_rate=rate, discrete=True)
        squares = oracle.sgd_walk(2.0, noise.total_variance, rate, 0.0, 400)[1]
        assert found[0] == pytest.approx(squares[-1], rel=1e-9)
    with pytest.raises(InvalidParameterError, match="below 2 over the largest curvature"):
        sgd_stationary_variance(noise, curvatures=[2.0], learning_rate=1.0, discrete=True)


def test_one_dimension_has_a_rate():
    assert optimal_sign_rate(dimension=1, steps=8, smoothness=1.0, initial_loss=1.0) == pytest.approx(0.5)
