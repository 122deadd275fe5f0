import dataclasses
import datetime
import importlib.resources
import json
import re
import types

import jsonschema
import pytest

import dpmech as dm
from dpmech.certificates import with_checksum
from dpmech.reports import as_html, as_json, as_markdown, rendering
from tests.support import saved
from tests.support.reviewed import HOSTILE, Page, review_of, run_of, small

MADE = datetime.date(2026, 11, 23)


def documents(text, name="min-sep"):
    """A certificate, its run and its ledger, whose free text is this."""
    own = small(name).certificate(1.0, 10.0)
    versions = tuple((key, text if key == "numpy" else one) for key, one in own.versions)
    evidence = dataclasses.replace(own.evidence, machine=text)
    own = with_checksum(dataclasses.replace(own, versions=versions, evidence=evidence))
    ledger = dm.Ledger()
    ledger.add(" ".join(text.split()), own)
    return own, run_of(own, source=text), ledger


@pytest.fixture(scope="module")
def plain():
    return review_of(*documents("plain"))


@pytest.fixture(scope="module")
def hostile():
    return review_of(*documents(HOSTILE))


def test_hostile_text_is_shown_and_makes_no_element(plain, hostile):
    good, bad = (Page(as_html(review, made=MADE)) for review in (plain, hostile))
    assert bad.elements == good.elements
    assert bad.faults == good.faults == []
    assert "script" not in bad.elements
    text = "".join(bad.text)
    assert text.count("<script>alert(1)</script>") >= 4  # as text, for everybody to see
    assert "{{ 7*7 }}" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert [one for one in bad.attributes if one[1].startswith("on")] == []


def test_file_names_are_free_text_too(plain):
    names = {"certificate": HOSTILE, "run record": "run.json", "ledger": "ledger.json"}
    review = review_with(plain, names)
    assert Page(as_html(review, made=MADE)).elements == Page(as_html(plain, made=MADE)).elements


def test_the_command_that_is_shown_runs_nothing_else(plain):
    names = {"certificate": "a b.json", "run record": "x;touch y.json", "ledger": "--policy=z.json"}
    text = " ".join("".join(Page(as_html(review_with(plain, names), made=MADE)).text).split())
    assert "dpmech verify --details -- 'a b.json' 'x;touch y.json' --policy=z.json" in text


def review_with(review, names):
    subject = dataclasses.replace(review.subject, names=names)
    found = tuple(
        dataclasses.replace(one, source=source)
        for one, source in zip(review.verifications, subject.to_verify, strict=True)
    )
    return dataclasses.replace(review, subject=subject, verifications=found)


def test_the_page_asks_nobody_for_anything(plain):
    page = Page(as_html(plain, made=MADE))
    outside = [
        (tag, key, value)
        for tag, key, value in page.attributes
        if key in {"src", "href", "srcset", "data", "action", "poster"} and not value.startswith("#")
    ]
    assert outside == []
    assert not {"script", "link", "iframe", "object", "embed", "img", "form"} & set(page.elements)
    style = as_html(plain, made=MADE).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    policy = [
        value for tag, key, value in page.attributes if key == "content" and "default-src 'none'" in value
    ]
    assert len(policy) == 1
    # What the contents lead to is there.
    ids = {value for _, key, value in page.attributes if key == "id"}
    assert {value[1:] for _, key, value in page.attributes if key == "href"} <= ids


def test_the_page_says_what_was_found(plain):
    text = " ".join("".join(Page(as_html(plain, made=MADE)).text).split())
    for words in (
        "✓ VERIFIED when this report was made",
        "eps 2 at delta 1e-05",
        "generated on 2026-11-23",
        "What is not covered",
        "Release at most 12 noisy sums",
        "plain (this certificate)",
        plain.certificate.fingerprint(),
        "There is no privacy profile: it was not requested.",
        "Reviewed by",
    ):
        assert words in text, words


def test_a_refused_claim_and_an_estimate_cannot_be_overlooked():
    weak = with_checksum(dataclasses.replace(small(), sigma=0.9 * small().sigma))
    refused = Page(as_html(review_of(weak), made=MADE))
    text = " ".join("".join(refused.text).split())
    assert "✗ REFUSED: do not rely on this claim" in text
    assert "Why it was refused" in text
    assert "No attack rates are given" in text
    assert "svg" not in refused.elements
    assert "VERIFIED" not in text
    assert as_markdown(review_of(weak)).count("**REFUSED: this claim did not hold") == 1
    estimate = review_of(small("bins 8"))
    assert "≈ VERIFIED, but issued on an estimate" in as_html(estimate, made=MADE)
    assert "**Issued on an estimate.**" in as_markdown(estimate)


def test_markdown_has_the_tags_and_stays_a_section(plain, hostile):
    good, bad = as_markdown(plain), as_markdown(hostile)
    head = good.split("---\n")[1]
    assert head.splitlines() == ["tags:", "- differential_privacy", "- dp-sgd"]
    assert re.findall(r"^#+ .*$", good, re.MULTILINE) == ["## Differential privacy"]
    # As many lines, tables and headings as with harmless text.
    assert len(bad.splitlines()) == len(good.splitlines())
    for one, other in zip(bad.splitlines(), good.splitlines(), strict=True):
        assert len(re.findall(r"(?<!\\)\|", one)) == len(re.findall(r"(?<!\\)\|", other))
    assert not re.search(r"(?<!\\)<(?!br)", bad)


def test_json_follows_its_schema(plain, hostile):
    schema = json.loads(
        importlib.resources.files("dpmech").joinpath("schemas/report-1.json").read_text("utf-8")
    )
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for review in (plain, hostile, review_of(small("epochs"))):
        validator.validate(json.loads(as_json(review)))
    found = json.loads(as_json(plain))
    assert found["ledger"]["releases"] == 1
    assert found["claim"]["eps"] == 2.0
    for key, value in (("verified", "yes"), ("new", 1), ("checklists", []), ("fingerprints", {"claim": "x"})):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(found | {key: value})
    found["checklists"][0]["items"][0] |= {"stated": False}
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(found)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_as_wcag_computes_it():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_all_colours_of_text_can_be_read_by_day_and_by_night():
    style = importlib.resources.files("dpmech.reports").joinpath("templates/style.css").read_text("utf-8")
    day, night = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in style.split("@media screen")[:2]
    )
    assert set(day) == set(night)
    for colours in (day, night):
        for text in ("text", "quiet", "accent"):
            for page in ("page", "shade"):
                assert contrast(colours[text], colours[page]) >= 4.5, (text, page)
        for kind in ("good", "bad", "warn"):
            assert contrast(colours[kind], colours[f"{kind}-page"]) >= 4.5


def test_a_total_of_claims_says_so():
    """`dpmech ledger show` composes profiles and has a lower total: the page names the difference."""
    ledger = dm.Ledger()
    for name in ("one", "two"):
        ledger.add(name, saved.calibration("bins moments"), batch=name)
    checked = types.SimpleNamespace(ok=True, profile_open=())
    review = types.SimpleNamespace(subject=types.SimpleNamespace(ledger=ledger), verifications=(checked,))
    text = rendering._total(review)
    assert text.startswith("eps at most 4 at delta ")
    assert text.endswith("(2 releases by their claims; dpmech ledger show composes profiles)")
