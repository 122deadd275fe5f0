import dataclasses
import json
import re

import pytest

import dpmech as dm
from dpmech.certificates import with_checksum
from dpmech.cli import reporting
from tests.support.command_line import done, run, told, validator
from tests.support.reviewed import Page, save_all, small


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = small().certificate(1.0, 10.0)
    save_all(own)
    weak = with_checksum(dataclasses.replace(own, sigma=0.9 * own.sigma))
    (tmp_path / "weak.json").write_text(weak.to_json())
    (tmp_path / "edited.json").write_text(own.to_json().replace('"min_sep": 4', '"min_sep": 5'))
    return tmp_path


def test_a_page_is_written_and_the_verdict_printed(folder):
    result = done("report", "certificate.json", "run.json", "ledger.json", "--out", "review.html")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("run.json: VERIFIED")
    assert lines[1].startswith("ledger.json: VERIFIED")
    assert lines[2] == "certificate.json: has the claim of run.json, whose verdict is above"
    assert lines[3] == "report: review.html"
    assert "the run record alone" not in result.stderr
    page = Page((folder / "review.html").read_text(encoding="utf-8"))
    assert page.faults == []
    assert "Computed from the whole privacy profile" in " ".join("".join(page.text).split())


def test_terms_that_the_certificate_leaves_open_are_told(folder):
    """Nothing else could show that the record of a run states another clip norm."""
    small().certificate().save(folder / "open.json")
    result = done("report", "open.json", "run.json", "--out", "review.html", "--claim-only")
    assert (
        "clip norm 1.0, left open in open.json; expected batch size 10.0, left open in open.json: "
        "the run record alone states it, which anyone can edit" in " ".join(result.stderr.split())
    )
    page = (folder / "review.html").read_text(encoding="utf-8")
    assert page.count("stated by the run record alone") == 2


def test_the_claim_alone_is_told(folder):
    result = done("report", "certificate.json", "--out", "review.html", "--claim-only")
    assert "attack rates from (eps, delta) only, no privacy profile: it was not requested" in result.stdout
    assert "From (eps, delta) only" in (folder / "review.html").read_text(encoding="utf-8")


def test_a_refused_claim_gets_a_page_that_says_so(folder):
    result = done("report", "weak.json", "--out", "review.html", code=1)
    assert "weak.json: REFUSED: " in result.stdout
    assert "REFUSED: do not rely on this claim" in (folder / "review.html").read_text(encoding="utf-8")


def test_the_rules_of_a_policy_stand_on_the_page(folder):
    """The page that is signed has the verdict of CI."""
    (folder / "kept.toml").write_text("max_delta = 0.5\n")
    (folder / "broken.toml").write_text("max_eps = 1e-3\n")
    call = ("report", "certificate.json", "--claim-only", "--force", "--out", "review.html", "--policy")
    done(*call, "kept.toml")
    page = (folder / "review.html").read_text(encoding="utf-8")
    assert "policy max_delta" in page
    assert "REFUSED" not in page
    result = done(*call, "broken.toml", code=1)
    assert "certificate.json: REFUSED: policy max_eps: eps 2, at most 0.001 is allowed" in result.stdout
    page = (folder / "review.html").read_text(encoding="utf-8")
    assert "REFUSED: do not rely on this claim" in page
    assert "at most 0.001 is allowed" in page


def test_a_file_that_was_edited_is_no_subject_of_a_report(folder):
    result = done("report", "edited.json", "--out", "review.html", code=1)
    assert "edited.json: the checksum is broken" in result.stderr
    assert not (folder / "review.html").exists()


def test_markdown_and_json_are_printed_or_written(folder):
    printed = done("report", "certificate.json", "--format", "markdown", "--claim-only").stdout
    assert printed.startswith("---\ntags:\n- differential_privacy\n- dp-sgd\n---\n")
    done("report", "certificate.json", "--format", "markdown", "--claim-only", "--out", "card.md")
    assert (folder / "card.md").read_text(encoding="utf-8") == printed
    filled = json.loads(done("report", "certificate.json", "--format", "json", "--claim-only").stdout)
    assert filled["schema"] == {"name": "dpmech review", "version": 1}
    assert filled["verified"] is True


def test_json_says_what_was_written(folder):
    found = told("report", "certificate.json", "--out", "review.html")
    assert found["out"] == "review.html"
    assert (found["ok"], found["attack_rates"], found["reason"]) == (True, "profile", None)
    weak = told("report", "weak.json", "--out", "review.html", code=1)
    assert (weak["ok"], weak["attack_rates"]) == (False, None)
    assert weak["failures"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("certificate.json",), "missing: --out"),
        (("certificate.json", "--out", "no/x.html"), "--out must be a file in a folder that exists"),
        (("certificate.json", "--out", "x.txt"), "--out must be a file that ends in .html or .htm"),
        (("certificate.json", "--out", "x.html", "--format", "json"), "ends in .json with --format json"),
        (("certificate.json", "--format", "pdf"), "--format must be one of html, markdown, json"),
        (("certificate.json", "certificate.json", "--out", "x.html"), "certificate.json must be named once"),
        (("ledger.json", "--out", "x.html"), "ledger.json must be given with a certificate or a run record"),
        (("missing.json", "--out", "x.html"), "missing.json must be a readable file"),
    ],
)
def test_before_anything_is_verified(call, words, folder, monkeypatch):
    def verified(*_arguments, **_settings):
        raise AssertionError("verified before everything was looked at")

    monkeypatch.setattr(reporting, "verify_document", verified)
    result = run("report", *call)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert not list(folder.glob("x.*"))


def test_what_was_found_is_printed_though_it_cannot_be_written(folder, monkeypatch):
    def full(*_arguments, **_settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = run("report", "certificate.json", "--out", "x.html", "--claim-only")
    assert result.exit_code == 2
    assert "VERIFIED" in result.stdout
    assert "report: x.html" not in result.stdout
    assert "--out must be a file that can be written (No space left on device)" in result.stderr
    found = run("report", "certificate.json", "--out", "x.html", "--claim-only", "--json")
    document = json.loads(found.stdout)
    validator("dpmech report").validate(document)
    assert document["out"] is None


def test_too_much_work_is_told_as_by_verify(folder):
    result = run("report", "certificate.json", "--out", "x.html", "--max-memory", "1e-9")
    assert result.exit_code == 2
    assert "--max-memory" in result.stderr


def test_rigour_is_asked_for(folder):
    small("bins 8").save("estimate.json")
    assert run("report", "estimate.json", "--out", "x.html", "--claim-only", "--seed", "1").exit_code == 0
    assert run("report", "estimate.json", "--out", "x.html", "--rigorous", "--seed", "1").exit_code == 1


def text_of(path):
    return " ".join("".join(Page(path.read_text(encoding="utf-8")).text).split())


def test_who_issued_a_file_stands_in_the_page_where_a_trusted_key_says_so(folder):
    dm.certificates.new_key("reviewer.pem")
    dm.certificates.new_key("other.pem")
    call = ("report", "certificate.json", "--claim-only", "--out", "review.html")
    done(*call)
    assert "not checked: no trusted key was given" in text_of(folder / "review.html")
    done(*call, "--key", "reviewer.pem.pub")
    assert re.search(r"signature on certificate\.json ?not signed", text_of(folder / "review.html"))
    done(*call, "--key", "reviewer.pem.pub", "--require-signature", code=1)
    assert "REFUSED: do not rely on this claim" in text_of(folder / "review.html")
    dm.sign("certificate.json", "reviewer.pem", "privacy | <b>office</b>")
    done(*call, "--key", "reviewer.pem.pub", "--require-signature")
    assert "issued by privacy | <b>office</b> on 20" in text_of(folder / "review.html")
    card = done(*call[:3], "--format", "markdown", "--key", "reviewer.pem.pub").stdout
    assert "issued by privacy \\| \\<b\\>office\\</b\\> on 20" in card
    found = json.loads(done(*call[:3], "--format", "json", "--key", "reviewer.pem.pub").stdout)
    (statement,) = found["signatures"]["certificate.json"]
    assert statement["issuer"] == "privacy | <b>office</b>"
    done(*call, "--key", "other.pem.pub", code=1)
    assert "issued by" not in text_of(folder / "review.html")


def test_a_signature_cannot_be_asked_for_without_a_key(folder):
    result = run("report", "certificate.json", "--out", "review.html", "--require-signature")
    assert result.exit_code == 2
    assert "--key (a public key that is trusted)" in result.stderr
    assert not (folder / "review.html").exists()


def test_every_file_that_is_named_has_to_be_signed(folder):
    public = dm.certificates.new_key("key.pem")
    dm.sign("run.json", "key.pem", "office")
    command = ("report", "certificate.json", "run.json", "--key", public, "--out", "review.html")
    required = (*command, "--require-signature")
    line = done(*required, code=1).stdout
    assert "signature: certificate.json: not signed, a signature is required" in line
    done(*command)
    (folder / "certificate.json.dsse").write_text('{"payload": "forged"}')
    assert "signature: certificate.json: " in done(*command, code=1).stdout
    dm.sign("certificate.json", "key.pem", "somebody", replace=True)
    done(*required)
