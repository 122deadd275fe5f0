"""A small, independent program that decides certificates: it shares no code with what it checks.

It imports the standard library, numpy and python-flint. docs/checker.md has proofs, and a reading guide.
"""

import os
from typing import Any

import numpy as np

from .decide import SECONDS, Kind, Verdict
from .documents import BadDocument, check_checksum, decode, parse, read_bytes, shown
from .ledgers import check_ledger
from .records import Certifier, check_record

__all__ = ["BadDocument", "Kind", "Verdict", "check_file", "check_text"]


def check_file(path: str | os.PathLike[str], **options: Any) -> Verdict:  # noqa: ANN401 - as of `check_text`
    """Return the verdict on a file; the same as `check_text` of its content, with the same options."""
    return check_text(read_bytes(path), **options)


def check_text(
    content: str | bytes, *, seconds: float = SECONDS, rng: np.random.Generator | None = None,
    total: tuple[float, float] | None = None,
) -> Verdict:  # fmt: skip
    """Return the verdict on a certificate, a run record or a ledger.

    Args:
        content: content of the file, of any size; the caller is responsible for limiting it.
        seconds: CPU time for sampling in each direction of each certificate, and for a total.
        rng: random generator for sampling; None uses the operating system's entropy, as `failure` requires.
        total: (eps, delta) of all releases of a ledger together; None checks its budget, or finds an eps.

    Raises BadDocument if it is none of these, contradicts itself, or is no ledger although there is a total,
    and ValueError unless that has eps in [0, 1e5] and delta in (0, 1).
    """
    if total is not None and not (0.0 <= total[0] <= 1e5 and 0.0 < total[1] < 1.0):
        raise ValueError(f"total has to be eps in [0, 1e5] and delta in (0, 1), got {total!r}")
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    written = parse(data)
    document = decode(written)
    certifier = Certifier(seconds, np.random.default_rng() if rng is None else rng)
    if "releases" in document:
        entries = written["releases"]
        for entry in entries if isinstance(entries, list) else ():
            _check_inner(entry)
        return check_ledger(document, certifier, total)
    if total is not None:
        raise BadDocument("it is no ledger, which alone has a total")
    if "run" in document:
        _check_inner(written)
        return check_record(document, certifier)
    if "claim" in document:
        return certifier.of(document).verdict
    raise BadDocument("it is not a certificate, a run record or a ledger: no claim, no run, no releases")


def _check_inner(holder: Any) -> None:  # noqa: ANN401 - JSON data
    """Check the checksum of a certificate inside another document."""
    inner = holder.get("certificate") if isinstance(holder, dict) else None
    if not isinstance(inner, dict):
        raise BadDocument(f"there is no certificate where one should be: {shown(inner)}")
    check_checksum(inner)
