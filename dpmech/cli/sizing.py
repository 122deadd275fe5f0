"""`dpmech calibrate` and `dpmech compare`: how much noise a plan needs."""

import concurrent.futures
import json
import time
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from dpmech.accounting import method_among
from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.cli.baseline import BASELINE, Baseline, baseline_of
from dpmech.cli.notes import plan_notes
from dpmech.cli.options import ResolvedPlan, comparison_options, plan_options, resolve, resolve_each
from dpmech.cli.printing import Report, console, progress_bar, refuse, shown, warn
from dpmech.cli.workers import chosen_executor, in_order, silent, worker_options
from dpmech.exceptions import DpmechError, InvalidParameterError, UnsupportedCombinationError
from dpmech.mechanism import noise_cost
from dpmech.numerics import times
from dpmech.plans import STRATEGIES, Entry, build_strategy, parse_entries, read_plan

__all__ = ["calibrate", "compare"]


@click.command()
@click.option(
    "--strategy", "name", type=click.Choice(list(STRATEGIES)), required=True, help="Noise correlation."
)
@click.option("--lam", type=float, help="lambda-cgd: lambda in [0, 1).")
@click.option("--bands", type=int, help="bsr, bisr: number of bands.")
@click.option("--coefs", help="bandmf, bandinv: coefficients, joined by commas.")
@click.option("--decays", help="blt: decays in [0, 1), joined by commas.")
@click.option("--scales", help="blt: scales, joined by commas.")
@click.option("--matrix", type=click.Path(), help="dense: a .npy or CSV file.")
@click.option("--column-normalized", is_flag=True, help="Scale the columns of the strategy to norm 1.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the certificate to this file.")
@click.option("--clip-norm", type=float, help="Clip norm that the certificate fixes [left open].")
@worker_options
@plan_options
def calibrate(
    name: str,
    *,
    column_normalized: bool,
    out: Path | None,
    clip_norm: float | None,
    workers: int | None,
    dask: str | None,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - click passes options by name
) -> None:
    """Print the noise scale that one strategy needs."""
    try:
        own = {key: given.pop(key) for key in ("lam", "bands", "coefs", "decays", "scales", "matrix")}
        options: dict[str, Any] = {
            key: _numbers(key, value) for key, value in own.items() if value is not None
        }
        settings = {key: value for key, value in given.items() if value is not None}
        if clip_norm is not None and out is None:
            raise InvalidParameterError("clip_norm", clip_norm, "left out without --out")
        plan = resolve(settings)
        entry = Entry(name, options, column_normalized)
        with chosen_executor(workers, dask) as executor, progress_bar("calibrating", total=1) as report:
            cal, seconds = _calibrated(entry, plan, executor=executor, report=report)
            report("")
        row = _row(entry, plan, cal, seconds)
        if out is not None:
            cal.certificate(clip_norm, float(plan.training.batch_size)).save(out)
            row["certificate"] = str(out)
    except DpmechError as error:
        refuse(error)
    notes = _notes(plan, [(row, cal)])
    warn(notes)
    described = plan.described()
    if as_json:
        click.echo(json.dumps(row | {"plan": described, "notes": notes}, indent=2))
        return
    table = Table(title=f"dpmech calibrate: {row['label']}", show_header=False, title_justify="left")
    for key, value in (row | described).items():
        table.add_row(key, shown(key, value))
    console().print(table)


@click.command()
@click.option(
    "--strategies", help="For example identity,lambda-cgd:lam=0.9,bsr:bands=16,bandmf:coefs=1/0.5/0.2."
)
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), help="A TOML file instead of the options."
)
@worker_options
@comparison_options
def compare(
    *,
    strategies: str | None,
    plan_file: Path | None,
    workers: int | None,
    dask: str | None,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - as above
) -> None:
    """Set several strategies side by side, under one sampling or several, and beside DP-SGD.

    The first row is DP-SGD as it is run: independent noise under Poisson sampling, for the same steps, batch
    size and budget.
    """
    settings: dict[str, Any] = {}
    entries: list[Entry] = []
    try:
        if plan_file is not None:
            settings, entries = read_plan(plan_file)
        if strategies is not None:
            entries += parse_entries(strategies)
        if not entries:
            raise InvalidParameterError("strategies", strategies, "given, here or in --plan")
        settings |= {key: value for key, value in given.items() if value is not None}
        plans = resolve_each(settings)
        with chosen_executor(workers, dask) as executor:
            baseline, pairs = _compared(plans, entries, executor)
    except DpmechError as error:
        refuse(error)
    first = _baseline_row(baseline)
    rows = [row | _beside(row, first) for row, _ in pairs]
    notes = _notes(plans[0], pairs)
    warn(notes)
    described = _described(plans)
    if as_json:
        document = {"plan": described, "baseline": first, "strategies": rows, "notes": notes}
        click.echo(json.dumps(document, indent=2))
        return
    output = console()
    output.print(
        "[bold]plan[/bold] " + ", ".join(f"{key} {shown(key, value)}" for key, value in described.items()),
        soft_wrap=True,
    )
    output.print(_comparison(first, rows))


def _calibrated(
    entry: Entry,
    plan: ResolvedPlan,
    calls: int = 1,  # of which somebody may pick one
    *,
    executor: concurrent.futures.Executor | None = None,
    report: Report = silent,
) -> tuple[Calibration, float]:
    start = time.perf_counter()
    cal = calibrate_sigma(
        build_strategy(entry, plan.training.n),
        plan.eps,
        plan.delta,
        participation=plan.participation,
        adjacency=plan.adjacency,
        rtol=plan.rtol,
        method=method_among(plan.participation, plan.method, calls),
        rng=plan.seed,
        progress=lambda line: report(f"{entry.label}: {line}"),
        executor=executor,
    )
    return cal, time.perf_counter() - start


def _attempted(
    entry: Entry,
    plan: ResolvedPlan,
    calls: int,
    *,
    executor: concurrent.futures.Executor | None = None,
    report: Report = silent,
) -> tuple[Calibration, float] | UnsupportedCombinationError:
    try:
        return _calibrated(entry, plan, calls, executor=executor, report=report)
    except UnsupportedCombinationError as error:
        return error


_Pairs = list[tuple[dict[str, Any], Calibration | None]]


def _compared(
    plans: list[ResolvedPlan], entries: list[Entry], executor: concurrent.futures.Executor | None
) -> tuple[Baseline, _Pairs]:
    """The baseline, and a row for every entry under every sampling.

    Where several samplings are compared, one that no theorem covers for a strategy has a row that says so. A
    strategy that none of them covers is refused, as under a single one.
    """
    pairs: _Pairs = []
    trials = len(entries) * len(plans)
    calls = [(entry, plan, trials) for entry in entries for plan in plans]
    with progress_bar("calibrating", total=len(calls) + 1) as report:
        found = in_order(executor, report, _attempted, calls)
        for entry in entries:
            refusals: list[UnsupportedCombinationError] = []
            for plan in plans:
                given = next(found)
                if isinstance(given, UnsupportedCombinationError):
                    refusals.append(given)
                    pairs.append((_missing(entry.label, plan.sampling, str(given)), None))
                else:
                    pairs.append((_row(entry, plan, *given), given[0]))
            if len(refusals) == len(plans):
                raise refusals[-1]
        return baseline_of(plans[0], report), pairs


def _row(entry: Entry, plan: ResolvedPlan, cal: Calibration, seconds: float) -> dict[str, Any]:
    row = {"label": entry.label, "sampling": plan.sampling} | _numbers_of(cal, seconds)
    if entry.published is not None:
        row["published_rmse"] = entry.published
    return row


def _numbers_of(cal: Calibration, seconds: float) -> dict[str, Any]:
    cost = noise_cost(cal.strategy)
    return {
        "sigma": cal.sigma,
        "sensitivity": cal.sensitivity.upper,
        "noise_multiplier": cal.noise_multiplier,
        "rmse": cal.rmse(),
        "max_se": cal.max_se(),
        "eps_lower": cal.achieved.lower,
        "eps_upper": cal.achieved.upper,
        "guarantee": str(cal.guarantee),
        "method": cal.method,
        "participation": repr(cal.participation),
        "buffers": cost.buffers,
        "redrawn": cost.redrawn,
        "seconds": round(seconds, 3),
    }


def _missing(label: str, sampling: str, reason: str) -> dict[str, Any]:
    return {"label": label, "sampling": sampling, "unavailable": reason}


def _baseline_row(baseline: Baseline) -> dict[str, Any]:
    if baseline.calibration is None:
        return _missing(BASELINE, "poisson", baseline.reason)
    own = {"label": BASELINE, "sampling": "poisson"}
    return own | _numbers_of(baseline.calibration, baseline.seconds)


def _beside(row: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """How many times the baseline's error is that of a row, rounded down."""
    if "rmse" not in row or "rmse" not in baseline:
        return {"times_less_rmse": None}
    return {"times_less_rmse": float(times(baseline["rmse"], row["rmse"], _GAIN_DIGITS))}


def _notes(plan: ResolvedPlan, pairs: _Pairs) -> list[str]:
    several = len({row["sampling"] for row, _ in pairs}) > 1
    estimates = [
        f"{row['label']} under {row['sampling']}" if several else row["label"]
        for row, cal in pairs
        if cal is not None and not cal.guarantee.rigorous
    ]
    return plan_notes(plan.training, [plan.eps], plan.delta, estimates=estimates)


def _described(plans: list[ResolvedPlan]) -> dict[str, Any]:
    """The plan in words; where samplings differ, a list of each."""
    if len(plans) == 1:
        return plans[0].described()
    each = [plan.described() for plan in plans]
    return {
        key: [one[key] for one in each] if key in {"sampling", "participation", "amplified"} else value
        for key, value in each[0].items()
    }


# Of a gain over the baseline, in the table and in JSON.
_GAIN_DIGITS = 3

_COLUMNS = {
    "label": "strategy",
    "sampling": "sampling",
    "sensitivity": "sensitivity",
    "sigma": "sigma",
    "rmse": "rmse",
    "times_less_rmse": "times less",
    "max_se": "max_se",
    "buffers": "buffers",
    "redrawn": "redrawn",
    "guarantee": "guarantee",
}
_CAPTION = (
    "rmse and max_se in units of the clip norm, at the calibrated sigma; times less: rmse of the baseline "
    "over that of the row, rounded down; buffers: vectors of the model's size that the noise keeps; redrawn: "
    "vectors drawn again every step"
)


def _comparison(baseline: dict[str, Any], rows: list[dict[str, Any]]) -> Table:
    published = any("published_rmse" in row for row in rows)
    table = Table(caption=_CAPTION, caption_justify="left")
    for key, name in _COLUMNS.items():
        table.add_column(name, justify="left" if key in {"label", "sampling", "guarantee"} else "right")
    if published:
        table.add_column("published rmse", justify="right")
        table.add_column("difference", justify="right")
    best = min(row["rmse"] for row in rows if "rmse" in row)
    for row in (baseline, *rows):
        cells = [shown(key, row.get(key)) for key in _COLUMNS]
        if "unavailable" in row:
            cells[-1] = f"none: {row['unavailable']}"
        if published:
            printed = row.get("published_rmse")
            cells.append(shown("published_rmse", printed))
            # A deviation from print, not a cost: to nearest.
            cells.append("" if printed is None else f"{100.0 * (row['rmse'] / printed - 1.0):+.2f} %")
        style = "italic" if row is baseline else "bold" if row.get("rmse") == best else None
        table.add_row(*map(escape, cells), style=style)
    return table


def _numbers(key: str, value: Any) -> Any:  # noqa: ANN401 - passes other options through
    if key not in {"coefs", "decays", "scales"}:
        return value
    try:
        return [float(item) for item in value.split(",")]
    except ValueError:
        raise InvalidParameterError(key, value, "numbers joined by commas") from None
