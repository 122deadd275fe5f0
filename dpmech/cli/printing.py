"""What commands print: numbers, tables that fit the reader's width, progress, and JSON documents."""

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dpmech.cli.commands import plain
from dpmech.exceptions import DpmechError
from dpmech.files import on_one_line, printable, without_commands
from dpmech.numerics import down, typed, up

# Of all documents, and in the name of the file of their schema. A field that goes, or means something else,
# makes the next one.
VERSION = 1


def document(command: str, content: dict[str, Any]) -> str:
    """The text of a document.

    Args:
        command: which printed it, such as "calibrate" or "ledger show".
        content: everything but the schema.
    """
    head = {"schema": {"name": f"dpmech {command}", "version": VERSION}}
    return in_a_log(json.dumps(head | content, indent=2, allow_nan=False))


def in_a_log(text: str) -> str:
    """JSON that says the same, and in which the runner of a CI server finds no command.

    Outside of strings no two marks follow each other, and no line begins with two colons.
    """
    return re.sub("#(?=#)", r"\\u0023", text)


# Of a column beside its text: a border and two spaces.
_FRAME = 3


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: of its cells.
        name: above it.
        text: whether it holds words: on the left, and below the table where they do not fit.
        fixed: whether every part of a table has it, as the names of rows.
    """

    key: str
    name: str
    text: bool = False
    fixed: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """The cells of a row by the keys of their columns, and how it is set off."""

    cells: dict[str, str]
    style: str | None = None


def stacked(
    columns: Sequence[Column], rows: Sequence[Row], width: int, *, title: str = "", caption: str = ""
) -> list[RenderableType]:
    """One table where it fits, else as many below each other as it takes.

    Args:
        columns: in their order.
        rows: in their order.
        width: of the reader, in characters.
        title: above the first.
        caption: below the last.

    Returns:
        What to print, in turn.
    """
    needed = {one.key: _FRAME + max(len(_cell(one, row)) for row in (None, *rows)) for one in columns}
    below: list[Column] = []
    if 1 + sum(needed.values()) > width:
        below = [one for one in columns if one.text and not one.fixed]
    fixed = [one for one in columns if one.fixed]
    names = _naming(fixed, rows)
    room = width - 1 - sum(needed[one.key] for one in names)
    parts: list[list[Column]] = [[]]
    left = width - 1 - sum(needed[one.key] for one in fixed)
    for one in columns:
        if one.fixed or one in below:
            continue
        if parts[-1] and needed[one.key] > left:
            parts.append([])
            left = room
        parts[-1].append(one)
        left -= needed[one.key]
    printed: list[RenderableType] = [Text(title, style="bold")] if title else []
    printed += [_table([*(names if number else fixed), *part], rows) for number, part in enumerate(parts)]
    printed += [Text(line) for one in below for line in _words(one, names, rows)]
    return [*printed, Text(caption, style="dim")] if caption else printed


def _cell(column: Column, row: Row | None) -> str:
    return column.name if row is None else on_one_line(row.cells.get(column.key, ""))


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    table = Table()
    for one in columns:
        table.add_column(one.name, justify="left" if one.text or one.fixed else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(one, row)) for one in columns), style=row.style)
    return table


def _naming(fixed: Sequence[Column], rows: Sequence[Row]) -> Sequence[Column]:
    """As many of the fixed columns as tell the rows apart."""
    for count in range(1, len(fixed)):
        if len({tuple(_cell(one, row) for one in fixed[:count]) for row in rows}) == len(rows):
            return fixed[:count]
    return fixed


def _words(column: Column, names: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """What a column of words says, each once, with the rows that it says it of; what most say comes last."""
    said: dict[str, list[str]] = {}
    for row in rows:
        if text := _cell(column, row):
            name = " under ".join(filter(None, (_cell(one, row) for one in names)))
            said.setdefault(text, []).append(name)
    complete = sum(map(len, said.values())) == len(rows)
    if len(said) == 1 and complete:
        return [f"{column.name}: {next(iter(said))}"]
    ordered = sorted(said.items(), key=lambda item: len(item[1]))
    lines = [f"{column.name} of {', '.join(of)}: {text}" for text, of in ordered]
    if complete and len(ordered[-1][1]) > 1:
        lines[-1] = f"{column.name} of all others: {ordered[-1][0]}"
    return lines


def sheet(title: str, cells: dict[str, str]) -> list[RenderableType]:
    """Names and values, one a line."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in cells.items():
        table.add_row(name, escape(on_one_line(value)))
    return [Text(on_one_line(title), style="bold"), table]


# Reports one line about the task at hand; "" says that it is done.
Report = Callable[[str], None]

# Of a pipe that does not say how wide its reader is: rows stay on one line.
_PIPE_WIDTH = 220

# What was typed, measured, or is rounded already; and what is safe only if it is not above the truth.
_TYPED = {"eps", "delta", "published_rmse", "seconds", "times_less_rmse"}
_LOWER = {"eps_lower", "delta_lower"}


class OutputError(DpmechError):
    """Standard output takes nothing.

    Args:
        reason: why not.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"standard output cannot be written: {reason}")


def shown(key: str, value: Any) -> str:  # noqa: ANN401 - any cell
    """A cell of a table: numbers on the safe side, up unless the key says otherwise; "" for None."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(shown(key, one) for one in value)
    if not isinstance(value, float):
        return plain(str(value))
    if key in _TYPED:
        return typed(value)
    return down(value) if key in _LOWER else up(value)


def signed_percent(share: float, places: int) -> str:
    """A deviation in per cent, to nearest, with its sign; zero has none that is negative.

    Examples:
        >>> signed_percent(-1e-9, 2), signed_percent(-0.0123, 2)
        ('+0.00 %', '-1.23 %')
    """
    # Adding zero makes a negative one positive.
    return f"{round(100.0 * share, places) + 0.0:+.{places}f} %"


def width() -> int:
    """How many columns standard output has: of the terminal, of COLUMNS, or plenty in a pipe."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    return Console().width if sys.stdout.isatty() else _PIPE_WIDTH


def emit(*parts: RenderableType, commands: bool = False) -> None:
    """Print to standard output; where its reader has gone, as `head -1` does, that is no error.

    The exit code stays that of what was found out. Any other output that takes nothing, such as a full
    disk or a closed one, is an error: what was found out is lost.

    Args:
        parts: in turn. Names and other text out of files stand in them on one line each.
        commands: whether lines may be commands to the runner of a CI server, as nothing else that is printed.

    Raises:
        OutputError: if standard output is closed, or cannot be written.
    """
    if sys.stdout is None:
        raise OutputError("it is closed")
    target = io.StringIO()
    terminal = sys.stdout.isatty()
    console = Console(file=target, width=width(), force_terminal=terminal, legacy_windows=False)
    for part in parts:
        if isinstance(part, str):
            # As it is: a reader's terminal folds lines, and a search finds them whole.
            target.write(f"{printable(part)}\n")
        else:
            console.print(Text(printable(part.plain), part.style) if isinstance(part, Text) else part)
    text = "\n".join(line.rstrip() for line in target.getvalue().split("\n"))
    try:
        click.echo(text if commands else without_commands(text), nl=False)
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would fail again when Python ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(error.strerror or str(error)) from error


@contextlib.contextmanager
def progress_bar(title: str, total: int, *, quiet: bool = False) -> Iterator[Report]:
    """A bar on standard error that counts `total` tasks; it goes away at the end.

    There is none in a pipe, or where nobody wants to see it.
    """
    bar = Progress(
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(title, total=total)

        def report(line: str) -> None:
            if line:
                bar.update(task, description=on_one_line(line))
            else:
                bar.advance(task)

        yield report


def warn(notes: Sequence[str], *, quiet: bool = False) -> None:
    """Notes about a plan, on standard error: what standard output holds stays what was asked for."""
    if not quiet:
        for note in notes:
            click.echo(f"dpmech: note: {on_one_line(plain(note))}", err=True)
