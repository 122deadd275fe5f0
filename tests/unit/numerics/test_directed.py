"""Rational numbers to floats, rounded in a direction that is never the wrong one."""

import math
from fractions import Fraction

import pytest

from dpmech.exceptions import NumericalError
from dpmech.numerics.directed import rounded_down, rounded_up


@pytest.mark.parametrize("value", [Fraction(1, 3), Fraction(2, 3), Fraction(-1, 3), Fraction(1, 10**320)])
def test_rounding_has_a_direction_and_goes_to_the_next_float(value):
    assert Fraction(rounded_down(value)) < value < Fraction(rounded_up(value))
    assert rounded_up(value) == math.nextafter(rounded_down(value), math.inf)


@pytest.mark.parametrize("value", [Fraction(1, 4), Fraction(0), Fraction(-3), Fraction(5e-324)])
def test_floats_stay(value):
    assert rounded_up(value) == rounded_down(value) == value


def test_what_leaves_the_range_is_refused():
    for value in (Fraction(10) ** 400, Fraction(math.nextafter(math.inf, 0.0)) + Fraction(1, 3)):
        with pytest.raises(NumericalError, match="float64"):
            rounded_up(value)
        with pytest.raises(NumericalError, match="float64"):
            rounded_down(-value)
