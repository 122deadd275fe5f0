"""Files to plain data: strict JSON, numbers that state every bit, a checksum.

A float is an object {"decimal": 0.1, "hex": "0x1.999999999999ap-4"} whose entries are the same float64; an
array of floats has nested lists in both. Anything else (NaN, a repeated entry, a pipe instead of a file) is
refused with one sentence, so that no two readers can read one file as two claims.
"""

import collections
import hashlib
import json
import math
import os
import stat
import typing
from collections.abc import Collection
from typing import Any

LARGEST_FILE, DEEPEST, LONGEST_INTEGER, MOST_ENTRIES = 10_000_000, 64, 20, 1000


class BadDocument(Exception):
    """The file is not a document that the checker can read; the message is one sentence."""


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file of at most LARGEST_FILE bytes; a pipe does not block."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadDocument("it is not a regular file")
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise BadDocument(f"it cannot be read ({getattr(error, 'strerror', error)})") from error
    if len(content) > LARGEST_FILE:
        raise BadDocument(f"it is larger than {LARGEST_FILE} bytes")
    return content


def entries(data: Any, what: str, optional: Collection[str] = (), /, **kinds: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an object with exactly these entries, each of its type or types; optional ones may be absent."""
    if not isinstance(data, dict) or not set(kinds) - set(optional) <= set(data) <= set(kinds):
        raise BadDocument(f"{what} has other entries than {', '.join(kinds)}: {shown(data)}")
    for name, value in data.items():
        accepted = typing.get_args(kinds[name]) or (kinds[name],)
        if Any not in accepted and type(value) not in accepted:
            names = " or ".join(kind.__name__ for kind in accepted)
            raise BadDocument(f"{name} of {what} is {shown(value)}, not {names}")
    return data


def floats(value: Any, what: str, count: int | None = None) -> list[float]:  # noqa: ANN401 - JSON data
    """Return a list of at most MOST_ENTRIES finite floats >= 0; `count` of them if given."""
    numbers = isinstance(value, list) and all(type(x) is float and 0.0 <= x < math.inf for x in value)
    if not numbers or len(value) > MOST_ENTRIES or (count is not None and len(value) != count):
        raise BadDocument(f"{what} has {shown(value)}, not {'' if count is None else count} floats >= 0")
    return list(value)


def parse(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a file, as written; checks its nesting, its numbers and its checksum."""
    try:
        document = json.loads(
            content.decode("utf-8"), parse_constant=_finite, parse_float=_finite,
            parse_int=_short_integer, object_pairs_hook=_without_repeats,
        )  # fmt: skip
    except (ValueError, RecursionError) as error:  # malformed JSON, or invalid UTF-8
        raise BadDocument(f"it is not JSON ({shown(str(error))})") from error
    if not isinstance(document, dict):
        raise BadDocument("it is not a JSON object")
    _check_depth(document)
    check_checksum(document)
    return document


def decode(value: Any) -> Any:  # noqa: ANN401 - JSON data
    """Return the same data with every {"decimal", "hex"} object replaced by its float or lists of floats."""
    if isinstance(value, dict):
        if set(value) == {"decimal", "hex"}:
            return _agreed(value["decimal"], value["hex"])
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, float):
        raise BadDocument(f"the number {value!r} does not state its bits as decimal and hex")
    return value


def shown(value: object) -> str:
    """Format a value of the file for a message: printable ASCII, at most 80 characters."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadDocument(f"the number {shown(text)} is NaN or out of the range of float64")
    return value


def _short_integer(text: str) -> int:
    if len(text) > LONGEST_INTEGER:
        raise BadDocument(f"an integer has {len(text)} digits, more than {LONGEST_INTEGER}")
    return int(text)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        raise BadDocument(f"the entry {shown(counts.most_common(1)[0][0])} occurs twice in one object")
    return record


def _check_depth(document: dict[str, Any]) -> None:
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        objects = (list(one.values()) if isinstance(one, dict) else one for one in level)
        level = [item for one in objects if isinstance(one, list) for item in one]
    if level:
        raise BadDocument(f"it is nested more than {DEEPEST} levels deep")


def check_checksum(document: dict[str, Any]) -> None:
    """Refuse it unless `checksum` is the SHA-256 of the other entries: keys sorted, no spaces, ASCII."""
    content = {key: value for key, value in document.items() if key != "checksum"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    if document.get("checksum") != hashlib.sha256(text.encode()).hexdigest():
        raise BadDocument("its checksum (checksum) is not that of its content: it was changed or damaged")


def _agreed(decimal: Any, digits: Any) -> Any:  # noqa: ANN401 - JSON data
    if isinstance(decimal, list) and isinstance(digits, list) and len(decimal) == len(digits):
        return [_agreed(one, other) for one, other in zip(decimal, digits, strict=True)]
    if type(decimal) in {int, float} and isinstance(digits, str):
        try:
            value = float.fromhex(digits)
            if value == decimal:  # exact for an int, too; never true for NaN
                return value
        except (ValueError, OverflowError):
            pass
    raise BadDocument(f"the decimal {shown(decimal)} and the hex {shown(digits)} are not the same number")
