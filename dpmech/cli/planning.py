"""`dpmech plan`: a page of the noise that training plans need, before anything is certified."""

import datetime
from pathlib import Path

import click

from dpmech.cli.commands import Command, MissingOptionsError
from dpmech.cli.files import check_no_document, page_force_option, write_text
from dpmech.cli.options import output_options
from dpmech.cli.parameters import Real, Target, Whole, Wholes
from dpmech.cli.running import Run, runs, worker_options
from dpmech.exceptions import InvalidParameterError
from dpmech.files import on_one_line
from dpmech.numerics import typed
from dpmech.plans import TrainingPlan
from dpmech.reports import planner_page, preview_of

_INSIDE = {"minimum": 0.0, "maximum": 1.0, "open_minimum": True, "open_maximum": True}
_BELOW, _ABOVE = 0.5, 16.0


@click.command(
    cls=Command,
    short_help="Write a page to choose eps, epochs and batch.",
    examples=[
        "dpmech plan --dataset-size 50000 --delta 1e-5 --epochs 5,10,20 --batch-size 128,256,512 --min-eps 1 "
        "--max-eps 12 --out planner.html",
    ],
)
@click.option(
    "--dataset-size", type=Whole(1), help="Number of examples, a public number of the plan. [required]"
)
@click.option("--delta", type=Real(**_INSIDE), help="Privacy budget delta in (0, 1). [required]")
@click.option("--epochs", type=Wholes(1), help="Numbers of passes, joined by commas. [required]")
@click.option("--batch-size", type=Wholes(1), help="Expected batch sizes, joined by commas. [required]")
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
@click.option("--out", type=Target(lambda: ("html", "htm")), help="Write the page to this file. [required]")
@page_force_option
@worker_options
@output_options
@runs("plan")
def plan(
    *,
    run: Run,
    dataset_size: int | None,
    delta: float | None,
    epochs: list[int] | None,
    batch_size: list[int] | None,
    min_eps: float,
    max_eps: float,
    out: Path | None,
    force: bool,
) -> None:
    """Write a page that shows sigma, error and noise for every eps of a range, and the command to certify it.

    For one dataset size and delta, and every pair of epochs and batch size: DP-SGD under Poisson sampling,
    and correlated noise on unsampled batches. The page needs no network; every plan takes about 7 seconds of
    one core. Its numbers are conservative previews, at most 3 % above a calibration.
    """
    given = {
        "dataset_size": dataset_size,
        "delta": delta,
        "epochs": epochs,
        "batch_size": batch_size,
        "out": out,
    }
    missing = [name for name, value in given.items() if value is None]
    if (
        missing
        or dataset_size is None
        or delta is None
        or epochs is None
        or batch_size is None
        or out is None
    ):
        raise MissingOptionsError(missing)
    check_no_document(out, force=force)
    if max_eps <= min_eps:
        raise InvalidParameterError("max_eps", max_eps, f"above --min-eps {typed(min_eps)}")
    plans = [TrainingPlan(dataset_size, size, count) for count in epochs for size in batch_size]
    with run.working("planning", len(plans)) as (executor, report):
        preview = preview_of(
            dataset_size,
            delta,
            epochs=epochs,
            batch_sizes=batch_size,
            low=min_eps,
            high=max_eps,
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
        "plans": [
            {"epochs": one.training.epochs, "batch_size": one.training.batch_size, "n": one.training.steps}
            for one in preview.plans
        ],
    }
    run.answer(lambda: content, lambda: [on_one_line(f"planner for {len(preview.plans)} plans: {out}")])
