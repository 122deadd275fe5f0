"""`dpmech show`: the content of a certificate, a run record, a ledger or a strategy in plain language."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from dpmech.certificates import Certificate, Document, RunRecord, clip_norm_stated
from dpmech.cli.commands import Command, exit_after, plain
from dpmech.cli.files import read_document
from dpmech.cli.ledgers import ledger_record, ledger_text
from dpmech.cli.options import output_options
from dpmech.cli.results import as_data
from dpmech.cli.running import Run, runs
from dpmech.exceptions import DpmechError
from dpmech.files import on_one_line
from dpmech.ledgers import Ledger
from dpmech.reports import kind_of


@click.command(
    cls=Command,
    short_help="Print what a certificate, run record or ledger claims.",
    examples=["dpmech show certificate.json", "dpmech show run.json ledger.json --json"],
)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@output_options
@click.pass_context
@runs("show")
def show(ctx: click.Context, /, files: tuple[str, ...], *, run: Run) -> None:
    """Describe in plain language what a certificate, a run record or a ledger claims.

    Its checksum and derived entries are checked; `dpmech verify` decides whether the claim is true. Exit code
    1 if a file is inconsistent, 2 if one cannot be read; the others are shown in any case.
    """
    read: dict[str, Document] = {}
    refused: list[DpmechError] = []
    for file in files:
        try:
            read[file] = read_document(file)
        except DpmechError as error:
            refused.append(error)
    if read:
        run.answer(
            lambda: {"files": [{"source": file} | _record(one) for file, one in read.items()]},
            lambda: _shown(read),
        )
        run.note(f"read, not verified: dpmech verify {shlex.join(read)}")
    exit_after(ctx, refused)


def _shown(read: Mapping[str, Document]) -> Iterator[RenderableType]:
    for number, (file, one) in enumerate(read.items()):
        yield f"{chr(10) if number else ''}{on_one_line(file)}: {kind_of(one)}"
        yield from (Text(line) if isinstance(line, str) else line for line in _text(one))


def _text(one: Document) -> list[Any]:
    if isinstance(one, Ledger):
        return ledger_text(one)
    if isinstance(one, RunRecord):
        return [plain(str(one)), "under this certificate:", plain(str(one.certificate))]
    return [plain(str(one))]


def _record(one: Document) -> dict[str, Any]:
    """Plain data, with numbers in place of the decimal and hexadecimal forms of the file."""
    kind = {"kind": kind_of(one)}
    if isinstance(one, Ledger):
        return kind | {"ledger": ledger_record(one)}
    if isinstance(one, RunRecord):
        return kind | {"run": one.to_dict()["run"], "certificate": _claim(one.certificate)}
    if isinstance(one, Certificate):
        return kind | {"certificate": _claim(one)}
    raise TypeError(f"no record of a {type(one).__name__}")


def _claim(own: Certificate) -> dict[str, Any]:
    return {
        "guarantee": own.headline,
        "eps": own.budget.eps,
        "delta": own.budget.delta,
        "adjacency": own.adjacency.value,
        "unit": own.unit.value,
        "sigma": own.sigma,
        "sigma_use": own.sigma_use,
        "noise_multiplier": own.noise_multiplier,
        "sensitivity": own.sensitivity.upper,
        "eps_lower": own.achieved.lower,
        "eps_upper": own.achieved.upper,
        "method": own.method,
        "n": own.strategy.n,
        "strategy": as_data(own.strategy),
        "participation": own.participation.to_dict(),
        "clip_norm": clip_norm_stated(own.clip_norm, own.sigma),
        "expected_batch_size": own.expected_batch_size,
        "fingerprint": own.fingerprint(),
    }
