"""CPU seconds of every test file, its fixtures among them, held against `tests/budgets.toml`.

A plugin of pytest, with workers or without. Under `DPMECH_BUDGETS=check` a file that takes more than `MARGIN`
times what was measured fails the run: `make budgets` and `.ci/run` ask for it, as nothing else runs there.
`DPMECH_BUDGETS=write` writes down anew what the run took. Otherwise the plugin only listens.
"""

import collections
import os
import pathlib
import resource
import tomllib

import pytest
from hypothesis import settings

TABLE = pathlib.Path(__file__).parents[1] / "budgets.toml"
ROOT = TABLE.parents[1]
# How much longer than measured, and the seconds up to which files are not listed.
MARGIN, LEAST = 3.0, 10.0
HEAD = f"# CPU seconds of all test files that take over {LEAST:g}, by `DPMECH_BUDGETS=write make tests slow`."
_SPENT: dict[tuple[str, str], float] = collections.Counter()


def cpu_seconds():
    """Of this process and of those that it started and waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def measured(path=TABLE):
    """Seconds by half ("quick" or "slow") and file."""
    halves = tomllib.loads(path.read_text(encoding="utf-8"))
    return {(half, name): seconds for half, files in halves.items() for name, seconds in files.items()}


def written(spent, before):
    """The table with what was spent; halves and files that did not run stay as they were."""
    seconds = before | dict(spent)
    lines = [HEAD]
    for half in ("quick", "slow"):
        found = {name: took for (own, name), took in seconds.items() if own == half and took > LEAST}
        lines += [f"[{half}]", *(f'"{name}" = {found[name]:.0f}' for name in sorted(found)), ""]
    return "\n".join(lines)


def slow_files(spent, known, *, covered=False, examples=20):
    """Sentences about files that took too long; coverage takes as long again, quick properties have 20
    examples where they are measured."""
    halves = {half for half, _ in known}
    for (half, name), took in sorted(spent.items()):
        if half not in halves:  # nobody has measured it yet
            continue
        path = ROOT / name
        drawn = half == "quick" and path.exists() and "hypothesis" in path.read_text(encoding="utf-8")
        limit = MARGIN * max(LEAST, known.get((half, name), 0.0)) * (2.0 if covered else 1.0)
        limit *= max(1.0, examples / 20) if drawn else 1.0
        if took > limit:
            yield f"{name} ({half}) took {took:.0f} CPU seconds; its budget is {limit:.0f}"


_BEGAN = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.config.stash[_BEGAN] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        marks = (name for name in ("exhaustive", "slow") if item.get_closest_marker(name))
        half = next(marks, "quick")
        report.user_properties.append(("cpu", (half, cpu_seconds() - item.config.stash[_BEGAN])))
    return report


def pytest_runtest_logreport(report):
    for name, value in report.user_properties:
        if name == "cpu" and report.when == "teardown":
            _SPENT[value[0], report.nodeid.split("::")[0]] += value[1]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    wanted, config = os.environ.get("DPMECH_BUDGETS", ""), session.config
    if hasattr(config, "workerinput") or not wanted:
        return
    if wanted == "write":
        TABLE.write_text(written(_SPENT, measured()), encoding="utf-8")
        return
    covered = bool(config.getoption("cov_source", None))
    late = list(slow_files(_SPENT, measured(), covered=covered, examples=settings().max_examples))
    config.get_terminal_writer().line(
        "\n" + "\n".join(late) if late else "\nall test files are within budget"
    )
    if late:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
