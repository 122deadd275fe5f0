"""Which cases of a test run when, by the CPU seconds that `tests/times.toml` states.

A test, that is a function with all its cases, has `QUICK` seconds in `make test`; what does not fit is
slow. Its slow cases have `GATE` seconds in the full gate, and at least one of them runs if no case is
quick; what does not fit is exhaustive, and runs in `make check`, as does every case above `LONGEST`
seconds. The cases that run are spread evenly over the table. Marks by hand stand: `slow` takes all cases
from the quick tests, `exhaustive` from the gate. A test that is not listed is cheap, or new.

As a plugin of pytest: `DPMECH_TIMES=write` writes down what the cases that run take; under
`DPMECH_TIMES=check` a test that takes over `MARGIN` times what it has fails the run.
"""

import collections
import json
import os
import pathlib
import re
import resource
import tomllib

import pytest

TABLE = pathlib.Path(__file__).parents[1] / "times.toml"
ROOT = TABLE.parents[1]
QUICK, GATE, LONGEST, MARGIN = 2.0, 2.0, 6.0, 3.0
# Coverage is measured by the quick tests: here only marks by hand make a test slow.
ALL_QUICK = (
    "tests/unit/checker/",
    "tests/unit/cli/test_comparing.py",
    "tests/unit/cli/test_doctor.py",
    "tests/unit/engines/convex_order/test_tilted.py",
    "tests/unit/engines/independent_sum/test_allocation_default.py",
    "tests/unit/fitting/test_amplified.py",
    "tests/unit/test_files.py",
)
# Where a case may show a leak that no other case shows: what is applied against what is certified, and the
# claims of every scheme against enumeration. These tests have more seconds in the gate.
MORE = {
    "tests/property/": 60.0,
    "tests/unit/optim/": 10.0,
    "tests/statistical/": 20.0,
    "tests/conformance/test_scheme.py": 30.0,
}
# Of these a case runs in the gate however long it takes: processes that are killed, what `verify` answers,
# and pages as they are printed.
NEVER_LEFT_OUT = ("tests/distributed/", "tests/unit/verifying/", "tests/examples/", "tests/test_")
HEAD = (
    f"# CPU seconds of a case, of tests that take over {QUICK:g} in all, by their mark in the file; at the "
    f"end, cases that take over {LONGEST:g}: `DPMECH_TIMES=write make tests slow`."
)
_PLACE = pytest.StashKey[tuple[str, int]]()
_BEGAN = pytest.StashKey[float]()
_SET_UP = pytest.StashKey[float]()
# By mark and name of a test: how many cases it has, and by name of those that ran, seconds without fixtures
# (which the first case of a module makes for all) and in all. By half and name: all seconds.
_MEASURED: dict[tuple[str, str], tuple[int, dict[str, tuple[float, float]]]] = {}
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


def gate(name):
    """Seconds of a test's slow cases in the full gate."""
    return next((more for place, more in MORE.items() if name.startswith(place)), GATE)


def mark(items, seconds):
    """Mark what is slow, and what the gate leaves out.

    Args:
        items: what was collected.
        seconds: CPU seconds of a case, by mark ("quick" or "slow") and name of the test; and by "case" and
            name of one that takes over `LONGEST`.
    """
    tests = collections.defaultdict(list)
    for item in items:
        tests[half(item), item.nodeid.split("[")[0]].append(item)
    for (by_hand, name), cases in tests.items():
        each = seconds.get((by_hand, name), 0.0)
        long = [case for case in cases if each > LONGEST or ("case", case.nodeid) in seconds]
        if len(long) == len(cases) and name.startswith(NEVER_LEFT_OUT):
            long.pop(0)
        short = [case for case in cases if case not in long]
        slow, left_out = short, []
        if by_hand == "quick":
            whole = name.startswith(ALL_QUICK)
            slow, long = ([], []) if whole else (beyond(short, QUICK, each), long)
        if by_hand != "exhaustive":
            left_out = beyond(slow, gate(name), each, least=len(slow) == len(short))
        for case in cases:
            case.stash[_PLACE] = (by_hand, len(cases))
        for case in [*slow, *long]:
            case.add_marker(pytest.mark.slow)
        for case in [*left_out, *long] if by_hand != "exhaustive" else cases:
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
    seconds = {key: each for key, each in before.items() if is_there(key[1].split("[")[0])}
    for key, (count, took) in measured.items():
        for case, (own, _) in took.items():
            seconds.pop(("case", case), None)
            if own > LONGEST and len(took) > 1:
                seconds["case", case] = own
        short = [one for case, one in took.items() if ("case", case) not in seconds]
        # A fixture of every case is in all of them, one of the module in the first.
        each = sum(own for own, _ in short) / max(len(short), 1)
        each += min((spent - own for own, spent in short), default=0.0)
        if len(took) < count:  # others may take longer
            each = max(each, before.get(key, 0.0))
        if each * count > QUICK:
            seconds[key] = each
        else:
            seconds.pop(key, None)
    lines = [HEAD]
    for by_hand in ("quick", "slow", "case"):
        names = sorted(name for own, name in seconds if own == by_hand)
        lines += [
            f"[{by_hand}]",
            *(f"{json.dumps(name)} = {seconds[by_hand, name]:.2g}" for name in names),
            "",
        ]
    return "\n".join(lines)


def late(spent, seconds):
    """Sentences about tests that took over `MARGIN` times what they have."""
    for (now, name), took in sorted(spent.items()):
        limit = MARGIN * (QUICK if now == "quick" else max(gate(name), seconds.get(("slow", name), 0.0)))
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
    spent = cpu_seconds() - item.stash[_BEGAN]
    if call.when == "setup":
        item.stash[_SET_UP] = spent
    if call.when == "teardown":
        report.user_properties.append(("cpu", (*item.stash[_PLACE], half(item), spent, item.stash[_SET_UP])))
    return report


def pytest_runtest_logreport(report):
    for key, value in report.user_properties:
        if key == "cpu" and report.when == "teardown":
            (by_hand, count, now, spent, set_up), name = value, report.nodeid.split("[")[0]
            _SPENT[now, name] += spent
            if by_hand != "exhaustive":
                own = _MEASURED.setdefault((by_hand, name), (count, {}))[1]
                own[report.nodeid] = spent - set_up, spent


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
