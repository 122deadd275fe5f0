"""Files that commands read and write, figures included; none is replaced without --force."""

import io
import math
from pathlib import Path
from typing import Any

import click

from dpmech.certificates import LARGEST_FILE, Certificate, Document, RunRecord, is_run_record, read_text
from dpmech.cli.printing import warn
from dpmech.exceptions import CertificateError, DpmechError, InvalidParameterError
from dpmech.files import parse_json, read_bytes, write_bytes
from dpmech.ledgers import Ledger, is_ledger
from dpmech.mechanism import Mechanism, PrivacyBudget, Strategy
from dpmech.plans import write_strategy

force_option = click.option("--force", is_flag=True, help="Replace a file with other content.")
page_force_option = click.option(
    "--force",
    is_flag=True,
    help="Replace a file even if it is a certificate, run record, ledger or strategy.",
)


def read_certificate(path: str | Path) -> Certificate:
    """Read a certificate from a file.

    Raises:
        InvalidParameterError: if the file cannot be read.
        CertificateError: if it is not a certificate, or is inconsistent.
    """
    try:
        return Certificate.load(path)
    except CertificateError as error:
        raise named(path, error) from error


def read_ledger(path: str | Path) -> Ledger:
    """Read a ledger from a file; errors as in `read_certificate`."""
    try:
        text = read_text(path)
        if not is_ledger(text):
            raise InvalidParameterError("path", str(path), "a ledger")
        return Ledger.from_json(text)
    except CertificateError as error:
        raise named(path, error) from error


def read_document(path: str | Path) -> Document:
    """Read a certificate, run record or ledger from a file; errors as in `read_certificate`."""
    try:
        text = read_text(path)
        if is_ledger(text):
            return Ledger.from_json(text)
        return RunRecord.from_json(text) if is_run_record(text) else Certificate.from_json(text)
    except CertificateError as error:
        raise named(path, error) from error


def read_claim(path: str | Path) -> Certificate:
    """Read the certificate in a file, or in a run record; errors as in `read_certificate`."""
    found = read_document(path)
    if isinstance(found, Certificate):
        return found
    if isinstance(found, RunRecord):
        return found.certificate
    raise InvalidParameterError("path", str(path), "a certificate or a run record, not a ledger")


def write_text(path: Path, text: str) -> None:
    """Write a page, atomically.

    Raises:
        InvalidParameterError: if it cannot be written.
    """
    write_bytes("out", path, text.encode("utf-8"))


def save_certificate(path: Path, certificate: Certificate, *, force: bool) -> None:
    """Write a certificate to a new file, or over one with the same content.

    Args:
        path: path of the file.
        certificate: certificate to write.
        force: whether to replace any other file.

    Raises:
        InvalidParameterError: if it cannot be written, or an existing file differs.
    """
    text = certificate.to_json()
    _check_same(path, text, "out", force=force)
    write_text(path, text)
    if len(text) > LARGEST_FILE:
        size = math.ceil(len(text) / 1e6)
        warn([f"the certificate has {size} MB: read it with dpmech verify --max-file-size {size}"])


def save_strategy(path: Path, strategy: Strategy, *, force: bool) -> None:
    """Like `save_certificate`, for a strategy."""
    _check_same(path, f"{strategy.to_json()}\n", "out_strategy", force=force)
    write_strategy(path, strategy)


def check_free(path: Path, mechanism: Mechanism, budget: PrivacyBudget, *, force: bool) -> None:
    """Refuse an output file that the certificate of this claim will differ from, before it is computed.

    Raises:
        InvalidParameterError: if the existing file is not a certificate of this mechanism and budget, or
            depends on random numbers, which differ every time.
    """
    if force or not path.is_file():
        return
    try:
        known = Certificate.load(path)
    except DpmechError:
        raise _another("out", path) from None
    sampled = known.evidence.samples is not None
    if (known.mechanism, known.budget) != (mechanism, budget) or sampled:
        raise _another("out", path)


def check_no_document(path: Path | None, *, force: bool) -> None:
    """Refuse to write a page over a checksummed or signed document, or over a strategy.

    Raises:
        InvalidParameterError: if the existing file is one, or cannot be read to find out.
    """
    if force or path is None or not path.is_file():
        return
    # A file too large to read may be a document.
    content = read_bytes("out", path, hint="; --force replaces it")
    try:
        found = parse_json(content)
    except ValueError:
        return
    if isinstance(found, dict) and not found.keys().isdisjoint({"checksum", "payloadType", "type"}):
        raise _another("out", path)


def _check_same(path: Path, text: str, option: str, *, force: bool) -> None:
    if force or not path.is_file():
        return
    content = text.encode("utf-8")
    try:
        same = read_bytes(option, path, largest=len(content)) == content
    except InvalidParameterError:  # too large, or unreadable
        same = False
    if not same:
        raise _another(option, path)


def _another(option: str, path: Path) -> InvalidParameterError:
    return InvalidParameterError(
        option, str(path), "a new file, or one that says the same", "; --force replaces it"
    )


def named(path: str | Path, error: CertificateError) -> CertificateError:
    """The same error, with the name of the file."""
    return CertificateError(f"{path}: {error}", claimed=error.claimed, recomputed=error.recomputed)


def drawable() -> frozenset[str]:
    """The file extensions that a figure can be written to.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    from dpmech import plots  # matplotlib is optional

    return plots.file_formats()


def save_figure(figure: Any, path: Path) -> None:  # noqa: ANN401 - matplotlib is optional
    """Write a figure of `dpmech.plots` to a file.

    Raises:
        InvalidParameterError: if it cannot be written.
    """
    content = io.BytesIO()
    try:
        figure.savefig(content, format=path.suffix.lower().lstrip("."))
    except (OSError, ValueError) as error:
        raise InvalidParameterError("figure", str(path), f"a file that can be written ({error})") from None
    write_bytes("figure", path, content.getvalue())
