import math

import numpy as np
import pytest

from dpmech import InvalidParameterError
from dpmech.analysis.muon import newton_schulz
from dpmech.analysis.muon import newton_schulz as heat
from dpmech.analysis.muon import stationarity as muon
from dpmech.exceptions import NumericalError


def test_the_polynomials_of_low_degree():
    values = np.array([0.0, 0.3, 1.0])
    np.testing.assert_allclose(newton_schulz.polynomial(values, 1), 1.5 - 0.5 * values, rtol=1e-15)
    quadratic = 15 / 8 - 5 / 4 * values + 3 / 8 * values**2
    np.testing.assert_allclose(newton_schulz.polynomial(values, 2), quadratic, rtol=1e-15)
    at_zero = [float(newton_schulz.polynomial(0.0, degree)) for degree in range(1, 6)]
    assert at_zero == pytest.approx([1.5, 1.875, 2.1875, 2.4609375, 2.70703125], rel=1e-15)
    assert isinstance(newton_schulz.polynomial(0.5, 3), float)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, "x", [], True])
def test_the_polynomial_stays_in_the_unit_interval(bad):
    with pytest.raises(InvalidParameterError, match="values must be"):
        newton_schulz.polynomial(bad, 2)


@pytest.mark.parametrize("bad", [0, 65, 1.0, True, None])
def test_degrees_are_checked(bad):
    for function in (
        newton_schulz.polynomial_coefficients,
        lambda degree: newton_schulz.polynomial(0.5, degree),
        lambda degree: newton_schulz.newton_schulz(np.eye(2), degree=degree),
        lambda degree: newton_schulz.spectral_error(0.5, degree, 3),
    ):
        with pytest.raises(InvalidParameterError, match="degree must be"):
            function(bad)


@pytest.mark.parametrize("bad", [-1, 65, 2.0, True])
def test_step_counts_are_checked(bad):
    with pytest.raises(InvalidParameterError, match="steps must be"):
        newton_schulz.newton_schulz(np.eye(2), steps=bad)
    with pytest.raises(InvalidParameterError, match="steps must be"):
        newton_schulz.quality_factor(0.5, 2, bad)


def test_a_small_matrix_is_not_scaled_up_unless_asked():
    matrix = np.random.default_rng(46).standard_normal((4, 6))
    matrix *= 0.5 / np.linalg.norm(matrix)
    one, other = (newton_schulz.newton_schulz(matrix * scale) for scale in (1.0, 0.05))
    assert np.linalg.norm(one - other, 2) > 0.4
    pair = [newton_schulz.newton_schulz(matrix * scale, scale_up=True) for scale in (1.0, 0.05)]
    np.testing.assert_allclose(pair[0], pair[1], atol=1e-12)
    tiny = newton_schulz.newton_schulz(1e-6 * matrix, degree=1)
    np.testing.assert_allclose(tiny, 1.5**5 * 1e-6 * matrix, rtol=1e-6)


def test_the_defaults_are_five_steps_of_degree_two():
    matrix = np.diag([0.5, 0.1])
    value = np.diag(matrix)
    for _ in range(5):
        value = value * (15 / 8 - 5 / 4 * value**2 + 3 / 8 * value**4)
    np.testing.assert_allclose(newton_schulz.newton_schulz(matrix), np.diag(value), rtol=1e-14, atol=1e-15)


def test_zero_stays_zero():
    for scale_up in (False, True):
        output = newton_schulz.newton_schulz(np.zeros((2, 3, 2)), scale_up=scale_up)
        assert output.shape == (2, 3, 2)
        assert not np.any(output)
    assert not np.any(newton_schulz.polar_factor(np.zeros((2, 3))))
    for function in (
        newton_schulz.smallest_start_value,
        lambda matrix: newton_schulz.nuclear_error(matrix, matrix),
    ):
        with pytest.raises(InvalidParameterError, match="a matrix that is not zero"):
            function(np.zeros((2, 3)))


def test_a_full_turn_of_the_polar_factor():
    matrix = np.array([[0.0, -2.0], [3.0, 0.0]])
    np.testing.assert_allclose(newton_schulz.polar_factor(matrix), [[0.0, -1.0], [1.0, 0.0]], atol=1e-15)
    np.testing.assert_allclose(
        newton_schulz.newton_schulz(matrix, steps=12), [[0.0, -1.0], [1.0, 0.0]], atol=1e-14
    )
    assert newton_schulz.nuclear_error(matrix, newton_schulz.polar_factor(matrix)) == pytest.approx(
        0.0, abs=1e-15
    )
    assert newton_schulz.smallest_start_value([[1.0 + 1e-16]]) == 1.0


@pytest.mark.parametrize("bad", [1.0, [1.0], [], [["a"]], [[math.inf]], np.zeros((2, 0)), [[1j]]])
def test_what_is_no_matrix_is_refused(bad):
    for function in (
        newton_schulz.newton_schulz,
        newton_schulz.polar_factor,
        newton_schulz.smallest_start_value,
        lambda matrix: newton_schulz.nuclear_error(matrix, np.eye(2)),
        lambda matrix: heat.cubic_bias(matrix, 1.0),
    ):
        with pytest.raises(InvalidParameterError, match="matrix must be"):
            function(bad)
    with pytest.raises(InvalidParameterError, match="output must be"):
        newton_schulz.nuclear_error(np.eye(2), np.eye(3))


def test_norms_that_overflow_are_an_error():
    with np.errstate(over="ignore"), pytest.raises(NumericalError, match="Frobenius norm"):
        newton_schulz.newton_schulz(np.full((2, 2), 1e300))


def test_quality_at_its_ends():
    assert newton_schulz.spectral_error(1.0, 2, 0) == 0.0
    assert newton_schulz.quality_factor(1.0, 2, 5) == 1.0
    assert newton_schulz.spectral_error(1e-200, 2, 5) == 1.0
    with pytest.raises(NumericalError, match="chi_q left the range"):
        newton_schulz.quality_factor(1e-200, 2, 5)
    assert newton_schulz.spectral_error(0.6, 1, 0) == pytest.approx(0.4, rel=1e-14)
    assert newton_schulz.quality_factor([0.6, 0.8], 1, 0).tolist() == pytest.approx([1 / 0.6, 1 / 0.8])
    for bad in (0.0, 1.1, -0.5, math.nan):
        with pytest.raises(InvalidParameterError, match="start_value must be"):
            newton_schulz.spectral_error(bad, 2, 5)


def test_momentum_weights_at_their_ends():
    assert muon.momentum_weight(0.0, 5) == 1.0
    assert muon.momentum_weight(0.0) == 1.0
    assert muon.momentum_weight(0.9, 1) == pytest.approx(1.0, rel=1e-14)
    assert muon.momentum_weight(0.5, 2) == pytest.approx(math.sqrt(5.0) / 3.0, rel=1e-15)
    assert muon.momentum_noise(0.3, 0.9, 7) ** 2 == pytest.approx(0.013422, abs=1e-6)
    assert muon.momentum_noise(2.0, 0.95) == pytest.approx(2.0 / math.sqrt(39.0), rel=1e-14)
    assert muon.average_momentum_weight(0.7, 1) == pytest.approx(1.0, rel=1e-14)


def test_a_horizon_that_never_settles_is_refused():
    with pytest.raises(InvalidParameterError, match="horizon must be at most"):
        muon.average_momentum_weight(1.0 - 1e-9, 10**10)
    with pytest.raises(InvalidParameterError, match="at most 200000000 at"):
        muon.average_momentum_weight(1.0 - 40.0 / 3e8, 10**10)
    assert muon.average_momentum_weight_bound(1.0 - 1e-9, 10**10) == pytest.approx(3.486e-5, rel=1e-3)


@pytest.mark.parametrize("bad", [-0.1, 1.0, math.nan, "x", True])
def test_momenta_are_checked(bad):
    for function in (
        muon.momentum_weight,
        lambda beta: muon.momentum_noise(1.0, beta),
        lambda beta: muon.average_momentum_weight(beta, 3),
        lambda beta: muon.average_momentum_weight_bound(beta, 3),
    ):
        with pytest.raises(InvalidParameterError, match="momentum must be"):
            function(bad)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: muon.momentum_weight(0.5, 0), "updates"),
        (lambda: muon.momentum_noise(-1.0, 0.5), "entry_noise"),
        (lambda: muon.average_momentum_weight(0.5, 0), "horizon"),
        (lambda: muon.average_momentum_weight_bound(0.5, 0), "horizon"),
        (lambda: muon.batch_noise(-1.0, 1.0, 1, rows=1, columns=1), "sigma"),
        (lambda: muon.batch_noise(1.0, 0.0, 1, rows=1, columns=1), "clip_norm"),
        (lambda: muon.batch_noise(1.0, 1.0, 0, rows=1, columns=1), "batch_size"),
        (lambda: muon.batch_noise(1.0, 1.0, 1, rows=0, columns=1), "rows"),
        (lambda: muon.batch_noise(1.0, 1.0, 1, rows=1, columns=0), "columns"),
        (lambda: muon.light_tail_clipping_residual(0.0, 1.0, 1), "tail_scale"),
        (lambda: muon.light_tail_clipping_residual(1.0, 0.0, 1), "clip_norm"),
        (lambda: muon.light_tail_clipping_residual(1.0, 1.0, 0), "rank"),
        (lambda: muon.second_moment_clipping_residual(0.0, 1.0, 1), "root_mean_square"),
        (lambda: heat.heat_coefficients(-1), "order"),
        (lambda: heat.corrected_coefficients(81), "order"),
        (lambda: heat.cubic_bias(np.eye(2), -1.0), "scale"),
        (lambda: heat.probe_error_bound(0, 1, 1), "rows"),
        (lambda: heat.probe_error_bound(1, 0, 1), "columns"),
        (lambda: heat.probe_error_bound(1, 1, 0), "probes"),
        (lambda: heat.laplacian(np.square, np.eye(2), step=0.0), "step"),
        (lambda: heat.laplacian(np.square, np.eye(2), power=3), "power"),
        (lambda: heat.laplacian(np.square, np.ones((3, 11)), power=2), "point"),
        (lambda: heat.laplacian(np.square, np.ones((1, 257))), "point"),
        (lambda: heat.heat_average(np.square, np.eye(2), -1.0, nodes=3), "scale"),
        (lambda: heat.heat_average(np.square, np.eye(2), 1.0, nodes=0), "nodes"),
        (lambda: heat.heat_average(np.square, np.eye(3), 1.0, nodes=9), "nodes"),
        (lambda: heat.heat_average(np.square, np.eye(1), 1.0, nodes=65), "nodes"),
        (lambda: heat.heat_average(np.square, np.ones((2, 11)), 1.0, nodes=2), "nodes"),
        (lambda: heat.corrected_direction(np.square, np.eye(2), 1.0, np.eye(2)), "probes"),
        (lambda: heat.corrected_direction(np.square, np.eye(2), -1.0, np.ones((1, 2, 2))), "scale"),
    ],
)
def test_arguments_are_checked(call, name):
    with pytest.raises(InvalidParameterError, match=f"{name} must be"):
        call()


RUN = {
    "horizon": 10,
    "learning_rate": 0.1,
    "momentum": 0.5,
    "sigma": 1.0,
    "clip_norm": 1.0,
    "batch_size": 4,
    "rows": 2,
    "columns": 3,
    "initial_gap": 1.0,
    "smoothness": 1.0,
    "clipping_residual": 0.0,
}


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("horizon", 0),
        ("learning_rate", 0.0),
        ("momentum", 1.0),
        ("sigma", -1.0),
        ("clip_norm", 0.0),
        ("batch_size", 0.0),
        ("rows", 0),
        ("columns", 2.5),
        ("initial_gap", -1.0),
        ("smoothness", -1.0),
        ("clipping_residual", -1.0),
        ("direction_error", 1.0),
    ],
)
def test_the_stationarity_bound_checks_its_arguments(name, bad):
    with pytest.raises(InvalidParameterError, match=f"{name} must be"):
        muon.stationarity_bound(**(RUN | {name: bad}))


def test_the_stationarity_bound_is_met_by_one_step_of_one_weight():
    # f = w^2 / 2 at w = 2, one exact step of length 2: the mean gradient norm is 2.
    quiet = RUN | {"horizon": 1, "learning_rate": 2.0, "momentum": 0.0, "initial_gap": 2.0, "sigma": 0.0}
    quiet |= {"rows": 1, "columns": 1, "clip_norm": 1e-12}
    assert muon.stationarity_bound(**quiet).total == pytest.approx(2.0, rel=1e-11)


def test_at_a_fixed_budget_the_bound_grows():
    def bound(horizon, sigma):
        gap = horizon ** (-2.0 / 3.0)
        clip = horizon ** (1.0 / 6.0)
        run = RUN | {"horizon": horizon, "learning_rate": horizon ** (-5.0 / 6.0), "momentum": 1.0 - gap}
        residual = muon.second_moment_clipping_residual(1.0, clip, 2)
        return muon.stationarity_bound(
            **(run | {"clip_norm": clip, "sigma": sigma, "clipping_residual": residual})
        ).total

    assert bound(10**6, 1.0) < 0.8 * bound(10**5, 1.0)
    assert bound(10**6, 1e3) > 1.5 * bound(10**5, math.sqrt(1e5))


def test_the_laplacian_of_monomials():
    point = np.array([[1.0, -2.0, 0.5]])
    np.testing.assert_allclose(heat.laplacian(lambda x: x**3, point), 6.0 * point, atol=1e-9)
    fourth = heat.laplacian(lambda x: x**5, point, step=0.1, power=2)
    np.testing.assert_allclose(fourth, 120.0 * point, atol=1e-8)
    # One entry alone: a Laplacian over one axis, then over all.
    mixed = heat.laplacian(lambda x: x * np.sum(x**2, axis=(-2, -1), keepdims=True), point)
    np.testing.assert_allclose(mixed, 10.0 * point, atol=1e-9)


def test_the_laplacian_at_its_limits():
    point = np.linspace(-2.0, 2.0, 256).reshape(16, 16)
    np.testing.assert_allclose(heat.laplacian(np.sin, point), -np.sin(point), atol=1e-9)
    np.testing.assert_array_equal(heat.laplacian(np.exp, point), heat.laplacian(np.exp, point, step=0.01))
    square = heat.laplacian(np.sin, point[:2], step=0.1, power=2)
    np.testing.assert_allclose(square, np.sin(point[:2]), atol=2e-5)


def test_fractions_of_a_batch_are_a_batch():
    # C^2 / B + d sigma^2 C^2 / B^2 at C = 2, B = 1/4, d = 6, sigma = 1.
    assert muon.batch_noise(1.0, 2.0, 0.25, rows=2, columns=3) == pytest.approx(math.sqrt(16.0 + 384.0))


def test_quadrature_is_exact_on_polynomials():
    point = np.array([[0.3], [-1.0]])
    average = heat.heat_average(lambda x: x**4, point, 0.7, nodes=3)
    np.testing.assert_allclose(average, point**4 + 6 * point**2 * 0.49 + 3 * 0.49**2, rtol=1e-13)
    np.testing.assert_allclose(heat.heat_average(np.exp, point, 0.0, nodes=2), np.exp(point), rtol=1e-14)
    # More nodes than one chunk holds.
    many = heat.heat_average(lambda x: x**2, np.zeros((1, 3)), 1.0, nodes=40)
    np.testing.assert_allclose(many, 1.0, rtol=1e-12)
    np.testing.assert_allclose(heat.heat_average(lambda x: x, np.ones((9, 9)), 1.0, nodes=1), 1.0)
    # Two million evaluations, half of what is accepted.
    most = heat.heat_average(lambda x: x**2, np.ones((3, 7)), 1.0, nodes=2)
    np.testing.assert_allclose(most, 2.0, rtol=1e-9)


def test_maps_that_are_not_finite_are_an_error():
    with np.errstate(divide="ignore", invalid="ignore"):
        for call in (
            lambda: heat.laplacian(np.log, np.zeros((1, 1))),
            lambda: heat.heat_average(np.log, np.ones((1, 1)), 5.0, nodes=5),
            lambda: heat.corrected_direction(np.log, np.ones((1, 1)), 5.0, np.ones((2, 1, 1))),
        ):
            with pytest.raises(NumericalError, match="the map left the range"):
                call()


def test_the_corrected_direction_by_hand():
    point, probes = np.array([[2.0]]), np.array([[[1.0]], [[3.0]]])
    # x^2: 2 * 4 - mean(4 + 0.25, 4 + 2.25).
    assert heat.corrected_direction(np.square, point, 0.5, probes)[0, 0] == pytest.approx(8.0 - 5.25)
    np.testing.assert_allclose(heat.cubic_bias([[1.0, 2.0]], 0.5), [[-0.5, -1.0]])
