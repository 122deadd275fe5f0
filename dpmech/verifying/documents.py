"""verify: is what a certificate claims true? It recomputes; it never calibrates."""

import concurrent.futures
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence

import numpy as np

from dpmech.accounting import Progress
from dpmech.certificates import LARGEST_FILE, Certificate, Document, RunRecord, is_run_record, read_text
from dpmech.composition import Ledger, is_ledger
from dpmech.exceptions import CertificateError, DpmechError, InvalidParameterError, WorkLimitError
from dpmech.guards import check_real, check_rng
from dpmech.numerics import metered, running_on
from dpmech.signing import PublicKey, Statement
from dpmech.verifying.ledgers import verify_ledger
from dpmech.verifying.limits import MAX_MEMORY, MAX_SECONDS, spend_on_claim, spend_on_reading
from dpmech.verifying.policy import Policy
from dpmech.verifying.policy_checks import policy_checks
from dpmech.verifying.recomputation import Recomputation
from dpmech.verifying.report import Check, Verification
from dpmech.verifying.rigour import rigour_checks
from dpmech.verifying.run_checks import run_checks, stopped_certificate
from dpmech.verifying.signature_checks import signature_check, trusted

__all__ = ["verify"]

_SOURCES = {Certificate: "certificate", RunRecord: "run record", Ledger: "ledger"}
_UNFIT = (DpmechError, ArithmeticError, ValueError)


def verify(
    certificate: str | os.PathLike[str] | Certificate | RunRecord | Ledger,
    *,
    rigorous: bool = False,
    rng: np.random.Generator | int | None = None,
    progress: Progress | None = None,
    max_seconds: float = MAX_SECONDS,
    max_memory: float = MAX_MEMORY,
    max_file_size: int = LARGEST_FILE,
    executor: concurrent.futures.Executor | None = None,
    keys: Sequence[PublicKey | str | os.PathLike[str]] = (),
    require_signature: bool = False,
    policy: Policy | None = None,
) -> Verification:
    """Recompute the claim of a certificate, a run record or a ledger by routes other than the issuing one.

    The file: schema, seal, and every entry that follows from others. The sensitivity: explicit columns, all
    sets or another dynamic programme. The privacy: an integral for the Gaussian mechanism; a contour
    integral and another package under Poisson sampling; an independent sample under Balls-in-Bins. Unless the
    certificate rests on an estimate, its guarantee is also given anew (for the convex-order programme on
    finer grids). Where it rests on a certified sample, draws of this check's own have to prove that
    delta(eps) <= (1 + m) delta: see `Verification.draw`. The evidence: achieved eps, tightness and label must
    be those of this claim. Of a run record also the run: steps and participations against the certificate
    inside it and, where it was stopped early by plan, the eps of the steps executed. Of a ledger every
    certificate and, where it has a budget, the prices and the limits that stand for the budget.

    **Guarantee:** a claim that fails by more than the resolution of the routes (1e-6 in delta where nothing
    is random, 1e-5 under Poisson sampling; under Balls-in-Bins the interval of the sample) is refused. Where
    a certified sample is behind it: a file whose delta(eps) is above (1 + m) delta, m = 0.1, passes with
    probability at most beta (1e-9, or delta / 1000 where that is less) over draws that only this call knows,
    and a true one is refused at most once in a million times. A seal is no signature: a re-sealed file whose
    every statement is true of another run is a true certificate of that run.

    **Cost:** hashes and labels are checked before anything of the size of the claim is formed. From then on
    every piece of work is estimated from the sizes in the file, and refused before it starts once the whole
    would go beyond the budget. The estimates count operations, not the clock.

    Args:
        certificate: a file, a Certificate, a RunRecord or a Ledger.
        rigorous: refuse a certificate that rests on an estimate, or on a sample whose beta is not inside
            delta, and a ledger with such a total; and a run whose random numbers were seeded by the caller,
            or which went on from a checkpoint with another dataset, model or loss.
        rng: for sampled routes; None takes entropy from the operating system.
        progress: called with one line of text before every step.
        max_seconds: of one core, estimated on the high side, > 0.
        max_memory: bytes at the peak, the same, > 0.
        max_file_size: bytes; a larger file is not read.
        executor: where sampled routes draw, such as `dm.Workers(4)`; None draws here. The budget counts all.
        keys: public keys that are trusted, or their files. Where a signature stands beside the file, it has
            to be of one of them; see `dm.sign`. Without keys, signatures are not looked at.
        require_signature: refuse a file without a signature, and an object, which has none.
        policy: what is allowed besides being true; every broken rule is a failed check.

    Returns:
        A Verification: its `ok`, `failures`, `margin`, `routes` and checks.

    Raises:
        InvalidParameterError: if the file cannot be read or is too large, on a bad argument, or where a
            signature or a date is asked for without keys.
        MissingDependencyError: where there are keys, without the extra `sign`.
        WorkLimitError: if the check would cost more than the budget; nothing is then said about the claim.

    Examples:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.9), 8.0, 1e-5, participation=dm.MinSep(4))
        >>> dm.verify(cal.certificate()).ok
        True
    """
    if not isinstance(certificate, str | os.PathLike | Certificate | RunRecord | Ledger):
        raise InvalidParameterError(
            "certificate", certificate, "a path, a Certificate, a RunRecord or a Ledger"
        )
    generator = check_rng(rng)
    seconds = check_real("max_seconds", max_seconds, minimum=0.0, open_minimum=True)
    memory = check_real("max_memory", max_memory, minimum=0.0, open_minimum=True)
    rules = Policy() if policy is None else Policy.check(policy)
    required = require_signature or rules.require_signature
    signers = trusted(keys, rules.trusted_keys, needed=required or rules.needs_key)
    report = progress if progress is not None else _silent
    signed: tuple[Check | None, Statement | None] = (None, None)
    source = _SOURCES[type(certificate)] if isinstance(certificate, Document) else os.fspath(certificate)
    report(f"{source}: reading")
    try:
        with metered(seconds, memory), running_on(executor):
            if isinstance(certificate, Ledger):
                for release in certificate.releases:
                    spend_on_reading(release.certificate)
            elif isinstance(certificate, Certificate | RunRecord):
                spend_on_reading(certificate)
            if isinstance(certificate, Document):
                text = certificate.to_json()
            else:
                text = read_text(certificate, max_file_size=max_file_size)
            path = None if isinstance(certificate, Document) else certificate
            signed = signature_check(text, path, signers, required=required)
            if is_ledger(text):
                found = verify_ledger(
                    text,
                    source,
                    functools.partial(_entry, rng=generator, report=report, rigorous=rigorous),
                    rigorous=rigorous,
                )
            else:
                found = _verified(text, source, generator, report, rigorous=rigorous)
            found = _with_signature(found, *signed)
            return dataclasses.replace(found, checks=(*found.checks, *policy_checks(rules, found)))
    except CertificateError as error:
        failed = Verification(source, None, (Check("file", ok=False, detail=str(error)),), None)
        return _with_signature(failed, *signed)


def _with_signature(found: Verification, check: Check | None, signed: Statement | None) -> Verification:
    checks = found.checks if check is None else (*found.checks, check)
    return dataclasses.replace(found, checks=checks, signed=signed)


def _entry(
    certificate: Certificate, *, rng: np.random.Generator | None, report: Progress, rigorous: bool
) -> Verification:
    """One certificate of a ledger, out of the budget of the whole."""
    spend_on_reading(certificate)
    try:
        return _verified(certificate.to_json(), "certificate", rng, report, rigorous=rigorous)
    except CertificateError as error:
        return Verification("certificate", None, (Check("file", ok=False, detail=str(error)),), None)


def _verified(
    text: str, source: str, rng: np.random.Generator | None, report: Progress, *, rigorous: bool
) -> Verification:
    run: RunRecord | None = None
    if is_run_record(text):
        run, derived = RunRecord.read(text)
        read = run.certificate
    else:
        read, derived = Certificate.read(text)
    spend_on_claim(read if run is None else run)
    # Forged numbers may overflow; what comes of that is refused as it is, not as a warning.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        read.check_derived(derived)
        checks = [Check("file", ok=True, detail="schema, seal and derived entries hold")]
        recomputation = Recomputation(read, rng, report, source)
        checks += recomputation.run()
        if run is not None:
            checks += run_checks(run, rigorous=rigorous)
            if all(check.ok for check in checks):
                checks += _stopped_early(run, rng, report, source)
    if rigorous:
        checks += rigour_checks(read)
    return Verification(source, read, tuple(checks), recomputation.margin, run, draw=recomputation.draw)


def _stopped_early(
    run: RunRecord, rng: np.random.Generator | None, progress: Progress, source: str
) -> Iterator[Check]:
    """The claim about the steps executed, where there is one beside the certificate's."""
    try:
        stopped = stopped_certificate(run)
    except WorkLimitError:
        raise
    except (MemoryError, *_UNFIT) as error:
        yield Check("run", ok=False, detail=f"eps of the steps executed could not be recomputed: {error}")
        return
    if stopped is not None:
        yield from Recomputation(stopped, rng, progress, source, sized=False).run()


def _silent(line: str) -> None:
    del line
