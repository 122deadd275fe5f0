"""Which eps sampling can reach, and what is said below it."""

import math

from dpmech.accounting.gaussian import gaussian_delta
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, sum_up

__all__ = ["check_reach", "delta_below"]

# Where the samplers work; below it delta is bounded by its slope.
_SMALLEST_EPS = 1e-4

_LARGEST_EPS = 1e4


def delta_below(upper: float, sampled: float, eps: float, multiplier: float) -> float:
    """An upper bound on delta at eps from one at `sampled` >= eps, and without amplification.

    Both divergences fall in e^eps with a slope between -1 and 0, being integrals of (p - e^eps q)_+.
    """
    if eps >= sampled:
        return upper
    # exp and expm1, the difference in its argument (at most 1e-4, so that it enters with slope about 1), and
    # two products; the sum is rounded up.
    slack = math.exp(eps) * math.expm1(sampled - eps) * (1.0 + 2.0 * ELEMENTARY + 5.0 * UNIT)
    return min(1.0, sum_up((upper, slack)), gaussian_delta(multiplier, eps)[1])


def check_reach(log_eps: float, sigma: float, delta: float) -> None:
    """Raise NumericalError where eps is larger than any sampler here goes."""
    if log_eps > math.log(_LARGEST_EPS):
        raise NumericalError(
            f"eps at sigma={sigma!r}, delta={delta!r} is above {_LARGEST_EPS:g}, beyond what can be sampled; "
            "Rdp() has a bound"
        )
