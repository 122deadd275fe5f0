"""What of test files that became slow is seen, and that the table is one of files that are there."""

import types

import pytest

from tests.support import budgets

NAME = "tests/unit/test_budgets.py"
QUICK, SLOW = ("quick", NAME), ("slow", NAME)


def test_the_table_names_files_that_are_there():
    known = budgets.measured()
    assert {half for half, _ in known} <= {"quick", "slow"}
    assert [name for _, name in known if not (budgets.ROOT / name).is_file()] == []
    assert all(seconds >= budgets.LEAST for seconds in known.values())


# Of every half some file is known, as nothing is said of a half that was never measured.
OTHERS = {("quick", "another"): 11.0, ("slow", "another"): 11.0}


@pytest.mark.parametrize(
    ("spent", "known", "options", "late"),
    [
        ({QUICK: 29.9}, OTHERS, {}, False),
        ({QUICK: 30.1}, OTHERS, {}, True),
        ({QUICK: 61.0}, OTHERS | {QUICK: 20.0}, {}, True),
        ({QUICK: 59.0}, OTHERS | {QUICK: 20.0}, {}, False),
        ({QUICK: 119.0}, OTHERS | {QUICK: 20.0}, {"covered": True}, False),
        ({SLOW: 30.1}, OTHERS | {QUICK: 20.0}, {}, True),
        ({SLOW: 1e4}, {QUICK: 20.0}, {}, False),
        # This file has the word hypothesis in it; in the slow half properties always draw as many.
        ({QUICK: 149.0}, OTHERS, {"examples": 100}, False),
        ({QUICK: 151.0}, OTHERS, {"examples": 100}, True),
        ({SLOW: 30.1}, OTHERS, {"examples": 100}, True),
        ({("quick", "tests/conftest.py/none"): 30.1}, OTHERS, {"examples": 100}, True),
    ],
)
def test_what_takes_over_three_times_as_long_is_late(spent, known, options, late):
    found = list(budgets.slow_files(spent, known, **options))
    assert len(found) == late
    assert all(line.startswith(f"{name} ({half}) took") for line in found for half, name in spent)


def test_a_table_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "budgets.toml"
    path.write_text(budgets.written({QUICK: 12.4, SLOW: 9.9}, {SLOW: 19.0, ("slow", "other"): 17.0}))
    assert budgets.measured(path) == {QUICK: 12, ("slow", "other"): 17}


def finished(monkeypatch, wanted, **worker):
    lines = []
    config = types.SimpleNamespace(
        getoption=lambda name, default: default,
        get_terminal_writer=lambda: types.SimpleNamespace(line=lines.append),
        **worker,
    )
    session = types.SimpleNamespace(config=config, exitstatus=0)
    monkeypatch.setattr(budgets, "_SPENT", {QUICK: 1e4})
    monkeypatch.setenv("DPMECH_BUDGETS", wanted)
    budgets.pytest_sessionfinish(session)
    return session.exitstatus, "".join(lines)


def test_only_who_asks_for_it_fails(monkeypatch):
    status, said = finished(monkeypatch, "check")
    assert status == 1
    assert f"{NAME} (quick) took 10000 CPU seconds" in said
    assert finished(monkeypatch, "") == finished(monkeypatch, "check", workerinput={}) == (0, "")


def test_the_plugin_is_there_and_counts(request):
    assert budgets.cpu_seconds() >= request.config.stash[budgets._BEGAN] > 0.0
    report = types.SimpleNamespace(
        when="teardown", nodeid=f"{NAME}::x", user_properties=[("cpu", ["quick", 0.0])]
    )
    before = dict(budgets._SPENT)
    budgets.pytest_runtest_logreport(report)
    assert dict(budgets._SPENT) == {QUICK: 0.0} | before
