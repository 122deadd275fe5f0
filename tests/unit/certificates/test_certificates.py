import dataclasses
import json
import math
import os
import platform
import stat
from unittest import mock

import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates.certificate import training_requirements
from dpmech.certificates.claim import with_checksum
from dpmech.certificates.document import (
    checksum_of_document,
    differences,
    from_plain,
    parse,
    to_plain,
    to_text,
)
from tests.support import saved
from tests.support.forged_files import changed

STRATEGIES = [
    dm.Identity(6),
    dm.LambdaCGD(6, 0.9),
    dm.SquareRoot(6),
    dm.SquareRoot(6, 3),
    dm.InverseSquareRoot(6, 2),
    dm.BandedToeplitz(6, [1.0, 0.5, -0.25]),
    dm.BandedInverse(6, [1.0, -0.3]),
    dm.BLT(6, [0.9, 0.3], [0.2, 0.1]),
    dm.Diagonal([1.0, 2.0, 0.1, 1.5, 1.0, 3.0]),
    dm.Dense(np.tril(np.arange(36.0).reshape(6, 6) / 40.0) + np.eye(6)),
    dm.ColumnNormalized(dm.LambdaCGD(6, 0.9)),
    dm.ColumnNormalized(dm.Dense([[1.0, 0.0], [1 / 3, 2.0]])),
]


def issue(strategy=STRATEGIES[1], participation=None, **settings):
    return dm.calibrate_sigma(
        strategy, 2.0, 1e-5, participation=participation or dm.SingleParticipation(), **settings
    ).certificate(1.5, 128)


CERTIFICATE = issue(participation=dm.MinSep(2, 3))


def rehashed(document):
    return document | {"checksum": checksum_of_document(document)}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: repr(strategy)[:40])
def test_round_trip_keeps_every_bit(tmp_path, strategy):
    certificate = issue(strategy)
    path = tmp_path / "certificate.json"
    certificate.save(path)
    again = dm.Certificate.load(path)
    assert again == certificate
    assert again.to_json() == certificate.to_json() == path.read_text()
    assert again.fingerprint() == certificate.fingerprint()
    assert again.strategy.to_json() == strategy.to_json()


def test_it_answers_like_the_calibration():
    cal = dm.calibrate_sigma(dm.LambdaCGD(6, 0.9), 2.0, 1e-5, participation=dm.MinSep(2, 3))
    certificate = cal.certificate()
    for field in dataclasses.fields(cal):
        if field.name == "checksum":  # each has one of its own
            continue
        assert getattr(certificate, field.name) == getattr(cal, field.name)
    assert certificate.noise_variance(3, 1.5, 128.0) == cal.noise_variance(3, 1.5, 128.0)
    assert certificate.fingerprint() == cal.fingerprint()
    assert (certificate.rmse(), certificate.max_se(), float(certificate)) == (
        cal.rmse(), cal.max_se(), cal.sigma)  # fmt: skip
    assert (certificate.clip_norm, certificate.expected_batch_size) == (None, None)
    assert (CERTIFICATE.clip_norm, CERTIFICATE.expected_batch_size) == (1.5, 128.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        certificate.sigma = 1.0


def test_the_fingerprint_is_that_of_the_claim():
    changes = [
        {"strategy": dm.LambdaCGD(6, 0.91)},
        {"participation": dm.MinSep(2, 2)},
        {"adjacency": dm.Adjacency.ZERO_OUT},
        {"budget": dm.PrivacyBudget(2.0, 2e-5)},
        {"sigma": math.nextafter(CERTIFICATE.sigma, 9.0)},
    ]
    found = {changed(CERTIFICATE, **change).fingerprint() for change in changes}
    assert len(found | {CERTIFICATE.fingerprint()}) == 6
    assert dataclasses.replace(CERTIFICATE, clip_norm=2.0).fingerprint() == CERTIFICATE.fingerprint()


def test_the_guarantee_is_the_first_line():
    assert CERTIFICATE.to_json().splitlines()[0] == '{"guarantee": "exact",'
    assert str(CERTIFICATE).splitlines()[0] == "exact"
    estimate = saved.certificate("bins")
    first = estimate.to_json().splitlines()[0]
    assert first.startswith('{"guarantee": "ESTIMATE: not a bound, the end of a two-sided 99.99 % ')
    assert str(estimate).startswith("ESTIMATE")
    certified = saved.certificate("bins certified 6")
    assert "beta = 1e-05" in certified.to_json().splitlines()[0]
    bound = saved.certificate("bins moments")
    assert bound.to_json().startswith('{"guarantee": "deterministic upper bound",')


def test_every_row_of_a_matrix_is_one_line():
    own = issue(strategy=dm.Dense(np.tril(np.arange(1.0, 17.0).reshape(4, 4))), participation=dm.MinSep(2))
    text = own.to_json()
    assert "     [5.0, 6.0, 0.0, 0.0],\n" in text
    assert '     ["0x1.4000000000000p+2", "0x1.8000000000000p+2", "0x0.0p+0", "0x0.0p+0"],\n' in text
    # Files with one line for each entry hold the same document.
    assert dm.Certificate.from_json(json.dumps(json.loads(text), indent=1)) == own
    assert dm.Certificate.from_json(text) == own


def test_the_evidence_is_recorded():
    evidence = CERTIFICATE.to_dict()["evidence"]
    assert evidence["accountant"] == {"type": "Exact"}
    assert evidence["rng_supplied"] is False
    assert evidence["samples"] is None
    assert evidence["platform"] == {
        "machine": platform.machine(),
        "longdouble_bits": np.finfo(np.longdouble).nmant + 1,
    }
    assert evidence["versions"]["dpmech"] == dm.__version__
    assert evidence["versions"]["numpy"] == np.__version__
    sampled = issue(participation=dm.BallsInBins(2), rng=1, method=dm.methods.Importance(0.05, 0.999))
    evidence = from_plain(sampled.to_dict()["evidence"])
    assert evidence["accountant"] == {"type": "Importance", "rel_error": 0.05, "confidence": 0.999}
    assert evidence["rng_supplied"] is True
    assert evidence["achieved"]["guarantee"] == {"kind": "ESTIMATE", "error": 1.0 - 0.999}
    assert evidence["samples"] > 1000
    assert evidence["rtol"] == 1e-3
    certified = issue(participation=dm.BallsInBins(2), method=dm.methods.Certified(1e-6))
    assert certified.evidence.samples > 1000
    assert certified.evidence.rng_supplied is False


def test_numbers_stand_there_twice_and_bit_for_bit():
    claim = CERTIFICATE.to_dict()["claim"]
    assert claim["sigma"] == {"decimal": CERTIFICATE.sigma, "hex": CERTIFICATE.sigma.hex()}
    assert claim["coefficients"] == {
        "of": "C^-1",
        "columns_scaled": False,
        "total": 2,
        "leading": {"decimal": [1.0, -0.9], "hex": [(1.0).hex(), (-0.9).hex()]},
    }
    nested = {"a": [[0.1, 0.2]], "b": 3, "c": None, "d": [], "e": {"f": 1e-300}}
    assert from_plain(to_plain(nested)) == nested


@pytest.mark.parametrize(
    ("strategy", "of", "total", "scaled"),
    [
        (dm.Identity(6), "C", 1, False),
        (dm.SquareRoot(6, 3), "C", 3, False),
        (dm.SquareRoot(6), "C", 6, False),
        (dm.InverseSquareRoot(6, 2), "C^-1", 2, False),
        (dm.ColumnNormalized(dm.LambdaCGD(6, 0.9)), "C^-1", 2, True),
        (STRATEGIES[9], "the matrix entries of the strategy", 0, False),
    ],
)
def test_the_shorter_of_the_strategy_and_its_inverse_is_written(strategy, of, total, scaled):
    written = issue(strategy).to_dict()["claim"]["coefficients"]
    assert (written["of"], written["total"], written["columns_scaled"]) == (of, total, scaled)


def test_the_trainer_is_told_its_requirements():
    text = str(CERTIFICATE)
    for words in (
        "at most 6 noisy sums", "at least 2 steps apart, and at most 3 in number", "at most 1.5 before",
        repr(CERTIFICATE.sigma), "Divide by 128.0, never by the number",
    ):  # fmt: skip
        assert words in text
    left_open = training_requirements(
        dataclasses.replace(CERTIFICATE, clip_norm=None, expected_batch_size=None)
    )
    assert "at most the clip norm before" in left_open["clipping"]
    assert "Divide by a public constant, never" in left_open["denominator"]


@pytest.mark.parametrize(
    ("participation", "words"),
    [
        (dm.EveryStep(), "every example may take part in every step"),
        (dm.SingleParticipation(), "at most one step"),
        (dm.MinSep(4), "at least 4 steps apart, and at most 2 in number"),
        (dm.FixedEpochs(3), "3 epochs over the same batches in the same order: every example takes part"),
        (dm.Poisson(0.25), "independently with probability 0.25; which ones did is kept secret"),
        (dm.CyclicPoisson(0.5, 3), "independently of their content; step t offers group t mod 3"),
        (dm.BallsInBins(2), "step t trains on bin t mod 2. The allocation serves all 3 epochs"),
    ],
)  # fmt: skip
def test_every_sampler_is_described(participation, words):
    certificate = changed(CERTIFICATE, participation=participation)
    assert words in training_requirements(certificate)["sampler"]


def test_a_schema_of_ones_own_says_its_requirement():
    own = mock.MagicMock(spec=dm.Participation)
    own.requirement, own.add_remove_refused = "Every {} steps.".format, None
    requirements = training_requirements(changed(CERTIFICATE, participation=own))
    assert requirements["sampler"] == "Every 6 steps."


def test_saving_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "certificate.json"
    CERTIFICATE.save(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    before = path.read_text()

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(dm.InvalidParameterError, match=r"path must be a file that can be written .*No space"):
        with_checksum(dataclasses.replace(CERTIFICATE, sigma=99.0)).save(path)
    assert path.read_text() == before
    assert [item.name for item in tmp_path.iterdir()] == ["certificate.json"]
    monkeypatch.undo()
    with pytest.raises(dm.InvalidParameterError, match="path must be a file that can be written"):
        CERTIFICATE.save(tmp_path / "no" / "such" / "folder.json")


def test_files_that_are_no_certificates(tmp_path):
    with pytest.raises(dm.InvalidParameterError, match="certificate must be a readable file"):
        dm.Certificate.load(tmp_path / "missing.json")
    with pytest.raises(dm.InvalidParameterError, match="certificate must be a readable file"):
        dm.Certificate.load(tmp_path)
    path = tmp_path / "binary.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(dm.exceptions.CertificateError, match="not JSON"):
        dm.Certificate.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not a dpmech certificate"),
        ("3", "not a dpmech certificate"),
        ('{"guarantee": "exact"}', "not a dpmech certificate: it has no schema_version"),
        ('{"schema_version": "1"}', "schema_version must be an integer, got '1'"),
        ('{"schema_version": true}', "schema_version must be an integer, got True"),
        ('{"schema_version": 0}', "schema version 0 is older than 1, .* issue the certificate again"),
        ('{"schema_version": 2}', "schema version 2 is newer than 1, .* upgrade dpmech"),
        ('{"schema_version": 1}', "does not follow the schema: .*is a required property"),
        ('{"schema_version": 1, "schema_version": 1}', r"the entries \['schema_version'\] stand there twice"),
        ('{"schema_version": NaN}', "NaN is no number"),
        ('{"schema_version": -Infinity}', "-Infinity is no number"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_texts_that_are_no_certificates(text, message):
    with pytest.raises(dm.exceptions.CertificateError, match=message):
        dm.Certificate.from_json(text)


def edit(path, value):
    document = json.loads(CERTIFICATE.to_json())
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["extra"], 1, "does not follow the schema: .*'extra' was unexpected"),
        (["claim", "extra"], 1, "'extra' was unexpected"),
        (["claim", "sigma", "extra"], 1, "'extra' was unexpected"),
        (["claim", "adjacency"], "both", "is not one of"),
        (["claim", "n"], 6.5, "is not of type 'integer'"),
        (["claim", "n"], 10**12, "greater than the maximum"),
        (["evidence", "rng_supplied"], "no", "is not of type 'boolean'"),
        (["claim", "sigma", "decimal"], 1.0, "claim.sigma: the decimal 1.0 and .* are not the same"),
        (["claim", "sigma", "hex"], "0x1p+0", "are not the same number"),
        (["claim", "sigma", "hex"], "one", "are not the same number"),
        (["claim", "sigma"], {"decimal": 0.0, "hex": "0x0p+0"}, "sigma must be a finite number"),
        (["claim", "delta"], {"decimal": 1.0, "hex": "0x1p+0"}, "delta must be"),
        (["claim", "strategy", "extra"], 1, "exactly the fields"),
        (["claim", "strategy", "type"], "Unknown", "a mapping with type in"),
        (["claim", "participation", "type"], "Unknown", "a mapping with type in"),
        (["claim", "participation", "min_sep"], 7, "min_sep must be an integer in"),
        (["evidence", "accountant", "type"], "Guess", "accountant must be one of"),
        (["evidence", "accountant", "extra"], 1, "accountant must be one of"),
        (["evidence", "sensitivity", "lower"], {"decimal": 99.0, "hex": (99.0).hex()}, "lower <= upper"),
        (["evidence", "achieved"], CERTIFICATE.to_dict()["evidence"]["achieved"] | {
         "guarantee": {"kind": "BOUND", "error": {"decimal": 0.0, "hex": (0.0).hex()}},
         "lower": {"decimal": -1.0, "hex": (-1.0).hex()}}, "eps, which is >= 0"),
        (["claim", "n"], 5, "claim.n is 5, but the strategy has 6 steps"),
        (["claim", "strategy", "n"], 7, "claim.n is 6, but the strategy has 7 steps"),
        (["guarantee"], "exact!", "guarantee: claimed 'exact!', recomputed 'exact'"),
        (["fingerprint"], "0" * 64, "fingerprint: claimed"),
        (["claim", "strategy_hash"], "0" * 64, "claim.strategy_hash: claimed"),
        (["claim", "coefficients", "total"], 3, "claim.coefficients.total: claimed 3, recomputed 2"),
        (["claim", "coefficients", "leading"], {"decimal": [1.0, -0.8], "hex": [(1.0).hex(), (-0.8).hex()]},
         r"claim.coefficients.leading\[1\]: claimed -0.8, recomputed -0.9"),
        (["claim", "coefficients", "leading"], {"decimal": [1.0], "hex": ["0x1p+0"]}, "coefficients.leading"),
        (["evidence", "rmse"], {"decimal": 1.0, "hex": (1.0).hex()}, "evidence.rmse: claimed 1.0"),
        (["evidence", "method"], "by trust", "method: claimed 'by trust'"),
        (
            ["evidence", "achieved", "by"],
            {"route": "bins.importance", "facts": {}, "rests_on": []},
            "method: claimed 'analytic Gaussian",
        ),
        (["evidence", "achieved", "by"], {"route": "x", "facts": {}, "rests_on": [{}]}, "does not follow"),
        (["evidence", "achieved", "guarantee", "kind"], "PROBABLE", "error must be in"),
        (["trainer", "steps"], "As many as you like.", "trainer.steps: claimed"),
    ],
)  # fmt: skip
def test_rehashed_edits_that_do_not_hold_together(path, value, message):
    document = edit(path, value)
    with pytest.raises(dm.exceptions.CertificateError):
        parse(json.dumps(document))
    with pytest.raises(dm.exceptions.CertificateError, match=message) as refusal:
        dm.Certificate.from_json(to_text(rehashed(document)))
    assert len(str(refusal.value)) < 3000


def test_missing_entries_are_refused():
    for section in ("claim", "evidence", "trainer"):
        for name in CERTIFICATE.to_dict()[section]:
            document = CERTIFICATE.to_dict()
            del document[section][name]
            with pytest.raises(dm.exceptions.CertificateError, match="is a required property"):
                dm.Certificate.from_json(to_text(rehashed(document)))


def test_the_checksum_shows_an_edit_and_ignores_the_layout():
    document = CERTIFICATE.to_dict()
    reordered = json.dumps(dict(reversed(document.items())), indent=7)
    assert dm.Certificate.from_json(reordered) == CERTIFICATE
    with pytest.raises(dm.exceptions.CertificateError, match="the checksum is broken") as refusal:
        parse(json.dumps(edit(["evidence", "rng_supplied"], True)))
    assert refusal.value.claimed == document["checksum"]
    assert refusal.value.recomputed != document["checksum"]


def test_differences_are_named_with_their_place():
    claimed = {"a": 1, "b": [1.0, 2.0], "c": {"d": "x"}, "e": 1.0, "f": True, "g": 0.5}
    other = {"a": 2, "b": [1.0, 2.1], "c": {"d": "y"}, "e": 1.0 + 1e-12, "f": 1, "h": 0.5}
    found = sorted(differences(claimed, other))
    assert found == [
        "a: claimed 1, recomputed 2", "b[1]: claimed 2.0, recomputed 2.1", "c.d: claimed 'x', recomputed 'y'",
        "f: claimed True, recomputed 1", "g: not expected", "h: missing",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["clip_norm", "expected_batch_size"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_bad_terms_are_refused(name, value):
    cal = dm.calibrate_sigma(dm.Identity(2), 1.0, 1e-5)
    with pytest.raises(dm.InvalidParameterError, match=f"{name} must be a finite number in"):
        cal.certificate(**{name: value})


def test_a_file_that_verify_does_not_read_by_default_is_warned_of(tmp_path, monkeypatch):
    cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.5), 2.0, 1e-5, participation=dm.MinSep(4))
    monkeypatch.setattr("dpmech.certificates.document.LARGEST_FILE", 1000)
    path = tmp_path / "large.json"
    with pytest.warns(UserWarning, match="large.json has 1 MB: verify reads it with max_file_size=1000000"):
        cal.certificate().save(path)
    assert path.stat().st_size > 1000
