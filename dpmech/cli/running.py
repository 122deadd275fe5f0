"""How every command runs: where its work is done, how far it is, and how its answer is printed.

Work is done here, in processes of this machine, or on a dask cluster.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click
from rich.console import RenderableType

from dpmech.cli.parameters import Whole
from dpmech.cli.printing import Report, document, emit, progress_bar, warn
from dpmech.exceptions import DpmechError, InvalidParameterError
from dpmech.guards import check_integer
from dpmech.numerics import MOST_WORKERS, Cluster, Workers

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Result = TypeVar("_Result")


def worker_options(command: _Command) -> _Command:
    """The options that say where."""
    options = [
        click.option(
            "--workers",
            type=Whole(1, MOST_WORKERS),
            help="Processes of this machine that share the work [1: this one].",
        ),
        click.option("--dask", help="Address of the scheduler of a running dask cluster."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@contextlib.contextmanager
def _executor(workers: int | None, dask: str | None) -> Iterator[concurrent.futures.Executor | None]:
    if workers is not None and dask is not None:
        raise InvalidParameterError("workers", workers, "left out with --dask")
    if dask is not None:
        with Cluster(dask) as cluster:
            yield cluster
    elif workers is not None and check_integer("workers", workers, minimum=1, maximum=MOST_WORKERS) > 1:
        with Workers(workers) as processes:
            yield processes
    else:
        yield None


@dataclasses.dataclass(frozen=True)
class Run:
    """One call of a command: what its options say about work and output.

    Attributes:
        command: its name in JSON documents, such as "ledger show".
        quiet: whether standard error stays empty.
        as_json: whether JSON is printed instead of text.
        workers: processes of this machine; None for this one.
        dask: address of a scheduler; None without one.
    """

    command: str
    quiet: bool
    as_json: bool
    workers: int | None = None
    dask: str | None = None

    def progress(self, title: str, total: int) -> contextlib.AbstractContextManager[Report]:
        """A bar on standard error that counts `total` tasks."""
        return progress_bar(title, total, quiet=self.quiet)

    def executor(self) -> contextlib.AbstractContextManager[concurrent.futures.Executor | None]:
        """The executor that was asked for; None where the work is done here.

        Raises:
            InvalidParameterError: on a bad number, a cluster that does not answer, or both.
        """
        return _executor(self.workers, self.dask)

    @contextlib.contextmanager
    def working(self, title: str, total: int) -> Iterator[tuple[concurrent.futures.Executor | None, Report]]:
        """Both at once."""
        with self.executor() as executor, self.progress(title, total) as report:
            yield executor, report

    def note(self, *notes: str) -> None:
        """Remarks on standard error."""
        warn(notes, quiet=self.quiet)

    def answer(
        self,
        content: Callable[[], dict[str, Any]],
        text: Callable[[], Iterable[RenderableType]],
        *,
        notes: Sequence[str] | None = None,
        failed: DpmechError | None = None,
    ) -> None:
        """Print what was found: notes on standard error, then JSON or text.

        Args:
            content: makes the content of the JSON document, where that is printed.
            text: makes the parts of the text, where that is printed.
            notes: stand in the JSON document too; None for a command that has none.
            failed: a file that could not be written, told after what was computed.

        Raises:
            DpmechError: that one.
        """
        self.note(*(notes or ()))
        if self.as_json:
            noted = {} if notes is None else {"notes": notes}
            emit(document(self.command, content() | noted))
        else:
            emit(*text())
        if failed is not None:
            raise failed


def runs(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command its options about work and output as one argument `run`; stands next to its function.

    Args:
        name: as `Run.command`.
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
            function(*arguments, run=Run(name, quiet, as_json, workers, dask), **given)

        return command

    return with_run


def in_order(
    executor: concurrent.futures.Executor | None,
    report: Report,
    function: Callable[..., _Result],
    calls: Sequence[tuple[Any, ...]],
) -> Iterator[_Result]:
    """The result of every call, as soon as those before it are there.

    With an executor each of several calls is one task of it, without a report; a single one runs here, and
    spreads its samples over the executor.

    Args:
        executor: or None.
        report: told what goes on.
        function: called as `function(*call, executor=..., report=...)`.
        calls: its arguments.
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
    """The report of what runs elsewhere."""
    del line
