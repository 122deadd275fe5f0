"""Executors for blocks of samples and for scans: local processes, or the workers of a dask cluster.

Tasks are deterministic functions of their arguments, which contain the seeds. If a process dies, another one
can repeat its work with the same result.
"""

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any, ParamSpec, TypeVar, cast

from dpmech.exceptions import InvalidParameterError, MissingDependencyError, WorkerError
from dpmech.guards import check_integer

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_CURRENT: contextvars.ContextVar[concurrent.futures.Executor | None] = contextvars.ContextVar(
    "executor", default=None
)

MOST_WORKERS = 1024
# A task whose process dies this often, with no other task completed in between, counts as the cause.
_TRIES = 5
_GIVEN_UP = (
    f'{_TRIES} processes died over one task; a script starts workers under `if __name__ == "__main__":` only'
)
# Timeout for the answer of a cluster's scheduler, in seconds.
_ANSWER = 10.0


@dataclasses.dataclass
class _Task:
    """Work with one result, even if it is started several times."""

    work: Callable[[], Any]
    outer: concurrent.futures.Future[Any]
    tries: int = 0
    # Number of completed tasks at the last attempt.
    done_before: int = 0


class Workers(concurrent.futures.Executor):
    """Local processes; if one dies, its tasks are repeated by others.

    The processes start with the first task. A script that uses them must do its work under
    `if __name__ == "__main__":`, as for any module of the standard library that starts processes.

    Args:
        count: number of processes, in [1, 1024].

    Raises:
        InvalidParameterError: if the count is invalid.

    Examples:
        >>> import dpmech as dm
        >>> with dm.Workers(2) as workers:  # doctest: +SKIP
        ...     dm.calibrate_sigma(strategy, 8.0, 1e-5, participation=dm.BallsInBins(390), executor=workers)
    """

    def __init__(self, count: int) -> None:
        self.count = check_integer("count", count, minimum=1, maximum=MOST_WORKERS)
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._open = True
        self._given_up = False
        self._under_way = 0
        self._done = 0
        # Guards the five attributes above; notified when a task ends.
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"Workers({self.count})"

    def submit(
        self, fn: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> concurrent.futures.Future[_Result]:
        """Start `fn(*args, **kwargs)` in one of the processes; function and arguments must be picklable.

        Raises:
            RuntimeError: after `shutdown`, as for any executor.
        """
        task = _Task(functools.partial(fn, *args, **kwargs), concurrent.futures.Future())
        with self._changed:
            if not self._open:
                raise RuntimeError("these workers were shut down")
            self._under_way += 1
            task.done_before = self._done
        task.outer.set_running_or_notify_cancel()
        self._start(task)
        return task.outer

    def __exit__(self, kind: type[BaseException] | None, *told: object) -> None:
        """Shut down; waiting tasks are cancelled if the block was left by an error, such as Ctrl-C."""
        self.shutdown(cancel_futures=kind is not None)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - of Executor
        """Accept no more tasks and end the processes; see `concurrent.futures.Executor.shutdown`."""
        with self._changed:
            self._open = False
            self._given_up = self._given_up or cancel_futures
            pool = self._pool
        if cancel_futures and pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: self._under_way == 0)
        with self._changed:
            pool, self._pool = self._pool, None
        if pool is not None:
            # Repeated with this call's `wait`: the pool may not have acted on the first shutdown yet.
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _start(self, task: _Task) -> None:
        """Submit a task to the pool, creating one if there is none; any failure is reported to the task."""
        try:
            while True:
                pool = self._ready()
                try:
                    inner = pool.submit(task.work)
                except BrokenProcessPool:
                    self._drop(pool)
                    continue
                inner.add_done_callback(functools.partial(self._ended, task, pool))
                return
        except BaseException as error:  # noqa: BLE001 - a task with waiters must end in any case
            self._finish(task, error=error)

    def _ended(
        self, task: _Task, pool: concurrent.futures.ProcessPoolExecutor, inner: concurrent.futures.Future[Any]
    ) -> None:
        if inner.cancelled():
            self._finish(task, error=concurrent.futures.CancelledError())
            return
        error = inner.exception()
        if not isinstance(error, BrokenProcessPool):
            with self._changed:
                self._done += 1
            self._finish(task, error=error, result=None if error is not None else inner.result())
            return
        # Since Python 3.12 a broken pool calls back with its lock held, which every use of the pool needs:
        # this thread must return first.
        again = threading.Thread(target=self._again, args=(task, pool))
        try:
            again.start()
        except RuntimeError as failure:  # at interpreter shutdown
            self._finish(task, error=failure)

    def _again(self, task: _Task, pool: concurrent.futures.ProcessPoolExecutor) -> None:
        """Restart a task whose process died, or give it up."""
        self._drop(pool)
        with self._changed:
            given_up = self._given_up
            # All tasks of a pool are lost with it, whichever task caused the death.
            task.tries = task.tries + 1 if task.done_before == self._done else 1
            task.done_before = self._done
        if given_up:
            self._finish(task, error=concurrent.futures.CancelledError())
        elif task.tries < _TRIES:
            self._start(task)
        else:
            self._finish(task, error=WorkerError(_GIVEN_UP, self))

    def _finish(self, task: _Task, *, error: BaseException | None, result: object = None) -> None:
        if error is not None:
            task.outer.set_exception(error)
        else:
            task.outer.set_result(result)
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def _ready(self) -> concurrent.futures.ProcessPoolExecutor:
        with self._changed:
            if self._pool is None:
                # Not fork: a process with threads cannot be forked safely.
                self._pool = concurrent.futures.ProcessPoolExecutor(
                    self.count, mp_context=multiprocessing.get_context("spawn")
                )
            return self._pool

    def _drop(self, pool: concurrent.futures.ProcessPoolExecutor) -> None:
        with self._changed:
            if self._pool is pool:
                self._pool = None
        pool.shutdown(wait=False)


class Cluster(concurrent.futures.Executor):
    """The workers of a running Dask cluster, which repeats lost work itself.

    Args:
        address: of its scheduler, such as "tcp://10.0.0.1:8786".

    Raises:
        MissingDependencyError: if dask's `distributed` is not installed.
        InvalidParameterError: if no scheduler answers at the address.

    Example:
        A scheduler must be running at the address.

        >>> import dpmech as dm
        >>> with dm.Cluster("tcp://10.0.0.1:8786") as cluster:  # doctest: +SKIP
        ...     bins = dm.BallsInBins(390)
        ...     dm.calibrate_sigma(dm.LambdaCGD(3900, 0.9), 1.0, 1e-5, participation=bins, executor=cluster)
    """

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError as error:
            raise MissingDependencyError("distributed", "dask") from error
        self.address = address
        connect: Any = distributed.Client  # `distributed` is untyped
        try:
            self._client: Any = connect(address, timeout=_ANSWER, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise InvalidParameterError(
                "dask", address, f"the address of a running dask scheduler ({error})"
            ) from error
        self._executor: concurrent.futures.Executor = self._client.get_executor(pure=False)

    def __repr__(self) -> str:
        return f"Cluster({self.address!r})"

    def submit(
        self, fn: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> concurrent.futures.Future[_Result]:
        """Start `fn(*args, **kwargs)` on the cluster; losing the cluster raises WorkerError in the future."""
        outer: concurrent.futures.Future[_Result] = concurrent.futures.Future()
        outer.set_running_or_notify_cancel()
        inner = self._executor.submit(fn, *args, **kwargs)
        inner.add_done_callback(lambda ended: self._ended(outer, ended))
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - of Executor
        """Disconnect from the cluster, which keeps running."""
        if cancel_futures or not wait:
            # Dask drops tasks that no client waits for.
            self._client.close()
            return
        self._executor.shutdown(wait=True)
        self._client.close()

    def _ended(
        self, outer: concurrent.futures.Future[_Result], inner: concurrent.futures.Future[_Result]
    ) -> None:
        error = concurrent.futures.CancelledError() if inner.cancelled() else inner.exception()
        if error is None:
            outer.set_result(inner.result())
        elif isinstance(error, concurrent.futures.CancelledError | OSError) or _of_cluster(error):
            outer.set_exception(WorkerError(f"the cluster lost the work ({error!r})", self))
        else:
            outer.set_exception(error)


def _of_cluster(error: BaseException) -> bool:
    """Whether an error comes from the cluster and not from the function."""
    return type(error).__module__.partition(".")[0] == "distributed"


@contextlib.contextmanager
def running_on(executor: concurrent.futures.Executor | None) -> Iterator[None]:
    """Send the blocks of samples that are drawn in this context to an executor; None has no effect.

    Raises:
        InvalidParameterError: if `executor` is not an executor.
    """
    if check_executor(executor) is None:
        yield
        return
    before = _CURRENT.set(executor)
    try:
        yield
    finally:
        _CURRENT.reset(before)


def current_executor() -> concurrent.futures.Executor | None:
    """The executor of the innermost `running_on`, or None."""
    return _CURRENT.get()


def check_executor(value: object) -> concurrent.futures.Executor | None:
    """Return `value` if it is None or has the methods of an executor, else raise InvalidParameterError."""
    if value is None or isinstance(value, concurrent.futures.Executor):
        return value
    if callable(getattr(value, "submit", None)) and callable(getattr(value, "map", None)):
        return cast("concurrent.futures.Executor", value)
    raise InvalidParameterError("executor", value, "None or a concurrent.futures.Executor")
