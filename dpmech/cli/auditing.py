"""`dpmech audit`: claims compared with certified numbers."""

import math
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from dpmech.audits import Finding, PublishedClaim, Shuffled
from dpmech.audits import audit as audit_claims
from dpmech.cli.commands import Command, Refusal, plain
from dpmech.cli.options import output_options, seed_option
from dpmech.cli.parameters import OneOf
from dpmech.cli.printing import Column, Row, stacked, width
from dpmech.cli.results import as_data
from dpmech.cli.running import Run, runs
from dpmech.files import on_one_line
from dpmech.numerics import down, typed, up
from dpmech.plans import METHODS, published_claims, read_claims


@click.command(cls=Command, examples=["dpmech audit claims.toml", "dpmech audit --published noise_share"])
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "--published",
    type=OneOf(published_claims),
    multiple=True,
    help="Tables of a published paper that are included in dpmech. Repeatable.",
)
@click.option("--method", type=OneOf(METHODS), help="Accountant [the best valid one].")
@seed_option
@output_options
@click.pass_context
@runs("audit")
def audit(
    ctx: click.Context,
    *,
    run: Run,
    files: tuple[Path, ...],
    published: tuple[str, ...],
    method: str | None,
    seed: int | None,
) -> None:
    """Compare privacy claims with certified numbers.

    FILE is a TOML file of [[claim]] tables, of published claims or your own. Exit code 1 if a claim is
    under-stated, or could not be shown to hold.
    """
    if not files and not published:
        raise Refusal(f"missing: FILE... or --published, one of {', '.join(published_claims())}", ctx)
    known = published_claims()
    claims = [claim for file in (*files, *map(known.__getitem__, published)) for claim in read_claims(file)]
    findings = _audited(claims, method, seed, run)
    failed = sum(not finding.passed for finding in findings)
    notes = [on_one_line(f"{', '.join(names)}: {note}") for note, names in _notes(findings).items()]
    run.answer(
        lambda: {"claims": [_record(finding) for finding in findings], "failed": failed},
        lambda: [*_table(findings), *notes],
    )
    ctx.exit(1 if failed else 0)


def _audited(claims: list[PublishedClaim], method: str | None, seed: int | None, run: Run) -> list[Finding]:
    with run.progress("auditing", len(claims)) as report:

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
        "strategy": as_data(claim.strategy),
        "participation": claim.participation.to_dict(),
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


_COLUMNS = (
    Column("claim", "claim", fixed=True),
    *(
        Column(name, name)
        for name in ("sigma", "blocks", "delta", "claimed eps", "certified eps", "ratio", "verdict")
    ),
)


def _table(findings: list[Finding]) -> list[RenderableType]:
    failed = sum(not finding.passed for finding in findings)
    rows = []
    for finding in findings:
        claim = finding.claim
        recorded = claim.recorded_eps
        off = "" if finding.on_record or recorded is None else f" (on record: {typed(recorded)})"
        cells = {
            "claim": claim.name,
            "sigma": typed(claim.sigma),
            "blocks": str(claim.blocks),
            "delta": typed(claim.delta),
            "claimed eps": typed(claim.claimed_eps),
            "certified eps": _certified(finding),
            "ratio": _ratio(finding),
            "verdict": finding.verdict + off,
        }
        rows.append(Row(cells, None if finding.passed else "bold red"))
    return stacked(
        _COLUMNS,
        rows,
        width(),
        title=f"{len(findings)} claims, {failed} not shown to hold",
        caption="certified: an upper bound, of shuffled batches both; blocks joined per batch",
    )


def _certified(finding: Finding) -> str:
    """The upper end; for shuffled batches both ends, which may be far apart."""
    if finding.certified is None:
        return ""
    least = f"{down(finding.certified.lower, 4)} to " if _shuffled(finding) else ""
    return least + up(finding.certified.upper, 4)


def _ratio(finding: Finding) -> str:
    if finding.certified is None:
        return ""
    least = finding.certified.lower / finding.claim.claimed_eps
    return (f"{down(least, 3)} to " if _shuffled(finding) else "") + up(finding.ratio, 3)


def _shuffled(finding: Finding) -> bool:
    return isinstance(finding.claim.participation, Shuffled)


def _notes(findings: list[Finding]) -> dict[str, list[str]]:
    """Every note once, with the claims that it applies to."""
    notes: dict[str, list[str]] = {}
    for finding in findings:
        for text in filter(None, (finding.claim.note, finding.reason, _of_shuffling(finding))):
            names = notes.setdefault(plain(text), [])
            if finding.claim.name not in names:
                names.append(finding.claim.name)
    return notes


def _of_shuffling(finding: Finding) -> str:
    """Explanation of the two ends of a shuffled claim."""
    certified = finding.certified
    if certified is None or not _shuffled(finding):
        return ""
    return (
        f"{finding.claim.participation}: some data have eps of at least {down(certified.lower, 4)}, "
        f"and no data of more than {up(certified.upper, 4)}"
    )
