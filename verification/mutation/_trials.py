"""Runs tests on mutants, each mutant in a forked process that shares one collection (Linux)."""

import ast
import dataclasses
import importlib
import os
import resource
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest

from dpmech.mechanism import participation
from verification.mutation._modules import PACKAGE
from verification.mutation._mutants import Key, Mutant
from verification.mutation._recording import Recording

# A test that does not end in its recorded time, or that asks for more memory, finds its mutant out as well.
# Processor time is what counts, so that a busy machine finds out nothing by itself; the clock is only for
# a test that waits for ever.
SECONDS, FACTOR, PATIENCE = 5.0, 5.0, 20.0
MEMORY = 4 << 30
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
NOT_PLANTED = "NOT-PLANTED"


class TrialError(RuntimeError):
    """A test fails without any alteration, or not all mutants were tried."""


def plant(module: types.ModuleType, tree: ast.Module) -> bool:
    """Give the functions of an imported module the code of the altered source.

    Functions are altered in place, so that whoever imported them by name has the altered ones too.

    Returns:
        Whether anything is different now.
    """
    altered = types.ModuleType(module.__name__)
    altered.__file__ = module.__file__
    altered.__package__ = module.__package__  # for relative imports
    # Participations register themselves by names that are taken by those of the library as it is.
    kinds = participation._KINDS
    registered = dict(kinds)
    kinds.clear()
    # Dataclasses look their module up by its name.
    sys.modules[module.__name__] = altered
    try:
        exec(compile(tree, str(module.__file__), "exec"), altered.__dict__)
    finally:
        sys.modules[module.__name__] = module
        kinds.clear()
        kinds.update(registered)
    before = dict(_functions(module))
    changed = False
    for name, function in _functions(altered):
        old = before[name]
        changed |= _different(old, function)
        old.__code__ = function.__code__
        old.__defaults__ = function.__defaults__
        old.__kwdefaults__ = function.__kwdefaults__
    changed |= _constants(module, altered)
    participation._KINDS = kinds  # that of an altered registry is empty
    forget()
    return changed


def _planted(mutant: Mutant) -> bool:
    """Whether it stands in the library now; an import that fails is no fault that a test has found."""
    try:
        return plant(importlib.import_module(f"{PACKAGE}.{mutant.module}"), mutant.tree)
    except ImportError:
        return False


def forget() -> None:
    """Clear what the library has computed once for all: the altered source would have computed it anew."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{PACKAGE}."):
            for value in list(vars(module).values()):
                if isinstance(clear := getattr(value, "cache_clear", None), types.BuiltinFunctionType):
                    clear()


def _constants(holder: types.ModuleType | type, altered: types.ModuleType | type) -> bool:
    """Give a module, its classes, and whoever imported them, the constants of the altered source."""
    changed = False
    home = altered.__name__ if isinstance(altered, types.ModuleType) else altered.__module__
    for name, value in list(vars(altered).items()):
        old = vars(holder).get(name)
        if isinstance(value, type) and value.__module__ == altered.__name__ and isinstance(old, type):
            changed |= _constants(old, value)
        elif type(value).__module__ == home:
            continue  # of a class that is another one there
        elif not name.startswith("__") and _plain(value) and repr(old) != repr(value):
            changed = True
            users = [holder, *(one for key, one in sys.modules.items() if key.startswith(f"{PACKAGE}."))]
            for user in users:
                if vars(user).get(name) is old:
                    setattr(user, name, value)
    return changed


def _plain(value: object) -> bool:
    """Whether it is made of numbers and words alone, by its fields too; functions have their counterparts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return all(_plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, dict):
        return all(_plain(one) for one in (*value, *value.values()))
    if isinstance(value, tuple | list | set | frozenset):
        return all(_plain(one) for one in value)
    return value is None or isinstance(value, int | float | str | range | np.ndarray | np.generic)


def _different(one: types.FunctionType, other: types.FunctionType) -> bool:
    # Constants of code compare by type and sign too, so that 1 and 1.0, 0.0 and -0.0 differ.
    return (one.__code__, one.__defaults__, one.__kwdefaults__) != (
        other.__code__,
        other.__defaults__,
        other.__kwdefaults__,
    )


def _functions(holder: types.ModuleType | type, prefix: str = "") -> Iterator[tuple[str, types.FunctionType]]:
    home = holder.__name__ if isinstance(holder, types.ModuleType) else holder.__module__
    for name, value in list(vars(holder).items()):
        inner = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
        inner = getattr(inner, "func", None) or inner
        inner = getattr(inner, "__wrapped__", inner)
        if isinstance(inner, types.FunctionType) and inner.__module__ == home:
            yield prefix + name, inner
        elif isinstance(inner, type) and inner.__module__ == home:
            yield from _functions(inner, f"{prefix}{name}.")


class Trials:
    """A pytest plugin that runs the collected tests on every mutant instead of once.

    A mutant meets the tests that execute its statement: first the one that found it out in an earlier run,
    then the latest killer of its function, then the fastest.

    Args:
        mutants: the alterations, of one module or several.
        recording: which tests execute which lines.
        killers: the test that found a mutant out earlier, by the mutant's key.
        seconds: processor time, as recorded, of the tests that a mutant meets at most; the first one is met
            whatever it takes.
        report: called with each mutant, its outcome, the test that decided, and how many it met.
    """

    def __init__(
        self,
        mutants: Sequence[Mutant],
        recording: Recording,
        killers: dict[Key, str],
        seconds: float,
        report: Callable[[Mutant, str, str, int], None],
    ) -> None:
        self.mutants = mutants
        self.recording = recording
        self.killers = killers
        self.seconds = seconds
        self.report = report
        self._sound: set[str] = set()
        self._last: dict[tuple[str, str], str] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork once a mutant."""
        items = {item.nodeid: item for item in session.items}
        for mutant in self.mutants:
            chosen = self._chosen(mutant, items)
            outcome, found = self._outcome(session, [items[test] for test in chosen], mutant)
            killer = chosen[int(found)] if found else ""
            if killer:
                self._must_pass(session, items[killer])
                self._last[mutant.module, mutant.function] = killer
            self.report(mutant, outcome, killer, len(chosen))
        return True

    def _must_pass(self, session: pytest.Session, item: pytest.Item) -> None:
        """A test that finds something out passes, in time, on the library as it is."""
        if item.nodeid not in self._sound:
            if self._outcome(session, [item], None)[0] != SURVIVED:
                raise TrialError(f"{item.nodeid} must pass on the library as it is")
            self._sound.add(item.nodeid)

    def _chosen(self, mutant: Mutant, items: Iterable[str]) -> list[str]:
        """The tests that it meets, in their order."""
        known = set(items)
        tests = [test for test in self.recording.tests_of(mutant.module, mutant.lines) if test in known]
        first = (self.killers.get(mutant.key), self._last.get((mutant.module, mutant.function)))
        tests.sort(key=lambda test: first.index(test) if test in first else len(first))
        chosen, total = tests[:1], self.recording.seconds[tests[0]] if tests else 0.0
        for test in tests[1:]:
            total += self.recording.seconds[test]
            if total > self.seconds:
                break
            chosen.append(test)
        return chosen

    def _outcome(
        self, session: pytest.Session, items: list[pytest.Item], mutant: Mutant | None
    ) -> tuple[str, str]:
        """What became of one forked run, and the number of the test that it ended in."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as message:
            process = os.fork()
            if process == 0:
                self._run(session, items, mutant, message)
            _, status = os.waitpid(process, 0)
            message.seek(0)
            reached = message.read().split()
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return SURVIVED, ""
        if reached == [NOT_PLANTED]:
            return NOT_PLANTED, ""
        late = code in {-signal.SIGPROF, -signal.SIGALRM, -signal.SIGKILL}
        return (TIMED_OUT if late else KILLED), reached[-1] if reached else ""

    def _run(
        self, session: pytest.Session, items: list[pytest.Item], mutant: Mutant | None, out: TextIO
    ) -> None:
        """In the child: alter, run until a test fails, and leave by the exit status."""
        status = 1
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            used = (
                int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            )
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
            if mutant and not _planted(mutant):
                out.write(NOT_PLANTED)
                return
            for index, item in enumerate(items):
                out.write(f"{index} ")
                out.flush()
                limit = SECONDS + FACTOR * self.recording.seconds[item.nodeid]
                signal.setitimer(signal.ITIMER_PROF, limit)
                signal.alarm(int(PATIENCE * limit))
                follower = items[index + 1] if index + 1 < len(items) else None
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=follower)
                if session.testsfailed:
                    return
            status = 0
        finally:
            out.flush()
            os._exit(status)
