"""`dpmech plan`: a page of the noise that training plans need, before anything is certified."""

import datetime
from pathlib import Path

import click

from dpmech.cli.commands import Command
from dpmech.cli.files import check_no_document, page_force_option, write_text
from dpmech.cli.options import output_options
from dpmech.cli.parameters import BETWEEN_0_AND_1, Real, Target, Whole, Wholes
from dpmech.cli.running import Run, runs, worker_options
from dpmech.exceptions import InvalidParameterError
from dpmech.files import on_one_line
from dpmech.numerics import counted, typed
from dpmech.plans import parse_entries
from dpmech.reports import (
    DEFAULT_SECONDS,
    FAST_SAMPLINGS,
    PAGE_FAMILIES,
    PAGE_SAMPLINGS,
    check_plans,
    default_samplings,
    planner_page,
    preview_of,
    row_kinds,
    seconds_of,
)

_BELOW, _ABOVE = 0.5, 16.0


@click.command(
    cls=Command,
    short_help="Write a page for choosing eps, epochs and batch size.",
    absent={"--eps": "the page covers a range, from --min-eps to --max-eps"},
    examples=[
        "dpmech plan --dataset-size 50000 --delta 1e-5 --epochs 5,10,20 --batch-size 128,256,512 --min-eps 1 "
        "--max-eps 12 --out planner.html",
        "dpmech plan --dataset-size 1500 --delta 1e-5 --epochs 10 --batch-size 300 "
        f"--sampling {','.join(PAGE_SAMPLINGS)} --min-eps 1 --max-eps 8 --out planner.html",
    ],
)
@click.option(
    "--dataset-size", type=Whole(1), help="Number of examples: a public number of the plan. [required]"
)
@click.option("--delta", type=BETWEEN_0_AND_1, help="Privacy budget delta in (0, 1). [required]")
@click.option("--epochs", type=Wholes(1), help="Numbers of epochs, separated by commas. [required]")
@click.option("--batch-size", type=Wholes(1), help="Expected batch sizes, separated by commas. [required]")
@click.option(
    "--min-eps",
    type=Real(minimum=0.01, maximum=100.0),
    default=_BELOW,
    show_default=True,
    help="Smallest eps of the page.",
)
@click.option(
    "--max-eps",
    type=Real(minimum=0.01, maximum=100.0),
    default=_ABOVE,
    show_default=True,
    help="Largest eps of the page.",
)
@click.option(
    "--sampling",
    help=f"Rows of the page, separated by commas: {', '.join(PAGE_SAMPLINGS)}. The first one is always "
    f"shown [{','.join(FAST_SAMPLINGS)}, and the others as long as all plans are estimated to take at most "
    f"{DEFAULT_SECONDS / 60.0:.0f} minutes of one core].",
)
@click.option(
    "--strategies",
    help="Families of correlated noise, fitted to each plan, separated by commas, also with :bands=4 or "
    f":buffers=3: {', '.join(PAGE_FAMILIES)} [lambda-cgd, bisr and blt without sampling, "
    "blt under Balls-in-Bins].",
)
@click.option("--out", type=Target(lambda: ("html", "htm")), help="Write the page to this file. [required]")
@page_force_option
@worker_options
@output_options
@runs("plan", required=("dataset_size", "delta", "epochs", "batch_size", "out"))
def plan(
    *,
    run: Run,
    dataset_size: int,
    delta: float,
    epochs: list[int],
    batch_size: list[int],
    min_eps: float,
    max_eps: float,
    sampling: str | None,
    strategies: str | None,
    out: Path,
    force: bool,
) -> None:
    """Write a page that shows sigma, error and noise for every eps of a range, and the command to certify it.

    The page covers one dataset size, one delta, and every pair of a number of epochs and a batch size. It
    shows DP-SGD under Poisson sampling and correlated noise without sampling; unless this takes long, also
    DP-SGD under random allocation, and correlated noise under Balls-in-Bins that is fitted to a few values of
    eps. The page needs no network access. Its numbers are conservative previews: at most 3 % above a
    calibration, or 13 % under random allocation and Balls-in-Bins.
    """
    check_no_document(out, force=force)
    if max_eps <= min_eps:
        raise InvalidParameterError("max_eps", max_eps, f"above --min-eps {typed(min_eps)}")
    entries = None if strategies is None else parse_entries(strategies)
    names, others = list(FAST_SAMPLINGS), dict[str, float]()
    if sampling is None:
        plans = check_plans(dataset_size, epochs, batch_size, row_kinds(names, entries))
        names, others = default_samplings(plans, delta, min_eps, max_eps, entries)
    else:
        names = [one.strip() for one in sampling.split(",")]
    kinds = row_kinds(names, entries)
    plans = check_plans(dataset_size, epochs, batch_size, kinds)
    times = [sum(seconds_of(one, kind, delta, min_eps, max_eps) for kind in kinds) for one in plans]
    left = [
        f"without {name} ({_spoken(seconds)} more): --sampling adds it" for name, seconds in others.items()
    ]
    run.note(expected(times), *left)
    with run.working("planning", len(plans) * len(kinds)) as (executor, report):
        preview = preview_of(
            dataset_size,
            delta,
            epochs=epochs,
            batch_sizes=batch_size,
            low=min_eps,
            high=max_eps,
            samplings=names,
            strategies=entries,
            executor=executor,
            progress=report,
        )
    made = datetime.datetime.now(datetime.UTC).date().isoformat()
    write_text(out, planner_page(preview, made=made))
    content = {
        "out": str(out),
        "dataset_size": dataset_size,
        "delta": delta,
        "min_eps": min_eps,
        "max_eps": max_eps,
        "rows": [{"label": kind.label, "sampling": kind.sampling} for kind in kinds],
        "plans": [
            {"epochs": one.training.epochs, "batch_size": one.training.batch_size, "n": one.training.steps}
            for one in preview.plans
        ],
    }
    words = counted(len(plans), "plan")
    reasons = {
        f"no numbers for {row.label}: {row.reason}" for one in preview.plans for row in one.rows if row.reason
    }
    run.note(*sorted(reasons))
    run.answer(lambda: content, lambda: [on_one_line(f"planner for {words}: {out}")])


_MINUTE, _HOUR = 60.0, 3600.0


def expected(times: list[float]) -> str:
    """About how long some plans take, on one core.

    Args:
        times: seconds of each plan.
    """
    if len(times) == 1:
        return f"this takes about {_spoken(times[0])} of one core"
    least, most = _spoken(min(times)), _spoken(max(times))
    each = least if least == most else f"{least} to {most}"
    return f"a plan takes about {each} of one core, all {len(times)} about {_spoken(sum(times))}"


def _spoken(seconds: float) -> str:
    if seconds < 2.0 * _MINUTE:
        return f"{seconds:.0f} seconds"
    minutes = seconds / _MINUTE
    return f"{minutes:.0f} minutes" if seconds < 2.0 * _HOUR else f"{seconds / _HOUR:.1f} hours"
