"""Numbers in a form to read and copy: rounded to the safe side, never to nearest.

Values that must not be too small (a required noise scale, a sensitivity, an upper bound on eps or delta, an
error) are rounded `up`; values that must not be too large (a lower bound, the available noise, a gain) are
rounded `down`. User input is printed by `typed`. Comparisons are exact: with the printed decimal, not with
the float nearest to it.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer

DIGITS = 6
# Enough for every exponent of a quotient of floats; a smaller limit would stop rounding at the edge.
_EXPONENT = 9999
# More digits than the shortest decimal of a float has.
_PLACES = 17


def up(value: float, digits: int = DIGITS) -> str:
    """The smallest decimal with `digits` significant digits that is not below `value`.

    **Guarantee:** exact; the printed decimal is at least `value`, and so is the float it parses to.

    Args:
        value: any number but NaN; infinities are printed as "inf" and "-inf".
        digits: >= 1.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: on NaN.

    Examples:
        >>> from dpmech.numerics.printed import down, up
        >>> up(2.9336702384), down(2.9336702384), f"{2.9336702384:.6g}"
        ('2.93368', '2.93367', '2.93367')
    """
    return _rounded(value, digits, ROUND_CEILING)


def down(value: float, digits: int = DIGITS) -> str:
    """The largest decimal with `digits` significant digits that is not above `value`; otherwise as `up`."""
    return _rounded(value, digits, ROUND_FLOOR)


def typed(value: float) -> str:
    """The shortest text that parses to exactly this float: the user's input, up to notation.

    Raises:
        NumericalError: on NaN.

    Examples:
        >>> from dpmech.numerics.printed import typed
        >>> typed(8.0), typed(1e-5), typed(0.1)
        ('8', '1e-05', '0.1')
    """
    return repr(_number(value)).removesuffix(".0")


def short(value: float) -> str:
    """The result of `typed` if it is short, otherwise of `up`; errors as for `typed`.

    Examples:
        >>> from dpmech.numerics.printed import short
        >>> short(1e-5), short(0.1 + 0.2)
        ('1e-05', '0.300001')
    """
    return min(typed(value), up(value), key=len)


def percent(value: float) -> str:
    """A share in per cent, without rounding: 0.999999999 is 99.9999999, never 100.

    Raises:
        NumericalError: on NaN and infinities.

    Examples:
        >>> from dpmech.numerics.printed import percent
        >>> percent(0.9999), percent(0.999999999), percent(0.5)
        ('99.99', '99.9999999', '50')
    """
    if math.isinf(_number(value)):
        raise NumericalError(f"{value!r} is no share to print")
    # Uses the shortest decimal: the scaling only moves its decimal point.
    return _text(Decimal(typed(value)).scaleb(2), _PLACES)


def between(lower: float, upper: float, digits: int = DIGITS) -> str:
    """An interval that contains [lower, upper]: "[down, up]"."""
    return f"[{down(lower, digits)}, {up(upper, digits)}]"


def percent_up(share: float) -> str:
    """A share in per cent, rounded up: three digits, and two decimals above 99 %; at most 100.

    **Guarantee:** exact; the printed decimal is at least 100 times the share, or 100.

    Errors as for `up`.

    Examples:
        >>> from dpmech.numerics.printed import percent_up
        >>> percent_up(0.0739051), percent_up(0.99963), percent_up(1.5)
        ('7.4', '99.97', '100')
    """
    number = min(_number(share), 1.0)
    if math.isinf(number):
        return repr(number)
    digits = 4 if number > 0.99 else 3
    return _text(_context(digits, ROUND_CEILING).multiply(Decimal(number), Decimal(100)), digits)


def counted(count: int, noun: str) -> str:
    """A number of things with their noun, in the singular for 1.

    Examples:
        >>> from dpmech.numerics.printed import counted
        >>> counted(1, "release"), counted(2, "release"), counted(3, "process")
        ('1 release', '2 releases', '3 processes')
    """
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def times(more: float, less: float, digits: int = 2) -> str:
    """`more` over `less`, rounded down: `less` is at least this many times smaller.

    Args:
        more: finite, >= 0.
        less: finite, > 0.
        digits: significant digits of the quotient.

    Raises:
        InvalidParameterError: if an argument is invalid.

    Examples:
        >>> from dpmech.numerics.printed import times
        >>> times(21.83, 6.85), times(3.0, 1.0)
        ('3.1', '3')
    """
    if not 0.0 <= _number(more) < math.inf:
        raise InvalidParameterError("more", more, "a finite number >= 0")
    if not 0.0 < _number(less) < math.inf:
        raise InvalidParameterError("less", less, "a finite number > 0")
    context = _context(digits, ROUND_FLOOR)
    return _text(context.divide(Decimal(float(more)), Decimal(float(less))), digits)


def _rounded(value: float, digits: int, rounding: str) -> str:
    number = _number(value)
    if math.isinf(number):
        return repr(number)
    return _text(_context(digits, rounding).plus(Decimal(number)), digits)


def _number(value: float) -> float:
    number = float(value)
    if math.isnan(number):
        raise NumericalError("NaN is no number to print")
    return number


def _context(digits: int, rounding: str) -> Context:
    return Context(
        prec=check_integer("digits", digits, minimum=1), rounding=rounding, Emin=-_EXPONENT, Emax=_EXPONENT
    )


def _text(number: Decimal, digits: int) -> str:
    """The format of `format(float, "g")`: no trailing zeros, exponents of two digits or more."""
    if number.is_zero():
        return "0"
    sign = "-" if number.is_signed() else ""
    figures = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    exponent = number.adjusted()
    if not -4 <= exponent < max(digits, DIGITS):
        fraction = f".{figures[1:]}" if len(figures) > 1 else ""
        return f"{sign}{figures[0]}{fraction}e{exponent:+03d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{figures}"
    whole, fraction = figures[: exponent + 1].ljust(exponent + 1, "0"), figures[exponent + 1 :]
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
