"""Is the claim of a certificate true? The independent checker decides, and nothing else does."""

import dataclasses
import json
from collections.abc import Iterator, Sequence

from dpmech.certificates import Certificate, RunRecord, seal_of, to_plain
from dpmech.checker import BadDocument, Kind, Verdict, check_text
from dpmech.exceptions import DpmechError, WorkLimitError
from dpmech.numerics import typed
from dpmech.verifying.labels import label_checks
from dpmech.verifying.report import Check
from dpmech.verifying.run_checks import stopped_certificate

__all__ = ["claim_checks", "end_checks", "executed_labels", "total_check"]

_WAY_OUT = (
    "nothing is shown, neither that it holds nor the opposite: allow more CPU time (max_seconds), calibrate "
    "with a little more noise, or use a scheme that docs/checker.md covers"
)
# CPU seconds of a stated end of eps, which nothing rests on where it is not decided.
_SECONDS_OF_ENDS = 5.0
# A lower end is looked at from just below: an exact eps is stated to a millionth.
_BELOW = 1.0 - 1e-6
_UNFIT = (DpmechError, ArithmeticError, MemoryError, ValueError)


def claim_checks(text: str, names: Sequence[str], *, seconds: float) -> list[Check]:
    """The checker's verdict on what a text holds, one check for every part of it.

    Args:
        text: of the file.
        names: of the parts that are not certificates, which come last: "executed" or "total".
        seconds: CPU time that each direction of a claim may take, and the total of a ledger.
    """
    try:
        verdict = check_text(text, seconds=seconds)
    except BadDocument as error:
        return [Check("claim", ok=False, detail=f"the checker refuses the file: {error}")]
    if not verdict.parts:
        return [_check("claim", verdict)]
    *first, last = verdict.parts
    parts = [*first, dataclasses.replace(last, unchecked=verdict.unchecked)]
    claims = max(len(parts) - len(names), 0)
    return [_check(name, part) for name, part in zip(["claim"] * claims + list(names), parts, strict=True)]


def end_checks(certificate: Certificate, text: str, *, seconds: float) -> Iterator[Check]:
    """Whether the stated bounds on eps are no better than the truth.

    A lower end is true if the claim of a smaller eps is refuted. What is not decided is named among what is
    not checked, as the claim itself does not rest on it, but for an upper end without sampling, which has a
    closed form. With sampling an upper end may be too close to the truth for draws and lattices; lower ends
    are not looked at.

    Args:
        certificate: what the text says.
        text: of the file.
        seconds: CPU time that each direction of a claim may take; 5 at most are used for an end.
    """
    own, limit, certain = certificate, min(seconds, _SECONDS_OF_ENDS), certificate.participation.certain
    upper, lower = own.achieved.upper, own.achieved.lower
    if upper < own.budget.eps:
        stated = f"achieved eps is at most {typed(upper)}"
        yield _end(text, upper, Kind.PROVED, stated, limit, needed=certain)
    if lower > 0.0 and certain:
        stated = f"achieved eps is at least {typed(lower)}"
        yield _end(text, lower * _BELOW, Kind.REFUTED, stated, limit, needed=False)


def executed_labels(record: RunRecord) -> Iterator[Check]:
    """One failed check for every label of the eps of the steps executed that does not hold."""
    try:
        stopped = stopped_certificate(record)
    except WorkLimitError:
        raise
    except _UNFIT as error:
        detail = f"eps of the steps executed could not be formed as a claim: {error}"
        yield Check("executed", ok=False, detail=detail)
        return
    if stopped is not None:
        yield from label_checks(stopped)


def _check(name: str, verdict: Verdict) -> Check:
    """A claim, and a total, have to be proved; eps of the steps executed may be too close to the truth."""
    left_open = name == "executed" and verdict.kind is Kind.NOT_CHECKED
    return Check(name, verdict.kind is Kind.PROVED or left_open, _told(verdict), verdict)


def _told(verdict: Verdict) -> str:
    words = f"{_kind(verdict)}: {verdict.claim}; {verdict.reason}"
    return f"{words}; {_WAY_OUT}" if verdict.kind is Kind.NOT_CHECKED else words


def _kind(verdict: Verdict) -> str:
    if verdict.failure and verdict.kind is not Kind.NOT_CHECKED:
        return f"{verdict.kind.value} except with probability {verdict.failure:g}"
    return verdict.kind.value


def _end(text: str, eps: float, due: Kind, stated: str, seconds: float, *, needed: bool) -> Check:
    """Whether the claim of another eps is decided as it should be."""
    document = json.loads(text)
    document["claim"]["eps"] = to_plain(eps)
    document["evidence"].pop("profile", None)  # its nodes are decided with the claim itself
    try:
        verdict = check_text(json.dumps(document | {"seal": seal_of(document)}), seconds=seconds)
    except BadDocument as error:
        return Check("achieved", ok=False, detail=f"{stated}: the checker refuses the file: {error}")
    if verdict.kind is Kind.NOT_CHECKED:
        detail = f"NOT CHECKED: {stated}; {verdict.reason}"
        return Check("achieved", ok=not needed, detail=detail, verdict=verdict)
    ok = verdict.kind is due
    found = "so the checker finds" if ok else "the checker finds the opposite"
    detail = f"{stated}: {found}; {verdict.reason}"
    return Check("achieved", ok, detail, verdict if due is Kind.PROVED else None)


def total_check(name: str, text: str, eps: float, delta: float, *, seconds: float) -> Check:
    """Whether all releases of a ledger are (eps, delta)-private together, by the checker."""
    try:
        verdict = check_text(text, seconds=seconds, total=(eps, delta))
    except BadDocument as error:
        return Check(name, ok=False, detail=f"the checker refuses the file: {error}")
    # The total rests on the certificates, whose draws may err as well.
    return _check(name, dataclasses.replace(verdict.parts[-1], failure=verdict.failure))
