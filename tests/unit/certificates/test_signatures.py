"""Signed files: every way in which a signature may be none of this file by a trusted key."""

import base64
import datetime
import hashlib
import json

import pytest

import dpmech as dm
from dpmech.certificates import (
    Envelope,
    PrivateKey,
    PublicKey,
    Signature,
    Statement,
    envelope_path,
)
from dpmech.certificates.signatures import PREDICATE_TYPE
from tests.support import saved

TIME = datetime.datetime(2026, 3, 1, 12, 30, 5, 999, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
ISSUER = "privacy review, Example Ltd"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return {name: (folder / name, dm.certificates.new_key(folder / name)) for name in ("own", "other")}


@pytest.fixture
def signed(keys, tmp_path):
    """A certificate with its envelope, and another certificate."""
    path = tmp_path / "certificate.json"
    saved.calibration("min-sep").certificate().save(path)
    saved.calibration("single").certificate().save(tmp_path / "single.json")
    dm.sign(path, keys["own"][0], ISSUER, issued_on=TIME)
    return path


def verified(path, keys, *names, **options):
    return dm.verify(path, keys=[keys[name][1] for name in names or ("own",)], **options)


def rewritten(path, **changes):
    """Change entries of an envelope, as somebody could who has no key."""
    target = envelope_path(path)
    target.write_text(json.dumps(json.loads(target.read_text()) | changes))


def resigned(path, key, *, kind=None, payload=None):
    """Sign something else than dpmech would, with a key."""
    own = Envelope.from_json(envelope_path(path).read_text())
    content = Envelope(kind or own.payload_type, payload or own.payload, ())
    signature = Signature("", PrivateKey.load(key).signature(content.signed_bytes))
    target = Envelope(content.payload_type, content.payload, (signature,))
    envelope_path(path).write_text(target.to_json())


def reason(path, keys, *names):
    """Why a file is refused, for its signature alone."""
    found = verified(path, keys, *names)
    assert not found.ok
    assert not found.signed
    (failure,) = found.failures
    assert failure.startswith("signature: ")
    return failure.removeprefix("signature: ")


def test_a_signed_file_says_who_issued_it(signed, keys):
    found = verified(signed, keys, require_signature=True)
    assert found.ok
    (statement,) = found.signed
    assert statement.issuer == ISSUER
    assert statement.issued_on == TIME.replace(microsecond=0)
    assert str(found).endswith(f"; issued by {ISSUER} on 2026-03-01")
    assert found.to_dict()["signed"] == [{"issuer": ISSUER, "issued_on": "2026-03-01T10:30:05Z"}]
    assert verified(signed, keys, "other", "own").ok


def test_what_is_signed_is_an_in_toto_statement_about_the_bytes_of_the_file(signed):
    envelope = json.loads(envelope_path(signed).read_text())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    statement = json.loads(base64.b64decode(envelope["payload"]))
    document = json.loads(signed.read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    digest = hashlib.sha256(signed.read_bytes()).hexdigest()
    assert statement["subject"] == [{"name": "certificate.json", "digest": {"sha256": digest}}]
    assert statement["predicateType"] == PREDICATE_TYPE
    predicate = statement["predicate"]
    assert (predicate["checksum"], predicate["guarantee"]) == (document["checksum"], document["guarantee"])
    assert (predicate["kind"], predicate["issuer"]) == ("certificate", ISSUER)


def test_without_keys_nobody_looks_at_signatures(signed, keys):
    envelope_path(signed).write_text("nonsense")
    assert dm.verify(signed).ok
    assert not dm.verify(signed).signed
    with pytest.raises(dm.InvalidParameterError, match="key must be given where a signature is required"):
        dm.verify(signed, require_signature=True)
    with pytest.raises(dm.InvalidParameterError, match="a sequence of public keys"):
        dm.verify(signed, keys=str(keys["own"][1]))


def test_an_unsigned_file_passes_unless_a_signature_is_required(signed, keys):
    other = signed.parent / "single.json"
    assert str(verified(other, keys)).endswith("; not signed")
    assert not str(dm.verify(other)).endswith("signed")  # nobody asked
    assert verified(other, keys).ok
    found = verified(other, keys, require_signature=True)
    assert found.failures == ("signature: not signed, a signature is required",)
    found = verified(dm.Certificate.load(signed), keys, require_signature=True)
    assert found.failures == ("signature: not signed, a signature is required",)


NOBODY = "no signature of a trusted key over what the envelope holds"


def test_a_signature_of_another_key_is_none(signed, keys):
    assert reason(signed, keys, "other") == NOBODY
    # The name of a key in the envelope says nothing.
    own = Envelope.from_json(envelope_path(signed).read_text())
    name = PublicKey.load(keys["other"][1]).key_id
    renamed = Envelope(own.payload_type, own.payload, (Signature(name, own.signatures[0].value),))
    envelope_path(signed).write_text(renamed.to_json())
    assert reason(signed, keys, "other") == NOBODY
    assert verified(signed, keys, "own").ok


def test_a_changed_payload_is_refused(signed, keys):
    statement = json.loads(base64.b64decode(json.loads(envelope_path(signed).read_text())["payload"]))
    statement["predicate"]["issuer"] = "somebody else"
    rewritten(signed, payload=base64.b64encode(json.dumps(statement).encode()).decode())
    assert reason(signed, keys) == NOBODY


def test_a_changed_signature_is_refused(signed, keys):
    own = Envelope.from_json(envelope_path(signed).read_text()).signatures[0].value
    for number in (0, 31, 32, 63):
        value = bytearray(own)
        value[number] ^= 1
        rewritten(signed, signatures=[{"sig": base64.b64encode(value).decode()}])
        assert reason(signed, keys) == NOBODY
    rewritten(signed, signatures=[{"sig": ""}])
    assert reason(signed, keys) == NOBODY
    # One good signature among bad ones is enough.
    rewritten(signed, signatures=[{"sig": ""}, {"sig": base64.b64encode(own).decode()}])
    assert verified(signed, keys).ok


def test_another_payload_type_is_refused(signed, keys):
    rewritten(signed, payloadType="application/json")
    assert reason(signed, keys) == "payloadType of the envelope is not application/vnd.in-toto+json"
    # Signed as something else, and passed off as a statement: the type is a part of what is signed.
    resigned(signed, keys["own"][0], kind="application/json")
    rewritten(signed, payloadType="application/vnd.in-toto+json")
    assert reason(signed, keys) == NOBODY


def test_truncated_base64_is_refused(signed, keys):
    record = json.loads(envelope_path(signed).read_text())
    rewritten(signed, payload=record["payload"][:-5])
    assert reason(signed, keys) == "payload of the envelope is not whole base64"
    rewritten(signed, payload=record["payload"], signatures=[{"sig": record["signatures"][0]["sig"][:-3]}])
    assert reason(signed, keys) == "sig of the envelope is not whole base64"
    envelope_path(signed).write_text(json.dumps(record)[:-9])
    assert reason(signed, keys).startswith("the envelope is not JSON")


def test_a_signature_is_not_for_another_file(signed, keys):
    other = signed.parent / "single.json"
    envelope_path(other).write_text(envelope_path(signed).read_text())
    assert reason(other, keys).startswith("the signature is over another file (SHA-256 ")
    assert verified(signed, keys).ok


def test_swapped_signatures_are_refused(signed, keys):
    other = signed.parent / "single.json"
    target = dm.sign(other, keys["own"][0], ISSUER)
    one, two = envelope_path(signed).read_text(), target.read_text()
    assert verified(other, keys).ok
    envelope_path(signed).write_text(two)
    target.write_text(one)
    for path in (signed, other):
        assert reason(path, keys).startswith("the signature is over another file")
    # The signature of the one over the statement of the other.
    mixed = json.loads(one) | {"signatures": json.loads(two)["signatures"]}
    envelope_path(signed).write_text(json.dumps(mixed))
    assert reason(signed, keys) == NOBODY


def test_a_file_that_was_changed_is_not_the_one_that_was_signed(signed, keys):
    signed.write_text(signed.read_text() + " ")
    assert reason(signed, keys).startswith("the signature is over another file")
    # With a new checksum, with a claim that is as true: only the signature tells.
    own = dm.Certificate.load(signed)
    own.certificate(expected_batch_size=7.0).save(signed)
    assert dm.verify(signed).ok
    assert reason(signed, keys).startswith("the signature is over another file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "_type of the signed statement is not"),
        ({"predicateType": "https://slsa.dev/provenance/v1"}, "predicateType of the signed statement"),
        ({"subject": []}, "not one about a checksummed document"),
        ({"subject": [{"name": "a", "digest": {"sha512": "00"}}]}, "not one about a checksummed document"),
        ({"predicate": {}}, "not one about a checksummed document"),
        ({"issuer": "two\nlines"}, "the signed statement does not hold: issuer must be one line"),
        ({"issuer": 3}, "not one about a checksummed document"),
        ({"issuedOn": "yesterday"}, "not one about a checksummed document"),
    ],
)
def test_a_trusted_key_over_another_statement_is_refused(change, words, signed, keys):
    own = Envelope.from_json(envelope_path(signed).read_text())
    statement = json.loads(own.payload)
    inside = {name: value for name, value in change.items() if name in statement["predicate"]}
    statement["predicate"] |= inside
    statement |= {name: value for name, value in change.items() if name not in inside}
    resigned(signed, keys["own"][0], payload=json.dumps(statement).encode())
    assert words in reason(signed, keys)
    resigned(signed, keys["own"][0], payload=json.dumps(json.loads(own.payload) | {"more": 1}).encode())
    assert verified(signed, keys).ok


def test_a_false_claim_stays_false_when_it_is_signed(keys, tmp_path):
    import dataclasses

    from dpmech.certificates.claim import with_checksum

    path = tmp_path / "forged.json"
    own = saved.calibration("min-sep").certificate()
    with_checksum(dataclasses.replace(own, sigma=0.9 * own.sigma)).save(path)
    dm.sign(path, keys["own"][0], ISSUER)
    found = verified(path, keys)
    assert not found.ok
    assert [failure.split(":")[0] for failure in found.failures] == ["claim"]


def test_runs_and_ledgers_are_signed_too(keys, tmp_path):
    path = tmp_path / "ledger.json"
    ledger = dm.Ledger()
    ledger.add("one", saved.calibration("single"))
    ledger.save(path)
    target = dm.sign(path, keys["own"][0], ISSUER)
    assert Statement.from_payload(Envelope.from_json(target.read_text()).payload).kind == "ledger"
    assert verified(path, keys, require_signature=True).ok


def test_a_decision_is_signed_and_a_rejection_is_refused(signed, keys):
    dm.sign(signed, keys["other"][0], "a reviewer", issued_on=TIME, decision="approved", add=True)
    found = verified(signed, keys, "own", "other", require_signature=True)
    assert found.ok
    assert str(found).endswith(f"; issued by {ISSUER} on 2026-03-01; approved by a reviewer on 2026-03-01")
    assert [one.get("decision") for one in found.to_dict()["signed"]] == [None, "approved"]
    dm.sign(signed, keys["own"][0], ISSUER, issued_on=TIME, replace=True)
    dm.sign(signed, keys["other"][0], "a reviewer", issued_on=TIME, decision="rejected", add=True)
    # Whoever does not trust the reviewer's key does not see the rejection.
    assert verified(signed, keys, "own").ok
    for names in (("other",), ("own", "other")):
        found = verified(signed, keys, *names)
        assert not found.ok
        (failed,) = [check for check in found.checks if not check.ok]
        assert (failed.name, "rejected by a reviewer on 2026-03-01" in failed.detail) == ("signature", True)
    with pytest.raises(dm.InvalidParameterError, match="decision must be None or one of approved, rejected"):
        dm.sign(signed, keys["own"][0], ISSUER, decision="maybe", replace=True)
    payload = json.loads(Envelope.from_json(envelope_path(signed).read_text().splitlines()[0]).payload)
    for wrong in ("maybe", None, 1):
        predicate = payload["predicate"] | {"decision": wrong}
        changed = json.dumps(payload | {"predicate": predicate}).encode()
        dm.sign(signed, keys["own"][0], ISSUER, issued_on=TIME, replace=True)
        resigned(signed, keys["own"][0], payload=changed)
        found = verified(signed, keys)
        assert not found.ok
        assert found.signed == ()


def test_a_second_issuer_adds_a_signature(signed, keys):
    later = TIME + datetime.timedelta(days=3)
    first = envelope_path(signed).read_text()
    with pytest.raises(dm.InvalidParameterError, match="key must be a key that has not signed it yet"):
        dm.sign(signed, keys["own"][0], ISSUER, add=True)
    with pytest.raises(dm.InvalidParameterError, match="add must be False where replace is True"):
        dm.sign(signed, keys["other"][0], ISSUER, add=True, replace=True)
    assert envelope_path(signed).read_text() == first
    dm.sign(signed, keys["other"][0], "the reviewer", issued_on=later, add=True)
    assert envelope_path(signed).read_text().startswith(first)
    for names, issuers in ((("own",), [ISSUER]), (("other",), ["the reviewer"])):
        found = verified(signed, keys, *names)
        assert found.ok
        assert [one.issuer for one in found.signed] == issuers
    both = verified(signed, keys, "other", "own")
    assert str(both).endswith(f"; issued by {ISSUER} on 2026-03-01; issued by the reviewer on 2026-03-04")
    assert len(both.to_dict()["signed"]) == 2
    # The newest signature counts for the age.
    age = (datetime.datetime.now(datetime.UTC) - later).days + 1
    public = tuple(keys[name][1] for name in keys)
    for days, ok in ((age, True), (age - 2, False)):
        assert dm.verify(signed, keys=public, policy=dm.Policy(max_age_days=days)).ok is ok
    # An envelope that nobody trusted has signed is ignored; a trusted one over other content is not.
    lines = envelope_path(signed).read_text().splitlines()
    broken = json.loads(lines[1]) | {"payload": json.loads(lines[0])["payload"]}
    envelope_path(signed).write_text(lines[0] + "\n" + json.dumps(broken))
    assert [one.issuer for one in verified(signed, keys, "other", "own").signed] == [ISSUER]
    single = signed.parent / "single.json"
    dm.sign(single, keys["other"][0], ISSUER)
    envelope_path(signed).write_text(lines[0] + "\n" + envelope_path(single).read_text())
    assert verified(signed, keys, "own").ok
    assert reason(signed, keys, "own", "other").startswith("the signature is over another file")
    with pytest.raises(dm.exceptions.CertificateError, match="has a signature over other content"):
        dm.sign(signed, keys["own"][0], ISSUER, add=True)
    # Earlier versions wrote an envelope in several lines.
    envelope_path(signed).write_text(json.dumps(json.loads(lines[0]), indent=1))
    assert verified(signed, keys, "own").ok
    dm.sign(signed, keys["other"][0], "the reviewer", add=True)
    assert len(verified(signed, keys, "other", "own").signed) == 2


def test_a_repeated_line_is_no_further_signature(signed, keys):
    target = envelope_path(signed)
    line = target.read_text()
    target.write_text(line * 3)
    assert len(verified(signed, keys, "own", "other").signed) == 1
    # Other line separators of Unicode may be part of JSON text.
    target.write_text(line.replace('"keyid": "', '"keyid": "\u2028\x85') * 2)
    assert len(verified(signed, keys, "own", "other").signed) == 1


def test_no_signature_is_added_to_an_envelope_of_another_type(signed, keys):
    target = envelope_path(signed)
    text = json.dumps(json.loads(target.read_text()) | {"payloadType": "text/plain"})
    target.write_text(text)
    with pytest.raises(dm.exceptions.CertificateError, match="has a signature over other content"):
        dm.sign(signed, keys["other"][0], "the reviewer", add=True)
    assert target.read_text() == text


def test_only_what_holds_together_is_signed_and_once(signed, keys):
    with pytest.raises(dm.InvalidParameterError, match=r"has a signature; add \(--add\)"):
        dm.sign(signed, keys["own"][0], ISSUER)
    dm.sign(signed, keys["other"][0], "another issuer", replace=True)
    assert [one.issuer for one in verified(signed, keys, "own", "other").signed] == ["another issuer"]
    for issuer in ("", " ", "a\nb", "x" * 201, None, "a\x1b[2J"):
        with pytest.raises(dm.InvalidParameterError, match="issuer"):
            dm.sign(signed, keys["own"][0], issuer, replace=True)
    with pytest.raises(dm.InvalidParameterError, match="time zone"):
        dm.sign(signed, keys["own"][0], ISSUER, issued_on=datetime.datetime(2026, 1, 1), replace=True)
    signed.write_text(signed.read_text().replace('"min_sep": 4', '"min_sep": 5'))
    with pytest.raises(dm.exceptions.CertificateError, match="checksum is broken"):
        dm.sign(signed, keys["own"][0], ISSUER, replace=True)


def test_an_envelope_that_cannot_be_read_is_no_absence(signed, keys):
    envelope_path(signed).unlink()
    envelope_path(signed).symlink_to("nowhere")
    with pytest.raises(dm.InvalidParameterError, match="readable file"):
        verified(signed, keys)
