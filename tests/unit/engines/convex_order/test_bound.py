import dataclasses
import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.special

from dpmech.engines.convex_order import dynamic_program as ring_program
from dpmech.engines.convex_order import kernels as ring_kernels
from dpmech.engines.convex_order.bound import _simplified, ring_delta
from dpmech.engines.convex_order.dynamic_program import Direction, run_program
from dpmech.engines.convex_order.grid import RingGrid, place_nodes
from dpmech.engines.convex_order.ring import RingGram
from dpmech.exceptions import InvalidParameterError, NumericalError
from tests.support.bins_oracles import gaussian, quadrature
from tests.support.quick_cases import slow_but

REMOVE, ADD = Direction.REMOVE, Direction.ADD
SIGMAS = 6.12  # two-sided 1e-9

FINE = RingGrid(y_step=0.1, z_nodes=160, s_nodes=300, white_nodes=80, constant_nodes=64, tail=7.0)
MEDIUM = RingGrid(y_step=0.25, z_nodes=50, s_nodes=80, white_nodes=30, constant_nodes=32, tail=7.0)
COARSE = RingGrid(y_step=0.6, z_nodes=16, s_nodes=16, white_nodes=12, constant_nodes=16, tail=6.0)

RINGS = [
    RingGram(2, 0.0, 1.0, 0.5, 0.0),
    RingGram(2, 0.3, 0.5, 0.7, 0.0),
    RingGram(3, 0.0, 1.5, 0.8, 0.0),
    RingGram(2, 0.4, 0.7, 0.4, 0.1),
    RingGram(3, 0.8, 0.0, 0.0, 0.3),
    RingGram(2, 0.0, 0.6, 0.0, 0.0),
]


def full(ring):
    index = np.arange(ring.bins)
    distance = np.abs(index[:, None] - index[None, :])
    return ring.profile()[np.minimum(distance, ring.bins - distance)]


def both(ring, eps, grid):
    result = ring_delta(ring, eps, grid=grid)
    return np.array([result.deltas[REMOVE], result.deltas[ADD]])


def lambda_ring(bins, epochs, lam, sigma):
    start = epochs / ((1 - lam**2) * sigma**2)
    return RingGram(bins, 0.0, start * (1 + lam**bins) / (1 - lam**bins), lam, 0.0)


# closed forms


@pytest.mark.parametrize("eps", [0.0, 0.5, 4.0])
def test_one_bin_is_the_gaussian_mechanism(eps):
    result = ring_delta(RingGram(1, 0.25, 1.0, 0.9, 0.5), eps)
    assert result.delta == pytest.approx(gaussian(1.75, eps), rel=1e-9)
    assert result.deltas == {REMOVE: result.delta, ADD: result.delta}
    assert not result.grids


def test_a_constant_gram_is_the_gaussian_mechanism_and_nothing_is_nothing():
    assert ring_delta(RingGram(50, 0.0, 0.0, 0.0, 0.8), 1.0).delta == pytest.approx(
        gaussian(0.8, 1.0), rel=1e-9
    )
    assert ring_delta(RingGram(5, 0.0, 0.0, 0.0, 0.0), 1.0).delta == 0.0


def test_the_unamplified_gaussian_caps_every_grid():
    tiny = RingGrid(y_step=5.0, z_nodes=3, s_nodes=1, tail=0.5)
    ring = RingGram(6, 0.1, 1.0, 0.8, 0.1)
    assert ring_delta(ring, 1.0, grid=tiny).delta <= gaussian(1.2, 1.0) * (1 + 1e-9)
    assert ring_delta(RingGram(6, 0.0, 900.0, 0.8, 0.0), 1.0).delta == pytest.approx(1.0)


# against quadrature: never below, and close


@pytest.mark.parametrize(
    "ring", [*RINGS[:3], pytest.param(RINGS[3], marks=pytest.mark.slow), *RINGS[4:]], ids=str
)
@pytest.mark.parametrize("eps", slow_but([0.2, 1.5], 1))
def test_bound_converges_to_quadrature_from_above(ring, eps):
    truth = np.array(quadrature(full(ring), eps))
    excess = [both(ring, eps, grid) / truth - 1.0 for grid in (COARSE, MEDIUM, FINE)]
    for one in excess:
        assert np.all(one >= -1e-9)
    assert np.all(excess[2] <= 0.03)
    assert np.all(excess[2] <= excess[1] + 1e-6)
    assert np.all(excess[1] <= excess[0] + 1e-6)


def test_the_comparison_rejects_planted_faults():
    ring, eps = RINGS[2], 1.5
    bound = both(ring, eps, FINE)
    # a log b that is off by log(4 / 3), and a K that is 5 % too small, put the truth above the bound
    assert np.any(bound < np.array(quadrature(full(ring), eps, log_bins=math.log(2.5))))
    assert np.all(both(ring.scaled(0.95), eps, FINE) < np.array(quadrature(full(ring), eps)))


@pytest.mark.parametrize("delta_range", [(6.0, 1e-3), (9.0, 1e-8)])
def test_small_deltas_keep_their_relative_precision(delta_range):
    eps, most = delta_range
    ring = RingGram(2, 0.0, 2.0, 0.3, 0.0)
    truth = quadrature(full(ring), eps)[0]
    bound = ring_delta(ring, eps, direction=REMOVE, grid=dataclasses.replace(FINE, tail=8.0)).delta
    assert truth < most
    assert truth * (1 - 1e-9) <= bound <= truth * 1.06


@pytest.mark.parametrize("tail", slow_but([0.5, 1.5], 0))
@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_short_grids_are_charged_for_what_leaves_them(ring, tail):
    grid = dataclasses.replace(COARSE, tail=tail)
    for eps in (0.2, 1.5):
        assert np.all(both(ring, eps, grid) >= np.array(quadrature(full(ring), eps)) * (1 - 1e-9))


@pytest.mark.parametrize(("tail", "most"), [(0.3, 1.6), (1.5, 1.05)])
def test_what_leaves_the_top_of_a_step_is_charged_with_all_it_may_still_gain(tail, most):
    """A fine grid that is cut short on one side of a steep ring: the charge is most of the excess."""
    ring, eps = RingGram(3, 0.0, 3.0, 0.3, 0.0), 0.2
    grid = RingGrid(y_step=0.1, z_nodes=60, s_nodes=200, tail=6.0)
    place = dataclasses.replace(place_nodes(ring, eps, REMOVE, grid, 1.0), tail=tail)
    truth = quadrature(full(ring), eps)[0]
    assert truth <= run_program(place, REMOVE).delta(eps) <= most * truth


@pytest.mark.parametrize("floor", [1e-6, 1e-2])
def test_pruned_cells_are_charged(floor):
    ring, eps = RINGS[2], 0.5
    for direction, truth in zip((REMOVE, ADD), quadrature(full(ring), eps), strict=True):
        place = dataclasses.replace(place_nodes(ring, eps, direction, MEDIUM, 1.0), floor=floor)
        pruned = run_program(place, direction).delta(eps)
        whole = run_program(dataclasses.replace(place, floor=1e-100), direction).delta(eps)
        assert pruned >= truth
        assert pruned != whole


def test_one_run_bounds_a_whole_curve():
    ring = RINGS[2]
    remove = run_program(place_nodes(ring, 2.0, REMOVE, FINE, 1.0), REMOVE)
    add = run_program(place_nodes(ring, 0.1, ADD, FINE, 1.0), ADD)
    for eps in (0.1, 0.7, 2.0):
        truth = quadrature(full(ring), eps)
        assert truth[0] <= remove.delta(eps) <= 1.03 * truth[0]
        assert truth[1] <= add.delta(eps) <= 1.03 * truth[1]


# independent bins, by convolution


def convolved(variance, bins, eps, size=2**15):
    top = 3.0 * bins * math.exp(eps)
    step = top / size
    edges = (np.log(np.maximum((np.arange(size + 1) - 0.5) * step, 1e-300)) + variance / 2) / math.sqrt(
        variance
    )
    law = np.diff(scipy.special.ndtr(edges))
    padded = np.fft.rfft(law, 2 * size * 2)
    total = np.fft.irfft(padded**bins, 4 * size)
    mean = np.arange(total.size) * step / bins
    remove = bins * 0.0 + 1.0 - math.exp(eps) + np.sum(total * np.maximum(math.exp(eps) - mean, 0.0))
    return remove, np.sum(total * np.maximum(1.0 - math.exp(eps) * mean, 0.0))


@pytest.mark.parametrize(("bins", "variance", "eps"), [(4, 1.0, 0.5), (20, 0.5, 0.2)])
def test_white_rings_match_a_convolution(bins, variance, eps):
    remove, add = convolved(variance, bins, eps)
    grid = RingGrid(s_nodes=2000, white_nodes=150, tail=8.0)
    for ring in (
        RingGram(bins, variance, 0.0, 0.0, 0.0),
        RingGram(bins, 0.25 * variance, 0.75 * variance, 0.0, 0.0),
    ):
        bound = both(ring, eps, grid)
        assert np.all(bound >= np.array([remove, add]) * (1 - 2e-3))
        assert np.all(bound <= np.array([remove, add]) * 1.02)


# larger rings, by importance sampling with a fixed seed


def sampled(ring, eps, *, samples=200_000, log_bins=None):
    """(mean, standard error) of REMOVE and of ADD: proposals shifted along K."""
    generator = np.random.default_rng(20240607)
    matrix = full(ring)
    bins, half = ring.bins, np.diag(matrix) / 2
    log_b = math.log(bins) if log_bins is None else log_bins
    factor = np.linalg.cholesky(matrix)
    noise = generator.standard_normal((samples, bins)) @ factor.T
    scales = np.array([1.0, 1.6])
    y = noise + scales[generator.integers(2, size=samples)][:, None] * matrix[0]
    ratio = scipy.special.logsumexp(y - half, axis=1) - log_b
    proposal = scipy.special.logsumexp(
        [scipy.special.logsumexp(t * y - t * t * half, axis=1) - math.log(2 * bins) for t in scales], axis=0
    )
    remove = np.where(ratio > eps, np.exp(ratio - proposal) * -np.expm1(np.minimum(eps - ratio, 0.0)), 0.0)
    shift = matrix.mean(axis=1)
    square = matrix.mean()
    y = noise - shift
    ratio = scipy.special.logsumexp(y - half, axis=1) - log_b
    add = -np.expm1(np.minimum(eps + ratio, 0.0)) * np.exp(y.mean(axis=1) + square / 2)
    return [(one.mean(), one.std() / math.sqrt(samples)) for one in (remove, add)]


@pytest.mark.parametrize(
    ("ring", "eps", "slack"),
    slow_but(
        [(RingGram(12, 0.0, 1.5, 0.8, 0.0), 1.5, 0.05), (RingGram(8, 0.0, 1.0, 0.7, 0.1), 0.8, 0.08)], 1
    ),
    ids=str,
)
def test_larger_rings_match_importance_sampling(ring, eps, slack):
    grid = RingGrid(y_step=0.12, z_nodes=60, s_nodes=150, constant_nodes=32, tail=6.5)
    bound = both(ring, eps, grid)
    low = both(ring.scaled(0.9), eps, grid)
    for i, (mean, error) in enumerate(sampled(ring, eps)):
        assert error < 0.01 * mean
        assert mean - SIGMAS * error <= bound[i] <= mean * (1 + slack) + SIGMAS * error
        assert low[i] < mean - SIGMAS * error  # a Gram matrix 10 % too small is caught
    # so is a b that is off by one
    for i, (mean, error) in enumerate(sampled(ring, eps, log_bins=math.log(ring.bins - 1 if eps > 1 else 6))):
        assert not mean - SIGMAS * error <= bound[i] <= mean * (1 + slack) + SIGMAS * error


# the search


def test_the_search_meets_its_aim():
    ring, eps = RingGram(3, 0.0, 1.5, 0.8, 0.0), 1.5
    truth = max(quadrature(full(ring), eps))
    for aim in (0.2, 0.02):
        result = ring_delta(ring, eps, rel_error=aim)
        assert truth <= result.delta <= truth * (1 + 1.5 * aim)


def test_the_search_handles_white_and_constant_parts():
    ring, eps = RingGram(2, 0.4, 0.7, 0.4, 0.1), 0.5
    truth = max(quadrature(full(ring), eps))
    assert truth <= ring_delta(ring, eps, rel_error=0.1).delta <= truth * 1.2


def test_the_search_handles_white_rings():
    remove, add = convolved(0.5, 6, 0.5)
    result = ring_delta(RingGram(6, 0.5, 0.0, 0.0, 0.0), 0.5, rel_error=0.05)
    assert max(remove, add) * 0.999 <= result.delta <= max(remove, add) * 1.08


def test_grids_found_can_be_used_again():
    ring, eps = RingGram(5, 0.0, 1.0, 0.6, 0.0), 1.0
    result = ring_delta(ring, eps, rel_error=0.1)
    again = ring_delta(ring, eps, grid=result.grids)
    assert again.delta <= result.delta * (1 + 1e-12) or again.delta == pytest.approx(result.delta, rel=0.02)
    near = ring_delta(ring.scaled(0.98), eps, grid=result.grids)
    assert near.delta < result.delta


@pytest.mark.parametrize("grid", [COARSE, MEDIUM])
def test_monotone_in_sigma_and_eps(grid):
    ring = RingGram(6, 0.1, 1.0, 0.7, 0.0)
    over_eps = [both(ring, eps, grid) for eps in (0.1, 0.4, 0.8, 1.6, 3.2)]
    over_sigma = [both(ring.scaled(factor), 0.8, grid) for factor in (0.5, 0.8, 1.0, 1.3)]
    assert np.all(np.diff(over_eps, axis=0) < 0.0)
    assert np.all(np.diff(over_sigma, axis=0) > 0.0)


def test_directions():
    ring = RINGS[0]
    whole = ring_delta(ring, 0.5, grid=MEDIUM)
    for one in (REMOVE, ADD):
        only = ring_delta(ring, 0.5, grid=MEDIUM, direction=one)
        assert only.deltas == {one: only.delta} == {one: whole.deltas[one]}
    assert whole.delta == max(whole.deltas.values()) > min(whole.deltas.values())
    assert set(whole.grids) == {REMOVE, ADD}


def test_faint_parts_are_absorbed():
    plain = ring_delta(RingGram(4, 0.5, 0.0, 0.0, 0.0), 0.5, grid=MEDIUM)
    for white, amplitude, constant in [(0.5, 1e-10, 0.0), (0.5, 0.0, 1e-200), (0.5, 1e-9, 1e-9)]:
        ring = RingGram(4, white, amplitude, 0.5, constant)
        assert ring_delta(ring, 0.5, grid=MEDIUM).delta == pytest.approx(plain.delta, rel=0.02)
    smooth = ring_delta(RingGram(4, 0.0, 0.5, 0.5, 0.0), 0.5, grid=MEDIUM)
    assert ring_delta(RingGram(4, 1e-200, 0.5, 0.5, 0.0), 0.5, grid=MEDIUM).delta == smooth.delta
    assert ring_delta(RingGram(4, 1e-9, 0.0, 0.0, 0.5), 0.5).delta == pytest.approx(
        gaussian(0.5, 0.5), rel=1e-6
    )


@pytest.mark.parametrize("bins", [1, 4, 7])
def test_what_replaces_faint_parts_dominates_them_closely(bins):
    parts = (0.0, 3e-9, 0.9e-6, 1.1e-6, 0.7)
    for white, amplitude, constant in itertools.product(parts, repeat=3):
        for decay in (0.0, 0.6):
            ring = RingGram(bins, white, amplitude, decay, constant)
            found = _simplified(ring)
            above = found.profile() - ring.profile()
            assert np.all(above >= -1e-15)
            assert np.all(above <= 2.2e-6)
            assert (found.white > 0.0) + (found.amplitude > 0.0) + (found.constant > 0.0) <= 1 or all(
                one == 0.0 or one >= 1e-6 for one in (found.white, found.amplitude, found.constant)
            )
            assert found.amplitude == 0.0 or decay > 0.0


@pytest.mark.parametrize(
    "arguments",
    [{"eps": -0.1}, {"eps": 501.0}, {"rel_error": 0.0}, {"eps": math.nan}],
)
def test_ring_delta_refuses(arguments):
    eps = arguments.pop("eps", 1.0)
    with pytest.raises(InvalidParameterError):
        ring_delta(RINGS[0], eps, **arguments)


@pytest.mark.parametrize(
    "change",
    [{"y_step": 0.0}, {"z_nodes": 2}, {"s_nodes": 0}, {"white_nodes": 1}, {"tail": 0.1}, {"tail": 31.0}],
)
def test_ring_grid_refuses(change):
    with pytest.raises(InvalidParameterError):
        RingGrid(**change)


def test_the_result_does_not_depend_on_the_number_of_threads(monkeypatch):
    ring = RingGram(20, 0.2, 1.0, 0.8, 0.0)
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(ring_program, "_workers", lambda count=count: count)
        found.append(tuple(both(ring, 0.7, MEDIUM)))
    assert found[0] == found[1] == found[2]


def test_groups_of_walks_do_not_change_the_result(monkeypatch):
    whole = both(RINGS[2], 0.7, MEDIUM)
    monkeypatch.setattr(ring_program, "GROUP_BYTES", 1)
    np.testing.assert_allclose(both(RINGS[2], 0.7, MEDIUM), whole, rtol=1e-13)


def test_weights_that_do_not_sum_to_one_are_refused(monkeypatch):
    monkeypatch.setattr(ring_kernels, "normal_steps", lambda *_: 1e-6)
    with pytest.raises(NumericalError):
        ring_delta(RINGS[0], 0.5, grid=MEDIUM)


def test_a_delta_below_the_smallest_number_is_a_bound_all_the_same():
    assert 0.0 <= ring_delta(RingGram(5, 0.0, 1e-3, 0.5, 1e-3), 400.0).delta <= 1e-240


SCRIPT = """
import sys
from dpmech.engines.convex_order.bound import RingGram, RingGrid, ring_delta
assert "numba" not in sys.modules
grid = RingGrid(y_step=0.8, z_nodes=6, s_nodes=10, white_nodes=4, tail=4.0)
result = ring_delta(RingGram(3, 0.2, 0.8, 0.5, 0.0), 0.5, grid=grid)
print(*(repr(float(delta)) for delta in result.deltas.values()))
"""


@pytest.mark.slow
def test_without_compilation_the_result_is_the_same_and_numba_is_imported_late():
    values = []
    for disabled in ("0", "1"):
        environment = os.environ | {"NUMBA_DISABLE_JIT": disabled}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        values.append([float(word) for word in done.stdout.split()])
    np.testing.assert_allclose(values[0], values[1], rtol=1e-12)


@pytest.mark.slow
def test_a_large_ring_matches_importance_sampling():
    # importance sampling on this ring, 3.4 million samples in three runs: (1.005 +- 0.003) 1e-5
    result = ring_delta(lambda_ring(390, 10, 0.9, 2.927), 8.0, rel_error=0.1)
    assert 0.995e-5 < result.delta < 1.15e-5
    assert result.deltas[ADD] < result.deltas[REMOVE]
