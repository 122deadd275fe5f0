"""Sealed files that commands read: what is wrong with one is said of the file."""

from pathlib import Path

from dpmech.certificates import Certificate, read_text
from dpmech.composition import Ledger, is_ledger
from dpmech.exceptions import CertificateError, InvalidParameterError

__all__ = ["named", "read_certificate", "read_ledger"]


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


def named(path: str | Path, error: CertificateError) -> CertificateError:
    """The same error, with the file that it is about."""
    return CertificateError(f"{path}: {error}", claimed=error.claimed, recomputed=error.recomputed)
