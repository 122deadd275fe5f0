"""What every plan is compared with: DP-SGD as it is run, independent noise under Poisson sampling."""

import dataclasses
import time

from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.cli.options import ResolvedPlan
from dpmech.cli.printing import Report
from dpmech.exceptions import NumericalError, UnattainableBudgetError, UnsupportedCombinationError
from dpmech.mechanism import Identity, Participation, per_step_error

__all__ = ["BASELINE", "Baseline", "baseline_of", "error_of"]

BASELINE = "DP-SGD (Poisson), baseline"


@dataclasses.dataclass(frozen=True)
class Baseline:
    """DP-SGD for a plan.

    Attributes:
        calibration: its noise; None where it is not defined, or has no number.
        reason: why there is none; empty otherwise.
        seconds: what it took.
    """

    calibration: Calibration | None
    reason: str
    seconds: float


def baseline_of(plan: ResolvedPlan, report: Report) -> Baseline:
    """The same steps, expected batch size, budget and adjacency, by the default accountant (a bound).

    Raises:
        InvalidParameterError: on a bad budget.
    """
    start = time.perf_counter()
    cal, reason = None, ""
    try:
        cal = calibrate_sigma(
            Identity(plan.training.n),
            *plan.budget,
            participation=_drawn_anew(plan),
            adjacency=plan.adjacency,
            rtol=plan.rtol,
            progress=lambda line: report(f"{BASELINE}: {line}"),
        )
    except (UnsupportedCombinationError, UnattainableBudgetError, NumericalError) as error:
        reason = str(error)
    report("")
    return Baseline(cal, reason, time.perf_counter() - start)


def _drawn_anew(plan: ResolvedPlan) -> Participation:
    """Poisson sampling of all examples at every step, of the unit of the plan."""
    own = plan.participation
    if own.unit is None:
        return plan.training.participation("poisson")
    if (own.example_prob is not None and own.groups is None) or plan.training.q == 1.0:
        return own
    return plan.training.participation("user-poisson", max_examples_per_user=own.examples)


def error_of(cal: Calibration, objective: str) -> float:
    """The error of the prefix sums in units of the clip norm: "rmse", "max_se", or "last"."""
    if objective == "rmse":
        return cal.rmse()
    if objective == "max_se":
        return cal.max_se()
    return float(per_step_error(cal.strategy)[-1]) * cal.sigma
