"""What is printed lies on the safe side of what was computed, for every float64, by exact arithmetic."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.numerics.printed import between, down, percent, times, typed, up

FINITE = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True)
# Decimals of few digits, whose floats lie on either side of them.
SHORT = st.builds(
    lambda mantissa, exponent: float(f"{mantissa}e{exponent}"),
    st.integers(-(10**7), 10**7),
    st.integers(-320, 300),
)
NUMBERS = FINITE | SHORT
DIGITS = st.integers(1, 800)
POSITIVE = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False, allow_subnormal=True)


def significant(text):
    digits = text.lstrip("-").partition("e")[0].replace(".", "").strip("0")
    return max(len(digits), 1)


@given(NUMBERS, DIGITS)
@example(5e-324, 1)
@example(1.7976931348623157e308, 1)
@example(-1.7976931348623157e308, 3)
@example(0.1, 1)
@example(0.3, 17)
@example(2.9336702384, 6)
@example(9.9999999, 6)
@example(-0.0, 6)
@example(123456.7, 6)
@example(1234567.0, 6)
@example(0.00012345678, 6)
@example(1e22, 6)
def test_up_is_not_below_down_not_above_and_both_are_the_nearest_such(value, digits):
    exact = Fraction(value)
    high, low = up(value, digits), down(value, digits)
    assert Fraction(Decimal(low)) <= exact <= Fraction(Decimal(high))
    # So is what they read back as, whatever float() rounds to.
    assert float(low) <= value <= float(high)
    for text in (high, low):
        assert significant(text) <= digits
    # No other decimal of so many digits lies between: the printed ones are at most one unit apart.
    if value != 0.0:
        unit = Fraction(10) ** (Decimal(value).adjusted() - digits + 1)
        assert Fraction(Decimal(high)) - Fraction(Decimal(low)) <= unit
        assert (high == low) == ((exact / unit).denominator == 1)
    assert between(value, value, digits) == f"[{low}, {high}]"


@given(NUMBERS)
def test_typed_reads_back_as_the_same_float_and_is_the_shortest_that_does(value):
    text = typed(value)
    assert float(text) == value
    assert math.copysign(1.0, float(text)) == math.copysign(1.0, value)
    if value != 0.0:
        digits = significant(text)
        assert digits <= 17
        if digits > 1:
            assert float(f"{value:.{digits - 2}e}") != value


@given(st.integers(1, 10**9), st.integers(0, 12))
def test_what_was_typed_in_decimals_is_echoed(mantissa, places):
    written = format(Decimal(mantissa).scaleb(-places), "f")
    assert Decimal(typed(float(written))) == Decimal(written)


@given(st.floats(0.0, 1.0))
@example(1.0 - 1e-9)
@example(1.0 - 2.0**-53)
@example(5e-324)
def test_percents_move_the_point_and_nothing_else(share):
    assert Decimal(percent(share)) == 100 * Fraction(Decimal(repr(share)))


@given(POSITIVE, POSITIVE, st.integers(1, 30))
def test_a_gain_is_never_overstated(more, less, digits):
    quotient = Fraction(more) / Fraction(less)
    shown = Fraction(Decimal(times(more, less, digits)))
    assert shown <= quotient
    assert quotient - shown < quotient * Fraction(10) ** (1 - digits)


@pytest.mark.parametrize(
    ("value", "digits", "high", "low"),
    [
        (2.9336702384, 6, "2.93368", "2.93367"),
        (8.0, 6, "8", "8"),
        (1e-5, 3, "1.01e-05", "1e-05"),  # the float lies above the decimal 1e-5, by 8e-22
        (0.5, 1, "0.5", "0.5"),
        (0.0, 6, "0", "0"),
        (-0.0, 6, "0", "0"),
        (999999.5, 6, "1e+06", "999999"),
        (9.9999999, 3, "10", "9.99"),
        (0.0001, 1, "0.0002", "0.0001"),
        (-1.2345678, 6, "-1.23456", "-1.23457"),
        (1234567.0, 6, "1.23457e+06", "1.23456e+06"),
        (5e-324, 2, "5e-324", "4.9e-324"),
        (math.inf, 6, "inf", "inf"),
        (-math.inf, 6, "-inf", "-inf"),
    ],
)
def test_known_texts(value, digits, high, low):
    assert (up(value, digits), down(value, digits)) == (high, low)


@pytest.mark.parametrize(
    ("value", "text"), [(8.0, "8"), (1e-5, "1e-05"), (0.1, "0.1"), (1 / 3, "0.3333333333333333"), (7, "7")]
)
def test_typed_texts(value, text):
    assert typed(value) == text


def test_nothing_is_printed_for_what_is_no_number():
    for function in (up, down, typed):
        with pytest.raises(dm.NumericalError, match="NaN"):
            function(math.nan)
    with pytest.raises(dm.InvalidParameterError, match="digits must be an integer >= 1"):
        up(1.0, 0)
    with pytest.raises(dm.NumericalError, match="no share"):
        percent(math.inf)
    for more, less, name in (
        (math.inf, 1.0, "more"),
        (-1.0, 1.0, "more"),
        (1.0, 0.0, "less"),
        (1.0, math.inf, "less"),
    ):
        with pytest.raises(dm.InvalidParameterError, match=f"{name} must be a finite number"):
            times(more, less)
