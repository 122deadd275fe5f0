"""The bytes that are signed, by hand; envelopes that are none; and Ed25519 by a second implementation."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmech as dm
from dpmech.certificates import Envelope, PrivateKey, PublicKey, Signature
from dpmech.certificates.signatures import pre_authentication_encoding
from tests.support import ed25519

TEXT = {"payloadType": "text/plain", "payload": "aGVsbG8=", "signatures": [{"keyid": "k", "sig": "AAEC"}]}


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        # The example of the specification.
        (
            "http://example.com/HelloWorld",
            b"hello world",
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world",
        ),
        ("", b"", b"DSSEv1 0  0 "),
        # Lengths are those of bytes: two of them for one letter.
        ("\u00e9", b"\x00\xff", b"DSSEv1 2 \xc3\xa9 2 \x00\xff"),
    ],
)
def test_what_is_signed_is_what_the_specification_says(kind, payload, expected):
    assert pre_authentication_encoding(kind, payload) == expected


@given(*[st.tuples(st.text(alphabet="1 a", max_size=4), st.binary(max_size=4))] * 2)
def test_no_two_contents_are_signed_alike(one, other):
    encoded = [pre_authentication_encoding(*pair) for pair in (one, other)]
    assert (encoded[0] == encoded[1]) == (one == other)


@given(
    st.text(max_size=9).filter(str.isprintable), st.binary(max_size=40), st.binary(min_size=1, max_size=70)
)
def test_an_envelope_is_read_as_it_was_written(kind, payload, value):
    envelope = Envelope(kind, payload, (Signature("key", value),))
    assert Envelope.from_json(envelope.to_json()) == envelope
    # The other alphabet, which the specification lets writers use.
    record = json.loads(envelope.to_json())
    record["payload"] = base64.urlsafe_b64encode(payload).decode()
    assert Envelope.from_json(json.dumps(record | {"more": 1})) == envelope


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"payload": "aGVsbG8"}, "payload of the envelope is not whole base64"),
        ({"payload": "aGVs bG8="}, "payload of the envelope is not whole base64"),
        ({"payload": None}, "payload of the envelope is not whole base64"),
        ({"payload": "aGVsbG\u00e9="}, "payload of the envelope is not whole base64"),
        ({"signatures": [{"sig": "AAE"}]}, "sig of the envelope is not whole base64"),
        ({"signatures": [{}]}, "sig of the envelope is not whole base64"),
        ({"signatures": []}, "holds no signature"),
        ({"signatures": {}}, "holds no signature"),
        ({"signatures": ["AAEC"]}, "is no object"),
        ({"signatures": [{"keyid": 3, "sig": "AAEC"}]}, "keyid of the envelope is no text"),
        ({"payloadType": None}, "says no payloadType"),
    ],
)
def test_what_is_no_envelope_is_refused(change, words):
    assert Envelope.from_json(json.dumps(TEXT)).payload == b"hello"
    with pytest.raises(dm.exceptions.CertificateError, match=words):
        Envelope.from_json(json.dumps(TEXT | change))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "no JSON object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (json.dumps(TEXT)[:-1] + ', "payload": ""}', "twice"),
    ],
)
def test_what_is_no_json_object_is_refused(text, words):
    with pytest.raises(dm.exceptions.CertificateError, match=words):
        Envelope.from_json(text)


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "key.pem"
    dm.certificates.new_key(path)
    return PrivateKey.load(path)


def test_the_second_implementation_is_that_of_the_rfc():
    # RFC 8032, section 7.1, test 2.
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert ed25519.holds(public, signature, b"\x72")
    assert not ed25519.holds(public, signature, b"\x73")


def test_signatures_hold_by_the_second_implementation(private):
    content = pre_authentication_encoding("a/b", b"payload")
    signature = private.signature(content)
    raw = private.public.key.public_bytes_raw()
    assert ed25519.holds(raw, signature, content)
    assert private.public.accepts(signature, content)
    assert not private.public.accepts(signature, content + b".")
    assert not private.public.accepts(signature[:-1], content)
    # s + L is the same residue; RFC 8032 refuses it.
    other = (int.from_bytes(signature[32:], "little") + ed25519.ORDER).to_bytes(32, "little")
    assert not private.public.accepts(signature[:32] + other, content)


def test_keys_are_kept_as_they_should(tmp_path):
    path = tmp_path / "key.pem"
    public = dm.certificates.new_key(path)
    assert public == tmp_path / "key.pem.pub"
    assert path.stat().st_mode & 0o777 == 0o600
    assert PublicKey.load(public).key_id == PrivateKey.load(path).public.key_id
    assert len(PublicKey.load(public).key_id) == 64
    assert "PRIVATE" not in public.read_text()
    assert "key=" not in repr(PrivateKey.load(path))
    with pytest.raises(dm.InvalidParameterError, match="does not exist"):
        dm.certificates.new_key(path)
    with pytest.raises(dm.InvalidParameterError, match="can be written"):
        dm.certificates.new_key(tmp_path / "no" / "key.pem")
    path.chmod(0o640)
    with pytest.raises(dm.InvalidParameterError, match="chmod 600"):
        PrivateKey.load(path)


def test_a_key_of_another_kind_is_refused(tmp_path):
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import x25519

    path = tmp_path / "key.pem"
    public = dm.certificates.new_key(path)
    with pytest.raises(dm.InvalidParameterError, match="that is a public key"):
        PrivateKey.load(public)
    with pytest.raises(dm.InvalidParameterError, match="that is a private key"):
        PublicKey.load(path)
    other = x25519.X25519PrivateKey.generate()
    locked = PrivateKey.load(path).key.private_bytes(
        s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"word")
    )
    pem = other.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    shown = other.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    for content in (pem, locked, b"", b"text"):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(dm.InvalidParameterError, match="an Ed25519 private key in PEM"):
            PrivateKey.load(tmp_path / "other")
    for content in (shown, b""):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(dm.InvalidParameterError, match="an Ed25519 public key in PEM"):
            PublicKey.load(tmp_path / "other")
    with pytest.raises(dm.InvalidParameterError, match="readable file"):
        PublicKey.load(tmp_path / "missing")


def test_without_the_extra_the_error_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(dm.exceptions.MissingDependencyError, match="cryptography") as caught:
        dm.certificates.new_key(tmp_path / "key.pem")
    assert caught.value.extra == "sign"
