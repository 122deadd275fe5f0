"""Plans that look like mistakes: said on standard error and in the JSON, and never a reason to fail."""

from collections.abc import Iterable

from dpmech.numerics import typed, up
from dpmech.plans import TrainingPlan

__all__ = ["plan_notes"]

_LARGEST_EPS = 20.0
# Examples that no whole batch has room for, in per cent of all.
_UNUSED_PERCENT = 1


def plan_notes(
    training: TrainingPlan, eps: Iterable[float], delta: float, *, estimates: Iterable[str] = ()
) -> list[str]:
    """What an experienced reader would ask about.

    Args:
        training: the plan.
        eps: every budget that was sized, at `delta`.
        delta: in (0, 1).
        estimates: names of the results whose guarantee is an estimate.

    Returns:
        One sentence a line; empty where nothing stands out.
    """
    size, batch, steps = training.dataset_size, training.batch_size, training.steps_per_epoch
    notes = []
    # Exact, as delta * size would not be: a float is a fraction.
    numerator, denominator = delta.as_integer_ratio()
    if numerator * size > denominator:
        notes.append(
            f"delta {typed(delta)} is above 1 / dataset_size (1 / {size}): publishing one example picked at "
            "random would be allowed"
        )
    unused = size - steps * batch
    if 100 * unused > _UNUSED_PERCENT * size:
        notes.append(
            f"an epoch of {steps} whole batches of {batch} leaves {unused} of the {size} examples over "
            f"({up(100.0 * unused / size, 3)} %, more than {_UNUSED_PERCENT} %): another batch size "
            "would leave fewer"
        )
    notes.extend(
        f"eps {typed(one)} is above {typed(_LARGEST_EPS)}: the odds of a guess about an example may grow "
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
