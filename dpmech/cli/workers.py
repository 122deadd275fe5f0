"""Where a command's work runs: here, in processes of this machine, or on a dask cluster."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from dpmech.cli.parameters import Whole
from dpmech.cli.printing import Report
from dpmech.exceptions import InvalidParameterError
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
def chosen_executor(workers: int | None, dask: str | None) -> Iterator[concurrent.futures.Executor | None]:
    """The executor that was asked for; None where the work is done here.

    Raises:
        InvalidParameterError: on a bad number, a cluster that does not answer, or both.
    """
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
