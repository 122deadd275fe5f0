"""What every command prints with: numbers, progress, notes, and a standard output that may go away."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from dpmech.cli.words import plain
from dpmech.exceptions import DpmechError
from dpmech.free_text import on_one_line, printable, without_commands
from dpmech.numerics import down, typed, up

__all__ = ["OutputError", "Report", "emit", "progress_bar", "shown", "signed_percent", "warn", "width"]

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
