"""Plans that look like mistakes get a note, on standard error and in the JSON, and nothing else changes."""

import json
import math
import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech import cli
from dpmech.cli.results import plan_notes
from dpmech.plans.training_plans import TrainingPlan
from tests.support.quick_cases import slow_but

CLEAN = {
    "dataset_size": "120",
    "batch_size": "10",
    "epochs": "3",
    "sampling": "min-sep",
    "eps": "2",
    "delta": "1e-5",
}
BINS = CLEAN | {
    "dataset_size": "12",
    "batch_size": "6",
    "epochs": "1",
    "sampling": "balls-in-bins",
    "delta": "1e-2",
    "seed": "1",
}
COMMANDS = {
    "calibrate": ["--strategy", "lambda-cgd", "--lam", "0.5"],
    "compare": ["--strategies", "lambda-cgd:lam=0.5,identity"],
    "optimize": ["--families", "lambda-cgd"],
}


def run(command, **options):
    parts = []
    for key, value in (CLEAN | options).items():
        parts += [f"--{key.replace('_', '-')}", *([] if value is None else [value])]
    return CliRunner().invoke(cli.main, [command, *COMMANDS[command], *parts])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_sound_plan_gets_none(command):
    result = run(command)
    assert result.exit_code == 0, result.output
    assert "note" not in result.stderr
    assert json.loads(run(command, json=None).stdout)["notes"] == []


NOTES = [
    ({"delta": "0.01"}, ["delta 0.01 is above 1 / dataset_size (1 / 120)"]),
    ({"batch_size": "50"}, ["2 whole batches of 50 leaves 20 of the 120 examples over (16.7 %"]),
    ({"eps": "21"}, ["eps 21 is above 20"]),
    ({"eps": "21", "delta": "0.5", "batch_size": "70"}, ["eps 21", "delta 0.5", "leaves 50 of the 120"]),
]


@pytest.mark.parametrize(
    ("delta", "size", "words"),
    [
        (1e-5, 100_000, "delta 1e-05 is 1 / dataset_size (1 / 100000): publishing one example"),
        (1e-5, 100_001, "delta 1e-05 is above 1 / dataset_size (1 / 100001)"),
        (1e-5, 99_999, ""),
        (0.2, 5, "delta 0.2 is 1 / dataset_size (1 / 5)"),
    ],
)
def test_a_delta_of_one_over_the_size_is_told_as_typed(delta, size, words):
    notes = plan_notes(TrainingPlan(size, 1, 1), [1.0], delta)
    assert "".join(notes).startswith(words)
    assert bool(notes) == bool(words)


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        pytest.param(command, *note, marks=[pytest.mark.slow] if command != "calibrate" and place else [])
        for command in COMMANDS
        for place, note in enumerate(NOTES)
    ],
)
def test_notes_go_to_standard_error_and_into_the_json(command, options, words):
    check_notes(command, options, words)


@pytest.mark.parametrize(
    "command",
    ["calibrate", *(pytest.param(name, marks=pytest.mark.slow) for name in ("compare", "optimize"))],
)
def test_estimates_are_noted(command):
    check_notes(
        command, {**BINS, "method": "importance"}, ["an estimate, not a bound: lambda-cgd", "--rigorous"]
    )


def check_notes(command, options, words):
    result = run(command, **options)
    assert result.exit_code == 0, result.output
    assert "note:" not in result.stdout
    lines = [line for line in result.stderr.splitlines() if line.startswith("dpmech: note: ")]
    record = json.loads(run(command, **options, json=None).stdout)
    for word in words:
        assert sum(word in line for line in lines) == 1
        assert sum(word in note for note in record["notes"]) == 1
    assert lines == [f"dpmech: note: {note}" for note in record["notes"]]


@pytest.mark.slow
def test_a_bound_is_no_estimate():
    record = json.loads(run("compare", **BINS, rigorous=None, json=None).stdout)
    assert record["notes"] == []
    assert {row["guarantee"] for row in record["strategies"]} == {"deterministic upper bound"}
    unseeded = {name: value for name, value in BINS.items() if name != "seed"}
    record = json.loads(run("compare", **unseeded, json=None).stdout)
    assert record["notes"] == []
    said = {row["guarantee"] for row in record["strategies"]}
    # Independent noise needs no samples.
    assert said == {"with probability 1 - beta, beta 1e-09, inside delta", "deterministic upper bound"}


@given(st.integers(1, 10**9), st.floats(1e-12, 0.5), st.integers(1, 10**9))
def test_the_limits_are_exact(size, delta, batch):
    plan = TrainingPlan(size, min(batch, size), 1)
    text = " ".join(plan_notes(plan, [20.0], delta))
    over = delta > 1.0 / size if not math.isclose(delta * size, 1.0, rel_tol=1e-12) else None
    if over is not None:
        assert ("delta" in text) == over
    assert ("examples over" in text) == (100 * (size % plan.batch_size) > size)
    assert "eps" not in text


@pytest.mark.parametrize("size", [3, 7, 49, 10**6, 50_000])
def test_delta_at_the_limit_itself_allows_what_a_larger_one_does(size):
    plan, edge = TrainingPlan(size, 1, 1), 1.0 / size
    (note,) = plan_notes(plan, [1.0], edge)
    assert f" is 1 / dataset_size (1 / {size}): publishing one example" in note
    assert plan_notes(plan, [1.0], math.nextafter(edge, 0.0)) == []
    assert " is above 1 / dataset_size" in plan_notes(plan, [1.0], math.nextafter(edge, 1.0))[0]


def test_every_estimate_is_named_once_and_every_large_eps():
    plan = TrainingPlan(100, 10, 1)
    notes = plan_notes(plan, [30.0, 8.0, 25.0], 1e-5, estimates=["a", "b", "a"])
    assert [note.split(" is above")[0] for note in notes[:2]] == ["eps 30", "eps 25"]
    assert "a, b;" in notes[2]


BOTH = "balls-in-bins,balls-in-bins:fresh"
IDENTITY = CLEAN | {"dataset_size": "120", "batch_size": "30", "sampling": "balls-in-bins"}


def of_identity(command, **options):
    parts = ["--strategy", "identity"] if command == "calibrate" else ["--strategies", "identity"]
    for key, value in (IDENTITY | options).items():
        parts += [f"--{key.replace('_', '-')}", value]
    return CliRunner().invoke(cli.main, [command, *parts, "--json"])


@pytest.mark.slow
def test_identity_under_one_allocation_is_told_what_a_new_one_would_need():
    result = of_identity("calibrate")
    assert result.exit_code == 0, result.output
    (note,) = json.loads(result.stdout)["notes"]
    said = re.search(
        r"identity needs sigma (\S+) under one allocation .* all 3 epochs; .* about (\S+) would", note
    )
    assert "a new allocation every epoch (--fresh) about" in note
    sigma = json.loads(result.stdout)["sigma"]
    assert float(said[1]) == pytest.approx(sigma, rel=0.01)
    fresh = dm.delta(dm.Identity(12), 1.1 * float(said[2]), 2.0, participation=dm.BallsInBins(4, fresh=True))
    assert fresh.upper <= 1e-5
    assert float(said[2]) < 0.9 * sigma
    assert "note: identity needs sigma" in result.stderr


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_comparison_with_a_row_for_it_needs_no_note():
    one, both = (of_identity("compare", sampling=names) for names in ("balls-in-bins", BOTH))
    assert one.exit_code == both.exit_code == 0
    assert "--fresh" in json.loads(one.stdout)["notes"][0]
    found = json.loads(both.stdout)
    assert found["notes"] == []
    fixed, fresh = found["strategies"]
    assert [fixed["sampling"], fresh["sampling"]] == BOTH.split(",")
    assert fresh["sigma"] < 0.9 * fixed["sigma"]


@pytest.mark.parametrize(
    "options",
    slow_but(
        [{"epochs": "1"}, {"sampling": "min-sep"}, {"sampling": "poisson"}, {"batch_size": "120"}], 0, 1
    ),
)
def test_where_nothing_is_lost_nothing_is_said(options):
    result = of_identity("calibrate", **options)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["notes"] == []


def test_notes_on_a_claim_about_users_speak_of_users():
    plan = TrainingPlan(dataset_size=100, batch_size=10, epochs=1)
    of_users = " ".join(plan_notes(plan, [30.0], 0.1, unit=dm.Unit.USER))
    assert "publishing all data of a user picked" in of_users
    assert "a guess about a user may grow" in of_users
    assert "user" not in " ".join(plan_notes(plan, [30.0], 0.1))
