"""A single Poisson-sampled release, from the closed form of the plain Gaussian mechanism."""

import math

from dpmech.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, bisect_boundary, outward

__all__ = ["one_step_delta", "one_step_epsilon"]

# Below this delta there are subnormal numbers, which are not accurate.
_NOTHING = 1e-300
# Where a search for eps starts at least.
_SMALLEST_EPS = 1e-9


def one_step_delta(q: float, multipliers: tuple[float, float], eps: float) -> tuple[float, float]:
    """Lower and upper delta of a single step, from the plain Gaussian mechanism: exact up to rounding.

    REMOVE is q H_a(N(1) || N(0)) with e^a = 1 + (e^eps - 1) / q, and ADD is c H_a(N(0) || N(1)) with
    c = 1 - e^eps (1 - q) and e^a = q e^eps / c, or 0 where c <= 0.

    Args:
        q: the sampling probability, in (0, 1).
        multipliers: sigma / sensitivity, rounded up for the lower end and down for the upper one.
        eps: >= 0.
    """
    growth = math.expm1(min(eps, 700.0)) / q
    small = eps < 700.0 and growth < math.inf
    a = math.log1p(growth) if small else eps - math.log(q)
    # An elementary function of the C library is off by 4 u (2 units in the last place), all else by u;
    # log1p passes relative errors on at most as they are: 9 u of a. The rest of the sum is below e^-700
    # beyond.
    off = 12.0 * UNIT * (a if small else a + abs(math.log(q)))
    # c = q - (e^eps - 1) (1 - q) cancels where the two are close: 7 u of the product, and u of c.
    possible = eps < 1.0 - math.log1p(-q)
    share = q - math.expm1(eps) * (1.0 - q) if possible else 0.0
    share_off = 8.0 * UNIT * (q + math.expm1(eps)) if possible else 0.0
    found = []
    for end, multiplier in enumerate(multipliers):
        side = -1.0 if end == 0 else 1.0
        value = q * gaussian_delta(multiplier, max(0.0, a - side * off))[end]
        # ADD grows with c, at a fixed q e^eps.
        part = share + side * share_off
        if part > 0.0:
            exponent = math.log(q) + eps - math.log(part)
            slack = 8.0 * UNIT * (abs(math.log(q)) + eps + abs(math.log(part)))
            value = max(value, part * gaussian_delta(multiplier, max(0.0, exponent - side * slack))[end])
        found.append(outward(value, value, 2.0 * UNIT)[end])
    return (found[0] if found[0] > _NOTHING else 0.0), min(1.0, max(found[1], _NOTHING))


def one_step_epsilon(q: float, multipliers: tuple[float, float], delta: float) -> tuple[float, float]:
    """Lower and upper eps >= 0 of a single step at delta; arguments as for `one_step_delta`.

    Raises:
        NumericalError: if no eps in float64 has so small a delta.
    """

    def ends(eps: float) -> tuple[float, float]:
        return one_step_delta(q, multipliers, eps)

    if ends(0.0)[1] <= delta:
        return 0.0, 0.0
    # Sampling only lowers it, up to rounding.
    high = max(gaussian_epsilon(multipliers[1], delta, safe=True), _SMALLEST_EPS)
    while ends(high)[1] > delta:
        high *= 2.0
        if math.isinf(high):
            raise NumericalError(f"delta={delta!r} is below the resolution of one step")
    lower = bisect_boundary(lambda eps: ends(eps)[0] > delta, 0.0, high, safe=False)
    upper = bisect_boundary(lambda eps: ends(eps)[1] > delta, 0.0, high, safe=True)
    return min(lower, upper), upper
