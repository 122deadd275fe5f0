"""Checks by the independent checker of whether the claims of certificates and ledgers are true."""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from dpmech.certificates import Certificate, RunRecord, checksum_of_document, to_plain
from dpmech.checker import BadDocument, Kind, Verdict, check_text
from dpmech.engines import Progress
from dpmech.exceptions import CertificateError, DpmechError, WorkLimitError
from dpmech.ledgers import Ledger, Mode, Release, parsed
from dpmech.mechanism import decoder_work, form_work
from dpmech.numerics import counted, down, short, spend, up
from dpmech.verifying.labels import (
    label_checks,
    rigour_checks,
    rigour_problem,
    sensitivity_check,
    stopped_certificate,
)
from dpmech.verifying.report import Check, Verification

# Default CPU seconds of the checker, for each direction of a claim.
MAX_SECONDS = 60.0
# Limits on recomputing derived entries: seconds of one core, and bytes, estimated on the high side.
READING_SECONDS, MAX_MEMORY = 300.0, 4e9
# Bytes per entry of a prefix that is formed as a matrix.
_MATRIX = 64.0


def spend_on_reading(document: Certificate | RunRecord) -> None:
    """Charge the work of writing an object as a file would state it; errors as in `spend`."""
    certificate = document.certificate if isinstance(document, RunRecord) else document
    work = decoder_work(certificate.strategy)
    spend(work.seconds, work.memory, what=f"the errors of {certificate.strategy!r}")


def spend_on_claim(document: Certificate | RunRecord) -> None:
    """Charge the work that follows from the fields of the claim alone: vectors of the strategy, its errors.

    Work that depends on more (sets of steps) is charged where it is about to begin.

    Raises:
        WorkLimitError: if the work exceeds the limit.
    """
    certificate = document.certificate if isinstance(document, RunRecord) else document
    strategy = certificate.strategy
    work = decoder_work(strategy) + form_work(strategy)  # the errors and the sensitivity
    spend(work.seconds, work.memory, what=f"recomputing {strategy!r}")
    if isinstance(document, RunRecord) and 0 < document.steps < strategy.n:
        # The leading block may have lost its structure.
        steps = float(document.steps)
        dense = strategy.shape.dense_prefix
        memory = _MATRIX * (float(strategy.n) ** 2 if dense else steps)
        spend(2e-8 * memory + (1e-9 * steps**3 if dense else 0.0), memory, what="the steps executed")


_WAY_OUT = (
    "nothing is shown, neither that it holds nor the opposite: allow more CPU time (max_seconds), calibrate "
    "with a little more noise, or use a scheme that docs/checker.md covers"
)
_LOOSE = (
    "the claim is true, with more noise than its eps needs: dpmech epsilon, and dm.certify_sigma, state the "
    "eps of a given sigma"
)
# CPU seconds for a stated end of eps; the claim does not depend on it if it stays undecided.
_SECONDS_OF_ENDS = 5.0
# A lower end is tested slightly below: an exact eps is stated to a millionth.
_BELOW = 1.0 - 1e-6
_SIGMA = re.compile(r", sigma (\d[\d.]*(?:e[+-]?\d+)?)(?=$|[,;])")
_UNFIT = (DpmechError, ArithmeticError, MemoryError, ValueError)


def claim_checks(text: str, names: Sequence[str], *, seconds: float) -> list[Check]:
    """The checker's verdict on the content of a file, one check per part.

    Args:
        text: text of the file.
        names: names of the parts that are not certificates, which come last: "executed" or "total".
        seconds: CPU time limit for each direction of a claim, and for the total of a ledger.
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
    """Whether the stated bounds on eps are no better than the true values.

    A lower end is true if the claim of a smaller eps is refuted. One that is not true says too much of the
    claim, not too little: the claim is loose, as no privacy depends on lower ends. An undecided end is listed
    as not checked, since the claim itself does not depend on it; the exception is an upper end without
    sampling, which has a closed form. With sampling, an upper end may be too close to the true value for
    sampling and lattices; lower ends are then not tested.

    Args:
        certificate: the certificate in the text.
        text: text of the file.
        seconds: CPU time limit for each direction of a claim; at most 5 are used per end.
    """
    own, limit, certain = certificate, min(seconds, _SECONDS_OF_ENDS), certificate.participation.certain
    upper, lower = own.achieved.upper, own.achieved.lower
    if upper < own.budget.eps:
        stated = f"achieved eps is at most {up(upper)}"
        yield _end(text, upper, Kind.PROVED, stated, limit, needed=certain)
    if lower > 0.0 and certain:
        stated = f"achieved eps is at least {down(lower)}"
        yield _end(text, lower * _BELOW, Kind.REFUTED, stated, limit, needed=False)


def executed_labels(record: RunRecord) -> Iterator[Check]:
    """One failed check for every invalid label of the eps of the executed steps."""
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
    """Claims and totals must be proved; the eps of the executed steps may be too close to the true value."""
    left_open = name == "executed" and verdict.kind is Kind.NOT_CHECKED
    return Check(name, verdict.kind is Kind.PROVED or left_open, _told(verdict), verdict)


def _told(verdict: Verdict) -> str:
    words = f"{_kind(verdict)}: {_rounded_too(verdict.claim)}; {verdict.reason}"
    return f"{words}; {_WAY_OUT}" if verdict.kind is Kind.NOT_CHECKED else words


def _rounded_too(claim: str) -> str:
    """The checker's words on a claim, with its sigma as all commands print it next to all its digits."""
    found = _SIGMA.search(claim)
    if found is None or (shown := up(float(found[1]))) == found[1]:
        return claim
    return f"{claim[: found.start(1)]}{shown}, exactly {claim[found.start(1) :]}"


def _kind(verdict: Verdict) -> str:
    if verdict.failure and verdict.kind is not Kind.NOT_CHECKED:
        return f"{verdict.kind.value} except with probability {short(verdict.failure)}"
    return verdict.kind.value


def _end(text: str, eps: float, due: Kind, stated: str, seconds: float, *, needed: bool) -> Check:
    """Whether the claim of another eps gets the expected verdict."""
    document = json.loads(text)
    document["claim"]["eps"] = to_plain(eps)
    document["evidence"].pop("profile", None)  # its nodes are decided with the claim itself
    try:
        verdict = check_text(
            json.dumps(document | {"checksum": checksum_of_document(document)}), seconds=seconds
        )
    except BadDocument as error:
        return Check("achieved", ok=False, detail=f"{stated}: the checker refuses the file: {error}")
    if verdict.kind is Kind.NOT_CHECKED:
        detail = f"NOT CHECKED: {stated}; {verdict.reason}"
        return Check("achieved", ok=not needed, detail=detail, verdict=verdict)
    if due is Kind.REFUTED and verdict.kind is Kind.PROVED:
        return Check("achieved", ok=True, detail=f"LOOSE: {stated}: it is less; {_LOOSE}", loose=True)
    ok = verdict.kind is due
    found = "so the checker finds" if ok else "the checker finds the opposite"
    detail = f"{stated}: {found}; {verdict.reason}"
    return Check("achieved", ok, detail, verdict if due is Kind.PROVED else None)


def total_check(name: str, text: str, eps: float, delta: float, *, seconds: float) -> Check:
    """Check by the checker that all releases of a ledger together are (eps, delta)-private."""
    try:
        verdict = check_text(text, seconds=seconds, total=(eps, delta))
    except BadDocument as error:
        return Check(name, ok=False, detail=f"the checker refuses the file: {error}")
    # The total depends on the certificates, whose sampling may fail too.
    return _check(name, dataclasses.replace(verdict.parts[-1], failure=verdict.failure))


def verify_ledger(
    text: str, source: str, seconds: float, report: Progress, *, rigorous: bool = False
) -> Verification:
    """Check the text of a ledger file.

    Args:
        text: text of the file.
        source: name of the file.
        seconds: CPU time limit of the checker, for each direction of a claim and for the total.
        report: called with one line before the checker runs.
        rigorous: whether the joint error of all entries must meet the same limit as that of one.
    """
    derived = []
    try:
        document = parsed(text)
        for entry in document["releases"]:
            # Check that a claim fits the limits before allocating anything of its size.
            certificate, stated = Certificate.read(json.dumps(entry["certificate"]))
            spend_on_claim(certificate)
            derived.append(stated)
        for entry in document.get("counts", ()):
            _spend_on_counts(Fraction(entry["sigma"]), entry["sensitivity"], entry["releases"])
        ledger = Ledger.from_json(text)
    except CertificateError as error:
        return Verification(source, None, (Check("file", ok=False, detail=str(error)),))
    checks = [Check("file", ok=True, detail="schema, checksum and derived entries hold")]
    done: list[Certificate] = []
    # Forged numbers may overflow; the result is refused, without a warning.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        for release, stated in zip(ledger.releases, derived, strict=True):
            if release.certificate not in done:
                done.append(release.certificate)
                labels = _labels(release.certificate, stated, rigorous=rigorous)
                checks += [_named(release, check) for check in labels]
    state = "closed" if ledger.closed else "still open: it holds if no result came before its last entry"
    mode = (
        f"non-adaptive list of {ledger.entries}, {state}"
        if ledger.mode is Mode.NON_ADAPTIVE
        else f"adaptive within {ledger.budget!r} in {ledger.accounting!r}"
    )
    checks.append(Check("mode", ok=True, detail=mode))
    report(f"{source}: checker")
    totals = ("total",) * (2 if ledger.mode is Mode.NON_ADAPTIVE else 1)
    checks += claim_checks(text, totals, seconds=seconds)
    if rigorous and (problem := rigour_problem(ledger.guarantee)):
        detail = f"the total of {counted(len(ledger.releases), 'release')}: {problem}"
        checks.append(Check("rigour", ok=False, detail=detail))
    return Verification(source, None, tuple(checks), ledger=ledger)


def _labels(certificate: Certificate, derived: dict[str, object], *, rigorous: bool) -> Iterator[Check]:
    try:
        certificate.check_derived(derived)
    except CertificateError as error:
        yield Check("file", ok=False, detail=str(error))
        return
    yield sensitivity_check(certificate)
    yield from label_checks(certificate)
    if rigorous:
        yield from rigour_checks(certificate)


def _named(release: Release, check: Check) -> Check:
    return dataclasses.replace(check, detail=f"{release.name!r}: {check.detail}")


def _spend_on_counts(sigma: Fraction, sensitivity: int, releases: int) -> None:
    """Charge the lattice of the total of counts, before it is formed; errors as in `spend`."""
    points = 150.0 * float(sigma) * (2.0 if sensitivity % 2 else 1.0)
    # A sum has at most 2^25 points, and is formed about forty times per curve.
    points += min(80.0 * float(sigma) * math.sqrt(releases), 2.0**25)
    spend(4e-5 * points, 200.0 * points, what=f"sums over {points:.2g} integers")
