"""How a ledger is looked at: the checker decides its certificates and its total, the rest is labels."""

import dataclasses
import json
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from dpmech.certificates import Certificate
from dpmech.composition import Ledger, Mode, Release, parsed
from dpmech.engines import Progress
from dpmech.exceptions import CertificateError
from dpmech.numerics import spend
from dpmech.verifying.claims import claim_checks
from dpmech.verifying.labels import label_checks, sensitivity_check
from dpmech.verifying.limits import spend_on_claim
from dpmech.verifying.report import Check, Verification
from dpmech.verifying.rigour import rigour_checks, rigour_problem

__all__ = ["verify_ledger"]


def verify_ledger(
    text: str, source: str, seconds: float, report: Progress, *, rigorous: bool = False
) -> Verification:
    """Check the text of a ledger file.

    Args:
        text: of the file.
        source: its name.
        seconds: CPU time of the checker, for each direction of a claim and for the total.
        report: called with one line before the checker.
        rigorous: whether what all entries together leave to chance must be as little as one may.
    """
    derived = []
    try:
        document = parsed(text)
        for entry in document["releases"]:
            # Nothing of the size of a claim is formed before it is known to fit.
            certificate, stated = Certificate.read(json.dumps(entry["certificate"]))
            spend_on_claim(certificate)
            derived.append(stated)
        for entry in document.get("counts", ()):
            _spend_on_counts(Fraction(entry["sigma"]), entry["sensitivity"], entry["releases"])
        ledger = Ledger.from_json(text)
    except CertificateError as error:
        return Verification(source, None, (Check("file", ok=False, detail=str(error)),))
    checks = [Check("file", ok=True, detail="schema, seal and derived entries hold")]
    done: list[Certificate] = []
    # Forged numbers may overflow; what comes of that is refused as it is, not as a warning.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        for release, stated in zip(ledger.releases, derived, strict=True):
            if release.certificate not in done:
                done.append(release.certificate)
                labels = _labels(release.certificate, stated, rigorous=rigorous)
                checks += [_named(release, check) for check in labels]
    state = "closed" if ledger.closed else "still open: it holds if no result came before its last entry"
    entries = len(ledger.releases) + len(ledger.counts)
    mode = (
        f"announced list of {entries}, {state}"
        if ledger.mode is Mode.ANNOUNCED
        else f"chosen on the way within {ledger.budget!r} in {ledger.currency!r}"
    )
    checks.append(Check("mode", ok=True, detail=mode))
    report(f"{source}: checker")
    totals = ("total",) * (2 if ledger.mode is Mode.ANNOUNCED else 1)
    checks += claim_checks(text, totals, seconds=seconds)
    if rigorous and (problem := rigour_problem(ledger.guarantee)):
        detail = f"the total of {len(ledger.releases)} releases: {problem}"
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
    """Count the lattice of the total of counts, before it is formed; errors as for `spend`."""
    points = 150.0 * float(sigma) * (2.0 if sensitivity % 2 else 1.0)
    # A sum has at most 2^25 points, and is formed some forty times for a curve.
    points += min(80.0 * float(sigma) * math.sqrt(releases), 2.0**25)
    spend(4e-5 * points, 200.0 * points, what=f"sums over {points:.2g} integers")
