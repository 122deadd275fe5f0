"""delta is monotone in every entry of the Gram matrix, and the ring bound is never below the truth."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmech.engines.convex_order.bound import ring_delta
from dpmech.engines.convex_order.dynamic_program import Direction
from dpmech.engines.convex_order.grid import RingGrid
from dpmech.engines.convex_order.ring import RingGram, dominating_ring
from tests.support.bins_oracles import quadrature

EPS = st.floats(0.0, 3.0)
ENTRY = st.floats(0.0, 1.0)
PARTS = st.floats(0.0, 1.5)


def full(ring):
    index = np.arange(ring.bins)
    distance = np.abs(index[:, None] - index[None, :])
    return ring.profile()[np.minimum(distance, ring.bins - distance)]


@settings(max_examples=40)
@given(st.tuples(PARTS, PARTS), st.floats(-0.9, 0.9), st.tuples(ENTRY, ENTRY, ENTRY), EPS)
def test_delta_of_two_bins_is_monotone_in_each_entry(diagonal, correlation, raises, eps):
    first, second = diagonal[0] + 0.05, diagonal[1] + 0.05
    cross = correlation * math.sqrt(first * second)
    small = np.array([[first, cross], [cross, second]])
    a, b, c = raises
    # the raised matrix has to be a covariance as well
    limit = math.sqrt((first + a) * (second + b)) * 0.99 - cross
    large = small + np.array([[a, min(c, limit)], [min(c, limit), b]])
    assert np.all(np.array(quadrature(large, eps)) >= np.array(quadrature(small, eps)) * (1 - 1e-6) - 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_delta_is_monotone_with_common_random_numbers(seed):
    generator = np.random.default_rng(seed)
    bins, samples = int(generator.integers(4, 12)), 100_000
    small = _covariance(generator, bins)
    # entrywise larger and a covariance: add a matrix of non-negative vectors' outer products
    vectors = generator.exponential(size=(2, bins)) * 0.4
    large = small + vectors.T @ vectors
    noise = generator.standard_normal((samples, bins))
    extra = generator.standard_normal((samples, 2)) @ vectors
    y_small = noise @ np.linalg.cholesky(small).T
    r_small = np.exp(y_small - np.diag(small) / 2).mean(axis=1)
    r_large = np.exp(y_small + extra - np.diag(large) / 2).mean(axis=1)
    for eps in (0.1, 0.7, 1.5):
        for payoff in (
            lambda r, e=eps: np.maximum(r - math.exp(e), 0.0),
            lambda r, e=eps: np.maximum(1 - math.exp(e) * r, 0.0),
        ):
            gain = payoff(r_large) - payoff(r_small)
            assert gain.mean() >= -6.0 * gain.std() / math.sqrt(samples)
    # the test has power: the other way round it fails
    gain = np.maximum(1 - r_small * math.exp(0.1), 0.0) - np.maximum(1 - r_large * math.exp(0.1), 0.0)
    assert gain.mean() < -6.0 * gain.std() / math.sqrt(samples)


def _covariance(generator, bins):
    rows = generator.standard_normal((bins, bins)) * 0.4
    return rows @ rows.T + 0.05 * np.eye(bins)


GRIDS = st.builds(
    RingGrid,
    y_step=st.floats(0.2, 3.0),
    z_nodes=st.integers(3, 30),
    s_nodes=st.integers(1, 60),
    white_nodes=st.integers(2, 20),
    constant_nodes=st.integers(2, 12),
    tail=st.floats(0.5, 8.0),
)
RINGS = st.builds(
    RingGram,
    bins=st.just(2),
    white=st.one_of(st.just(0.0), PARTS),
    amplitude=PARTS,
    decay=st.floats(0.01, 0.95),
    constant=st.one_of(st.just(0.0), st.just(0.0), st.floats(0.01, 0.5)),
)


@settings(max_examples=50)
@given(RINGS, GRIDS, EPS)
def test_no_grid_falls_below_quadrature(ring, grid, eps):
    if min(ring.amplitude, ring.diagonal - ring.constant) < 1e-3:
        return  # the oracle needs a positive definite matrix
    truth = quadrature(full(ring), eps)
    found = ring_delta(ring, eps, grid=grid)
    assert found.deltas[Direction.REMOVE] >= truth[0] * (1 - 1e-6) - 1e-12
    assert found.deltas[Direction.ADD] >= truth[1] * (1 - 1e-6) - 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_three_bins_no_grid_falls_below_quadrature(seed):
    generator = np.random.default_rng(seed)
    ring = RingGram(3, float(generator.random() < 0.5) * 0.4, float(generator.random() + 0.2), 0.8, 0.0)
    eps = float(generator.random() * 2)
    truth = quadrature(full(ring), eps)
    for _ in range(5):
        grid = RingGrid(
            y_step=float(generator.uniform(0.2, 2.0)),
            z_nodes=int(generator.integers(3, 30)),
            s_nodes=int(generator.integers(1, 50)),
            white_nodes=int(generator.integers(2, 20)),
            tail=float(generator.uniform(0.5, 8.0)),
        )
        found = ring_delta(ring, eps, grid=grid)
        assert found.deltas[Direction.REMOVE] >= truth[0] * (1 - 1e-6)
        assert found.deltas[Direction.ADD] >= truth[1] * (1 - 1e-6)


@settings(max_examples=5)
@given(st.lists(st.floats(0.05, 1.2), min_size=3, max_size=3), st.floats(0.2, 1.5))
@pytest.mark.slow
def test_a_dominating_ring_bounds_a_matrix_that_is_no_ring(roots, eps):
    rows = np.diag(roots) + 0.2 * np.outer(roots, roots[::-1])
    matrix = rows @ rows.T
    profile = [np.max(np.diag(matrix)), np.max(matrix[~np.eye(3, dtype=bool)])]
    ring = dominating_ring(np.maximum(profile, profile[1]), 3)
    grid = RingGrid(y_step=0.5, z_nodes=14, s_nodes=20, white_nodes=10, constant_nodes=6, tail=5.0)
    bound = ring_delta(ring, eps, grid=grid)
    truth = quadrature(matrix, eps)
    assert bound.deltas[Direction.REMOVE] >= truth[0] * (1 - 1e-6) - 1e-12
    assert bound.deltas[Direction.ADD] >= truth[1] * (1 - 1e-6) - 1e-12
