import numpy as np
import pytest
from scipy.stats import norm

import dpmech as dm
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError

MU = 0.7
TARGETS = [
    dm.AttackTarget(0.01, float(norm.sf(norm.isf(0.01) - MU))),
    dm.AdvantageTarget(float(2 * norm.cdf(MU / 2) - 1)),
    dm.GaussianTarget(MU),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: type(one).__name__)
def test_gaussian_release_gets_sensitivity_over_mu(target):
    strategy, passes = dm.LambdaCGD(40, 0.5), dm.MinSep(10, 4)
    found = dm.calibrate_sigma_to(strategy, target, participation=passes)
    least = dm.sensitivity(strategy, passes).upper / MU
    assert least * (1 - 1e-6) <= found.sigma <= least * (1 + 1e-3)
    assert float(found) == found.sigma
    assert found.risk.upper <= target.limit
    assert target.risk(dm.profile(strategy, found.sigma, participation=passes)).upper == found.risk.upper
    assert type(target).__name__ in str(found)


@pytest.mark.parametrize(
    "target", [pytest.param(dm.AttackTarget(0.01, 0.04), marks=pytest.mark.slow), dm.AdvantageTarget(0.2)]
)
def test_poisson_release_is_the_smallest_shown(target):
    steps, passes, lines = dm.Identity(100), dm.Poisson(0.02), []
    found = dm.calibrate_sigma_to(steps, target, participation=passes, rtol=0.01, progress=lines.append)
    assert found.risk.upper <= target.limit
    assert found.risk.lower > 0.97 * target.limit
    smaller = dm.profile(steps, found.sigma / 1.01, participation=passes)
    assert target.risk(smaller).upper > target.limit
    assert len(lines) > 1


@pytest.mark.slow
def test_its_calibration_certifies_the_same_noise(tmp_path):
    found = dm.calibrate_sigma_to(dm.Identity(100), dm.AdvantageTarget(0.2), participation=dm.Poisson(0.02))
    cal = found.calibration(1e-5)
    assert cal.sigma == found.sigma
    assert dm.delta(cal.mechanism, cal.sigma, cal.budget.eps).upper <= 1e-5
    assert cal.achieved.upper <= cal.budget.eps <= cal.achieved.upper * 1.001
    path = tmp_path / "certificate.json"
    cal.certificate(clip_norm=1.0).save(path)
    assert dm.verify(path)


def test_a_delta_that_holds_at_eps_0_has_no_eps():
    found = dm.calibrate_sigma_to(
        dm.Identity(4), dm.AdvantageTarget(0.1), participation=dm.SingleParticipation()
    )
    with pytest.raises(InvalidParameterError, match="delta must be below what"):
        found.calibration(0.2)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: dm.AttackTarget(0.1, 0.1), "tpr"),
        (lambda: dm.AttackTarget(0.0, 0.1), "fpr"),
        (lambda: dm.AttackTarget(0.1, 1.0), "tpr"),
        (lambda: dm.AdvantageTarget(np.nan), "advantage"),
        (lambda: dm.GaussianTarget(0.0), "mu"),
        (lambda: dm.GaussianTarget(0.5, tail=1.0), "tail"),
        (lambda: dm.calibrate_sigma_to(dm.Identity(4), 0.1), "target"),
        (lambda: dm.calibrate_sigma_to(dm.Identity(4), TARGETS[0], rtol=0.0), "rtol"),
    ],
)
def test_bad_input(make, name):
    with pytest.raises(InvalidParameterError, match=name):
        make()


def test_correlated_noise_in_bins_is_refused_with_what_to_do():
    with pytest.raises(UnsupportedCombinationError, match=r"target\.risk\(dm\.profile\(.*about as 1 / sigma"):
        dm.calibrate_sigma_to(dm.LambdaCGD(40, 0.5), TARGETS[1], participation=dm.BallsInBins(8))


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, True])
def test_independent_noise_in_bins_has_a_sigma(fresh):
    bins = dm.BallsInBins(4, fresh=fresh)
    target = dm.AdvantageTarget(0.2)
    # Every probe of a new allocation takes seconds.
    rtol = 0.2 if fresh else 0.02
    found = dm.calibrate_sigma_to(dm.Identity(8), target, participation=bins, rtol=rtol)
    assert found.risk.upper <= 0.2
    assert found.profile.guarantee == dm.Guarantee(dm.Kind.BOUND)
    less = dm.profile(dm.Identity(8), found.sigma / (1.01 + rtol), participation=bins)
    assert target.risk(less).upper > 0.2
    cal = found.calibration(1e-4)
    assert cal.sigma == found.sigma
    assert dm.delta(cal.mechanism, cal.sigma, cal.budget.eps).upper <= 1e-4
