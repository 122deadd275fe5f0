"""The dpmech command. Exit codes: 0 done, 1 a check failed, 2 bad input."""

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from dpmech import __version__
from dpmech.budget import Adjacency
from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.exceptions import DpmechError, InvalidParameterError
from dpmech.planning import (
    METHODS,
    SAMPLINGS,
    STRATEGIES,
    Entry,
    TrainingPlan,
    build_strategy,
    chosen_method,
    parse_entries,
    read_plan,
)

__all__ = ["main"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dpmech")
def main() -> None:
    """How much noise private training needs, with the proof."""


def _plan_options(command: _Command) -> _Command:
    options = [
        click.option("--dataset-size", type=int, help="Number of examples (public)."),
        click.option("--batch-size", type=int, help="Expected batch size."),
        click.option("--epochs", type=int, help="Whole passes over the data."),
        click.option("--sampling", type=click.Choice(SAMPLINGS), help="How batches are drawn."),
        click.option(
            "--min-sep", type=int, help="min-sep: least distance of two participations [one epoch]."
        ),
        click.option("--max-participations", type=int, help="min-sep: most participations [epochs]."),
        click.option("--cycle", type=int, help="cyclic-poisson: number of groups."),
        click.option("--eps", type=float, help="Privacy budget eps > 0."),
        click.option("--delta", type=float, help="Privacy budget delta in (0, 1)."),
        click.option(
            "--adjacency", type=click.Choice([member.value for member in Adjacency]), help="[add_remove]"
        ),
        click.option("--rtol", type=float, help="Sigma is within this factor of the smallest one [1e-3]."),
        click.option("--method", type=click.Choice(list(METHODS)), help="Accountant [the best valid one]."),
        click.option("--rigorous", is_flag=True, default=None, help="Size with a bound, never an estimate."),
        click.option("--seed", type=int, help="Seed of randomised methods [operating system entropy]."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
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
@_plan_options
def calibrate(name: str, column_normalized: bool, as_json: bool, **given: Any) -> None:  # noqa: ANN401, FBT001 - click passes options by name
    """Print the noise scale that one strategy needs."""
    try:
        own = {key: given.pop(key) for key in ("lam", "bands", "coefs", "decays", "scales", "matrix")}
        options: dict[str, Any] = {
            key: _numbers(key, value) for key, value in own.items() if value is not None
        }
        settings = {key: value for key, value in given.items() if value is not None}
        rows, plan = _compare(settings, [Entry(name, options, column_normalized)])
    except DpmechError as error:
        _refuse(error)
    record = rows[0] | {"plan": plan}
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return
    table = Table(title=f"dpmech calibrate: {rows[0]['label']}", show_header=False, title_justify="left")
    for key, value in rows[0].items():
        table.add_row(key, _shown(value))
    for key, value in plan.items():
        table.add_row(key, _shown(value))
    _console().print(table)


@main.command()
@click.option(
    "--strategies", help="For example identity,lambda-cgd:lam=0.9,bsr:bands=16,bandmf:coefs=1/0.5/0.2."
)
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), help="A TOML file instead of the options."
)
@_plan_options
def compare(strategies: str | None, plan_file: Path | None, as_json: bool, **given: Any) -> None:  # noqa: ANN401, FBT001 - as above
    """Set several strategies side by side."""
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
        rows, plan = _compare(settings, entries)
    except DpmechError as error:
        _refuse(error)
    if as_json:
        click.echo(json.dumps({"plan": plan, "strategies": rows}, indent=2))
        return
    console = _console()
    console.print(
        "[bold]plan[/bold] " + ", ".join(f"{key} {_shown(value)}" for key, value in plan.items()),
        soft_wrap=True,
    )
    console.print(_comparison(rows, amplified=plan["amplified"]))


def _compare(settings: dict[str, Any], entries: list[Entry]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    known = {
        "dataset_size", "batch_size", "epochs", "sampling", "min_sep", "max_participations", "cycle",
        "eps", "delta", "adjacency", "rtol", "method", "rigorous", "seed",
    }  # fmt: skip
    for key, value in settings.items():
        if key not in known:
            raise InvalidParameterError(f"plan entry {key}", value, "one of " + ", ".join(sorted(known)))
    for key in ("dataset_size", "batch_size", "epochs", "sampling", "eps", "delta"):
        if key not in settings:
            raise InvalidParameterError(key, None, f"given (--{key.replace('_', '-')})")
    plan = TrainingPlan(settings["dataset_size"], settings["batch_size"], settings["epochs"])
    details = {key: settings[key] for key in ("min_sep", "max_participations", "cycle") if key in settings}
    participation = plan.participation(settings["sampling"], **details)
    adjacency = _adjacency(settings.get("adjacency", "add_remove"))
    method = chosen_method(settings.get("method"), participation, rigorous=bool(settings.get("rigorous")))
    rows = []
    bar = Progress(
        BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"), console=Console(stderr=True)
    )
    with bar:
        task = bar.add_task("calibrating", total=len(entries))
        for entry in entries:
            start = time.perf_counter()
            cal = calibrate_sigma(
                build_strategy(entry, plan.n),
                settings["eps"],
                settings["delta"],
                participation=participation,
                adjacency=adjacency,
                rtol=settings.get("rtol", 1e-3),
                method=method,
                rng=settings.get("seed"),
                progress=functools.partial(_report, bar, task, entry.label),
            )
            bar.advance(task)
            rows.append(_row(entry, cal, time.perf_counter() - start))
    described = dataclasses.asdict(plan) | {
        "steps_per_epoch": plan.steps_per_epoch,
        "n": plan.n,
        "participation": repr(participation),
        "amplified": participation.random,
        "adjacency": adjacency.value,
        "eps": settings["eps"],
        "delta": settings["delta"],
    }
    return rows, described


def _report(bar: Progress, task: TaskID, label: str, line: str) -> None:
    bar.update(task, description=f"{label}: {line}")


def _adjacency(name: object) -> Adjacency:
    named = {member.value: member for member in Adjacency}
    if not isinstance(name, str) or name not in named:
        raise InvalidParameterError("adjacency", name, "one of " + ", ".join(named))
    return named[name]


def _row(entry: Entry, cal: Calibration, seconds: float) -> dict[str, Any]:
    row = {
        "label": entry.label,
        "sigma": cal.sigma,
        "sensitivity": cal.sensitivity.upper,
        "noise_multiplier": cal.noise_multiplier,
        "rmse": cal.rmse(),
        "max_se": cal.max_se(),
        "eps_lower": cal.achieved.lower,
        "eps_upper": cal.achieved.upper,
        "guarantee": cal.guarantee,
        "method": cal.method,
        "seconds": round(seconds, 3),
    }
    if entry.published is not None:
        row["published_rmse"] = entry.published
    return row


def _comparison(rows: list[dict[str, Any]], *, amplified: bool) -> Table:
    columns = ["label", "sensitivity", "sigma", "rmse", "max_se", "guarantee"]
    published = any("published_rmse" in row for row in rows)
    table = Table(caption="rmse and max_se in units of the clip norm, at the calibrated sigma")
    for column in columns:
        numeric = column not in {"label", "guarantee"}
        name = {"label": "strategy", "rmse": "amplified rmse" if amplified else "rmse"}.get(column, column)
        table.add_column(name, justify="right" if numeric else "left")
    if published:
        table.add_column("published rmse", justify="right")
        table.add_column("difference", justify="right")
    best = min(row["rmse"] for row in rows)
    for row in rows:
        cells = [_shown(row[column]) for column in columns]
        if published:
            printed = row.get("published_rmse")
            cells.append("" if printed is None else _shown(printed))
            cells.append("" if printed is None else f"{100.0 * (row['rmse'] / printed - 1.0):+.2f} %")
        table.add_row(*cells, style="bold" if row["rmse"] == best else None)
    return table


def _numbers(key: str, value: Any) -> Any:  # noqa: ANN401 - passes other options through
    if key not in {"coefs", "decays", "scales"}:
        return value
    try:
        return [float(item) for item in value.split(",")]
    except ValueError:
        raise InvalidParameterError(key, value, "numbers joined by commas") from None


def _shown(value: Any) -> str:  # noqa: ANN401 - any cell
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _console() -> Console:
    # A pipe has no width of its own: do not fold tables there.
    return Console() if sys.stdout.isatty() else Console(width=140)


def _refuse(error: DpmechError) -> NoReturn:
    click.echo(f"dpmech: {error}", err=True)
    sys.exit(2)
