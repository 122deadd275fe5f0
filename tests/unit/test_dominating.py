import numpy as np
import pytest

from dpmech.accounting.dominating import dominating_ring, ring_candidates
from dpmech.accounting.ring_gram import RingGram
from dpmech.exceptions import InvalidParameterError


@pytest.mark.parametrize(
    "ring", [RingGram(390, 0, 6.1, 0.9, 0), RingGram(7, 0, 2.0, 0.3, 0), RingGram(2, 0, 1, 0.5, 0)]
)
def test_a_ring_dominates_itself(ring):
    found = dominating_ring(ring.profile(), ring.bins)
    assert found.white == found.constant == 0.0
    assert found.amplitude == pytest.approx(ring.amplitude, rel=1e-9)
    assert found.decay == pytest.approx(ring.decay, rel=1e-6)
    assert np.all(found.profile() >= ring.profile())


@pytest.mark.parametrize("tilt", [0.0, 1.0, 3.0])
def test_dominating_rings_dominate(tilt):
    generator = np.random.default_rng(11)
    for bins in (2, 3, 6, 15):
        for _ in range(2):
            spectrum = generator.exponential(size=bins // 2 + 1) ** 2
            profile = np.fft.irfft(spectrum, bins)[: bins // 2 + 1]
            found = dominating_ring(profile, bins, tilt=tilt)
            assert np.all(found.profile() >= profile)
            assert found.diagonal <= profile[0] * (1 + 1e-5)


def test_dominating_ring_special_cases():
    assert dominating_ring([0.0, 0.0], 3).diagonal == 0.0
    assert dominating_ring([2.0], 1).constant == pytest.approx(2.0)
    flat = dominating_ring([2.0, 2.0, 2.0], 4)
    assert (flat.white, flat.amplitude) == (0.0, 0.0)
    white = dominating_ring([2.0, 0.0, 0.0], 5)
    assert white.diagonal == pytest.approx(2.0, rel=1e-6)
    negative = dominating_ring([1.0, -0.4, 0.1], 5)
    assert np.all(negative.profile() >= [1.0, -0.4, 0.1])
    assert len(ring_candidates([2.0, 1.0, 0.2], 5)) >= 1


@pytest.mark.parametrize("profile", [[1.0, 2.0], [1.0], [-1.0, 0.0], [1.0, 0.1, 0.1], [1.0, -1.5]])
def test_dominating_ring_refuses(profile):
    with pytest.raises(InvalidParameterError):
        dominating_ring(profile, 3)
