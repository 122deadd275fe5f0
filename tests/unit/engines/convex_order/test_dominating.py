import mpmath
import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.convex_order import ring as dominating
from dpmech.engines.convex_order.ring import RingGram, dominating_ring
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram, ring_profile
from dpmech.engines.gaussian_mixture.estimate import estimate_delta
from dpmech.engines.gaussian_mixture.gram import CirculantGram
from dpmech.exceptions import InvalidParameterError
from tests.support.quick_cases import slow_but


@pytest.mark.parametrize(
    "ring", [RingGram(390, 0, 6.1, 0.9, 0), RingGram(7, 0, 2.0, 0.3, 0), RingGram(2, 0, 1, 0.5, 0)]
)
def test_a_ring_dominates_itself(ring):
    found = dominating_ring(ring.profile(), ring.bins)
    assert found.white == found.constant == 0.0
    assert found.amplitude == pytest.approx(ring.amplitude, rel=1e-9)
    assert found.decay == pytest.approx(ring.decay, rel=1e-6)
    assert np.all(found.profile() >= ring.profile())


@pytest.mark.parametrize("eps", slow_but([0.0, 1.0, 8.0], 1))
def test_dominating_rings_dominate(eps):
    generator = np.random.default_rng(11)
    for bins in (2, 3, 6, 15):
        for _ in range(2):
            spectrum = generator.exponential(size=bins // 2 + 1) ** 2
            profile = np.fft.irfft(spectrum, bins)[: bins // 2 + 1]
            found = dominating_ring(profile, bins, eps=eps)
            assert np.all(found.profile() >= profile)
            assert found.diagonal <= profile[0] * (1 + 1e-5)


@pytest.mark.slow
def test_the_ring_costs_little_delta():
    """32 bands have no single exponential: importance sampling of the ring and of the strategy."""
    bins, eps, scale = 78, 8.0, 2.2**-2
    strategy = dm.InverseSquareRoot(10 * bins, 32)
    ring = dominating_ring(ring_profile(strategy, bins) * scale, bins, eps=eps)
    distance = np.minimum(np.arange(bins), bins - np.arange(bins))
    grams = CirculantGram(ring.profile()[distance]), bin_gram(strategy, bins).scaled(scale)
    above, below = (estimate_delta(gram, eps, rng=np.random.default_rng(0)) for gram in grams)
    assert ring.constant > 0.0
    assert above.upper > below.lower
    assert above.delta < 1.7 * below.delta
    far = dominating_ring(ring_profile(strategy, bins) * scale, bins, eps=0.01)
    assert np.all(far.profile() >= ring_profile(strategy, bins) * scale)


def test_dominating_ring_special_cases():
    assert dominating_ring([0.0, 0.0], 3).diagonal == 0.0
    assert dominating_ring([2.0], 1).constant == pytest.approx(2.0)
    flat = dominating_ring([2.0, 2.0, 2.0], 4)
    assert (flat.white, flat.amplitude) == (0.0, 0.0)
    white = dominating_ring([2.0, 0.0, 0.0], 5)
    assert white.diagonal == pytest.approx(2.0, rel=1e-6)
    negative = dominating_ring([1.0, -0.4, 0.1], 5)
    assert np.all(negative.profile() >= [1.0, -0.4, 0.1])


@pytest.mark.parametrize("profile", [[1.0, 2.0], [1.0], [-1.0, 0.0], [1.0, 0.1, 0.1], [1.0, -1.5]])
def test_dominating_ring_refuses(profile):
    with pytest.raises(InvalidParameterError):
        dominating_ring(profile, 3)


def shortfall(profile, bins, sigma):
    """How far the ring of the accountant at sigma is below the exact profile there, at 50 digits."""
    ring = dominating_ring(profile * sigma**-2, bins).scaled(sigma**2).scaled(sigma**-2)
    with mpmath.workdps(50):
        decay = mpmath.mpf(ring.decay)
        worst = -mpmath.inf
        for d, entry in enumerate(profile.tolist()):
            shape = (decay**d + decay ** (bins - d)) / (1 + decay**bins)
            has = ring.amplitude * shape + mpmath.mpf(ring.constant) + (ring.white if d == 0 else 0)
            worst = max(worst, 1 - has * mpmath.mpf(sigma) ** 2 / mpmath.mpf(entry))
        return float(worst)


@pytest.mark.slow
def test_a_ring_dominates_in_exact_arithmetic_at_another_sigma(monkeypatch):
    rng = np.random.default_rng(2)
    cases = [
        (RingGram(bins, 0.0, rng.uniform(0.5, 2.0), decay, 0.0).profile(), bins, rng.uniform(0.5, 4.0))
        for bins in (3, 8, 13)
        for decay in rng.uniform(0.3, 0.95, 8)
    ]
    found = [shortfall(*case) for case in cases]
    assert max(found) <= 0.0
    # the decay is matched to a few roundings of its own: no entry is raised by more than 1e-12
    assert min(found) > -1e-12
    monkeypatch.setattr(dominating, "SAFETY", 0.0)
    assert any(shortfall(*case) > 0.0 for case in cases)


def test_any_eps_from_zero_on():
    assert dominating_ring([2.0], 1, eps=0.0).constant == pytest.approx(2.0)
    with pytest.raises(InvalidParameterError, match="eps"):
        dominating_ring([2.0], 1, eps=-1e-3)
