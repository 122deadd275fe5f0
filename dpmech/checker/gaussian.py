"""The Gaussian mechanism in closed form, and how numbers are printed to the safe side.

N(mu, 1) against N(0, 1) has H(eps) = Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu), mu the
sensitivity over the noise, in both directions; it rises with mu, and adaptive compositions of releases of one
C G + sigma Z are no worse (docs/checker.md, section 3).
"""

import decimal
import math

from flint import arb

__all__ = ["gaussian_delta", "normal_cdf", "rounded_down", "rounded_up"]

_HALF_ROOT = 0.5  # sqrt(2) = 2 sqrt(0.5), the latter with an exact argument


def normal_cdf(x: arb) -> arb:
    """Phi(x), with small relative error in the lower tail too."""
    return (-x * arb(_HALF_ROOT).sqrt()).erfc() / 2


def gaussian_delta(mu: arb, ratio: arb) -> arb:
    """H at e^eps = ratio > 0 of N(mu, 1) against N(0, 1), mu > 0; a ball."""
    eps = ratio.log()
    return normal_cdf(mu / 2 - eps / mu) - ratio * normal_cdf(-mu / 2 - eps / mu)


def rounded_up(value: arb, digits: int = 6) -> str:
    """A decimal number that is not below the ball."""
    return _decimal(value.upper(), digits, decimal.ROUND_CEILING, math.inf)


def rounded_down(value: arb, digits: int = 6) -> str:
    """A decimal number that is not above the ball."""
    return _decimal(value.lower(), digits, decimal.ROUND_FLOOR, -math.inf)


def _decimal(end: arb, digits: int, rounding: str, towards: float) -> str:
    if not end.is_finite():
        return str(towards)
    mantissa, exponent = (int(x) for x in end.man_exp())
    with decimal.localcontext(decimal.Context(prec=400, Emin=-999_999, Emax=999_999)) as context:
        exact = decimal.Decimal(mantissa) * decimal.Decimal(2) ** exponent
        context.prec, context.rounding = digits, rounding
        return f"{+exact:.{digits - 1}e}" if exact else "0"
