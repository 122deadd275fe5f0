import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import dpmech as dm
from dpmech.calibration import risks as few_profiles
from dpmech.calibration.risks import PROFILES, by_few_profiles
from dpmech.exceptions import NumericalError
from dpmech.numerics import Provenance

BINS = dm.Mechanism(dm.LambdaCGD(6, 0.5), dm.BallsInBins(2))
PROBABLE = dm.Guarantee(dm.Kind.PROBABLE, 1e-9)


@pytest.fixture
def searched(monkeypatch):
    """A search among made-up profiles, mu = law(sigma, how many there were before); the rough sigma is 2."""

    def search(law, *, start=2.0, fall=1.0, rng=None):
        asked = []

        def profile(mechanism, sigma, *, method, rng, executor):
            assert mechanism is BINS
            assert executor is None
            asked.append((sigma, method, rng))
            mu = law(sigma, len(asked) - 1)
            risk = dm.Bounds(0.9 * mu, mu, PROBABLE, Provenance("profile.claim"))
            return SimpleNamespace(gaussian_mu=lambda tail: risk, sigma=sigma)

        monkeypatch.setattr(few_profiles, "profile", profile)
        monkeypatch.setattr(few_profiles, "_rough", lambda *_: (start, fall))
        target = dm.GaussianTarget(1.0, tail=1e-6)
        try:
            found = by_few_profiles(BINS, target, rtol=1e-3, rng=rng)
        except NumericalError:
            found = None
        return found, asked

    return search


@pytest.mark.parametrize("power", [0.8, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("start", [1.6, 1.9, 1.99, 2.0, 2.01, 2.1, 2.4])
def test_it_ends_just_above_the_smallest_sigma(searched, start, power):
    found, asked = searched(lambda sigma, _: (2.0 / sigma) ** power, start=start, fall=power)
    assert 2.0 <= found.sigma <= 2.0 * 1.01
    assert found.risk.upper <= 1.0
    assert found.profile.sigma == found.sigma
    assert len(asked) <= PROFILES


@pytest.mark.parametrize("fall", [0.7, 1.0, 1.4])
def test_a_fall_that_is_known_badly_costs_profiles_and_little_noise(searched, fall):
    found, asked = searched(lambda sigma, _: 2.0 / sigma, start=1.8, fall=fall)
    assert 2.0 <= found.sigma <= 2.0 * 1.015
    assert len(asked) <= PROFILES


def test_noise_in_the_proofs_is_stepped_over(searched):
    factors = [1.0, 1.004, 1.008, 0.997, 1.0]
    found, asked = searched(lambda sigma, number: factors[number] * 2.0 / sigma, start=1.98)
    assert found.risk.upper <= 1.0
    assert found.sigma <= 2.0 * 1.04
    assert found.sigma in [sigma for sigma, _, _ in asked]


def test_every_profile_has_a_share_of_beta_that_is_fixed_before(searched):
    generator = np.random.default_rng(3)
    found, asked = searched(lambda *_: 1.5, rng=generator)
    assert found is None
    assert len(asked) == PROFILES
    for _, method, rng in asked:
        assert method == dm.methods.Certified(calls=PROFILES)
        assert PROFILES * method.share(1) <= 1e-9
        assert rng is generator
    sigmas = [sigma for sigma, _, _ in asked]
    assert sigmas == sorted(sigmas)
    # No higher than what needs no sampling at all.
    assert sigmas[-1] <= 1.0101 * BINS.sensitivity.upper


def test_no_more_is_drawn_where_the_first_profile_is_close(searched):
    found, asked = searched(lambda *_: 0.999)
    assert len(asked) == 1
    assert found.sigma == 2.0


def test_places_run_down_to_the_tail():
    target = dm.GaussianTarget(0.8, tail=1e-9)
    first, *_, last = few_profiles._places(target)
    assert first == 1e-4
    # The curve of a Gaussian release, from its formula.
    below = norm.cdf(0.4 - last / 0.8) - math.exp(last) * norm.cdf(-0.4 - last / 0.8)
    assert below == pytest.approx(1e-9, rel=1e-3)
    assert few_profiles._places(dm.GaussianTarget(0.01, tail=0.5)) == [1e-4]


@pytest.mark.slow
def test_a_rough_sigma_is_near_that_of_the_sum_of_two_bins():
    start, fall = few_profiles._rough(BINS, dm.GaussianTarget(1.0, tail=1e-3), None)
    # It is meant to be what a certified profile needs, a few per cent more than the mechanism itself.
    assert 0.85 <= exact_mu(start, 1e-3) <= 1.02
    assert 0.5 <= fall <= 2.0


def gaussian_curve(mu, eps):
    return norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * norm.cdf(-mu / 2 - eps / mu)


def larger_delta(sigma, eps):
    """Delta of both directions for two bins: in the plane of both means, one coordinate in closed form.

    P puts the person into one of two bins, Q has nobody there. In a basis of the plane the means are (u, 0)
    and (v, w), w > 0: at given x the likelihood ratio grows in y, so that a line of y is cut once.
    """
    columns = BINS.strategy.to_dense()
    means = np.stack([columns[:, start::2].sum(axis=1) for start in (0, 1)]) / sigma
    first, inner, second = means[0] @ means[0], means[0] @ means[1], means[1] @ means[1]
    u = np.sqrt(first)
    v = inner / u
    w = np.sqrt(second - v**2)
    x, step = np.linspace(-12.0, 12.0 + u, 1201, retstep=True)

    def side(level, sign):
        """The integral of (p - e^level q) where that is positive (sign 1), or of its negative part."""
        rest = 2.0 * np.exp(level) - np.exp(u * x - 0.5 * u**2)
        with np.errstate(divide="ignore", invalid="ignore"):
            cut = (np.log(rest) - v * x + 0.5 * (v**2 + w**2)) / w
        cut = np.where(rest > 0.0, cut, -np.inf)
        p = 0.5 * (norm.pdf(x - u) * norm.cdf(-sign * cut) + norm.pdf(x - v) * norm.cdf(-sign * (cut - w)))
        q = norm.pdf(x) * norm.cdf(-sign * cut)
        return step * float(np.sum(sign * (p - np.exp(level) * q)))

    return max(side(eps, 1), np.exp(eps) * side(-eps, -1))


def exact_mu(sigma, tail):
    """The smallest mu, from the curve at many eps; sigma = 1 / mu is the scale of it."""
    mus = [0.0]
    for eps in np.linspace(0.0, 12.0, 49):
        delta = larger_delta(sigma, eps) - tail
        if delta > 0.0:
            mus.append(brentq(lambda mu, eps=eps, delta=delta: gaussian_curve(mu, eps) - delta, 1e-3, 50.0))
    return max(mus)


def smallest_sigma(mu, tail):
    return brentq(lambda sigma: exact_mu(sigma, tail) - mu, 1.0, 4.0, xtol=1e-3)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_bins_with_correlated_noise_keep_mu_below_its_limit(tmp_path):
    target, lines = dm.GaussianTarget(1.0, tail=1e-6), []
    found = dm.calibrate_sigma_to(BINS, target, rng=1, progress=lines.append)
    assert found.risk.upper <= 1.0
    assert found.risk == target.risk(found.profile)
    # At eps near 0 mu is as far above its own as delta is: the draws are aimed 5 % above, and the hull 1 %.
    least = smallest_sigma(1.0, 1e-6)
    assert least <= found.sigma <= 1.08 * least
    assert found.risk.lower <= exact_mu(found.sigma, 1e-6) <= found.risk.upper
    # Of a profile beta is outside delta, and the same for all that were drawn.
    assert found.risk.guarantee == found.profile.guarantee == PROBABLE
    assert 1 <= sum("profile" in line for line in lines) <= PROFILES
    assert found.proof is None
    cal = found.calibration(1e-5)
    assert (cal.sigma, cal.budget.delta, cal.guarantee) == (found.sigma, 1e-5, dm.Guarantee(dm.Kind.BOUND))
    assert larger_delta(found.sigma, cal.budget.eps) <= 1e-5
    assert dm.verify(cal.certificate()).ok
    assert cal.certificate(profile=found.profile).nodes.guarantee == PROBABLE


@pytest.mark.slow
@pytest.mark.exhaustive
def test_draws_find_the_sigma_that_the_law_of_independent_noise_has():
    """Norms that are not quite the same are no longer bins of one law, so that draws have to prove mu."""
    target, bins = dm.GaussianTarget(1.0, tail=1e-6), dm.BallsInBins(4)
    exact = dm.calibrate_sigma_to(dm.Identity(8), target, participation=bins)
    alike = dm.Diagonal(np.where(np.arange(8) == 0, 1.0 + 1e-9, 1.0))
    found = dm.calibrate_sigma_to(alike, target, participation=bins)
    assert found.risk.guarantee == PROBABLE
    assert exact.risk.guarantee.error == 0.0
    # The exact one is at most 1e-3 above the smallest sigma.
    assert exact.sigma / 1.001 <= found.sigma <= 1.08 * exact.sigma
