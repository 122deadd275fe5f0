"""A clip norm that follows a count: its two noise scales make up sigma, and certificates say so."""

import datetime
import importlib.resources
import json
import math
from fractions import Fraction

import jsonschema
import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates import AdaptiveClip
from dpmech.checker import Kind
from dpmech.reports import as_html, as_json, as_markdown
from tests.support import saved
from tests.support.command_line import told
from tests.support.reviewed import review_of

RULE = AdaptiveClip(0.5, quantile=0.7, rate=0.3, count_share=0.04)


def with_checksum(content):
    """The text of a certificate after edits that whoever forges one gives a new checksum."""
    from dpmech.certificates import checksum_of_document

    return json.dumps(
        content | {"checksum": checksum_of_document({k: v for k, v in content.items() if k != "checksum"})}
    )


@pytest.mark.parametrize("share", [1e-9, 0.01, 0.5, 1.0 - 1e-9])
@pytest.mark.parametrize("sigma", [1e-3, 0.6, 37.25, 1e6])
def test_the_two_releases_are_one_of_sigma(sigma, share):
    rule = AdaptiveClip(count_share=share)
    gradients, count = rule.gradient_sigma(sigma), rule.count_stddev(sigma)
    # One example moves the gradients by a clip norm and the count by a half, in units of the two noises.
    squared = (1 / Fraction(gradients)) ** 2 + (Fraction(1, 2) / Fraction(count)) ** 2
    assert squared <= 1 / Fraction(sigma) ** 2
    assert float(1 / squared) == pytest.approx(sigma**2, rel=1e-13)
    assert dm.ledgers.joint_release([gradients, 2.0 * count]).sigma >= sigma * (1.0 - 1e-15)
    assert (0.5 / count) ** 2 * sigma**2 == pytest.approx(share, rel=1e-9)


def test_a_shift_of_both_is_found_out_as_easily_as_one_at_sigma():
    """The likelihood ratio of the pair, simulated, has the privacy loss of one Gaussian release of sigma."""
    sigma, eps = 1.3, 0.5
    gradients, count = RULE.gradient_sigma(sigma), RULE.count_stddev(sigma)
    rng = np.random.default_rng(0)
    shifts = np.array([1.0 / gradients, 0.5 / count])
    noise = rng.standard_normal((400_000, 2))
    losses = (noise + shifts) @ shifts - shifts @ shifts / 2.0
    found = np.maximum(1.0 - np.exp(eps - losses), 0.0)
    expected = dm.delta(dm.Identity(1), sigma, eps).upper
    assert found.mean() == pytest.approx(expected, abs=5.0 * found.std() / math.sqrt(found.size))


def test_the_next_norm_is_that_of_the_paper():
    share = 0.5 + 7.0 / 20.0
    assert RULE.after(2.0, 7.0, expected_batch_size=20.0) == pytest.approx(
        2.0 * math.exp(-0.3 * (share - 0.7))
    )
    assert RULE.after(2.0, 4.0, expected_batch_size=20.0) == pytest.approx(2.0)
    for count in (-1e9, 1e9):
        with pytest.raises(dm.NumericalError, match="left"):
            RULE.after(2.0, count, expected_batch_size=20.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("initial", 0.0),
        ("quantile", 1.0),
        ("quantile", 0.0),
        ("rate", -1.0),
        ("rate", math.nan),
        ("count_share", 0.0),
        ("count_share", 1.0),
    ],
)
def test_bad_arguments_are_named(name, value):
    with pytest.raises(dm.InvalidParameterError, match=name):
        AdaptiveClip(**{name: value})


def test_a_certificate_states_it_and_comes_back(tmp_path):
    cal = saved.calibration("min-sep")
    certificate = cal.certificate(RULE, 40.0)
    path = tmp_path / "certificate.json"
    certificate.save(path)
    assert dm.Certificate.load(path) == certificate
    assert dm.Certificate.load(path).clip_norm == RULE
    requirements = json.loads(path.read_text())["trainer"]
    assert "noised count" in requirements["clipping"]
    assert repr(RULE.gradient_sigma(cal.sigma)) in requirements["noise"]
    assert repr(RULE.count_stddev(cal.sigma)) in requirements["noise"]
    assert dm.verify(path).ok


def test_less_noise_than_that_is_refused_in_a_file_and_by_verify(tmp_path, monkeypatch):
    cal = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.MinSep(4))
    certificate = cal.certificate(RULE, 40.0)
    content = certificate.to_dict()
    for name in ("gradient_sigma", "count_stddev"):
        value = content["claim"]["clip_norm"][name]["decimal"] * 0.99
        forged = json.loads(json.dumps(content))
        forged["claim"]["clip_norm"][name] = {"decimal": value, "hex": value.hex()}
        with pytest.raises(dm.exceptions.CertificateError, match=name):
            dm.Certificate.from_json(with_checksum(forged))
    monkeypatch.setattr(AdaptiveClip, "gradient_sigma", lambda _, sigma: sigma)
    found = dm.verify(certificate)
    assert not found.ok
    assert found.claim is Kind.REFUTED


def test_verify_asks_what_the_neighbour_of_an_example_counts(monkeypatch):
    cal = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.MinSep(4))
    certificate = cal.certificate(RULE, 40.0)
    assert dm.verify(certificate).ok
    # A rule that counted a gradient of zero as one that is no longer than the norm.
    forged = json.loads(json.dumps(certificate.to_dict()))
    forged["claim"]["clip_norm"]["count_of_zero"] = {"decimal": 0.5, "hex": (0.5).hex()}
    with pytest.raises(dm.exceptions.CertificateError, match="count_of_zero"):
        dm.Certificate.from_json(with_checksum(forged))
    plain = AdaptiveClip.to_dict
    monkeypatch.setattr(
        AdaptiveClip, "to_dict", lambda own, sigma: plain(own, sigma) | {"count_of_zero": 0.5}
    )
    monkeypatch.setattr(AdaptiveClip, "from_dict", classmethod(lambda cls, data: RULE))
    (failure,) = dm.verify(certificate).failures
    assert "an AdaptiveClip has to count a gradient of zero as 0" in failure


def test_reports_and_printed_documents_say_it_by_their_schemas(tmp_path):
    certificate = saved.calibration("min-sep").certificate(RULE, 40.0)
    review = review_of(certificate)
    schema = importlib.resources.files("dpmech").joinpath("schemas/report-1.json").read_text("utf-8")
    found = json.loads(as_json(review))
    jsonschema.Draft202012Validator(json.loads(schema)).validate(found)
    assert found["claim"]["clip_norm"] == RULE.to_dict(certificate.sigma)
    for page in (as_markdown(review), as_html(review, made=datetime.date(2026, 11, 23))):
        assert "starts at 0.5 and follows the 0.7 quantile" in page
    certificate.save(tmp_path / "certificate.json")
    shown = told("show", tmp_path / "certificate.json")
    assert json.dumps(RULE.to_dict(certificate.sigma)) in json.dumps(shown)
