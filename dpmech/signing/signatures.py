"""Signing a sealed file, and checking a signature: the envelope stands beside the file.

The file stays what every reader knows. It is not wrapped: its first line is still the guarantee, older
readers and differences of versions still work, and whoever does not ask for signatures sees none.
"""

import datetime
import json
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from dpmech.certificates import Certificate, RunRecord, is_run_record, read_text
from dpmech.composition import Ledger, is_ledger
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.files import write_bytes
from dpmech.signing.envelope import Envelope, Signature
from dpmech.signing.keys import PrivateKey, PublicKey
from dpmech.signing.statement import PAYLOAD_TYPE, Statement, digest_of

__all__ = ["ENDING", "check_signature", "envelope_of", "envelope_path", "sign"]

ENDING = ".dsse"
_LARGEST_ENVELOPE = 1_000_000


def envelope_path(path: str | os.PathLike[str]) -> Path:
    """Where the envelope of a file stands: its name, and `.dsse`."""
    return Path(f"{os.fspath(path)}{ENDING}")


def sign(
    path: str | os.PathLike[str],
    key: PrivateKey | str | os.PathLike[str],
    issuer: str,
    *,
    issued_on: datetime.datetime | None = None,
    replace: bool = False,
) -> Path:
    """Sign a certificate, a run record or a ledger file: say that it is from you.

    The signature is Ed25519 over an in-toto statement with the SHA-256 of the file, the issuer and the time,
    in a DSSE envelope. It is written beside the file, as FILE.dsse. That the file holds together is checked;
    whether its claim is true is what `dm.verify` finds out.

    Args:
        path: of the file, as `save` wrote it.
        key: a private key, or the path of one.
        issuer: who says so; one line. It is worth as much as the readers' trust in the key.
        issued_on: an aware time; None for now.
        replace: whether a signature that stands there already gives way.

    Returns:
        The path of the envelope.

    Raises:
        InvalidParameterError: on a bad argument, a file that cannot be read, or a signature that is there.
        CertificateError: if the file does not hold together.
        MissingDependencyError: without the extra `sign`.

    Example:
        >>> import dpmech as dm
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> cal = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> saved = cal.certificate().save(folder / "certificate.json")
        >>> public = dm.new_key(folder / "reviewer.key")
        >>> dm.sign(folder / "certificate.json", folder / "reviewer.key", "privacy office").name
        'certificate.json.dsse'
    """
    private = key if isinstance(key, PrivateKey) else PrivateKey.load(key)
    text = read_text(path)
    kind, record = _document(text)
    time = datetime.datetime.now(datetime.UTC) if issued_on is None else issued_on
    if not isinstance(time, datetime.datetime) or time.tzinfo is None:
        raise InvalidParameterError("issued_on", issued_on, "a datetime with a time zone, or None")
    statement = Statement(
        name=Path(path).name,
        digest=digest_of(text.encode("utf-8")),
        kind=kind,
        guarantee=record["guarantee"],
        seal=record["seal"],
        issuer=issuer,
        issued_on=time.astimezone(datetime.UTC).replace(microsecond=0),
        dpmech=metadata.version("dpmech"),
    )
    unsigned = Envelope(PAYLOAD_TYPE, statement.payload(), ())
    signature = Signature(private.public.key_id, private.signature(unsigned.signed_bytes))
    target = envelope_path(path)
    content = Envelope(PAYLOAD_TYPE, unsigned.payload, (signature,)).to_json()
    if not replace and os.path.lexists(target):
        raise InvalidParameterError("certificate", str(target), "a file that is not there yet", _REPLACE)
    write_bytes("certificate", target, content.encode("utf-8"))
    return target


_REPLACE = ": it is signed already; replace (--replace) signs it anew"


def envelope_of(path: str | os.PathLike[str]) -> Envelope | None:
    """The envelope beside a file, unchecked; None where there is none.

    Raises:
        InvalidParameterError: if it cannot be read, or is too large.
        CertificateError: if it is none.
    """
    target = envelope_path(path)
    if not os.path.lexists(target):
        return None
    return Envelope.from_json(read_text(target, max_file_size=_LARGEST_ENVELOPE))


def check_signature(text: str, envelope: Envelope, keys: Sequence[PublicKey]) -> tuple[Statement, PublicKey]:
    """Check that one of these keys signed a statement about this very text.

    Args:
        text: of the file.
        envelope: from beside it.
        keys: those that are trusted.

    Returns:
        The statement, and the key that signed it.

    Raises:
        CertificateError: if none of the keys did, or the statement is about something else.
    """
    if envelope.payload_type != PAYLOAD_TYPE:
        raise CertificateError(
            f"payloadType of the envelope is not {PAYLOAD_TYPE}",
            claimed=envelope.payload_type,
            recomputed=PAYLOAD_TYPE,
        )
    # The names of keys in the envelope are not signed: every key is tried on every signature.
    signer = next(
        (key for key in keys for one in envelope.signatures if key.accepts(one.value, envelope.signed_bytes)),
        None,
    )
    if signer is None:
        raise CertificateError("no signature of a trusted key over what the envelope holds")
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


def _document(text: str) -> tuple[str, dict[str, str]]:
    """The kind of a sealed text that holds together, and its entries."""
    if is_ledger(text):
        Ledger.from_json(text)
        return "ledger", json.loads(text)
    if is_run_record(text):
        RunRecord.from_json(text)
        return "run record", json.loads(text)
    Certificate.from_json(text)
    return "certificate", json.loads(text)
