"""The smallest sigma that meets a budget, for an accountant that bounds delta on both sides."""

import math

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.gaussian import gaussian_log_sigma
from dpmech.exceptions import NumericalError, UnattainableBudgetError
from dpmech.numerics import safe_root, signed, up


def gaussian_scale(eps: float, delta: float) -> float:
    """Log of sigma / sensitivity of the plain Gaussian mechanism with this delta at eps.

    Delta falls over hundreds of orders of magnitude; this scale is close to linear in log sigma for every
    accountant, so that a secant method needs few probes. It only steers the search: the side of a probe is
    decided by comparing delta itself, and the values at which delta is clipped enter no guarantee.
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


def _certified(accountant: Accountant, sigma: float, eps: float, delta: float, rtol: float) -> Solution:
    tolerance = 0.4 * rtol
    achieved = accountant.epsilon(sigma, delta, tolerance=tolerance)
    for _ in range(5):
        if achieved.upper <= eps:
            break
        sigma *= 1.0 + 0.02 * rtol
        achieved = accountant.epsilon(sigma, delta, tolerance=tolerance)
    safe = accountant.delta(sigma, eps, tolerance=tolerance).upper <= delta and achieved.upper <= eps
    below = accountant.bounded_delta(sigma / (1.0 + rtol), eps, tolerance=tolerance)
    # Without a lower bound, compare with the smallest sigma that this accountant certifies.
    tight = (below.lower if below.lower > 0.0 else below.upper) > delta
    if not (safe and tight):
        raise NumericalError(
            f"sigma={sigma!r} could not be shown to be within rtol={rtol!r} of the smallest one for "
            f"eps={eps!r}, delta={delta!r} ({accountant.method})"
        )
    return Solution(sigma, achieved)
