"""The headline results of the papers and where the others are: verification/headlines.toml, as tables."""

import dataclasses
import tomllib
from pathlib import Path

PATH = Path(__file__).parents[1] / "headlines.toml"


@dataclasses.dataclass(frozen=True)
class Headline:
    """One result.

    Args:
        paper: the paper's short name.
        result: what it is, with its place.
        command: that prints it; "" if it is that of the headline before.
        takes: about how long on one core; "" likewise.
        printed: in the paper.
        here: by the command.
        table: of `verification.tables` that has it; "" if another command prints it.
        cell: its name there.
        see: the statement that says more; "" if there is nothing to say.
    """

    paper: str
    result: str
    command: str
    takes: str
    printed: str
    here: str
    table: str = ""
    cell: str = ""
    see: str = ""


def headlines(path: Path = PATH) -> list[Headline]:
    """Every headline, in the order of the file."""
    return [Headline(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["headline"]]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where some results of a paper are found.

    Args:
        paper: the paper's short name.
        result: what they are, with their places.
        here: links and commands, or what they need that is not here.
    """

    paper: str
    result: str
    here: str


def places(path: Path = PATH) -> list[Place]:
    """Every place, in the order of the file."""
    return [Place(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["place"]]


def place_rows(found: list[Place], names: dict[str, str]) -> list[str]:
    """Lines of a Markdown table, as `headline_rows`."""
    lines = ["| paper | result | here |", "|---|---|---|"]
    before = ""
    for one in found:
        lines.append(f"| {names[one.paper] if one.paper != before else ''} | {one.result} | {one.here} |")
        before = one.paper
    return lines


def headline_rows(found: list[Headline], names: dict[str, str]) -> list[str]:
    """Lines of a Markdown table; a paper's name stands in its first row only.

    Args:
        found: the headlines.
        names: the papers' names on the page, by short name.
    """
    lines = ["| paper | headline | command and duration | printed | here | see |"]
    lines.append("|---|---|---|---|---|---|")
    before = ""
    for one in found:
        command = f"`{one.command}`, {one.takes}" if one.command else "same command"
        see = f"`{one.see}`" if one.see else ""
        paper = names[one.paper] if one.paper != before else ""
        lines.append(f"| {paper} | {one.result} | {command} | {one.printed} | {one.here} | {see} |")
        before = one.paper
    return lines
