"""Rational numbers rounded to floats in a chosen direction: sums of prices that nothing is lost from."""

import math
from fractions import Fraction

from dpmech.exceptions import NumericalError

__all__ = ["rounded_down", "rounded_up"]


def rounded_up(value: Fraction) -> float:
    """The smallest float that is not below `value`.

    Raises:
        NumericalError: beyond the range of float64.
    """
    try:
        nearest = float(value)
    except OverflowError:
        raise NumericalError("a sum of privacy prices leaves the range of float64") from None
    found = nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)
    if math.isinf(found):
        raise NumericalError("a sum of privacy prices leaves the range of float64")
    return found


def rounded_down(value: Fraction) -> float:
    """The largest float that is not above `value`; errors as for `rounded_up`."""
    return -rounded_up(-value)
