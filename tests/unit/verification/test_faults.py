"""Planted faults: what the list and its page hold, and that a rerun sees what fails."""

import ast
import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest

from verification.faults._corpus import (
    LEAST_FALL,
    STILL_TRUE,
    Change,
    Fault,
    NotThereError,
    by_hand,
    load,
    modules,
    save,
)
from verification.faults._factors import scaled
from verification.faults._page import PAGE, write_page
from verification.faults._plans import PLANS

ROOT = pathlib.Path(__file__).parents[3]
CLOSED_FORM = ("every step", "single", "min-sep", "epochs", "users, min-sep")


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "verification.faults", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_corpus_holds_faults_that_the_checker_does_not_prove():
    faults = load()
    assert len(faults) >= 200
    assert len({fault.change for fault in faults}) == len(faults)
    assert all(fault.fall >= LEAST_FALL for fault in faults)
    assert {fault.verdict for fault in faults} <= {"REFUTED", "NOT CHECKED", "NO DOCUMENT"}
    assert sum(fault.verdict == "REFUTED" for fault in faults) >= 0.85 * len(faults)
    assert {fault.plan for fault in faults} <= PLANS.keys()
    assert {fault.change.module for fault in faults} <= set(modules())


def test_lower_claims_that_are_proved_are_true_by_the_library_or_open():
    for fault in load(STILL_TRUE):
        assert fault.verdict == "PROVED"
        assert fault.library in {"true", "open"}


def test_faults_that_were_thought_of_are_in_the_corpus():
    assert {one for one in by_hand()} <= {fault.change for fault in load()}


def test_the_page_lists_the_corpus(tmp_path):
    page = tmp_path / "faults.md"
    write_page(page, load(), load(STILL_TRUE))
    assert PAGE.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    assert "the checker PROVED none.\n" in PAGE.read_text(encoding="utf-8")


def test_the_page_says_where_a_false_claim_was_proved(tmp_path):
    page = tmp_path / "faults.md"
    first, *others = load()
    write_page(page, [dataclasses.replace(first, verdict="PROVED"), *others], [])
    assert "the checker PROVED 1.\n" in page.read_text(encoding="utf-8")


def test_results_of_statements_get_a_factor_either_way():
    source = """
LIMIT = 2 + 1
def area(x):
    y = x + 1
    if y > 3:
        return area(y) * LIMIT
    y, z = x, "word"
    return x > 2
"""
    found = list(scaled("sample", source))
    assert [(one.function, one.before, one.after) for one in found] == [
        ("area", "y = x + 1", "y = 0.97 * (x + 1)"),
        ("area", "y = x + 1", "y = 1.03 * (x + 1)"),
        ("area", "return area(y) * LIMIT", "return 0.97 * (area(y) * LIMIT)"),
        ("area", "return area(y) * LIMIT", "return 1.03 * (area(y) * LIMIT)"),
    ]
    assert [list(one.lines) for one in found] == [[4], [4], [6], [6]]
    assert "return 1.03 * (area(y) * LIMIT)" in ast.unparse(found[3].tree)


@pytest.mark.parametrize("by", ["the tool", "hand"])
def test_a_change_that_is_gone_is_said_to_be_gone(by):
    change = Change(
        "engines.gaussian",
        "gaussian_sigma",
        "no_such * expression",
        "1",
        0,
        "" if by == "the tool" else by,
    )
    with pytest.raises(LookupError, match="no_such"):
        change.tree()


def test_a_rerun_refutes_faults_and_sees_those_that_lower_nothing_or_are_gone(tmp_path):
    corpus = [fault for fault in load() if fault.plan.startswith(CLOSED_FORM)]
    some = [*corpus[:: len(corpus) // 4], next(fault for fault in load() if fault.plan == "users, cyclic")]
    save(some, tmp_path / "some.json")
    done = run("--corpus", tmp_path / "some.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(some)} faults: " in done.stdout

    harmless = Change("mechanism.sensitivities", "_chain", "1.01 * k * UNIT", "2.0 * (1.01 * k * UNIT)")
    gone = dataclasses.replace(harmless, before="nothing * like * it")
    faults = [Fault(change, "min-sep, apart", 1.0, 0.9, "REFUTED", "false") for change in (harmless, gone)]
    save(faults, tmp_path / "bad.json")
    done = run("--corpus", tmp_path / "bad.json")
    assert done.returncode == 1
    assert "LOWERS NOTHING: mechanism.sensitivities._chain" in done.stdout
    assert "GONE: mechanism.sensitivities._chain" in done.stdout


@pytest.mark.slow
def test_a_sample_of_the_corpus_is_refused_again():
    done = run("--sample", 25)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_fault_by_hand_still_stands_in_the_code():
    """A run would leave one out whose text occurs twice, or is gone."""
    changes = [fault.change for fault in load() if fault.change.by_hand]
    assert len(changes) > 80
    for change in changes:
        assert change.tree() is not None
    lost = dataclasses.replace(changes[0], before="no such text")
    with pytest.raises(NotThereError, match="0 times"):
        lost.tree()
