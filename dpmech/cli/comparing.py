"""`dpmech compare`: several strategies and samplings compared with each other and with DP-SGD (Poisson)."""

import concurrent.futures
import itertools
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from dpmech.calibration import Calibration
from dpmech.cli.commands import Command, plain
from dpmech.cli.entries import WRITTEN, Prepared, calibrated, prepared
from dpmech.cli.files import drawable, save_figure
from dpmech.cli.options import NAMES, UPDATES, ResolvedPlan, plan_options, resolve_each
from dpmech.cli.parameters import Target
from dpmech.cli.printing import (
    Column,
    Row,
    shown,
    signed_percent,
    stacked,
    width,
)
from dpmech.cli.results import (
    Baseline,
    allocation_notes,
    attempted,
    baseline_of,
    baseline_row,
    cells_of,
    compared,
    described,
    error_words,
    missing,
    numbers_of,
    plan_notes,
)
from dpmech.cli.running import Run, in_order, runs, worker_options
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.files import on_one_line
from dpmech.fitting import Trial
from dpmech.mechanism import Mechanism, Strategy, Unit
from dpmech.numerics import counted, typed
from dpmech.plans import Entry, parse_entries, read_plan
from dpmech.schemes import accountant_for, scheme_of


@click.command(
    cls=Command,
    short_help="Compare strategies and sampling schemes.",
    lists=NAMES,
    examples=[
        "dpmech compare --strategies identity,lambda-cgd:lam=0.9,bandmf:coefs=1/0.5/0.2 --dataset-size 50000 "
        "--batch-size 128 --epochs 10 --sampling min-sep,epochs --eps 8 --delta 1e-5",
        "dpmech compare --strategies blt,bisr,bandmf:bands=4 --dataset-size 50000 --batch-size 128 "
        "--epochs 10 --sampling min-sep,balls-in-bins --eps 8 --delta 1e-5",
        "dpmech compare --plan plan.toml --eps 4",
    ],
)
@click.option(
    "--strategies",
    help=f"{WRITTEN} [required, here or in --plan]",
)
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="A TOML file with the plan.")
@click.option("--figure", type=Target(drawable), help="Plot the errors in this file.")
@worker_options
@plan_options(several=True, here=", here or in --plan", errors=True)
@runs("compare")
def compare(
    *,
    run: Run,
    strategies: str | None,
    plan_file: Path | None,
    figure: Path | None,
    **given: Any,  # noqa: ANN401 - click passes options by name
) -> None:
    """Compare several strategies, under one or several sampling schemes, with each other and with DP-SGD.

    The first row is standard DP-SGD: independent noise under Poisson sampling, for the same steps, batch size
    and budget.
    """
    settings, entries = ({}, []) if plan_file is None else read_plan(plan_file)
    if strategies is not None:
        entries += parse_entries(strategies)
    own = {key: value for key, value in given.items() if value is not None}
    for key in UPDATES:
        if key in own and any(entry.published is not None for entry in entries):
            raise InvalidParameterError(
                key, own[key], "in the plan file, where errors are compared with published ones"
            )
    plans = resolve_each(settings | own, missing=[] if entries else ["strategies"])
    with run.executor() as executor:
        baseline, pairs = _compared(plans, entries, run, executor)
    first = baseline_row(baseline, plans[0].workload)
    rows = [row | compared(row, first) for row, _ in pairs]
    whole = plans_described(plans)
    words = ", ".join(f"{key} {text}" for key, text in plans_in_words(plans).items())
    failed = None if figure is None else attempted(lambda: draw(first, rows, plans[0], figure))
    drawn = [] if figure is None or failed else [on_one_line(f"figure: {figure}")]
    run.answer(
        lambda: (
            {"plan": whole, "baseline": first, "strategies": rows}
            | ({} if figure is None else {"figure": None if failed else str(figure)})
        ),
        lambda: [Text(f"plan {words}"), *table_of(first, rows, error_words(plans[0])), *drawn],
        notes=notes_of(plans[0], pairs),
        failed=failed,
    )


def draw(baseline: dict[str, Any], rows: list[dict[str, Any]], plan: ResolvedPlan, path: Path) -> None:
    """Plot the errors of the rows that have numbers to a file.

    Raises:
        InvalidParameterError: if it cannot be written.
        MissingDependencyError: if matplotlib is not installed.
    """
    from dpmech import plots  # matplotlib is optional

    known = [row for row in (baseline, *rows) if row.get("rmse") is not None]
    eps, delta = plan.budget
    title = f"eps {typed(eps)}, delta {typed(delta)}, {counted(plan.training.steps, 'step')}"
    errors = {f"{row['label']}, {row['sampling']}": row["rmse"] for row in known}
    save_figure(plots.compared_errors(errors, title=title), path)


# Accountants of more bins take seconds to set up.
_FEW_BINS = 1000

_Pairs = list[tuple[dict[str, Any], Calibration | None]]


def _compared(
    plans: list[ResolvedPlan],
    entries: list[Entry],
    run: Run,
    executor: concurrent.futures.Executor | None,
) -> tuple[Baseline, _Pairs]:
    """The baseline, and a row for every entry under every sampling.

    A sampling that no theorem covers for a strategy has a row that says so, unless there would be no other
    row: then the command fails.
    """
    pairs: _Pairs = []
    refusals = []
    count = len(entries) * len(plans)
    # All are built before the first is calibrated, so that mistakes are reported at once.
    built = prepared(entries, plans[0].training.steps)
    calls = [(*one, plan, count) for one in built for plan in plans]
    _check_covered(built, plans)
    with run.progress("calibrating", len(calls) + 1) as report:
        found = in_order(executor, report, calibrated, calls)
        for entry in entries:
            trials = [next(found) for _ in plans]
            refusals += [trial.refusal for trial in trials if trial.refusal is not None]
            pairs += [(row_of(entry, *one), one[1].calibration) for one in zip(plans, trials, strict=True)]
        if len(refusals) == len(pairs):
            raise refusals[-1]
        return baseline_of(plans[0], report), pairs


def _check_covered(built: list[Prepared], plans: list[ResolvedPlan]) -> None:
    """Refuse early where no sampling covers any strategy; slow checks are left for later."""
    refusal: UnsupportedCombinationError | None = None
    for one, plan in itertools.product(built, plans):
        structure, choice = scheme_of(plan.participation).structure(plan.participation), one[1]
        try:
            if isinstance(choice, Strategy):
                mechanism = Mechanism(choice, plan.participation, plan.adjacency)
                if (structure.bins or 0) <= _FEW_BINS:
                    accountant_for(mechanism, plan.method)
            elif structure.not_fitted is not None:
                raise structure.not_fitted
        except UnsupportedCombinationError as error:
            refusal = error
        else:
            return
    if refusal is not None:
        raise refusal


def row_of(entry: Entry, plan: ResolvedPlan, trial: Trial) -> dict[str, Any]:
    """A trial as a row of the table and of the JSON document; with the reason if it was refused."""
    if trial.calibration is None:
        return missing(entry.label, plan.sampling, str(trial.refusal))
    row: dict[str, Any] = {"label": entry.label, "sampling": plan.sampling}
    row |= numbers_of(trial.calibration, trial.seconds, plan.workload)
    if entry.published is not None:
        row["published_rmse"] = entry.published
    return row | ({"fitted": True} if entry.fitted else {})


def notes_of(plan: ResolvedPlan, pairs: _Pairs) -> list[str]:
    """Notes on a plan and on the calibrated rows."""
    several = len({row["sampling"] for row, _ in pairs}) > 1
    estimates = [
        f"{row['label']} under {row['sampling']}" if several else row["label"]
        for row, cal in pairs
        if cal is not None and not cal.guarantee.rigorous
    ]
    eps, delta = plan.budget
    unit = plan.participation.unit or Unit.EXAMPLE
    notes = plan_notes(plan.training, [eps], delta, estimates=estimates, unit=unit)
    schemas = [cal.participation for _, cal in pairs if cal is not None]
    if any(scheme_of(schema).renewed(schema) == schema for schema in schemas):
        return notes  # reported in a row
    return notes + allocation_notes((row["label"], cal) for row, cal in pairs if cal is not None)


_OWN = {"sampling", "participation", "amplified"}


def plans_described(plans: list[ResolvedPlan]) -> dict[str, Any]:
    """The plan as data; a list if samplings differ."""
    if len(plans) == 1:
        return plans[0].described()
    each = [plan.described() for plan in plans]
    return {key: [one[key] for one in each] if key in _OWN else value for key, value in each[0].items()}


def plans_in_words(plans: list[ResolvedPlan]) -> dict[str, str]:
    """The plan as cells of text."""
    each = {"participation": [repr(plan.participation) for plan in plans]}
    return cells_of(plans_described(plans)) | {key: shown(key, value) for key, value in each.items()}


_COLUMNS = (
    Column("label", "strategy", fixed=True),
    Column("sampling", "sampling", fixed=True),
    Column("sigma", "sigma"),
    Column("rmse", "rmse"),
    Column("times_less_rmse", "gain"),
    Column("sensitivity", "sensitivity"),
    Column("max_se", "max_se"),
    Column("buffers", "buffers"),
    Column("regenerated", "regenerated"),
    Column("guarantee", "guarantee", text=True),
)
_PUBLISHED = (Column("published_rmse", "published rmse"), Column("difference", "difference"))
_CAPTION = (
    "rmse and max_se: {errors}, at the calibrated sigma; gain: rmse of the baseline divided by that of the "
    "row, rounded down; buffers: vectors of the model's size that the noise stores; regenerated: vectors "
    "that it regenerates at every step; sigma: for identity and DP-SGD, that of i.i.d. noise; for other "
    "strategies, that of correlated noise, no number for DP-SGD tools"
)


def table_of(baseline: dict[str, Any], rows: list[dict[str, Any]], errors: str) -> list[Any]:
    """The baseline and the rows in one table, with the reasons for rows without numbers."""
    best = min(row["rmse"] for row in rows if "rmse" in row)
    columns: tuple[Column, ...] = _COLUMNS
    if any("published_rmse" in row for row in rows):
        columns = (*_COLUMNS[:-1], *_PUBLISHED, _COLUMNS[-1])
    if any("fitted" in row for row in rows):
        columns = (*columns, Column("fitted", "fitted", text=True))
    lines = []
    for row in (baseline, *rows):
        cells = cells_of(row) | ({"fitted": shown("", described(row))} if "fitted" in row else {})
        if "published_rmse" in row:
            # A deviation from a published number, not a cost: rounded to nearest.
            cells["difference"] = signed_percent(row["rmse"] / row["published_rmse"] - 1.0, 2)
        style = "italic" if row is baseline else "bold" if row.get("rmse") == best else None
        lines.append(Row(cells, style))
    reasons = [
        Text(f"no number for {row['label']} under {row['sampling']}: {plain(row['unavailable'])}")
        for row in (baseline, *rows)
        if "unavailable" in row
    ]
    return [*stacked(columns, lines, width(), caption=_CAPTION.format(errors=errors)), *reasons]
