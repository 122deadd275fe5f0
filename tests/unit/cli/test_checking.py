import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech import cli
from dpmech.certificates.claim import with_checksum
from tests.support import saved
from tests.support.reviewed import run_of

ROOT = pathlib.Path(__file__).parents[3]
PLAN = ["--strategy", "lambda-cgd", "--lam", "0.9", "--dataset-size", "120", "--batch-size", "10",
        "--epochs", "3", "--eps", "2", "--delta", "1e-5"]  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "certificate.json"
    result = run("calibrate", *PLAN, "--sampling", "min-sep", "--clip-norm", "0.5", "--out", target)
    assert result.exit_code == 0, result.output
    assert str(target) in result.stdout.replace("\n", "")
    return target


def test_calibrate_writes_what_the_library_issues(path):
    certificate = dm.Certificate.load(path)
    cal = dm.calibrate_sigma(dm.LambdaCGD(36, 0.9), 2.0, 1e-5, participation=dm.MinSep(12, 3))
    assert certificate == cal.certificate(0.5, 10)
    assert [item.name for item in path.parent.iterdir()] == ["certificate.json"]


def test_calibrate_says_where_in_json(tmp_path):
    target = tmp_path / "certificate.json"
    result = run("calibrate", *PLAN, "--sampling", "epochs", "--out", target, "--json")
    record = json.loads(result.stdout)
    assert record["certificate"] == str(target)
    assert record["sigma"] == dm.Certificate.load(target).sigma
    assert dm.Certificate.load(target).clip_norm is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--clip-norm", "0", "--out", "x.json"], "--clip-norm must be a finite number in (0, inf)"),
        (["--out", "no/such/folder/x.json"], "--out must be a file in a folder that exists"),
    ],
)
def test_bad_input_of_calibrate(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("calibrate", *PLAN, "--sampling", "epochs", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_only_a_bound_is_rigorous():
    estimate, bound = saved.path_of("bins"), saved.path_of("bins moments")
    assert run("verify", estimate, bound).exit_code == 0
    result = run("verify", "--rigorous", estimate, bound)
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{estimate}: REFUSED: rigour: the claim is based on an estimate")
    assert second.startswith(f"{bound}: VERIFIED: deterministic upper bound; claim PROVED except with ")


@pytest.mark.slow
def test_rigorous_samples_with_its_error_inside_delta_or_not_at_all(tmp_path):
    default, seeded, bound, estimate = (
        tmp_path / f"{name}.json" for name in ("default", "seeded", "bound", "no")
    )
    plan = ["calibrate", *PLAN, "--sampling", "balls-in-bins", "--rtol", "0.003"]
    assert run(*plan, "--rigorous", "--out", default).exit_code == 0
    assert run(*plan, "--seed", 4, "--out", seeded).exit_code == 0
    assert run(*plan, "--seed", 4, "--rigorous", "--out", bound).exit_code == 0
    assert run(*plan, "--method", "importance", "--out", estimate).exit_code == 0
    result = run(*plan, "--method", "importance", "--rigorous")
    assert result.exit_code == 2
    assert "method must be left out, or a method that proves a bound, with --rigorous" in result.stderr
    said = {path: dm.Certificate.load(path) for path in (default, seeded, bound, estimate)}
    assert [str(one.guarantee) for one in said.values()] == [
        "with probability 1 - beta, beta 1e-09, inside delta",
        "with probability 1 - beta",
        "deterministic upper bound",
        "estimate",
    ]
    assert said[seeded].evidence.rng_supplied
    for one in said.values():
        assert one.sigma == pytest.approx(said[bound].sigma, rel=0.1)
    assert run("verify", *said).exit_code == 0
    result = run("verify", "--rigorous", *said)
    assert result.exit_code == 1
    first, second, third, fourth = result.stdout.splitlines()
    assert first.startswith(
        f"{default}: VERIFIED: with probability 1 - beta over dpmech's own sampling, beta = "
    )
    assert "; claim PROVED except with probability " in first
    assert second.startswith(f"{seeded}: REFUSED: rigour: the claim holds with probability 1 - beta only")
    assert third.startswith(f"{bound}: VERIFIED: deterministic upper bound; claim PROVED except with ")
    assert fourth.startswith(f"{estimate}: REFUSED: rigour: the claim is based on an estimate")


def test_verify_prints_one_line_a_verdict(path):
    result = run("verify", path)
    assert result.exit_code == 0
    assert re.fullmatch(rf"{re.escape(str(path))}: VERIFIED: exact; claim PROVED\n", result.stdout)
    details = run("verify", path, "--details").stdout.splitlines()
    found = dm.verify(path)
    assert len(details) == 1 + len(found.checks) + len(found.left_out)
    assert all(line.startswith("  ok   ") for line in details[1 : 1 + len(found.checks)])
    assert "  not checked: hashes, and the expected batch size" in details


def test_verify_prints_one_line_a_failure(path, tmp_path):
    own = dm.Certificate.load(path)
    forged, edited = tmp_path / "forged.json", tmp_path / "edited.json"
    with_checksum(dataclasses.replace(own, sigma=0.98 * own.sigma)).save(forged)
    edited.write_text(path.read_text().replace('"min_sep": 12', '"min_sep": 13'))
    result = run("verify", path, forged, edited, "--details")
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if "REFUSED" in line]
    assert len(lines) == 2
    assert lines[0].startswith(f"{forged}: REFUSED: claim: REFUTED: eps 2.0, delta 1e-05, add_remove")
    assert "delta is at least 1.44599e-5" in lines[0]
    assert lines[1].startswith(f"{edited}: REFUSED: file: the checksum is broken")
    assert "  FAIL file: the checksum is broken" in result.stdout
    found = json.loads(run("verify", path, forged, edited, "--json").stdout)["files"]
    assert [one["ok"] for one in found] == [True, False, False]
    assert found[1]["failures"] == [lines[0].split("REFUSED: ", 1)[1]]


def test_bad_input_of_verify(path, tmp_path):
    for arguments in (
        ["verify"],
        ["verify", tmp_path / "missing.json"],
        ["verify", path, "--max-seconds", "-1"],
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "Traceback" not in result.output


def test_the_tampered_copies_of_the_demo_are_refused(path):
    script = ROOT / "docs" / "examples" / "tamper.py"
    subprocess.run([sys.executable, str(script), str(path), str(path.parent)], check=True)
    result = run("verify", path, path.parent / "edited.json", path.parent / "rehashed.json")
    assert result.exit_code == 1
    kept, edited, rehashed = result.stdout.splitlines()
    assert "VERIFIED" in kept
    assert (
        "edited.json: REFUSED: file: claim.sigma: the decimal" in edited or "the checksum is broken" in edited
    )
    assert "rehashed.json: REFUSED: claim: REFUTED: eps 2.0" in rehashed


def test_a_second_policy_does_not_take_the_place_of_the_first(path, tmp_path):
    for name, most in (("strict", 0.1), ("lax", 100)):
        (tmp_path / f"{name}.toml").write_text(f"max_eps = {most}\n")
    policies = [f"--policy={tmp_path / name}.toml" for name in ("strict", "lax")]
    for order in (policies, policies[::-1]):
        result = run("verify", path, *order)
        assert result.exit_code == 2
        assert "--policy is given once" in result.stderr
    assert run("verify", path, policies[0]).exit_code == 1
    assert run("verify", path, policies[1]).exit_code == 0


@pytest.mark.parametrize("other", [dm.LambdaCGD(12, 0.5), dm.LambdaCGD(12, 0.6)])
def test_two_runs_with_the_same_noise_are_refused(tmp_path, monkeypatch, other):
    monkeypatch.chdir(tmp_path)
    first, second = (
        run_of(dm.calibrate_sigma(strategy, 2.0, 1e-5, participation=dm.MinSep(4)), source)
        for strategy, source in ((dm.LambdaCGD(12, 0.5), "one"), (other, "two"))
    )
    key = dm.certificates.Randomness("one", "2" * 64, seeded=False)
    for name, record in (("a", first), ("b", second), ("c", dataclasses.replace(second, noise=key))):
        record.save(f"{name}.json")
    both = run("verify", "a.json", "b.json")
    assert both.exit_code == 1
    found = both.stdout.splitlines()
    assert found[0].startswith("a.json: VERIFIED")
    assert found[1].startswith("b.json: REFUSED: noise: the same random numbers as in a.json")
    assert run("verify", "a.json", "c.json", "a.json").exit_code == 0
