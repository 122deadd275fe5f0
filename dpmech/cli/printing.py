"""Output of commands: numbers, tables that fit the terminal, progress, and JSON documents."""

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
import threading
import time
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

# Version of all documents and of their schema file. Removing a field or changing its meaning increases it.
VERSION = 1


def document(command: str, content: dict[str, Any]) -> str:
    """The text of a document.

    Args:
        command: the command that printed it, such as "calibrate" or "ledger show".
        content: everything but the schema.
    """
    head = {"schema": {"name": f"dpmech {command}", "version": VERSION}}
    return in_a_log(json.dumps(head | content, indent=2, allow_nan=False))


def in_a_log(text: str) -> str:
    """Equivalent JSON in which the runner of a CI server finds no command.

    Outside strings, no two number signs are adjacent and no line begins with two colons.
    """
    return re.sub("#(?=#)", r"\\u0023", text)


# Width of a column's frame: a border and two spaces.
_FRAME = 3


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: key of its cells.
        name: its header.
        text: whether it contains words: left-aligned, and below the table if they do not fit.
        fixed: whether every part of a split table repeats it, like the names of rows.
    """

    key: str
    name: str
    text: bool = False
    fixed: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """The cells of a row by the keys of their columns, and its style."""

    cells: dict[str, str]
    style: str | None = None


def stacked(
    columns: Sequence[Column], rows: Sequence[Row], width: int, *, title: str = "", caption: str = ""
) -> list[RenderableType]:
    """One table if it fits, otherwise several below each other.

    Args:
        columns: columns in order.
        rows: rows in order.
        width: available width in characters.
        title: title above the first table.
        caption: caption below the last table.

    Returns:
        The parts to print, in order.
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
    """The fewest fixed columns that distinguish the rows."""
    for count in range(1, len(fixed)):
        if len({tuple(_cell(one, row) for one in fixed[:count]) for row in rows}) == len(rows):
            return fixed[:count]
    return fixed


def _words(column: Column, names: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """The distinct texts of a column, each with its rows; the most frequent comes last."""
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
    """Names and values, one per line."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in cells.items():
        table.add_row(name, escape(on_one_line(value)))
    return [Text(on_one_line(title), style="bold"), table]


# Reports one line about the current task; "" reports that it is done.
Report = Callable[[str], None]

# Width for a pipe of unknown width: rows stay on one line.
_PIPE_WIDTH = 220

# Keys not rounded up: typed, measured or already rounded ones; and lower ends, which are rounded down.
_TYPED = {"eps", "delta", "clip_norm", "momentum", "published_rmse", "seconds", "times_less_rmse"}
_LOWER = {"eps_lower", "delta_lower"}


class OutputError(DpmechError):
    """Standard output cannot be written.

    Args:
        reason: why not.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"standard output cannot be written: {reason}")


def shown(key: str, value: Any) -> str:  # noqa: ANN401 - any cell
    """A cell of a table, rounded conservatively: up, unless the key says otherwise; "" for None."""
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
    """A deviation in per cent with its sign, rounded to nearest; zero is never negative.

    Examples:
        >>> signed_percent(-1e-9, 2), signed_percent(-0.0123, 2)
        ('+0.00 %', '-1.23 %')
    """
    # Adding zero makes a negative zero positive.
    return f"{round(100.0 * share, places) + 0.0:+.{places}f} %"


def width() -> int:
    """Width of standard output in columns: of the terminal, from COLUMNS, or large for a pipe."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    return Console().width if sys.stdout.isatty() else _PIPE_WIDTH


def emit(*parts: RenderableType, commands: bool = False) -> None:
    """Print to standard output; a reader that has closed the pipe, such as `head -1`, is not an error.

    The exit code then stays that of the result. Any other failure to write, such as a full disk or a closed
    output, is an error, since the result is lost.

    Args:
        parts: parts in order. Names and other text from files appear in them on one line each.
        commands: whether lines may be commands to the runner of a CI server; all other output must not.

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
            # Not wrapped: terminals wrap lines themselves, and searches find unwrapped lines.
            target.write(f"{printable(part)}\n")
        else:
            console.print(Text(printable(part.plain), part.style) if isinstance(part, Text) else part)
    text = "\n".join(line.rstrip() for line in target.getvalue().split("\n"))
    try:
        click.echo(text if commands else without_commands(text), nl=False)
        sys.stdout.flush()
    except OSError as error:
        # Otherwise flushing the buffer would fail again when Python exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(error.strerror or str(error)) from error


@contextlib.contextmanager
def progress_bar(title: str, total: int, *, quiet: bool = False) -> Iterator[Report]:
    """A bar on standard error that counts `total` tasks and disappears at the end; none with `quiet`.

    Where standard error is no terminal, such as a log, a line a minute says what is being done.
    """
    if not quiet and sys.stderr is not None and not sys.stderr.isatty():
        with _lines_of_progress(title, total) as report:
            yield report
        return
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


# Seconds between two lines where there is no terminal.
_EVERY = 60.0


@contextlib.contextmanager
def _lines_of_progress(title: str, total: int) -> Iterator[Report]:
    """A line a minute on standard error, also while nothing is reported."""
    start, done, doing = time.monotonic(), 0, ""
    ended = threading.Event()

    def report(line: str) -> None:
        nonlocal done, doing
        done, doing = (done, line) if line else (done + 1, doing)

    def told() -> None:
        while not ended.wait(_EVERY):
            minutes = (time.monotonic() - start) / 60.0
            what = f": {on_one_line(plain(doing))}" if doing else ""
            line = f"dpmech: {title}, {minutes:.0f} min, {done} of {total} done{what}"
            with contextlib.suppress(OSError, ValueError):  # nobody reads it
                click.echo(line, err=True)

    thread = threading.Thread(target=told, name="dpmech progress", daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()


def warn(notes: Sequence[str], *, quiet: bool = False) -> None:
    """Print notes about a plan to standard error, so that standard output contains the result only."""
    if not quiet:
        for note in notes:
            click.echo(f"dpmech: note: {on_one_line(plain(note))}", err=True)
