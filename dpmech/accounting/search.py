"""The smallest sigma that meets a budget, from an accountant that brackets delta."""

import math
from collections.abc import Callable

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.gaussian import gaussian_sigma
from dpmech.exceptions import NumericalError, UnattainableBudgetError

__all__ = ["smallest_sigma"]

_MAX_PROBES = 60


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

    Delta is mapped to the noise multiplier of the plain Gaussian mechanism with that delta at eps, whose
    log is close to linear in log sigma.

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
    target = math.log(gaussian_sigma(eps, delta))
    tolerance = 0.4 * rtol

    def excess(log_sigma: float) -> float:
        """Negative where the upper bound on delta is too high, else how far it is on the safe side."""
        upper = accountant.delta(math.exp(log_sigma), eps, tolerance=tolerance).upper
        progress(f"sigma {math.exp(log_sigma):.6g}: delta <= {upper:.4g}")
        if upper <= 0.0:
            return math.inf
        value = math.log(gaussian_sigma(eps, min(upper, 1.0 - 1e-12))) - target
        # The sign is decided by delta itself.
        return max(value, 0.0) if upper <= delta else min(value, -1e-15)

    low, high, low_value, high_value = _bracket(excess, math.log(start), step, eps, delta)
    aim = 0.2 * rtol  # so that the secant lands on the safe side
    for probe in range(_MAX_PROBES):
        if high - low <= 0.4 * rtol:
            break
        slope = (high_value - low_value) / (high - low)
        middle = low + (aim * slope - low_value) / slope if 0.0 < slope < math.inf else 0.5 * (low + high)
        margin = 0.15 * rtol
        if not low + margin < middle < high - margin:
            middle = min(max(middle, low + margin), high - margin)
        if probe % 4 == 3:
            middle = 0.5 * (low + high)
        value = excess(middle)
        if value >= 0.0:
            high, high_value = middle, value
            if high - low > 0.4 * rtol and value < 0.5 * rtol * max(slope, 0.1):
                # Close from above: a probe just below closes the bracket.
                below = high - 0.35 * rtol
                value = excess(below)
                if value >= 0.0:
                    high, high_value = below, value
                else:
                    low, low_value = below, value
        else:
            low, low_value = middle, value
    return _certified(accountant, math.exp(high), eps, delta, rtol)


def _bracket(
    excess: Callable[[float], float], log_sigma: float, step: float, eps: float, delta: float
) -> tuple[float, float, float, float]:
    """Log sigmas on both sides of the target, and the excess there, by doubling steps."""
    value = excess(log_sigma)
    while True:
        other = log_sigma - step if value >= 0.0 else log_sigma + step
        if other > math.log(1e15):
            raise UnattainableBudgetError(eps, delta, "sigma would exceed 1e15")
        other_value = excess(other)
        if (other_value >= 0.0) != (value >= 0.0):
            low, high = (other, log_sigma) if value >= 0.0 else (log_sigma, other)
            low_value, high_value = (other_value, value) if value >= 0.0 else (value, other_value)
            return low, high, low_value, high_value
        log_sigma, value = other, other_value
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
