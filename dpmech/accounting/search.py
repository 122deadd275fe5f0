"""The smallest sigma that meets a budget, from an accountant that brackets delta."""

import math
from collections.abc import Callable

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.gaussian import gaussian_log_sigma
from dpmech.exceptions import NumericalError, UnattainableBudgetError
from dpmech.printed import up

__all__ = ["gaussian_scale", "safe_root", "smallest_sigma"]

_MAX_PROBES = 60
_LARGEST = math.log(1e15)


def gaussian_scale(eps: float, delta: float) -> float:
    """Log noise multiplier of the plain Gaussian mechanism with this delta at eps.

    Delta falls over hundreds of orders of magnitude; this is close to linear in log sigma for every
    accountant, so that a secant needs few probes.
    """
    return gaussian_log_sigma(eps, min(max(delta, 1e-290), 1.0 - 1e-12))


def smallest_sigma(
    accountant: Accountant,
    eps: float,
    delta: float,
    *,
    rtol: float,
    start: float,
    step: float,
    progress: Progress,
) -> Solution:
    """Safeguarded secant in log sigma on the upper bound; ends on the safe side, and proves tightness.

    Args:
        accountant: what brackets delta.
        eps: > 0.
        delta: in (0, 1).
        rtol: sigma is at most a factor 1 + rtol above the smallest valid one.
        start: first guess at sigma.
        step: how far off the guess is expected to be, in log sigma.
        progress: told about every probe.

    Raises:
        NumericalError: if the bounds are too far apart to show that sigma is within rtol.
        UnattainableBudgetError: if no sigma below 1e15 meets the budget.
    """
    target = gaussian_scale(eps, delta)

    def excess(log_sigma: float) -> float:
        upper = accountant.upper_delta(math.exp(log_sigma), eps, tolerance=0.4 * rtol)
        progress(f"sigma {up(math.exp(log_sigma))}: delta <= {up(upper, 4)}")
        return signed(gaussian_scale(eps, upper) - target, safe=upper <= delta)

    try:
        root = safe_root(excess, math.log(start), step=step, resolution=0.4 * rtol)
    except OverflowError:
        raise UnattainableBudgetError(eps, delta, "sigma would exceed 1e15") from None
    return _certified(accountant, math.exp(root), eps, delta, rtol)


def signed(value: float, *, safe: bool) -> float:
    """The value with the sign that the comparison of delta itself decided."""
    return max(value, 0.0) if safe else min(value, -1e-15)


def safe_root(excess: Callable[[float], float], start: float, *, step: float, resolution: float) -> float:
    """A point where `excess` is >= 0, at most `resolution` above one where it is negative.

    A safeguarded secant: it aims half the resolution above the root, and never ends on an unsafe point.

    Args:
        excess: increasing; >= 0 where safe.
        start: first guess.
        step: how far off the guess is expected to be; doubled until the root is bracketed.
        resolution: > 0.

    Raises:
        OverflowError: if no safe point lies below log 1e15.
        NumericalError: after 60 probes.
    """
    low, high, low_value, high_value = _bracket(excess, start, step)
    for probe in range(_MAX_PROBES):
        if high - low <= resolution:
            return high
        slope = (high_value - low_value) / (high - low)
        middle = 0.5 * (low + high)
        if probe % 4 != 3 and 0.0 < slope < math.inf:
            middle = low - low_value / slope + 0.5 * resolution
        margin = 0.4 * resolution
        middle = min(max(middle, low + margin), high - margin)
        value = excess(middle)
        if value < 0.0:
            low, low_value = middle, value
            continue
        high, high_value = middle, value
        if high - low > resolution and value < resolution * max(slope, 0.1):
            # Close from above: a probe just below closes the bracket.
            below = high - 0.9 * resolution
            value = excess(below)
            if value < 0.0:
                low, low_value = below, value
            else:
                high, high_value = below, value
    raise NumericalError(f"no root found within {_MAX_PROBES} probes: the bound is not monotone enough")


def _bracket(
    excess: Callable[[float], float], start: float, step: float
) -> tuple[float, float, float, float]:
    """Points on both sides of the root, and the excess there, by doubling steps."""
    here, value = start, excess(start)
    while True:
        other = here - step if value >= 0.0 else here + step
        if other > _LARGEST:
            raise OverflowError
        other_value = excess(other)
        if (other_value >= 0.0) != (value >= 0.0):
            return (other, here, other_value, value) if value >= 0.0 else (here, other, value, other_value)
        here, value = other, other_value
        step *= 2.0


def _certified(accountant: Accountant, sigma: float, eps: float, delta: float, rtol: float) -> Solution:
    tolerance = 0.4 * rtol
    achieved = accountant.epsilon(sigma, delta, tolerance=tolerance)
    for _ in range(5):
        if achieved.upper <= eps:
            break
        sigma *= 1.0 + 0.02 * rtol
        achieved = accountant.epsilon(sigma, delta, tolerance=tolerance)
    safe = accountant.delta(sigma, eps, tolerance=tolerance).upper <= delta and achieved.upper <= eps
    below = accountant.delta(sigma / (1.0 + rtol), eps, tolerance=tolerance)
    # Without a lower bound, sigma is the smallest one that this accountant certifies.
    tight = (below.lower if below.lower > 0.0 else below.upper) > delta
    if not (safe and tight):
        raise NumericalError(
            f"sigma={sigma!r} could not be shown to be within rtol={rtol!r} of the smallest one for "
            f"eps={eps!r}, delta={delta!r} ({accountant.method})"
        )
    return Solution(sigma, achieved)
