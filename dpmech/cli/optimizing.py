"""`dpmech optimize`: every family at its best for a plan."""

import concurrent.futures
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from dpmech.accounting import method_among
from dpmech.cli.baseline import BASELINE, Baseline, baseline_of, error_of
from dpmech.cli.notes import plan_notes
from dpmech.cli.options import ResolvedPlan, plan_options, resolve
from dpmech.cli.printing import Report, console, progress_bar, refuse, shown, warn
from dpmech.cli.workers import chosen_executor, in_order, silent, worker_options
from dpmech.exceptions import DpmechError, InvalidParameterError
from dpmech.fitting import Fit
from dpmech.fitting import optimize as fit_strategy
from dpmech.mechanism import noise_cost
from dpmech.numerics import times, typed
from dpmech.plans import FAMILIES, FamilyEntry, parse_families, read_plan

__all__ = ["optimize"]

_DEFAULT = "lambda-cgd,bandmf:bands=16,bandinv:bands=4,blt:buffers=3"


@click.command()
@click.option(
    "--families",
    default=_DEFAULT,
    show_default=True,
    help=f"Of {', '.join(FAMILIES)}; add :column-normalized for unit columns.",
)
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), help="A TOML file instead of the options."
)
@click.option("--objective", default="rmse", show_default=True, help="rmse, max_se or last.")
@click.option("--eps-grid", help="More budgets for the figure, joined by commas, e.g. 8,4,2,1.")
@click.option("--figure", type=click.Path(path_type=Path), help="Draw error against eps into this file.")
@click.option("--cache", type=click.Path(path_type=Path), help="Folder of coefficients fitted before.")
@worker_options
@plan_options
def optimize(
    families: str,
    *,
    plan_file: Path | None,
    objective: str,
    eps_grid: str | None,
    figure: Path | None,
    cache: Path | None,
    workers: int | None,
    dask: str | None,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - click passes options by name
) -> None:
    """Fit the best strategy of every family, and set them side by side at their calibrated noise.

    The first row is DP-SGD as it is run: independent noise under Poisson sampling, for the same steps, batch
    size and budget.
    """
    try:
        settings = {} if plan_file is None else read_plan(plan_file)[0]
        settings |= {key: value for key, value in given.items() if value is not None}
        plan = resolve(settings)
        grid = _grid(eps_grid, plan.eps, drawn=figure is not None)
        entries = parse_families(families)
        with (
            chosen_executor(workers, dask) as executor,
            progress_bar("fitting", total=(len(entries) + 1) * len(grid)) as report,
        ):
            calls = [
                (entry, dataclasses.replace(plan, eps=eps), objective, cache, len(entries) * len(grid))
                for eps in grid
                for entry in entries
            ]
            results = in_order(executor, report, _fitted, calls)
            fits = {eps: [next(results) for _ in entries] for eps in grid}
            baselines = {
                eps: _baseline_row(baseline_of(dataclasses.replace(plan, eps=eps), report), objective)
                for eps in grid
            }
        rows = {eps: [_row(*one, objective=objective) for one in found] for eps, found in fits.items()}
        rows = {eps: [_independent(fits[eps][0][1]), *found] for eps, found in rows.items()}
        if figure is not None:
            _draw(baselines, rows, plan, objective, figure)
    except DpmechError as error:
        refuse(error)
    estimates = [
        entry.label
        for found in fits.values()
        for entry, fit, _ in found
        if fit.calibration is not None and not fit.calibration.guarantee.rigorous
    ]
    notes = plan_notes(plan.training, grid, plan.delta, estimates=estimates)
    warn(notes)
    if as_json:
        records = [{"eps": eps, "baseline": baselines[eps], "families": found} for eps, found in rows.items()]
        click.echo(json.dumps({"plan": plan.described(), "fits": records, "notes": notes}, indent=2))
        return
    output = console()
    for eps, found in rows.items():
        output.print(_table(baselines[eps], found, eps, objective))


def _grid(text: str | None, eps: float, *, drawn: bool) -> list[float]:
    if text is None:
        return [eps]
    if not drawn:
        raise InvalidParameterError("eps_grid", text, "left out without --figure")
    try:
        numbers = [float(item) for item in text.split(",")]
    except ValueError:
        raise InvalidParameterError("eps_grid", text, "numbers joined by commas") from None
    return sorted({*numbers, eps}, reverse=True)


def _fitted(
    entry: FamilyEntry,
    plan: ResolvedPlan,
    objective: str,
    cache: Path | None,
    calls: int,  # of which somebody may pick one
    *,
    executor: concurrent.futures.Executor | None = None,
    report: Report = silent,
) -> tuple[FamilyEntry, Fit, float]:
    start = time.perf_counter()
    fit = fit_strategy(
        FAMILIES[entry.name],
        plan.participation,
        n=plan.training.n,
        bands=entry.bands,
        buffers=entry.buffers,
        column_normalized=entry.column_normalized,
        objective=objective,
        eps=plan.eps,
        delta=plan.delta,
        adjacency=plan.adjacency,
        method=method_among(plan.participation, plan.method, calls),
        rtol=plan.rtol,
        rng=plan.seed,
        cache=cache,
        progress=lambda line: report(f"{entry.label} at eps {typed(plan.eps)}: {line}"),
        executor=executor,
    )
    return entry, fit, time.perf_counter() - start


def _row(entry: FamilyEntry, fit: Fit, seconds: float, *, objective: str) -> dict[str, Any]:
    cost = noise_cost(fit.strategy)
    cal = fit.calibration
    return {
        "family": entry.label,
        objective: fit.error,
        "sigma": None if cal is None else cal.sigma,
        "guarantee": None if cal is None else str(cal.guarantee),
        "buffers": cost.buffers,
        "bytes_per_parameter": cost.bytes_per_parameter,
        "redrawn": cost.redrawn,
        "seconds": round(seconds, 1),
        "strategy": fit.strategy.to_dict(),
        "described": repr(fit.strategy),
    }


def _baseline_row(baseline: Baseline, objective: str) -> dict[str, Any]:
    """DP-SGD in the columns of the fits; without numbers, and with the reason, where it has none."""
    cal = baseline.calibration
    return {
        "family": BASELINE,
        objective: None if cal is None else error_of(cal, objective),
        "sigma": None if cal is None else cal.sigma,
        "guarantee": None if cal is None else str(cal.guarantee),
        "buffers": 0,
        "redrawn": 0,
        "seconds": round(baseline.seconds, 1),
        "strategy": None if cal is None else cal.strategy.to_dict(),
        "described": f"none: {baseline.reason}"
        if cal is None
        else f"{cal.strategy!r}, {cal.participation!r}",
    }


def _independent(fit: Fit) -> dict[str, Any]:
    """The row of independent noise under the plan's own sampling, which every fit was compared with."""
    return {
        "family": "identity",
        fit.objective: fit.identity_error,
        "sigma": None,
        "guarantee": None,
        "buffers": 0,
        "bytes_per_parameter": 0,
        "redrawn": 0,
        "seconds": None,
        "strategy": None,
        "described": "Identity",
    }


def _table(baseline: dict[str, Any], rows: list[dict[str, Any]], eps: float, objective: str) -> Table:
    table = Table(
        title=f"best of every family at eps {typed(eps)}",
        title_justify="left",
        caption="errors in units of the clip norm at the calibrated sigma; times less: error of the "
        "baseline over that of the row, rounded down; identity: independent noise under the plan's own "
        "sampling; buffers: vectors of the model's size that the noise keeps, 8 bytes a parameter; redrawn: "
        "vectors drawn again every step",
        caption_justify="left",
    )
    columns = {column: column for column in ("family", objective)}
    columns |= {"times": "times less"}
    columns |= {column: column for column in ("sigma", "buffers", "redrawn", "seconds", "guarantee")}
    columns |= {"described": "strategy"}
    for column, name in columns.items():
        left = column in {"family", "guarantee", "described"}
        table.add_column(name, justify="left" if left else "right")
    best = min(row[objective] for row in rows)
    reference = baseline[objective]
    for row in (baseline, *rows):
        compared = row is not baseline and reference is not None
        cells = row | {"times": times(reference, row[objective], 3) if compared else None}
        style = "italic" if row is baseline else "bold" if row[objective] == best else None
        table.add_row(*(escape(shown(column, cells[column])) for column in columns), style=style)
    return table


def _draw(
    baselines: dict[float, dict[str, Any]],
    rows: dict[float, list[dict[str, Any]]],
    plan: ResolvedPlan,
    objective: str,
    path: Path,
) -> None:
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
        errors, label=f"{objective} (clip norms)", title=f"{plan.participation!r}, n = {plan.training.n}"
    )
    try:
        drawn.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidParameterError("figure", str(path), f"a file that can be written ({error})") from None
