"""Where one bin passes the level alone: the closed form against integrals of two bins, and of one."""

import math

import mpmath as mp
import pytest

from dpmech.engines.independent_sum.direction import Jumps


def of_one(spread, x):
    with mp.workdps(40):
        first = (mp.mpf(spread) ** 2 / 2 - mp.log(x)) / spread
        return mp.ncdf(first) - x * mp.ncdf(first - spread)


def of_several(bins, spread, cut, level):
    """E [(S - T)_+; some a > c] for c >= T: of all, less what has none, both linear in S where S > T."""
    with mp.workdps(400):
        x = (mp.log(cut) + mp.mpf(spread) ** 2 / 2) / spread
        none, mean = mp.ncdf(x) ** bins, mp.ncdf(x - spread)
        rest = bins * mean * mp.ncdf(x) ** (bins - 1)
        return (bins - rest) - level * (1 - none)


@pytest.mark.parametrize("bins", [1, 2, 7, 1000])
@pytest.mark.parametrize(("spread", "eps"), [(0.3, 0.5), (1.0, 0.1), (2.0, 5.0), (6.0, 30.0)])
def test_the_closed_form_is_within_its_bounds(bins, spread, eps):
    level = bins * math.exp(eps)
    high = (math.log(level) + 0.5 * spread**2) / spread + 0.01
    with mp.workdps(400):
        cut = mp.exp(mp.mpf(spread) * mp.mpf(high) - mp.mpf(spread) ** 2 / 2)
        exact = of_several(bins, spread, cut, bins * mp.exp(mp.mpf(eps)))
    lower, upper = Jumps(bins, spread, high).bounds(math.log(bins) + eps)
    assert lower <= exact <= upper
    assert upper - lower <= 1e-9 * upper + 2e-300


def test_one_bin_is_the_gaussian_mechanism():
    high = (3.0 + 0.5) / 1.0 + 1e-9
    lower, upper = Jumps(1, 1.0, high).bounds(3.0)
    exact = of_one(1.0, mp.e**3)
    assert float(exact) == pytest.approx(upper, rel=1e-6)
    assert lower <= exact * (1 + mp.mpf(10) ** -12)


def test_a_cut_below_the_level_gives_an_upper_end_only():
    lower, upper = Jumps(5, 1.0, 2.0).bounds(math.log(5.0) + 2.0)
    cut = math.exp(1.5)
    assert lower == 0.0
    # S > c, so that E [S - c; some a > c] is above; the level itself has less.
    assert upper >= float(of_several(5, 1.0, mp.mpf(cut), mp.mpf(5.0) * mp.e**2))
    assert upper == pytest.approx(float(of_several(5, 1.0, mp.mpf(cut), mp.mpf(cut))), rel=1e-9)
