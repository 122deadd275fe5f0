"""Numbers that the registry of statements states, as the library gives them."""

import math

import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.analysis import spectral
from dpmech.analysis.muon import newton_schulz
from dpmech.analysis.muon import newton_schulz as heat
from dpmech.analysis.muon import stationarity as muon
from dpmech.analysis.noise_share import moments as first_moment
from dpmech.analysis.noise_share import moments as moment_scatter
from dpmech.analysis.noise_share import moments as noise_share
from dpmech.analysis.noise_share import signal_ceiling
from dpmech.analysis.sde import dynamics as sde_directions

INDEPENDENT = dm.Identity(3900)


def diagonal(n):
    return dm.Diagonal(np.arange(n, 0, -1) ** 0.25)


def full_batch_lower_bound(n):
    return math.sqrt((n + 1) * (2 * n + 1) / 6)


def table_4(strategy):
    participation = dm.MinSep(390, 10)
    return dm.calibrate_sigma(strategy, 8.0, 1e-5, participation=participation).rmse()


# Statement, what it is, the printed number, half a unit of its last digit (or the stated tolerance).
NUMBERS = [
    ("ov.kappa", lambda: signal_ceiling.column_norm(0.9, 8), 2.070721, 5e-7),
    ("ov.kappa", lambda: dm.sensitivity(dm.LambdaCGD(8, 0.9), dm.SingleParticipation()).upper, 2.0707, 5e-5),
    ("ov.kappa", lambda: signal_ceiling.column_norm(0.9), 2.2942, 5e-5),
    ("ov.kappa", lambda: signal_ceiling.column_norm(0.5, 4), 1.1524, 5e-5),
    ("ov.kappa", lambda: signal_ceiling.column_norm(0.95), 3.20256, 5e-6),
    ("ov.kappa", lambda: signal_ceiling.secret_start_norm(0.9, 8), 1.515636, 5e-7),
    ("ov.kappa", lambda: signal_ceiling.secret_start_norm(0.99, 120), 5.222280, 5e-7),
    ("ov.thm3.ii", lambda: noise_share.step_correction(0.955), 4.7140, 5e-5),
    ("ov.thm3.ii", lambda: noise_share.step_correction(0.5), 1.41421, 5e-6),
    ("ov.thm3.ii", lambda: noise_share.step_change(noise_share.noise_to_signal(0.75)), 1.0, 1e-12),
    ("ov.def.phi", lambda: noise_share.noise_variance(0.7589, 0.1, 512), 2.197e-8, 5e-12),
    ("ov.thm6.ii", lambda: first_moment.average_variance(0.9, 10**6), 0.0526316, 5e-8),
    ("ov.thm6.ii", lambda: 1.0 / first_moment.average_variance(0.9, 10**6), 19.0, 1e-9),
    ("ov.theta", lambda: signal_ceiling.prefix_variance_ratio(0.9, 120), 0.0961, 5e-5),
    ("ov.theta", lambda: signal_ceiling.prefix_variance_ratio(0.95, 120), 0.1109, 5e-5),
    ("ov.theta", lambda: signal_ceiling.prefix_variance_ratio(0.99, 120), 0.3858, 5e-5),
    ("ov.theta", lambda: signal_ceiling.prefix_variance_ratio(0.9, 2), 0.9141, 5e-5),
    ("ov.theta", lambda: signal_ceiling.prefix_variance_ratio(0.9, 120, secret_start=True), 0.1316, 5e-5),
    ("ov.theta", lambda: signal_ceiling.prefix_variance_ratio(0.95, 10, secret_start=True), 0.5383, 5e-5),
    ("ov.theta", lambda: signal_ceiling.prefix_variance_ratio(0.9, 120, prefix=5), 1.095, 5e-4),
    ("ov.theta.weights", lambda: signal_ceiling.average_variance_ratio(0.9, 0.9), 1.0, 5e-4),
    ("ov.theta.weights", lambda: signal_ceiling.average_variance_ratio(0.95, 0.9), 1.974, 5e-4),
    ("ov.theta.weights", lambda: signal_ceiling.average_variance_ratio(0.5, 0.9), 0.4667, 5e-5),
    ("ov.theta.weights", lambda: signal_ceiling.best_correlation(0.9)[0], 0.6268, 5e-5),
    ("ov.theta.weights", lambda: signal_ceiling.best_correlation(0.9)[1], 0.4359, 5e-5),
    ("ov.thm9.b", lambda: signal_ceiling.integrated_variance(0.9, 5) / (1.0 - 0.81), 5.473684, 5e-7),
    ("ov.thm9.c", lambda: signal_ceiling.prefix_variance_ratio(0.9, 10**7), 0.052632, 1e-6),
    ("ov.vhat.corr", lambda: first_moment.matched_step_variances(dm.LambdaCGD(300, 0.9))[-1], 9.53, 5e-3),
    ("ov.num.eps_cert", lambda: dm.calibrate_sigma(dm.Identity(1), 8.0, 1e-5).sigma, 0.60023, 5e-6),
    ("ov.num.eps_cert", lambda: dm.epsilon(dm.Identity(1), 0.6378173828, 1e-5).upper, 7.43546, 5e-6),
    ("sde.lemA2", lambda: sde_directions.direction_factor(1.0), 0.79788, 5e-6),
    ("sde.lemA2", lambda: sde_directions.direction_factor(2.0), 0.88623, 5e-6),
    ("sde.lemA2", lambda: sde_directions.direction_factor(5.0), 0.95153, 5e-6),
    ("sde.lemA2", lambda: sde_directions.direction_factor(10.0), 0.97535, 5e-6),
    ("rmt.eq4", lambda: spectral.left_cosine_squared(3.0 * math.sqrt(200.0), 1.0, 100, 400), 0.936, 5e-4),
    ("rmt.eq4", lambda: spectral.left_cosine_squared(1.4 * math.sqrt(200.0), 1.0, 100, 400), 0.589, 5e-4),
    ("rmt.eq5", lambda: spectral.right_cosine_squared(2.0 * math.sqrt(200.0), 1.0, 100, 400), 0.625, 5e-4),
    ("rmt.eq5", lambda: spectral.right_cosine_squared(1.4 * math.sqrt(200.0), 1.0, 100, 400), 0.366, 5e-4),
    ("cgd.thm4", lambda: dm.rmse(INDEPENDENT, dm.EveryStep()) / full_batch_lower_bound(3900), 1.224666, 5e-7),
    (
        "cgd.thm4",
        lambda: dm.rmse(diagonal(3900), dm.EveryStep()) / full_batch_lower_bound(3900),
        1.154699,
        2e-6,
    ),
    (
        "cgd.thm4",
        lambda: dm.rmse(INDEPENDENT, dm.EveryStep()) / dm.rmse(diagonal(3900), dm.EveryStep()),
        1.060594,
        2e-6,
    ),
    ("cgd.tab4_col1", lambda: dm.calibrate_sigma(dm.Identity(1), 8.0, 1e-5).sigma, 0.6002290722, 5e-9),
    ("cgd.tab4_col1", lambda: table_4(INDEPENDENT), 83.85, 0.03),
    ("cgd.tab4_col1", lambda: table_4(dm.LambdaCGD(3900, 0.975)), 12.73, 0.01),
    ("cgd.tab4_col1", lambda: table_4(dm.LambdaCGD(3900, 0.95)), 14.74, 0.01),
    ("cgd.tab4_col1", lambda: table_4(dm.LambdaCGD(3900, 0.9)), 19.72, 0.01),
    ("cgd.tab4_col1", lambda: table_4(dm.InverseSquareRoot(3900, 2)), 48.45, 0.02),
    ("muon.lemC1", lambda: muon.momentum_noise(0.3, 0.9, 7) ** 2, 0.013422, 5e-7),
    ("muon.lemC1", lambda: muon.momentum_weight(0.95), 0.160, 5e-4),
    ("muon.heat", lambda: heat.heat_coefficients(3)[3], 1.0 / 48.0, 1e-15),
    ("muon.thm4_1", lambda: heat.corrected_coefficients(4)[2], -0.25, 1e-15),
    ("muon.thm4_1", lambda: heat.corrected_coefficients(4)[4], -7.0 / 192.0, 1e-15),
    ("muon.ns", lambda: newton_schulz.polynomial(0.0, 1) ** 5, 7.59, 5e-3),
    ("muon.ns", lambda: newton_schulz.polynomial(0.0, 2) ** 5, 23.2, 5e-2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("compute", "printed", "tolerance"),
    [pytest.param(*row[1:], id=f"{row[0]}-{row[2]:.6g}") for row in NUMBERS],
)
def test_printed_numbers(compute, printed, tolerance):
    assert float(compute()) == pytest.approx(printed, abs=tolerance)


@pytest.mark.parametrize(
    ("step", "spread", "tolerance", "median"),
    [
        (1, 1.414, 5e-4, 2.198),
        (10, 0.447, 5e-4, 1.0705),
        (20, 0.316, 5e-4, 1.0343),
        (40, 0.224, 5e-4, 1.0169),
        (80, 0.158, 5e-4, 1.0084),
        (120, 0.129, 5e-4, 1.0056),
        (150, 0.116, 5e-4, 1.0045),
        (1000, 0.0465, 5e-5, 1.0007),
    ],
)
def test_scatter_of_the_second_moment(step, spread, tolerance, median):
    assert moment_scatter.second_moment_scatter(0.999, step) == pytest.approx(spread, abs=tolerance)
    # At step 1 the registry has the exact median of a chi-square variable, and so has the library.
    assert 1.0 / moment_scatter.median_factor(0.999, step) == pytest.approx(
        median, abs=5e-4 if step == 1 else 6e-5
    )


@pytest.mark.parametrize("n", [10, 1000, 100_000])
def test_full_batch_errors_grow_as_stated(n):
    """RMSE of independent noise n / sqrt 2, of the diagonal 2n / 3, lower bound n / sqrt 3."""
    trivial = dm.rmse(dm.Identity(n), dm.EveryStep())
    best = dm.rmse(diagonal(n), dm.EveryStep())
    assert trivial == pytest.approx(math.sqrt(n * (n + 1) / 2), rel=1e-9)
    assert trivial * math.sqrt(2) / n == pytest.approx(1.0, abs=1.0 / n)
    assert best * 1.5 / n == pytest.approx(1.0, abs=2.0 / n)
    assert full_batch_lower_bound(n) * math.sqrt(3) / n == pytest.approx(1.0, abs=1.0 / n)
    assert full_batch_lower_bound(n) < best < trivial


@pytest.mark.parametrize(
    ("step", "below"),
    [(40, 0.448), (80, 0.407)],
)
def test_second_moments_that_fall_below_the_noise(step, below):
    """rho = 0.955: how often the second moment lies below Phi, so that the correction is clamped."""
    found = moment_scatter.clamp_fraction(0.955, 0.045, 0.0, beta2=0.999, step=step)
    degrees = moment_scatter.effective_samples(0.999, step)
    assert float(found) == pytest.approx(below, abs=1e-3)
    assert float(found) == pytest.approx(stats.chi2.cdf(0.955 * degrees, degrees), rel=1e-9)
