"""Poisson sampling under REPLACE_ONE: the dominating pair, its composition, and very little noise.

Oracles: dense quadrature in the plane for all pairs of gradients, scipy densities on a grid and their
convolution, and the accountant of dp_accounting.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

import dpmech as dm
from dpmech.engines.losses.replaced import ReplacedLoss
from dpmech.engines.losses.revealed import RevealedReplacement

REPLACE = dm.Adjacency.REPLACE_ONE


def of_pair(q, sigma, eps, u, v, half=9.0, points=700):
    """The divergence of (1 - q) N(0) + q N(u) against (1 - q) N(0) + q N(v) in the plane, by a dense sum."""
    axis = np.linspace(-half * sigma - 1, half * sigma + 1, points)
    x, y = np.meshgrid(axis, axis, indexing="ij")

    def density(a, b):
        square = (x - a) ** 2 + (y - b) ** 2
        return np.exp(-square / (2 * sigma**2)) / (2 * math.pi * sigma**2)

    none = (1 - q) * density(0.0, 0.0)
    excess = none + q * density(*u) - math.exp(eps) * (none + q * density(*v))
    return float(np.maximum(excess, 0.0).sum() * (axis[1] - axis[0]) ** 2)


@pytest.mark.parametrize(("q", "sigma", "eps"), [(0.1, 0.8, 0.5), (0.5, 1.0, 1.0), (0.9, 2.0, 0.1)])
def test_no_two_gradients_are_worse_than_opposite_ones(q, sigma, eps):
    """Equality for opposite ones; a coordinate that two gradients share, or a shorter one, costs less."""
    bound = dm.delta(dm.Identity(1), sigma, eps, participation=dm.Poisson(q), adjacency=REPLACE)
    assert bound.lower == pytest.approx(bound.upper, rel=2e-3)
    opposite = of_pair(q, sigma, eps, (1.0, 0.0), (-1.0, 0.0))
    assert opposite == pytest.approx(bound.upper, rel=3e-3)
    rng, worst = np.random.default_rng(5), 0.0
    for _ in range(12):
        (a, b), (r, s) = rng.uniform(0, 2 * math.pi, 2), np.sqrt(rng.uniform(0, 1, 2))
        u, v = (r * math.cos(a), r * math.sin(a)), (s * math.cos(b), s * math.sin(b))
        worst = max(worst, of_pair(q, sigma, eps, u, v))
    assert 0.2 * opposite < worst <= opposite * (1 + 1e-6)
    # A removed example of twice the norm would cost more: doubling is no close bound.
    assert of_pair(q, sigma, eps, (2.0, 0.0), (0.0, 0.0)) > 1.005 * bound.upper


def by_convolution(q, sigma, steps, eps, spacing=2e-4):
    """Delta of the product, from masses on a grid of outputs put on the nearest losses; no dpmech in it."""
    x = np.arange(-14 * sigma - 1, 14 * sigma + 1, 1e-3)
    none = (1 - q) * stats.norm.pdf(x, 0, sigma)
    p, other = (none + q * stats.norm.pdf(x, mean, sigma) for mean in (1.0, -1.0))
    places = np.round(np.log(p / other) / spacing).astype(int)
    first = places.min()
    law = np.bincount(places - first, p * 1e-3)
    whole = law
    for _ in range(steps - 1):
        whole = np.convolve(whole, law) if whole.size * law.size < 1e8 else fft_product(whole, law)
    losses = (np.arange(whole.size) + steps * first) * spacing
    return float(whole @ np.maximum(-np.expm1(eps - losses), 0.0))


def fft_product(one, other):
    size = one.size + other.size - 1
    return np.fft.irfft(np.fft.rfft(one, size) * np.fft.rfft(other, size), size)


@pytest.mark.parametrize(("q", "sigma", "steps", "eps"), [(0.2, 1.0, 3, 1.0), (0.5, 1.5, 4, 2.0)])
def test_few_steps_by_convolution(q, sigma, steps, eps):
    found = dm.delta(dm.Identity(steps), sigma, eps, participation=dm.Poisson(q), adjacency=REPLACE)
    known = by_convolution(q, sigma, steps, eps)
    assert found.lower * (1 - 2e-3) <= known <= found.upper * (1 + 2e-3)
    assert by_convolution(q, 0.97 * sigma, steps, eps) > found.upper * 1.02


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"), [(0.01, 1.0, 1000, 1e-6), (0.5, 4.0, 10, 1e-5), (0.1, 2.0, 1, 1e-3)]
)
def test_another_accountant_agrees(q, sigma, steps, delta):
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-4
    )
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    accountant.compose(event, steps)
    found = dm.epsilon(dm.Identity(steps), sigma, delta, participation=dm.Poisson(q), adjacency=REPLACE)
    assert found.lower * (1 - 2e-3) <= accountant.get_epsilon(delta) <= found.upper * (1 + 2e-3)


@pytest.mark.parametrize(("q", "s"), [(1e-4, 0.3), (0.3, 1.0), (0.95, 0.2), (0.5, 5.0)])
def test_losses_against_fifty_digits(q, s):
    loss = ReplacedLoss(q, s)
    x = np.linspace(-3.0, 4.0, 29)
    found, off = loss.log_ratio(x), loss.rounding(x)[0]
    with mpmath.workdps(50):
        for at, value, doubt in zip(x, found, off, strict=True):
            none = (1 - mpmath.mpf(q)) * mpmath.npdf(at, 0, s)
            one, other = (none + q * mpmath.npdf(at, mean, s) for mean in (1, -1))
            assert abs(mpmath.log(one / other) - value) <= doubt
    inner = np.abs(found) > 1e-3
    assert loss.output_at(found[inner]) == pytest.approx(x[inner], rel=1e-6, abs=1e-6)


def little_noise(q, s, steps, eps):
    """Delta of the product for tiny noise, by enumeration of who takes part in either law: 40 digits."""
    total = mpmath.mpf(0)
    for count in range(1, steps + 1):
        ways = math.comb(steps, count) * mpmath.mpf(q) ** count * (1 - mpmath.mpf(q)) ** (steps - count)
        mu, at = mpmath.sqrt(count) / s, eps + count * mpmath.log((1 - mpmath.mpf(q)) / q)
        total += ways * (mpmath.ncdf(mu / 2 - at / mu) - mpmath.exp(at) * mpmath.ncdf(-mu / 2 - at / mu))
    return total


@pytest.mark.parametrize(("q", "s", "steps"), [(0.01, 0.04, 30), (0.7, 0.05, 6)])
def test_bounds_for_very_little_noise(q, s, steps):
    """They enclose what the cells of outputs give, and the lattices where these are still able to."""
    one = dm.sensitivity(dm.Identity(1))
    revealed = RevealedReplacement(steps, (q, q), one)
    for share in (0.6, 1.0):
        eps = share / (2 * s * s) * max(1, steps * q / 2)
        lower, upper = revealed.delta(s, eps, 1e-3)
        known = float(little_noise(q, mpmath.mpf(s), steps, mpmath.mpf(eps)))
        assert lower <= known * (1 + 1e-9)
        assert known <= upper * (1 + 1e-9)
        assert lower > 0.99 * upper


@pytest.mark.parametrize("eps", [1e3, 1e5, 1e8])
def test_large_eps(eps):
    cal = dm.calibrate_sigma(
        dm.Identity(3900), eps, 1e-5, participation=dm.Poisson(128 / 50_000), adjacency=REPLACE
    )
    removed = dm.calibrate_sigma(dm.Identity(3900), eps, 1e-5, participation=dm.Poisson(128 / 50_000))
    # The other example is almost surely absent where the first one is seen: no doubling.
    assert removed.sigma * 0.999 < cal.sigma < 1.01 * removed.sigma
    assert cal.achieved.upper <= eps


def test_between_removing_an_example_and_doubling_its_norm():
    for q, sigma in itertools.product((0.05, 0.3), (0.8, 1.5)):
        own = dm.delta(dm.Identity(20), sigma, 1.0, participation=dm.Poisson(q), adjacency=REPLACE)
        once = dm.delta(dm.Identity(20), sigma, 1.0, participation=dm.Poisson(q))
        assert once.upper < own.upper
        alone = dm.delta(dm.Identity(20), sigma, 1.0, adjacency=REPLACE)
        assert own.upper < alone.upper


def test_its_profile_and_methods():
    cal = dm.calibrate_sigma(dm.Identity(50), 2.0, 1e-5, participation=dm.Poisson(0.1), adjacency=REPLACE)
    profile = cal.profile()
    assert profile.epsilon(1e-5).upper == pytest.approx(cal.achieved.upper, rel=2e-3)
    for eps in (0.0, 1.0):
        both = [profile.hockey_stick(eps, add=add) for add in (False, True)]
        assert both[0].upper == pytest.approx(both[1].upper, rel=1e-9)
    low, high = profile.zcdp.lower, profile.zcdp.upper
    assert low == pytest.approx(50 / (2 * cal.sigma**2), rel=1e-9)
    assert low < high <= 4 * low
    for method in (dm.methods.Prv(), dm.methods.Rdp()):
        with pytest.raises(dm.UnsupportedCombinationError, match="REPLACE_ONE"):
            dm.epsilon(cal.mechanism, cal.sigma, 1e-5, method=method)
    with pytest.raises(dm.UnsupportedCombinationError, match="REPLACE_ONE"):
        dm.interchange.to_dp_event(cal)


def test_what_is_refused_says_the_way_out():
    for participation, words in (
        (dm.Poisson(0.1, 3), "without max_examples_per_user"),
        (dm.CyclicPoisson(0.1, 3, max_examples_per_user=2), "without max_examples_per_user"),
        (dm.Poisson(0.1, truncated_batch_size=3, dataset_size=9), "without truncated_batch_size"),
        (dm.BallsInBins(3), "doubling is not proven"),
    ):
        with pytest.raises(dm.UnsupportedCombinationError, match=words):
            dm.Mechanism(dm.Identity(3), participation, REPLACE)


def test_an_attack_with_opposite_gradients_finds_less_noise():
    cal = dm.calibrate_sigma(dm.Identity(6), 1.0, 0.05, participation=dm.Poisson(0.5), adjacency=REPLACE)

    def found(sigma):
        return dm.audits.empirical_epsilon(
            cal.mechanism,
            cal.sigma,
            0.05,
            mechanism=lambda gradients, rng: gradients + sigma * rng.standard_normal(gradients.shape),
            samples=60_000,
            confidence=1 - 1e-9,
            rng=2,
        ).lower

    assert found(cal.sigma) <= 1.0
    assert found(0.6 * cal.sigma) > 1.0
