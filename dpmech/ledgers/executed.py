"""What a run has spent that stopped before its last step, or that is still running."""

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

# A budget has eps > 0, so that nothing below it could be verified as one: what is stated is raised to this.
_LEAST = 1e-9
# How far above the value of a search an eps is tried; the first whose delta holds is stated, whatever these
# are.
_GAPS = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def executed_epsilon(claim: Claim, steps: int, *, rng: np.random.Generator | int | None = None) -> Bounds:
    """Bounds on eps, at the certified delta, of the first steps of a mechanism.

    What was released is C_t G + sigma Z with the leading block C_t of the strategy, under the same
    participation. Epochs begun count as whole ones where the participation repeats every epoch.

    **It holds only if the number of steps was decided without looking at what the run released**: in
    advance, or by an event outside of it, such as a machine that failed. A run that was stopped because of
    its loss or its accuracy owes the whole claim; `Bounds.by` repeats it. A `Ledger` charges the whole
    claim in any case.

    **Guarantee:** that of the claim; the same accountant is used. Under a claim by Certified it is the whole
    claim: its beta is spent.

    Args:
        claim: a Calibration or a Certificate.
        steps: steps executed, in [0, n].
        rng: for sampled accountants; None takes entropy from the operating system.

    Returns:
        Bounds on eps, never above `claim.achieved`.

    Raises:
        InvalidParameterError: on a bad argument.

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
        # The search for eps and delta itself round differently; what is stated has to hold by both.
        steps_up = (eps * (1.0 + gap) for gap in (0.0, *_GAPS))
        deltas = ((one, delta(executed, claim.sigma, one, method=method, rng=rng)) for one in steps_up)
        eps = next((one for one, there in deltas if there.upper <= claim.budget.delta), math.inf)
    if eps >= claim.achieved.upper:
        return claim.achieved
    return Bounds.derived(
        found.lower, eps, found.guarantee, Provenance("release.executed", rests_on=(found.by,))
    )


_PARTS = 32  # of a run, at whose ends eps is computed
_FINER = 2.0**0.5  # between the points of the first part


class RunningEpsilon:
    """Bounds on eps of the first steps of a mechanism, computed at a few of them and kept.

    The first t steps of a run are what is left of its first t' >= t steps when the others are forgotten, so
    that eps there bounds eps here. There are some 32 points in a run, and finer ones near its start: eps is
    overstated by 3 % in the middle of a run, less at its end, and by up to a fifth at its start. Where the
    claim rests on samples, no others are drawn: prefixes are bounded by `Rdp()`, and by the claim.

    **It holds only if the number of steps was decided without looking at what the run released**, as
    `dm.executed_epsilon` does; whoever stops a run because of its results owes the whole claim.

    Args:
        claim: a Calibration or a Certificate.

    Raises:
        InvalidParameterError: on a bad argument.
    """

    def __init__(self, claim: Claim) -> None:
        if not isinstance(claim, Claim):
            raise InvalidParameterError("claim", claim, "a Calibration or a Certificate")
        self._claim = claim
        self._points = _points(claim.strategy.n)
        self._covered: dict[int, int] = {}  # by a point: an epoch that is begun counts as a whole
        self._known: dict[float, dict[int, Bounds]] = {}

    def after(self, steps: int, delta: float | None = None) -> Bounds:
        """Bounds on eps of the first steps; the upper end never below that of `dm.executed_epsilon`'s truth.

        Args:
            steps: steps executed, in [0, n].
            delta: in (0, 1); None is the claim's. Above it eps is at most the claim's.

        Raises:
            InvalidParameterError: on a bad argument.
            NumericalError: if no bound is known, at a delta below the claim's.
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
        # An epoch that is counted before it is over bounds nothing from below.
        lower = max((found.lower for there, found in known.items() if there <= count), default=0.0)
        return Bounds.derived(min(lower, above.upper), above.upper, above.guarantee, above.by)

    def _at(self, steps: int, delta: float) -> Bounds:
        """Eps of so many steps."""
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
            # Of fewer steps, or at a larger delta, it is a bound from above alone.
            return Bounds.derived(0.0, achieved.upper, achieved.guarantee, achieved.by)
        return found


def _bounded(executed: Mechanism, sigma: float, delta: float, method: Method) -> Bounds | None:
    """What a method finds for some steps; None where it finds nothing."""
    try:
        found = epsilon(executed, sigma, delta, method=method)
    except (NumericalError, UnsupportedCombinationError, WorkLimitError):
        return None
    if not math.isfinite(found.upper):
        return None
    by = Provenance("release.executed", rests_on=(found.by,))
    return Bounds.derived(found.lower, found.upper, found.guarantee, by)


def _points(n: int) -> list[int]:
    """The steps at which eps is computed; n is one."""
    even = {-(-n * part // _PARTS) for part in range(1, _PARTS + 1)}
    step = n / _PARTS
    while step > 1.0:
        even.add(math.ceil(step))
        step /= _FINER
    return sorted(even | {1})
