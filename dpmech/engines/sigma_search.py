"""The smallest sigma that meets a budget, for an accountant that bounds delta on both sides."""

import contextlib
import math
from collections.abc import Callable

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.gaussian import gaussian_log_sigma
from dpmech.exceptions import NumericalError, UnattainableBudgetError
from dpmech.numerics import Bounds, safe_root, signed, up


def gaussian_scale(eps: float, delta: float) -> float:
    """Log of sigma / sensitivity of the plain Gaussian mechanism with this delta at eps.

    Delta falls over hundreds of orders of magnitude; this scale is close to linear in log sigma for every
    accountant, so that a secant method needs few probes. It only steers the search: the side of a probe is
    decided by comparing delta itself, and the values at which delta is clipped enter no guarantee.
    """
    return gaussian_log_sigma(eps, min(max(delta, 1e-290), 1.0 - 1e-12))


def slope_at(eps: float, delta: float) -> float:
    """Lower bound on the decrease of log delta in log sigma: that of the plain Gaussian mechanism."""
    within = min(max(delta, 1e-260), 1.0 - 1e-9)
    change = gaussian_scale(eps, within * math.exp(-0.01)) - gaussian_scale(eps, within)
    return max(0.05, 0.01 / max(change, 1e-6))


def secant_root(
    above: Callable[[float], float], start: float, *, widest: float, last: float, most: int
) -> float:
    """Where a function is about 0, by secant steps from a slope of 1: a starting point, without a bracket.

    Args:
        above: increasing; `gaussian_scale` of a bound, say, which is close to linear in log sigma.
        start: first guess.
        widest: the largest step.
        last: the steps end with one of at most that size.
        most: largest number of steps.
    """
    here, slope, before = start, 1.0, (math.nan, math.nan)
    for _ in range(most):
        value = above(here)
        if here != before[0] and (value - before[1]) / (here - before[0]) > 0.02:
            slope = (value - before[1]) / (here - before[0])
        before = here, value
        here -= min(max(value / slope, -widest), widest)
        if abs(here - before[0]) <= last:
            break
    return here


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
    """Safeguarded secant search in log sigma on the upper bound; its result is safe, with proved tightness.

    Args:
        accountant: bounds delta on both sides.
        eps: > 0.
        delta: in (0, 1).
        rtol: sigma is at most a factor 1 + rtol above the smallest valid one.
        start: first guess at sigma.
        step: expected error of the guess, in log sigma.
        progress: called for every probe.

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


# Largest number of secant steps from a close start; where they aim, and the farthest that is accepted, above
# the root in units of rtol.
_STEPS, _AIM, _ACCEPTED = 6, 0.05, 0.15


def sigma_near(
    accountant: Accountant, eps: float, delta: float, *, rtol: float, start: float, progress: Progress
) -> Solution:
    """As `smallest_sigma`, for bounds that take long and a start that is close: few probes, none below.

    That sigma is within rtol of the smallest one is proved as there, from its achieved bounds. If the steps
    do not converge, or the proof fails, the search with a bracket follows.

    Args:
        accountant: bounds delta on both sides.
        eps: > 0.
        delta: in (0, 1).
        rtol: sigma is at most a factor 1 + rtol above the smallest valid one.
        start: a guess that is better than the bracket of a search would be.
        progress: called for every probe.

    Raises:
        NumericalError: as for `smallest_sigma`.
        UnattainableBudgetError: as for `smallest_sigma`.
    """
    target = gaussian_scale(eps, delta)
    here, slope, before = math.log(start), 1.0, (math.nan, math.nan)
    for _ in range(_STEPS):
        upper = accountant.upper_delta(math.exp(here), eps, tolerance=0.4 * rtol)
        progress(f"sigma {up(math.exp(here))}: delta <= {up(upper, 4)}")
        above = signed(gaussian_scale(eps, upper) - target, safe=upper <= delta)
        if here != before[0] and (above - before[1]) / (here - before[0]) > 0.02:
            slope = (above - before[1]) / (here - before[0])
        # Beyond a usual slope the last two probes say little of the next.
        if 0.0 <= above <= _ACCEPTED * rtol * min(slope, 2.0):
            with contextlib.suppress(NumericalError):
                return _certified(accountant, math.exp(here), eps, delta, rtol)
            break
        before = here, above
        here += min(max(_AIM * rtol - above / slope, -0.5), 0.5)
    return smallest_sigma(
        accountant, eps, delta, rtol=rtol, start=math.exp(here), step=rtol, progress=progress
    )


def _certified(accountant: Accountant, sigma: float, eps: float, delta: float, rtol: float) -> Solution:
    tolerance = 0.4 * rtol

    def bounded(sigma: float) -> tuple[Bounds, bool]:
        achieved = accountant.epsilon(sigma, delta, tolerance=tolerance)
        safe = achieved.upper <= eps and accountant.delta(sigma, eps, tolerance=tolerance).upper <= delta
        return achieved, safe

    # Bounds of several calls differ by a little, though all hold.
    achieved, safe = bounded(sigma)
    for _ in range(5):
        if safe:
            break
        sigma *= 1.0 + 0.02 * rtol
        achieved, safe = bounded(sigma)
    below = accountant.bounded_delta(sigma / (1.0 + rtol), eps, tolerance=tolerance)
    # Without a lower bound, compare with the smallest sigma that this accountant certifies.
    tight = (below.lower if below.lower > 0.0 else below.upper) > delta
    if not (safe and tight):
        raise NumericalError(
            f"sigma={sigma!r} could not be shown to be within rtol={rtol!r} of the smallest one for "
            f"eps={eps!r}, delta={delta!r} ({accountant.method})"
        )
    return Solution(sigma, achieved)
