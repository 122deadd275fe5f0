"""How a ledger is written: the sealed document, what is read from it, and what may replace it."""

import json
import os
from pathlib import Path
from typing import Any

from dpmech.certificate_format import (
    SCHEMA_VERSION,
    from_plain,
    parse,
    read_text,
    seal_of,
    to_plain,
)
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.ledger_entries import Release

__all__ = ["KIND", "check_continues", "decoded", "derived", "document_of", "is_ledger", "parsed"]

KIND = "ledger"
# What files of the first, unsealed form begin with.
_UNSEALED = "dpmech.ledger"


def document_of(
    guarantee: str, settings: dict[str, Any], releases: tuple[Release, ...], total: dict[str, Any]
) -> dict[str, Any]:
    """The sealed document of a ledger."""
    content: dict[str, Any] = {
        "guarantee": guarantee,
        "schema_version": SCHEMA_VERSION,
        "ledger": to_plain(settings),
        "releases": [
            {
                "number": number,
                "name": release.name,
                "mode": release.mode.value,
                "lot": release.lot,
                "blocks": to_plain(dict(release.blocks)),
                "price": to_plain(list(release.price)),
                "certificate": release.certificate.to_dict(),
            }
            for number, release in enumerate(releases, start=1)
        ],
        "total": to_plain(total),
    }
    return content | {"seal": seal_of(content)}


def is_ledger(text: str) -> bool:
    """Whether the text of a file says that it is a ledger; what it is worth is checked elsewhere."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "releases" in document


def parsed(text: str) -> dict[str, Any]:
    """A ledger's document, its numbers decoded; certificates are left as they stand.

    Raises:
        CertificateError: if it is no ledger of a known version, or was changed.
    """
    _refuse_unsealed(text)
    return decoded(parse(text, KIND))


def decoded(document: dict[str, Any]) -> dict[str, Any]:
    """The document with floats in place of their two spellings; certificates are left as they stand."""
    entries = [
        from_plain({key: value for key, value in entry.items() if key != "certificate"}, f"releases[{index}]")
        | {"certificate": entry["certificate"]}
        for index, entry in enumerate(document["releases"])
    ]
    rest = {key: from_plain(value, key) for key, value in document.items() if key != "releases"}
    return rest | {"releases": entries}


def derived(document: dict[str, Any]) -> dict[str, Any]:
    """What follows from the entries of a decoded document; certificates look after themselves."""
    entries = [
        {key: value for key, value in entry.items() if key != "certificate"} for entry in document["releases"]
    ]
    rest = {key: value for key, value in document.items() if key not in {"seal", "releases"}}
    return rest | {"releases": entries}


def check_continues(path: str | os.PathLike[str], document: dict[str, Any]) -> None:
    """Refuse to replace a file by a ledger that lacks something of it.

    Two programs that load one ledger, add to it and save it would otherwise lose what the first one added.
    It is no lock: what is written between this look and the renaming of the new file is not seen.

    Raises:
        InvalidParameterError: if the file there is no ledger, or one that `document` does not continue.
    """
    if not Path(path).is_file():
        return
    try:
        known = parse(read_text(path), KIND)
    except CertificateError as error:
        raise InvalidParameterError(
            "path", str(path), f"a new file, or a sealed ledger that this one continues ({error})"
        ) from error
    fixed = ("adjacency", "allow_estimates", "mode", "budget", "currency")
    same = all(known["ledger"][key] == document["ledger"][key] for key in fixed)
    old, new = ([_identity(entry) for entry in one["releases"]] for one in (known, document))
    same &= old == new[: len(old)]
    ended = known["ledger"]["closed"]
    if ended and not (document["ledger"]["closed"] and old == new):
        same = False
    if not same:
        raise InvalidParameterError(
            "path",
            str(path),
            f"a new file, or a ledger that this one continues: the one there has "
            f"{len(old)} releases{', is closed' if ended else ''}, and not all of it is in this one "
            "(load it again, and add to that)",
        )


def _identity(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry without what rounds differently on another platform."""
    kept = {key: value for key, value in entry.items() if key not in {"price", "certificate"}}
    return kept | {"fingerprint": entry["certificate"].get("fingerprint")}


def _refuse_unsealed(text: str) -> None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return  # `parse` says what is wrong
    if isinstance(document, dict) and document.get("schema") == _UNSEALED:
        raise CertificateError(
            "a ledger of the first form, which had no seal and did not say in which mode its releases were "
            "chosen: add its releases to a new Ledger, and save that"
        )
