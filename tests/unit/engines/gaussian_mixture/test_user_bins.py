"""delta and sigma of users with several examples in bins: integrals, plain draws, special cases."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.engines.gaussian_mixture import certified_accountant
from dpmech.engines.gaussian_mixture.moments import half_space_add
from dpmech.schemes.balls_in_bins import accountant as accountants

IMPORTANCE = dm.methods.Importance(rel_error=0.02)


def users(bins, examples):
    return dm.BallsInBins(bins, max_examples_per_user=examples)


def means_of(strategy, bins):
    dense = strategy.to_dense()
    return np.stack([dense[:, start::bins].sum(axis=1) for start in range(bins)], axis=1)


def by_integral(strategy, examples, sigma, eps):
    """delta for two bins, both directions, by sums over a fine grid of the plane of the two means."""
    means = means_of(strategy, 2) / sigma
    _, plane = np.linalg.qr(means)
    axis = np.linspace(-12.0, 12.0, 1201)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    base = np.exp(-0.5 * (x**2 + y**2)) / (2.0 * math.pi) * (axis[1] - axis[0]) ** 2
    ratio = np.zeros(x.shape)
    for chosen in itertools.product((0, 1), repeat=examples):
        mean = sum(plane[:, one] for one in chosen)
        ratio += np.exp(mean[0] * x + mean[1] * y - 0.5 * mean @ mean) / 2**examples
    removed = float(np.sum(base * np.maximum(ratio - math.exp(eps), 0.0)))
    return max(removed, float(np.sum(base * np.maximum(1.0 - math.exp(eps) * ratio, 0.0))))


def by_plain_draws(strategy, bins, examples, sigma, eps, rng, count):
    """Mean and standard error of both directions, from P and from Q themselves, one tuple after another."""
    means = means_of(strategy, bins).T / sigma
    tuples = list(itertools.product(range(bins), repeat=examples))
    sums = np.array([means[list(one)].sum(axis=0) for one in tuples])
    half = 0.5 * np.sum(sums**2, axis=1)
    ends = []
    for add in (False, True):
        rows = rng.standard_normal((count, strategy.n))
        if not add:
            rows += sums[rng.integers(len(tuples), size=count)]
        ratio = np.exp(rows @ sums.T - half).mean(axis=1)
        payoffs = np.maximum(1.0 - math.exp(eps) * (ratio if add else 1.0 / ratio), 0.0)
        ends.append((payoffs.mean(), payoffs.std() / math.sqrt(count)))
    return max(ends)


@pytest.mark.parametrize(
    ("examples", "sigma", "eps"),
    [(2, 4.0, 1.0), pytest.param(3, 3.5, 3.0, marks=pytest.mark.slow)],
)
def test_two_bins_are_an_integral(examples, sigma, eps):
    strategy = dm.LambdaCGD(4, 0.6)
    truth = by_integral(strategy, examples, sigma, eps)
    found = dm.delta(strategy, sigma, eps, participation=users(2, examples), method=IMPORTANCE, rng=3)
    assert found.lower < truth < found.upper < 1.15 * truth
    moments = dm.delta(strategy, sigma, eps, participation=users(2, examples), method=dm.methods.Rdp())
    assert truth < moments.upper


@pytest.mark.slow
def test_a_noise_scale_that_is_3_percent_off_shows():
    strategy, sigma, eps = dm.LambdaCGD(4, 0.6), 4.0, 2.0
    fine = dm.methods.Importance(rel_error=0.007)
    found = dm.delta(strategy, sigma, eps, participation=users(2, 2), method=fine, rng=3)
    assert found.lower < by_integral(strategy, 2, sigma, eps) < found.upper
    assert not found.lower < by_integral(strategy, 2, 0.97 * sigma, eps) < found.upper


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "bins", "examples", "sigma", "eps"),
    [
        (dm.LambdaCGD(10, 0.5), 5, 2, 3.0, 0.5),
        (dm.Identity(8), 4, 3, 2.5, 1.0),
        (dm.SquareRoot(6, 3), 3, 3, 6.0, 1.0),
    ],
)
def test_plain_draws_agree(strategy, bins, examples, sigma, eps):
    # Six standard errors: wrong about once in 10^9 times.
    mean, error = by_plain_draws(strategy, bins, examples, sigma, eps, np.random.default_rng(8), 400_000)
    assert error < 0.02 * mean
    found = dm.delta(strategy, sigma, eps, participation=users(bins, examples), method=IMPORTANCE, rng=1)
    assert found.lower - 6.0 * error < mean < found.upper + 6.0 * error
    proved = dm.delta(strategy, sigma, eps, participation=users(bins, examples), rng=2)
    assert proved.lower - 6.0 * error < mean < proved.upper + 6.0 * error
    assert proved.upper < 1.3 * mean


def test_one_example_is_balls_in_bins():
    strategy = dm.LambdaCGD(12, 0.5)
    one = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.BallsInBins(4), method=dm.methods.Rdp())
    same = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=users(4, 1), method=dm.methods.Rdp())
    assert same.sigma == pytest.approx(one.sigma, rel=2e-3)
    assert dm.epsilon(
        strategy, 3.0, 1e-5, participation=users(4, 1), method=dm.methods.Rdp()
    ).upper == pytest.approx(
        dm.epsilon(strategy, 3.0, 1e-5, participation=dm.BallsInBins(4), method=dm.methods.Rdp()).upper,
        rel=1e-5,
    )


@pytest.mark.slow
def test_one_example_is_balls_in_bins_for_draws_too():
    strategy = dm.LambdaCGD(12, 0.5)
    one = dm.delta(strategy, 3.0, 2.0, participation=dm.BallsInBins(4), method=IMPORTANCE, rng=1)
    same = dm.delta(strategy, 3.0, 2.0, participation=users(4, 1), method=IMPORTANCE, rng=2)
    assert max(one.lower, same.lower) < min(one.upper, same.upper)


def test_in_one_bin_all_examples_are_one_of_their_number():
    strategy = dm.LambdaCGD(6, 0.5)
    alone = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.BallsInBins(1))
    three = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=users(1, 3))
    assert three.sigma == pytest.approx(3.0 * alone.sigma, rel=1e-9)
    assert three.unit is dm.Unit.USER
    moments = dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=users(1, 3), method=dm.methods.Rdp())
    assert moments.sigma >= three.sigma


def test_the_sensitivity_is_that_of_all_examples_in_one_bin():
    strategy = dm.LambdaCGD(12, 0.5)
    one = dm.sensitivity(strategy, dm.BallsInBins(4)).upper
    assert dm.sensitivity(strategy, users(4, 3)).upper == pytest.approx(3.0 * one, rel=1e-12)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("eps", "delta"), [(2.0, 1e-4), (6.0, 1e-8)])
def test_a_calibration_is_proved_verified_and_below_group_privacy(eps, delta):
    strategy, sampling = dm.LambdaCGD(20, 0.5), users(10, 2)
    cal = dm.calibrate_sigma(strategy, eps, delta, participation=sampling)
    assert cal.guarantee.inside_delta
    assert str(cal.achieved.by).startswith("Balls-in-Bins certified sampling, 10 bins, 2 examples of a user")
    estimate = dm.calibrate_sigma(
        strategy, eps, delta, participation=sampling, method=dm.methods.Importance(0.007), rng=1
    )
    assert estimate.sigma * 0.99 < cal.sigma < estimate.sigma * 1.02
    moments = dm.calibrate_sigma(strategy, eps, delta, participation=sampling, method=dm.methods.Rdp())
    assert estimate.sigma < moments.sigma
    part = 0.5 * eps
    group = dm.calibrate_sigma(
        strategy,
        part,
        delta * math.expm1(part) / math.expm1(eps),
        participation=dm.BallsInBins(10),
        method=dm.methods.Importance(0.007),
        rng=1,
    )
    assert estimate.sigma < group.sigma
    for one in (cal, estimate, moments):
        found = dm.verify(one.certificate(clip_norm=1.0))
        assert found.ok, found.failures
    assert not dm.verify(with_checksum(dataclasses.replace(cal, sigma=0.95 * cal.sigma)).certificate()).ok


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: dm.delta(dm.BandedToeplitz(4, [1.0, -0.5]), 3.0, 1.0, participation=users(2, 2)),
            "negative",
        ),
        (
            lambda: dm.delta(dm.Identity(4), 3.0, 1.0, participation=users(2, 2), method=dm.methods.Pld()),
            r"method=None, Certified\(\), Importance\(\), Rdp\(\)",
        ),
        (
            lambda: dm.Mechanism(dm.Identity(4), users(2, 2), dm.Adjacency.REPLACE_ONE),
            "REPLACE_ONE",
        ),
        (lambda: dm.optimize(dm.LambdaCGD, users(2, 2), n=8), "nothing is fitted"),
        (
            lambda: dm.audits.empirical_epsilon(dm.Identity(4), 3.0, 1e-3, participation=users(2, 2)),
            "no test under",
        ),
        (lambda: dm.BallsInBins(2, fresh=True, max_examples_per_user=2), "independently in every epoch"),
    ],
)
def test_what_is_not_covered_is_refused(call, words):
    with pytest.raises(dm.UnsupportedCombinationError, match=words):
        call()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_profile_is_as_near_as_single_answers():
    """ADD was constant beyond the last draws, and so far above REMOVE in the tail."""
    mechanism = dm.Mechanism(dm.LambdaCGD(16, 0.5), users(8, 2))
    profile = dm.profile(mechanism, 2.5, rng=3)
    for delta in (1e-3, 1e-6, 1e-10):
        whole, single = profile.epsilon(delta), dm.epsilon(mechanism, 2.5, delta, rng=4)
        assert whole.upper <= 1.05 * single.upper
        assert whole.lower <= single.upper
        assert single.lower <= whole.upper


def test_a_sigma_that_rests_on_add_in_closed_form_is_right(monkeypatch):
    """Tests of ADD are left out wherever its bound is small enough; the integral has both directions."""
    monkeypatch.setattr(certified_accountant, "_NATS", 1e300)
    monkeypatch.setattr(certified_accountant, "_SMALL_ADD", 0.0)
    seen = []
    monkeypatch.setattr(
        accountants, "half_space_add", lambda gram, eps: seen.append(half_space_add(gram, eps)) or seen[-1]
    )
    strategy, eps, delta = dm.Identity(2), 3.0, 1e-4
    cal = dm.calibrate_sigma(strategy, eps, delta, participation=users(2, 2), rng=2)
    assert any(bound <= delta for bound in seen)
    assert 0.9 * delta < by_integral(strategy, 2, cal.sigma, eps) <= delta
    assert by_integral(strategy, 2, 0.97 * cal.sigma, eps) > delta
