"""executed_epsilon: what a run costs that stopped before its last step."""

import math

import numpy as np

from dpmech.certificates import Claim
from dpmech.engines import Certified
from dpmech.evaluation import delta, epsilon
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.numerics import EXACT, Bounds, Kind, Provenance

__all__ = ["executed_epsilon"]

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
    if executed.steps == n or isinstance(claim.evidence.accountant, Certified):
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
