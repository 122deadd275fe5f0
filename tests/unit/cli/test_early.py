"""What can fail early fails before anything is computed; what was computed is printed, come what may."""

import json
import sys

import pytest

import dpmech as dm
from dpmech.cli import calibrating, comparing, files, given_sigma
from dpmech.exceptions import InvalidParameterError
from dpmech.fitting import recommending
from tests.support.command_line import BUDGET, SIZES, run, validator

PLAN = (*SIZES, "--sampling", "min-sep")
IDENTITY = ("--strategy", "identity")


@pytest.fixture
def nothing_computed(monkeypatch):
    def computed(*_arguments, **_settings):
        raise AssertionError("computed before everything was looked at")

    monkeypatch.setattr(calibrating, "calibrate_sigma", computed)
    monkeypatch.setattr(recommending, "calibrate_sigma", computed)
    monkeypatch.setattr(recommending, "optimize", computed)
    monkeypatch.setattr(comparing, "baseline_of", computed)
    for name in ("epsilon", "delta", "certify_sigma"):
        monkeypatch.setattr(given_sigma, name, computed)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("calibrate", *IDENTITY, *PLAN, *BUDGET, "--out", "no/x.json"), "--out must be a file in a folder"),
        (
            ("epsilon", *IDENTITY, *PLAN, "--sigma", "1", "--delta", "1e-5", "--out", "no/x.json"),
            "--out must",
        ),
        (("delta", *IDENTITY, *PLAN, "--sigma", "1", "--eps", "1", "--out", "no/x.json"), "--out must"),
        (("optimize", *PLAN, *BUDGET, "--out", "no/x.json"), "--out must be a file in a folder"),
        (("optimize", *PLAN, *BUDGET, "--out-strategy", "no/x.json"), "--out-strategy must be a file in"),
        (("optimize", *PLAN, *BUDGET, "--figure", "no/x.png"), "--figure must be a file in a folder"),
        (("optimize", *PLAN, *BUDGET, "--eps-grid", "1,0", "--figure", "x.png"), "--eps-grid must be"),
        (("optimize", *PLAN, *BUDGET, "--objective", "mse"), "--objective must be one of"),
        (("optimize", *PLAN, *BUDGET, "--families", "lambda-cgd,blt:buffers=9"), "buffers must be"),
        (("optimize", *PLAN, *BUDGET, "--families", "lambda-cgd,bandmf:bands=99"), "bands must be"),
        (("compare", *PLAN, *BUDGET, "--strategies", "identity,bisr:bands=99"), "bands must be"),
        (("compare", *PLAN, *BUDGET, "--strategies", "identity,dense:matrix=no.npy"), "matrix must be"),
        (("compare", *PLAN, *BUDGET, "--strategies", "identity,blt:buffers=9"), "buffers must be"),
        (("compare", *PLAN, *BUDGET, "--strategies", "identity,bandmf:bands=99"), "bands must be"),
        (
            ("compare", *SIZES, *BUDGET, "--sampling", "random-allocation", "--strategies", "bandmf,blt"),
            "nothing is fitted under",
        ),
        (
            (
                "compare",
                *SIZES,
                *BUDGET,
                "--sampling",
                "poisson",
                "--strategies",
                "bsr:bands=2,lambda-cgd:lam=0.5",
            ),
            "needs independent, equal noise",
        ),
        (("calibrate", "--strategy-file", "no.json", *PLAN, *BUDGET), "--strategy-file must be"),
    ],
)
def test_before_the_computation(call, words, nothing_computed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "x.png" in call:
        pytest.importorskip("matplotlib", reason="the extra `plots` is optional")
    result = run(*call)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_told_at_once(nothing_computed, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("optimize", *PLAN, *BUDGET, "--figure", "x.png")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "matplotlib is needed here" in result.stderr


def test_a_cluster_without_its_extra_is_told_at_once(nothing_computed, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = run("calibrate", *IDENTITY, *PLAN, *BUDGET, "--dask", "tcp://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "distributed is needed here" in result.stderr


def test_a_folder_that_may_not_be_written_to(nothing_computed, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    result = run("calibrate", *IDENTITY, *PLAN, *BUDGET, "--out", tmp_path / "x.json")
    assert result.exit_code == 2
    assert "--out must be a file that may be written" in result.stderr


@pytest.mark.parametrize("place", ["file.txt", "file.txt/below", "deep/below"])
def test_a_cache_that_can_be_no_folder(place, nothing_computed, tmp_path, monkeypatch):
    (tmp_path / "file.txt").write_text("")
    if place.startswith("deep"):
        monkeypatch.setattr("os.access", lambda _path, _mode: False)
    result = run("optimize", *PLAN, *BUDGET, "--cache", tmp_path / place)
    assert result.exit_code == 2
    assert "--cache must be a folder" in result.stderr


def test_a_claim_that_is_refused_at_once_is_refused_first(nothing_computed, tmp_path, monkeypatch):
    monkeypatch.setattr(given_sigma, "certify_sigma", dm.certify_sigma)
    result = run(
        *("epsilon", *IDENTITY, *SIZES, "--sampling", "balls-in-bins", "--sigma", "1", "--delta", "1e-5"),
        *("--method", "importance", "--out", tmp_path / "x.json"),
    )
    assert result.exit_code == 2
    assert "but a certificate of a given sigma uses none" in result.stderr


def test_who_stops_a_command_gets_no_verdict(monkeypatch):
    def stopped(*_arguments, **_settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrating, "calibrate_sigma", stopped)
    result = run("calibrate", *IDENTITY, *PLAN, *BUDGET)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "dpmech calibrate: stopped\n")


def full(*_arguments, **_settings):
    raise InvalidParameterError("path", "x.json", "a file that can be written (no space left)")


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(
    "call",
    [
        ("calibrate", *IDENTITY, *PLAN, *BUDGET),
        ("epsilon", *IDENTITY, *PLAN, "--sigma", "2", "--delta", "1e-5"),
        ("delta", *IDENTITY, *PLAN, "--sigma", "2", "--eps", "1"),
        ("optimize", *PLAN, *BUDGET, "--families", "lambda-cgd"),
    ],
    ids=lambda call: call[0],
)
def test_what_was_computed_is_printed_though_it_cannot_be_written(call, form, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "write_text", full)
    result = run(*call, "--out", tmp_path / "x.json", *form)
    assert result.exit_code == 2
    assert "must be a file that can be written (no space left)" in result.stderr
    if form:
        found = json.loads(result.stdout)
        validator(found["schema"]["name"]).validate(found)
        assert found["certificate"] is None
    else:
        assert "sigma" in result.stdout


def test_verify_gives_the_verdicts_that_it_can(tmp_path):
    good = tmp_path / "good.json"
    dm.calibrate_sigma(dm.Identity(4), 1.0, 1e-5).certificate().save(good)
    forged = tmp_path / "forged.json"
    forged.write_text(good.read_text().replace('"eps": {"decimal": 1.0', '"eps": {"decimal": 0.5'))
    missing = tmp_path / "missing.json"
    result = run("verify", missing, good, forged)
    assert result.exit_code == 2
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{good}: VERIFIED: exact")
    assert second.startswith(f"{forged}: REFUSED: file: ")
    assert result.stderr == f"dpmech verify: {missing} must be a readable file (No such file or directory)\n"
    found = json.loads(run("verify", missing, good, "--json").stdout)
    validator("dpmech verify").validate(found)
    assert [one["ok"] for one in found["files"]] == [True]
    assert found["unread"][0]["source"] == str(missing)
