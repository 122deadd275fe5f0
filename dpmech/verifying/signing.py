"""Signing: the issuer of a certificate, a run record or a ledger, stated in envelopes next to the file.

The signed file is unchanged, not wrapped: its first line is still the guarantee, and older readers, and diffs
between versions, still work.
"""

import datetime
import json
import os
from importlib import metadata
from pathlib import Path

from dpmech.certificates import (
    PAYLOAD_TYPE,
    Certificate,
    Envelope,
    PrivateKey,
    RunRecord,
    Signature,
    Statement,
    digest_of,
    envelope_path,
    envelopes_of,
    is_run_record,
    read_text,
)
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.files import write_bytes
from dpmech.ledgers import Ledger, is_ledger

_EXISTS = ": the file has a signature; add (--add) adds another one, replace (--replace) replaces it"


def sign(
    path: str | os.PathLike[str],
    key: PrivateKey | str | os.PathLike[str],
    issuer: str,
    *,
    decision: str | None = None,
    issued_on: datetime.datetime | None = None,
    replace: bool = False,
    add: bool = False,
) -> Path:
    """Sign a certificate, a run record or a ledger file as its issuer.

    The signature is an Ed25519 signature of an in-toto statement with the SHA-256 of the file, the issuer and
    the time. It is written next to the file, in a DSSE envelope in FILE.dsse. Several issuers may sign a
    file, for example the trainer and then a reviewer; FILE.dsse then has one envelope per line. `sign` checks
    only that the file is consistent; `dm.verify` checks whether its claim is true.

    Args:
        path: path of the file, as `save` wrote it.
        key: a private key, or the path of one.
        issuer: name of the signer, in one line. It is only as trustworthy as the key.
        decision: "approved" or "rejected", by a reviewer; None states none. `dm.verify` refuses a file that
            the holder of a trusted key rejected.
        issued_on: a timezone-aware time; None for the current time.
        replace: whether to replace existing signatures.
        add: whether to keep existing signatures. They must be for the same content, by other keys. A new file
            may have none.

    Returns:
        The path of the envelope.

    Raises:
        InvalidParameterError: if an argument is invalid, the file cannot be read, or a signature exists and
            neither `replace` nor `add` is given.
        CertificateError: if the file is inconsistent, or an existing signature is for other content.
        MissingDependencyError: if the extra `sign` is not installed.

    Example:
        >>> import dpmech as dm
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> cal = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> saved = cal.certificate().save(folder / "certificate.json")
        >>> public = dm.certificates.new_key(folder / "reviewer.key")
        >>> dm.sign(folder / "certificate.json", folder / "reviewer.key", "privacy office").name
        'certificate.json.dsse'
    """
    if replace and add:
        raise InvalidParameterError("add", add, "False where replace is True")
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
        checksum=record["checksum"],
        issuer=issuer,
        issued_on=time.astimezone(datetime.UTC).replace(microsecond=0),
        dpmech=metadata.version("dpmech"),
        decision=decision,
    )
    unsigned = Envelope(PAYLOAD_TYPE, statement.payload(), ())
    signature = Signature(private.public.key_id, private.signature(unsigned.signed_bytes))
    target = envelope_path(path)
    if not replace and not add and os.path.lexists(target):
        raise InvalidParameterError("certificate", str(target), "a file that does not exist", _EXISTS)
    kept = envelopes_of(path) if add else ()
    if any(
        one.payload_type != PAYLOAD_TYPE or Statement.from_payload(one.payload).digest != statement.digest
        for one in kept
    ):
        raise CertificateError(f"{target} has a signature over other content; --replace removes it")
    if any(private.public.accepts(own.value, one.signed_bytes) for one in kept for own in one.signatures):
        raise InvalidParameterError("key", private.public.key_id[:16], "a key that has not signed it yet")
    every = (*kept, Envelope(PAYLOAD_TYPE, unsigned.payload, (signature,)))
    write_bytes("certificate", target, "".join(one.to_json() for one in every).encode("utf-8"))
    return target


def _document(text: str) -> tuple[str, dict[str, str]]:
    """The kind of a consistent checksummed text, and its entries."""
    if is_ledger(text):
        Ledger.from_json(text)
        return "ledger", json.loads(text)
    if is_run_record(text):
        RunRecord.from_json(text)
        return "run record", json.loads(text)
    Certificate.from_json(text)
    return "certificate", json.loads(text)
