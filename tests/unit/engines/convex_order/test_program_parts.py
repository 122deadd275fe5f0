"""What edges of the ring program are charged, the law of the white factor, and curves from their parts."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from dpmech.engines.convex_order.dynamic_program import Curve, Direction, _white_law, _z_split
from dpmech.engines.convex_order.grid import RingGrid, place_nodes
from dpmech.engines.convex_order.ring import RingGram

REMOVE, ADD = Direction.REMOVE, Direction.ADD
RING = RingGram(5, 0.4, 1.3, 0.7, 0.0)
GRID = RingGrid(y_step=0.4, z_nodes=15, s_nodes=20, white_nodes=12, tail=1.2)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_the_white_factor_keeps_its_mean_but_for_what_is_charged(direction):
    place = place_nodes(RING, 0.6, direction, GRID, 1.0)
    sizes, chances, cost = _white_law(place, direction)
    assert sizes.shape == chances.shape == (13,)
    assert chances.sum() == pytest.approx(1.0, abs=1e-12)
    assert sizes[0] == 0.0
    np.testing.assert_allclose(sizes[1:], np.exp(place.white_nodes), rtol=1e-12)
    law = scipy.stats.lognorm(math.sqrt(0.4), scale=math.exp(-0.2))
    beyond = scipy.integrate.quad(law.sf, sizes[-1], np.inf, epsabs=1e-14)[0]
    assert sizes @ chances + beyond == pytest.approx(1.0, rel=1e-9)
    assert cost == pytest.approx(beyond * math.exp(-0.6) if direction is REMOVE else 0.0, rel=1e-6)
    # Between the nodes it is spread out: convex functions have a larger mean.
    assert sizes**2 @ chances > scipy.integrate.quad(lambda x: x * x * law.pdf(x), 0.0, sizes[-1])[0]


@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_without_a_white_part_the_factor_is_one(direction):
    place = place_nodes(dataclasses.replace(RING, white=0.0), 0.6, direction, GRID, 1.0)
    sizes, chances, cost = _white_law(place, direction)
    assert (sizes.tolist(), chances.tolist(), cost) == ([1.0], [1.0], 0.0)


def test_the_first_value_is_charged_for_what_lies_beyond_its_last_node():
    """Given z, bin m has mean rho_m z and variance V (1 - rho_m^2); S is in units of b e^eps."""
    eps, variance = 0.6, 1.3
    place = place_nodes(RING, eps, REMOVE, GRID, 1.0)
    weights, charge = _z_split(place, REMOVE)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    profile = RING.profile() / variance
    rho = np.array([1.0, profile[1], profile[2], profile[2], profile[1]])
    rho[0] = 1.0
    top = place.z_nodes[-1]

    def expected(z):
        means = np.exp(rho * z + variance * (1.0 - rho**2) / 2.0 - variance / 2.0)
        return float(np.sum(means)) / 5.0 * math.exp(-eps)

    law = scipy.stats.norm(scale=math.sqrt(variance))
    rise = scipy.integrate.quad(lambda z: math.expm1(z - top) * law.pdf(z), top, 30.0, epsabs=1e-14)[0]
    lost = scipy.integrate.quad(
        lambda z: (expected(z) - expected(top)) * law.pdf(z), top, 30.0, epsabs=1e-14
    )[0]
    assert charge == pytest.approx(rise * expected(top), rel=1e-6)
    assert lost <= charge


def test_for_add_the_first_value_costs_what_lies_below_its_first_node():
    place = place_nodes(RING, 0.6, ADD, GRID, 1.0)
    weights, charge = _z_split(place, ADD)
    assert weights.sum() + charge == pytest.approx(1.0, abs=1e-12)
    law = scipy.stats.norm(scale=math.sqrt(1.3))
    low = place.z_nodes[0]
    below = scipy.integrate.quad(lambda z: -math.expm1(z - low) * law.pdf(z), -30.0, low, epsabs=1e-14)[0]
    assert charge == pytest.approx(below, rel=1e-9)


def test_without_variance_the_first_value_is_zero():
    place = place_nodes(dataclasses.replace(RING, amplitude=0.0), 0.6, REMOVE, GRID, 1.0)
    for direction in (REMOVE, ADD):
        weights, charge = _z_split(place, direction)
        assert (weights.tolist(), charge) == ([1.0], 0.0)


@pytest.mark.parametrize("shift", [0.0, -0.4])
def test_a_curve_of_remove_is_the_mean_beyond_a_kink(shift):
    """S of law `law` below 1, and beyond it mass 0.3 with a mean of 1 + 0.2 / 0.3."""
    law = np.array([0.1, 0.2, 0.25, 0.15])
    curve = Curve(REMOVE, 0.8, law, 0.3, 0.2, 0.01, np.empty(0))
    kink = math.exp(shift)
    mean = sum(
        chance * max(node - kink, 0.0) for node, chance in zip((0.0, 0.25, 0.5, 0.75), law, strict=True)
    )
    mean += 0.3 * (1.0 + 0.2 / 0.3 - kink)
    assert curve.delta(0.8 + shift) == pytest.approx(math.exp(0.8) * (mean + 0.01), rel=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_a_curve_of_add_is_the_mean_below_one(shift):
    law = np.array([0.1, 0.2, 0.25, 0.15])
    curve = Curve(ADD, 0.8, law, 0.3, 0.0, 0.01, np.empty(0))
    mean = sum(
        chance * max(1.0 - math.exp(shift) * node, 0.0)
        for node, chance in zip((0.0, 0.25, 0.5, 0.75), law, strict=True)
    )
    assert curve.delta(0.8 + shift) == pytest.approx(mean + 0.01, rel=1e-12)
