"""Runs the tests of a module on its mutants, each in a forked process that shares one collection."""

import ast
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from verification.mutation._mutants import Mutant

ROOT = Path(__file__).parents[2]
PACKAGE = "dpmech.analysis"
# A mutant that does not end, or that asks for more memory, is found out as well. Processor time is what
# counts, so that a busy machine finds out nothing by itself.
SECONDS = 40
MEMORY = 6 << 30
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
NOT_PLANTED = "not planted"


class TrialError(RuntimeError):
    """The tests fail without any alteration, or an alteration cannot be planted."""


def files_that_test(module: str) -> list[Path]:
    """Test files that import the module, or a module of the analysis that does."""
    wanted = {module}
    names = {path.stem: _imported(path) for path in (ROOT / "dpmech" / "analysis").glob("*.py")}
    while more := {name for name, imports in names.items() if imports & wanted} - wanted:
        wanted |= more
    files = {path: _imported(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    return sorted(
        (path for path, imports in files.items() if imports & wanted), key=lambda p: module not in files[p]
    )


def _imported(path: Path) -> set[str]:
    """Modules of the analysis that a file imports itself."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE + "."):
            found.add(str(node.module).rpartition(".")[2])
    return found


def plant(module: types.ModuleType, tree: ast.Module) -> bool:
    """Give the functions of an imported module the code of the altered source.

    Functions are altered in place, so that whoever imported them by name has the altered ones too.

    Returns:
        Whether anything is different now.
    """
    altered = types.ModuleType(module.__name__)
    altered.__file__ = module.__file__
    # Dataclasses look their module up by its name.
    sys.modules[module.__name__] = altered
    try:
        exec(compile(tree, str(module.__file__), "exec"), altered.__dict__)
    finally:
        sys.modules[module.__name__] = module
    before = dict(_functions(module))
    changed = False
    for name, function in _functions(altered):
        old = before[name]
        changed |= _different(old, function)
        old.__code__ = function.__code__
        old.__defaults__ = function.__defaults__
        old.__kwdefaults__ = function.__kwdefaults__
    for name, value in vars(altered).items():
        if isinstance(value, int | float | tuple) and vars(module)[name] != value:
            vars(module)[name] = value
            changed = True
    return changed


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

    A mutant meets the tests that call the function it stands in, the latest killer first.

    Args:
        module: the module's name in dpmech.analysis.
        mutants: its alterations.
        report: called with each mutant and its outcome.
    """

    def __init__(self, module: str, mutants: list[Mutant], report: Callable[[Mutant, str], None]) -> None:
        self.module = module
        self.mutants = mutants
        self.report = report
        self.order: list[pytest.Item] = []
        self.calls: dict[str, set[str]] = {}
        self.noted: dict[str, set[str]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork once a mutant."""
        module = importlib.import_module(f"{PACKAGE}.{self.module}")
        self.order = list(session.items)
        outcome, found = self._outcome(session, self.order, lambda: self._watch(session, module))
        if not self.order or outcome != SURVIVED:
            raise TrialError(f"the tests of {self.module} must pass on the library as it is")
        self.calls = {node: set(names) for node, names in json.loads(found).items()}
        for mutant in self.mutants:
            chosen = [item for item in self.order if self._concerns(item, mutant)]
            tree = mutant.tree
            outcome, found = self._outcome(session, chosen, lambda tree=tree: _planted(module, tree))
            if found == NOT_PLANTED:
                raise TrialError(f"{mutant} changes no function and no constant")
            if found:
                killer = chosen[int(found)]
                self.order.remove(killer)
                self.order.insert(0, killer)
            self.report(mutant, outcome)
        return True

    def _concerns(self, item: pytest.Item, mutant: Mutant) -> bool:
        """Whether the test calls the function, or no test does: then all have to look."""
        parts = mutant.function.split(".")
        names = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
        if not names & set().union(*self.calls.values()):
            return True
        return bool(names & self.calls[item.nodeid])

    def _watch(self, session: pytest.Session, module: types.ModuleType) -> str:
        """Start to note which functions of the module every test calls; reported at the end."""
        calls: dict[str, set[str]] = {item.nodeid: set() for item in self.order}

        class Watch:
            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
                def note(frame: types.FrameType, event: str, _: object) -> None:
                    if event == "call" and frame.f_code.co_filename == module.__file__:
                        calls[item.nodeid].add(frame.f_code.co_qualname.replace(".<locals>", ""))

                sys.setprofile(note)
                try:
                    return (yield)
                finally:
                    sys.setprofile(None)

        session.config.pluginmanager.register(Watch())
        self.noted = calls
        return ""

    def _outcome(
        self, session: pytest.Session, items: list[pytest.Item], prepare: Callable[[], str]
    ) -> tuple[str, str]:
        """What became of one forked run, and what it wrote."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as message:
            process = os.fork()
            if process == 0:
                self._run(session, items, prepare, message)
            _, status = os.waitpid(process, 0)
            code = os.waitstatus_to_exitcode(status)
            message.seek(0)
            if code in {-signal.SIGXCPU, -signal.SIGKILL}:
                return TIMED_OUT, ""
            return (SURVIVED if code == 0 else KILLED), message.read()

    def _run(
        self, session: pytest.Session, items: list[pytest.Item], prepare: Callable[[], str], out: TextIO
    ) -> None:
        """In the child: alter, run until a test fails, and leave by the exit status."""
        status = 1
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
            problem = prepare()
            if problem:
                out.write(problem)
                return
            for index, item in enumerate(items):
                follower = items[index + 1] if index + 1 < len(items) else None
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=follower)
                if session.testsfailed:
                    out.write(str(index))
                    return
            if self.noted:
                out.write(json.dumps({node: sorted(names) for node, names in self.noted.items()}))
            status = 0
        finally:
            out.flush()
            os._exit(status)


def _planted(module: types.ModuleType, tree: ast.Module) -> str:
    return "" if plant(module, tree) else NOT_PLANTED
