"""`dpmech epsilon` and `dpmech delta`: the eps or delta of an existing noise scale."""

import concurrent.futures
import time
from pathlib import Path
from typing import Any

import click

from dpmech.calibration import Calibration, certify_sigma, delta, epsilon
from dpmech.cli.calibrating import CLIP_NORM
from dpmech.cli.commands import Command, MissingOptionsError, with_options
from dpmech.cli.files import force_option, save_certificate
from dpmech.cli.options import (
    NAMES,
    ChosenStrategy,
    ResolvedPlan,
    chosen_strategy,
    plan_options,
    resolve,
    strategy_options,
)
from dpmech.cli.parameters import POSITIVE, Target
from dpmech.cli.printing import sheet
from dpmech.cli.results import as_data, attempted, cells_of, plan_notes
from dpmech.cli.running import Run, runs, worker_options
from dpmech.engines import Method
from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism import Mechanism, Strategy, sensitivity, sigma_use
from dpmech.mechanism import noise_multiplier as noise_multiplier_of
from dpmech.numerics import Bounds, between, typed
from dpmech.schemes import unsampled_method

_PLAN = (
    "--strategy identity --noise-multiplier 1.1 --dataset-size 60000 --batch-size 256 --epochs 15 "
    "--sampling poisson"
)


_noise_options = with_options(
    click.option(
        "--sigma",
        type=POSITIVE,
        help="Standard deviation of the independent noise Z at clip norm 1. [this or --noise-multiplier "
        "required]",
    ),
    click.option(
        "--noise-multiplier",
        type=POSITIVE,
        help="The noise multiplier of Opacus: standard deviation of the noise divided by the clip norm. "
        "It equals sigma if the noise is independent from step to step, and is refused otherwise.",
    ),
    click.option(
        "--out",
        type=Target(),
        help="Write a certificate of this sigma, computed without random samples, to this file.",
    ),
    force_option,
    CLIP_NORM,
)


@click.command(
    name="epsilon",
    cls=Command,
    short_help="Print the eps of a noise scale.",
    absent={"--eps": "epsilon prints it; dpmech calibrate and dpmech delta take it"},
    lists=NAMES,
    examples=[
        f"dpmech epsilon {_PLAN} --delta 1e-5",
        "dpmech epsilon --strategy lambda-cgd --lam 0.9 --sigma 4.36 --dataset-size 50000 --batch-size 128 "
        "--epochs 10 --sampling min-sep --delta 1e-5 --out certificate.json",
    ],
)
@strategy_options
@_noise_options
@worker_options
@plan_options(budget=("delta",), search=False)
@runs("epsilon")
def epsilon_command(**given: Any) -> None:  # noqa: ANN401 - click passes options by name
    """Print an interval that contains the eps of a noise scale at --delta."""
    _answer("delta", **given)


@click.command(
    name="delta",
    cls=Command,
    short_help="Print the delta of a noise scale.",
    absent={"--delta": "delta prints it; dpmech calibrate and dpmech epsilon take it"},
    lists=NAMES,
    examples=[f"dpmech delta {_PLAN} --eps 1", f"dpmech delta {_PLAN} --eps 1 --json"],
)
@strategy_options
@_noise_options
@worker_options
@plan_options(budget=("eps",), search=False)
@runs("delta")
def delta_command(**given: Any) -> None:  # noqa: ANN401 - as above
    """Print an interval that contains the delta of a noise scale at --eps."""
    _answer("eps", **given)


def _answer(
    at: str,
    *,
    run: Run,
    sigma: float | None,
    noise_multiplier: float | None,
    out: Path | None,
    force: bool,
    clip_norm: float | None,
    **given: Any,  # noqa: ANN401 - as above
) -> None:
    command = run.command
    chosen, missing = chosen_strategy(given)
    if sigma is None and noise_multiplier is None:
        missing.append("--sigma (or --noise-multiplier)")
    if sigma is not None and noise_multiplier is not None:
        raise InvalidParameterError("noise_multiplier", noise_multiplier, "left out with --sigma")
    if clip_norm is not None and out is None:
        raise InvalidParameterError("clip_norm", clip_norm, "left out without --out")
    settings = {key: value for key, value in given.items() if value is not None}
    plan = resolve(settings, budget=(at,), missing=missing)
    if chosen is None:
        raise MissingOptionsError(missing)
    strategy = chosen.build(plan.training.steps)
    mechanism = Mechanism(strategy, plan.participation, plan.adjacency)
    noise = sigma if sigma is not None else _sigma_of(noise_multiplier, mechanism)
    method = plan.method
    if out is not None and method is None:
        # A certificate of a given sigma does not depend on samples.
        method = unsampled_method(plan.participation)
    start = time.perf_counter()
    with run.working(command, 1) as (executor, report):
        report(f"{chosen.label}: {command} at sigma {typed(noise)}")
        # First what can be refused at once.
        claim = None if out is None else _claim(plan, strategy, noise, method)
        found = _bounds(command, plan, strategy, noise, method, executor)
        report("")
    name = "eps" if command == "epsilon" else "delta"
    bounds = sensitivity(mechanism)
    row: dict[str, Any] = {
        "label": chosen.label,
        f"{name}_lower": found.lower,
        f"{name}_upper": found.upper,
        "guarantee": str(found.guarantee),
        "method": str(found.by),
        "sigma": noise,
        "sigma_use": sigma_use(mechanism),
        "sensitivity": bounds.upper,
        "noise_multiplier": noise_multiplier_of(mechanism, noise),
        "strategy": as_data(strategy),
        "seconds": round(time.perf_counter() - start, 3),
    }
    failed = None
    if out is not None and claim is not None:
        certificate = claim.certificate(clip_norm, float(plan.training.batch_size))
        failed = attempted(lambda: save_certificate(out, certificate, force=force))
        row["certificate"] = None if failed else str(out)
    eps = [found.upper] if plan.eps is None else [plan.eps]
    estimates = [] if found.guarantee.rigorous else [chosen.label]
    at_delta = found.upper if plan.delta is None else plan.delta
    notes = plan_notes(plan.training, eps, at_delta, estimates=estimates)
    # Echo the number as typed.
    echoed = {key: typed(noise) for key in ("sigma", "noise_multiplier") if row[key] is not None}
    run.answer(
        lambda: row | {"plan": plan.described()},
        lambda: sheet(_title(command, found, plan, chosen), cells_of(row | plan.described()) | echoed),
        notes=notes,
        failed=failed,
    )


def _sigma_of(given: float | None, mechanism: Mechanism) -> float:
    """Sigma from a noise multiplier, to which it is equal if the noise of all steps is i.i.d."""
    if given is None:
        raise InvalidParameterError("sigma", None, "given")
    if noise_multiplier_of(mechanism, given) is None:
        raise InvalidParameterError(
            "noise_multiplier",
            given,
            f"left out with {mechanism.strategy!r}, {sigma_use(mechanism)}; give --sigma",
        )
    return given


def _bounds(
    command: str,
    plan: ResolvedPlan,
    strategy: Strategy,
    noise: float,
    method: Method | None,
    executor: concurrent.futures.Executor | None,
) -> Bounds:
    settings: dict[str, Any] = {
        "participation": plan.participation,
        "adjacency": plan.adjacency,
        "method": method,
        "rng": plan.seed,
        "executor": executor,
    }
    if command == "epsilon" and plan.delta is not None:
        return epsilon(strategy, noise, plan.delta, **settings)
    if plan.eps is not None:
        return delta(strategy, noise, plan.eps, **settings)
    raise InvalidParameterError("eps", None, "given")


def _claim(plan: ResolvedPlan, strategy: Strategy, noise: float, method: Method | None) -> Calibration:
    return certify_sigma(
        strategy,
        noise,
        eps=plan.eps,
        delta=plan.delta,
        participation=plan.participation,
        adjacency=plan.adjacency,
        method=method,
    )


def _title(command: str, found: Bounds, plan: ResolvedPlan, chosen: ChosenStrategy) -> str:
    at = f"delta {typed(plan.delta)}" if plan.delta is not None else f"eps {typed(plan.eps or 0.0)}"
    name = "eps" if command == "epsilon" else "delta"
    return f"dpmech {command}: {chosen.label}: {name} in {between(found.lower, found.upper)} at {at}"
