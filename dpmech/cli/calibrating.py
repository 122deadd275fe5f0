"""`dpmech calibrate`: how much noise a strategy needs."""

import concurrent.futures
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from dpmech.calibration import Calibration, calibrate_sigma
from dpmech.certificates import ProfileNodes
from dpmech.cli.commands import Command, MissingOptionsError
from dpmech.cli.files import check_free, force_option, save_certificate
from dpmech.cli.options import NAMES, ResolvedPlan, chosen_strategy, plan_options, resolve, strategy_options
from dpmech.cli.parameters import POSITIVE, OneOf, Target
from dpmech.cli.printing import sheet
from dpmech.cli.results import allocation_notes, attempted, cells_of, numbers_of, plan_notes
from dpmech.cli.running import Run, runs, worker_options
from dpmech.engines import PrivacyProfile
from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism import Mechanism, PrivacyBudget, Unit
from dpmech.schemes import scheme_of

CLIP_NORM = click.option(
    "--clip-norm",
    type=POSITIVE,
    help="Clip norm in the certificate [left to the run].",
)


@click.command(
    cls=Command,
    short_help="Print the noise scale that a strategy needs.",
    lists=NAMES,
    examples=[
        "dpmech calibrate --strategy lambda-cgd --lam 0.9 --dataset-size 50000 --batch-size 128 --epochs 10 "
        "--sampling min-sep --eps 8 --delta 1e-5 --out certificate.json",
        "dpmech calibrate --strategy-file fit.json --dataset-size 50000 --batch-size 128 --epochs 10 "
        "--sampling min-sep --eps 8 --delta 1e-5 --clip-norm 1 --json",
    ],
)
@strategy_options
@click.option("--out", type=Target(), help="Write the certificate to this file.")
@force_option
@CLIP_NORM
@click.option(
    "--with-profile",
    is_flag=True,
    help="Store the privacy profile in the certificate. Under Balls-in-Bins this takes a minute, but "
    "saves this time in every ledger, risk and report command. [off]",
)
@click.option(
    "--unit",
    type=OneOf([one.value for one in Unit]),
    help="The unit that is sampled, clipped and hidden [example].",
)
@worker_options
@plan_options()
@runs("calibrate")
def calibrate(
    *,
    run: Run,
    out: Path | None,
    force: bool,
    clip_norm: float | None,
    with_profile: bool,
    unit: str | None,
    **given: Any,  # noqa: ANN401 - click passes options by name
) -> None:
    """Print the noise scale that a strategy needs."""
    chosen, missing = chosen_strategy(given)
    if with_profile and out is None:
        missing.append("--out (which --with-profile needs)")
    plan = resolve({key: value for key, value in given.items() if value is not None}, missing=missing)
    if chosen is None:
        raise MissingOptionsError(missing)
    strategy = chosen.build(plan.training.steps)
    mechanism = Mechanism(strategy, plan.participation, plan.adjacency, _unit(unit, plan))
    if with_profile and plan.method is not None and plan.method.estimates:
        # Estimates are not accepted as evidence.
        allowed = "certified, deterministic, exact or rdp with --with-profile"
        raise InvalidParameterError("method", given["method"], allowed)
    nothing_to_keep = ProfileNodes.refusal(mechanism) if with_profile else ""
    if out is not None:
        check_free(out, mechanism, PrivacyBudget(*plan.budget), force=force)
    curve = None
    start = time.perf_counter()
    with run.working("calibrating", 1 + (with_profile and not nothing_to_keep)) as (executor, report):
        cal = calibrate_sigma(
            mechanism,
            *plan.budget,
            rtol=plan.rtol,
            method=plan.method,
            rng=plan.seed,
            progress=lambda line: report(f"{chosen.label}: {line}"),
            executor=executor,
        )
        report("")
        if with_profile and not nothing_to_keep:
            report(f"{chosen.label}: privacy profile")
            curve = _profile(cal, plan, executor)
            report("")
    row: dict[str, Any] = {"label": chosen.label, "sampling": plan.sampling}
    row |= numbers_of(cal, time.perf_counter() - start)
    own = cal.participation
    size = scheme_of(own).batch_size_of(own, float(plan.training.batch_size))
    if clip_norm is not None and size is not None:
        row |= _noise_of_averages(cal, clip_norm, size)
    failed = None
    if out is not None:
        certificate = cal.certificate(clip_norm, size, profile=curve)
        if certificate.nodes is not None:
            row["profile_nodes"] = sum(
                len(one.remove.eps) + len(one.add.eps) for one, _ in certificate.nodes.curves
            )
        failed = attempted(lambda: save_certificate(out, certificate, force=force))
        row["certificate"] = None if failed else str(out)
    estimates = [] if cal.guarantee.rigorous else [chosen.label]
    notes = plan_notes(plan.training, [cal.budget.eps], cal.budget.delta, estimates=estimates, unit=cal.unit)
    notes += allocation_notes([(chosen.label, cal)])
    if nothing_to_keep:
        notes.append(f"--with-profile keeps no nodes of {plan.sampling}, {nothing_to_keep}")
    run.answer(
        lambda: row | {"plan": plan.described()},
        lambda: sheet(f"dpmech calibrate: {chosen.label}", cells_of(row | plan.described())),
        notes=notes,
        failed=failed,
    )


def _noise_of_averages(cal: Calibration, clip_norm: float, size: float) -> dict[str, float]:
    """Phi: the variance per coordinate of the noise in the averaged gradient, least and largest of a step."""
    norms = cal.strategy.noising_row_norms()
    least, largest = int(norms.argmin()), int(norms.argmax())
    return {
        "clip_norm": clip_norm,
        "phi_least": cal.noise_variance(least, clip_norm, size),
        "phi_largest": cal.noise_variance(largest, clip_norm, size),
    }


def _profile(
    cal: Calibration, plan: ResolvedPlan, executor: concurrent.futures.Executor | None
) -> PrivacyProfile:
    """The profile by the given method; its samples are independent of those behind sigma."""
    # A second word in the seed gives random numbers independent of the calibration.
    rng = None if plan.seed is None else np.random.default_rng([plan.seed, 1])
    return cal.profile(method=plan.method, rng=rng, executor=executor)


def _unit(name: str | None, plan: ResolvedPlan) -> Unit:
    """The given unit, or the default unit of the sampling."""
    own = plan.participation.unit
    if own is not None and name not in (None, own.value):
        raise InvalidParameterError("unit", name, f"{own.value} with sampling {plan.sampling}")
    return Unit.EXAMPLE if name is None else Unit(name)
