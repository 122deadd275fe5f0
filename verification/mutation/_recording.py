"""Which lines of dpmech every test executes, noted once for every state of the library and the tests."""

import collections
import contextlib
import functools
import hashlib
import importlib
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest
from hypothesis import Phase, settings

from verification.mutation._modules import PACKAGE, ROOT, source_of

Cached = functools._lru_cache_wrapper
KEPT = ROOT / "build" / "mutation"
# Whole runs in processes of their own, benchmarks, and tests of this very machinery tell nothing here.
LEFT_OUT = {"bench", "distributed", "examples", "test_mutation.py", "test_package.py", "test_verification.py"}
QUIET = [
    *("-m", "not slow", "-o", "addopts=--strict-markers", "--doctest-modules", "--rootdir", str(ROOT)),
    *(part for plugin in ("terminal", "cacheprovider", "benchmark") for part in ("-p", f"no:{plugin}")),
    # Hypothesis is here before pytest looks for assertions to rewrite in it.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
]


class RecordingError(RuntimeError):
    """A test file cannot be recorded."""


class Recording:
    """The tests that execute a line, and the processor time of each under the record.

    Args:
        seconds: of every test.
        lines: for every test the lines that it executes, by the path of the module below the root.
    """

    def __init__(self, seconds: dict[str, float], lines: dict[str, dict[str, list[int]]]) -> None:
        self.seconds = seconds
        self._lines = {
            test: {path: set(numbers) for path, numbers in files.items()} for test, files in lines.items()
        }

    def tests_of(self, module: str, lines: range) -> list[str]:
        """Tests that execute one of the lines, the fastest first; with no line, any line of the module."""
        path = str(source_of(module).relative_to(ROOT))
        wanted = set(lines)
        found = [
            test
            for test, files in self._lines.items()
            if path in files and (not wanted or wanted & files[path])
        ]
        return sorted(found, key=lambda test: self.seconds[test])


def load_profile() -> None:
    """The suite's own examples, without the search for the smallest one."""
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutation", derandomize=True, max_examples=100, deadline=None, phases=phases)
    os.environ["HYPOTHESIS_PROFILE"] = "mutation"


def test_files() -> list[Path]:
    """What is collected: the suite, and the examples in the docstrings."""
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if not LEFT_OUT & set(path.parts)]
    return sorted(tests) + sorted(
        path for path in (ROOT / PACKAGE).rglob("*.py") if ">>>" in path.read_text(encoding="utf-8")
    )


def record(files: Iterable[Path], modules: Iterable[str], *, uncompiled: bool = False) -> Recording:
    """The recording of some test files, as far as it concerns some modules.

    What was recorded for the present test file and the present modules is not recorded again.

    Args:
        files: of tests, or modules with examples.
        modules: below dpmech, dotted.
        uncompiled: run what numba compiles as it is written.

    Raises:
        RecordingError: a test file ends the process, or cannot be collected.
    """
    kept = KEPT / ("uncompiled.json" if uncompiled else "recording.json")
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    library = {str(path.relative_to(ROOT)): digest([path]) for path in (ROOT / PACKAGE).rglob("*.py")}
    wanted = {str(source_of(module).relative_to(ROOT)) for module in modules}
    states = {str(path.relative_to(ROOT)): digest([path, *_helpers(path)]) for path in files}

    def is_known(name: str) -> bool:
        """Recorded for this test file, and for the modules that it runs, as they are."""
        one = known.get(name)
        if one is None or one["state"] != states[name]:
            return False
        changed = {path for path in wanted if one["library"].get(path) != library[path]}
        return not any(changed & files.keys() for files in one["lines"].values())

    new = [name for name in states if not is_known(name)]
    if new:
        _import_once()
    for name in new:
        sys.stderr.write(f"recording {name}\n")
        known[name] = {
            "state": states[name],
            "library": library,
            **_recorded_apart(name),
        }
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.with_suffix(".new").write_text(json.dumps(known), encoding="utf-8")
        kept.with_suffix(".new").replace(kept)
    chosen = [known[name] for name in states]
    return Recording(
        {test: value for one in chosen for test, value in one["seconds"].items()},
        {test: value for one in chosen for test, value in one["lines"].items()},
    )


def _helpers(path: Path) -> set[Path]:
    """What a test file reads from beside it: modules of the tests that it names, and they in turn."""
    beside = {one for one in (ROOT / "tests").rglob("*.py") if not one.name.startswith("test_")}
    found = {one for one in beside if one.name == "conftest.py"}
    new = {path}
    while new:
        words = {word for one in new for word in re.findall(r"\w+", one.read_text(encoding="utf-8"))}
        new = {one for one in beside - found if one.stem in words}
        found |= new
    return found - {path}


def _import_once() -> None:
    """What takes long to import, before the processes part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("dpmech", "scipy.stats", "dp_accounting", "prv_accountant", "dpmech.optim", "opacus"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def digest(files: Iterable[Path]) -> str:
    """What tells two states of some files apart."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def _recorded_apart(name: str) -> dict[str, object]:
    """Run one file in a process of its own, so that nothing of it stays behind.

    A test that fails is left out and named: one that compares with what is compiled or traced here, say.
    """
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(reader)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            recorder = Recorder()
            status = int(pytest.main([*QUIET, str(ROOT / name)], plugins=[recorder]))
            # A file whose tests are all slow, or all need what is not installed, has none to run.
            if status > pytest.ExitCode.TESTS_FAILED and status != pytest.ExitCode.NO_TESTS_COLLECTED:
                raise RecordingError(f"{name}: status {status}")
            with os.fdopen(writer, "w", encoding="utf-8") as out:
                json.dump([recorder.seconds, recorder.found(), recorder.failed], out)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as received:
        text = received.read()
    os.waitpid(process, 0)
    if not text:
        raise RecordingError(f"{name} ended before its tests did")
    seconds, lines, failed = json.loads(text)
    for test in failed:
        sys.stderr.write(f"left out, for it fails when it is recorded: {test}\n")
        seconds.pop(test, None)
        lines.pop(test, None)
    return {"seconds": seconds, "lines": lines}


class Recorder:
    """A pytest plugin that notes the lines of dpmech that each test executes.

    What a fixture of wider scope executes is noted for every test that uses it.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self._fixtures: dict[str, list[str]] = {}
        self._coverage = coverage.Coverage(
            data_file=None, include=[str(ROOT / PACKAGE / "*")], config_file=False
        )
        self._context = ""
        self._caches: list[Cached[Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Record while the tests run."""
        self._caches = list(_caches_of_tests())
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """One context a test, and no value kept by the test files from an earlier one."""
        for cached in self._caches:
            cached.cache_clear()
        fixtures = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        self._fixtures[item.nodeid] = [_named(one) for several in fixtures.values() for one in several]
        self._switch(item.nodeid)
        start = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.process_time() - start, 3)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """A context of its own for a value that several tests share."""
        if fixturedef.scope == "function":
            return (yield)
        outer = self._context
        self._switch(_named(fixturedef))
        try:
            return (yield)
        finally:
            self._switch(outer)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails."""
        if report.failed:
            self.failed.append(report.nodeid)

    def found(self) -> dict[str, dict[str, list[int]]]:
        """The lines of every test."""
        data = self._coverage.get_data()
        contexts: dict[str, dict[str, list[int]]] = collections.defaultdict(dict)
        for file in data.measured_files():
            path = str(Path(file).relative_to(ROOT))
            for line, names in data.contexts_by_lineno(file).items():
                for name in names:
                    contexts[name].setdefault(path, []).append(line)
        result: dict[str, dict[str, list[int]]] = {}
        for test, fixtures in self._fixtures.items():
            lines: dict[str, set[int]] = collections.defaultdict(set)
            for context in (test, *fixtures):
                for path, numbers in contexts.get(context, {}).items():
                    lines[path] |= set(numbers)
            result[test] = {path: sorted(numbers) for path, numbers in lines.items()}
        return result

    def _switch(self, context: str) -> None:
        self._context = context
        self._coverage.switch_context(context)


def _caches_of_tests() -> "Iterator[Cached[Any]]":  # the class itself takes no arguments
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{ROOT / 'tests'}{os.sep}"):
            yield from (value for value in vars(module).values() if isinstance(value, Cached))


def _named(fixture: pytest.FixtureDef[object]) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"
