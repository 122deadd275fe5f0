"""What is printed with --json follows a schema that the package ships, and changes in nothing but seconds."""

import json

import jsonschema
import numpy as np
import pytest

import dpmech as dm
from dpmech import cli
from dpmech.cli.printing import VERSION, document
from dpmech.cli.results import as_data
from tests.support.command_line import BUDGET, SIZES, done, schema, told, validator

LAMBDA = ("--strategy", "lambda-cgd", "--lam", "0.5")
CLAIM = """[[claim]]
name = "run"
sampling = "min-sep"
dataset_size = 120
batch_size = 10
epochs = 3
sigma = 2.0
delta = 1e-5
claimed_eps = 40.0
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = dm.calibrate_sigma(dm.Identity(36), 2.0, 1e-5, participation=dm.MinSep(12, 3))
    plain.certificate(1.0, 10.0).save("certificate.json")
    (tmp_path / "claims.toml").write_text(CLAIM)
    (tmp_path / "short.json").write_text(dm.Identity(36).to_json())
    dm.certificates.new_key(tmp_path / "key.pem")
    return tmp_path


def calls():
    """A call of every command."""
    plan = (*SIZES, "--sampling", "min-sep")
    return {
        "calibrate": ("calibrate", *LAMBDA, *plan, *BUDGET, "--out", "new.json"),
        "epsilon": ("epsilon", *LAMBDA, *plan, "--sigma", "2", "--delta", "1e-5"),
        "delta": ("delta", *LAMBDA, *plan, "--sigma", "2", "--eps", "1"),
        "compare": (
            *("compare", "--strategies", "identity,lambda-cgd:lam=0.5", *SIZES, *BUDGET),
            *("--sampling", "min-sep,poisson"),
        ),
        "optimize": ("optimize", "--families", "lambda-cgd", *plan, *BUDGET, "--out-strategy", "fit.json"),
        "recommend": (
            *("recommend", "--max-vectors", "1", *SIZES, *BUDGET, "--sampling", "min-sep,poisson"),
            *("--out", "best.json", "--out-strategy", "best-fit.json"),
        ),
        "verify": ("verify", "certificate.json"),
        "sign": ("sign", "certificate.json", "--key", "key.pem", "--issuer", "review", "--replace"),
        "audit": ("audit", "claims.toml"),
        "doctor": ("doctor",),
        "show": ("show", "certificate.json"),
        "risk": ("risk", "certificate.json", "--fpr", "0.01"),
        "plan": (
            *("plan", "--dataset-size", "120", "--delta", "1e-4", "--epochs", "2", "--batch-size", "20"),
            *("--min-eps", "1", "--max-eps", "1.05", "--out", "planner.html"),
        ),
        "report": ("report", "certificate.json", "--out", "review.html"),
        "ledger add": (
            *("ledger", "add", "ledger.json", "certificate.json", "--name", "a", "--new"),
            *("--eps", "4", "--delta", "1e-5"),
        ),
        "ledger add-counts": (
            *("ledger", "add-counts", "counts.json", "--name", "a", "--sigma", "20", "--releases", "3"),
            *("--new", "--adjacency", "zero_out"),
        ),
        "ledger add-mechanism": (
            *(
                "ledger",
                "add-mechanism",
                "mechanisms.json",
                "--name",
                "a",
                "--kind",
                "laplace",
                "--scale",
                "20",
            ),
            *("--sensitivity", "1", "--count", "3", "--new"),
        ),
        "ledger show": ("ledger", "show", "ledger.json"),
        "ledger remaining": ("ledger", "remaining", "ledger.json", "certificate.json"),
    }


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key != "seconds"}
    return [timeless(one) for one in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_every_command_follows_its_schema_and_changes_in_seconds_alone(folder):
    for name, call in calls().items():
        first = told(*call)
        assert first["schema"] == {"name": f"dpmech {name}", "version": VERSION}
        jsonschema.Draft202012Validator(schema()).validate(first)
        if name in {"ledger add", "ledger add-counts", "ledger add-mechanism"}:
            (folder / call[2]).unlink()
        assert timeless(told(*call)) == timeless(first)


def test_no_command_is_without_a_schema():
    names = {name for name, command in cli.main.commands.items() if name != "ledger"}
    names |= {f"ledger {name}" for name in cli.main.commands["ledger"].commands}
    assert names == set(calls())
    jsonschema.Draft202012Validator.check_schema(schema())


def test_the_schema_refuses_what_is_not_so(folder):
    (good,) = (told(*calls()["calibrate"]) for _ in range(1))
    for key, value in (
        ("sigma", "2"),
        ("sigma", -1.0),
        ("guarantee", "sure"),
        ("new", 1),
        ("participation", "x"),
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator("dpmech calibrate").validate(good | {key: value})
    with pytest.raises(jsonschema.ValidationError):
        validator("dpmech delta").validate(good)


def test_participation_and_strategy_are_data(folder):
    found = told(*calls()["calibrate"])
    assert dm.Participation.from_dict(found["participation"]) == dm.MinSep(12, 3)
    assert dm.Strategy.from_dict(found["strategy"]) == dm.LambdaCGD(36, 0.5)
    several = told(*calls()["compare"])["plan"]["participation"]
    assert [dm.Participation.from_dict(one) for one in several] == [dm.MinSep(12, 3), dm.Poisson(10 / 120)]
    claims = told(*calls()["audit"])["claims"]
    assert dm.Participation.from_dict(claims[0]["participation"]) == dm.MinSep(12, 3)


def test_a_large_matrix_is_named_and_not_listed(folder, monkeypatch):
    rows = ("--dataset-size", "201", "--batch-size", "1", "--epochs", "1", "--sampling", "single")
    matrix = np.eye(201)
    np.save("matrix.npy", matrix)
    found = told("calibrate", "--strategy", "dense", "--matrix", "matrix.npy", *rows, *BUDGET)
    expected = dm.Dense(matrix)
    assert found["strategy"] == {"type": "Dense", "n": 201, "fingerprint": expected.fingerprint()}
    small = as_data(dm.Dense(np.eye(200)))
    assert dm.Strategy.from_dict(small) == dm.Dense(np.eye(200))
    assert as_data(dm.LambdaCGD(10**6, 0.5)) == dm.LambdaCGD(10**6, 0.5).to_dict()


def test_a_document_holds_no_number_that_json_has_not():
    with pytest.raises(ValueError, match="JSON"):
        document("audit", {"claims": [float("nan")]})
    assert json.loads(document("audit", {"failed": 0}))["failed"] == 0


def test_runs_and_ledgers_are_shown_as_data(folder):
    done(*calls()["ledger add"])
    (found,) = told("show", "ledger.json")["files"]
    assert found["kind"] == "ledger"
    assert found["ledger"]["budget"] == {"eps": 4.0, "delta": 1e-5}
    assert found["ledger"]["total"]["eps_upper"] <= 4.0
