"""What the analysis functions of the noise-share paper refuse."""

import numpy as np
import pytest

import dpmech as dm
from dpmech.analysis.noise_share import convergence as budgeted
from dpmech.analysis.noise_share import convergence as conv
from dpmech.analysis.noise_share import moments as first
from dpmech.analysis.noise_share import moments as scatter
from dpmech.analysis.noise_share import moments as share
from dpmech.analysis.noise_share import signal_ceiling as ceiling
from dpmech.exceptions import InvalidParameterError, NumericalError

NAN = float("nan")
GOOD_BUDGET = {
    "dataset_size": 1000,
    "batch_size": 10,
    "steps": 5,
    "clip_norm": 1.0,
    "step_size": 0.1,
    "strong_convexity": 0.5,
    "expected_smoothness": 1.0,
    "dimension": 3,
}


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("noise_multiplier", lambda: share.noise_variance(-1.0, 1.0, 1.0)),
        ("clip_norm", lambda: share.noise_variance(1.0, 0.0, 1.0)),
        ("batch_size", lambda: share.noise_variance(1.0, 1.0, 0.0)),
        ("phi", lambda: share.noise_share(0.0, 1.0)),
        ("phi", lambda: share.noise_share(NAN, 1.0)),
        ("signal_second_moment", lambda: share.noise_share(1.0, -1.0)),
        ("measured_second_moment", lambda: share.share_of_measured(1.0, 0.0)),
        ("phi", lambda: share.share_of_measured(0.0, 1.0)),
        ("rho", lambda: share.noise_to_signal(1.0)),
        ("rho", lambda: share.step_correction([0.5, 1.0])),
        ("rho", lambda: share.step_correction(1.5)),
        ("ratio", lambda: share.step_change(-0.1)),
        ("ratio", lambda: share.materiality_bounds("1")),
        ("rho", lambda: share.noise_share_slope(1.1)),
        ("beta2", lambda: scatter.effective_samples(1.0, 3)),
        ("step", lambda: scatter.effective_samples(0.9, 0)),
        ("step", lambda: scatter.second_moment_scatter(0.9, 1.5)),
        ("beta2", lambda: scatter.median_factor(-0.1, 3)),
        ("median", lambda: scatter.debiased_noise_share(1.0, 0.0, beta2=0.9, step=3)),
        ("phi", lambda: scatter.debiased_noise_share(0.0, 1.0, beta2=0.9, step=3)),
        ("phi", lambda: scatter.clamp_fraction(0.0, 1.0, 0.0, beta2=0.9, step=3)),
        ("signal_second_moment", lambda: scatter.clamp_fraction(1.0, -1.0, 0.0, beta2=0.9, step=3)),
        ("floor", lambda: scatter.clamp_fraction(1.0, 1.0, -1.0, beta2=0.9, step=3)),
        ("phi", lambda: scatter.correction_outlook([1.0], 1.0, beta2=0.9, step=3, floor=0.0)),
        (
            "min_change",
            lambda: scatter.correction_outlook(1.0, 1.0, beta2=0.9, step=3, floor=0.0, min_change=0.0),
        ),
        (
            "max_clamped",
            lambda: scatter.correction_outlook(1.0, 1.0, beta2=0.9, step=3, floor=0.0, max_clamped=2),
        ),
        ("beta", lambda: first.average_weights(1.0, 3)),
        ("step", lambda: first.average_weights(0.9, 0)),
        ("beta", lambda: first.average_variance(-0.5, 3)),
        ("phi", lambda: first.average_variance(0.5, 3, -1.0)),
        ("step", lambda: first.average_variance(0.5, True)),
        ("lag", lambda: first.average_autocovariance(0.5, -1)),
        ("phi", lambda: first.average_autocovariance(0.5, 1, NAN)),
        ("strategy", lambda: first.correlated_average_variances(np.eye(3), 0.9)),
        ("beta", lambda: first.correlated_average_variances(dm.Identity(3), 1.0)),
        ("strategy", lambda: first.matched_step_variances(0.9)),
        ("participation", lambda: first.matched_step_variances(dm.Identity(3), "single")),
        ("learning_rate", lambda: first.effective_learning_rate(0.0, 1.0)),
        ("phi", lambda: first.effective_learning_rate(0.1, -1.0)),
        ("adam_eps", lambda: first.effective_learning_rate(0.1, 1.0, 0.0)),
        ("phi", lambda: first.preconditioner_deviation_bound(0.0, 1.0)),
        ("signal_second_moment", lambda: first.preconditioner_deviation_bound(1.0, -1.0)),
        ("adam_eps", lambda: first.preconditioner_deviation_bound(1.0, 1.0, -1.0)),
        ("signal_to_noise", lambda: first.preconditioner_spread(0.9, 3, -1.0)),
    ],
)
def test_moments_refuse(name, call):
    with pytest.raises(InvalidParameterError) as caught:
        call()
    assert caught.value.name == name


def floor(**changes):
    arguments = {"expected_smoothness": 1.0, "dimension": 3, "phi": 0.1} | changes
    return conv.sgd_floor(
        arguments.pop("step_size", 0.1), arguments.pop("strong_convexity", 0.5), **arguments
    )


def distance(**changes):
    arguments = {"step_size": 0.1, "strong_convexity": 0.5, "expected_smoothness": 1.0} | changes
    return conv.sgd_distance_bound(
        arguments.pop("steps", 3), arguments.pop("initial", 1.0), conv.Floor(0.1, 0.2), **arguments
    )


def stationarity(**changes):
    arguments = {"steps": 3, "initial_gap": 1.0, "dimension": 2, "phi": 0.1} | changes
    return conv.stationarity_bound(
        arguments.pop("step_size", 0.1), arguments.pop("smoothness", 2.0), **arguments
    )


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("smoothness", lambda: conv.expected_smoothness_bound(0.0, 1.0, batch_size=2, dataset_size=9)),
        (
            "example_smoothness",
            lambda: conv.expected_smoothness_bound(2.0, 1.0, batch_size=2, dataset_size=9),
        ),
        ("batch_size", lambda: conv.expected_smoothness_bound(1.0, 1.0, batch_size=10, dataset_size=9)),
        ("dataset_size", lambda: conv.expected_smoothness_bound(1.0, 1.0, batch_size=1, dataset_size=0)),
        ("features", lambda: conv.least_squares_smoothness([1.0, 2.0], batch_size=1)),
        ("features", lambda: conv.least_squares_smoothness([[1.0, 2.0], [2.0, 4.0]], batch_size=1)),
        ("batch_size", lambda: conv.least_squares_smoothness(np.eye(2), batch_size=0)),
        ("gradients", lambda: conv.subsampling_variance([[1.0], [1.0]], batch_size=1)),
        ("gradients", lambda: conv.subsampling_variance([1.0], batch_size=1)),
        ("gradients", lambda: conv.subsampling_variance([[1e-9], [-0.9e-9]], batch_size=1)),
        ("gradients", lambda: conv.subsampling_variance([[1.0], [-1.0 + 3e-6]], batch_size=1)),
        ("batch_size", lambda: conv.subsampling_variance([[1.0], [-1.0]], batch_size=3)),
        ("step_size", lambda: conv.contraction(0.51, 0.5, expected_smoothness=1.0)),
        ("step_size", lambda: conv.contraction(0.0, 0.5, expected_smoothness=1.0)),
        ("step_size", lambda: conv.contraction(0.3, 0.5, expected_smoothness=2.0)),
        ("strong_convexity", lambda: conv.contraction(0.1, 1.5, expected_smoothness=1.0)),
        ("expected_smoothness", lambda: conv.contraction(0.1, 1.5, expected_smoothness=0.0)),
        ("step_size", lambda: floor(step_size=0.6)),
        ("strong_convexity", lambda: floor(strong_convexity=0.0)),
        ("dimension", lambda: floor(dimension=0)),
        ("phi", lambda: floor(phi=-1.0)),
        ("sampling_variance", lambda: floor(sampling_variance=-1.0)),
        ("steps", lambda: distance(steps=-1)),
        ("initial_distance_squared", lambda: distance(initial=-1.0)),
        ("step_size", lambda: distance(step_size=0.6)),
        ("curvature", lambda: conv.quadratic_floor(0.1, 0.0, dimension=1, phi=1.0)),
        ("step_size", lambda: conv.quadratic_floor(1.0, 2.0, dimension=1, phi=1.0)),
        ("dimension", lambda: conv.quadratic_floor(0.1, 1.0, dimension=0, phi=1.0)),
        ("phi", lambda: conv.quadratic_floor(0.1, 1.0, dimension=1, phi=-1.0)),
        ("smoothness", lambda: stationarity(smoothness=0.0)),
        ("step_size", lambda: stationarity(step_size=0.51)),
        ("steps", lambda: stationarity(steps=0)),
        ("initial_gap", lambda: stationarity(initial_gap=-1.0)),
        ("dimension", lambda: stationarity(dimension=0)),
        ("phi", lambda: stationarity(phi=-1.0)),
        ("gradient_variance", lambda: stationarity(gradient_variance=-1.0)),
        ("dataset_size", lambda: budgeted.floor_at_budget(1.0, 1e-5, **(GOOD_BUDGET | {"dataset_size": 1}))),
        ("batch_size", lambda: budgeted.floor_at_budget(1.0, 1e-5, **(GOOD_BUDGET | {"batch_size": 1000}))),
        ("steps", lambda: budgeted.floor_at_budget(1.0, 1e-5, **(GOOD_BUDGET | {"steps": 0}))),
        ("clip_norm", lambda: budgeted.floor_at_budget(1.0, 1e-5, **(GOOD_BUDGET | {"clip_norm": 0.0}))),
        ("dimension", lambda: budgeted.floor_at_budget(1.0, 1e-5, **(GOOD_BUDGET | {"dimension": 0}))),
        ("eps", lambda: budgeted.floor_at_budget(0.0, 1e-5, **GOOD_BUDGET)),
    ],
)
def test_convergence_refuses(name, call):
    with pytest.raises(InvalidParameterError) as caught:
        call()
    assert caught.value.name == name


ERROR = {"bias_squared": 1.0, "variance": 1.0}


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("lam", lambda: ceiling.column_norm(1.0, 3)),
        ("steps", lambda: ceiling.column_norm(0.5, 0)),
        ("lam", lambda: ceiling.secret_start_norm(-0.1, 3)),
        ("steps", lambda: ceiling.secret_start_norm(0.5, 2.5)),
        ("steps", lambda: ceiling.integrated_variance(0.5, 0)),
        ("lam", lambda: ceiling.integrated_variance(NAN, 3)),
        ("prefix", lambda: ceiling.prefix_variance_ratio(0.5, 3, prefix=4)),
        ("steps", lambda: ceiling.prefix_variance_ratio(0.5, 0)),
        ("lam", lambda: ceiling.prefix_variance_ratio(1.0, 3)),
        ("weights", lambda: ceiling.weighted_variance_ratio(0.5, [0.0, 0.0])),
        ("weights", lambda: ceiling.weighted_variance_ratio(0.5, [])),
        ("lam", lambda: ceiling.weighted_variance_ratio(1.0, [1.0])),
        ("lam", lambda: ceiling.average_variance_ratio(1.0, 0.9)),
        ("beta", lambda: ceiling.average_variance_ratio(0.5, 1.0)),
        ("beta", lambda: ceiling.best_correlation(1.0)),
        ("slope", lambda: ceiling.loss_bound(-1.0, 1.0, **ERROR)),
        ("curvature", lambda: ceiling.loss_bound(1.0, -1.0, **ERROR)),
        ("bias_squared", lambda: ceiling.loss_bound(1.0, 1.0, bias_squared=-1.0, variance=1.0)),
        ("variance", lambda: ceiling.loss_bound(1.0, 1.0, bias_squared=1.0, variance=-1.0)),
        ("theta", lambda: ceiling.gain_bound(1.0, 1.0, theta=1.1, **ERROR)),
        ("slope", lambda: ceiling.relative_gain_bound(0.0, 1.0, bias_floor=1.0, theta=0.5, **ERROR)),
        ("bias_floor", lambda: ceiling.relative_gain_bound(1.0, 1.0, bias_floor=1.1, theta=0.5, **ERROR)),
        ("theta", lambda: ceiling.relative_gain_bound(1.0, 1.0, bias_floor=1.0, theta=-0.5, **ERROR)),
        ("theta", lambda: ceiling.relative_gain_bound(1.0, 1.0, bias_floor=1.0, theta=1.1, **ERROR)),
        ("smoothness", lambda: ceiling.descent_bound(0.1, 0.0, gradient_squared=1.0, error=1.0)),
        ("step_size", lambda: ceiling.descent_bound(1.1, 1.0, gradient_squared=1.0, error=1.0)),
        ("gradient_squared", lambda: ceiling.descent_bound(0.1, 1.0, gradient_squared=-1.0, error=1.0)),
        ("error", lambda: ceiling.descent_bound(0.1, 1.0, gradient_squared=1.0, error=-1.0)),
    ],
)
def test_the_ceiling_refuses(name, call):
    with pytest.raises(InvalidParameterError) as caught:
        call()
    assert caught.value.name == name


def test_overflow_is_an_error():
    with pytest.raises(NumericalError):
        share.noise_variance(1e200, 1e200, 1.0)
    with pytest.raises(NumericalError):
        stationarity(step_size=1e-200, initial_gap=1e200)


def test_arrays_broadcast_and_scalars_stay_scalars():
    assert share.noise_share([1.0, 3.0], [[1.0], [3.0]]).shape == (2, 2)
    assert np.ndim(share.noise_share(1.0, 1.0)) == 0
    assert float(share.noise_share(1.0, 0.0)) == 1.0
    assert scatter.clamp_fraction(1.0, [0.0, 1.0], 0.1, beta2=0.99, step=5).shape == (2,)


def test_degenerate_but_valid_arguments():
    assert share.noise_variance(0.0, 1.0, 1.0) == 0.0
    assert first.average_weights(0.0, 3).tolist() == [0.0, 0.0, 1.0]
    assert scatter.effective_samples(0.0, 9) == 1.0
    assert ceiling.column_norm(0.0, 7) == 1.0
    assert ceiling.secret_start_norm(0.0, 7) == 1.0
    assert conv.contraction(0.5, 1.0, expected_smoothness=1.0) == 0.5
    assert conv.contraction(1.0, 0.25, expected_smoothness=0.5) == 0.75
    assert distance(steps=0) == 1.0
    # The mean is 0 up to rounding, relative to the gradients.
    assert conv.subsampling_variance([[1e9], [-1e9 + 1.0]], batch_size=2) == 0.0
    assert conv.subsampling_variance([[1.0], [-1.0 + 1e-6]], batch_size=1) > 0.4


def test_the_ends_of_every_range_are_accepted():
    assert floor(dimension=1).noise == pytest.approx(0.1 * 0.1 / 0.5)
    assert floor(phi=0.0, strong_convexity=1.0, step_size=0.5).total == 0.0
    assert distance(initial=0.0) == pytest.approx(0.3 * (1.0 - 0.95**3))
    assert conv.quadratic_floor(1.0, 1.0, dimension=1, phi=0.3) == 0.3
    ends = stationarity(step_size=0.5, steps=1, initial_gap=0.0, dimension=1, phi=0.5, gradient_variance=0.0)
    assert ends == 0.5
    assert conv.expected_smoothness_bound(1.0, 1.0, batch_size=1, dataset_size=1) == 1.0
    assert ceiling.integrated_variance(0.5, 1) == 1.0
    assert ceiling.prefix_variance_ratio(0.5, 1, prefix=1) == 1.0
    assert ceiling.gain_bound(0.0, 0.0, bias_squared=0.0, variance=0.0, theta=1.0) == 0.0
    whole = ceiling.relative_gain_bound(1.0, 0.0, bias_floor=1.0, theta=0.0, **ERROR)
    assert whole == 1.0
    assert ceiling.descent_bound(1.0, 1.0, gradient_squared=0.0, error=0.0) == 0.0
    smallest = GOOD_BUDGET | {"dataset_size": 2, "batch_size": 1, "steps": 1, "dimension": 1}
    assert budgeted.floor_at_budget(1.0, 1e-5, **smallest).phi > 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: ceiling.loss_bound(1.0, 1.0, bias_squared=1e200, variance=0.0),
        lambda: ceiling.gain_bound(1.0, 1e200, bias_squared=1e200, variance=1e200, theta=0.5),
        lambda: ceiling.relative_gain_bound(
            1e-200, 1e200, bias_floor=1.0, bias_squared=1.0, variance=1e200, theta=0.5
        ),
    ],
)
def test_bounds_beyond_floats_are_no_numbers(call):
    with pytest.raises(NumericalError, match="beyond the range"):
        call()


@pytest.mark.parametrize(
    "call", [ceiling.column_norm, ceiling.secret_start_norm, ceiling.integrated_variance]
)
def test_absurd_horizons_are_named(call):
    with pytest.raises(InvalidParameterError, match="steps"):
        call(0.5, 10**400)
