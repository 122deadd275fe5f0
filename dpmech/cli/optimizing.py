"""`dpmech optimize`: the best strategy of every family for a plan, with table and figure."""

import concurrent.futures
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from dpmech.calibration import calibrate_sigma
from dpmech.certificates import Certificate
from dpmech.cli.calibrating import CLIP_NORM
from dpmech.cli.commands import Command, plain
from dpmech.cli.files import drawable, force_option, save_certificate, save_figure, save_strategy
from dpmech.cli.options import NAMES, ResolvedPlan, plan_options, resolve
from dpmech.cli.parameters import OneOf, Reals, Target
from dpmech.cli.printing import Column, Report, Row, shown, stacked, width
from dpmech.cli.results import BASELINE, Baseline, as_data, attempted, baseline_of, error_of, plan_notes
from dpmech.cli.running import Run, in_order, runs, silent, worker_options
from dpmech.exceptions import InvalidParameterError
from dpmech.files import on_one_line
from dpmech.fitting import Fit, check_family
from dpmech.fitting import optimize as fit_strategy
from dpmech.guards import check_real
from dpmech.mechanism import Identity, Strategy, noise_cost
from dpmech.numerics import times, typed
from dpmech.plans import FAMILIES, STRATEGIES, FamilyEntry, parse_families, read_plan
from dpmech.schemes import method_among


@dataclasses.dataclass(frozen=True)
class Found:
    """The fit of one family, and its cost."""

    entry: FamilyEntry
    fit: Fit
    seconds: float


def row_of(found: Found, objective: str) -> dict[str, Any]:
    """A fit as plain data."""
    fit, cal = found.fit, found.fit.calibration
    cost = noise_cost(fit.strategy)
    return {
        "family": found.entry.label,
        objective: fit.error,
        "sigma": None if cal is None else cal.sigma,
        "guarantee": None if cal is None else str(cal.guarantee),
        "buffers": cost.buffers,
        "bytes_per_parameter": cost.bytes_per_parameter,
        "regenerated": cost.regenerated,
        "seconds": round(found.seconds, 1),
        "strategy": as_data(fit.strategy),
    }


def baseline_of_fits(baseline: Baseline, objective: str) -> dict[str, Any]:
    """DP-SGD under Poisson sampling in the columns of the fits; without numbers, with the reason."""
    cal = baseline.calibration
    row = {
        "family": BASELINE,
        objective: None if cal is None else error_of(cal, objective),
        "sigma": None if cal is None else cal.sigma,
        "guarantee": None if cal is None else str(cal.guarantee),
        "buffers": 0,
        "bytes_per_parameter": 0,
        "regenerated": 0,
        "seconds": round(baseline.seconds, 1),
        "strategy": None if cal is None else cal.strategy.to_dict(),
    }
    return row | ({"unavailable": baseline.reason} if cal is None else {})


def independent_row(fit: Fit) -> dict[str, Any]:
    """The row of independent noise under the plan's own sampling, the reference for every fit."""
    return {
        "family": "identity",
        fit.objective: fit.identity_error,
        "sigma": None,
        "guarantee": None,
        "buffers": 0,
        "bytes_per_parameter": 0,
        "regenerated": 0,
        "seconds": None,
        "strategy": None,
    }


_CAPTION = (
    "errors in units of the clip norm at the calibrated sigma; times less: error of the baseline over that "
    "of the row, rounded down; identity: independent noise under the plan's own sampling; buffers: vectors "
    "of the model's size that the noise keeps, 8 bytes a parameter; regenerated: vectors regenerated every "
    "step; sigma: of identity and DP-SGD that of i.i.d. noise, of other families that of correlated noise, "
    "no number for DP-SGD tools"
)


def table_of(
    baseline: dict[str, Any], rows: list[dict[str, Any]], eps: float, objective: str
) -> list[RenderableType]:
    """The families at one eps."""
    columns = (
        Column("family", "family", fixed=True),
        Column(objective, objective),
        Column("times", "times less"),
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
            "described": _described(row),
        }
        style = "italic" if row is baseline else "bold" if row[objective] == best else None
        lines.append(Row({one.key: shown(one.key, cells[one.key]) for one in columns}, style))
    title = f"best of every family at eps {typed(eps)}"
    printed = stacked(columns, lines, width(), title=title, caption=_CAPTION)
    if "unavailable" in baseline:
        printed.append(Text(f"no number for {BASELINE}: {plain(baseline['unavailable'])}"))
    return printed


def _described(row: dict[str, Any]) -> str:
    own = row["strategy"]
    if own is None or "fingerprint" in own:
        return "" if own is None else f"{own['type']}(n={own['n']})"
    return repr(Strategy.from_dict(own))


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
    lists={"Families": [(name, STRATEGIES[name].title) for name in FAMILIES]}
    | {"Samplings": NAMES["Samplings"]},
    examples=[
        "dpmech optimize --families lambda-cgd,blt:buffers=3 --dataset-size 50000 --batch-size 128 "
        "--epochs 10 --sampling min-sep --eps 8 --delta 1e-5 --out-strategy fit.json --out certificate.json",
    ],
)
@click.option(
    "--families",
    default=_DEFAULT,
    show_default=True,
    help=f"Of {', '.join(FAMILIES)}, sizes behind colons; add :column-normalized for unit columns.",
)
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="A TOML file with such a plan.")
@click.option(
    "--objective",
    type=OneOf(_OBJECTIVES),
    default="rmse",
    show_default=True,
    help="Error that is made small: root mean square (rmse), worst step (max_se), last step.",
)
@click.option("--eps-grid", type=Reals(), help="More budgets for the figure, joined by commas: 8,4,2,1.")
@click.option("--figure", type=Target(drawable), help="Draw error against eps into this file.")
@click.option("--cache", type=click.Path(path_type=Path), help="Folder of coefficients fitted before.")
@click.option("--out", type=Target(), help="Write the certificate of the best family at --eps to this file.")
@click.option("--out-strategy", type=Target(), help="Write the best strategy at --eps to this file.")
@force_option
@CLIP_NORM
@worker_options
@plan_options(here=", here or in --plan")
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
    entries = parse_families(families)
    settings = {} if plan_file is None else read_plan(plan_file)[0]
    settings |= {key: value for key, value in given.items() if value is not None}
    plan = resolve(settings)
    _check_folder(cache)
    for entry in entries:
        check_family(FAMILIES[entry.name], n=plan.training.steps, bands=entry.bands, buffers=entry.buffers)
    eps, delta = plan.budget
    grid = sorted({*(eps_grid or ()), eps}, reverse=True)
    plans = [
        dataclasses.replace(plan, eps=check_real("eps_grid", one, minimum=0.0, open_minimum=True))
        for one in grid
    ]
    with run.working("fitting", (len(entries) + 1) * len(grid)) as (executor, report):
        fits = _fits(entries, plans, objective, cache, executor, report)
        baselines = {one.budget[0]: baseline_of_fits(baseline_of(one, report), objective) for one in plans}
    rows = {
        one: [independent_row(found[0].fit), *(row_of(each, objective) for each in found)]
        for one, found in fits.items()
    }
    best = min(fits[eps], key=lambda found: found.fit.error)
    certificate = _certificate(best, clip_norm, float(plan.training.batch_size)) if out else None
    written: dict[str, Any] = {"certificate": out, "strategy_file": out_strategy, "figure": figure}
    failed = {
        "certificate": attempted(lambda: save_certificate(out, certificate, force=force))
        if certificate and out
        else None,
        "strategy_file": attempted(lambda: save_strategy(out_strategy, best.fit.strategy, force=force))
        if out_strategy
        else None,
        "figure": attempted(lambda: draw(baselines, rows, plan, objective, figure)) if figure else None,
    }
    estimates = [
        one.entry.label
        for found in fits.values()
        for one in found
        if one.fit.calibration is not None and not one.fit.calibration.guarantee.rigorous
    ]
    files = {name: None if failed[name] else str(path) for name, path in written.items() if path is not None}

    def content() -> dict[str, Any]:
        records = [{"eps": one, "baseline": baselines[one], "families": found} for one, found in rows.items()]
        return {"plan": plan.described(), "best": best.entry.label, "fits": records} | files

    def text() -> Iterator[RenderableType]:
        for one, found in rows.items():
            yield from table_of(baselines[one], found, one, objective)
        for name, path in files.items():
            if path is not None:
                what = "figure" if name == "figure" else f"{name.replace('_file', '')} of {best.entry.label}"
                yield on_one_line(f"{what}: {path}")

    run.answer(
        content,
        text,
        notes=plan_notes(plan.training, grid, delta, estimates=estimates),
        failed=next(filter(None, failed.values()), None),
    )


def _check_folder(path: Path | None) -> None:
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise InvalidParameterError("cache", str(path), "a folder")
    nearest = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise InvalidParameterError("cache", str(path), "a folder that may be written to")


def _certificate(found: Found, clip_norm: float | None, batch_size: float) -> Certificate:
    if found.fit.calibration is None:
        raise InvalidParameterError("out", None, "left out where nothing is calibrated")
    return found.fit.calibration.certificate(clip_norm, batch_size)


def _fits(
    entries: list[FamilyEntry],
    plans: list[ResolvedPlan],
    objective: str,
    cache: Path | None,
    executor: concurrent.futures.Executor | None,
    report: Report,
) -> dict[float, list[Found]]:
    """The fit of every family at every eps.

    Without amplification, sigma is the sensitivity times a factor that depends on eps only, so the best
    strategy is the same at every eps and is fitted once.
    """
    trials = len(entries) * len(plans)
    once = plans[0].participation.certain
    calls = [
        (entry, one, objective, cache, trials) for one in plans[: 1 if once else None] for entry in entries
    ]
    results = in_order(executor, report, _fitted, calls)
    fits = {one.budget[0]: [next(results) for _ in entries] for one in plans[: 1 if once else None]}
    if once:
        first = fits[plans[0].budget[0]]
        for one in plans[1:]:
            fits[one.budget[0]] = list(_again(first, one, objective, report))
    return fits


def _again(found: list[Found], plan: ResolvedPlan, objective: str, report: Report) -> Iterator[Found]:
    """Fits for another eps, calibrated for this one."""
    settings: dict[str, Any] = {
        "adjacency": plan.adjacency,
        "rtol": plan.rtol,
        "method": plan.method,
    }
    identity = calibrate_sigma(
        Identity(plan.training.steps), *plan.budget, participation=plan.participation, **settings
    )
    for one in found:
        start = time.perf_counter()
        cal = calibrate_sigma(one.fit.strategy, *plan.budget, participation=one.fit.participation, **settings)
        fit = dataclasses.replace(
            one.fit,
            error=error_of(cal, objective),
            identity_error=error_of(identity, objective),
            candidates=(),
            calibration=cal,
        )
        report("")
        yield Found(one.entry, fit, time.perf_counter() - start)


def _fitted(
    entry: FamilyEntry,
    plan: ResolvedPlan,
    objective: str,
    cache: Path | None,
    calls: int,  # number of calls, for the correction for picking one
    *,
    executor: concurrent.futures.Executor | None = None,
    report: Report = silent,
) -> Found:
    start = time.perf_counter()
    eps, delta = plan.budget
    fit: Fit = fit_strategy(
        FAMILIES[entry.name],
        plan.participation,
        n=plan.training.steps,
        bands=entry.bands,
        buffers=entry.buffers,
        column_normalized=entry.column_normalized,
        objective=objective,
        eps=eps,
        delta=delta,
        adjacency=plan.adjacency,
        method=method_among(plan.participation, plan.method, calls),
        rtol=plan.rtol,
        rng=plan.seed,
        cache=cache,
        progress=lambda line: report(f"{entry.label} at eps {typed(eps)}: {line}"),
        executor=executor,
    )
    return Found(entry, fit, time.perf_counter() - start)
