"""`dpmech recommend`: the strategy and the sampling with the least error for a plan, in one call."""

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from dpmech.cli.calibrating import CLIP_NORM
from dpmech.cli.commands import Command, MissingOptionsError, plain
from dpmech.cli.comparing import notes_of, plans_described, plans_in_words, row_of, table_of
from dpmech.cli.entries import calibrated, named
from dpmech.cli.files import force_option
from dpmech.cli.options import NAMES, plan_options, resolve_each
from dpmech.cli.parameters import Target, Whole
from dpmech.cli.results import baseline_of, baseline_row, compared, error_words, file_lines, save_best
from dpmech.cli.running import Run, in_order, runs, worker_options
from dpmech.exceptions import InvalidParameterError
from dpmech.fitting import choices, chosen
from dpmech.plans import SAMPLINGS


@click.command(
    cls=Command,
    short_help="Find the strategy and sampling with the lowest error.",
    lists={"Sampling schemes": NAMES["Sampling schemes"]},
    examples=[
        "dpmech recommend --dataset-size 50000 --batch-size 128 --epochs 10 --eps 8 --delta 1e-5 "
        "--max-vectors 1 --out certificate.json --out-strategy fit.json",
        "dpmech recommend --dataset-size 50000 --batch-size 128 --epochs 10 --eps 8 --delta 1e-5 "
        "--max-vectors 3 --sampling poisson,min-sep --json",
    ],
)
@click.option(
    "--max-vectors",
    type=Whole(0),
    help="Largest number of vectors of the model's size that the noise of a step may need, stored "
    "(8 bytes per parameter each) or regenerated; 0 means independent noise. [required]",
)
@click.option("--out", type=Target(), help="Write the certificate of the best strategy to this file.")
@click.option("--out-strategy", type=Target(), help="Write the best strategy to this file.")
@force_option
@CLIP_NORM
@worker_options
@plan_options(several=True, default_sampling=",".join(SAMPLINGS), errors=True)
@runs("recommend")
def recommend(
    *,
    run: Run,
    max_vectors: int | None,
    out: Path | None,
    out_strategy: Path | None,
    force: bool,
    clip_norm: float | None,
    **given: Any,  # noqa: ANN401 - click passes options by name
) -> None:
    """Find the strategy and the sampling scheme with the lowest error, and certify the result.

    List with --sampling the schemes that the training loop supports. Under each scheme, independent noise is
    calibrated, and families of correlated noise are fitted within --max-vectors. The result has the lowest
    RMSE at a proven sigma. If poisson is listed, it is never worse than DP-SGD (Poisson). Thousands of steps
    take minutes.
    """
    if clip_norm is not None and out is None:
        raise InvalidParameterError("clip_norm", clip_norm, "left out without --out")
    settings = {key: value for key, value in given.items() if value is not None}
    plans = resolve_each(settings, missing=["max_vectors"] if max_vectors is None else [])
    if max_vectors is None:
        raise MissingOptionsError(["max_vectors"])
    calls = [
        (named(choice), choice, plan)
        for plan in plans
        for choice in choices(plan.participation, plan.training.steps, max_vectors)
    ]
    with run.working("fitting", len(calls) + 1) as (executor, report):
        trials = list(
            in_order(executor, report, calibrated, [(*one, len(calls), "rmse", None, False) for one in calls])
        )
        found = chosen(trials, max_vectors, plans[0].workload)
        baseline = baseline_row(baseline_of(plans[0], report), plans[0].workload)
    pairs = [
        (row_of(entry, plan, trial), trial.calibration)
        for (entry, _, plan), trial in zip(calls, trials, strict=True)
    ]
    rows = [row | compared(row, baseline) for row, _ in pairs]
    best = next(row for row, (_, cal) in zip(rows, pairs, strict=True) if cal is found.calibration)
    files, failed = save_best(
        found.calibration, plans[0].training, out, out_strategy, clip_norm=clip_norm, force=force
    )
    words = ", ".join(f"{key} {text}" for key, text in plans_in_words(plans).items())
    run.answer(
        lambda: (
            {
                "plan": plans_described(plans),
                "max_vectors": max_vectors,
                "best": best,
                "baseline": baseline,
                "strategies": rows,
            }
            | files
        ),
        lambda: [
            Text(f"plan {words}"),
            *table_of(baseline, rows, error_words(plans[0])),
            Text(f"best: {plain(found.words)}", style="bold"),
            *file_lines(files, f"{best['label']} under {best['sampling']}", clip_norm),
        ],
        notes=notes_of(plans[0], pairs),
        failed=failed,
    )
