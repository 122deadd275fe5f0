"""All commands that are asked about one certificate print the same numbers."""

import json
import re

import pytest

import dpmech as dm
from tests.support.command_line import done
from tests.support.reviewed import Page, run_of, small

SLOW = ["poisson", "users", "bins exact"]
NAMES = ["min-sep", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.fixture(scope="module", params=NAMES)
def said(request, tmp_path_factory):
    """What every command says, by its name."""
    folder = tmp_path_factory.mktemp("one")
    own = small(request.param).certificate(1.0, 10.0)
    path, page, ledger = folder / "certificate.json", folder / "review.html", folder / "ledger.json"
    own.save(path)
    done("report", path, "--out", page)
    batch = ("--batch", "first") if own.participation.random else ()
    done("ledger", "add", ledger, path, "--new", "--name", "one", *batch)
    files = {"show": path, "verify": path, "risk": path}
    texts = {name: done(name, file, "--quiet").stdout for name, file in files.items()}
    texts["details"] = done("verify", path, "--details").stdout
    texts["page"] = " ".join("".join(Page(page.read_text(encoding="utf-8")).text).split())
    texts["page"] = texts["page"].replace("\u00a0", " ")
    for form in ("markdown", "registry", "json"):
        texts[form] = done("report", path, "--format", form).stdout.replace("\\", "")
    texts["claim only"] = done("report", path, "--format", "markdown", "--claim-only").stdout
    texts["ledger"] = done("ledger", "show", ledger).stdout
    texts["calibration"] = str(own)
    return own, {name: " ".join(text.split()) for name, text in texts.items()}


def test_the_noise_scale(said):
    own, texts = said
    shown = dm.numerics.up(own.sigma)
    for name in ("show", "risk", "page", "markdown", "registry", "calibration"):
        assert shown in texts[name], name
    # Every number that begins like sigma is that one, or sigma with all its digits, for the trainer.
    digits = shown[:5].replace(".", r"\.")
    whole = {shown, repr(own.sigma)}
    for name, text in texts.items():
        found = set(re.findall(rf"(?<![\d.]){digits}\d*", text))
        assert found <= whole, (name, found)


def test_eps_and_delta(said):
    own, texts = said
    for name in ("show", "risk", "page", "markdown"):
        found = set(re.findall(r"\beps (\d[\d.]*\d|\d)(?: at|,)", texts[name]))
        assert set(map(float, found)) == {own.budget.eps}, (name, found)
        assert dm.numerics.typed(own.budget.delta) in texts[name]


def of_attacks(text):
    """Per cent found at 1 % false positives, by what the sentence says they follow from."""
    return re.findall(r"false-positive rate of 1 % among [\w' ]+, an attack finds at most ([\d.]+) %", text)


def test_attacks_at_one_per_cent(said):
    _, texts = said
    from_profile = {rate for name in ("risk", "page", "markdown") for rate in of_attacks(texts[name])}
    assert len(from_profile) == 1
    (alone,) = set(of_attacks(texts["claim only"]))
    assert float(alone) > float(next(iter(from_profile)))
    # Without the profile, each says so.
    for name in ("show", "calibration"):
        found = re.findall(
            r"at 1 % false positives an attack finds at most ([\d.]+) % .*?, (from [^.]*?) only", texts[name]
        )
        assert found == [(alone, "from (eps, delta)")], name
    assert "(eps, delta) only" in texts["claim only"]


def test_json_has_the_floats_themselves(said):
    own, texts = said
    claim = json.loads(texts["json"])["claim"]
    assert (claim["sigma"], claim["eps"], claim["delta"]) == (own.sigma, own.budget.eps, own.budget.delta)
    rates = json.loads(texts["json"])["attacks"]["findings"]
    (upper,) = {one["upper"] for one in rates if one.get("fpr") == 0.01 and one["name"] == "tpr"}
    assert dm.numerics.percent_up(upper) in of_attacks(texts["risk"])


def test_a_run_and_its_certificate_say_the_same(tmp_path):
    own = small().certificate(1.0, 10.0)
    run_of(own).save(tmp_path / "run.json")
    own.save(tmp_path / "certificate.json")
    # Lines are wrapped at a width that counts the name of the file.
    one, other = (done("risk", tmp_path / name).stdout.split() for name in ("run.json", "certificate.json"))
    assert one == [word.replace("certificate.json", "run.json") for word in other]
