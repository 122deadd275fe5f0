import numpy as np
import pytest

from dpmech.engines.convex_order import mixture_ring as mixture_fit
from dpmech.engines.convex_order.mixture_ring import MixtureGram, dominating_mixture, excess
from dpmech.exceptions import NumericalError
from tests.support.bins_oracles import quadrature
from tests.support.quick_cases import slow_but


def circulant(profile, bins):
    index = np.arange(bins)
    distance = np.abs(index[:, None] - index[None, :])
    return np.asarray(profile)[np.minimum(distance, bins - distance)]


def banded(bins, width):
    """The profile of a triangular covariance: no exponential is like it."""
    return np.maximum(1.0 - np.arange(bins // 2 + 1) / width, 0.0)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("eps", slow_but([0.1, 1.0, 8.0], 1))
def test_the_difference_is_copositive(parts, eps):
    bins = 40
    profile = 0.6 * banded(bins, 7)
    gram = dominating_mixture(profile, bins, eps=eps, parts=parts)
    assert len(gram.parts) <= parts
    difference = circulant(gram.profile() - profile, bins)
    rng = np.random.default_rng(7)
    for shape in (0.05, 0.3, 1.0, 10.0):
        tries = rng.gamma(shape, size=(4000, bins))
        assert np.min(np.einsum("si,ij,sj->s", tries, difference, tries)) >= 0.0
    # neighbours all at once, and every cosine shifted up: where an entry below K would show
    waves = 1.0 + np.cos(2.0 * np.pi * np.outer(np.arange(1, 20), np.arange(bins)) / bins)
    assert np.min(np.einsum("si,ij,sj->s", waves, difference, waves)) >= 0.0
    assert gram.diagonal >= profile[0]


def rising(bins, bands):
    """The profile of a strategy whose bands do not decrease, with 1 on its diagonal."""
    found = np.zeros(bins // 2 + 1)
    for gap in range(len(bands)):
        found[gap] = np.dot(bands[: len(bands) - gap], bands[gap:])
    return found / found[0]


@pytest.mark.parametrize("bins", [40, 41])
def test_entries_that_rise_are_met_by_a_negative_decay(bins):
    profile = 0.8 * rising(bins, [1.0, 0.2, 0.7])
    assert profile[2] > 1.5 * profile[1]
    fits = mixture_fit.MixtureFits(profile, bins, 1.0)
    found, before = fits.best(2), fits.best(1)
    assert found.parts[0][1] > 0.0 > found.parts[1][1]
    height = fits.height.of
    # A bound on the moments that is several times smaller: 1 is about 6 % of sigma.
    assert np.min(height(found.profile())) < np.min(height(before.profile())) - 0.5
    difference = circulant(found.profile() - profile, bins)
    rng = np.random.default_rng(8)
    for shape in (0.05, 0.3, 1.0, 10.0):
        tries = rng.gamma(shape, size=(4000, bins))
        assert np.min(np.einsum("si,ij,sj->s", tries, difference, tries)) >= 0.0
    # Two bins with one weight, at every distance.
    assert np.min(2.0 * difference[0, 0] + 2.0 * difference) >= 0.0


@pytest.mark.parametrize("bins", [100, 101])
def test_entries_that_rise_and_fall_need_waves_of_high_frequency(bins):
    profile = 0.9 * rising(bins, [1.0, 0.2, 0.7, 0.1, 0.4])
    lengths = tuple(mixture_fit._length(decay) for decay in (0.71, 0.76))
    searches = [mixture_fit.MixtureFits(profile, bins, 1.0, high=high) for high in (True, False)]
    found, low = (fits._solve(lengths, fits.prices, constant=False, signs=(1.0, -1.0)) for fits in searches)
    difference = circulant(found.gram.profile() - profile, bins)
    assert np.min(difference) < -1e-3
    # Copositive: at pairs, at all bins at once, and along every cosine.
    assert difference[0, 0] + np.min(difference) >= 0.0
    waves = 1.0 + np.cos(2.0 * np.pi * np.outer(np.arange(bins), np.arange(bins)) / bins)
    assert np.min(np.einsum("si,ij,sj->s", waves, difference, waves)) >= 0.0
    assert found.price < low.price - 0.1


def test_entries_that_fall_are_searched_without_negative_decays():
    fits = mixture_fit.MixtureFits(0.6 * banded(40, 7), 40, 1.0)
    assert not fits.rises
    assert all(decay > 0.0 for _, decay in fits.best(2).parts)


def test_at_small_eps_it_falls_below_some_entries():
    profile = 0.05 * banded(60, 12)
    gram = dominating_mixture(profile, 60, eps=0.25, parts=1)
    assert np.min(gram.profile() - profile) < -1e-5


@pytest.mark.parametrize("eps", [0.2, 1.0])
def test_delta_grows_along_a_copositive_difference(eps):
    """Positive semidefinite plus non-negative, with a negative entry, by quadrature; both directions."""
    base = np.array([[1.0, 0.5], [0.5, 1.2]])
    lift = np.array([[0.10, -0.09], [-0.09, 0.11]])
    assert np.min(np.linalg.eigvalsh(lift)) > 0.0
    values = np.array([quadrature(base + share * lift, eps) for share in (0.0, 0.5, 1.0)])
    assert np.all(np.diff(values, axis=0) > 0.0)
    # without what pays for it on the diagonal it falls
    assert np.all(np.array(quadrature(base - 0.09 * (1.0 - np.eye(2)), eps)) < values[0])


def test_excess_counts_the_waves():
    gram = MixtureGram(12, 0.5, ((1.0, 0.5),), 0.0)
    assert excess(gram.profile(), np.zeros(7), gram) == pytest.approx(0.0, abs=1e-15)
    # A cosine is 1 at distance 0: K' is short of K plus it there.
    waves = 0.1 * np.cos(2.0 * np.pi * 2.0 * np.arange(7) / 12.0)
    assert excess(gram.profile(), waves, gram) == pytest.approx(-0.1)


def test_a_ring_is_found_again():
    gram = MixtureGram(60, 0.05, ((6.1, 0.9),), 0.0)
    found = dominating_mixture(gram.profile(), 60, eps=8.0, parts=1)
    np.testing.assert_allclose(found.profile(), gram.profile(), rtol=0.01, atol=0.01)


def test_none_found(monkeypatch):
    monkeypatch.setattr(mixture_fit.MixtureFits, "_solve", lambda *_, **__: None)
    with pytest.raises(NumericalError, match="dominates"):
        dominating_mixture(banded(20, 4), 20, eps=1.0)
