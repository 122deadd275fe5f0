import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import integrate

from dpmech.analysis.muon import newton_schulz
from dpmech.analysis.muon import newton_schulz as heat
from dpmech.analysis.muon import stationarity as muon
from verification.muon import bias as muon_bias
from verification.muon import rates as muon_rates
from verification.muon import stationarity as muon_stationarity
from verification.oracles import matrices as ref

SEEDS = st.integers(0, 2**32 - 1)
DEGREES = st.integers(1, 6)
STEPS = st.integers(0, 8)
BETAS = st.one_of(st.just(0.0), st.floats(0.0, 0.9999), st.floats(1e-9, 1.0).map(lambda x: 1.0 - x))


@st.composite
def matrices(draw, *, largest=6):
    rng = np.random.default_rng(draw(SEEDS))
    rows, columns = draw(st.integers(1, largest)), draw(st.integers(1, largest))
    rank = draw(st.integers(1, min(rows, columns)))
    matrix = rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))
    return matrix * 10.0 ** draw(st.floats(-4.0, 4.0))


@given(st.floats(0.0, 1.0), st.integers(1, 64))
def test_the_polynomial_is_the_taylor_polynomial(value, degree):
    with mp.workdps(40):
        exact = mp.fsum(
            mp.binomial(2 * s, s) / mp.mpf(4) ** s * (1 - mp.mpf(value)) ** s for s in range(degree + 1)
        )
    assert math.isclose(newton_schulz.polynomial(value, degree), exact, rel_tol=1e-13)
    np.testing.assert_allclose(newton_schulz.polynomial_coefficients(degree), ref.taylor(degree), rtol=1e-13)


@given(matrices(), DEGREES, STEPS, st.booleans())
def test_the_map_is_the_oracle(matrix, degree, steps, scale_up):
    expected = ref.muon_map(degree, steps, scale_up=scale_up)(matrix)
    output = newton_schulz.newton_schulz(matrix, degree=degree, steps=steps, scale_up=scale_up)
    np.testing.assert_allclose(output, expected, atol=1e-11)
    stack = newton_schulz.newton_schulz(np.stack([matrix, 2.0 * matrix]), degree=degree, steps=steps)
    np.testing.assert_allclose(stack[1], ref.muon_map(degree, steps)(2.0 * matrix), atol=1e-11)


@given(matrices(), DEGREES, STEPS)
def test_the_error_is_within_its_bound(matrix, degree, steps):
    start = newton_schulz.smallest_start_value(matrix)
    assert math.isclose(start, ref.least_start_value(matrix), rel_tol=1e-9)
    output = newton_schulz.newton_schulz(matrix, degree=degree, steps=steps)
    polar = newton_schulz.polar_factor(matrix)
    np.testing.assert_allclose(polar, ref.polar(matrix), atol=1e-9)
    bound = newton_schulz.spectral_error(start, degree, steps)
    error = ref.operator_norm(output - polar)
    assert error <= bound + 1e-9
    assert steps > 0 or math.isclose(error, bound, abs_tol=1e-9)
    # Weighted by singular values the error is smaller, and enough for the descent lemma.
    weighted = newton_schulz.nuclear_error(matrix, output)
    assert -1e-9 <= weighted <= error + 1e-9
    assert math.isclose(np.sum(matrix * output), (1.0 - weighted) * ref.nuclear_norm(matrix), rel_tol=1e-9)
    scaled = newton_schulz.smallest_start_value(1e-3 * matrix, scale_up=True)
    values = np.linalg.svd(matrix, compute_uv=False)
    assert math.isclose(scaled, values[values > 1e-9 * values[0]][-1] / np.linalg.norm(values), rel_tol=1e-9)


@given(st.floats(-6.0, 0.0).map(lambda x: 10.0**x), DEGREES, STEPS)
def test_quality_keeps_its_digits(start, degree, steps):
    with mp.workdps(60):
        residual = (1 - mp.mpf(start) ** 2) ** ((degree + 1) ** steps)
        root = mp.sqrt(1 - residual)
        error, quality = residual / (1 + root), 1 / root
    computed = newton_schulz.spectral_error(start, degree, steps)
    # The exponent (k + 1)^q multiplies a rounding of x^2, and a result near 1e-308 has no digits left.
    assert math.isclose(computed, error, rel_tol=1e-9 + 1e-15 * (degree + 1) ** steps, abs_tol=1e-300)
    assert math.isclose(newton_schulz.quality_factor(start, degree, steps), quality, rel_tol=1e-10)


@given(BETAS, st.integers(1, 400))
@example(0.95, 1)
def test_momentum_weights_are_their_norm(beta, updates):
    with mp.workdps(40):
        powers = [mp.mpf(beta) ** k for k in range(updates)]
        exact = mp.sqrt(mp.fsum(p**2 for p in powers)) / mp.fsum(powers)
    weight = muon.momentum_weight(beta, updates)
    assert math.isclose(weight, exact, rel_tol=1e-9)
    assert math.isclose(muon.momentum_noise(0.3, beta, updates), 0.3 * weight, rel_tol=1e-15)
    assert math.isclose(muon.momentum_weight(beta) ** 2, muon_bias.printed_reduction(beta), rel_tol=1e-12)


@given(st.one_of(st.just(0.0), st.floats(0.0, 0.999)), st.integers(1, 3_000))
def test_the_average_weight_is_the_mean_and_below_its_bound(beta, horizon):
    average = muon.average_momentum_weight(beta, horizon)
    assert math.isclose(average, ref.average_weight(beta, horizon), rel_tol=1e-9)
    assert average <= muon.average_momentum_weight_bound(beta, horizon) * (1.0 + 1e-12)


def test_the_average_weight_past_a_chunk_and_past_settling():
    for beta, horizon in ((0.99997, 1_200_000), (0.9, 10**12)):
        terms = min(horizon, 2_000_000)
        part = ref.average_weight(beta, terms) * terms + (horizon - terms) * muon.momentum_weight(beta)
        assert math.isclose(muon.average_momentum_weight(beta, horizon), part / horizon, rel_tol=1e-10)


def test_the_bound_of_the_average_weight_is_nearly_met():
    area = integrate.quad(lambda x: math.sqrt(0.5 / math.tanh(0.5 * x)) - 1.0, 0.0, math.log(3.0))[0]
    ratio = muon.average_momentum_weight(1.0 - 1e-5, 109_861) / muon.average_momentum_weight_bound(
        1.0 - 1e-5, 109_861
    )
    assert 0.98 < ratio < 1.0
    assert area < 1.02


@st.composite
def runs(draw):
    return {
        "horizon": draw(st.integers(1, 500)),
        "learning_rate": draw(st.floats(1e-4, 1.0)),
        "momentum": draw(st.floats(0.0, 0.99)),
        "sigma": draw(st.floats(0.0, 5.0)),
        "clip_norm": draw(st.floats(0.01, 10.0)),
        "batch_size": draw(st.integers(1, 1000)),
        "rows": draw(st.integers(1, 50)),
        "columns": draw(st.integers(1, 50)),
        "initial_gap": draw(st.floats(0.0, 10.0)),
        "smoothness": draw(st.floats(0.0, 10.0)),
        "clipping_residual": draw(st.floats(0.0, 1.0)),
        "direction_error": draw(st.floats(0.0, 0.999)),
    }


@given(runs())
def test_the_stationarity_bound_is_that_of_the_theorem(run):
    rank, entries = min(run["rows"], run["columns"]), run["rows"] * run["columns"]
    variance = ref.batch_variance(run["clip_norm"], run["batch_size"], run["sigma"], entries)
    terms = {
        "start": run["initial_gap"] / (run["learning_rate"] * run["horizon"]),
        "curvature": 0.5 * run["smoothness"] * run["learning_rate"],
        "clipping": run["clipping_residual"],
        "noise": math.sqrt(rank * variance) * ref.average_weight(run["momentum"], run["horizon"]),
        "drift": run["smoothness"] * run["learning_rate"] * run["momentum"] / (1.0 - run["momentum"]),
    }
    error = run["direction_error"]
    bound = muon.stationarity_bound(**run)
    assert math.isclose(bound.total, muon_stationarity.printed_bound(terms, error), rel_tol=1e-9)
    assert math.isclose(bound.start, terms["start"], rel_tol=1e-12)
    # Below 1e-300 floats have fewer digits.
    assert math.isclose(bound.curvature, terms["curvature"], rel_tol=1e-12, abs_tol=1e-300)
    assert math.isclose(bound.quality * (1.0 - error), 1.0, rel_tol=1e-12)
    for name in ("clipping", "noise", "drift"):
        assert math.isclose(getattr(bound, name), (2.0 - error) * terms[name], rel_tol=1e-9, abs_tol=1e-300)


@given(st.floats(0.1, 10.0), st.floats(0.3, 6.0), st.integers(1, 9))
def test_clipping_residuals_bound_their_tails(scale, multiple, rank):
    bound = scale * multiple
    tail, _ = integrate.quad(
        muon_rates.heaviest_tail, bound, bound + 12.0 * scale, args=(scale,), epsabs=1e-14
    )
    light = muon.light_tail_clipping_residual(scale, bound, rank) / math.sqrt(rank)
    assert tail <= light * (1.0 + 1e-9)
    assert math.isclose(light, muon_rates.tail_bound(bound, scale), rel_tol=1e-12)
    heavy = muon.second_moment_clipping_residual(scale, bound, rank) / math.sqrt(rank)
    # Met by the law that puts mass (G / 2 C)^2 at 2 C, where that is a probability.
    mass = (scale / (2.0 * bound)) ** 2
    assert mass > 1.0 or math.isclose(heavy, mass * bound, rel_tol=1e-12)
    assert max(scale - bound, 0.0) <= heavy * (1.0 + 1e-12)


@given(st.integers(0, 12))
def test_series_of_the_heat_operator(order):
    expected = [muon_bias.heat_coefficient(j) for j in range(order + 1)]
    np.testing.assert_allclose(heat.heat_coefficients(order), expected, rtol=1e-14)
    wider = [2.0 * c - 2.0**j * c for j, c in enumerate(expected)]
    np.testing.assert_allclose(heat.corrected_coefficients(order), wider, rtol=1e-14, atol=0.0)


def cubic(matrix):
    return ref.iterated(matrix, 1, 1)


@given(matrices(largest=2), st.floats(0.0, 1.0))
def test_one_cubic_step_has_its_exact_bias(matrix, rho):
    point = matrix / max(1.0, np.linalg.norm(matrix))
    bias = heat.heat_average(cubic, point, rho, nodes=2) - cubic(point)
    np.testing.assert_allclose(bias, heat.cubic_bias(point, rho), atol=1e-12)
    np.testing.assert_allclose(heat.corrected_mean(cubic, point, rho, nodes=2), cubic(point), atol=1e-12)
    exact = -(sum(point.shape) + 1) * point
    np.testing.assert_allclose(heat.laplacian(cubic, point), exact, atol=1e-8)
    np.testing.assert_allclose(heat.laplacian(cubic, point, step=0.3, power=2), 0.0, atol=1e-9)


@pytest.mark.parametrize("norm", [3.0, 0.5])
def test_the_correction_removes_the_leading_bias(norm):
    apply = ref.muon_map(2, 2)
    point = norm * np.array([[0.8, -0.3], [0.2, 0.45]]) / np.linalg.norm([0.8, 0.3, 0.2, 0.45])
    first, second = (heat.laplacian(apply, point, step=step, power=p) for step, p in ((0.02, 1), (0.05, 2)))
    np.testing.assert_allclose(second, muon_bias.bilaplacian(apply, point, 0.02), rtol=2e-3, atol=1e-4)
    for rho in (0.02, 0.04):
        plain = heat.heat_average(apply, point, rho, nodes=10)
        np.testing.assert_allclose(plain, muon_bias.quadrature(apply, point, rho, 10), atol=1e-13)
        series = heat.heat_coefficients(2)[1:] * np.array([rho**2, rho**4])
        np.testing.assert_allclose(
            plain - apply(point), series[0] * first + series[1] * second, atol=1e3 * rho**6
        )
        bias = heat.corrected_mean(apply, point, rho, nodes=10) - apply(point)
        leading = heat.corrected_coefficients(2)[2] * rho**4 * second
        assert np.linalg.norm(bias - leading) < 40.0 * rho**2 * np.linalg.norm(leading)


def test_the_direction_averages_to_its_mean_within_the_probe_bound():
    rng = np.random.default_rng(12)
    point, rho, probes = 0.6 * rng.standard_normal((2, 2)), 0.3, 4
    apply = ref.muon_map(2, 3)
    smooth = heat.heat_average(apply, point, rho, nodes=20)
    errors, total = [], np.zeros((2, 2))
    draws = 3_000
    for _ in range(draws):
        direction = heat.corrected_direction(apply, point, rho, rng.standard_normal((probes, 2, 2)))
        errors.append(2.0 * apply(point) - direction - smooth)
        total += direction / draws
    deviation = np.std(errors, axis=0) / math.sqrt(draws)
    # Entry by entry 6.5 standard errors: false-positive rate below 4e-10 in all.
    assert np.all(np.abs(total - (2.0 * apply(point) - smooth)) < 6.5 * deviation + 1e-4)
    # A direction with the correction's sign turned would be far outside.
    assert np.any(np.abs(total - smooth) > 20.0 * deviation)
    assert np.mean(np.sum(np.square(errors), axis=(1, 2))) < heat.probe_error_bound(2, 2, probes)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_the_probe_bound(rows, columns, probes):
    assert heat.probe_error_bound(rows, columns, probes) == muon_bias.probe_bound(rows, columns, probes)
