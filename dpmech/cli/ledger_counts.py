"""`dpmech ledger add-counts`: counts with discrete Gaussian noise, entered beside certified releases."""

import contextlib
from fractions import Fraction
from pathlib import Path

import click

from dpmech.cli.commands import Command
from dpmech.cli.documents import document
from dpmech.cli.files import read_ledger
from dpmech.cli.ledger_text import ledger_record, ledger_text
from dpmech.cli.options import output_options
from dpmech.cli.parameters import OneOf, Whole
from dpmech.cli.printing import emit
from dpmech.cli.words import MissingOptionsError
from dpmech.composition import Ledger, locked
from dpmech.engines import DiscreteGaussian
from dpmech.exceptions import InvalidParameterError
from dpmech.free_text import on_one_line
from dpmech.mechanism import Adjacency, Unit

__all__ = ["add_counts"]


@click.command(
    name="add-counts",
    cls=Command,
    short_help="Enter counts with integer noise, before they are drawn.",
    examples=[
        "dpmech ledger add-counts ledger.json --name classes --sigma 20 --releases 3 --new",
        "dpmech ledger add-counts ledger.json --name cities --sigma 81/2 --sensitivity 3 --close",
    ],
    absent=dict.fromkeys(
        ("--eps", "--delta", "--currency"),
        "counts go into announced lists; a budget's currencies have no price for them",
    ),
)
@click.option("--name", help="Of the release, new in this ledger. [required]")
@click.argument("path", metavar="LEDGER", type=click.Path(path_type=Path))
@click.option("--sigma", help="Scale of the noise, a number or a fraction such as 81/2. [required]")
@click.option(
    "--sensitivity", type=Whole(1, 10**9), default=1, help="By how much one unit changes one integer [1]."
)
@click.option("--releases", type=Whole(1, 10**9), default=1, help="How many integers one unit changes [1].")
@click.option(
    "--unit", type=OneOf(("example", "user")), default="example", help="Whose presence is hidden [example]."
)
@click.option("--close", is_flag=True, help="Nothing more may be added: an announced list is complete.")
@click.option("--new", is_flag=True, help="Start the ledger, an announced list.")
@click.option(
    "--adjacency",
    type=OneOf(tuple(one.value for one in Adjacency)),
    help="With --new: what neighbours are [add_remove].",
)
@output_options
def add_counts(
    path: Path,
    *,
    name: str | None,
    sigma: str | None,
    sensitivity: int,
    releases: int,
    unit: str,
    close: bool,
    new: bool,
    adjacency: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Enter counts into an announced ledger, before the first of them is drawn.

    Their noise is `dpmech.drawing.discrete_gaussian`. Each may depend on the results before.
    """
    del quiet  # there is nothing on standard error
    if name is None or sigma is None:
        raise MissingOptionsError(["name" if name is None else "sigma"])
    if adjacency is not None and not new:
        raise InvalidParameterError("adjacency", adjacency, "left out without --new: the ledger says it")
    with locked(path) if path.parent.is_dir() else contextlib.nullcontext():
        if path.exists() == new:
            accepted = "a new file with --new" if new else "a ledger that exists, or --new"
            raise InvalidParameterError("path", str(path), accepted)
        neighbours = Adjacency.ADD_REMOVE if adjacency is None else Adjacency(adjacency)
        book = Ledger(neighbours) if new else read_ledger(path)
        book.add_counts(
            name, DiscreteGaussian(_fraction(sigma), sensitivity, releases, book.adjacency, Unit(unit))
        )
        if close:
            book.close()
        book.save(path)
    record = {"path": str(path), "ledger": ledger_record(book)}
    told = (
        [document("ledger add-counts", record)]
        if as_json
        else [on_one_line(f"{path}: {name} entered"), *ledger_text(book)]
    )
    emit(*told)


def _fraction(text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InvalidParameterError("sigma", text, "a number or a fraction such as 81/2") from None
