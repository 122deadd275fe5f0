"""Sealed files that commands read: what is wrong with one is said of the file."""

from pathlib import Path

from dpmech.certificates import Certificate, Document, RunRecord, is_run_record, read_text
from dpmech.composition import Ledger, is_ledger
from dpmech.exceptions import CertificateError, InvalidParameterError

__all__ = ["named", "read_certificate", "read_claim", "read_document", "read_ledger", "write_text"]


def read_certificate(path: str | Path) -> Certificate:
    """The certificate in a file.

    Raises:
        InvalidParameterError: if it cannot be read.
        CertificateError: if it is none, or does not hold together.
    """
    try:
        return Certificate.load(path)
    except CertificateError as error:
        raise named(path, error) from error


def read_ledger(path: str | Path) -> Ledger:
    """The ledger in a file; errors as for `read_certificate`."""
    text = read_text(path)
    if not is_ledger(text):
        raise InvalidParameterError("path", str(path), "a ledger")
    try:
        return Ledger.from_json(text)
    except CertificateError as error:
        raise named(path, error) from error


def read_document(path: str | Path) -> Document:
    """The certificate, run record or ledger in a file; errors as for `read_certificate`."""
    text = read_text(path)
    try:
        if is_ledger(text):
            return Ledger.from_json(text)
        return RunRecord.from_json(text) if is_run_record(text) else Certificate.from_json(text)
    except CertificateError as error:
        raise named(path, error) from error


def read_claim(path: str | Path) -> Certificate:
    """The certificate in a file, or in a run record; errors as for `read_certificate`."""
    found = read_document(path)
    if isinstance(found, Certificate):
        return found
    if isinstance(found, RunRecord):
        return found.certificate
    raise InvalidParameterError("path", str(path), "a certificate or a run record, not a ledger")


def write_text(path: Path, text: str) -> None:
    """Write a text file.

    Raises:
        InvalidParameterError: if it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidParameterError(
            "out", str(path), f"a file that can be written ({error.strerror})"
        ) from error


def named(path: str | Path, error: CertificateError) -> CertificateError:
    """The same error, with the file that it is about."""
    return CertificateError(f"{path}: {error}", claimed=error.claimed, recomputed=error.recomputed)
