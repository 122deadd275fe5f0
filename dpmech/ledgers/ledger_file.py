"""Ledger files: the document, what may replace it, and a lock for one writer at a time."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpmech.certificates import SCHEMA_VERSION, checksum_of_document, from_plain, parse, read_text, to_plain
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.files import resolved
from dpmech.ledgers.ledger_entries import CountsRelease, MechanismRelease, Release

# Seconds to wait for another process, and between two attempts.
_PATIENCE, _PAUSE = 30.0, 0.02
# Locks that this process holds, by thread: a thread that already holds a lock does not wait for it.
_held: set[tuple[int, Path]] = set()


# Not the package filelock: it leaves the lock file behind and creates missing folders.
@contextlib.contextmanager
def locked(path: str | os.PathLike[str], *, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the exclusive right to read and replace a file; reentrant within a thread.

    The lock is one of the operating system on a file next to it, `.NAME.lock`: it ends with the process that
    holds it, however that ends, and the lock file is removed. Where the system has no such locks (Windows),
    the existence of the lock file is the lock.

    Args:
        path: path of the file, which need not exist.
        patience: seconds to wait for another process.

    Raises:
        InvalidParameterError: if the lock cannot be acquired.
    """
    target = resolved(path)  # one lock for all names of a file
    lock = target.with_name(f".{target.name}.lock")
    own = threading.get_ident(), lock
    if own in _held:
        yield
        return
    handle = _acquired(lock, target, patience)
    _held.add(own)
    try:
        yield
    finally:
        _held.discard(own)
        _release(handle, lock)


def _acquired(lock: Path, target: Path, patience: float) -> int:
    end = time.monotonic() + patience
    while True:
        try:
            handle = _attempt(lock)
        except OSError as error:
            raise InvalidParameterError(
                "path", str(target), f"a file in a folder that may be written ({error.strerror})"
            ) from error
        if handle is not None:
            return handle
        if time.monotonic() > end:
            raise InvalidParameterError(
                "path",
                str(target),
                "a file that no other process is writing",
                f": {lock.name} has been held for {patience:g} seconds",
            )
        time.sleep(_PAUSE)


def _release(handle: int, lock: Path) -> None:
    if sys.platform == "win32":
        os.close(handle)  # Windows cannot remove an open file
        lock.unlink(missing_ok=True)
        return
    # Removed first: a waiting process then finds that the lock file was replaced, and makes a new one.
    lock.unlink(missing_ok=True)
    os.close(handle)


def _attempt(lock: Path) -> int | None:
    """The open lock file, or None if another process holds it."""
    if sys.platform == "win32":
        try:
            return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return None
    import fcntl

    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous holder may have removed it between opening and locking.
        if os.path.samestat(os.fstat(handle), os.stat(lock)):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None


KIND = "ledger"
_WITH_COUNTS, _WITH_MECHANISMS = 2, 3  # versions of files that contain counts, and other mechanisms
# Start of files in the first, unchecksummed format.
_WITHOUT_CHECKSUM = "dpmech.ledgers.ledger"


def outline_of(
    guarantee: str,
    settings: dict[str, Any],
    releases: Sequence[Release],
    counts: Sequence[CountsRelease],
    mechanisms: Sequence[MechanismRelease],
    total: dict[str, Any],
) -> dict[str, Any]:
    """What a file says about a ledger, with fingerprints in place of certificates, and without a checksum.

    Version 2 introduced counts, version 3 other mechanisms; every ledger is written in the first version that
    has its entries.
    """
    version = _WITH_MECHANISMS if mechanisms else _WITH_COUNTS if counts else SCHEMA_VERSION
    listed = [one.settings(number) for number, one in enumerate(counts, start=1)]
    others = [to_plain(one.settings(number)) for number, one in enumerate(mechanisms, start=1)]
    return {
        "guarantee": guarantee,
        "schema_version": version,
        "ledger": to_plain(settings),
        "releases": [
            {
                "number": number,
                "name": release.name,
                "mode": release.mode.value,
                "batch": release.batch,
                "blocks": {name: to_plain(sigma) for name, sigma in release.blocks},
                "price": to_plain(list(release.price)),
                "fingerprint": release.certificate.fingerprint(),
            }
            # The distribution of the number of runs, if there is one; the number itself is never stored.
            | ({} if release.runs is None else {"runs": to_plain(release.runs.settings())})
            for number, release in enumerate(releases, start=1)
        ],
        "total": to_plain(total),
    } | {key: rows for key, rows in (("counts", listed), ("mechanisms", others)) if rows}


def document_of(outline: dict[str, Any], releases: Sequence[Release]) -> dict[str, Any]:
    """The checksummed document: the outline with the certificates."""
    entries = [
        {key: value for key, value in entry.items() if key != "fingerprint"}
        | {"certificate": release.certificate.to_dict()}
        for entry, release in zip(outline["releases"], releases, strict=True)
    ]
    content = outline | {"releases": entries}
    return content | {"checksum": checksum_of_document(content)}


def is_ledger(text: str) -> bool:
    """Whether the text of a file says that it is a ledger; its content is not checked."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "releases" in document


def parsed(text: str) -> dict[str, Any]:
    """Parse the document of a ledger, without decoding its numbers.

    Raises:
        CertificateError: if it is not a ledger of a known version, or was changed.
    """
    _refuse_without_checksum(text)
    return parse(text, KIND)


def outlined(document: dict[str, Any]) -> dict[str, Any]:
    """The outline of a parsed document."""
    entries = [
        {key: value for key, value in entry.items() if key != "certificate"}
        | {"fingerprint": entry["certificate"].get("fingerprint")}
        for entry in document["releases"]
    ]
    return {key: value for key, value in document.items() if key != "checksum"} | {"releases": entries}


def decoded(outline: dict[str, Any]) -> dict[str, Any]:
    """An outline with floats in place of their decimal and hexadecimal forms.

    Raises:
        CertificateError: if the two forms disagree.
    """
    # Blocks may have any name, including the keys that encode a number.
    entries = [
        from_plain({key: value for key, value in entry.items() if key != "blocks"}, f"releases[{index}]")
        | {"blocks": {name: from_plain(sigma, name) for name, sigma in entry["blocks"].items()}}
        for index, entry in enumerate(outline["releases"])
    ]
    rest = {key: from_plain(value, key) for key, value in outline.items() if key != "releases"}
    return rest | {"releases": entries}


def check_continues(path: str | os.PathLike[str], outline: dict[str, Any]) -> None:
    """Refuse to replace a file by a ledger that lacks some of its entries.

    Otherwise two programs that load one ledger, add to it and save it would lose the entries of the first
    one. This is not a lock: `Ledger.save` holds one from this check until the new file is renamed.

    Raises:
        InvalidParameterError: if the existing file has hard links, is not a ledger, or is not continued by
            `outline`.
    """
    if not Path(path).is_file():
        return
    if os.stat(path).st_nlink > 1:
        # The new file replaces one of the names; the others would continue as separate ledgers.
        raise InvalidParameterError(
            "path",
            str(path),
            "a ledger with one name only, and this file has hard links",
            ": copy it to a new file, remove all its names, and move the copy here",
        )
    try:
        known = outlined(parse(read_text(path), KIND))
    except CertificateError as error:
        raise InvalidParameterError(
            "path", str(path), f"a new file, or a checksummed ledger that this one continues ({error})"
        ) from error
    fixed = ("adjacency", "allow_estimates", "mode", "budget", "accounting")
    same = all(known["ledger"][key] == outline["ledger"][key] for key in fixed)
    # Costs may be rounded differently on another platform.
    lists = [
        [
            [{key: value for key, value in entry.items() if key != "price"} for entry in one.get(kind, [])]
            for one in (known, outline)
        ]
        for kind in ("releases", "counts", "mechanisms")
    ]
    same &= all(old == new[: len(old)] for old, new in lists)
    ended = known["ledger"]["closed"]
    if ended and not (outline["ledger"]["closed"] and all(old == new for old, new in lists)):
        same = False
    if not same:
        raise InvalidParameterError(
            "path",
            str(path),
            f"a new file, or a ledger that this one continues: the one there has "
            f"{sum(len(old) for old, _ in lists)} releases{', is closed' if ended else ''}, and not all of "
            "it is in this one (load it again, and add to that)",
        )


def _refuse_without_checksum(text: str) -> None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return  # `parse` reports what is wrong
    if isinstance(document, dict) and document.get("schema") == _WITHOUT_CHECKSUM:
        raise CertificateError(
            "a ledger of the first form, which had no checksum and did not say in which mode its releases "
            "were chosen: add its releases to a new Ledger, and save that"
        )
