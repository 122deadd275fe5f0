"""Signatures: the in-toto statement, its DSSE envelopes next to the file, and the checks of both."""

import base64
import binascii
import dataclasses
import datetime
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from dpmech.certificates import read_text
from dpmech.certificates.keys import PublicKey
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.files import parse_json

# The URL-safe alphabet is accepted too, as the specification requires.
_STANDARD = str.maketrans("-_", "+/")


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """The signed bytes: type and payload, each with its length, so that they cannot be confused.

    "DSSEv1" SP LEN(type) SP type SP LEN(payload) SP payload, lengths in bytes as decimal numbers.

    References:
        DSSE 1.0.2, protocol, "PAE".

    Examples:
        >>> pre_authentication_encoding("text/plain", b"hello")
        b'DSSEv1 10 text/plain 5 hello'
    """
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


@dataclasses.dataclass(frozen=True)
class Signature:
    """One signature.

    Attributes:
        key_id: id of the key that made it, a hint that nothing depends on; empty if unstated.
        value: the bytes of the signature.
    """

    key_id: str
    value: bytes


@dataclasses.dataclass(frozen=True)
class Envelope:
    """A payload with its signatures.

    Attributes:
        payload_type: type of the payload; it is signed too.
        payload: the bytes.
        signatures: one or more signatures.
    """

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that the signatures cover."""
        return pre_authentication_encoding(self.payload_type, self.payload)

    def to_json(self) -> str:
        """JSON text of the envelope, in one line."""
        record = {
            "payloadType": self.payload_type,
            "payload": base64.b64encode(self.payload).decode("ascii"),
            "signatures": [
                {"keyid": one.key_id, "sig": base64.b64encode(one.value).decode("ascii")}
                for one in self.signatures
            ],
        }
        return json.dumps(record) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse an envelope; entries outside the specification are ignored.

        Raises:
            CertificateError: if the text is not an envelope.
        """
        record = read_object(text, "envelope")
        kind, signatures = record.get("payloadType"), record.get("signatures")
        if not isinstance(kind, str):
            raise CertificateError("the envelope says no payloadType", claimed=kind)
        if not isinstance(signatures, list) or not signatures:
            raise CertificateError("the envelope holds no signature", claimed=signatures)
        return cls(kind, _decoded(record, "payload"), tuple(_signature(one) for one in signatures))


def _signature(record: object) -> Signature:
    if not isinstance(record, dict):
        raise CertificateError("a signature of the envelope is no object", claimed=record)
    key_id = record.get("keyid")
    if key_id is not None and not isinstance(key_id, str):
        raise CertificateError("keyid of the envelope is no text", claimed=key_id)
    return Signature(key_id or "", _decoded(record, "sig"))


def _decoded(record: dict[str, Any], name: str) -> bytes:
    text = record.get(name)
    try:
        if isinstance(text, str):
            return base64.b64decode(text.translate(_STANDARD).encode("ascii"), validate=True)
    except (ValueError, binascii.Error):
        pass
    raise CertificateError(f"{name} of the envelope is not whole base64", claimed=text)


def read_object(text: str | bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object without repeated entries.

    Raises:
        CertificateError: if the text is not such an object.
    """
    try:
        found = parse_json(text)
    except ValueError as error:
        raise CertificateError(f"the {what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CertificateError(f"the {what} is no JSON object", claimed=found)
    return found


PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
# A name that does not resolve to an address.
PREDICATE_TYPE = "urn:dpmech:document:v1"
DECISIONS = ("approved", "rejected")
_LONGEST_ISSUER = 200
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def digest_of(content: bytes) -> str:
    """SHA-256 (hex) of the bytes of a file."""
    return hashlib.sha256(content).hexdigest()


@dataclasses.dataclass(frozen=True)
class Statement:
    """The statement that an issuer signs.

    Attributes:
        name: name of the file when it was signed; it may have been renamed.
        digest: SHA-256 (hex) of the bytes of the file.
        kind: "certificate", "run record" or "ledger".
        guarantee: first line of the document.
        checksum: checksum of the document.
        issuer: who signs, in one line of at most 200 characters.
        issued_on: time on the issuer's clock, in UTC, to the second.
        dpmech: the version that signed.
        decision: "approved" or "rejected", by a reviewer; None if the signer states no decision.
    """

    name: str
    digest: str
    kind: str
    guarantee: str
    checksum: str
    issuer: str
    issued_on: datetime.datetime
    dpmech: str
    decision: str | None = None

    def __post_init__(self) -> None:
        if self.decision not in (None, *DECISIONS):
            raise InvalidParameterError("decision", self.decision, f"None or one of {', '.join(DECISIONS)}")
        text = self.issuer
        if (
            not isinstance(text, str)
            or not text.strip()
            or not text.isprintable()
            or len(text) > _LONGEST_ISSUER
        ):
            raise InvalidParameterError("issuer", text, f"one line of 1 to {_LONGEST_ISSUER} characters")

    def payload(self) -> bytes:
        """The bytes that are signed."""
        record = {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": self.name, "digest": {"sha256": self.digest}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "kind": self.kind,
                "guarantee": self.guarantee,
                "checksum": self.checksum,
                "issuer": self.issuer,
                "issuedOn": self.issued_on.strftime(_TIME),
                "dpmech": self.dpmech,
                **self._decided,
            },
        }
        return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_payload(cls, payload: bytes) -> Self:
        """Parse a statement; unknown entries are ignored.

        Raises:
            CertificateError: if it is not a statement about exactly one checksummed document.
        """
        record = read_object(payload, "signed statement")
        for name, due in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
            if record.get(name) != due:
                raise CertificateError(
                    f"{name} of the signed statement is not {due}", claimed=record.get(name), recomputed=due
                )
        try:
            (subject,) = record["subject"]
            predicate = record["predicate"]
            texts = {name: predicate[name] for name in ("kind", "guarantee", "checksum", "issuer", "dpmech")}
            found = {"name": subject["name"], "digest": subject["digest"]["sha256"]} | texts
            if "decision" in predicate:
                found["decision"] = predicate["decision"]
            return cls(issued_on=_time(predicate["issuedOn"]), **{key: _text(found[key]) for key in found})
        except InvalidParameterError as error:
            raise CertificateError(f"the signed statement does not hold: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise CertificateError(
                f"the signed statement is not one about a checksummed document ({error!r})"
            ) from error

    def __str__(self) -> str:
        return f"{self.decision or 'issued'} by {self.issuer} on {self.issued_on:%Y-%m-%d}"

    def to_dict(self) -> dict[str, Any]:
        """Issuer, time and decision, as plain data."""
        return {"issuer": self.issuer, "issued_on": self.issued_on.strftime(_TIME), **self._decided}

    @property
    def _decided(self) -> dict[str, str]:
        return {} if self.decision is None else {"decision": self.decision}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("an entry is no text")
    return value


def _time(value: object) -> datetime.datetime:
    return datetime.datetime.strptime(_text(value), _TIME).replace(tzinfo=datetime.UTC)


ENDING = ".dsse"
_LARGEST_ENVELOPE = 1_000_000


def envelope_path(path: str | os.PathLike[str]) -> Path:
    """Path of a file's envelopes: the name of the file with `.dsse` appended."""
    return Path(f"{os.fspath(path)}{ENDING}")


def envelopes_of(path: str | os.PathLike[str]) -> tuple[Envelope, ...]:
    """Read the envelopes next to a file, unchecked: one in each line, or one in several lines.

    Raises:
        InvalidParameterError: if the file cannot be read or is too large.
        CertificateError: if it contains anything else.
    """
    target = envelope_path(path)
    if not os.path.lexists(target):
        return ()
    text = read_text(target, max_file_size=_LARGEST_ENVELOPE)
    lines = [line for line in text.split("\n") if line.strip()]  # JSON text may contain other separators
    several = len(lines) > 1 and lines[1].startswith("{")
    return tuple(Envelope.from_json(one) for one in (lines if several else [text]))


def check_signatures(
    text: str, envelopes: Sequence[Envelope], keys: Sequence[PublicKey]
) -> list[tuple[Statement, PublicKey]]:
    """Check that at least one of these keys signed a statement about exactly this text.

    Envelopes that none of the keys signed are ignored if another one is signed.

    Args:
        text: text of the file.
        envelopes: the envelopes of the file.
        keys: the trusted keys.

    Returns:
        The statements, and the keys that signed them, at least one; each pair once, however often it is in
        the file.

    Raises:
        CertificateError: if none of the keys signed an envelope, or one signed a statement about something
            else.
    """
    found = [_check_signature(text, envelope, keys) for envelope in envelopes]
    signed = {(one[0], one[1].key_id): one for one in found if one is not None}
    if not signed:
        raise CertificateError("no signature of a trusted key over what the envelope holds")
    return list(signed.values())


def _check_signature(
    text: str, envelope: Envelope, keys: Sequence[PublicKey]
) -> tuple[Statement, PublicKey] | None:
    if envelope.payload_type != PAYLOAD_TYPE:
        raise CertificateError(
            f"payloadType of the envelope is not {PAYLOAD_TYPE}",
            claimed=envelope.payload_type,
            recomputed=PAYLOAD_TYPE,
        )
    # Key ids in the envelope are not signed, so every key is tried on every signature.
    signer = next(
        (key for key in keys for one in envelope.signatures if key.accepts(one.value, envelope.signed_bytes)),
        None,
    )
    if signer is None:
        return None
    statement = Statement.from_payload(envelope.payload)
    digest = digest_of(text.encode("utf-8"))
    if statement.digest != digest:
        raise CertificateError(
            f"the signature is over another file (SHA-256 {statement.digest[:12]}..., this one "
            f"{digest[:12]}...)",
            claimed=statement.digest,
            recomputed=digest,
        )
    return statement, signer
