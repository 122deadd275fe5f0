"""`dpmech audit`: claims beside certified numbers."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from dpmech.auditing import Finding, PublishedClaim
from dpmech.auditing import audit as audit_claims
from dpmech.cli.printing import console, progress_bar, refuse
from dpmech.exceptions import DpmechError
from dpmech.numerics import typed, up
from dpmech.plans import METHODS, read_claims

__all__ = ["audit"]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--method", type=click.Choice(list(METHODS)), help="Accountant [the best valid one].")
@click.option("--seed", type=int, help="Seed of randomised methods [operating system entropy].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def audit(files: tuple[Path, ...], method: str | None, seed: int | None, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Set claims, published or your own, beside what is certified.

    Exit code 1 if a claim is under-stated, or could not be shown to hold.
    """
    try:
        claims = [claim for file in files for claim in read_claims(file)]
        findings = _audited(claims, method, seed)
    except DpmechError as error:
        refuse(error)
    if as_json:
        failed = sum(not finding.passed for finding in findings)
        record = {"claims": [_record(finding) for finding in findings], "failed": failed}
        click.echo(json.dumps(record, indent=2))
    else:
        output = console()
        output.print(_table(findings))
        for note, names in _notes(findings).items():
            output.print(f"[bold]{', '.join(names)}[/bold]: {note}", highlight=False)
    sys.exit(0 if all(finding.passed for finding in findings) else 1)


def _audited(claims: list[PublishedClaim], method: str | None, seed: int | None) -> list[Finding]:
    with progress_bar("auditing", total=len(claims)) as report:

        def step(claim: PublishedClaim) -> None:
            report(claim.name)
            report("")

        return audit_claims(
            claims, method=None if method is None else METHODS[method], rng=seed, progress=step
        )


def _record(finding: Finding) -> dict[str, Any]:
    claim, certified = finding.claim, finding.certified
    return {
        "name": claim.name,
        "strategy": repr(claim.strategy),
        "participation": repr(claim.participation),
        "steps": claim.strategy.n,
        "adjacency": claim.adjacency.value,
        "sigma": claim.sigma,
        "blocks": claim.blocks,
        "joint_sigma": claim.joint_sigma,
        "delta": claim.delta,
        "claimed_eps": claim.claimed_eps,
        "rounding": claim.rounding,
        "eps_lower": None if certified is None else certified.lower,
        "eps_upper": None if certified is None else certified.upper,
        "method": None if certified is None else str(certified.by),
        "error": None if certified is None else certified.guarantee.error,
        "ratio": None if math.isnan(finding.ratio) else finding.ratio,
        "verdict": finding.verdict,
        "recorded_eps": claim.recorded_eps,
        "on_record": finding.on_record,
        "note": claim.note,
        "reason": finding.reason,
    }


def _table(findings: list[Finding]) -> Table:
    failed = sum(not finding.passed for finding in findings)
    title = f"{len(findings)} claims, {failed} not shown to hold"
    table = Table(
        title=title, title_justify="left", caption="certified: an upper bound, blocks joined per lot"
    )
    for column in ("claim", "sigma", "blocks", "delta", "claimed eps", "certified eps", "ratio"):
        table.add_column(column, justify="left" if column == "claim" else "right")
    table.add_column("verdict")
    for finding in findings:
        claim, certified = finding.claim, finding.certified
        recorded = claim.recorded_eps
        off = "" if finding.on_record or recorded is None else f" (on record: {typed(recorded)})"
        table.add_row(
            escape(claim.name),
            typed(claim.sigma),
            str(claim.blocks),
            typed(claim.delta),
            typed(claim.claimed_eps),
            "" if certified is None else up(certified.upper, 4),
            "" if certified is None else up(finding.ratio, 3),
            finding.verdict + off,
            style=None if finding.passed else "bold red",
        )
    return table


def _notes(findings: list[Finding]) -> dict[str, list[str]]:
    """Every note once, with the claims that it speaks of."""
    notes: dict[str, list[str]] = {}
    for finding in findings:
        for text in filter(None, (finding.claim.note, finding.reason)):
            names = notes.setdefault(escape(text), [])
            if escape(finding.claim.name) not in names:
                names.append(escape(finding.claim.name))
    return notes
