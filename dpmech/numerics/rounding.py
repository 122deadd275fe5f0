"""Directed rounding, properties of the platform's floats, and overflow of their range.

A single float64 operation rounds to nearest, so the next float in the required direction is on the safe side
of the true result.
"""

import contextlib
import math
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction

import numpy as np

from dpmech.exceptions import DpmechError, NumericalError

# Half the distance from 1 to the next float: the relative error of one rounded operation.
UNIT = sys.float_info.epsilon / 2.0
# Bound on the relative error of exp, log, expm1, log1p: numpy states at most 4 units in the last place for
# its vector loops, and C libraries 1 or 2.
ELEMENTARY = 8.0 * UNIT
# The significand of C's long double: 64 bits, 113, or 53 where it is float64; and its unit.
LONGDOUBLE_BITS = int(np.finfo(np.longdouble).nmant) + 1
LONGDOUBLE_UNIT = float(np.finfo(np.longdouble).eps) / 2.0


def next_up(value: float) -> float:
    """The next float above: not below the exact result of the rounded operation that gave `value`."""
    return math.nextafter(value, math.inf)


def next_down(value: float) -> float:
    """The next float below: not above the exact result."""
    return math.nextafter(value, -math.inf)


def sum_up(values: Iterable[float]) -> float:
    """An upper bound on the sum, at most one float above it; 0 for no values, exact for one."""
    return _summed(values, math.inf)


def sum_down(values: Iterable[float]) -> float:
    """A lower bound on the sum, at most one float below it."""
    return _summed(values, -math.inf)


def product_up(one: float, other: float) -> float:
    """The smallest float that is not below the product; infinite on overflow."""
    product = one * other
    if math.isinf(product) or math.isnan(product):
        return product
    return next_up(product) if Fraction(product) < Fraction(one) * Fraction(other) else product


def product_down(one: float, other: float) -> float:
    """The largest float that is not above the product; at most the largest float for finite factors."""
    product = one * other
    if math.isnan(product) or (math.isinf(product) and (math.isinf(one) or math.isinf(other))):
        return product
    if product == math.inf:
        return sys.float_info.max
    if product == -math.inf:
        return product
    return next_down(product) if Fraction(product) > Fraction(one) * Fraction(other) else product


def quotient_up(one: float, other: float) -> float:
    """The smallest float that is not below one / other, for finite numbers > 0; infinite on overflow.

    Raises:
        ZeroDivisionError: if `other` is 0.
    """
    quotient = one / other
    if math.isinf(quotient):
        return quotient
    return next_up(quotient) if Fraction(quotient) * Fraction(other) < Fraction(one) else quotient


def quotient_down(one: float, other: float) -> float:
    """The largest float that is not above one / other; otherwise as `quotient_up`."""
    quotient = one / other
    if math.isinf(quotient):
        return sys.float_info.max
    return next_down(quotient) if Fraction(quotient) * Fraction(other) > Fraction(one) else quotient


def root_up(value: float) -> float:
    """The smallest float that is not below the square root of a finite number >= 0."""
    root = math.sqrt(value)
    return next_up(root) if Fraction(root) ** 2 < Fraction(value) else root


def root_down(value: float) -> float:
    """The largest float that is not above the square root of a finite number >= 0."""
    root = math.sqrt(value)
    return next_down(root) if Fraction(root) ** 2 > Fraction(value) else root


def outward(lower: float, upper: float, relative: float) -> tuple[float, float]:
    """Bounds >= 0 moved apart by a relative error, rounding included; unchanged if the error is 0.

    Args:
        lower: >= 0.
        upper: >= lower.
        relative: bound on the relative error of each end, in [0, 1).
    """
    if relative == 0.0:
        return lower, upper
    return (
        max(0.0, product_down(lower, next_down(1.0 - relative))),
        product_up(upper, next_up(1.0 + relative)),
    )


def rounded_up(value: Fraction) -> float:
    """The smallest float that is not below `value`.

    Raises:
        NumericalError: if `value` is beyond the range of float64.
    """
    try:
        nearest = float(value)
    except OverflowError:
        raise NumericalError("a sum leaves the range of float64") from None
    found = nearest if Fraction(nearest) >= value else next_up(nearest)
    if math.isinf(found):
        raise NumericalError("a sum leaves the range of float64")
    return found


def rounded_down(value: Fraction) -> float:
    """The largest float that is not above `value`; errors as for `rounded_up`."""
    return -rounded_up(-value)


def _summed(values: Iterable[float], direction: float) -> float:
    given = [value for value in values if value != 0.0]
    if len(given) < 2:
        return given[0] if given else 0.0
    # `fsum` rounds the exact sum once, to nearest.
    total = math.fsum(given)
    return total if math.isinf(total) else math.nextafter(total, direction)


@contextlib.contextmanager
def within_float64(what: str = "the arguments") -> Iterator[None]:
    """Report overflow, division by an underflowed number, or an array too large because of one as such.

    Args:
        what: description of the inputs.

    Raises:
        NumericalError: in place of the errors of Python and numpy.
    """
    try:
        # Overflow gives infinity, which is an upper bound; operations on two infinities give NaN.
        with np.errstate(over="ignore", invalid="raise", divide="raise"):
            yield
    except DpmechError:
        raise
    except MemoryError as error:
        raise NumericalError(f"{what}: this takes more memory than there is ({error})") from error
    except (ArithmeticError, ValueError) as error:
        reason = error.args[-1] if error.args else type(error).__name__
        raise NumericalError(f"{what} leave the range of float64 ({reason})") from error
