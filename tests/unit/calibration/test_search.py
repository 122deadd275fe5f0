import numpy as np
import pytest
from scipy.stats import norm

import dpmech as dm
from dpmech.calibration.risks import proving_budget
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


def test_where_no_search_is_built_the_refusal_says_what_to_do():
    batches = dm.Poisson(0.1, 3)
    with pytest.raises(UnsupportedCombinationError, match=r"target\.risk\(dm\.profile\(.*about as 1 / sigma"):
        dm.calibrate_sigma_to(dm.Identity(40), TARGETS[2], participation=batches)


BINS = dm.Mechanism(dm.LambdaCGD(6, 0.5), dm.BallsInBins(2))


def trade_off(mechanism, sigma, rates):
    """The best true-positive rates for two bins: sums over a grid of the plane that both means span.

    P puts the person into one of two bins, Q has nobody there; the larger one of both directions.
    """
    columns = mechanism.strategy.to_dense()
    means = np.stack([columns[:, start::2].sum(axis=1) for start in (0, 1)]) / sigma
    # In a basis of the plane, by hand: the means are (u, 0) and (v, w).
    first, inner, second = means[0] @ means[0], means[0] @ means[1], means[1] @ means[1]
    u = np.sqrt(first)
    v = inner / u
    w = np.sqrt(second - v**2)
    line, step = np.linspace(-9.0, 9.0 + max(u, v, w), 1600, retstep=True)
    x, y = np.meshgrid(line, line)
    null = np.exp(-0.5 * (x**2 + y**2)) * step**2 / (2 * np.pi)
    ratio = 0.5 * (np.exp(u * x - 0.5 * u**2) + np.exp(v * x + w * y - 0.5 * (v**2 + w**2)))
    order = np.argsort(ratio, axis=None)
    q, p = np.cumsum(null.ravel()[order]), np.cumsum((null * ratio).ravel()[order])
    assert q[-1] == pytest.approx(1.0, abs=1e-9)
    assert p[-1] == pytest.approx(1.0, abs=1e-9)
    # Reject Q where the ratio is large, P where it is small.
    removed = np.interp(rates, (1.0 - q)[::-1], (1.0 - p)[::-1])
    added = np.interp(rates, p, q)
    return np.maximum(removed, added)


def oracle(target, mechanism, sigma):
    if isinstance(target, dm.AttackTarget):
        return float(trade_off(mechanism, sigma, [target.fpr])[0])
    rates = np.linspace(0.0, 1.0, 4001)
    return float(np.max(trade_off(mechanism, sigma, rates) - rates))


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        dm.AttackTarget(0.01, 0.05),
        dm.AttackTarget(0.6, 0.8),
        dm.AdvantageTarget(0.2),
    ],
    ids=repr,
)
def test_correlated_noise_in_bins_keeps_an_attack_below_its_limit(target):
    found = dm.calibrate_sigma_to(BINS, target)
    assert 0.999 * target.limit <= found.risk.upper <= target.limit
    assert oracle(target, BINS, found.sigma) <= target.limit + 1e-4
    # The best line and the certified sample together cost a few per cent of sigma.
    assert oracle(target, BINS, found.sigma / 1.05) > target.limit
    guarantee = found.risk.guarantee
    assert (guarantee.kind, guarantee.inside_delta) == (dm.Kind.PROBABLE, True)
    assert guarantee == found.proof.guarantee == found.profile.guarantee
    cal = found.calibration()
    assert (cal.sigma, cal.budget) == (found.sigma, found.proof.budget)
    assert "Proved by eps" in str(found)


@pytest.mark.slow
def test_its_proof_is_certified_and_of_its_own_point(tmp_path):
    target, lines = dm.AttackTarget(0.01, 0.05), []
    found = dm.calibrate_sigma_to(BINS, target, rng=4, progress=lines.append)
    # With numbers of the caller's own beta is outside delta.
    assert found.risk.guarantee == dm.Guarantee(dm.Kind.PROBABLE, found.proof.guarantee.error)
    # The point does not depend on the draws that certify it.
    assert proving_budget(BINS, target) == found.proof.budget
    assert any("rough" in line for line in lines)
    cal = found.calibration()
    assert found.calibration(cal.budget.delta) is cal
    with pytest.raises(UnsupportedCombinationError, match="nothing at delta"):
        found.calibration(1e-5)
    cal.certificate(clip_norm=1.0).save(tmp_path / "certificate.json")
    assert dm.verify(tmp_path / "certificate.json").ok


@pytest.mark.parametrize("target", [*TARGETS[:2], dm.AttackTarget(0.6, 0.8), dm.AttackTarget(1e-6, 0.5)])
def test_a_pair_proves_the_limit_by_its_own_trade_off(target):
    """By Kairouz, Oh and Viswanath: tpr <= min(e^eps fpr + delta, 1 - e^-eps (1 - delta - fpr))."""
    low, high = target.slopes
    rates = np.array([target.fpr]) if low < high else np.linspace(0.0, 1.0, 100_001)
    for slope in [0.9 * low, 0.5 * low, 1e-4, 0.5 * high, 0.9 * high]:
        eps, delta = max(abs(slope), 1e-4), target.proving_delta(np.copysign(max(abs(slope), 1e-4), slope))
        lines = np.exp(eps) * rates + delta, 1.0 - np.exp(-eps) * (1.0 - delta - rates)
        if low < high:
            # Just the line that is meant gives the limit; the other one may say more.
            assert lines[slope < 0.0][0] == pytest.approx(target.limit, rel=1e-9)
        else:
            assert np.max(np.minimum(*lines) - rates) == pytest.approx(target.limit, abs=1e-5)


def test_no_pair_proves_a_mu():
    with pytest.raises(UnsupportedCombinationError, match="proves no mu"):
        TARGETS[2].proving_delta(1.0)


def test_without_a_proof_a_delta_has_to_be_given():
    found = dm.calibrate_sigma_to(dm.Identity(4), dm.AdvantageTarget(0.1))
    assert found.proof is None
    with pytest.raises(InvalidParameterError, match="delta"):
        found.calibration()


def test_an_advantage_that_no_sampled_eps_proves_is_refused():
    with pytest.raises(InvalidParameterError, match=r"at least 0\.0005"):
        dm.calibrate_sigma_to(BINS, dm.AdvantageTarget(1e-4))


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
