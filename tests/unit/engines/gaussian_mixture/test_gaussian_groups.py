"""Groups of shifted Gaussians against densities from scipy and means one by one."""

import math

import numpy as np
import pytest
from scipy import special, stats

from dpmech.engines.gaussian_mixture import points as gaussian_groups
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.gram import CirculantGram
from dpmech.engines.gaussian_mixture.points import LiftedGroup, PointGroup
from dpmech.engines.gaussian_mixture.tuples import FreeTuples

ROW = np.array([2.0, 0.9, 0.4, 0.2, 0.4, 0.9])
CIRCULANT = np.array([np.roll(ROW, i) for i in range(6)])
UNEVEN = CIRCULANT + np.outer(np.arange(1.0, 7.0), np.arange(1.0, 7.0)) / 20.0
POINTS = np.random.default_rng(3).standard_normal((40, 6)) * 2.0


def by_hand(matrix, tilts, values):
    """Log density of equally probable N(K v, K) against N(0, K)."""
    plain = stats.multivariate_normal(np.zeros(len(matrix)), matrix).logpdf(values)
    shifted = [stats.multivariate_normal(matrix @ v, matrix).logpdf(values) for v in tilts]
    return special.logsumexp(shifted, axis=0) - math.log(len(tilts)) - plain


def uniforms(count):
    """One inside every cell, and the ends."""
    return np.concatenate([(np.arange(count) + 0.5) / count, [0.0, 1.0 - 2.0**-53]])


def test_points_of_a_dense_matrix():
    tilts = np.array([[1.0, 0.0, 0.2, 0.0, 0.0, 0.5], [0.0, 2.0, 0.0, 0.0, 0.3, 0.0], [0.5] * 6])
    gram = DenseGram(UNEVEN)
    group = PointGroup.at(gram, "points", tilts)
    assert group.log_density(POINTS) == pytest.approx(by_hand(UNEVEN, tilts, POINTS), abs=1e-9)
    expected = [UNEVEN @ tilts[i] for i in (0, 1, 2, 0, 2)]
    assert np.allclose(group.shift(gram, uniforms(3)), expected, rtol=1e-12)


@pytest.mark.parametrize("size", [5, 6])
def test_an_orbit_is_all_rotations(size):
    row = ROW if size == 6 else np.array([2.0, 0.9, 0.4, 0.4, 0.9])
    matrix = np.array([np.roll(row, i) for i in range(size)])
    tilt = np.array([1.0, 0.0, 0.4, 0.0, 0.2, 0.7])[:size]
    gram = CirculantGram(row)
    group = PointGroup.at(gram, "orbit", tilt[None], orbit=True)
    rotations = [np.roll(tilt, i) for i in range(size)]
    values = POINTS[:, :size]
    assert group.log_density(values) == pytest.approx(by_hand(matrix, rotations, values), abs=1e-9)
    expected = [matrix @ rotations[i] for i in (*range(size), 0, size - 1)]
    assert np.allclose(group.shift(gram, uniforms(size)), expected, rtol=1e-12)


@pytest.mark.parametrize(("eps", "share"), [(3.0, 0.5), (0.5, 0.1), (8.0, 0.9)])
def test_a_lifted_group_tilts_one_bin_more(eps, share):
    gram = DenseGram(UNEVEN)
    group = LiftedGroup.at(gram, eps, share)
    tilts = [group.lift / 6.0 + group.peak * np.eye(6)[i] for i in range(6)]
    assert group.log_density(POINTS) == pytest.approx(by_hand(UNEVEN, tilts, POINTS), abs=1e-9)
    expected = [UNEVEN @ tilts[i] for i in (*range(6), 0, 5)]
    assert np.allclose(group.shift(gram, uniforms(6)), expected, rtol=1e-12)


def test_a_lifted_group_aims_at_its_share():
    # All bins alike: the uniform tilt brings every bin to 1 - share of e^eps, the peak one bin to the rest.
    gram = CirculantGram(ROW)
    group = LiftedGroup.at(gram, 4.0, 0.3)
    assert group.lift * ROW.mean() == pytest.approx(4.0 + math.log(0.7), rel=1e-12)
    exponent = group.lift * ROW.mean() + (group.peak - 0.5) * ROW[0]
    assert exponent == pytest.approx(4.0 + math.log(0.3 * 6), rel=1e-12)


@pytest.mark.parametrize(("order", "lift"), [(1, 0.0), (3, 0.7), (4, 2.0)])
def test_free_tuples_have_the_joint_density_of_their_law(order, lift):
    gram, bins = DenseGram(UNEVEN), 6
    part = FreeTuples(order, lift, UNEVEN.mean(axis=1))
    drawn = part.draw(gram, np.tile(uniforms(bins)[:, None], (1, order)))
    assert drawn.tolist() == [[i] * order for i in (*range(bins), 0, bins - 1)]
    rng = np.random.default_rng(order)
    tuples = rng.integers(0, bins, (len(POINTS), order))
    tilts = lift / bins + np.array([np.bincount(one, minlength=bins) for one in tuples])
    assert np.allclose(part.shift(gram, tuples), tilts @ UNEVEN, rtol=1e-12)
    # Against y of Q and each bin of the tuple drawn in proportion to what it adds to the likelihood ratio.
    added = POINTS - 0.5 * np.diag(UNEVEN)
    losses = special.logsumexp(added, axis=1) - math.log(bins)
    chosen = np.take_along_axis(added, tuples, axis=1) - (losses + math.log(bins))[:, None]
    plain = stats.multivariate_normal(np.zeros(bins), UNEVEN)
    drawn = np.array(
        [stats.multivariate_normal(UNEVEN @ v, UNEVEN).logpdf(y) for v, y in zip(tilts, POINTS, strict=True)]
    )
    expected = drawn - plain.logpdf(POINTS) - order * math.log(bins) - chosen.sum(axis=1)
    assert part.log_density(gram, POINTS, losses, tuples) == pytest.approx(expected, abs=1e-9)


def test_small_entries_of_a_tilt_are_left_out_and_the_density_is_that_of_what_is_left(monkeypatch):
    monkeypatch.setattr(gaussian_groups, "PANEL", 11)
    bins = 60
    index = np.arange(bins)
    near = 0.3 ** np.abs(index[:, None] - index)
    matrix = 0.8 ** np.abs(index[:, None] - index)
    gram = DenseGram(matrix)
    group = PointGroup.at(gram, "near", near)
    kept = np.where(near < 1e-4, 0.0, near)
    assert np.array_equal(group.tilts, kept)
    assert len(group.panels) == 6
    assert sum(entries.size for _, _, entries in group.panels) < 0.6 * bins**2
    values = np.random.default_rng(6).multivariate_normal(np.zeros(bins), matrix, size=20) * 2.0
    assert group.log_density(values) == pytest.approx(by_hand(matrix, kept, values), abs=1e-9)
    assert np.allclose(group.shift(gram, uniforms(bins)[:bins]), kept @ matrix, rtol=1e-12)


def test_dense_tilts_are_multiplied_as_a_whole():
    assert PointGroup.at(DenseGram(UNEVEN), "all", np.ones((3, 6))).panels == ()
