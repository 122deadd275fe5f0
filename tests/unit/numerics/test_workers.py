"""Executors that outlive their processes: every task ends, once, with what it would have given anyway."""

import concurrent.futures
import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
from concurrent.futures.process import _ExecutorManagerThread

import pytest

import dpmech as dm
from dpmech import exceptions
from dpmech.numerics import check_executor, current_executor, running_on

SAMPLED = {"participation": dm.BallsInBins(4), "rng": 5}
STRATEGY = dm.LambdaCGD(12, 0.5)


@pytest.fixture(scope="module")
def workers():
    with dm.Workers(2) as pool:
        yield pool


def slowly(value):
    time.sleep(0.2)
    return value


def refused():
    raise dm.InvalidParameterError("n", 0, "at least 1")


def test_results_come_in_order_and_errors_come_back_whole(workers):
    assert list(workers.map(math.sqrt, [4.0, 9.0, 16.0])) == [2.0, 3.0, 4.0]
    assert workers.submit(divmod, 7, 2).result() == (3, 1)
    with pytest.raises(ZeroDivisionError):
        workers.submit(divmod, 1, 0).result()
    with pytest.raises(dm.InvalidParameterError, match="n must be at least 1, got 0") as raised:
        workers.submit(refused).result()
    assert (raised.value.name, raised.value.accepted) == ("n", "at least 1")
    assert repr(workers) == "Workers(2)"


def test_what_a_killed_process_leaves_is_done_by_others(workers):
    victim = workers.submit(os.getpid).result()
    tasks = [workers.submit(slowly, value) for value in range(6)]
    os.kill(victim, signal.SIGKILL)
    assert [task.result(timeout=60) for task in tasks] == list(range(6))
    assert workers.submit(os.getpid).result() != victim


def slow_pid():
    time.sleep(0.2)
    return os.getpid()


@pytest.mark.slow
def test_what_only_waits_while_processes_die_is_not_given_up():
    with dm.Workers(1) as one:
        waiting = {one.submit(slow_pid) for _ in range(20)}
        for _ in range(6):
            done, waiting = concurrent.futures.wait(
                waiting, timeout=60, return_when=concurrent.futures.FIRST_COMPLETED
            )
            os.kill(done.pop().result(), signal.SIGKILL)
        assert all(task.result(timeout=60) > 0 for task in waiting)


def test_a_task_that_kills_its_processes_is_given_up():
    with dm.Workers(1) as one:
        task = one.submit(os._exit, 1)
        with pytest.raises(
            dm.exceptions.WorkerError, match=r"5 processes died over one task; .*, at Workers\(1\)"
        ):
            task.result(timeout=120)
        assert one.submit(abs, -3).result(timeout=60) == 3


def test_a_broken_pool_may_tell_so_with_its_lock_held(monkeypatch):
    # As every pool does since Python 3.12; here the lock is let go before the processes are joined.
    broken, joined = _ExecutorManagerThread.terminate_broken, _ExecutorManagerThread.join_executor_internals

    def terminate_broken(self, cause):
        with self.shutdown_lock:
            broken(self, cause)

    def join_executor_internals(self):
        self.shutdown_lock.release()
        try:
            joined(self)
        finally:
            self.shutdown_lock.acquire()

    if sys.version_info < (3, 12):
        monkeypatch.setattr(_ExecutorManagerThread, "terminate_broken", terminate_broken)
        monkeypatch.setattr(_ExecutorManagerThread, "join_executor_internals", join_executor_internals)
    pool = dm.Workers(1)
    victim = pool.submit(os.getpid).result(timeout=60)
    task = pool.submit(slowly, 7)
    os.kill(victim, signal.SIGKILL)
    # Not in a `with` block, which would wait for ever where this does.
    assert task.result(timeout=60) == 7
    monkeypatch.undo()
    pool.shutdown()


def test_after_the_end_nothing_is_taken():
    pool = dm.Workers(1)
    task = pool.submit(slowly, 7)
    pool.shutdown()
    assert task.result(timeout=0) == 7
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(abs, 1)
    pool.shutdown()


@pytest.mark.parametrize("wait", [True, False])
def test_what_waits_is_cancelled_where_asked(wait):
    pool = dm.Workers(1)
    tasks = [pool.submit(slowly, value) for value in range(40)]
    pool.shutdown(wait=wait, cancel_futures=True)
    ended = [task.exception(timeout=60) for task in tasks]
    assert any(isinstance(error, concurrent.futures.CancelledError) for error in ended)
    assert all(error is None or isinstance(error, concurrent.futures.CancelledError) for error in ended)


def test_what_waits_is_cancelled_where_the_block_is_left_by_an_error():
    tasks = []

    def interrupted():
        with dm.Workers(1) as pool:
            tasks.extend(pool.submit(slowly, value) for value in range(40))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    ended = [task.exception(timeout=0) for task in tasks]
    assert any(isinstance(error, concurrent.futures.CancelledError) for error in ended)


def test_what_was_given_up_is_not_started_again_when_its_process_dies():
    pool = dm.Workers(1)
    victim = pool.submit(os.getpid).result(timeout=60)
    task = pool.submit(time.sleep, 60.0)
    while not task.running():
        time.sleep(0.01)
    time.sleep(0.2)
    pool.shutdown(wait=False, cancel_futures=True)
    os.kill(victim, signal.SIGKILL)
    assert isinstance(task.exception(timeout=60), concurrent.futures.CancelledError)


@pytest.mark.parametrize("count", [0, -1, 1.5, "two", 5000])
def test_bad_counts(count):
    with pytest.raises(dm.InvalidParameterError, match="count must be"):
        dm.Workers(count)


@pytest.mark.parametrize("method", [None, dm.methods.Certified()], ids=repr)
def test_samples_are_the_same_wherever_they_are_drawn(workers, method):
    here = dm.delta(STRATEGY, 1.5, 1.0, method=method, **SAMPLED)
    there = dm.delta(STRATEGY, 1.5, 1.0, method=method, executor=workers, **SAMPLED)
    assert (there.lower, there.upper) == (here.lower, here.upper)


@pytest.mark.slow
def test_a_calibration_survives_a_killed_process(workers):
    killed = []

    def kill(_line):
        children = multiprocessing.active_children()
        if children and len(killed) < 2:
            killed.append(children[0].pid)
            os.kill(children[0].pid, signal.SIGKILL)

    here = dm.calibrate_sigma(STRATEGY, 2.0, 1e-5, **SAMPLED)
    there = dm.calibrate_sigma(STRATEGY, 2.0, 1e-5, executor=workers, progress=kill, **SAMPLED)
    assert len(killed) == 2
    assert there == here
    assert there.certificate().to_json() == here.certificate().to_json()


def test_the_innermost_executor_counts(workers):
    other = concurrent.futures.ThreadPoolExecutor(1)
    assert current_executor() is None
    with running_on(workers):
        with running_on(None):
            assert current_executor() is workers
        with running_on(other):
            assert current_executor() is other
        assert current_executor() is workers
    assert current_executor() is None
    with pytest.raises(dm.InvalidParameterError, match="executor must be None or a"):
        dm.delta(STRATEGY, 1.5, 1.0, executor="two", **SAMPLED)
    assert current_executor() is None


def test_anything_with_the_methods_of_an_executor_is_one():
    class Looks:
        def submit(self, fn):
            return fn()

        def map(self, fn, values):
            return map(fn, values)

    looks = Looks()
    assert check_executor(looks) is looks


def test_every_error_survives_a_pickle():
    examples = [
        dm.InvalidParameterError("n", 0, "at least 1"),
        dm.UnsupportedCombinationError("no", supported="yes"),
        dm.UnattainableBudgetError(1.0, 1e-5, "why"),
        dm.NumericalError("missed"),
        dm.exceptions.ContradictionError("apart"),
        dm.exceptions.CertificateError("forged", claimed=1.0, recomputed=2.0),
        dm.exceptions.WorkLimitError("a thing", (1.0, 2.0), (3.0, 4.0)),
        dm.exceptions.WorkerError("gone", "them"),
        dm.exceptions.HorizonError(5, 3),
        dm.exceptions.MissingDependencyError("torch", "torch"),
        dm.DpmechError("any"),
    ]
    kinds = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and value.__module__ == exceptions.__name__
    }
    assert {type(one).__name__ for one in examples} == kinds
    for error in examples:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_refused(monkeypatch):
    monkeypatch.setattr("dpmech.numerics.workers._ANSWER", 0.2)
    with pytest.raises(
        dm.InvalidParameterError, match="dask must be the address of a running dask scheduler"
    ):
        dm.Cluster("tcp://127.0.0.1:1")
    with pytest.raises(dm.InvalidParameterError, match="dask must be the address"):
        dm.Cluster("no address")
