import math
import sys
from fractions import Fraction

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


@pytest.mark.parametrize("exponent", [2000, -2000])
def test_rationals_beyond_float64(exponent):
    value = Fraction(2) ** exponent
    if exponent < 0:
        assert rounding.rounded_up(value) == 5e-324
        assert rounding.rounded_down(value) == 0.0
    else:
        with pytest.raises(dm.NumericalError, match="leaves the range"):
            rounding.rounded_up(value)


def test_what_the_platform_can_do():
    assert rounding.UNIT == 2.0**-53
    assert rounding.LONGDOUBLE_BITS >= 53
    assert rounding.LONGDOUBLE_UNIT == 2.0**-rounding.LONGDOUBLE_BITS
