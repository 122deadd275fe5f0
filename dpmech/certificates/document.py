"""File format of certificates, run records and ledgers: decimal and hexadecimal numbers, schema, checksum.

The meaning of the numbers is defined in `certificate`, `run_record` and `ledger_file`.
"""

import abc
import functools
import hashlib
import importlib.resources
import itertools
import json
import math
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any, Self

from dpmech.exceptions import CertificateError, shown_value
from dpmech.files import LARGEST_FILE, parse_json, read_bytes, write_bytes
from dpmech.guards import check_integer

SCHEMA_VERSION = 1
_NEWEST = {"ledger": 3}  # kinds with versions above 1
# An entry that only this kind has, so that an error can name the kind of a wrong file.
_OWN = {"certificate": "claim", "run record": "run", "ledger": "releases"}
# Limits on the entries of lists and objects; those of strategies have none.
_LONGEST, _WIDEST = 16_384, 1024
_SHOWN = 200
# Tolerance for derived numbers recomputed on another platform, which rounds differently.
_ROUNDING = 1e-9
# The rows of a matrix: a list in a list, without objects or lists of its own.
_ROW = re.compile(r"(?<=[\[,]\n)( *\[)\n +([^\[\]{}]*?)\n +\]")
_NUMBER = re.compile(r'\{\s+"decimal": ([^\s\[]+),\s+"hex": ("[^"]+")\s+\}')


class Document(abc.ABC):
    """Base of objects stored as checksummed JSON files with their guarantee on the first line."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data, checksum included; what `save` writes."""

    @classmethod
    @abc.abstractmethod
    def from_json(cls, text: str) -> Self:
        """Like `load`, from the text of a file."""

    def to_json(self) -> str:
        """JSON text, the guarantee on its first line."""
        return to_text(self.to_dict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document to a file, atomically; a replaced file keeps its permissions.

        If the path is a symbolic link, its target is written. A warning names the setting with which `verify`
        reads a file of more than 10 MB.

        Raises:
            InvalidParameterError: if the file cannot be written.
        """
        content = self.to_json().encode("utf-8")
        write_bytes("path", path, content)
        if len(content) > LARGEST_FILE:
            size = math.ceil(len(content) / 1e6)
            text = (
                f"{path} has {size} MB: verify reads it with max_file_size={size * 10**6}, and dpmech verify"
            )
            warnings.warn(f"{text} with --max-file-size {size}", stacklevel=2)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_file_size: int = LARGEST_FILE) -> Self:
        """Read a file, and check that it is unmodified and consistent.

        It checks the schema, the version, the checksum, and every derived entry that is fast to recompute.
        `verify` checks the other entries, and whether the claim is true.

        Args:
            path: path of the file.
            max_file_size: largest accepted file, in bytes.

        Raises:
            InvalidParameterError: if the file cannot be read or is too large.
            CertificateError: if its version or kind is unknown, or it is inconsistent.
        """
        return cls.from_json(read_text(path, max_file_size=max_file_size))


def to_plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Plain data with every float, or array of floats, as {"decimal": ..., "hex": ...}."""
    if isinstance(value, float):
        return {"decimal": value, "hex": value.hex()}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [to_plain(item) for item in value]
    if isinstance(value, list):
        return {"decimal": value, "hex": _hexed(value)} if value else []
    return value


def from_plain(value: Any, path: str = "") -> Any:  # noqa: ANN401 - any JSON value
    """The inverse of `to_plain`.

    Raises:
        CertificateError: where the decimal and the hexadecimal form of a number disagree.
    """
    if isinstance(value, list):
        return [from_plain(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"decimal", "hex"}:
        return _agreed(value["decimal"], value["hex"], path)
    return {key: from_plain(item, f"{path}.{key}" if path else key) for key, item in value.items()}


def _hexed(value: Any) -> Any:  # noqa: ANN401 - a number or nested lists of them
    return [_hexed(item) for item in value] if isinstance(value, list) else float(value).hex()


def _agreed(decimal: Any, digits: Any, path: str) -> Any:  # noqa: ANN401 - as above
    if isinstance(decimal, list) and isinstance(digits, list) and len(decimal) == len(digits):
        return [_agreed(one, other, path) for one, other in zip(decimal, digits, strict=True)]
    try:
        if type(decimal) in {int, float} and float(decimal) == float.fromhex(digits):
            return float(decimal)
    except (TypeError, ValueError, OverflowError):
        pass
    raise CertificateError(
        f"{path}: the decimal {_short(decimal)} and the hexadecimal {_short(digits)} are not the same number",
        claimed=decimal,
        recomputed=digits,
    )


def checksum_of_document(document: dict[str, Any]) -> str:
    """SHA-256 (hex) of the document without its checksum, in a canonical form.

    It detects damage and careless edits. It is not a signature: anyone who edits a file can recompute it,
    which is why `verify` checks the claim itself.

    Raises:
        CertificateError: if a number is not finite.
    """
    content = {key: value for key, value in document.items() if key != "checksum"}
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (RecursionError, ValueError) as error:
        raise CertificateError(f"no document can hold this ({error})") from error
    return hashlib.sha256(text.encode()).hexdigest()


def to_text(document: dict[str, Any]) -> str:
    """The document as JSON: the guarantee on the first line, and numbers and rows of matrices on one each."""
    text = json.dumps(document, indent=1, allow_nan=False).removeprefix("{\n ")
    text = _ROW.sub(lambda found: found[1] + re.sub("\n +", " ", found[2]) + "]", text)
    return "{" + _NUMBER.sub(r'{"decimal": \1, "hex": \2}', text) + "\n"


def parse(text: str, kind: str = "certificate") -> dict[str, Any]:
    """Parse JSON text and check version, schema and checksum, in this order.

    Args:
        text: text of the file.
        kind: "certificate", "run record" or "ledger".

    Raises:
        CertificateError: with the problem found.
    """
    try:
        document = parse_json(text)
    except ValueError as error:
        raise CertificateError(f"not JSON: {error}") from error
    _check_version(document, kind)
    if other := next((name for name, entry in _OWN.items() if name != kind and entry in document), None):
        raise CertificateError(f"a {other}, not a {kind}")
    _check_lengths(document, "the file")
    # Only the first few errors: a large file could have a million.
    found = itertools.islice(_validator(kind, document["schema_version"]).iter_errors(document), 5)
    problems = [_cut(_printable(f"{one.json_path}: {one.message}")) for one in map(_closest, found)]
    if problems:
        raise CertificateError(f"does not follow the schema: {'; '.join(problems)}", claimed=problems)
    checksum = checksum_of_document(document)
    if document["checksum"] != checksum:
        raise CertificateError(
            "the checksum is broken: the content was changed after it was issued (checksum "
            f"{document['checksum'][:12]}..., content {checksum[:12]}...)",
            claimed=document["checksum"],
            recomputed=checksum,
        )
    return dict(document)


def _printable(text: str) -> str:
    """Escape lone surrogates, which JSON may contain and terminals cannot print."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _check_lengths(value: Any, path: str) -> None:  # noqa: ANN401 - as above; at most 64 levels by now
    """Refuse lists and objects, outside of strategies, too long to check entry by entry."""
    most = _LONGEST if isinstance(value, list) else _WIDEST
    if len(value) > most:
        raise CertificateError(f"{path} has {len(value)} entries, at most {most} are read")
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in items:
        if isinstance(item, dict | list) and name != "strategy":
            _check_lengths(item, _cut(str(name)))


def _check_version(document: Any, kind: str) -> None:  # noqa: ANN401 - whatever the file held
    if not isinstance(document, dict) or "schema_version" not in document:
        raise CertificateError(f"not a dpmech {kind}: it has no schema_version")
    version = document["schema_version"]
    if isinstance(version, bool) or not isinstance(version, int):
        raise CertificateError(f"schema_version must be an integer, got {_short(version)}", claimed=version)
    newest = _NEWEST.get(kind, SCHEMA_VERSION)
    if version > newest:
        raise CertificateError(
            f"schema version {_short(version)} is newer than {newest}, the last one this dpmech "
            "knows: "
            "upgrade dpmech",
            claimed=version,
            recomputed=newest,
        )
    if version < SCHEMA_VERSION:
        raise CertificateError(
            f"schema version {_short(version)} is older than {SCHEMA_VERSION}, the first one that was "
            "released, and there is no rule to upgrade it: issue the certificate again",
            claimed=version,
            recomputed=SCHEMA_VERSION,
        )


@functools.cache
def _validator(kind: str, version: int) -> Any:  # noqa: ANN401 - a jsonschema validator
    import jsonschema

    name = f"schemas/{kind.replace(' ', '-')}-{version}.json"
    schema = importlib.resources.files("dpmech").joinpath(name)
    return jsonschema.Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))


def _closest(error: Any) -> Any:  # noqa: ANN401 - a jsonschema error
    """Of a value that no alternative admits, what is wrong with the alternative that it is closest to."""
    import jsonschema

    return jsonschema.exceptions.best_match([error])


def differences(claimed: Any, recomputed: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401 - plain data
    """Differences between two pieces of decoded plain data, floats beyond rounding; one line each."""
    if isinstance(claimed, dict) and isinstance(recomputed, dict):
        for key in claimed.keys() | recomputed.keys():
            inner = f"{path}.{key}" if path else key
            if key not in claimed or key not in recomputed:
                yield f"{inner}: {'missing' if key in recomputed else 'not expected'}"
            else:
                yield from differences(claimed[key], recomputed[key], inner)
    elif isinstance(claimed, list) and isinstance(recomputed, list) and len(claimed) == len(recomputed):
        for index, (one, other) in enumerate(zip(claimed, recomputed, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif isinstance(claimed, float) and isinstance(recomputed, float):
        if abs(claimed - recomputed) > _ROUNDING * max(abs(claimed), abs(recomputed)) + 1e-15:
            yield f"{path}: claimed {claimed!r}, recomputed {recomputed!r}"
    elif type(claimed) is not type(recomputed) or claimed != recomputed:
        yield f"{path}: claimed {_short(claimed)}, recomputed {_short(recomputed)}"


def _short(value: Any) -> str:  # noqa: ANN401 - whatever the file held
    return shown_value(value, _SHOWN)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def read_text(path: str | os.PathLike[str], *, max_file_size: int = LARGEST_FILE) -> str:
    """Read the text of a certificate file.

    Args:
        path: path of the file.
        max_file_size: size limit in bytes; no more than this is read of a larger file.

    Raises:
        InvalidParameterError: if the file does not exist, cannot be read or is too large.
        CertificateError: if it is not text.
    """
    size = check_integer("max_file_size", max_file_size, minimum=1)
    hint = " (see max_file_size, --max-file-size)"
    try:
        return read_bytes("certificate", path, largest=size, hint=hint).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CertificateError(f"not JSON: {error}") from error
