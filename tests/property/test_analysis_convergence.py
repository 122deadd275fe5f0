"""The DP-SGD floor and the budget behind it: the library against exact moments and another accountant."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpmech as dm
from dpmech.analysis.noise_share import convergence as budgeted
from dpmech.analysis.noise_share import convergence as conv
from tests.support import generators as gen
from verification.noise_share import floor as exact
from verification.oracles import noise_share as oracle


def setup(seed):
    features, targets, best = exact.problem(seed)
    examples = len(features)
    return {
        "features": features,
        "targets": targets,
        "gradients": features * (features @ best - targets)[:, None],
        "batch_size": exact.RATE * examples,
        "mu": float(np.linalg.eigvalsh(features.T @ features / examples)[0]),
    }


@given(st.integers(0, 10_000), gen.finite(0.05, 1.0))
def test_least_squares_constant_is_the_pencil(seed, rate):
    features, _, _ = exact.problem(seed)
    found = conv.least_squares_smoothness(features, batch_size=rate * len(features))
    assert math.isclose(found, exact.smoothness_matrix(features, rate), rel_tol=1e-9)
    spectrum = np.linalg.eigvalsh(features.T @ features / len(features))
    single = float(np.max(np.sum(features**2, axis=1)))
    bound = conv.expected_smoothness_bound(
        float(spectrum[-1]), single, batch_size=rate * len(features), dataset_size=len(features)
    )
    assert spectrum[-1] * (1 - 1e-9) <= found <= bound * (1 + 1e-9)
    size = rate * len(features)
    assert math.isclose(bound, spectrum[-1] + (1 - rate) * single / size, rel_tol=1e-12)


@pytest.mark.parametrize("dimension", [1, 3, 4])
def test_least_squares_constant_in_other_dimensions(dimension):
    features, _, _ = exact.problem(2, dimension=dimension)
    found = conv.least_squares_smoothness(features, batch_size=exact.RATE * len(features))
    assert math.isclose(found, exact.smoothness_matrix(features, exact.RATE), rel_tol=1e-9)


@pytest.mark.parametrize("rate", [0.15, exact.RATE, 1.0])
def test_subsampling_variance_is_that_of_all_samples(rate):
    gradients = setup(1)["gradients"]
    size = rate * len(gradients)
    total = sum(
        weight * float(np.sum((chosen @ gradients / size) ** 2))
        for chosen, weight in oracle.poisson_subsets(len(gradients), rate)
    )
    assert math.isclose(
        conv.subsampling_variance(gradients, batch_size=size), total, rel_tol=1e-9, abs_tol=1e-15
    )


@settings(max_examples=15)
@given(st.integers(0, 500), gen.finite(0.05, 0.5), gen.finite(0.0, 1.0))
def test_distances_stay_below_the_bound(seed, fraction, phi):
    case = setup(seed)
    constant = conv.least_squares_smoothness(case["features"], batch_size=case["batch_size"])
    step = fraction / constant
    arguments = {"step_size": step, "strong_convexity": case["mu"], "expected_smoothness": constant}
    sampling = conv.subsampling_variance(case["gradients"], batch_size=case["batch_size"])
    floor = conv.sgd_floor(
        step,
        case["mu"],
        expected_smoothness=constant,
        dimension=2,
        phi=phi,
        sampling_variance=sampling,
    )
    assert math.isclose(floor.noise, step * 2 * phi / case["mu"], rel_tol=1e-12)
    assert math.isclose(floor.subsampling, 2 * step * sampling / case["mu"], rel_tol=1e-12)
    true = exact.distances(case["features"], case["targets"], step, phi, 60)
    for steps in (0, 1, 7, 59):
        bound = conv.sgd_distance_bound(steps, true[0], floor, **arguments)
        assert true[steps] <= bound * (1 + 1e-9)
        left = (1 - step * case["mu"]) ** steps
        assert math.isclose(bound, left * true[0] + (1 - left) * floor.total, rel_tol=1e-12)
    assert math.isclose(
        conv.contraction(step, case["mu"], expected_smoothness=constant), 1 - step * case["mu"], rel_tol=1e-15
    )


@given(gen.finite(0.01, 1.9), gen.finite(0.1, 5.0), gen.finite(0.0, 2.0), st.integers(1, 50))
def test_quadratic_floor_is_the_fixed_point(product, curvature, phi, dimension):
    step = product / curvature
    stationary = conv.quadratic_floor(step, curvature, dimension=dimension, phi=phi)
    moved = (1 - step * curvature) ** 2 * stationary + step**2 * dimension * phi
    assert math.isclose(moved, stationary, rel_tol=1e-9, abs_tol=1e-15)


@pytest.mark.parametrize(("product", "ratio"), [(0.01, 0.2513), (0.25, 0.2857), (0.5, 0.3333)])
def test_the_papers_floor_is_up_to_four_times_the_true_one(product, ratio):
    true = conv.quadratic_floor(product, 1.0, dimension=3, phi=0.7)
    floor = conv.sgd_floor(product, 1.0, expected_smoothness=1.0, dimension=3, phi=0.7)
    assert abs(true / (2 * floor.noise) - ratio) < 1e-4
    assert true <= floor.total


@given(
    gen.finite(0.05, 1.0),
    gen.finite(0.1, 10.0),
    st.integers(1, 500),
    gen.finite(0.0, 2.0),
    gen.finite(0.0, 2.0),
)
def test_stationarity_bound_on_a_quadratic(product, smooth, steps, phi, spread):
    step = product / smooth
    second, total = 1.0, 0.0
    for _ in range(steps):
        total += smooth**2 * second
        second = (1 - product) ** 2 * second + step**2 * (spread + 3 * phi)
    bound = conv.stationarity_bound(
        step,
        smooth,
        steps=steps,
        initial_gap=0.5 * smooth,
        dimension=3,
        phi=phi,
        gradient_variance=spread,
    )
    assert total / steps <= bound * (1 + 1e-9)
    assert math.isclose(bound, smooth / (step * steps) + product * (spread + 3 * phi), rel_tol=1e-9)


ARGUMENTS = {
    "clip_norm": 0.1,
    "step_size": 0.1,
    "strong_convexity": 0.5,
    "expected_smoothness": 2.0,
    "dimension": 7,
    "sampling_variance": 0.3,
}


def test_floor_at_a_budget_uses_the_accountant():
    found = budgeted.floor_at_budget(3.0, 1e-5, dataset_size=42061, batch_size=512, steps=150, **ARGUMENTS)
    # A tight accountant asks for 0.6975 where Renyi accounting asks for 0.7589.
    assert abs(found.noise_multiplier - 0.6975) < 2e-3
    assert found.noise_multiplier < oracle.rdp_sigma(3.0, 1e-5, 512 / 42061, 150)
    assert math.isclose(found.phi, (found.noise_multiplier * 0.1 / 512) ** 2, rel_tol=1e-12)
    assert math.isclose(found.floor.noise, 0.1 * 7 * found.phi / 0.5, rel_tol=1e-12)
    assert math.isclose(found.floor.subsampling, 2 * 0.1 * 0.3 / 0.5, rel_tol=1e-12)
    fewer = {name: value for name, value in ARGUMENTS.items() if name != "sampling_variance"}
    found = budgeted.floor_at_budget(3.0, 1e-5, dataset_size=42061, batch_size=512, steps=150, **fewer)
    assert found.floor.subsampling == 0.0


@pytest.mark.slow
def test_at_fixed_epochs_noise_falls_between_the_inverse_and_its_square():
    sizes = (64, 512, 4096)
    values = [
        budgeted.floor_at_budget(
            1.0, 1e-5, dataset_size=42061, batch_size=size, steps=round(10 * 42061 / size), **ARGUMENTS
        ).phi
        for size in sizes
    ]
    slopes = np.diff(np.log(values)) / np.diff(np.log(sizes))
    assert np.all(slopes > -2.02)
    assert np.all(slopes < -0.98)
    assert np.all(np.diff(values) < 0)


def test_optimum_is_judged_relative_to_the_gradients():
    with pytest.raises(dm.InvalidParameterError, match="whose mean is 0"):
        conv.subsampling_variance([[1e6], [-1e6 + 20.0]], batch_size=1)


def test_gradients_have_no_variance_of_their_own_unless_said():
    given = {"steps": 10, "initial_gap": 1.0, "dimension": 3, "phi": 0.1}
    silent = conv.stationarity_bound(0.1, 2.0, **given)
    assert silent == conv.stationarity_bound(0.1, 2.0, gradient_variance=0.0, **given)
    assert silent < conv.stationarity_bound(0.1, 2.0, gradient_variance=1.0, **given)
