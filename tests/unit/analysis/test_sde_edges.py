"""The SDE analysis at the papers' numbers, at its edges, and against sampled private gradients."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import special

from dpmech.analysis.sde.bounds import (
    LossBound,
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
from dpmech.exceptions import InvalidParameterError, NumericalError

# A normal average passes this with probability 6e-10.
STANDARD_ERRORS = 6.2


def noise_of(**changes):
    base = {
        "dimension": 5, "clip_norm": 1.0, "batch_size": 4, "batch_noise": 1.0, "noise_multiplier": 2.0,
    }  # fmt: skip
    return GradientNoise(**(base | changes))


class TestNumbersOfThePaper:
    @pytest.mark.parametrize(
        ("freedom", "expected"),
        [(1, 0.79788), (1.5, 0.85410), (2, 0.88623), (3, 0.92132), (4, 0.93999), (5, 0.95153), (10, 0.97535),
         (30, 0.99170), (100, 0.99750)],
    )  # fmt: skip
    def test_direction_factor(self, freedom, expected):
        assert direction_factor(freedom) == pytest.approx(expected, abs=5e-6)

    def test_direction_factor_of_a_gaussian_is_one(self):
        assert direction_factor(math.inf) == 1.0
        assert direction_factor(1e9) == pytest.approx(1 - 0.25e-9, abs=1e-15)
        assert direction_factor(299.999) == pytest.approx(direction_factor(300.001), rel=1e-8)

    @pytest.mark.parametrize(
        ("dimension", "norm", "expected"),
        [(100, 3, 0.286849), (1000, 10, 0.301461), (10_000, 10, 0.099501), (1000, 30, 0.688285)],
    )
    def test_mean_direction(self, dimension, norm, expected):
        assert direction_moments(norm, 1.0, dimension).gain * norm == pytest.approx(expected, abs=5e-7)

    def test_student_directions_of_the_registry(self):
        for freedom, expected in ((1, 0.05046), (3, 0.05827)):
            found = 2.0 * direction_moments(2.0, 1.0, 1000, degrees_of_freedom=freedom).gain
            assert found == pytest.approx(expected, rel=5e-3)

    def test_slope_of_the_clipped_sign(self):
        noise = noise_of(dimension=10_001, batch_size=1, noise_multiplier=1 / 64, clip_norm=0.7)
        assert sign_gain(noise, clipped=True) == pytest.approx(0.4301, abs=1e-4)
        finite = sign_gain(dataclasses.replace(noise, noise_multiplier=0.0), clipped=True)
        assert finite == pytest.approx(math.sqrt(2 / math.pi), rel=1e-4)

    def test_stationary_variances_of_figure_c3(self):
        noise = noise_of(dimension=2, clip_norm=5, batch_size=1, batch_noise=0.1, noise_multiplier=0.1)
        assert noise.total_variance == pytest.approx(0.26)
        assert sign_gain(noise) == pytest.approx(1.56478, abs=1e-5)
        found = sgd_moments(noise, curvatures=[2, 1], start=[0.01, 0.005], learning_rate=1e-3, time=3.0)
        np.testing.assert_allclose(found.variance, [6.50e-5, 1.297e-4], rtol=1e-3)
        found = sign_stationary_variance(noise, curvatures=[2, 1], learning_rate=1e-3)
        np.testing.assert_allclose(found, [1.595e-4, 3.193e-4], rtol=1e-3)

    def test_moments_of_the_linearised_sign(self):
        noise = noise_of(dimension=1, batch_size=1, noise_multiplier=0.0)
        start = 0.9 / (4 * sign_gain(noise))
        found = sign_moments(noise, curvatures=[4.0], start=[start], learning_rate=0.05, time=0.3)
        assert found.variance[0] == pytest.approx(0.004677, abs=1e-6)

    @pytest.mark.parametrize(
        ("batch", "expected", "equal"),
        [(48, 0.976, 0.0245), (56, 0.903, 0.0226), (64, 0.845, 0.0212), (72, 0.795, 0.0199),
         (80, 0.757, 0.0190)],
    )  # fmt: skip
    def test_critical_eps_of_figure_3(self, batch, expected, equal):
        arguments = {
            "dataset_size": 10_000, "steps": 100 * (10_000 // batch), "batch_size": batch, "batch_noise": 0.0,
            "sgd_clip": 0.5, "sign_clip": 0.5, "sign_rate": 0.1,
        }  # fmt: skip
        found = critical_epsilon(1e-5, sgd_rate=5.0, **arguments)
        assert found == pytest.approx(expected, abs=1e-3)
        # At equal rates the paper has 1 where pi/2 belongs.
        found = critical_epsilon(1e-5, sgd_rate=0.1, **arguments)
        assert found * math.sqrt(math.pi / 2) == pytest.approx(equal, abs=5e-5)

    def test_critical_multiplier_of_stack_overflow(self):
        rates = {"sgd_rate": 3.0, "sign_rate": 0.01, "sgd_clip": 0.25, "sign_clip": 0.5}
        assert critical_noise_multiplier(batch_size=64, batch_noise=0.0, **rates) == pytest.approx(
            2.139, abs=1e-3
        )
        found = critical_epsilon(
            1e-6, dataset_size=246_092, steps=192_250, batch_size=64, batch_noise=0.0, **rates
        )
        assert found == pytest.approx(0.198, abs=1e-3)

    def test_optimal_rates_and_what_they_reach(self):
        steps = 10**9
        label = 64 / 25_000 * math.sqrt(steps * math.log(1e5))
        noise = noise_of(dimension=10_000, clip_norm=0.5, batch_size=64, noise_multiplier=label)
        problem = {"steps": steps, "smoothness": 1.0, "initial_loss": 1.0}
        rate = optimal_sign_rate(dimension=10_000, **problem)
        assert rate == pytest.approx(4.472e-7, rel=1e-4)
        sign = sign_gradient_bound(noise, learning_rate=rate, **problem)
        assert sign == pytest.approx(2.4056, rel=1e-4)
        sgd = sgd_gradient_bound(noise, learning_rate=optimal_sgd_rate(noise, **problem), **problem)
        assert sgd == pytest.approx(961 * 0.5 * 100 / 25_000, rel=2e-3)
        assert sign / sgd == pytest.approx(math.sqrt(math.pi / 2), rel=2e-3)

    def test_the_label_is_no_certificate(self):
        assert scaling_law_epsilon(0.3, 1e-6, sampling_prob=64 / 246_092, steps=192_250) == pytest.approx(
            1.413, abs=6e-4
        )


class TestAgainstSampledGradients:
    """Averages of clipped Student and Gaussian gradients; a planted fault must be seen."""

    @pytest.mark.parametrize("freedom", [math.inf, 2.5])
    def test_moments_of_a_mixed_batch(self, freedom):
        rng = np.random.default_rng(11)
        noise = noise_of(noise_multiplier=0.3, degrees_of_freedom=freedom, clip_norm=1.5)
        gradient, share, count = np.array([1.0, -0.5, 0.0, 0.3, 2.0]), 0.6, 60_000
        draws = rng.standard_normal((count, 4, 5))
        clipped = rng.random((count, 4, 1)) < share
        wide = (
            np.ones((count, 4, 1))
            if math.isinf(freedom)
            else np.sqrt(freedom / rng.chisquare(freedom, (count, 4, 1)))
        )
        heavy = gradient + wide * draws
        heavy *= 1.5 / np.linalg.norm(heavy, axis=2, keepdims=True)
        private = np.where(clipped, heavy, gradient + draws).mean(axis=1)
        private += 0.3 * 1.5 / 4 * rng.standard_normal((count, 5))
        covariance = sgd_covariance(noise, gradient, clipped_share=share)
        mean = -sgd_drift(noise, gradient, clipped_share=share)

        def rejects(mean, covariance):
            errors = np.abs(private.mean(axis=0) - mean) / np.sqrt(np.diag(covariance) / count)
            found = np.cov(private.T)
            scale = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / count)
            return max(errors.max(), (np.abs(found - covariance) / scale).max()) > STANDARD_ERRORS

        assert not rejects(mean, covariance)
        assert rejects(1.02 * mean, covariance)
        assert rejects(mean, 1.08 * covariance)
        without = (
            covariance
            - share
            * (1 - share)
            * np.outer(
                gradient - clipped_gain(noise, gradient_norm=float(np.linalg.norm(gradient))) * gradient,
                gradient - clipped_gain(noise, gradient_norm=float(np.linalg.norm(gradient))) * gradient,
            )
            / 4
        )
        assert rejects(mean, without)

    def test_mean_sign_of_clipped_gradients(self):
        rng = np.random.default_rng(12)
        dimension, count, step = 1000, 400, 0.06
        noise = noise_of(dimension=dimension, batch_size=1, noise_multiplier=1 / 40)
        total = 0.0
        for _ in range(count // 100):
            draws = rng.standard_normal((100, dimension))
            for sign in (-1.0, 1.0):
                vectors = step + sign * draws
                vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
                total += float(special.erf(40 / math.sqrt(2.0) * vectors).mean())
        found = total / (2 * count // 100)
        formula = -float(sign_drift(noise, np.full(dimension, step), clipped_share=1.0)[0])
        assert found == pytest.approx(formula, rel=0.01)
        linear = math.sqrt(2 / math.pi / dimension) * 40 * step
        assert abs(found / linear - 1.0) > 0.3


class TestEdges:
    def test_a_vanishing_gradient(self):
        noise = noise_of()
        zero = np.zeros(5)
        for share in (0.0, 0.4, 1.0):
            assert np.all(sgd_drift(noise, zero, clipped_share=share) == 0.0)
            assert np.all(sign_drift(noise, zero, clipped_share=share) == 0.0)
            assert np.all(sign_variance(noise, zero, clipped_share=share) == 1.0)
            covariance = sgd_covariance(noise, zero, clipped_share=share)
            np.testing.assert_allclose(covariance, covariance[0, 0] * np.eye(5), atol=1e-15)

    def test_one_dimension(self):
        moments = direction_moments([0.0, 1.0, 30.0], 1.0, 1)
        expected = 2 * special.ndtr(1.0) - 1
        assert moments.gain[1] == pytest.approx(expected, rel=1e-12)
        assert moments.gain[2] * 30.0 == pytest.approx(1.0, rel=1e-12)
        np.testing.assert_array_equal(moments.along, 1.0)
        noise = noise_of(dimension=1, noise_multiplier=0.0)
        variance = sgd_covariance(noise, np.array([1.0]), clipped_share=1.0)[0, 0]
        assert variance == pytest.approx((1 - expected**2) / 4, rel=1e-10)

    def test_a_huge_dimension_and_huge_gradients(self):
        moments = direction_moments([0.0, 1e3, 1e8], 1.0, 10**8)
        expected = [1e-4, 1 / math.sqrt(1e8 + 1e6), 1 / math.sqrt(1e8 + 1e16)]
        np.testing.assert_allclose(moments.gain, expected, rtol=1e-6)
        assert np.all(moments.spread <= 1e-8)

    def test_numpy_numbers_and_many_replicas(self):
        norms = np.linspace(0.0, 3.0, 1300).reshape(13, 100)
        moments = direction_moments(norms, np.float64(1.0), np.int64(10))
        assert moments.gain.shape == (13, 100)
        for place in ((0, 0), (7, 3), (12, 99)):
            single = direction_moments(float(norms[place]), 1.0, 10)
            assert moments.gain[place] == pytest.approx(float(single.gain), rel=1e-12)
        assert isinstance(float(single.gain), float)

    def test_results_that_leave_float64(self):
        with pytest.raises(NumericalError, match="gradient_norm / scale"):
            direction_moments(1e200, 1e-200, 3)
        with pytest.raises(NumericalError, match="1 / scale"):
            direction_moments(0.0, 5e-324, 3)
        with pytest.raises(NumericalError, match="leaves the range"):
            noise_of(clip_norm=1e200)
        with pytest.raises(NumericalError, match="ratio of the two loss floors"):
            critical_noise_multiplier(
                batch_size=1, batch_noise=1.0, sgd_rate=1e-200, sign_rate=1.0, sgd_clip=1, sign_clip=1
            )
        with pytest.raises(NumericalError, match="at step 3"):
            euler_maruyama(
                lambda x: 1e80 * x, lambda x, _: 0.0 * x, [1.0], learning_rate=1.0, steps=9,
                rng=np.random.default_rng(1),
            )  # fmt: skip

    def test_no_crossing_of_the_floors(self):
        arguments = {"sgd_rate": 1.0, "sign_rate": 1.0, "sgd_clip": 1.0, "sign_clip": 1.0}
        just = math.sqrt(64 * math.pi / 2)
        assert critical_noise_multiplier(batch_size=64, batch_noise=1.0001 * just, **arguments) == 0.0
        assert critical_noise_multiplier(batch_size=64, batch_noise=100.0, **arguments) == 0.0
        assert critical_noise_multiplier(batch_size=64, batch_noise=0.9999 * just, **arguments) > 0.0
        assert (
            critical_epsilon(1e-5, dataset_size=1000, steps=10, batch_size=64, batch_noise=100.0, **arguments)
            == math.inf
        )
        # Two crossings: the larger one is returned.
        found = critical_noise_multiplier(
            batch_size=1, batch_noise=1.3, sgd_rate=1, sign_rate=1, sgd_clip=1, sign_clip=3
        )
        assert found > 0.0

    def test_nothing_is_clipped_unless_said(self):
        noise, gradient = noise_of(), np.array([0.3, -1.0, 0.0, 2.0, 0.1])
        for form in (sgd_drift, sgd_covariance, sign_drift, sign_variance):
            np.testing.assert_array_equal(form(noise, gradient), form(noise, gradient, clipped_share=0.0))
        assert private_gradient(noise, gradient).gain == 1.0
        for form in (sgd_diffusion, sign_diffusion):
            np.testing.assert_array_equal(
                form(noise, gradient, gradient), form(noise, gradient, gradient, clipped_share=0.0)
            )

    def test_limits_on_gradients_are_zero_unless_said(self):
        noise = noise_of()
        limits = {"gradient_norm": 0.0, "coordinate": 0.0}
        assert sign_gradient_bound(noise, **REAL) == sign_gradient_bound(noise, **REAL, **limits)
        assert sgd_gradient_bound(noise, **REAL) == sgd_gradient_bound(noise, **REAL, gradient_norm=0.0)
        assert sgd_gradient_bound(noise, **REAL) == sgd_gradient_bound(noise, **REAL, mixed=False)
        problem = {"learning_rate": 0.1, "pl_constant": 1.0, "smoothness": 1.0, "clipped": True}
        assert sgd_loss_bound(noise, **problem) == sgd_loss_bound(noise, **problem, gradient_norm=0.0)
        assert sign_loss_bound(noise, **problem) == sign_loss_bound(noise, **problem, **limits)
        assert sign_gain(noise, clipped=True) == sign_gain(noise, clipped=True, **limits)
        assert clipped_gain(noise) == clipped_gain(noise, gradient_norm=0.0)

    def test_the_whole_data_set_as_one_batch(self):
        assert scaling_law_epsilon(1.0, math.exp(-4), sampling_prob=1, steps=1) == pytest.approx(2.0)
        found = critical_epsilon(
            math.exp(-4), dataset_size=1, steps=1, batch_size=1, batch_noise=0.0, sgd_rate=1, sign_rate=1,
            sgd_clip=1, sign_clip=1,
        )  # fmt: skip
        assert found == pytest.approx(2.0 / math.sqrt(math.pi / 2))

    def test_how_far_the_linearised_sign_may_start(self):
        noise = noise_of(dimension=1)
        limit = 1.0 / sign_gain(noise)
        problem = {"curvatures": [1.0], "learning_rate": 0.1, "time": 1.0}
        sign_moments(noise, start=[-0.999 * limit], **problem)
        with pytest.raises(InvalidParameterError, match="at most 1 / "):
            sign_moments(noise, start=[-1.001 * limit], **problem)

    def test_loss_bound_over_time(self):
        bound = LossBound(rate=2.0, floor=0.25)
        assert bound.at(3.0, 0.0) == 3.0
        assert bound.at(0.0, 100.0) == 0.25
        assert bound.at(3.0, 0.5) == pytest.approx(3 * math.exp(-1) + 0.25 * (1 - math.exp(-1)))

    def test_observed_paths(self):
        rng = np.random.default_rng(2)
        paths = euler_maruyama(
            lambda x: -x, lambda x, _: 0.0 * x, [[2.0, 4.0]], learning_rate=0.5, steps=3, rng=rng,
            observe=lambda x: x[0],
        )  # fmt: skip
        np.testing.assert_array_equal(paths, [[2, 4], [1, 2], [0.5, 1], [0.25, 0.5]])


REAL = {"learning_rate": 0.1, "steps": 10, "smoothness": 1.0, "initial_loss": 1.0}


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: noise_of(dimension=0), "dimension must be an integer >= 1, got 0"),
        (lambda: noise_of(clip_norm=0.0), "clip_norm"),
        (lambda: noise_of(batch_size=0.5), "batch_size"),
        (lambda: noise_of(batch_noise=-1.0), "batch_noise"),
        (lambda: noise_of(noise_multiplier=math.nan), "noise_multiplier"),
        (lambda: noise_of(degrees_of_freedom=0.0), "a positive number or math.inf"),
        (lambda: noise_of(degrees_of_freedom="3"), "a positive number or math.inf"),
        (lambda: direction_factor(-math.inf), "a positive number or math.inf"),
        (lambda: direction_moments(-1.0, 1.0, 3), "gradient_norm"),
        (lambda: direction_moments(1.0, 0.0, 3), "scale"),
        (lambda: direction_moments(1.0, 1.0, 2.5), "dimension"),
        (lambda: sgd_drift(noise_of(), [1.0, 2.0]), r"an array of shape \(\.\.\., 5\)"),
        (lambda: sgd_drift(noise_of(), 1.0), "gradient"),
        (lambda: sgd_drift(noise_of(), [math.inf] * 5), "gradient"),
        (lambda: private_gradient(noise_of(), np.ones(5), clipped_share=1.5), "clipped_share"),
        (lambda: sgd_diffusion(noise_of(), np.ones(5), np.ones(4)), "normals"),
        (lambda: sign_diffusion(noise_of(), np.ones(5), np.ones((2, 5))), "normals"),
        (
            lambda: sgd_drift(noise_of(batch_noise=0.0), np.ones(5), clipped_share=0.1),
            "batch_noise .* got 0.0",
        ),
        (lambda: sign_drift(noise_of(batch_noise=0, noise_multiplier=0), np.ones(5)), "does not vanish"),
        (lambda: sign_gain(noise_of(batch_noise=0, noise_multiplier=0)), "does not vanish"),
        (lambda: sign_gain(noise_of(), coordinate=-1.0), "coordinate"),
        (lambda: clipped_gain(noise_of(), gradient_norm=-1.0), "gradient_norm"),
        (lambda: LossBound(1.0, 1.0).at(-1.0, 0.0), "initial_loss"),
        (lambda: LossBound(1.0, 1.0).at(1.0, -1.0), "time"),
        (lambda: sgd_loss_bound(noise_of(), learning_rate=0, pl_constant=1, smoothness=1), "learning_rate"),
        (lambda: sgd_loss_bound(noise_of(), learning_rate=1, pl_constant=2, smoothness=1), "smoothness"),
        (lambda: sgd_loss_bound(noise_of(), learning_rate=1, pl_constant=0, smoothness=1), "pl_constant"),
        (lambda: sgd_gradient_bound(noise_of(), **(REAL | {"steps": 0})), "steps"),
        (lambda: sign_gradient_bound(noise_of(), **(REAL | {"initial_loss": -1})), "initial_loss"),
        (
            lambda: sgd_gradient_bound(
                noise_of(batch_noise=1e-3), mixed=True, **(REAL | {"learning_rate": 1e3})
            ),
            "smaller, for the bound to exist",
        ),
        (
            lambda: sgd_moments(noise_of(), curvatures=[1.0], start=[1.0], learning_rate=1, time=1),
            r"curvatures must be of shape \(5,\)",
        ),
        (
            lambda: sgd_moments(noise_of(), curvatures=[1.0] * 5, start=[1.0], learning_rate=1, time=1),
            r"start must be of shape \(5,\)",
        ),
        (
            lambda: sgd_moments(noise_of(), curvatures=[1] * 5, start=[1] * 5, learning_rate=1, time=-1),
            "time",
        ),
        (
            lambda: sign_moments(noise_of(), curvatures=[9] * 5, start=[1] * 5, learning_rate=1, time=1),
            "at most 1 / ",
        ),
        (
            lambda: sgd_stationary_variance(noise_of(), curvatures=[2] * 5, learning_rate=1.0, discrete=True),
            "below 2 over the largest curvature",
        ),
        (lambda: scaling_law_epsilon(1.0, 1.0, sampling_prob=0.1, steps=1), "delta"),
        (lambda: scaling_law_epsilon(1.0, 0.1, sampling_prob=0.0, steps=1), "sampling_prob"),
        (lambda: scaling_law_epsilon(1.0, 0.1, sampling_prob=1.01, steps=1), "sampling_prob"),
        (lambda: scaling_law_epsilon(0.0, 0.1, sampling_prob=0.1, steps=1), "noise_multiplier"),
        (
            lambda: critical_noise_multiplier(
                batch_size=1, batch_noise=0, sgd_rate=1, sign_rate=0, sgd_clip=1, sign_clip=1
            ),
            "sign_rate",
        ),
        (
            lambda: critical_epsilon(
                0.1,
                dataset_size=5,
                steps=1,
                batch_size=6,
                batch_noise=0,
                sgd_rate=1,
                sign_rate=1,
                sgd_clip=1,
                sign_clip=1,
            ),
            "batch_size",
        ),
        (lambda: optimal_sgd_rate(noise_of(), steps=1, smoothness=1, initial_loss=0), "initial_loss"),
        (lambda: optimal_sign_rate(dimension=0, steps=1, smoothness=1, initial_loss=1), "dimension"),
        (
            lambda: tuned_bounds(noise_of(), 1.0, steps=1, smoothness=1, initial_loss=1, retuned=True),
            "a one-dimensional sequence",
        ),
        (
            lambda: euler_maruyama(
                lambda x: x, lambda x, z: z, 1.0, learning_rate=1, steps=1, rng=np.random.default_rng(1)
            ),
            "start",
        ),
        (
            lambda: euler_maruyama(lambda x: x, lambda x, z: z, [1.0], learning_rate=1, steps=1, rng=7),
            "a numpy.random.Generator",
        ),
        (
            lambda: euler_maruyama(
                lambda x: x[:1],
                lambda x, z: z,
                [1.0, 2.0],
                learning_rate=1,
                steps=1,
                rng=np.random.default_rng(1),
            ),
            "drift and diffusion",
        ),
    ],
)
def test_bad_arguments_are_refused(call, match):
    with pytest.raises(InvalidParameterError, match=match):
        call()


def test_what_leaves_float64_is_no_moment():
    with pytest.raises(NumericalError, match="left the range"):
        private_gradient(noise_of(clip_norm=1e200, noise_multiplier=0.0), [1.0] * 5, clipped_share=1.0)


def test_large_gradients_have_signs():
    assert sign_drift(noise_of(dimension=2), [1e200, -1e200]) == pytest.approx([-1.0, 1.0])


def test_a_norm_is_checked_where_it_is_not_used():
    with pytest.raises(InvalidParameterError, match="gradient_norm"):
        sign_gain(noise_of(), gradient_norm=-5.0)


def test_intervals_without_an_end_are_open_there():
    with pytest.raises(InvalidParameterError, match=r"in \(-inf, inf\)"):
        sgd_diffusion(noise_of(), [1.0] * 5, [-math.inf] * 5)
