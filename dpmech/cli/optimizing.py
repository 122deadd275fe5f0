"""`dpmech optimize`: the best strategy of every family for a plan, with table and figure."""

import concurrent.futures
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
from rich.console import RenderableType
from rich.text import Text

from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.cli.calibrating import CLIP_NORM
from dpmech.cli.commands import Command, plain
from dpmech.cli.entries import WRITTEN, Prepared, calibrated, prepared
from dpmech.cli.files import drawable, force_option, save_figure
from dpmech.cli.options import NAMES, ResolvedPlan, plan_options, resolve
from dpmech.cli.parameters import OneOf, Reals, Target
from dpmech.cli.printing import Column, Report, Row, shown, stacked, width
from dpmech.cli.results import (
    BASELINE,
    Baseline,
    as_data,
    attempted,
    baseline_of,
    described,
    error_of,
    error_words,
    file_lines,
    plan_notes,
    save_best,
)
from dpmech.cli.running import Run, in_order, runs, worker_options
from dpmech.exceptions import InvalidParameterError
from dpmech.files import on_one_line
from dpmech.fitting import Trial, gap_of, gap_words
from dpmech.guards import check_real
from dpmech.mechanism import Identity, Workload, noise_cost
from dpmech.numerics import times, typed
from dpmech.plans import Entry, parse_entries, read_plan


def _row(
    family: str,
    objective: str,
    error: float | None,
    cal: Calibration | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """An error as plain data, with what is known of the calibration behind it."""
    cost = noise_cost(Identity(1) if cal is None else cal.strategy)
    return {
        "family": family,
        objective: error,
        "sigma": None if cal is None else cal.sigma,
        "guarantee": None if cal is None else str(cal.guarantee),
        "buffers": cost.buffers,
        "bytes_per_parameter": cost.bytes_per_parameter,
        "regenerated": cost.regenerated,
        "seconds": None if seconds is None else round(seconds, 1),
        "strategy": None if cal is None else as_data(cal.strategy),
    }


def row_of(entry: Entry, trial: Trial, objective: str, workload: Workload | None = None) -> dict[str, Any]:
    """A calibrated entry as plain data, with the error of a workload."""
    cal = calibration_of(trial)
    return _row(entry.label, objective, error_of(cal, objective, workload), cal, trial.seconds)


def baseline_of_fits(baseline: Baseline, objective: str, workload: Workload | None = None) -> dict[str, Any]:
    """DP-SGD under Poisson sampling in the columns of the fits; without numbers, with the reason."""
    cal = baseline.calibration
    error = None if cal is None else error_of(cal, objective, workload)
    row = _row(BASELINE, objective, error, cal, baseline.seconds)
    return row | ({"unavailable": baseline.reason} if cal is None else {})


def calibration_of(trial: Trial) -> Calibration:
    """The calibration of a trial.

    Raises:
        UnsupportedCombinationError: if it was refused; also UnattainableBudgetError and NumericalError.
    """
    if trial.calibration is None:
        raise cast(Exception, trial.refusal)
    return trial.calibration


def independent_row(
    entries: list[Entry], trials: list[Trial], objective: str, workload: Workload | None = None
) -> list[dict[str, Any]]:
    """The row of independent noise under the plan's own sampling, the reference for every fit.

    Empty if it is an entry, or if nothing is fitted.
    """
    known = [one.independent for one in trials if one.independent is not None]
    if not known or any(one.name == "identity" for one in entries):
        return []
    cal = known[0]  # of a member of the family without correlation
    own = {
        "sigma": cal.sigma,
        "guarantee": str(cal.guarantee),
        "strategy": as_data(Identity(cal.strategy.n)),
    }
    return [_row("identity", objective, error_of(cal, objective, workload)) | own]


_CAPTION = (
    "errors: {errors}, at the calibrated sigma; gain: error of the baseline divided by that of the row, "
    "rounded down; identity: independent noise under the sampling of the plan; buffers: vectors of the "
    "model's size that the noise stores, 8 bytes per parameter; regenerated: vectors that it regenerates at "
    "every step; sigma: for identity and DP-SGD, that of i.i.d. noise; for other families, that of "
    "correlated noise, no number for DP-SGD tools"
)


def table_of(
    baseline: dict[str, Any], rows: list[dict[str, Any]], eps: float, objective: str, errors: str
) -> list[RenderableType]:
    """The families at one eps."""
    columns = (
        Column("family", "family", fixed=True),
        Column(objective, objective),
        Column("times", "gain"),
        *(Column(name, name) for name in ("sigma", "buffers", "regenerated", "seconds")),
        Column("guarantee", "guarantee", text=True),
        Column("described", "strategy", text=True),
    )
    best = min(row[objective] for row in rows)
    reference = baseline[objective]
    lines = []
    for row in (baseline, *rows):
        compared = row is not baseline and reference is not None
        cells = row | {
            "times": times(reference, row[objective], 3) if compared else None,
            "described": described(row),
        }
        style = "italic" if row is baseline else "bold" if row[objective] == best else None
        lines.append(Row({one.key: shown(one.key, cells[one.key]) for one in columns}, style))
    title = f"best of every family at eps {typed(eps)}"
    printed = stacked(columns, lines, width(), title=title, caption=_CAPTION.format(errors=errors))
    if "unavailable" in baseline:
        printed.append(Text(f"no number for {BASELINE}: {plain(baseline['unavailable'])}"))
    return printed


def draw(
    baselines: dict[float, dict[str, Any]],
    rows: dict[float, list[dict[str, Any]]],
    plan: ResolvedPlan,
    objective: str,
    path: Path,
) -> None:
    """Plot error against eps, one line per family, to a file.

    Raises:
        InvalidParameterError: if it cannot be written.
        MissingDependencyError: if matplotlib is not installed.
    """
    from dpmech import plots  # matplotlib is optional

    known = {eps: row[objective] for eps, row in baselines.items() if row[objective] is not None}
    names = [row["family"] for row in next(iter(rows.values()))]
    errors = ({BASELINE: known} if known else {}) | {
        name: {
            eps: next(row[objective] for row in found if row["family"] == name) for eps, found in rows.items()
        }
        for name in names
    }
    drawn = plots.error_by_eps(
        errors, label=f"{objective} (clip norms)", title=f"{plan.participation!r}, n = {plan.training.steps}"
    )
    save_figure(drawn, path)


_DEFAULT = "lambda-cgd,bandmf:bands=16,bandinv:bands=4,blt:buffers=3"
_OBJECTIVES = ("rmse", "max_se", "last")


@click.command(
    cls=Command,
    short_help="Find the best strategy of every family.",
    lists=NAMES,
    examples=[
        "dpmech optimize --families lambda-cgd,blt:buffers=3 --dataset-size 50000 --batch-size 128 "
        "--epochs 10 --sampling min-sep --eps 8 --delta 1e-5 --out-strategy fit.json --out certificate.json",
    ],
)
@click.option(
    "--families",
    default=_DEFAULT,
    show_default=True,
    help=WRITTEN,
)
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="A TOML file with the plan.")
@click.option(
    "--objective",
    type=OneOf(_OBJECTIVES),
    default="rmse",
    show_default=True,
    help="Error to minimise: root mean square (rmse), worst step (max_se) or last step (last).",
)
@click.option("--eps-grid", type=Reals(), help="More budgets for the figure, separated by commas: 8,4,2,1.")
@click.option("--figure", type=Target(drawable), help="Plot error against eps in this file.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Folder in which fitted coefficients are stored for reuse.",
)
@click.option("--out", type=Target(), help="Write the certificate of the best family at --eps to this file.")
@click.option("--out-strategy", type=Target(), help="Write the best strategy at --eps to this file.")
@force_option
@CLIP_NORM
@worker_options
@plan_options(here=", here or in --plan", errors=True)
@runs("optimize")
def optimize(
    families: str,
    *,
    run: Run,
    plan_file: Path | None,
    objective: str,
    eps_grid: list[float] | None,
    figure: Path | None,
    cache: Path | None,
    out: Path | None,
    out_strategy: Path | None,
    force: bool,
    clip_norm: float | None,
    **given: Any,  # noqa: ANN401 - click passes options by name
) -> None:
    """Fit the best strategy of every family, and compare them at their calibrated noise.

    The first row is standard DP-SGD: independent noise under Poisson sampling, for the same steps, batch size
    and budget.
    """
    if clip_norm is not None and out is None:
        raise InvalidParameterError("clip_norm", clip_norm, "left out without --out")
    if eps_grid is not None and figure is None:
        raise InvalidParameterError("eps_grid", ",".join(map(typed, eps_grid)), "left out without --figure")
    entries = parse_entries(families)
    settings = {} if plan_file is None else read_plan(plan_file)[0]
    settings |= {key: value for key, value in given.items() if value is not None}
    plan = resolve(settings)
    _check_folder(cache)
    built = prepared(entries, plan.training.steps)
    eps, delta = plan.budget
    grid = sorted({*(eps_grid or ()), eps}, reverse=True)
    plans = [
        dataclasses.replace(plan, eps=check_real("eps_grid", one, minimum=0.0, open_minimum=True))
        for one in grid
    ]
    with run.working("fitting", (len(entries) + 1) * len(grid)) as (executor, report):
        fits = _fits(built, plans, objective, cache, executor, report)
        baselines = {
            one.budget[0]: baseline_of_fits(baseline_of(one, report), objective, plan.workload)
            for one in plans
        }
    rows = {
        one: [
            *independent_row(entries, found, objective, plan.workload),
            *(row_of(*each, objective, plan.workload) for each in zip(entries, found, strict=True)),
        ]
        for one, found in fits.items()
    }
    best = min(
        zip(entries, map(calibration_of, fits[eps]), strict=True),
        key=lambda one: error_of(one[1], objective, plan.workload),
    )
    label = best[0].label
    gap = gap_of(best[1].strategy, plan.participation, plan.workload) if objective == "rmse" else None
    files, failed = save_best(best[1], plan.training, out, out_strategy, clip_norm=clip_norm, force=force)
    if figure is not None:
        undrawn = attempted(lambda: draw(baselines, rows, plan, objective, figure))
        files["figure"], failed = None if undrawn else str(figure), failed or undrawn
    estimates = [
        entry.label
        for found in fits.values()
        for entry, one in zip(entries, found, strict=True)
        if not calibration_of(one).guarantee.rigorous
    ]

    def content() -> dict[str, Any]:
        records = [{"eps": one, "baseline": baselines[one], "families": found} for one, found in rows.items()]
        return {"plan": plan.described(), "best": label, "gap": gap, "fits": records} | files

    def text() -> Iterator[RenderableType]:
        for one, found in rows.items():
            yield from table_of(baselines[one], found, one, objective, error_words(plan))
        if gap is not None:
            yield Text(f"{label}: {gap_words(gap)} under {plan.sampling}, whatever the matrix")
        drawn = files.get("figure")
        yield from file_lines(
            {name: path for name, path in files.items() if name != "figure"},
            label if len(grid) == 1 else f"{label} at eps {typed(eps)}",
            clip_norm,
        )
        if drawn is not None:
            yield on_one_line(f"figure: {drawn}")

    run.answer(
        content,
        text,
        notes=plan_notes(plan.training, grid, delta, estimates=estimates),
        failed=failed,
    )


def _check_folder(path: Path | None) -> None:
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise InvalidParameterError("cache", str(path), "a folder")
    nearest = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise InvalidParameterError("cache", str(path), "a folder that may be written to")


def _fits(
    entries: list[Prepared],
    plans: list[ResolvedPlan],
    objective: str,
    cache: Path | None,
    executor: concurrent.futures.Executor | None,
    report: Report,
) -> dict[float, list[Trial]]:
    """The fit of every family at every eps.

    Without amplification, sigma is the sensitivity times a factor that depends on eps only, so the best
    strategy is the same at every eps and is fitted once.
    """
    trials = len(entries) * len(plans)
    once = plans[0].participation.certain
    calls = [
        (*entry, one, trials, objective, cache) for one in plans[: 1 if once else None] for entry in entries
    ]
    results = in_order(executor, report, calibrated, calls)
    fits = {one.budget[0]: [next(results) for _ in entries] for one in plans[: 1 if once else None]}
    if once:
        first = fits[plans[0].budget[0]]
        for one in plans[1:]:
            fits[one.budget[0]] = list(_again(first, one, report))
    return fits


def _again(found: list[Trial], plan: ResolvedPlan, report: Report) -> Iterator[Trial]:
    """Fits for another eps, calibrated for this one."""
    settings: dict[str, Any] = {
        "adjacency": plan.adjacency,
        "rtol": plan.rtol,
        "method": plan.method,
    }
    independent = calibrate_sigma(
        Identity(plan.training.steps), *plan.budget, participation=plan.participation, **settings
    )
    for one in found:
        start = time.perf_counter()
        cal = calibrate_sigma(
            calibration_of(one).strategy, *plan.budget, participation=plan.participation, **settings
        )
        report("")
        yield dataclasses.replace(
            one,
            calibration=cal,
            seconds=time.perf_counter() - start,
            independent=None if one.independent is None else independent,
        )
