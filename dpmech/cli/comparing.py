"""`dpmech compare`: several strategies and samplings compared with each other and with DP-SGD (Poisson)."""

import concurrent.futures
import time
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.cli.commands import Command, plain
from dpmech.cli.options import NAMES, ResolvedPlan, plan_options, resolve_each
from dpmech.cli.printing import (
    Column,
    Report,
    Row,
    shown,
    signed_percent,
    stacked,
    width,
)
from dpmech.cli.results import (
    Baseline,
    allocation_notes,
    baseline_of,
    baseline_row,
    cells_of,
    compared,
    missing,
    numbers_of,
    plan_notes,
)
from dpmech.cli.running import Run, in_order, runs, silent, worker_options
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism, Strategy, Unit
from dpmech.plans import STRATEGIES, Entry, build_strategy, parse_entries, read_plan
from dpmech.schemes import accountant_for, method_among, scheme_of


@click.command(
    cls=Command,
    short_help="Set strategies and samplings side by side.",
    lists=NAMES,
    examples=[
        "dpmech compare --strategies identity,lambda-cgd:lam=0.9,bandmf:coefs=1/0.5/0.2 --dataset-size 50000 "
        "--batch-size 128 --epochs 10 --sampling min-sep,epochs --eps 8 --delta 1e-5",
        "dpmech compare --plan plan.toml --eps 4",
    ],
)
@click.option(
    "--strategies",
    help="Joined by commas, options by colons, numbers of a list by slashes: "
    f"{', '.join(one.written(name) for name, one in STRATEGIES.items())}; with :column-normalized for unit "
    "columns. [required, here or in --plan]",
)
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="A TOML file with such a plan.")
@worker_options
@plan_options(several=True, here=", here or in --plan")
@runs("compare")
def compare(
    *,
    run: Run,
    strategies: str | None,
    plan_file: Path | None,
    **given: Any,  # noqa: ANN401 - click passes options by name
) -> None:
    """Compare several strategies, under one or several samplings, with each other and with DP-SGD.

    The first row is standard DP-SGD: independent noise under Poisson sampling, for the same steps, batch size
    and budget.
    """
    settings, entries = ({}, []) if plan_file is None else read_plan(plan_file)
    if strategies is not None:
        entries += parse_entries(strategies)
    settings |= {key: value for key, value in given.items() if value is not None}
    plans = resolve_each(settings, missing=[] if entries else ["strategies"])
    with run.executor() as executor:
        baseline, pairs = _compared(plans, entries, run, executor)
    first = baseline_row(baseline)
    rows = [row | compared(row, first) for row, _ in pairs]
    described = _described(plans)
    words = ", ".join(f"{key} {text}" for key, text in _in_words(described, plans).items())
    run.answer(
        lambda: {"plan": described, "baseline": first, "strategies": rows},
        lambda: [Text(f"plan {words}"), *_comparison(first, rows)],
        notes=_notes(plans[0], pairs),
    )


def _calibrated(
    entry: Entry,
    strategy: Strategy,
    plan: ResolvedPlan,
    calls: int,  # number of calls, for the correction for picking one
    *,
    executor: concurrent.futures.Executor | None = None,
    report: Report = silent,
) -> tuple[Calibration, float] | UnsupportedCombinationError:
    start = time.perf_counter()
    try:
        cal = calibrate_sigma(
            strategy,
            *plan.budget,
            participation=plan.participation,
            adjacency=plan.adjacency,
            rtol=plan.rtol,
            method=method_among(plan.participation, plan.method, calls),
            rng=plan.seed,
            progress=lambda line: report(f"{entry.label}: {line}"),
            executor=executor,
        )
    except UnsupportedCombinationError as error:
        return error
    return cal, time.perf_counter() - start


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

    If several samplings are compared, a sampling that no theorem covers for a strategy has a row that says
    so. A strategy that none of them covers is refused, as with a single sampling.
    """
    pairs: _Pairs = []
    trials = len(entries) * len(plans)
    # All are built before the first is calibrated, so that mistakes are reported at once.
    built = [(entry, build_strategy(entry, plans[0].training.steps)) for entry in entries]
    calls = [(entry, strategy, plan, trials) for entry, strategy in built for plan in plans]
    for _, strategy in built:
        _check_covered(strategy, plans)
    with run.progress("calibrating", len(calls) + 1) as report:
        found = in_order(executor, report, _calibrated, calls)
        for entry in entries:
            refusals: list[UnsupportedCombinationError] = []
            for plan in plans:
                given = next(found)
                if isinstance(given, UnsupportedCombinationError):
                    refusals.append(given)
                    pairs.append((missing(entry.label, plan.sampling, str(given)), None))
                else:
                    pairs.append((_row(entry, plan, *given), given[0]))
            if len(refusals) == len(plans):
                raise refusals[-1]
        return baseline_of(plans[0], report), pairs


def _check_covered(strategy: Strategy, plans: list[ResolvedPlan]) -> None:
    """Refuse early what none of the samplings covers; slow checks are left for later."""
    refusal: UnsupportedCombinationError | None = None
    for plan in plans:
        try:
            mechanism = Mechanism(strategy, plan.participation, plan.adjacency)
            own = plan.participation
            if (scheme_of(own).structure(own).bins or 0) <= _FEW_BINS:
                accountant_for(mechanism, plan.method)
        except UnsupportedCombinationError as error:
            refusal = error
        else:
            return
    if refusal is not None:
        raise refusal


def _row(entry: Entry, plan: ResolvedPlan, cal: Calibration, seconds: float) -> dict[str, Any]:
    row = {"label": entry.label, "sampling": plan.sampling} | numbers_of(cal, seconds)
    if entry.published is not None:
        row["published_rmse"] = entry.published
    return row


def _notes(plan: ResolvedPlan, pairs: _Pairs) -> list[str]:
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


def _described(plans: list[ResolvedPlan]) -> dict[str, Any]:
    """The plan as data; a list if samplings differ."""
    if len(plans) == 1:
        return plans[0].described()
    each = [plan.described() for plan in plans]
    return {key: [one[key] for one in each] if key in _OWN else value for key, value in each[0].items()}


def _in_words(described: dict[str, Any], plans: list[ResolvedPlan]) -> dict[str, str]:
    each = {"participation": [repr(plan.participation) for plan in plans]}
    return cells_of(described) | {key: shown(key, value) for key, value in each.items()}


_COLUMNS = (
    Column("label", "strategy", fixed=True),
    Column("sampling", "sampling", fixed=True),
    Column("sigma", "sigma"),
    Column("rmse", "rmse"),
    Column("times_less_rmse", "times less"),
    Column("sensitivity", "sensitivity"),
    Column("max_se", "max_se"),
    Column("buffers", "buffers"),
    Column("regenerated", "regenerated"),
    Column("guarantee", "guarantee", text=True),
)
_PUBLISHED = (Column("published_rmse", "published rmse"), Column("difference", "difference"))
_CAPTION = (
    "rmse and max_se in units of the clip norm, at the calibrated sigma; times less: rmse of the baseline "
    "over that of the row, rounded down; buffers: vectors of the model's size that the noise keeps; "
    "regenerated: vectors regenerated every step; sigma: of identity and DP-SGD that of i.i.d. noise, of "
    "other strategies that of correlated noise, no number for DP-SGD tools"
)


def _comparison(baseline: dict[str, Any], rows: list[dict[str, Any]]) -> list[Any]:
    best = min(row["rmse"] for row in rows if "rmse" in row)
    columns: tuple[Column, ...] = _COLUMNS
    if any("published_rmse" in row for row in rows):
        columns = (*_COLUMNS[:-1], *_PUBLISHED, _COLUMNS[-1])
    lines = []
    for row in (baseline, *rows):
        cells = cells_of(row)
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
    return [*stacked(columns, lines, width(), caption=_CAPTION), *reasons]
