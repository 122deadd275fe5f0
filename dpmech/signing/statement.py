"""The in-toto statement that is signed: which file, what it says first, who issued it, and when."""

import dataclasses
import datetime
import hashlib
import json
from typing import Any, Self

from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.signing.envelope import read_object

__all__ = ["PAYLOAD_TYPE", "PREDICATE_TYPE", "STATEMENT_TYPE", "Statement", "digest_of"]

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
# A name, no address: nothing is to be found there.
PREDICATE_TYPE = "urn:dpmech:sealed-document:v1"
_LONGEST_ISSUER = 200
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def digest_of(content: bytes) -> str:
    """SHA-256 (hex) of the bytes of a file."""
    return hashlib.sha256(content).hexdigest()


@dataclasses.dataclass(frozen=True)
class Statement:
    """What an issuer signs.

    Attributes:
        name: of the file when it was signed; it may be called otherwise since.
        digest: SHA-256 (hex) of its bytes.
        kind: "certificate", "run record" or "ledger".
        guarantee: its first line.
        seal: its own.
        issuer: who says so, in one line of at most 200 characters.
        issued_on: by the issuer's clock, in UTC, to the second.
        dpmech: the version that signed.
    """

    name: str
    digest: str
    kind: str
    guarantee: str
    seal: str
    issuer: str
    issued_on: datetime.datetime
    dpmech: str

    def __post_init__(self) -> None:
        text = self.issuer
        if (
            not isinstance(text, str)
            or not text.strip()
            or not text.isprintable()
            or len(text) > _LONGEST_ISSUER
        ):
            raise InvalidParameterError("issuer", text, f"one line of 1 to {_LONGEST_ISSUER} characters")

    def payload(self) -> bytes:
        """The statement as it is signed."""
        record = {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": self.name, "digest": {"sha256": self.digest}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "kind": self.kind,
                "guarantee": self.guarantee,
                "seal": self.seal,
                "issuer": self.issuer,
                "issuedOn": self.issued_on.strftime(_TIME),
                "dpmech": self.dpmech,
            },
        }
        return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_payload(cls, payload: bytes) -> Self:
        """Read a statement; entries that nobody knows are passed over.

        Raises:
            CertificateError: if it is none, or one about something else than one sealed document.
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
            texts = {name: predicate[name] for name in ("kind", "guarantee", "seal", "issuer", "dpmech")}
            found = {"name": subject["name"], "digest": subject["digest"]["sha256"]} | texts
            return cls(issued_on=_time(predicate["issuedOn"]), **{key: _text(found[key]) for key in found})
        except InvalidParameterError as error:
            raise CertificateError(f"the signed statement does not hold: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise CertificateError(
                f"the signed statement is not one about a sealed document ({error!r})"
            ) from error

    def __str__(self) -> str:
        return f"issued by {self.issuer} on {self.issued_on:%Y-%m-%d}"

    def to_dict(self) -> dict[str, Any]:
        """Who issued it, and when, as plain data."""
        return {"issuer": self.issuer, "issued_on": self.issued_on.strftime(_TIME)}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("an entry is no text")
    return value


def _time(value: object) -> datetime.datetime:
    return datetime.datetime.strptime(_text(value), _TIME).replace(tzinfo=datetime.UTC)
