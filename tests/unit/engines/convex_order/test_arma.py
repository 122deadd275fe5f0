"""Matrices of second order: their entries, what they dominate, their traces, and delta by plain samples."""

import numpy as np
import pytest

from dpmech.engines.convex_order.mixture_ring import MixtureFits
from dpmech.engines.convex_order.arma import ArmaGram, dominating, arma_fits
from dpmech.engines.convex_order.arma_lattice import build_arma
from dpmech.engines.convex_order.arma_traces import ArmaTraces
from dpmech.engines.convex_order.transform import mixture_delta
from dpmech.exceptions import InvalidParameterError, NumericalError
from tests.support.bins_oracles import plain_monte_carlo

GRAM = ArmaGram(12, 0.3, (0.6, 0.2, 0.4), (-0.3, 0.2))


def circulant(profile, bins):
    index = np.arange(bins)
    distance = np.abs(index[:, None] - index[None, :])
    return np.asarray(profile)[np.minimum(distance, bins - distance)]


def shift(bins, places):
    return np.roll(np.eye(bins), places, axis=0)


def covariance(gram):
    """From the recursion and the filter as matrices, without spectra."""
    bins = gram.bins
    filtered = sum(one * shift(bins, lag) for lag, one in enumerate(gram.filter))
    recursion = sum(one * shift(bins, lag) for lag, one in enumerate((1.0, *gram.recursion)))
    response = filtered @ np.linalg.inv(recursion)
    return gram.white * np.eye(bins) + response @ response.T, recursion, filtered


def banded(bins, bands):
    found = np.zeros(bins // 2 + 1)
    for gap in range(len(bands)):
        found[gap] = np.dot(bands[: len(bands) - gap], bands[gap:])
    return found / found[0]


@pytest.mark.parametrize("bins", [12, 13])
def test_entries_are_those_of_the_recursion_and_the_filter(bins):
    gram = ArmaGram(bins, 0.3, (0.6, -0.2, 0.4), (-0.9, 0.5))
    matrix, recursion, filtered = covariance(gram)
    raised = circulant(gram.profile(), bins) - matrix
    assert np.min(raised) > 0.0
    assert np.max(raised) < 1e-10
    np.testing.assert_allclose(gram.scaled(4.0).profile(), 4.0 * gram.profile(), atol=1e-10)
    assert gram.diagonal == pytest.approx(matrix[0, 0])
    assert matrix.sum() / bins**2 <= gram.mean <= matrix.sum() / bins**2 * (1.0 + 1e-6)
    assert gram.determinant() == pytest.approx(np.linalg.det(recursion))
    inverse = np.linalg.inv(recursion)
    variance, means = gram.shifts()
    assert variance == pytest.approx((inverse @ inverse.T)[0, 0])
    np.testing.assert_allclose(np.sort(means), np.sort((inverse @ inverse.T @ filtered.T)[:, 0]), atol=1e-12)


@pytest.mark.parametrize("recursion", [(0.0, 1.0), (1.3, 0.2), (-1.3, 0.2)])
def test_a_recursion_that_grows_is_refused(recursion):
    with pytest.raises(InvalidParameterError, match="stable"):
        ArmaGram(12, 0.3, (1.0, 0.0, 0.0), recursion)


@pytest.mark.parametrize("bands", [[1.0, 0.2, 0.7, 0.1, 0.4], [1.0, 0.5, 0.375, 0.3125]])
def test_the_difference_is_copositive(bands):
    bins = 40
    profile = 0.9 * banded(bins, bands)
    found = arma_fits(MixtureFits(profile, bins, 1.0, high=True), profile)
    assert found
    rng = np.random.default_rng(7)
    for gram in found:
        difference = covariance(gram)[0] - circulant(profile, bins)
        for shape in (0.05, 0.3, 1.0, 10.0):
            tries = rng.gamma(shape, size=(4000, bins))
            assert np.min(np.einsum("si,ij,sj->s", tries, difference, tries)) >= 0.0
        waves = 1.0 + np.cos(2.0 * np.pi * np.outer(np.arange(bins), np.arange(bins)) / bins)
        assert np.min(np.einsum("si,ij,sj->s", waves, difference, waves)) >= -1e-12
        # the planted fault: a matrix 20 % smaller does not dominate
        smaller = 0.8 * covariance(gram)[0] - circulant(profile, bins)
        assert np.min(np.einsum("si,ij,sj->s", waves, smaller, waves)) < 0.0 or smaller[0, 0] < 0.0


def test_three_bands_are_matched():
    profile = 0.9 * banded(60, [1.0, 0.0, 0.5])
    gram = arma_fits(MixtureFits(profile, 60, 1.0, high=True), profile)[0]
    np.testing.assert_allclose(gram.profile(), profile, atol=0.02)


def test_what_is_missing_is_added_to_the_white_part():
    gram = ArmaGram(12, 0.3, (1.0, 0.0, 0.5), (0.0, 0.0))
    raised = gram.profile() + np.array([0.0, 0.01, 0.0, 0.0, 0.0, 0.0, 0.02])
    found = dominating(gram, raised, np.zeros(7))
    difference = covariance(found)[0] - circulant(raised, 12)
    assert np.min(np.linalg.eigvalsh(difference)) >= 0.0
    assert 0.04 < found.white - 0.3 < 0.07
    assert dominating(gram, gram.profile() - 1e-6, np.zeros(7)).white == 0.3


@pytest.mark.parametrize("remove", [True, False])
def test_the_lattice_has_the_moments_of_the_law(remove):
    lattice = build_arma(GRAM, remove=remove, ripple=1e-6, outside=1e-8)
    mass, mean, error = lattice.moments()
    assert error < 1e-9
    assert mass == pytest.approx(1.0, abs=1e-5)
    # the window of ADD cuts off larger likelihood ratios
    assert mean == pytest.approx(1.0, abs=1e-5 if remove else 1e-3)


@pytest.mark.parametrize("exponent", [0.5, 3.0 - 2.0j, 40.0j])
@pytest.mark.parametrize("bins", [24, 29])
def test_a_trace_is_within_its_error_of_the_power_in_full(exponent, bins):
    gram = ArmaGram(bins, 0.3, (0.6, 0.2, 0.4), (-0.3, 0.2))
    lattice = build_arma(gram, remove=True, ripple=0.05, outside=1e-4)
    defect = -np.expm1(-exponent * np.exp(lattice.sums()) / bins).astype(np.complex128)
    value, error = ArmaTraces(lattice).trace(defect, np.zeros(defect.size))
    count = lattice.nodes.size
    whole = np.zeros((count,) * 4, dtype=np.complex128)
    for middle in range(count):
        for new in range(count):
            whole[:, middle, middle, new] = (
                lattice.steps[:, middle, new] * (1.0 - defect.reshape((count,) * 3))[:, middle, new]
            )
    truth = np.trace(np.linalg.matrix_power(whole.reshape(count**2, count**2), bins))
    assert abs(value - truth) <= error + 1e-12
    assert error < 1e-6
    # the planted fault: one step more
    assert abs(np.trace(np.linalg.matrix_power(whole.reshape(count**2, -1), bins + 1)) - truth) > 10.0 * error


def test_too_fine_a_lattice_is_refused():
    with pytest.raises(NumericalError, match="values of v"):
        build_arma(
            ArmaGram(12, 0.001, (1.0, 0.2, 0.4), (0.0, 0.0)), remove=True, ripple=0.1, outside=1e-4
        )


@pytest.mark.parametrize("remove", [True, False])
def test_delta_against_plain_samples(remove):
    gram, eps = ArmaGram(40, 0.3, (0.6, 0.2, 0.4), (-0.3, 0.2)), 0.3
    found = mixture_delta(gram, eps, rel_error=0.02, remove=remove)
    means, errors = plain_monte_carlo(covariance(gram)[0], eps, np.random.default_rng(5), samples=200_000)
    place = 0 if remove else 1
    least, most = means[place] - 6.12 * errors[place], means[place] + 6.12 * errors[place]
    assert least <= found <= 1.1 * most
    # the planted fault: entries 20 % smaller
    assert mixture_delta(gram.scaled(0.8), eps, rel_error=0.02, remove=remove) < least


def test_opposite_bins_are_counted_once():
    # 1 and 3 are neighbours of 0, but only 2 is opposite to it, whose negative entry would count twice
    gram, eps = ArmaGram(4, 0.05, (0.3, 0.0, -0.29), (0.0, 0.0)), 0.5
    found = mixture_delta(gram, eps, rel_error=0.1, remove=True)
    means, errors = plain_monte_carlo(covariance(gram)[0], eps, np.random.default_rng(5), samples=2_000_000)
    assert means[0] - 6.12 * errors[0] <= found <= 1.3 * (means[0] + 6.12 * errors[0])


def test_wide_bands_are_not_searched():
    profile = 0.9 * banded(60, [1.0] * 12)
    assert arma_fits(MixtureFits(profile, 60, 1.0, high=True), profile) == []
