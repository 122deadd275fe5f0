"""The eps of a run that stopped before its last step, or that is still running."""

import bisect
import math

import numpy as np

from dpmech.calibration import delta, epsilon
from dpmech.certificates import Claim
from dpmech.engines import Method, Rdp
from dpmech.exceptions import (
    InvalidParameterError,
    NumericalError,
    UnsupportedCombinationError,
    WorkLimitError,
)
from dpmech.guards import check_delta, check_integer
from dpmech.mechanism import Mechanism
from dpmech.numerics import EXACT, Bounds, Kind, Provenance, typed

# A budget has eps > 0, and the stated eps must be verifiable as one, so it is raised to at least this.
_LEAST = 1e-9
# Relative gaps above the searched eps that are tried until one meets delta; the result holds for any values.
_GAPS = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def executed_epsilon(claim: Claim, steps: int, *, rng: np.random.Generator | int | None = None) -> Bounds:
    """Bounds on eps, at the certified delta, of the first steps of a mechanism.

    The release is C_t G + sigma Z with the leading block C_t of the strategy, under the same participation.
    If the participation repeats every epoch, an epoch that was started counts as complete. A random
    allocation always counts as a whole.

    **The bounds hold only if the number of steps was decided without looking at the releases of the run**: in
    advance, or because of an external event such as a hardware failure. A run stopped because of its loss or
    accuracy is charged the full budget; `Bounds.by` repeats this. A `Ledger` always charges the full budget.

    **Guarantee:** that of the claim, because the same accountant is used. For a claim by Certified, the
    result is the full claim, because its beta has been used.

    Args:
        claim: a Calibration or a Certificate.
        steps: number of steps executed, in [0, n].
        rng: for accountants that sample; None uses entropy from the operating system.

    Returns:
        Bounds on eps, never above `claim.achieved`. If more steps are charged than were executed, the lower
        end is that of the charged steps.

    Raises:
        InvalidParameterError: if an argument is invalid.

    Examples:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.Identity(1000), 2.0, 1e-6, participation=dm.Poisson(0.01))
        >>> [round(dm.executed_epsilon(cal, steps).upper, 2) for steps in (0, 250, 1000)]
        [0.0, 1.14, 2.0]
    """
    if not isinstance(claim, Claim):
        raise InvalidParameterError("claim", claim, "a Calibration or a Certificate")
    n = claim.strategy.n
    count = check_integer("steps", steps, minimum=0, maximum=n)
    if count == 0:
        return Bounds(0.0, 0.0, EXACT, Provenance("release.none"))
    executed = claim.mechanism.prefix(count)
    if executed.steps == n or claim.evidence.accountant.keeps_randomness:
        return claim.achieved
    method = claim.evidence.accountant
    found = epsilon(executed, claim.sigma, claim.budget.delta, method=method, rng=rng)
    eps = max(found.upper, _LEAST)
    if claim.guarantee.kind <= Kind.BOUND:
        # The search for eps and delta itself round differently; the stated eps must hold under both.
        steps_up = (eps * (1.0 + gap) for gap in (0.0, *_GAPS))
        deltas = ((one, delta(executed, claim.sigma, one, method=method, rng=rng)) for one in steps_up)
        eps = next((one for one, there in deltas if there.upper <= claim.budget.delta), math.inf)
    if eps >= claim.achieved.upper:
        return claim.achieved
    return Bounds.derived(
        found.lower, eps, found.guarantee, Provenance("release.executed", rests_on=(found.by,))
    )


_PARTS = 32  # number of parts of a run; eps is computed at their ends
_FINER = 2.0**0.5  # ratio between points of the first part


def epsilon_saved(claim: Claim, steps: int, *, rng: np.random.Generator | int | None = None) -> float:
    """The eps that a shorter plan saves at the same noise: eps of all steps less that of the first ones.

    As of `executed_epsilon`, it is saved only if the number of steps was decided without looking at what the
    run released. A method that reaches the same accuracy in fewer steps can spend it: on less noise.

    Args:
        claim: a Calibration or a Certificate.
        steps: number of steps of the shorter plan, in [0, n].
        rng: for accountants that sample; None uses entropy from the operating system.

    Returns:
        The difference of the upper ends of `achieved` and of `executed_epsilon`, >= 0. An estimate: both ends
        are close to the smallest eps, not equal to it.

    Raises:
        InvalidParameterError: if an argument is invalid.

    Examples:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.Identity(400), 6.7, 1e-5, participation=dm.Poisson(2000 / 67_349))
        >>> round(dm.ledgers.epsilon_saved(cal, 330), 2)
        0.55
    """
    return max(0.0, claim.achieved.upper - executed_epsilon(claim, steps, rng=rng).upper)


class RunningEpsilon:
    """Bounds on eps of the first steps of a mechanism, computed at a few points and cached.

    The first t steps are a projection of the first t' >= t steps, so eps at t' bounds eps at t. A run has
    about 32 points, and closer ones near its start: eps is overstated by 3 % in the middle of a run, less at
    its end, and by up to a fifth at its start. If the claim depends on samples, no others are drawn: prefixes
    are bounded by `Rdp()` and by the claim.

    **It holds only if the number of steps was decided without looking at what the run released**, like
    `dm.executed_epsilon`; a run stopped because of its results is charged the full budget.

    Args:
        claim: a Calibration or a Certificate.

    Raises:
        InvalidParameterError: if the argument is invalid.
    """

    def __init__(self, claim: Claim) -> None:
        if not isinstance(claim, Claim):
            raise InvalidParameterError("claim", claim, "a Calibration or a Certificate")
        self._claim = claim
        self._points = _points(claim.strategy.n)
        self._covered: dict[int, int] = {}  # steps covered by a point: a started epoch counts as a full one
        self._known: dict[float, dict[int, Bounds]] = {}

    def after(self, steps: int, delta: float | None = None) -> Bounds:
        """Bounds on eps of the first steps; the upper end is never below the true eps of these steps.

        Args:
            steps: number of steps executed, in [0, n].
            delta: in (0, 1); None for the claim's delta. Above that, eps is at most that of the claim.

        Raises:
            InvalidParameterError: if an argument is invalid.
            NumericalError: if no bound is known at a delta below the claim's.
        """
        budget = self._claim.budget.delta
        wanted = budget if delta is None else check_delta(delta)
        count = check_integer("steps", steps, minimum=0, maximum=self._claim.strategy.n)
        if count == 0:
            return executed_epsilon(self._claim, 0)
        known = self._known.setdefault(wanted, {})
        point = self._points[bisect.bisect_left(self._points, count)]
        if point not in self._covered:
            self._covered[point] = self._claim.mechanism.prefix(point).steps
        covered = self._covered[point]
        if covered not in known:
            known[covered] = self._at(covered, wanted)
        above = known[covered]
        # A started epoch counted as a full one gives no lower bound.
        lower = max((found.lower for there, found in known.items() if there <= count), default=0.0)
        return Bounds.derived(min(lower, above.upper), above.upper, above.guarantee, above.by)

    def _at(self, steps: int, delta: float) -> Bounds:
        """Bounds on eps of the first `steps` steps."""
        claim = self._claim
        drawn = claim.evidence.accountant.draws
        if delta == claim.budget.delta and (not drawn or steps == claim.strategy.n):
            return executed_epsilon(claim, steps)
        method = Rdp() if drawn else claim.evidence.accountant
        found = _bounded(claim.mechanism.prefix(steps), claim.sigma, delta, method)
        if delta < claim.budget.delta:
            if found is None:
                at = typed(delta)
                raise NumericalError(f"no bound on eps is known at delta {at} without drawing samples")
            return found
        achieved = claim.achieved
        if found is None or found.upper >= achieved.upper:
            # For fewer steps or a larger delta the claim is an upper bound only.
            return Bounds.derived(0.0, achieved.upper, achieved.guarantee, achieved.by)
        return found


def _bounded(executed: Mechanism, sigma: float, delta: float, method: Method) -> Bounds | None:
    """The bounds that a method finds; None if it finds none."""
    try:
        found = epsilon(executed, sigma, delta, method=method)
    except (NumericalError, UnsupportedCombinationError, WorkLimitError):
        return None
    if not math.isfinite(found.upper):
        return None
    by = Provenance("release.executed", rests_on=(found.by,))
    return Bounds.derived(found.lower, found.upper, found.guarantee, by)


def _points(n: int) -> list[int]:
    """The steps at which eps is computed, including n."""
    even = {-(-n * part // _PARTS) for part in range(1, _PARTS + 1)}
    step = n / _PARTS
    while step > 1.0:
        even.add(math.ceil(step))
        step /= _FINER
    return sorted(even | {1})
