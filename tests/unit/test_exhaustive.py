"""Slow cases that the gate leaves to `make check`."""

import itertools
import re
from pathlib import Path

import pytest

from tests.support import exhaustive
from tests.support.exhaustive import MOST, kept

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", [0, 1, MOST - 1, MOST])
def test_short_tables_are_run_whole(count):
    assert kept(count) == set(range(count))


@pytest.mark.parametrize("count", [MOST + 1, 2 * MOST, 161, 1000])
def test_long_ones_are_spread_over_the_table(count):
    places = sorted(kept(count))
    assert len(places) == MOST
    assert (places[0], places[-1]) == (0, count - 1)
    gaps = {after - before for before, after in itertools.pairwise(places)}
    assert max(gaps) - min(gaps) <= 1


class Item:
    def __init__(self, nodeid, *, slow):
        self.nodeid, self.marks = nodeid, {"slow"} if slow else set()

    def get_closest_marker(self, name):
        return name if name in self.marks else None

    def add_marker(self, mark):
        self.marks.add(mark.name)


def test_only_slow_cases_of_long_tables_are_left_out():
    long = [Item(f"a.py::test_table[{case}]", slow=True) for case in range(40)]
    others = [Item(f"a.py::test_quick[{case}]", slow=False) for case in range(40)]
    short = [Item(f"a.py::test_short[{case}]", slow=True) for case in range(MOST)]
    whole = [Item(f"{place}test_x[{case}]", slow=True) for place in exhaustive.WHOLE for case in range(40)]
    exhaustive.mark([*long, *others, *short, *whole])
    assert not any("exhaustive" in item.marks for item in whole)
    left = [item for item in [*long, *others, *short] if "exhaustive" in item.marks]
    assert len(left) == 40 - MOST
    assert set(left) < set(long)


def test_what_is_marked_by_itself_is_slow_and_counts_in_no_table():
    cases = [Item(f"a.py::test_table[{case}]", slow=True) for case in range(MOST)]
    marked = [Item("a.py::test_table[alone]", slow=True), Item("a.py::test_other", slow=False)]
    for item in marked:
        item.marks.add("exhaustive")
    exhaustive.mark([*marked, *cases])
    assert all(item.marks == {"slow", "exhaustive"} for item in marked)
    assert all(item.marks == {"slow"} for item in cases)


def test_the_makefile_runs_every_case_once():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r'\$\(PYTEST\) -m ("[^"]*"|\w+)', text) == [
        '"not slow"',
        '"not slow"',
        '"slow and not exhaustive"',
        "exhaustive",
    ]
    assert re.search(r"^check: .*\btest\b.*\bslow\b.*\bexhaustive\b", text, re.MULTILINE)
