"""The lattices of one bin are above and below its law in convex order; nodes are as good as stated."""

import math

import mpmath as mp
import numpy as np
import pytest

from dpmech.engines.independent_sum.likelihood_ratio import Ratio
from dpmech.numerics import UNIT
from tests.support.independent_oracles import call, put

SPREADS = [1e-4, 0.02, 0.3, 1.0, 2.5, 6.0]


def steps(spread):
    scale = min(math.sqrt(math.expm1(min(spread**2, 30.0))), 8.0)
    return [2.0 ** math.floor(math.log2(scale * part)) for part in (0.5, 0.1, 0.02)]


def excess(lattice, levels):
    """E (y - level)_+ of a lattice."""
    points = lattice.losses()
    return np.array([lattice.masses @ np.maximum(points - level, 0.0) for level in levels])


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("spread", SPREADS)
def test_lattices_are_above_and_below_in_convex_order(spread, remove):
    # Far enough up for REMOVE that a is cut off at 40 only, where it is compared with what is left of it.
    reach = 12.0
    top = min(reach, (math.log(40.0) + 0.5 * spread**2) / spread) if remove else reach
    ratio = Ratio(spread, remove, -reach, top)
    if not remove:
        low = -(math.log(40.0) + 0.5 * spread**2) / spread
        ratio = Ratio(spread, remove, max(-reach, low), reach)
    ends = ratio.values(np.array([ratio.low, ratio.high]))
    deviation = math.sqrt(math.expm1(min(spread**2, 3.0)))
    middle = ratio.values(np.array([0.0]))[0]
    levels = np.concatenate([np.linspace(*ends, 41)[1:-1], middle + deviation * np.linspace(-4.0, 4.0, 41)])
    levels = levels[(levels > ends[0]) & (levels < ends[1])]
    if remove:
        cut = math.exp(spread * top - 0.5 * spread**2)
        beyond = call(spread, cut) + (cut - ratio.centre - levels) * float(mp.ncdf(-top))
        true = call(spread, ratio.centre + levels) - beyond
    else:
        # Below the cut nothing is left of (y - level)_+.
        true = put(spread, ratio.centre - levels)
    slack = 1e-11 * np.abs(true) + 1e-13 * deviation
    for step in steps(spread):
        lower, upper = excess(ratio.lower(step), levels), excess(ratio.upper(step), levels)
        assert np.all(lower <= true + slack)
        assert np.all(upper >= true - slack)
    # On the finest one they are close.
    assert np.all(upper - lower <= 0.02 * deviation)


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("spread", SPREADS)
def test_lattices_keep_mass_and_mean(spread, remove):
    high = min(spread + 9.0, (math.log(1e4) + 0.5 * spread**2) / spread)
    ratio = Ratio(spread, remove, -9.0, high) if remove else Ratio(spread, remove, -high, 9.0)
    values, masses, _ = ratio.nodes(upwards=True)
    step = steps(spread)[1]
    for lattice in (ratio.lower(step), ratio.upper(step)):
        assert lattice.masses.min() >= 0.0
        assert lattice.masses.sum() == pytest.approx(masses.sum(), abs=1e-9)
        # Nothing of the mean is lost, next to a = 0 neither.
        spent = 1e-9 * (1.0 + step)
        assert lattice.masses @ lattice.losses() == pytest.approx(masses @ values, abs=spent)


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("spread", [1e-4, 0.3, 2.5, 20.0])
def test_rounding_of_nodes_is_within_its_bound(spread, remove):
    ratio = Ratio(spread, remove)
    x = np.linspace(-30.0, 30.0, 201)
    values = ratio.values(x)
    off, relative = ratio._rounding(x, values)
    sign = 1 if remove else -1
    with mp.workdps(60):
        for point, value, allowed, part in zip(x, values, off, relative, strict=True):
            exact = mp.exp(sign * mp.mpf(spread) * mp.mpf(point) - mp.mpf(spread) ** 2 / 2)
            # A node may be off by 2 units of itself besides.
            moved = exact * spread * abs(point) * 2 * UNIT
            assert abs(sign * (exact - ratio.centre) - mp.mpf(value)) + moved <= allowed
            density = mp.exp(-(mp.mpf(point) ** 2) / 2)
            computed = mp.mpf(math.exp(-0.5 * point * point))
            assert abs(computed / density - 1) + 2 * point * point * UNIT <= part


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("edges", [False, True])
def test_quadrature_gives_masses_and_means(spread, edges):
    ratio = Ratio(spread, True, -8.0, 9.0)
    cells = ratio.values(np.linspace(-7.0, 8.0, 20_001)) if edges else None
    for upwards in (False, True):
        values, masses, _ = ratio.nodes(cells, upwards=upwards)
        with mp.workdps(40):
            mass = mp.ncdf(9) - mp.ncdf(-8)
            mean = mp.ncdf(9 - mp.mpf(spread)) - mp.ncdf(-8 - mp.mpf(spread)) - ratio.centre * mass
            off = (mp.mpf(float(masses.sum())) - mass) / mass
        assert abs(off) <= 3e-14
        assert (off >= 0) is upwards or abs(off) <= 1e-15
        assert float(masses @ values) == pytest.approx(float(mean), abs=1e-12)


def test_one_step_down_is_never_a_step_up():
    # A fault that puts a tenth of a cell one node higher is seen by the comparison above.
    ratio = Ratio(1.0, True, -9.0, 3.0)
    lattice = ratio.lower(0.25)
    raised = lattice.masses.copy()
    raised[1:] += 0.1 * lattice.masses[:-1]
    raised[:-1] -= 0.1 * lattice.masses[:-1]
    levels = np.array([0.5, 1.0, 2.0])
    cut = math.exp(2.5)
    true = call(1.0, levels) - call(1.0, cut) - (cut - levels) * float(mp.ncdf(-3))
    assert np.all(excess(lattice, levels) <= true)
    assert np.any(raised @ np.maximum(lattice.losses()[:, None] - levels, 0.0) > true)
