"""Noise share, scatter of the second moment, first moment: the library against the checks' oracles."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import dpmech as dm
from dpmech.analysis.noise_share import moments as first
from dpmech.analysis.noise_share import moments as scatter
from dpmech.analysis.noise_share import moments as share
from tests.support import generators as gen
from verification.oracles import noise_share as oracle

BETAS = st.one_of(st.just(0.0), gen.finite(0.0, 0.9995))
STEPS = st.one_of(st.integers(1, 8), st.integers(1, 120))
SCALES = gen.finite(-8.0, 4.0).map(lambda power: 10.0**power)


@given(SCALES, SCALES, SCALES)
def test_phi_is_the_square_of_what_is_added(sigma, clip, size):
    phi = share.noise_variance(sigma, clip, size)
    assert math.isclose(phi, (sigma * (clip / size)) ** 2, rel_tol=1e-12)
    scaled = [
        share.noise_variance(2 * sigma, clip, size),
        share.noise_variance(sigma, 2 * clip, size),
        share.noise_variance(sigma, clip, 2 * size),
    ]
    np.testing.assert_allclose(np.array(scaled) / phi, [4, 4, 0.25], rtol=1e-12)


def test_phi_of_the_papers_runs():
    sigma = oracle.rdp_sigma(3.0, 1e-5, 512 / oracle.CORPUS, 150)
    assert math.isclose(share.noise_variance(sigma, 0.1, 512), 2.197e-8, rel_tol=2e-3)
    assert math.isclose(share.noise_variance(0.4798, 0.1, 64), 5.62e-7, rel_tol=1e-3)


@given(st.integers(1, 12), st.data())
def test_phi_agrees_with_a_calibration_of_independent_noise(n, data):
    clip, size = data.draw(gen.finite(0.1, 5.0)), data.draw(gen.finite(1.0, 4096.0))
    calibration = dm.calibrate_sigma(dm.Identity(n), 2.0, 1e-5, participation=dm.SingleParticipation())
    expected = calibration.noise_variance(n - 1, clip, size)
    assert math.isclose(share.noise_variance(calibration.sigma, clip, size), expected, rel_tol=1e-12)


@given(SCALES, SCALES)
def test_identities_of_the_noise_share(phi, signal):
    rho = float(share.noise_share(phi, signal))
    assert math.isclose(rho, phi / (signal + phi), rel_tol=1e-12)
    if rho < 1.0 - 1e-6:
        ratio = float(share.noise_to_signal(rho))
        assert math.isclose(ratio, phi / signal, rel_tol=1e-9)
        assert math.isclose(
            float(share.step_correction(rho)), math.sqrt((signal + phi) / signal), rel_tol=1e-9
        )
        change = float(share.step_change(phi / signal))
        assert math.isclose(float(share.step_correction(rho)), 1.0 + change, rel_tol=1e-9)
    slope = float(share.noise_share_slope(rho))
    assert math.isclose(slope, phi * signal / (phi + signal) ** 2, rel_tol=1e-6, abs_tol=1e-15)


@given(SCALES)
def test_change_and_its_bounds(ratio):
    change = float(share.step_change(ratio))
    exact = float(np.sqrt(np.longdouble(1) + np.longdouble(ratio)) - 1)
    assert math.isclose(change, exact, rel_tol=1e-9, abs_tol=1e-18)
    lower, upper = (float(value) for value in share.materiality_bounds(ratio))
    assert lower <= change * (1 + 1e-15)
    assert change <= upper * (1 + 1e-15)
    assert math.isclose(upper - lower, ratio**2 / 8, rel_tol=1e-6)


def test_bounds_meet_the_change_to_second_order():
    lower, upper = share.materiality_bounds(np.array([1e-3]))
    assert abs(float(share.step_change(1e-3)) - float(lower[0])) < 1e-10
    assert abs(float(upper[0]) - 5e-4) < 1e-18


def test_printed_values():
    np.testing.assert_allclose(share.step_correction([0.955, 0.5, 0.75]), [4.7140, 1.41421, 2.0], rtol=1e-5)
    assert float(share.noise_share_slope(0.5)) == 0.25
    assert float(share.step_change(3.0)) == 1.0


@given(BETAS, STEPS)
def test_effective_samples_count_the_weights(beta, step):
    exact = 1.0 / np.sum(oracle.weights_by_recursion(beta, step) ** 2)
    assert math.isclose(scatter.effective_samples(beta, step), exact, rel_tol=1e-9)
    assert math.isclose(scatter.second_moment_scatter(beta, step), math.sqrt(2 / exact), rel_tol=1e-9)


# Relative standard deviation and Phi / median at beta2 = 0.999, from the paper's registry.
@pytest.mark.parametrize(
    ("step", "deviation", "logged"),
    [
        (1, 1.414, 2.198),
        (10, 0.447, 1.0705),
        (20, 0.316, 1.0343),
        (40, 0.224, 1.0169),
        (80, 0.158, 1.0084),
        (120, 0.129, 1.0056),
        (150, 0.116, 1.0045),
        (1000, 0.0465, 1.0007),
    ],
)
def test_scatter_and_median_of_pure_noise(step, deviation, logged):
    assert abs(scatter.second_moment_scatter(0.999, step) - deviation) < 7e-4
    assert abs(1.0 / scatter.median_factor(0.999, step) - logged) < 6e-4


@given(BETAS, STEPS)
def test_median_lies_below_the_mean(beta, step):
    factor = scatter.median_factor(beta, step)
    samples = scatter.effective_samples(beta, step)
    assert factor < 1.0
    assert math.isclose(float(stats.chi2.cdf(factor * samples, samples)), 0.5, rel_tol=1e-9)
    assert math.isclose(factor, (1 - 2 / (9 * samples)) ** 3, rel_tol=0.05)


@pytest.mark.parametrize(
    ("rho", "step", "debiased"), [(0.955, 40, 0.939), (0.955, 80, 0.947), (1.0, 150, 0.9955)]
)
def test_debiased_share(rho, step, debiased):
    found = float(scatter.debiased_noise_share(1e-8, 1e-8 / rho, beta2=0.999, step=step))
    assert abs(found - debiased) < 6e-4


def test_debiasing_recovers_the_share_of_simulated_moments():
    noisy, clean = oracle.second_moments(
        0.999, 40, 0.7, 100_000, lambda past: np.full_like(past, 0.4), seed=3
    )
    found = float(scatter.debiased_noise_share(0.7, float(np.median(noisy)), beta2=0.999, step=40))
    exact = float(share.noise_share(0.7, float(np.mean(clean))))
    # Median of 1e5 values, 6.5 standard errors: 1.26 * 0.22 / sqrt(1e5) * 6.5 = 0.6 %.
    assert math.isclose(found, exact, rel_tol=8e-3)
    assert not math.isclose(0.7 / float(np.median(noisy)), exact, rel_tol=8e-3)


@pytest.mark.parametrize(("rho", "step"), [(0.955, 40), (0.955, 80), (0.6, 30)])
def test_clamp_fraction_is_that_of_simulated_moments(rho, step):
    signal = 1.0 / rho - 1.0
    noisy, _ = oracle.second_moments(
        0.999, step, 1.0, 20_000, lambda past: np.full_like(past, math.sqrt(signal)), seed=step
    )
    for floor in (0.0, 0.05, 1.0):
        predicted = float(scatter.clamp_fraction(1.0, signal, floor, beta2=0.999, step=step))
        assert abs(predicted - float(np.mean(noisy < 1.0 + floor))) < 0.035


def test_clamp_fraction_of_the_papers_runs():
    arguments = {"beta2": 0.999, "step": 40}
    assert abs(float(scatter.clamp_fraction(1.0, 0.045 / 0.955, 0.0, **arguments)) - 0.448) < 1e-3
    found = float(scatter.clamp_fraction(oracle.PHI_512, 0.0, 1e-8, beta2=0.999, step=150))
    assert abs(found - 0.99977) < 1e-5


def test_outlook_separates_the_three_regimes():
    arguments = {"beta2": 0.999, "step": 1000, "floor": 1e-6}
    quiet = scatter.correction_outlook(0.01, 1.0, **arguments)
    good = scatter.correction_outlook(0.5, 1.0, **arguments)
    saturated = scatter.correction_outlook(1.0, 1.0, **arguments)
    assert quiet.verdict == "little noise: correction would change a step by 0.51 % only"
    assert good.verdict.startswith("correction can help: it enlarges a step by 42 %")
    assert saturated.verdict.startswith("the second moment is noise: ")
    assert (quiet.material, quiet.estimable, quiet.can_help) == (False, True, False)
    assert (good.material, good.estimable, good.can_help) == (True, True, True)
    assert (saturated.material, saturated.estimable, saturated.can_help) == (True, False, False)
    assert math.isclose(good.change, float(share.step_correction(good.share)) - 1.0, rel_tol=1e-9)
    assert math.isclose(good.share, 0.5 * scatter.median_factor(0.999, 1000), rel_tol=1e-12)
    beyond = scatter.correction_outlook(1.1, 1.0, **arguments)
    assert beyond.change == math.inf
    assert beyond.share > 1.0
    assert not scatter.correction_outlook(0.5, 1.0, min_change=0.9, **arguments).material
    assert not scatter.correction_outlook(0.8, 1.0, max_clamped=0.0, **arguments).estimable


@given(BETAS, STEPS)
def test_weights_and_variance_of_the_first_moment(beta, step):
    exact = oracle.weights_by_recursion(beta, step)
    np.testing.assert_allclose(first.average_weights(beta, step), exact, rtol=1e-8, atol=1e-300)
    assert math.isclose(first.average_variance(beta, step, 0.3), 0.3 * float(exact @ exact), rel_tol=1e-8)


def test_weights_of_three_steps():
    np.testing.assert_allclose(first.average_weights(0.5, 3), np.array([1.0, 2.0, 4.0]) / 7.0, rtol=1e-14)
    assert math.isclose(first.average_variance(0.5, 3, 0.2), 0.2 * 21.0 / 49.0, rel_tol=1e-14)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("lag", [0, 1, 6])
def test_autocovariance_of_the_steady_average(beta, lag):
    weights = oracle.weights_by_recursion(beta, 500)
    exact = float(weights[lag:] @ weights[: 500 - lag])
    assert math.isclose(
        first.average_autocovariance(beta, lag, 0.4), 0.4 * exact, rel_tol=1e-9, abs_tol=1e-300
    )


def test_printed_variance_factor():
    assert round(first.average_variance(0.9, 10_000), 7) == 0.0526316
    assert first.average_variance(0.9, 1, 0.7) == pytest.approx(0.7, rel=1e-12)


@given(st.integers(1, 12), BETAS, st.data())
def test_variances_under_correlated_noise_are_those_of_dense_algebra(n, beta, data):
    strategy = data.draw(gen.strategies(n))
    inverse = np.linalg.inv(strategy.to_dense())
    exact = [
        float(np.sum((oracle.weights_by_recursion(beta, t) @ inverse[:t]) ** 2)) for t in range(1, n + 1)
    ]
    tolerance = 1e-12 * np.linalg.cond(strategy.to_dense()) ** 2 * max(exact)
    np.testing.assert_allclose(
        first.correlated_average_variances(strategy, beta), exact, rtol=1e-7, atol=max(tolerance, 1e-12)
    )


def test_more_than_one_block_of_columns():
    strategy = dm.ColumnNormalized(dm.LambdaCGD(150, 0.8))
    inverse = np.linalg.inv(strategy.to_dense())
    exact = float(np.sum((oracle.weights_by_recursion(0.9, 150) @ inverse) ** 2))
    assert math.isclose(first.correlated_average_variances(strategy, 0.9)[-1], exact, rel_tol=1e-9)


def test_independent_noise_is_a_special_case():
    variances = first.correlated_average_variances(dm.Identity(50), 0.9)
    np.testing.assert_allclose(variances, [first.average_variance(0.9, t) for t in range(1, 51)], rtol=1e-10)


@pytest.mark.parametrize(("lam", "factor"), [(0.9, 3.09), (0.95, 4.42), (0.99, 9.98)])
def test_step_variances_at_equal_privacy(lam, factor):
    found = first.matched_step_variances(dm.LambdaCGD(1500, lam))
    assert abs(math.sqrt(found[-1]) - factor) < 6e-3
    assert math.isclose(found[-1], (1 + lam**2) / (1 - lam**2), rel_tol=1e-9)
    multi = first.matched_step_variances(dm.LambdaCGD(1500, lam), dm.MinSep(100, 3))
    sens = dm.sensitivity(dm.LambdaCGD(1500, lam), dm.MinSep(100, 3)).upper
    np.testing.assert_allclose(multi[:2], [sens**2, sens**2 * (1 + lam**2)], rtol=1e-12)


@given(SCALES, SCALES, SCALES)
def test_preconditioner_and_its_deviation(phi, signal, eps):
    exact = 1 / (math.sqrt(phi) + eps) - 1 / (math.sqrt(signal + phi) + eps)
    bound = first.preconditioner_deviation_bound(phi, signal, eps)
    assert exact <= bound * (1 + 1e-9) + 1e-12 / (math.sqrt(phi) + eps)
    assert math.isclose(bound, signal / (2 * math.sqrt(phi) * (math.sqrt(phi) + eps) ** 2), rel_tol=1e-12)
    rate = first.effective_learning_rate(0.3, phi, eps)
    assert math.isclose(rate, 0.3 / (math.sqrt(phi) + eps), rel_tol=1e-12)


def test_deviation_bound_is_tight_for_small_signals():
    exact = 1 / (1.0 + 1e-3) - 1 / (math.sqrt(1.0 + 1e-4) + 1e-3)
    assert math.isclose(first.preconditioner_deviation_bound(1.0, 1e-4, 1e-3), exact, rel_tol=1e-3)


def test_spread_of_the_preconditioner_is_that_of_simulated_moments():
    noisy, _ = oracle.second_moments(0.999, 150, 1.0, 50_000, np.zeros_like, seed=1)
    assert math.isclose(
        first.preconditioner_spread(0.999, 150, 0.0), float(np.std(noisy**-0.5)), rel_tol=0.06
    )
    assert math.isclose(
        first.preconditioner_spread(0.999, 150, 0.02) - first.preconditioner_spread(0.999, 150, 0.0),
        1 - 1.02**-0.5,
        rel_tol=0.02,
    )


def test_defaults_are_those_of_the_field():
    """Unit noise, Adam's own eps, and a tenth for what is material and what is clamped."""
    assert math.isclose(first.average_autocovariance(0.9, 2), 0.1 / 1.9 * 0.81, rel_tol=1e-12)
    assert math.isclose(first.effective_learning_rate(0.3, 0.0), 0.3e8, rel_tol=1e-12)
    bound = first.preconditioner_deviation_bound(1e-16, 1e-20)
    assert math.isclose(bound, 1e-20 / (2e-8 * 4e-16), rel_tol=1e-9)
    arguments = {"beta2": 0.999, "step": 1000, "floor": 1e-6}
    small = scatter.correction_outlook(0.2, 1.0, **arguments)
    assert 0.1 < small.change < 0.2
    assert small.material
    blurred = scatter.correction_outlook(0.955, 1.0, **arguments)
    assert 0.1 < blurred.clamped < 0.2
    assert not blurred.estimable
