"""What every command prints with: numbers, tables, progress, and refusals of bad input."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dpmech.exceptions import DpmechError
from dpmech.numerics import down, typed, up

__all__ = ["Report", "console", "progress_bar", "refuse", "shown", "warn"]

# Reports one line about the task at hand; "" says that it is done.
Report = Callable[[str], None]


# What was typed, measured, or is rounded already; and what is safe only if it is not above the truth.
_TYPED = {"eps", "delta", "published_rmse", "seconds", "times_less_rmse"}
_LOWER = {"eps_lower"}


def shown(key: str, value: Any) -> str:  # noqa: ANN401 - any cell
    """A cell of a table: numbers on the safe side, up unless the key says otherwise; "" for None."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if key in _TYPED:
        return typed(value)
    return down(value) if key in _LOWER else up(value)


def console() -> Console:
    """Standard output. A pipe has no width of its own: do not fold tables there."""
    return Console() if sys.stdout.isatty() else Console(width=220)


@contextlib.contextmanager
def progress_bar(title: str, total: int) -> Iterator[Report]:
    """A bar on standard error that counts `total` tasks."""
    bar = Progress(
        BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"), console=Console(stderr=True)
    )
    with bar:
        task = bar.add_task(title, total=total)

        def report(line: str) -> None:
            if line:
                bar.update(task, description=line)
            else:
                bar.advance(task)

        yield report


def warn(notes: Sequence[str]) -> None:
    """Notes about a plan, on standard error: what standard output holds stays what was asked for."""
    for note in notes:
        click.echo(f"dpmech: note: {note}", err=True)


def refuse(error: DpmechError) -> NoReturn:
    """End with exit code 2 and the message, and nothing on standard output."""
    click.echo(f"dpmech: {error}", err=True)
    sys.exit(2)
