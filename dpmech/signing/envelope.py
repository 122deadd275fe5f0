"""The DSSE envelope: bytes, what kind of bytes they are, and signatures over both at once."""

import base64
import binascii
import dataclasses
import json
from typing import Any, Self

from dpmech.exceptions import CertificateError
from dpmech.files import parse_json

__all__ = ["Envelope", "Signature", "pre_authentication_encoding"]

# The URL-safe alphabet is read as well, as the specification asks.
_STANDARD = str.maketrans("-_", "+/")


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """What is signed: the type and the bytes, each with its length, so that neither can pass for the other.

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
        key_id: which key made it, as a hint; nothing rests on it. Empty where it is not said.
        value: the bytes of the signature.
    """

    key_id: str
    value: bytes


@dataclasses.dataclass(frozen=True)
class Envelope:
    """Bytes with signatures.

    Attributes:
        payload_type: what kind of bytes they are; signed with them.
        payload: the bytes.
        signatures: one or more.
    """

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @property
    def signed_bytes(self) -> bytes:
        """What the signatures are over."""
        return pre_authentication_encoding(self.payload_type, self.payload)

    def to_json(self) -> str:
        """JSON text of the envelope."""
        record = {
            "payloadType": self.payload_type,
            "payload": base64.b64encode(self.payload).decode("ascii"),
            "signatures": [
                {"keyid": one.key_id, "sig": base64.b64encode(one.value).decode("ascii")}
                for one in self.signatures
            ],
        }
        return json.dumps(record, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read an envelope; entries that the specification does not know are passed over.

        Raises:
            CertificateError: if it is none.
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
    """A JSON object in which no entry stands twice.

    Raises:
        CertificateError: if it is none.
    """
    try:
        found = parse_json(text)
    except ValueError as error:
        raise CertificateError(f"the {what} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CertificateError(f"the {what} is no JSON object", claimed=found)
    return found
