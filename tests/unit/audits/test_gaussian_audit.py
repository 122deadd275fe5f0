"""The Gaussian audit: coverage of its bound, its tail against other arithmetic, and its power."""

import dataclasses

import mpmath as mp
import numpy as np
import pytest
import scipy.stats

import dpmech as dm
from dpmech.audits import gaussian
from dpmech.audits.gaussian import gaussian_audit

ALPHA = 1e-9
ONCE = dm.calibrate_sigma(dm.Identity(1), 2.0, 1e-5, participation=dm.SingleParticipation())
FIXED = dm.calibrate_sigma(dm.LambdaCGD(8, 0.5), 2.0, 1e-5, participation=dm.MinSep(4))
POISSON = dm.calibrate_sigma(dm.Identity(3), 2.0, 1e-5, participation=dm.Poisson(0.3))


def observed(claim, canaries, noise, rng, joins=None):
    """Observations, coins, and the steps of the canaries, from the definition of the mechanism."""
    n = claim.strategy.n
    included = rng.integers(0, 2, size=canaries, dtype=bool)
    fixed = joins is None
    if fixed:
        joins = (
            np.arange(n) % 4 == np.arange(canaries)[:, None] % 4 if n > 1 else np.ones((canaries, 1), bool)
        )
    C = claim.strategy.to_dense()
    released = noise * claim.sigma * np.linalg.solve(C, rng.standard_normal((n, canaries))).T
    return released + included[:, None] * joins, included, joins if fixed else None


@pytest.mark.parametrize("claim", [ONCE, FIXED], ids=["once", "correlated"])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_the_bound_is_below_the_true_ratio_as_rarely_as_stated(claim, level):
    """Exact, so that the count is neither too high nor too low; a bound at half the error is found out."""
    rng = np.random.default_rng(1)
    runs, noise, below = 1200, 0.8, 0
    for _ in range(runs):
        released, included, joins = observed(claim, 48, noise, rng)
        found = gaussian_audit(released, included, claim, joins, confidence=level)
        below += found.noise_ratio < noise
    few, most = scipy.stats.binom.ppf([ALPHA / 2, 1.0 - ALPHA / 2], runs, 1.0 - level)
    assert few <= below <= most
    assert most < scipy.stats.binom.ppf(0.5, runs, 2.0 * (1.0 - level))


def test_a_lower_bound_on_eps_exceeds_the_true_one_as_rarely_as_stated():
    """The Gaussian mechanism at mu = 1, whose eps follows from its formula."""
    rng = np.random.default_rng(2)
    runs, above = 400, 0
    noise = 1.0 / ONCE.sigma
    mu = 1.0

    def delta(eps):
        upper, lower = mp.ncdf(mu / 2 - eps / mu), mp.ncdf(-mu / 2 - eps / mu)
        return upper - mp.exp(eps) * lower

    true = float(mp.findroot(lambda eps: mp.log(delta(eps)) - mp.log(1e-5), 4.0))
    for _ in range(runs):
        released, included, joins = observed(ONCE, 60, noise, rng)
        above += gaussian_audit(released, included, ONCE, joins).epsilon().lower > true
    assert 0 < above <= scipy.stats.binom.ppf(1.0 - ALPHA, runs, 0.05)
    assert true == pytest.approx(dm.epsilon(dm.Identity(1), 1.0, 1e-5).upper, rel=1e-6)


@pytest.mark.parametrize("degrees", [10, 40, 5000])
@pytest.mark.parametrize("ratio", [0.7, 1.3])
def test_the_tail_without_sampling_is_that_of_a_noncentral_t_variable(degrees, ratio):
    images = np.array([[0.6, 0.3], [0.2, 0.9]])
    scaled = np.array([[1.0, 2.0], [0.5, 1.5]])
    tail = gaussian._fixed(scaled, images, degrees, 0.9)(ratio)
    length = np.linalg.norm(images)
    seen, mean = np.sum(scaled * images) / length, length / (ratio * 0.9)
    nu = mp.mpf(degrees)

    def part(w):
        log = (
            (nu - 1) * mp.log(w) - nu * w * w / 2 + mp.log(2) + nu / 2 * mp.log(nu / 2) - mp.loggamma(nu / 2)
        )
        return mp.exp(log) * mp.ncdf(mean - seen * w)

    spread = 1 / mp.sqrt(2 * nu)
    points = [
        max(mp.mpf(0) + 1e-30, 1 - 30 * spread),
        1 - 3 * spread if degrees > 9 else 0.5,
        1,
        1 + 3 * spread,
        1 + 30 * spread,
    ]
    expected = float(mp.quad(part, points))
    assert expected <= tail * (1 + 1e-12)
    assert tail == pytest.approx(expected, rel=2e-9)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.9, 0.6])
def test_the_rank_under_sampling_is_uniform(level):
    """P(p <= error) is the error itself, for canaries sampled here by numpy's generator."""
    rng = np.random.default_rng(3)
    runs, error, alarms = 600, 1.0 - level, 0
    for _ in range(runs):
        joins = rng.random((16, 3)) < 0.3
        released, included, _ = observed(POISSON, 16, 1.0, rng, joins)
        if included.all() or not included.any():
            continue
        scaled, noise = released[included], np.sqrt(np.mean(released[~included] ** 2))
        tail = gaussian._sampled(
            POISSON,
            scaled / noise,
            np.ones(3),
            gaussian.Algebra(POISSON.strategy),
            3 * int((~included).sum()),
            error,
            rng,
        )
        alarms += tail(1.0) <= error
    few, most = scipy.stats.binom.ppf([ALPHA / 2, 1.0 - ALPHA / 2], runs, error)
    assert few <= alarms <= most


@pytest.mark.parametrize("claim", [ONCE, FIXED], ids=["once", "correlated"])
def test_a_thousand_canaries_at_eps_2(claim):
    """The median bound is at least 1.4, and half of the noise is found in 95 % of audits and more."""
    rng = np.random.default_rng(4)

    def audits(noise):
        for _ in range(60):
            released, included, joins = observed(claim, 1000, noise, rng)
            yield gaussian_audit(released, included, claim, joins)

    median = sorted(audits(1.0), key=lambda one: one.noise_ratio)[30]
    assert median.epsilon().lower >= 1.4
    caught = sum(one.refuted for one in audits(0.5))
    assert caught >= 57


def test_sampled_canaries_have_power_too():
    rng = np.random.default_rng(5)
    ratios = []
    for noise in (1.0, 0.5):
        joins = rng.random((300, 3)) < 0.3
        released, included, _ = observed(POISSON, 300, noise, rng, joins)
        ratios.append(gaussian_audit(released, included, POISSON, rng=6).noise_ratio)
    assert 0.5 < ratios[1] < 0.75
    assert 1.0 < ratios[0] < 2.0


@pytest.mark.slow
def test_a_thousand_sampled_canaries_at_eps_2():
    """DP-SGD: the median bound is at least 1.4, and half of the noise is always found."""
    claim = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.Poisson(0.25))
    rng = np.random.default_rng(10)

    def ratios(noise, audits):
        for _ in range(audits):
            joins = rng.random((1000, 12)) < 0.25
            released, included, _ = observed(claim, 1000, noise, rng, joins)
            yield gaussian_audit(released, included, claim, rng=rng)

    median = sorted(ratios(1.0, 7), key=lambda one: one.noise_ratio)[3]
    assert 1.4 <= median.epsilon().lower < 2.0
    assert all(one.refuted for one in ratios(0.5, 3))


def test_batches_that_are_known_say_more():
    """And the bound keeps its level: the noise is measured, whatever is secret to others."""
    rng = np.random.default_rng(12)
    runs, below = 400, 0
    for _ in range(runs):
        joins = rng.random((40, 3)) < 0.3
        released, included, _ = observed(POISSON, 40, 0.8, rng, joins)
        below += gaussian_audit(released, included, POISSON, joins).noise_ratio < 0.8
    few, most = scipy.stats.binom.ppf([ALPHA / 2, 1.0 - ALPHA / 2], runs, 0.05)
    assert few <= below <= most
    joins = rng.random((4000, 3)) < 0.3
    released, included, _ = observed(POISSON, 4000, 1.0, rng, joins)
    found = gaussian_audit(released, included, POISSON, joins)
    assert 0.95 < found.noise_ratio < 1.2
    assert found.epsilon().lower > 1.4


def test_what_no_proof_covers_is_refused():
    rng = np.random.default_rng(11)
    released, included, _ = observed(POISSON, 40, 1.0, rng, rng.random((40, 3)) < 0.3)
    negative = dm.Mechanism(dm.BandedToeplitz(3, [1.0, -0.5]), dm.BallsInBins(3))
    claim = dataclasses.replace(POISSON, mechanism=negative)
    with pytest.raises(dm.UnsupportedCombinationError, match="negative entries"):
        gaussian_audit(released, included, claim)
    batches = dm.Mechanism(dm.Identity(3), dm.FixedSizeBatches(20, 2), dm.Adjacency.REPLACE_ONE)
    fixed = dataclasses.replace(POISSON, mechanism=batches)
    with pytest.raises(dm.UnsupportedCombinationError, match="not sampled independently"):
        gaussian_audit(released, included, fixed)


def test_scales_common_to_all_values_do_not_matter():
    """Only the ratio of noise to gradient does: a run in other units gives the same result."""
    rng = np.random.default_rng(6)
    released, included, joins = observed(FIXED, 200, 1.0, rng)
    one, other = (gaussian_audit(scale * released, included, FIXED, joins) for scale in (1.0, 7.0))
    assert one.noise_ratio == pytest.approx(other.noise_ratio, rel=1e-12)


def test_nothing_is_claimed_where_nothing_is_seen():
    rng = np.random.default_rng(7)
    released, included, joins = observed(FIXED, 100, 1.0, rng)
    found = gaussian_audit(-100.0 * np.abs(released), included, FIXED, joins)
    assert not found.refuted
    assert found.epsilon().lower == 0.0
    blank = gaussian_audit(released, included, FIXED, np.zeros_like(joins))
    assert blank.noise_ratio == np.inf
    assert blank.epsilon().lower == 0.0


def test_a_run_without_noise_is_refuted_at_any_confidence():
    rng = np.random.default_rng(8)
    released, included, joins = observed(FIXED, 100, 1e-4, rng)
    assert gaussian_audit(released, included, FIXED, joins, confidence=1 - 1e-9).noise_ratio <= 1 / 64


def test_bad_arguments_are_named():
    released, included, joins = observed(FIXED, 20, 1.0, np.random.default_rng(9))
    wrong = dm.exceptions.InvalidParameterError
    with pytest.raises(wrong, match="claim"):
        gaussian_audit(released, included, 1.0, joins)
    with pytest.raises(wrong, match="included"):
        gaussian_audit(released, np.ones(20, bool), FIXED, joins)
    with pytest.raises(wrong, match="observations"):
        gaussian_audit(np.zeros_like(released), included, FIXED, joins)
    with pytest.raises(wrong, match="participation"):
        gaussian_audit(released, included, FIXED)
    with pytest.raises(wrong, match="10 or more"):
        gaussian_audit(released[:3, :1], np.array([True, False, True]), FIXED, joins[:3, :1])
    with pytest.raises(wrong, match="confidence"):
        gaussian_audit(released, included, FIXED, joins, confidence=1.0)
