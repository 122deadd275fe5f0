"""`dpmech calibrate` and `dpmech compare`: how much noise a plan needs."""

import json
import time
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.cli.plans import plan_options, resolve
from dpmech.cli.printing import console, progress_bar, refuse, shown
from dpmech.exceptions import DpmechError, InvalidParameterError
from dpmech.planning import STRATEGIES, Entry, build_strategy, parse_entries, read_plan

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
@plan_options
def calibrate(
    name: str,
    *,
    column_normalized: bool,
    out: Path | None,
    clip_norm: float | None,
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
        ((row, cal),), plan = _sized(settings, [Entry(name, options, column_normalized)])
        if out is not None:
            cal.certificate(clip_norm, float(plan["batch_size"])).save(out)
            row["certificate"] = str(out)
    except DpmechError as error:
        refuse(error)
    record = row | {"plan": plan}
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return
    table = Table(title=f"dpmech calibrate: {row['label']}", show_header=False, title_justify="left")
    for key, value in row.items():
        table.add_row(key, shown(value))
    for key, value in plan.items():
        table.add_row(key, shown(value))
    console().print(table)


@click.command()
@click.option(
    "--strategies", help="For example identity,lambda-cgd:lam=0.9,bsr:bands=16,bandmf:coefs=1/0.5/0.2."
)
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), help="A TOML file instead of the options."
)
@plan_options
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
        pairs, plan = _sized(settings, entries)
    except DpmechError as error:
        refuse(error)
    rows = [row for row, _ in pairs]
    if as_json:
        click.echo(json.dumps({"plan": plan, "strategies": rows}, indent=2))
        return
    output = console()
    output.print(
        "[bold]plan[/bold] " + ", ".join(f"{key} {shown(value)}" for key, value in plan.items()),
        soft_wrap=True,
    )
    output.print(_comparison(rows, amplified=plan["amplified"]))


def _sized(
    settings: dict[str, Any], entries: list[Entry]
) -> tuple[list[tuple[dict[str, Any], Calibration]], dict[str, Any]]:
    """A row and a calibration for every entry, and the plan in words."""
    plan = resolve(settings)
    rows = []
    with progress_bar("calibrating", total=len(entries)) as report:
        for entry in entries:
            start = time.perf_counter()
            cal = calibrate_sigma(
                build_strategy(entry, plan.training.n),
                plan.eps,
                plan.delta,
                participation=plan.participation,
                adjacency=plan.adjacency,
                rtol=plan.rtol,
                method=plan.method,
                rng=plan.seed,
                progress=lambda line, label=entry.label: report(f"{label}: {line}"),  # type: ignore[misc]  # the default binds the label now
            )
            report("")
            rows.append((_row(entry, cal, time.perf_counter() - start), cal))
    return rows, plan.described()


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
        cells = [shown(row[column]) for column in columns]
        if published:
            printed = row.get("published_rmse")
            cells.append("" if printed is None else shown(printed))
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
