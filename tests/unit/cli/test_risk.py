import json

import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech import cli
from tests.support.reviewed import run_of


def run(*arguments):
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "certificate.json"
    dm.calibrate_sigma(dm.Identity(30), 1.0, 1e-5, participation=dm.Poisson(0.1)).certificate().save(target)
    return target


@pytest.mark.slow
@pytest.mark.exhaustive
def test_sentences_are_what_the_profile_says_rounded_up(path):
    result = run("risk", path, "--fpr", "0.01", "--prior", "0.3", "--baseline", "0.001")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 or str(path) in line for line in lines)
    certificate = dm.Certificate.load(path)
    known = dm.profile(certificate.mechanism, certificate.sigma)
    text = " ".join(result.stdout.split())
    found = float(text.split("finds at most ")[1].split(" %")[0])
    assert 100.0 * known.tpr(0.01).upper <= found <= 100.1 * 1.01 * known.tpr(0.01).upper
    assert "70 % without the release" in text
    assert "Up to a tail of 1e-12 in delta" in text
    assert "Guarantee: deterministic upper bound" in text


@pytest.mark.slow
@pytest.mark.exhaustive
def test_json_holds_both_ends(path):
    result = run("risk", path, "--json", "--tail", "1e-9")
    document = json.loads(result.stdout)
    assert [one["name"] for one in document["risk"]] == [
        "tpr", "tpr", "tpr", "advantage", "bayes_success", "reconstruction", "gaussian_mu"
    ]  # fmt: skip
    certificate = dm.Certificate.load(path)
    known = dm.profile(certificate.mechanism, certificate.sigma)
    last = document["risk"][-1]
    assert last["tail"] == 1e-9
    assert last["upper"] == known.gaussian_mu(1e-9).upper
    assert all(one["lower"] <= one["upper"] for one in document["risk"])
    assert document["sigma"] == certificate.sigma


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--fpr", "2"], "--fpr"), (["--rel-error", "0"], "--rel-error"), (["--tail", "0"], "--tail")],
)
def test_bad_input(arguments, words, path):
    result = run("risk", path, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not result.stdout


def test_a_run_record_stands_for_its_certificate_and_a_ledger_for_none(tmp_path):
    claim = dm.calibrate_sigma(dm.Identity(6), 1.0, 1e-5, participation=dm.MinSep(3))
    claim.certificate(clip_norm=1.0).save(tmp_path / "certificate.json")
    run_of(claim).save(tmp_path / "run.json")
    told = [run("risk", tmp_path / name) for name in ("certificate.json", "run.json")]
    assert [one.exit_code for one in told] == [0, 0]
    first, second = (" ".join(one.stdout.split()).partition("sigma ")[2] for one in told)
    assert first == second
    assert "read, not verified: dpmech verify" in told[0].stderr
    assert "note" not in run("risk", tmp_path / "run.json", "--quiet").stderr
    ledger = dm.Ledger()
    ledger.add("first", claim)
    ledger.save(tmp_path / "ledger.json")
    refused = run("risk", tmp_path / "ledger.json")
    assert refused.exit_code == 2
    assert "a certificate or a run record, not a ledger" in refused.stderr


@pytest.mark.parametrize(
    ("kind", "saved"),
    [(dm.Certificate, "run record"), (dm.RunRecord, "certificate"), (dm.Ledger, "certificate")],
)
def test_the_wrong_kind_of_file_is_named(kind, saved, tmp_path):
    claim = dm.calibrate_sigma(dm.Identity(6), 1.0, 1e-5, participation=dm.MinSep(3))
    document = run_of(claim) if saved == "run record" else claim.certificate()
    document.save(tmp_path / "file.json")
    with pytest.raises(dm.exceptions.CertificateError, match=f"^a {saved}, not a "):
        kind.load(tmp_path / "file.json")


def test_no_certificate(tmp_path):
    result = run("risk", tmp_path / "none.json")
    assert result.exit_code == 2
    assert "none.json" in result.stderr


@pytest.mark.slow
def test_a_figure_of_attacks(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plots` is optional")
    plain = tmp_path / "plain.json"
    dm.calibrate_sigma(dm.Identity(30), 1.0, 1e-5).certificate().save(plain)
    target = tmp_path / "attacks.png"
    result = run("risk", plain, "--figure", target, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["figure"] == str(target)
    assert target.read_bytes()[:4] == b"\x89PNG"
    refused = run("risk", plain, "--figure", tmp_path / "attacks.xls")
    assert refused.exit_code == 2
    assert "--figure must be a file that ends in" in refused.stderr
    assert "figure" not in json.loads(run("risk", plain, "--json").stdout)
