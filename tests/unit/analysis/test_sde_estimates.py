"""Constants of the SDEs from gradients that were drawn from the model, or follow from a quadratic."""

import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.analysis.sde.bounds import optimal_sgd_rate, rescale_rate
from dpmech.analysis.sde.dynamics import GradientNoise
from dpmech.analysis.sde.estimates import estimate_batch_noise, pl_constant_estimate, smoothness_estimate
from dpmech.analysis.spectral import steps_to_match
from dpmech.exceptions import InvalidParameterError, NumericalError, UnsupportedCombinationError


def drawn(nu, size, count=4000, scale=0.7, seed=3):
    """Gradients of examples: the mean 2, and a multivariate Student t in every direction alike."""
    rng = np.random.default_rng(seed)
    noise = scale * rng.standard_normal((count, size))
    if nu < math.inf:
        noise /= np.sqrt(rng.chisquare(nu, count) / nu)[:, None]
    return 2.0 + noise


@pytest.mark.parametrize("nu", [2.5, 4.0, 10.0])
@pytest.mark.parametrize("size", [4, 300])
def test_scale_and_tails_are_found(nu, size):
    """Both are asymptotically normal; the limits are six standard errors: a false alarm in 5e8 cases."""
    found = estimate_batch_noise(drawn(nu, size))
    again = [estimate_batch_noise(drawn(nu, size, seed=seed)) for seed in range(40)]
    for name, right in (("batch_noise", 0.7), ("degrees_of_freedom", nu)):
        values = np.array([getattr(one, name) for one in again])
        assert abs(getattr(found, name) - right) < 6.0 * values.std() + 0.02 * right
        assert abs(values.mean() - right) < 0.05 * right
        # A scale that is 30 % off, or twice the degrees, would be seen in the mean of 40.
        planted = (1.3 if name == "batch_noise" else 2.0) * right
        assert abs(values.mean() - planted) > 0.05 * right + 6.0 * values.std() / 40**0.5
    np.testing.assert_allclose(found.gradient, drawn(nu, size).mean(axis=0))


def test_gaussian_tails_have_many_degrees():
    found = estimate_batch_noise(drawn(math.inf, 500))
    assert found.degrees_of_freedom > 100.0
    assert found.batch_noise == pytest.approx(0.7, rel=0.01)
    assert estimate_batch_noise(np.eye(4)).degrees_of_freedom == math.inf  # norms alike: tails lighter still


def test_the_estimate_is_in_units_of_the_gradient():
    rows = drawn(3.0, 20, count=50)
    one, other = estimate_batch_noise(rows), estimate_batch_noise(1e-6 * rows)
    assert other.batch_noise == pytest.approx(1e-6 * one.batch_noise, rel=1e-9)
    assert other.degrees_of_freedom == pytest.approx(one.degrees_of_freedom, rel=1e-6)


@pytest.mark.parametrize("rows", [np.ones((5, 3)), np.ones((2, 3)), np.ones(3), [[math.nan, 1.0]]])
def test_gradients_that_say_nothing_are_refused(rows):
    with pytest.raises(InvalidParameterError, match="gradients"):
        estimate_batch_noise(rows)


def test_overflow_is_an_error():
    with pytest.raises(NumericalError):
        estimate_batch_noise([[1e200, 0.0], [-1e200, 0.0], [0.0, 1.0]])


def test_constants_of_a_quadratic():
    """f = x H x / 2: L and mu are the extreme eigenvalues, which gradients along eigenvectors show."""
    curvatures = np.array([0.5, 1.0, 4.0])
    rng = np.random.default_rng(1)
    points = np.concatenate([rng.normal(size=(30, 3)), [[0.0, 0.0, 1.0], [0.0, 0.0, 2.0], [3.0, 0.0, 0.0]]])
    gradients, losses = points * curvatures, 0.5 * (points**2) @ curvatures
    assert smoothness_estimate(points, gradients) == pytest.approx(4.0)
    assert smoothness_estimate(points[:30], gradients[:30]) < 4.0
    assert pl_constant_estimate(losses, gradients) == pytest.approx(0.5)
    assert pl_constant_estimate(losses[:30], gradients[:30]) > 0.5
    assert pl_constant_estimate(losses + 7.0, gradients, least_loss=7.0) == pytest.approx(0.5)
    assert pl_constant_estimate(losses, gradients, least_loss=-1.0) < 0.5


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("gradients", lambda: smoothness_estimate(np.eye(3), np.eye(2))),
        ("gradients", lambda: smoothness_estimate([[1.0]], [[1.0]])),
        ("points", lambda: smoothness_estimate([[1.0], [1.0]], [[1.0], [2.0]])),
        ("losses", lambda: pl_constant_estimate([1.0], np.eye(2))),
        ("losses", lambda: pl_constant_estimate([1.0, 0.0], np.eye(2))),
        ("least_loss", lambda: pl_constant_estimate([1.0, 2.0], np.eye(2), least_loss=math.nan)),
        ("curve", lambda: steps_to_match([[1.0]], 0.0)),
        ("target", lambda: steps_to_match([1.0], math.nan)),
        ("steps", lambda: steps_to_match([1.0, 2.0], 0.0, steps=[2, 2])),
        ("steps", lambda: steps_to_match([1.0, 2.0], 0.0, steps=[1])),
    ],
)
def test_bad_arguments_are_named(name, call):
    with pytest.raises(InvalidParameterError) as caught:
        call()
    assert caught.value.name == name


def noise(**changed):
    sizes = {
        "dimension": 100,
        "clip_norm": 1.0,
        "batch_size": 64,
        "batch_noise": 0.0,
        "noise_multiplier": 50.0,
    }
    return GradientNoise(**(sizes | changed))


def test_rates_follow_the_noise_of_sgd_alone():
    old, new = noise(), noise(noise_multiplier=100.0)
    assert rescale_rate(0.3, old, new, optimizer="sgd") == pytest.approx(0.15, rel=1e-3)
    assert rescale_rate(0.3, old, noise(batch_size=128), optimizer="sgd") == pytest.approx(0.6, rel=1e-3)
    both = (noise(batch_noise=1e3), noise(batch_noise=1e3, noise_multiplier=1.0))
    assert rescale_rate(0.3, *both, optimizer="sgd") == pytest.approx(0.3, rel=1e-2)
    rates = [optimal_sgd_rate(one, steps=70, smoothness=3.0, initial_loss=2.0) for one in (old, new)]
    assert rescale_rate(rates[0], old, new, optimizer="sgd") == pytest.approx(rates[1], rel=1e-12)
    for optimizer in ("sign", "adam"):
        assert rescale_rate(0.3, old, new, optimizer=optimizer) == 0.3
    with pytest.raises(InvalidParameterError, match="optimizer"):
        rescale_rate(0.3, old, new, optimizer="muon")
    with pytest.raises(InvalidParameterError, match="dimension 100"):
        rescale_rate(0.3, old, noise(dimension=3), optimizer="sgd")
    with pytest.raises(NumericalError):
        rescale_rate(1e-300, old, noise(noise_multiplier=1e150), optimizer="sgd")


def test_noise_of_a_calibration():
    sizes = {"dimension": 10, "clip_norm": 0.5, "batch_size": 20, "batch_noise": 0.1}
    cal = dm.calibrate_sigma(dm.Identity(50), 2.0, 1e-5, participation=dm.Poisson(0.02))
    found = GradientNoise.of(cal, **sizes)
    assert found == GradientNoise(noise_multiplier=cal.sigma, **sizes)
    assert found.privacy_variance == pytest.approx(cal.noise_variance(7, 0.5, 20), rel=1e-12)
    correlated = dm.calibrate_sigma(dm.SquareRoot(50, 4), 2.0, 1e-5)
    with pytest.raises(UnsupportedCombinationError, match="independent noise"):
        GradientNoise.of(correlated, **sizes)
    with pytest.raises(InvalidParameterError, match="claim"):
        GradientNoise.of(cal.sigma, **sizes)


def test_steps_to_match():
    curve = [41.1, 60.0, 58.0, 77.0]
    assert steps_to_match(curve, 59.0) == pytest.approx(1.0 + 17.9 / 18.9)
    assert steps_to_match(curve, 41.1) == 1.0
    assert steps_to_match(curve, 0.0, steps=[100, 200, 300, 400]) == 100.0
    assert steps_to_match(curve, 67.5, steps=[100, 200, 300, 400]) == 350.0
    assert steps_to_match(curve, 77.1) == math.inf


def test_savings_of_the_spectral_paper():
    """A printed cell of Table 1, QNLI: eps 6.7 after 400 steps of 2000 of 104,743 examples, 40.7 % faster."""
    sampling = dm.Poisson(2000 / 104_743)
    cal = dm.calibrate_sigma(dm.Identity(400), 6.7, 1e-5, participation=sampling)
    reached = 400 * (1.0 - 0.407)
    below = math.floor(reached)
    saved = [dm.ledgers.epsilon_saved(cal, one) for one in (below, below + 1)]
    assert saved[0] + (reached - below) * (saved[1] - saved[0]) == pytest.approx(1.17, abs=0.008)
    assert dm.ledgers.epsilon_saved(cal, 400) == 0.0
    assert dm.ledgers.epsilon_saved(cal, 0) == cal.achieved.upper
