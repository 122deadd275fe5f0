"""Plans that look like mistakes: said on standard error and in the JSON, and never a reason to fail."""

from collections.abc import Iterable

from dpmech.calibration import Calibration
from dpmech.engines import FreshEpochsAccountant
from dpmech.exceptions import DpmechError
from dpmech.mechanism import Mechanism, Unit
from dpmech.numerics import typed, up
from dpmech.plans import TrainingPlan
from dpmech.schemes import accountant_for
from dpmech.schemes.balls_in_bins import BallsInBins

__all__ = ["allocation_notes", "plan_notes"]

_LARGEST_EPS = 20.0
# Examples that no whole batch has room for, in per cent of all.
_UNUSED_PERCENT = 1


def plan_notes(
    training: TrainingPlan,
    eps: Iterable[float],
    delta: float,
    *,
    estimates: Iterable[str] = (),
    unit: Unit = Unit.EXAMPLE,
) -> list[str]:
    """What an experienced reader would ask about.

    Args:
        training: the plan.
        eps: every budget that was sized, at `delta`.
        delta: in (0, 1).
        estimates: names of the results whose guarantee is an estimate.
        unit: whom the claim is about.

    Returns:
        One sentence a line; empty where nothing stands out.
    """
    size, batch, steps = training.dataset_size, training.batch_size, training.steps_per_epoch
    notes = []
    published, guessed = (
        ("all data of a user", "a user") if unit is Unit.USER else ("one example", "an example")
    )
    # Exact, as delta * size would not be: a float is a fraction.
    numerator, denominator = delta.as_integer_ratio()
    if numerator * size > denominator:
        notes.append(
            f"delta {typed(delta)} is above 1 / dataset_size (1 / {size}): publishing {published} picked "
            "at random would be allowed"
        )
    unused = size - steps * batch
    if 100 * unused > _UNUSED_PERCENT * size:
        notes.append(
            f"an epoch of {steps} whole batches of {batch} leaves {unused} of the {size} examples over "
            f"({up(100.0 * unused / size, 3)} %, more than {_UNUSED_PERCENT} %): another batch size "
            "would leave fewer"
        )
    notes.extend(
        f"eps {typed(one)} is above {typed(_LARGEST_EPS)}: the odds of a guess about {guessed} may grow "
        f"by e^{typed(one)}"
        for one in eps
        if one > _LARGEST_EPS
    )
    named = list(dict.fromkeys(estimates))
    if named:
        notes.append(
            f"an estimate, not a bound: {', '.join(named)}; without --method it would be a bound, and "
            "`dpmech verify --rigorous` refuses estimates"
        )
    return notes


def allocation_notes(labelled: Iterable[tuple[str, Calibration]]) -> list[str]:
    """What independent noise costs under one allocation to bins for all epochs.

    Args:
        labelled: what was sized, by name.

    Returns:
        One sentence for each that a new allocation every epoch would serve better; empty where there is none.
    """
    notes = []
    for label, cal in labelled:
        bins, n = cal.participation.allocation_bins, cal.strategy.n
        if cal.strategy.bands != 1 or bins is None or cal.participation.certain or n == bins:
            continue
        try:
            fresh = Mechanism(cal.strategy, BallsInBins(bins, fresh=True), cal.adjacency)
            accountant = accountant_for(fresh, None)
            if not isinstance(accountant, FreshEpochsAccountant):
                continue
            about = accountant.rough_sigma(cal.budget.eps, cal.budget.delta)
        except (DpmechError, ArithmeticError):
            continue
        if about < cal.sigma:
            notes.append(
                f"{label} needs sigma {up(cal.sigma, 3)} under one allocation to bins for all {n // bins} "
                f"epochs; its noise is independent, and with a new allocation every epoch (--sampling "
                f"{fresh.participation.plan_name}) about {up(about, 3)} would do"
            )
    return notes
