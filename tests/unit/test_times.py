"""Which cases run when, what was measured, and who is told of tests that became slow."""

import itertools
import re
import types

import pytest

from tests.support import times

NAME = "tests/unit/test_times.py::test_a_table_is_read_as_it_was_written"


class Item:
    def __init__(self, nodeid, by_hand=None):
        self.nodeid, self.marks, self.stash = nodeid, {by_hand} - {None}, {}

    def get_closest_marker(self, name):
        return name if name in self.marks else None

    def add_marker(self, mark):
        self.marks.add(mark.name)


def cases(name, count, by_hand=None):
    return [Item(f"{name}[{place}]", by_hand) for place in range(count)]


def halves(items):
    return [times.half(item) for item in items]


@pytest.mark.parametrize(("count", "most"), [(0, 3), (1, 1), (5, 5), (5, 99), (3, 0), (9, 1)])
def test_short_tables_are_run_whole_and_one_case_is_the_first(count, most):
    assert times.kept(count, most) == set(range(min(count, most)))


@pytest.mark.parametrize(("count", "most"), [(17, 16), (40, 2), (161, 16), (1000, 7)])
def test_long_tables_are_spread(count, most):
    places = sorted(times.kept(count, most))
    assert (len(places), places[0], places[-1]) == (most, 0, count - 1)
    gaps = {after - before for before, after in itertools.pairwise(places)}
    assert max(gaps) - min(gaps) <= 1


def test_what_does_not_fit_runs_later():
    items = cases("a.py::test_b", 50)
    times.mark(items, {("quick", "a.py::test_b"): 0.35})
    found = halves(items)
    assert (found.count("quick"), found.count("slow")) == (5, 5)
    assert found[0] == found[-1] == "quick"


@pytest.mark.parametrize("place", times.ALL_QUICK)
def test_what_decides_is_quick_whole(place):
    name = f"{place}::test_y"
    items = cases(name, 9)
    times.mark(items, {("quick", name): 3.0})
    assert set(halves(items)) == {"quick"}


def test_a_case_over_its_seconds_is_slow_and_one_runs_in_the_gate():
    items = cases("a.py::test_b", 3)
    times.mark(items, {("quick", "a.py::test_b"): 5.0})
    assert halves(items) == ["slow", "exhaustive", "exhaustive"]


def test_long_cases_are_left_out_one_by_one():
    items = [*cases("a.py::test_b", 4), *cases("a.py::test_c", 4, "slow")]
    long = {("case", items[place].nodeid): 9.0 for place in (1, 7)}
    times.mark(items, long | {("slow", "a.py::test_c"): 0.6})
    assert halves(items) == ["quick", "exhaustive", "quick", "quick", "slow", "slow", "slow", "exhaustive"]


@pytest.mark.parametrize(
    "name", ["a.py::test_b", *(f"{place}x.py::test_b" for place in times.NEVER_LEFT_OUT)]
)
def test_no_case_that_takes_very_long_runs_in_the_gate_unless_it_is_needed(name):
    items = cases(name, 2, "slow")
    times.mark(items, {("slow", name): 40.0})
    first = "slow" if name.startswith("tests/") else "exhaustive"
    assert halves(items) == [first, "exhaustive"]


def test_what_is_not_listed_or_fits_stays():
    quick, slow = cases("a.py::test_b", 90), cases("a.py::test_c", 90, "slow")
    times.mark([*quick, *slow], {("quick", "a.py::test_b"): 0.01, ("slow", "a.py::test_b"): 99.0})
    assert set(halves(quick)) == {"quick"}
    assert set(halves(slow)) == {"slow"}


def test_marks_by_hand_stand():
    slow, left = cases("a.py::test_b", 30, "slow"), cases("a.py::test_b", 2, "exhaustive")
    times.mark([*slow, *left], {("slow", "a.py::test_b"): 1.0})
    assert halves(slow).count("slow") == 2
    assert all(item.marks == {"slow", "exhaustive"} for item in left)


@pytest.mark.parametrize(("place", "most"), times.MORE.items())
def test_what_may_show_a_leak_has_more_seconds(place, most):
    name = f"{place}test_x.py::test_y"
    items = [*cases(name, 40), *cases(name, 40, "slow")]
    times.mark(items, {("quick", name): 3.0, ("slow", name): 5.0})
    assert halves(items[:40]).count("slow") == min(40, most // 3)
    assert halves(items[40:]).count("slow") == min(40, most // 5)


def test_the_table_names_tests_that_are_there():
    gone = sorted(name for _, name in times.known() if not times.is_there(name.split("[")[0]))
    assert gone == [], "DPMECH_TIMES=write make tests leaves them out"
    assert not times.is_there("tests/unit/test_times.py::test_that_nobody_wrote")
    assert not times.is_there("tests/unit/test_nothing.py::test_a")


def test_a_table_is_read_as_it_was_written(tmp_path):
    before = {("slow", NAME): 19.0, ("slow", "tests/gone.py::test_a"): 17.0, ("quick", NAME): 2.0}
    path = tmp_path / "times.toml"
    # The second case made the fixture of the module, the third one is long by itself.
    took = {f"{NAME}[0]": (0.85, 0.9), f"{NAME}[1]": (1.05, 21.05), f'{NAME}["\\]': (40.0, 40.0)}
    path.write_text(times.written({("quick", NAME): (3, took)}, {**before, ("quick", NAME): 9.0}))
    long = {("case", f'{NAME}["\\]'): 40.0}
    assert times.known(path) == {("slow", NAME): 19.0, ("quick", NAME): 1.0} | long
    # Cases that did not run may take longer.
    cheap = {f"{NAME}[{place}]": (0.05, 0.05) for place in range(9)}
    path.write_text(times.written({("quick", NAME): (10, cheap)}, before | long))
    assert times.known(path) == {("slow", NAME): 19.0, ("quick", NAME): 2.0} | long
    path.write_text(times.written({("quick", NAME): (9, cheap)}, before | long))
    assert times.known(path) == {("slow", NAME): 19.0} | long
    path.write_text(times.written({("slow", NAME): (1, {f'{NAME}["\\]': (0.1, 0.1)})}, before | long))
    assert times.known(path) == {("quick", NAME): 2.0}


@pytest.mark.parametrize(
    ("now", "took", "seconds", "is_late"),
    [
        ("quick", 6.1, {}, True),
        ("quick", 5.9, {}, False),
        ("quick", 6.1, {("quick", NAME): 3.0}, True),
        ("slow", 7.0, {}, True),
        ("slow", 5.9, {}, False),
        ("slow", 31.0, {("slow", NAME): 20.0}, False),
        ("slow", 61.0, {("slow", NAME): 20.0}, True),
        ("exhaustive", 1e4, {}, False),
    ],
)
def test_what_takes_over_three_times_what_it_has_is_late(now, took, seconds, is_late):
    found = list(times.late({(now, NAME): took}, seconds))
    assert len(found) == is_late
    assert all(line.startswith(f"{NAME} ({now}) took") for line in found)


def finished(monkeypatch, wanted, **worker):
    lines = []
    config = types.SimpleNamespace(
        get_terminal_writer=lambda: types.SimpleNamespace(line=lines.append), **worker
    )
    session = types.SimpleNamespace(config=config, exitstatus=0)
    monkeypatch.setattr(times, "_SPENT", {("quick", NAME): 1e4})
    monkeypatch.setenv("DPMECH_TIMES", wanted)
    times.pytest_sessionfinish(session)
    return session.exitstatus, "".join(lines)


def test_only_who_asks_for_it_fails(monkeypatch):
    status, said = finished(monkeypatch, "check")
    assert status == 1
    assert f"{NAME} (quick) took 10000.0 CPU seconds" in said
    assert finished(monkeypatch, "") == finished(monkeypatch, "check", workerinput={}) == (0, "")


def test_the_plugin_is_there_and_counts(request, monkeypatch):
    assert times.cpu_seconds() >= request.node.stash[times._BEGAN] > 0.0
    monkeypatch.setattr(times, "_SPENT", {("quick", "a"): 1.0})
    monkeypatch.setattr(times, "_MEASURED", {})
    report = types.SimpleNamespace(
        when="teardown", nodeid="a[x]", user_properties=[("cpu", ["quick", 7, "quick", 0.5, 0.125])]
    )
    times.pytest_runtest_logreport(report)
    assert times._SPENT == {("quick", "a"): 1.5}
    assert times._MEASURED == {("quick", "a"): (7, {"a[x]": (0.375, 0.5)})}


def test_the_makefile_runs_every_case_once():
    text = (times.ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r'\$\(PYTEST\) -m ("[^"]*"|\w+)', text) == [
        '"not slow"',
        '"not slow"',
        '"slow and not exhaustive"',
        "exhaustive",
    ]
    assert re.search(r"^check: .*\btest\b.*\bslow\b.*\bexhaustive\b", text, re.MULTILINE)
