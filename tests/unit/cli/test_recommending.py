"""`dpmech recommend`: what it prints and writes is `dm.recommend`, and can be verified."""

import json

import pytest

import dpmech as dm
from tests.support.command_line import BUDGET, SIZES, done, run, told

PLAN = (*SIZES, *BUDGET, "--sampling", "poisson,min-sep")
CALL = ("recommend", *PLAN, "--max-vectors", "2")


def test_it_is_the_function_and_keeps_the_limit():
    document = told(*CALL)
    found = dm.recommend(
        dataset_size=120,
        batch_size=10,
        epochs=3,
        eps=2.0,
        delta=1e-5,
        max_vectors=2,
        samplings=("poisson", "min-sep"),
    )
    best, rows = document["best"], document["strategies"]
    assert (best["sigma"], best["rmse"]) == (found.calibration.sigma, found.calibration.rmse())
    assert dm.Strategy.from_dict(best["strategy"]) == found.strategy
    assert best in rows
    assert best["rmse"] == min(row["rmse"] for row in rows) <= document["baseline"]["rmse"]
    assert len(rows) == len(found.trials)
    assert all(row["buffers"] + row["regenerated"] <= 2 for row in rows)
    assert {row["sampling"] for row in rows if row["label"] == "identity"} == {"poisson", "min-sep"}
    assert document["max_vectors"] == 2


@pytest.mark.parametrize("command", ["compare", "optimize"])
def test_the_other_commands_fit_the_same(command):
    families = "lambda-cgd,blt:buffers=2,bandmf:bands=3,bandinv:bands=3,dense:bands=3"
    option = "--strategies" if command == "compare" else "--families"
    fixed = (*SIZES, *BUDGET, "--sampling", "min-sep")
    document = told(command, *fixed, option, families)
    rows = document["strategies"] if command == "compare" else document["fits"][0]["families"]
    name = "label" if command == "compare" else "family"
    own = {row["label"]: row for row in told(*CALL)["strategies"] if row["sampling"] == "min-sep"}
    seen = {row[name]: row for row in rows if row["strategy"] is not None}
    assert seen.keys() == own.keys() - ({"identity"} if command == "compare" else set())
    for label, row in seen.items():
        assert row["strategy"] == own[label]["strategy"]
        for key in ("sigma", "rmse"):
            assert row[key] == pytest.approx(own[label][key], rel=1e-12)


@pytest.mark.slow
def test_the_certificate_is_proved_and_the_strategy_is_its(tmp_path):
    certificate, fit = tmp_path / "certificate.json", tmp_path / "fit.json"
    call = (*CALL, "--out", certificate, "--out-strategy", fit, "--clip-norm", "0.5")
    text = done(*call).stdout
    (claim,) = told("verify", certificate)["files"]
    assert claim["claim"]["verdict"] == "PROVED"
    own = dm.Certificate.load(certificate)
    best = told(*CALL)["best"]
    assert (own.sigma, own.clip_norm, own.expected_batch_size) == (best["sigma"], 0.5, 10.0)
    assert dm.Strategy.from_json(fit.read_text()) == own.strategy
    again = told("calibrate", "--strategy-file", fit, *SIZES, *BUDGET, "--sampling", best["sampling"])
    assert again["sigma"] == best["sigma"]
    assert f"certificate of {best['label']} under {best['sampling']}: {certificate} (clip norm 0.5)" in text
    (line,) = (one for one in text.splitlines() if one.startswith("best: "))
    assert f"under {best['sampling']}" in line
    # Another file is not replaced, but what was found is printed.
    fit.write_text("mine")
    refused = run(*call)
    assert (refused.exit_code, fit.read_text()) == (2, "mine")
    assert "--out-strategy must be a new file" in refused.stderr
    assert "best: " in refused.stdout


def test_no_vectors_leave_independent_noise():
    document = told("recommend", *PLAN, "--max-vectors", "0")
    assert [row["label"] for row in document["strategies"]] == ["identity"] * 2
    assert document["best"]["sampling"] == "poisson"


def test_a_sampling_without_a_theorem_has_a_row_that_says_so():
    sampling = ("--sampling", "fixed-size,poisson")
    document = told("recommend", *SIZES, *BUDGET, *sampling, "--max-vectors", "1")
    assert "REPLACE_ONE" in document["strategies"][0]["unavailable"]
    assert document["best"]["sampling"] == "poisson"


def test_quiet_and_json():
    result = done(*CALL, "--json", "-q")
    assert result.stderr == ""
    assert json.loads(result.stdout)["schema"] == {"name": "dpmech recommend", "version": 1}


@pytest.mark.slow
def test_it_samples_under_balls_in_bins_by_default_and_two_processes_say_the_same(tmp_path):
    sizes = ("--dataset-size", "40", "--batch-size", "10", "--epochs", "2", "--eps", "4", "--delta", "1e-4")
    call = ("recommend", *sizes, "--max-vectors", "1", "--seed", "3")

    def timeless(document):
        return [{key: one for key, one in row.items() if key != "seconds"} for row in document["strategies"]]

    document = told(*call, "--out", tmp_path / "certificate.json")
    assert document["plan"]["sampling"] == ["poisson", "random-allocation", "balls-in-bins", "min-sep"]
    assert len({row["sampling"] for row in document["strategies"]}) == 4
    assert timeless(told(*call, "--workers", "2")) == timeless(document)
