"""Both directions against quadrature, at levels from everyday to 1e-200, and over drawn arguments."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmech.engines.independent_sum.direction import Direction
from dpmech.engines.independent_sum.likelihood_ratio import Ratio
from dpmech.engines.sigma_search import slope_at
from tests.support.independent_oracles import call, delta_of_two, put
from tests.support.quick_cases import slow_but

TOLERANCE = 4e-4
# What the quadrature may be off by.
OFF = 1e-8


def direction(bins, spread, *, remove):
    return Direction(bins, spread, spread, remove=remove)


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize(
    ("spread", "eps"),
    [
        (1e-4, 1e-4), (1e-4, 5e-4), (0.01, 0.02), (0.05, 0.3), (0.3, 0.1), (0.3, 1.0), (1.0, 0.0), (1.0, 1.0),
        (1.0, 6.0), (2.0, 3.0), (4.0, 20.0), (8.0, 40.0),
    ],
)  # fmt: skip
def test_two_bins_against_quadrature(spread, eps, remove):
    lower, upper = direction(2, spread, remove=remove).delta(eps, TOLERANCE)
    exact = delta_of_two(spread, eps, remove=remove)
    assert lower * (1.0 - OFF) <= exact <= upper * (1.0 + OFF)
    slope = slope_at(eps, exact)
    assert math.log(upper / lower) <= 1.2 * TOLERANCE * slope


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("eps", [0.0, 0.02])
@pytest.mark.parametrize(
    ("least", "most"),
    [(math.nextafter(0.1, 0.0), 0.1), (0.1 * (1 - 1e-13), 0.1 * (1 + 1e-13)), (0.0999, 0.1001)],
)
def test_spreads_on_both_sides_of_where_values_are_taken_from_one(least, most, eps, remove):
    """Both laws are compared at one level: otherwise a lower end was 0.99999 where delta is 0.02."""
    lower, upper = Direction(2, least, most, remove=remove).delta(eps, TOLERANCE)
    small, large = (delta_of_two(spread, eps, remove=remove) for spread in (least, most))
    assert lower * (1.0 - OFF) <= small
    assert large <= upper * (1.0 + OFF)
    assert upper <= lower * (1.02 if most > 0.1001 else 1.01)


@pytest.mark.parametrize("remove", [True, False])
def test_three_bins_against_quadrature(remove):
    spread, eps = 0.8, 1.2
    level = 3.0 * math.exp(eps if remove else -eps)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    z = 12.0 * nodes
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) * 12.0 * weights
    a = np.exp(spread * z - 0.5 * spread**2)
    left = level - a[:, None] - a
    inner = call(spread, left) if remove else put(spread, left) * math.exp(eps)
    exact = float(density @ inner @ density) / 3.0
    lower, upper = direction(3, spread, remove=remove).delta(eps, 1e-5)
    assert lower * (1.0 - 1e-7) <= exact <= upper * (1.0 + 1e-7)
    assert upper <= lower * (1.0 + 1e-3)


def test_a_wrong_spread_is_seen():
    # The planted fault is 1 % in kappa: both ends then miss the truth.
    exact = delta_of_two(1.0, 2.0, remove=True)
    assert direction(2, 1.01, remove=True).delta(2.0, TOLERANCE)[0] > exact
    assert direction(2, 0.99, remove=True).delta(2.0, TOLERANCE)[1] < exact


def test_lost_mass_is_seen(monkeypatch):
    # The planted fault: a cell out of a hundred is lost.
    true = Ratio.upper

    def lossy(self, step):
        lattice = true(self, step)
        lattice.masses[::20] = 0.0
        return lattice

    exact = delta_of_two(1.0, 2.0, remove=True)
    monkeypatch.setattr(Ratio, "upper", lossy)
    # Then lower and upper ends contradict each other, or the upper one is below the truth.
    ratio_of = direction(2, 1.0, remove=True)
    sight, ratio = ratio_of._look(2.0)
    _, upper = ratio_of.totals(ratio, sight, 0.0625, ratio_of.level(2.0))
    assert ratio_of.upper(upper, ratio, 2.0) < exact


# Where delta is 1 but for a millionth, as it is beyond a spread of 5, the lattices are the longest.
@pytest.mark.parametrize("most", [0.7, pytest.param(1.2, marks=pytest.mark.slow)])
@given(st.floats(0.0, 5.0), st.floats(0.0, 1.0), st.floats(-3.0, 1.0), st.booleans(), st.floats(1.001, 1.5))
def test_ends_are_in_order_and_monotone(most, log_bins, share, log_ratio, remove, factor):
    bins, spread = max(2, round(10.0 ** min(log_bins, 4.0))), 10.0 ** (-4.0 + share * (most + 4.0))
    # From far inside to far out of what a mean of so many deviates by.
    eps = min(spread * 10.0**log_ratio, 60.0)
    lower, upper = direction(bins, spread, remove=remove).delta(eps, 1e-2)
    assert 0.0 <= lower <= upper <= 1.0
    ceiling = direction(bins, spread, remove=remove).ceiling(eps)
    assert ceiling >= lower
    # Less noise, a smaller eps, or fewer bins: never a smaller delta.
    for more in (
        direction(bins, spread * factor, remove=remove).delta(eps, 1e-2),
        direction(bins, spread, remove=remove).delta(eps / factor, 1e-2),
    ):
        assert more[1] >= lower
    if bins > 2:
        assert direction(max(2, bins // 2), spread, remove=remove).delta(eps, 1e-2)[1] >= lower


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize(
    ("bins", "spread"), slow_but([(2, 1e-3), (50, 0.5), (3000, 1.0), (100_000, 0.3)], 0, 2)
)
def test_eps_undoes_delta(bins, spread, remove):
    one = direction(bins, spread, remove=remove)
    eps = 3.0 * math.sqrt(math.expm1(spread**2) / bins)
    delta = math.sqrt(math.prod(one.delta(eps, TOLERANCE)))
    for guess in (eps, 1.3 * eps, 0.8 * eps):
        lower, upper = one.epsilon(delta, guess, TOLERANCE)
        assert lower <= eps * (1.0 + 1e-4)
        assert upper >= eps * (1.0 - 1e-4)
        assert upper - lower <= 1e-3 * upper


@pytest.mark.parametrize(("spread", "eps"), [(1e-4, 100.0), (1e-4, 0.02), (0.1, 20.0)])
@pytest.mark.parametrize("remove", [True, False])
def test_what_is_below_float64_is_next_to_nothing(spread, eps, remove):
    lower, upper = direction(2, spread, remove=remove).delta(eps, TOLERANCE)
    assert lower == 0.0
    assert upper <= 1e-290
