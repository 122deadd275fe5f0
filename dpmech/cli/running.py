"""Execution of commands: where the work runs, its progress, and the output of results.

Work runs in this process, in processes of this machine, or on a dask cluster.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click
from rich.console import RenderableType

from dpmech.cli.commands import MissingOptionsError, with_options
from dpmech.cli.parameters import Whole
from dpmech.cli.printing import Report, document, emit, progress_bar, warn
from dpmech.exceptions import DpmechError, InvalidParameterError
from dpmech.guards import check_integer
from dpmech.numerics import MOST_WORKERS, Cluster, Workers

_Result = TypeVar("_Result")


# Options for where the work runs.
worker_options = with_options(
    click.option(
        "--workers",
        type=Whole(1, MOST_WORKERS),
        help="Processes of this machine that share the work [1: this one].",
    ),
    click.option("--dask", help="Address of the scheduler of a running dask cluster."),
)


@dataclasses.dataclass(frozen=True)
class Run:
    """One call of a command: its options about work and output.

    Attributes:
        command: its name in JSON documents, such as "ledger show".
        quiet: whether standard error stays empty.
        as_json: whether JSON is printed instead of text.
        workers: number of processes on this machine; None for this process.
        dask: address of a scheduler; None without a scheduler.
    """

    command: str
    quiet: bool
    as_json: bool
    workers: int | None = None
    dask: str | None = None

    def progress(self, title: str, total: int) -> contextlib.AbstractContextManager[Report]:
        """A bar on standard error that counts `total` tasks."""
        return progress_bar(title, total, quiet=self.quiet)

    @contextlib.contextmanager
    def executor(self) -> Iterator[concurrent.futures.Executor | None]:
        """The requested executor; None if the work runs in this process.

        Raises:
            InvalidParameterError: if the number is invalid, the cluster does not answer, or both are given.
        """
        workers = self.workers
        if workers is not None and self.dask is not None:
            raise InvalidParameterError("workers", workers, "left out with --dask")
        if self.dask is not None:
            with Cluster(self.dask) as cluster:
                yield cluster
        elif workers is not None and check_integer("workers", workers, minimum=1, maximum=MOST_WORKERS) > 1:
            with Workers(workers) as processes:
                yield processes
        else:
            yield None

    @contextlib.contextmanager
    def working(self, title: str, total: int) -> Iterator[tuple[concurrent.futures.Executor | None, Report]]:
        """`executor` and `progress` together."""
        with self.executor() as executor, self.progress(title, total) as report:
            yield executor, report

    def note(self, *notes: str) -> None:
        """Print remarks on standard error."""
        warn(notes, quiet=self.quiet)

    def answer(
        self,
        content: Callable[[], dict[str, Any]],
        text: Callable[[], Iterable[RenderableType]],
        *,
        notes: Sequence[str] | None = None,
        failed: DpmechError | None = None,
    ) -> None:
        """Print a result: notes on standard error, then JSON or text.

        Args:
            content: returns the content of the JSON document, called if that is printed.
            text: returns the parts of the text, called if that is printed.
            notes: also part of the JSON document; None for a command that has none.
            failed: an error from writing a file, raised after the result is printed.

        Raises:
            DpmechError: the error `failed`.
        """
        self.note(*(notes or ()))
        if self.as_json:
            noted = {} if notes is None else {"notes": notes}
            emit(document(self.command, content() | noted))
        else:
            emit(*text())
        if failed is not None:
            raise failed


def runs(name: str, *, required: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options about work and output to a command as one argument `run`; place it next to the function.

    Args:
        name: as in `Run.command`.
        required: options that have to be given; those that are not are refused together.
    """

    def with_run(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(
            *arguments: Any,  # noqa: ANN401 - click passes options by name
            quiet: bool,
            as_json: bool,
            workers: int | None = None,
            dask: str | None = None,
            **given: Any,  # noqa: ANN401 - as above
        ) -> None:
            if absent := [one for one in required if given[one] is None]:
                raise MissingOptionsError(absent)
            function(*arguments, run=Run(name, quiet, as_json, workers, dask), **given)

        return command

    return with_run


def in_order(
    executor: concurrent.futures.Executor | None,
    report: Report,
    function: Callable[..., _Result],
    calls: Sequence[tuple[Any, ...]],
) -> Iterator[_Result]:
    """Yield the result of every call, in order, as soon as it is available.

    With an executor each of several calls is one of its tasks, without a report; a single call runs here, and
    distributes its samples over the executor.

    Args:
        executor: an executor, or None.
        report: called with the progress.
        function: called as `function(*call, executor=..., report=...)`.
        calls: argument tuples.
    """
    if executor is None or len(calls) == 1:
        for call in calls:
            yield function(*call, executor=executor, report=report)
            report("")
        return
    tasks = [executor.submit(function, *call) for call in calls]
    for task in tasks:
        yield task.result()
        report("")


def silent(line: str) -> None:
    """The report for work that runs elsewhere."""
    del line
