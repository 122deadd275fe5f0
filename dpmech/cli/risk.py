"""`dpmech risk`: what a certificate's noise means for an attacker, in words."""

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from dpmech.calibration import profile
from dpmech.certificates import Certificate
from dpmech.cli.commands import Command
from dpmech.cli.files import drawable, read_claim, save_figure
from dpmech.cli.options import output_options
from dpmech.cli.parameters import BETWEEN_0_AND_1, Real, Target
from dpmech.cli.results import attempted
from dpmech.cli.running import Run, runs, worker_options
from dpmech.engines import PrivacyProfile
from dpmech.files import on_one_line
from dpmech.numerics import Kind, typed, up
from dpmech.reports import Finding, findings, power_bounds

_WIDTH = 80
# Where a profile is drawn, each call has one of its own.
DRAWN = (
    "these rates are from random numbers drawn here: each call finds others, all of them bounds; `dpmech "
    "calibrate --with-profile` keeps one profile in the certificate, and all commands then say the same"
)
# Number of points in the figure.
_POINTS = 21


@click.command(
    cls=Command,
    short_help="Print what an attacker can learn from a run.",
    examples=[
        "dpmech risk certificate.json",
        "dpmech risk certificate.json --fpr 0.01 --prior 0.5 --tail 1e-9 --json",
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@click.option(
    "--fpr", multiple=True, type=Real(minimum=0.0, maximum=1.0), default=(0.001, 0.01, 0.1),
    show_default=True, help="False-positive rate of an attack; repeatable.",
)  # fmt: skip
@click.option(
    "--prior", multiple=True, type=Real(minimum=0.0, maximum=1.0), default=(0.5,), show_default=True,
    help="Prior probability that an example was used; repeatable.",
)  # fmt: skip
@click.option(
    "--baseline", multiple=True, type=Real(minimum=0.0, maximum=1.0), default=(1e-4,), show_default=True,
    help="Probability of guessing a record without the release; repeatable.",
)  # fmt: skip
@click.option(
    "--tail", type=BETWEEN_0_AND_1, default=1e-12,
    show_default=True, help="Tail of mu, in delta.",
)  # fmt: skip
@click.option(
    "--rel-error", type=Real(minimum=1e-3, maximum=0.5), default=0.01, show_default=True,
    help="Largest relative error of a curve between its nodes, if it needs nodes.",
)  # fmt: skip
@click.option("--figure", type=Target(drawable), help="Plot the trade-off of attacks in this file.")
@worker_options
@output_options
@runs("risk")
def risk(
    file: str,
    *,
    run: Run,
    fpr: tuple[float, ...],
    prior: tuple[float, ...],
    baseline: tuple[float, ...],
    tail: float,
    rel_error: float,
    figure: Path | None,
) -> None:
    """Describe what an attacker can learn from a run, one sentence per number.

    FILE is a certificate, or a run record, whose certificate is then used. The numbers are computed from the
    full privacy profile of its mechanism and noise; its (eps, delta) is one point of this profile. Under
    Balls-in-Bins, new samples are drawn, which takes a minute or more, unless the certificate contains the
    profile. This command does not replace `dpmech verify`. Exit code 1 if the file is inconsistent, 2 if it
    does not exist, or a number is out of range.
    """
    certificate = read_claim(file)
    total = 3 + (figure is not None) + len(fpr) + len(prior) + len(baseline)
    with run.working("risk", total) as (executor, report):
        report("privacy profile")
        known = certificate.curve or profile(
            certificate.mechanism, certificate.sigma, rel_error=rel_error, executor=executor
        )
        report("")
        found = findings(known, rates=fpr, priors=prior, baselines=baseline, tail=tail, report=report)
        failed = None
        if figure is not None:
            report("figure")
            target = figure
            failed = attempted(lambda: _draw(known, certificate, target))
            report("")
    content = {
        "certificate": file,
        "sigma": certificate.sigma,
        "eps": certificate.budget.eps,
        "delta": certificate.budget.delta,
        "adjacency": certificate.adjacency.value,
        "unit": certificate.unit.value,
        "guarantee": str(known.guarantee),
        "profile": str(known.by),
        "risk": [one.to_dict() for one in found],
    }
    if figure is not None:
        content["figure"] = None if failed else str(figure)
    run.answer(lambda: content, lambda: _sentences(file, certificate, known, found))
    if certificate.curve is None and known.guarantee.kind is Kind.PROBABLE:
        run.note(DRAWN)
    run.note(f"read, not verified: dpmech verify {shlex.quote(file)}")
    if failed is not None:
        raise failed


def _sentences(
    file: str, certificate: Certificate, known: PrivacyProfile, found: Sequence[Finding]
) -> Iterator[str]:
    budget = certificate.budget
    yield _folded(
        f"{file}: sigma {up(certificate.sigma)}, eps {typed(budget.eps)}, delta {typed(budget.delta)}, "
        f"{certificate.adjacency.value}, unit {certificate.unit.value}"
    )
    for one in found:
        yield _folded(one.words, "- ")
    yield _folded(f"Guarantee: {known.guarantee}; {known.by}.")


def _draw(known: PrivacyProfile, certificate: Certificate, path: Path) -> None:
    """Plot the attacks that the profile allows, next to those that the budget alone would allow."""
    from dpmech import plots  # matplotlib is optional

    rates = np.logspace(-5.0, 0.0, _POINTS).tolist()
    eps, delta = certificate.budget.eps, certificate.budget.delta
    lines = {
        "this run": [known.tpr(rate).upper for rate in rates],
        f"(eps, delta) = ({typed(eps)}, {typed(delta)}) only": power_bounds([(eps, delta)], rates),
    }
    title = f"{certificate.strategy!r}, {certificate.participation!r}"
    save_figure(plots.trade_off(rates, lines, title=title), path)


def _folded(text: str, mark: str = "") -> str:
    lines = textwrap.wrap(
        on_one_line(text), _WIDTH - len(mark), break_long_words=False, break_on_hyphens=False
    )
    return mark + ("\n" + " " * len(mark)).join(lines)
