"""What every command prints with: numbers, tables, progress, and refusals of bad input."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dpmech.exceptions import DpmechError

__all__ = ["console", "progress_bar", "refuse", "shown"]

# Reports one line about the task at hand; "" says that it is done.
Report = Callable[[str], None]


def shown(value: Any) -> str:  # noqa: ANN401 - any cell
    """A cell of a table."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def console() -> Console:
    """Standard output. A pipe has no width of its own: do not fold tables there."""
    return Console() if sys.stdout.isatty() else Console(width=140)


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


def refuse(error: DpmechError) -> NoReturn:
    """End with exit code 2 and the message, and nothing on standard output."""
    click.echo(f"dpmech: {error}", err=True)
    sys.exit(2)
