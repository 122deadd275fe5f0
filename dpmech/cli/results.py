"""Output for calibrations, for the DP-SGD baseline, and for plans that look like mistakes."""

import dataclasses
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.cli.files import save_certificate, save_strategy
from dpmech.cli.options import ResolvedPlan
from dpmech.cli.printing import Report, shown
from dpmech.exceptions import (
    DpmechError,
    NumericalError,
    UnattainableBudgetError,
    UnsupportedCombinationError,
)
from dpmech.files import on_one_line
from dpmech.mechanism import (
    Identity,
    Mechanism,
    Participation,
    Strategy,
    Unit,
    Workload,
    noise_cost,
    per_step_error,
)
from dpmech.numerics import times, typed, up
from dpmech.plans import TrainingPlan
from dpmech.schemes import accountant_for, scheme_of

BASELINE = "DP-SGD (Poisson), baseline"


@dataclasses.dataclass(frozen=True)
class Baseline:
    """DP-SGD for a plan: independent noise under Poisson sampling.

    Attributes:
        calibration: its calibration; None if it is not defined, or has no number.
        reason: why there is none; otherwise empty.
        seconds: its computing time.
    """

    calibration: Calibration | None
    reason: str
    seconds: float


def baseline_of(plan: ResolvedPlan, report: Report) -> Baseline:
    """The same steps, expected batch size, budget and adjacency, by the default accountant (a bound).

    Raises:
        InvalidParameterError: if the budget is invalid.
    """
    start = time.perf_counter()
    cal, reason = None, ""
    try:
        cal = calibrate_sigma(
            Identity(plan.training.steps),
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
    """Poisson sampling of all examples at every step, with the unit of the plan."""
    own = plan.participation
    if own.unit is None:
        return plan.training.participation("poisson")
    if plan.training.sampling_prob == 1.0:
        return own
    return plan.training.participation("poisson", max_examples_per_user=own.examples)


def error_of(cal: Calibration, objective: str, workload: Workload | None = None) -> float:
    """The error of a workload in units of the clip norm: "rmse", "max_se", or "last"."""
    if objective == "rmse":
        return cal.rmse(workload=workload)
    if objective == "max_se":
        return cal.max_se(workload=workload)
    return float(per_step_error(cal.strategy, workload=workload)[-1]) * cal.sigma


def error_words(plan: ResolvedPlan) -> str:
    """What errors are about, and their unit."""
    if plan.workload is None:
        return "in units of the clip norm"
    if "workload" in plan.updates:
        return f"of the workload {shown('workload', plan.updates['workload'])}, in units of the clip norm"
    given = ", ".join(f"{key.replace('_', ' ')} {shown(key, value)}" for key, value in plan.updates.items())
    return f"of the iterates of SGD ({given}), in units of the clip norm"


# Digits of a gain over the baseline, in the table and in JSON.
_GAIN_DIGITS = 3
# Largest number of steps for which matrix entries are printed; `--out-strategy` writes larger ones.
_LARGEST_MATRIX = 200


def as_data(strategy: Strategy) -> dict[str, Any]:
    """A strategy as data for `Strategy.from_dict`; for a large matrix only sizes and fingerprint."""
    if strategy.shape.dense and strategy.n > _LARGEST_MATRIX:
        return {"type": type(strategy).__name__, "n": strategy.n, "fingerprint": strategy.fingerprint()}
    return strategy.to_dict()


def described(row: dict[str, Any]) -> str:
    """The strategy of a row in words; a large matrix by its size."""
    own = row["strategy"]
    if own is None or "fingerprint" in own:
        return "" if own is None else f"{own['type']}(n={own['n']})"
    return repr(Strategy.from_dict(own))


def numbers_of(cal: Calibration, seconds: float, workload: Workload | None = None) -> dict[str, Any]:
    """A calibration as plain data, with the errors of a workload."""
    cost = noise_cost(cal.strategy)
    return {
        "sigma": cal.sigma,
        "sigma_use": cal.sigma_use,
        "sensitivity": cal.sensitivity.upper,
        "noise_multiplier": cal.noise_multiplier,
        "rmse": cal.rmse(workload=workload),
        "max_se": cal.max_se(workload=workload),
        "eps_lower": cal.achieved.lower,
        "eps_upper": cal.achieved.upper,
        "guarantee": str(cal.guarantee),
        "method": cal.method,
        "strategy": as_data(cal.strategy),
        "participation": cal.participation.to_dict(),
        "buffers": cost.buffers,
        "regenerated": cost.regenerated,
        "seconds": round(seconds, 3),
    }


def missing(label: str, sampling: str, reason: str) -> dict[str, Any]:
    """A row without numbers, and the reason."""
    return {"label": label, "sampling": sampling, "unavailable": reason}


def baseline_row(baseline: Baseline, workload: Workload | None = None) -> dict[str, Any]:
    """DP-SGD under Poisson sampling as a row, with the errors of a workload."""
    if baseline.calibration is None:
        return missing(BASELINE, "poisson", baseline.reason)
    own = {"label": BASELINE, "sampling": "poisson"}
    return own | numbers_of(baseline.calibration, baseline.seconds, workload)


def compared(row: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """The baseline's error over that of a row, rounded down."""
    if "rmse" not in row or "rmse" not in baseline:
        return {"times_less_rmse": None}
    return {"times_less_rmse": float(times(baseline["rmse"], row["rmse"], _GAIN_DIGITS))}


def cells_of(record: dict[str, Any]) -> dict[str, str]:
    """Plain data in readable form, without the strategy, which the label names."""
    cells = {}
    for key, value in record.items():
        if key == "strategy" or value is None:
            continue
        if key == "participation" and isinstance(value, dict):
            cells[key] = shown(key, repr(Participation.from_dict(value)))
        else:
            cells[key] = shown(key, value)
    return cells


def attempted(*writes: Any) -> DpmechError | None:  # noqa: ANN401 - callables without arguments
    """Call all, and return the first error, so that results are printed before the error."""
    first = None
    for write in writes:
        try:
            write()
        except DpmechError as error:
            first = first or error
    return first


def save_best(
    cal: Calibration,
    training: TrainingPlan,
    out: Path | None,
    out_strategy: Path | None,
    *,
    clip_norm: float | None,
    force: bool,
) -> tuple[dict[str, str | None], DpmechError | None]:
    """Write the certificate and the strategy of a calibration to the files that were asked for.

    Returns:
        The paths by their names in documents, None for what could not be written; and the first error.
    """
    own = cal.participation
    size = scheme_of(own).batch_size_of(own, float(training.batch_size))
    files: dict[str, str | None] = {}
    failed = []
    if out is not None:
        certificate = cal.certificate(clip_norm, size)
        failed.append(attempted(lambda: save_certificate(out, certificate, force=force)))
        files["certificate"] = None if failed[-1] else str(out)
    if out_strategy is not None:
        failed.append(attempted(lambda: save_strategy(out_strategy, cal.strategy, force=force)))
        files["strategy_file"] = None if failed[-1] else str(out_strategy)
    return files, next(filter(None, failed), None)


def file_lines(files: Mapping[str, str | None], label: str, clip_norm: float | None = None) -> list[str]:
    """The files that were written, in words, with the clip norm of a certificate."""
    clip = "left to the run" if clip_norm is None else typed(clip_norm)
    terms = {"certificate": f" (clip norm {clip})"}
    return [
        on_one_line(f"{name.replace('_file', '')} of {label}: {path}{terms.get(name, '')}")
        for name, path in files.items()
        if path is not None
    ]


_LARGEST_EPS = 20.0
# Threshold, in per cent of all examples, for those left out of full batches.
_UNUSED_PERCENT = 1


def plan_notes(
    training: TrainingPlan,
    eps: Iterable[float],
    delta: float,
    *,
    estimates: Iterable[str] = (),
    unit: Unit = Unit.EXAMPLE,
) -> list[str]:
    """Notes on settings that look like mistakes.

    Args:
        training: the plan.
        eps: all budgets that were calibrated, at `delta`.
        delta: in (0, 1).
        estimates: names of the results that are estimates.
        unit: privacy unit of the claim.

    Returns:
        One sentence per line; empty if nothing is noteworthy.
    """
    size, batch, steps = training.dataset_size, training.batch_size, training.steps_per_epoch
    notes = []
    published, guessed = (
        ("all data of a user", "a user") if unit is Unit.USER else ("one example", "an example")
    )
    # The nearest float of 1 / size is what a delta of 1 / size is read as.
    if delta >= 1.0 / size:
        notes.append(
            f"delta {typed(delta)} is {'above ' if delta > 1.0 / size else ''}1 / dataset_size (1 / {size}): "
            f"publishing {published} picked at random would be allowed"
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
    """Notes on the cost of independent noise under one allocation to bins for all epochs.

    Args:
        labelled: calibrations by name.

    Returns:
        One sentence for each that would need less noise with a new allocation every epoch; may be empty.
    """
    notes = []
    for label, cal in labelled:
        own, n = cal.participation, cal.strategy.n
        renewed = scheme_of(own).renewed(own)
        if cal.strategy.bands != 1 or own.certain or renewed is None or renewed == own:
            continue
        epochs = own.pattern(n).max_participations
        if epochs == 1:
            continue
        try:
            fresh = Mechanism(cal.strategy, renewed, cal.adjacency)
            about = accountant_for(fresh, None).rough_sigma(cal.budget.eps, cal.budget.delta)
        except (DpmechError, ArithmeticError):
            continue
        if about is not None and about < cal.sigma:
            notes.append(
                f"{label} needs sigma {up(cal.sigma, 3)} under one allocation to bins for all {epochs} "
                f"epochs; its noise is independent, and with a new allocation every epoch (--fresh) about "
                f"{up(about, 3)} would do"
            )
    return notes
