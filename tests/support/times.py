"""Which cases of a test run when, by the CPU seconds of a case that `tests/times.toml` states.

A test, that is a function with all its cases, has `QUICK` seconds in `make test`; what does not fit is
slow. Its slow cases have `GATE` seconds in the full gate, and at least one of them runs if no case is
quick and a case takes at most `LONGEST` seconds; what does not fit is exhaustive, and runs in `make check`.
The cases that run are spread evenly over the table. Marks by hand stand: `slow` takes all cases from the
quick tests, `exhaustive` from the gate. A test that is not listed is cheap, or new.

As a plugin of pytest: `DPMECH_TIMES=write` writes down what the cases that run take; under
`DPMECH_TIMES=check` a test that takes over `MARGIN` times what it has fails the run.
"""

import collections
import os
import pathlib
import re
import resource
import tomllib

import pytest

TABLE = pathlib.Path(__file__).parents[1] / "times.toml"
ROOT = TABLE.parents[1]
QUICK, GATE, LONGEST, MARGIN = 2.0, 4.0, 10.0, 3.0
# What decides is covered to 100 % by quick tests: here only marks by hand make a test slow.
ALL_QUICK = "tests/unit/checker/"
# Where a case may show a leak that no other case shows: what is applied against what is certified, and the
# claims of every scheme against enumeration. The gate runs these tests whole.
WHOLE = ("tests/property/", "tests/unit/optim/", "tests/statistical/", "tests/conformance/test_scheme.py")
# Of these a case runs in the gate however long it takes: processes that are killed, what `verify` answers,
# and pages as they are printed.
NEVER_LEFT_OUT = ("tests/distributed/", "tests/unit/verifying/", "tests/examples/", "tests/test_")
HEAD = (
    f"# CPU seconds of a case, of tests that take over {QUICK:g} in all, by their mark in the file: "
    "`DPMECH_TIMES=write make tests slow`."
)
_PLACE = pytest.StashKey[tuple[str, int]]()
_BEGAN = pytest.StashKey[float]()
# By mark and name of a test: how many cases it has, seconds of those that ran; by half and name: all seconds.
_MEASURED: dict[tuple[str, str], tuple[int, list[float]]] = {}
_SPENT: dict[tuple[str, str], float] = collections.Counter()


def half(item):
    return next((name for name in ("exhaustive", "slow") if item.get_closest_marker(name)), "quick")


def kept(count, most):
    """Places in `count` cases that run where `most` may: evenly spaced, the first and the last among them."""
    if most < 2 or count <= most:
        return set(range(min(count, most)))
    return {round(place * (count - 1) / (most - 1)) for place in range(most)}


def beyond(cases, allowed, seconds, least=0):
    """The cases that do not fit into `allowed` seconds."""
    fits = len(cases) if len(cases) * seconds <= allowed else max(least, int(allowed / seconds))
    stay = kept(len(cases), fits)
    return [case for place, case in enumerate(cases) if place not in stay]


def mark(items, seconds):
    """Mark what is slow, and what the gate leaves out.

    Args:
        items: what was collected.
        seconds: CPU seconds of a case, by mark ("quick" or "slow") and name of the test.
    """
    tests = collections.defaultdict(list)
    for item in items:
        tests[half(item), item.nodeid.split("[")[0]].append(item)
    for (by_hand, name), cases in tests.items():
        each = seconds.get((by_hand, name), 0.0)
        slow = cases
        if by_hand == "quick":
            slow = [] if name.startswith(ALL_QUICK) else beyond(cases, QUICK, each)
        left_out = cases if by_hand == "exhaustive" else []
        if by_hand != "exhaustive" and not name.startswith(WHOLE):
            needed = each <= LONGEST or name.startswith(NEVER_LEFT_OUT)
            left_out = beyond(slow, GATE, each, least=needed and len(slow) == len(cases))
        for case in cases:
            case.stash[_PLACE] = (by_hand, len(cases))
        for case in slow:
            case.add_marker(pytest.mark.slow)
        for case in left_out:
            case.add_marker(pytest.mark.exhaustive)


def known(path=TABLE):
    """CPU seconds of a case, by mark and name of the test."""
    marks = tomllib.loads(path.read_text(encoding="utf-8"))
    return {(by_hand, name): seconds for by_hand, tests in marks.items() for name, seconds in tests.items()}


def is_there(name, root=ROOT):
    path, *names = name.split("::")
    if not (root / path).is_file():
        return False
    # Doctests carry the dotted name of what they are about.
    text, last = (root / path).read_text(encoding="utf-8"), names[-1].split(".")[-1]
    return re.search(rf"(def|class) {last}\b", text) is not None or path.endswith(f"{last}.py")


def written(measured, before):
    """The table with what was measured; tests that did not run stay as they were, if they are there."""
    seconds = {key: each for key, each in before.items() if is_there(key[1])}
    for key, (count, took) in measured.items():
        each = sum(took) / len(took)
        if each * count > QUICK:
            seconds[key] = each
        else:
            seconds.pop(key, None)
    lines = [HEAD]
    for by_hand in ("quick", "slow"):
        names = sorted(name for own, name in seconds if own == by_hand)
        lines += [f"[{by_hand}]", *(f'"{name}" = {seconds[by_hand, name]:.2g}' for name in names), ""]
    return "\n".join(lines)


def late(spent, seconds):
    """Sentences about tests that took over `MARGIN` times what they have."""
    for (now, name), took in sorted(spent.items()):
        limit = MARGIN * (QUICK if now == "quick" else max(GATE, seconds.get(("slow", name), 0.0)))
        if took > limit and now != "exhaustive" and not name.startswith(ALL_QUICK):
            yield f"{name} ({now}) took {took:.1f} CPU seconds; at most {limit:.3g} are accepted"


def cpu_seconds():
    """Of this process and of those that it started and waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


# Here, not in tests/conftest.py, which examples in docstrings alone do not load. Before `-m` selects.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark(items, known())
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.stash[_BEGAN] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        took = cpu_seconds() - item.stash[_BEGAN]
        report.user_properties.append(("cpu", (*item.stash[_PLACE], half(item), took)))
    return report


def pytest_runtest_logreport(report):
    for key, value in report.user_properties:
        if key == "cpu" and report.when == "teardown":
            (by_hand, count, now, took), name = value, report.nodeid.split("[")[0]
            _SPENT[now, name] += took
            if by_hand != "exhaustive":
                _MEASURED.setdefault((by_hand, name), (count, []))[1].append(took)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    wanted, config = os.environ.get("DPMECH_TIMES", ""), session.config
    if hasattr(config, "workerinput") or not wanted:
        return
    if wanted == "write":
        TABLE.write_text(written(_MEASURED, known()), encoding="utf-8")
        return
    found = list(late(_SPENT, known()))
    config.get_terminal_writer().line("\n" + ("\n".join(found) or "all tests are within their seconds"))
    if found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
