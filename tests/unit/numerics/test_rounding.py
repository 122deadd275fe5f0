import math
import sys
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.numerics import rounding

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


@given(st.lists(FINITE, max_size=6))
def test_directed_sums_enclose_the_exact_one(values):
    exact = sum(map(Fraction, values), Fraction(0))
    low, high = rounding.sum_down(values), rounding.sum_up(values)
    assert Fraction(low) <= exact <= Fraction(high)
    # At most one float on either side of the sum rounded to nearest.
    assert high <= math.nextafter(math.nextafter(low, math.inf), math.inf)


@given(FINITE, FINITE)
def test_directed_products_are_the_nearest_floats_on_their_side(one, other):
    exact = Fraction(one) * Fraction(other)
    low, high = rounding.product_down(one, other), rounding.product_up(one, other)
    if math.isfinite(low):
        assert Fraction(low) <= exact
        assert low == high or math.nextafter(low, math.inf) == high
    if math.isfinite(high):
        assert Fraction(high) >= exact


def test_products_beyond_the_largest_float():
    assert rounding.product_up(1e200, 1e200) == math.inf
    assert rounding.product_down(1e200, 1e200) == sys.float_info.max
    assert rounding.product_up(math.inf, 2.0) == rounding.product_down(math.inf, 2.0) == math.inf


POSITIVE = st.floats(1e-150, 1e150)


@given(POSITIVE, POSITIVE)
def test_directed_quotients_are_the_nearest_floats_on_their_side(one, other):
    exact = Fraction(one) / Fraction(other)
    low, high = rounding.quotient_down(one, other), rounding.quotient_up(one, other)
    assert Fraction(low) <= exact <= Fraction(high)
    assert low == high or math.nextafter(low, math.inf) == high


def test_quotients_beyond_the_largest_float_and_by_nothing():
    assert rounding.quotient_up(1e200, 1e-200) == math.inf
    assert rounding.quotient_down(1e200, 1e-200) == sys.float_info.max
    for quotient in (rounding.quotient_up, rounding.quotient_down):
        assert quotient(0.0, 3.0) == 0.0
        with pytest.raises(ZeroDivisionError):
            quotient(1.0, 0.0)


@given(st.floats(0.0, 1e300))
def test_directed_roots_are_the_nearest_floats_on_their_side(value):
    low, high = rounding.root_down(value), rounding.root_up(value)
    assert Fraction(low) ** 2 <= Fraction(value) <= Fraction(high) ** 2
    assert low == high or math.nextafter(low, math.inf) == high


@pytest.mark.parametrize("value", [2.0, 3.0, 5.0, 0.3, 7e200, 1e-300, 1.0 + 2.0**-52])
def test_roots_and_quotients_have_a_direction(value):
    assert Fraction(rounding.root_down(value)) ** 2 < Fraction(value) < Fraction(rounding.root_up(value)) ** 2
    assert rounding.quotient_down(value, 0.7) < rounding.quotient_up(value, 0.7)


ELEMENTARY = {
    np.exp: (mp.exp, -700.0, 700.0),
    np.log: (mp.log, 1e-300, 1e300),
    np.expm1: (mp.expm1, -40.0, 700.0),
    np.log1p: (mp.log1p, -0.5, 1e300),
}


@pytest.mark.parametrize("function", ELEMENTARY, ids=lambda one: one.__name__)
def test_elementary_functions_are_as_exact_as_stated(function):
    """What the derived bounds count for one of them; a whole array at once takes numpy's vector loops."""
    exact, low, high = ELEMENTARY[function]
    rng = np.random.default_rng(5)
    sizes = np.exp(rng.uniform(-40.0, math.log(high), size=3000))
    points = np.concatenate([sizes, -sizes, rng.uniform(-1.0, 1.0, size=1000)])
    points = points[(points >= low) & (points <= high)]
    values = function(points)
    with mp.workdps(50):
        seen = max(
            abs(mp.mpf(float(value)) / exact(mp.mpf(float(point))) - 1)
            for point, value in zip(points, values, strict=True)
            if point not in (0.0, 1.0)
        )
    assert 0.01 * rounding.ELEMENTARY < seen <= rounding.ELEMENTARY


@given(st.floats(0.0, 1e300), st.floats(0.0, 0.99))
def test_outward_ends_enclose_the_relative_error(value, relative):
    low, high = rounding.outward(value, value, relative)
    assert Fraction(low) <= Fraction(value) * (1 - Fraction(relative))
    assert Fraction(high) >= Fraction(value) * (1 + Fraction(relative))
    assert (low, high) == (value, value) or relative > 0.0


@given(st.fractions(min_value=-(10**12), max_value=10**12))
def test_rationals_are_rounded_to_the_float_on_their_side(value):
    high, low = rounding.rounded_up(value), rounding.rounded_down(value)
    assert Fraction(low) <= value <= Fraction(high)
    assert low == high or math.nextafter(low, math.inf) == high


@pytest.mark.parametrize("value", [Fraction(1, 3), Fraction(2, 3), Fraction(-1, 3), Fraction(1, 10**320)])
def test_rounding_has_a_direction_and_goes_to_the_next_float(value):
    assert Fraction(rounding.rounded_down(value)) < value < Fraction(rounding.rounded_up(value))
    assert rounding.rounded_up(value) == math.nextafter(rounding.rounded_down(value), math.inf)


@pytest.mark.parametrize("value", [Fraction(1, 4), Fraction(0), Fraction(-3), Fraction(5e-324)])
def test_floats_stay(value):
    assert rounding.rounded_up(value) == rounding.rounded_down(value) == value


def test_what_leaves_the_range_is_refused():
    for value in (Fraction(10) ** 400, Fraction(math.nextafter(math.inf, 0.0)) + Fraction(1, 3)):
        with pytest.raises(dm.NumericalError, match="float64"):
            rounding.rounded_up(value)
        with pytest.raises(dm.NumericalError, match="float64"):
            rounding.rounded_down(-value)


def test_what_the_platform_can_do():
    assert rounding.UNIT == 2.0**-53
    assert rounding.next_up(1.0) == 1.0 + 2.0 * rounding.UNIT
    # As many bits as it takes until a half of the last one is lost.
    one = np.longdouble(1)
    bits = next(k for k in range(1, 200) if one + one / np.longdouble(2) ** k == one)
    assert rounding.LONGDOUBLE_BITS == bits >= 53
    assert 2.0**-bits == rounding.LONGDOUBLE_UNIT


def test_elementary_functions_are_as_accurate_as_is_said():
    """Four units in the last place, each of at most two of our units."""
    assert rounding.ELEMENTARY == 8.0 * 2.0**-53
    assert rounding.next_up(0.0) > 0.0
    x = np.random.default_rng(8).uniform(1e-3, 30.0, 300)
    for function, exact in ((np.exp, mp.exp), (np.log1p, mp.log1p), (np.expm1, mp.expm1)):
        with mp.workdps(30):
            for at, found in zip(x.tolist(), function(x).tolist(), strict=True):
                assert abs(mp.mpf(found) / exact(mp.mpf(at)) - 1) <= rounding.ELEMENTARY
