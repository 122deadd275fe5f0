"""verify: is the claim of a document true, and did a trusted key sign it? Nothing here calibrates."""

import dataclasses
import functools
import os
from collections.abc import Sequence

import numpy as np

from dpmech.certificates import (
    LARGEST_FILE,
    Certificate,
    Document,
    Policy,
    PublicKey,
    RunRecord,
    Statement,
    check_signatures,
    envelopes_of,
    is_run_record,
    read_text,
)
from dpmech.engines import Progress
from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.guards import check_real
from dpmech.ledgers import Ledger, is_ledger
from dpmech.numerics import metered
from dpmech.verifying.claims import (
    MAX_MEMORY,
    MAX_SECONDS,
    READING_SECONDS,
    claim_checks,
    end_checks,
    executed_labels,
    spend_on_claim,
    spend_on_reading,
    total_check,
    verify_ledger,
)
from dpmech.verifying.labels import label_checks, rigour_checks, run_checks, sensitivity_check
from dpmech.verifying.policy_checks import policy_checks
from dpmech.verifying.report import Check, Verification


def trusted(
    keys: Sequence[PublicKey | str | os.PathLike[str]], more: Sequence[PublicKey], *, needed: bool
) -> tuple[PublicKey, ...]:
    """The given keys, read from their files, and additional ones.

    Raises:
        InvalidParameterError: if a key cannot be read, or one is needed and there is none.
    """
    if isinstance(keys, str | os.PathLike) or not isinstance(keys, Sequence):
        raise InvalidParameterError("keys", keys, "a sequence of public keys or of their files")
    if needed and not keys and not more:
        raise InvalidParameterError(
            "key", None, "given where a signature is required: a file of a public key that is trusted"
        )
    return (*(key if isinstance(key, PublicKey) else PublicKey.load(key) for key in keys), *more)


def signature_check(
    text: str, path: str | os.PathLike[str] | None, keys: Sequence[PublicKey], *, required: bool
) -> tuple[Check | None, tuple[Statement, ...]]:
    """What the envelopes next to a file prove.

    Args:
        text: text of the file, as read.
        path: path of the file; None if an object is verified.
        keys: the trusted keys; without any, envelopes are ignored.
        required: whether a signature is required.

    Returns:
        The check, if there is one to make, and the proved statements of issuers.
    """
    if not keys:
        return None, ()
    try:
        envelopes = () if path is None else envelopes_of(path)
        if not envelopes:
            detail = "not signed" + (", a signature is required" if required else "")
            return Check("signature", ok=not required, detail=detail), ()
        found = check_signatures(text, envelopes, keys)
    except CertificateError as error:
        return Check("signature", ok=False, detail=str(error)), ()
    detail = "; ".join(f"{statement}, key {signer.key_id[:16]}" for statement, signer in found)
    statements = tuple(statement for statement, _ in found)
    accepted = all(one.decision != "rejected" for one in statements)
    return Check("signature", ok=accepted, detail=detail), statements


_SOURCES = {Certificate: "certificate", RunRecord: "run record", Ledger: "ledger"}


def verify(
    certificate: str | os.PathLike[str] | Certificate | RunRecord | Ledger,
    *,
    rigorous: bool = False,
    progress: Progress | None = None,
    max_seconds: float = MAX_SECONDS,
    max_memory: float = MAX_MEMORY,
    max_file_size: int = LARGEST_FILE,
    keys: Sequence[PublicKey | str | os.PathLike[str]] = (),
    require_signature: bool = False,
    policy: Policy | None = None,
) -> Verification:
    """Decide whether a certificate, a run record or a ledger is true.

    *Is the claim true?* This is decided by `dpmech.checker`, a small program that imports only the standard
    library, numpy and python-flint, and shares no code with the code that issued the claim. The claim is
    PROVED (possibly except with a stated probability over the checker's own random numbers), REFUTED, or NOT
    CHECKED, with the reason. *Does the run follow the claim?* A run record states that it does, and its
    entries must be consistent. No file can prove this, and `verify` does not claim it. The file itself is
    also checked: its schema, checksum, derived entries, labels and signature, and the rules of the policy.

    **Guarantee:** `ok` is True only if the claim is PROVED and every other check passes. A claim that is NOT
    CHECKED is not ok: no error was found, but nothing was shown either. A checksum is not a signature: an
    edited file with a recomputed checksum is accepted if all of its statements are true for another run.

    Args:
        certificate: a file, a Certificate, a RunRecord or a Ledger.
        rigorous: refuse a certificate that is based on an estimate, or on samples whose beta is not inside
            delta, and a ledger with such a total. Also refuse a run whose random numbers were seeded by the
            caller, or that resumed from a checkpoint with a different dataset, model or loss.
        progress: called with one line of text before every step.
        max_seconds: CPU time limit of the checker for each direction of a claim, > 0.
        max_memory: limit, in bytes, on a conservative estimate of the peak memory for recomputing derived
            entries, > 0.
        max_file_size: largest accepted file, in bytes.
        keys: trusted public keys, or their files. At least one of the signatures next to the file, if there
            are any, must be by one of them; see `dm.sign`. Without keys, signatures are ignored.
        require_signature: refuse unsigned files, and objects, because they have no signature.
        policy: further rules; every violated rule is a failed check.

    Returns:
        A Verification, with `ok`, `claim`, `failures`, `proved`, `refuted`, `not_checked` and `checks`.

    Raises:
        InvalidParameterError: if the file cannot be read or is too large, if an argument is invalid, or if a
            signature or a date is required without keys.
        MissingDependencyError: if there are keys and the extra `sign` is not installed.
        WorkLimitError: if recomputing derived entries would take more than `max_memory`, or more seconds than
            the larger of 300 and `max_seconds`; there is then no result about the claim.

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
    seconds = check_real("max_seconds", max_seconds, minimum=0.0, open_minimum=True)
    memory = check_real("max_memory", max_memory, minimum=0.0, open_minimum=True)
    rules = Policy() if policy is None else Policy.check(policy)
    required = require_signature or rules.require_signature
    signers = trusted(keys, rules.trusted_keys, needed=required or rules.needs_key)
    report = progress if progress is not None else _silent
    signed: tuple[Check | None, tuple[Statement, ...]] = (None, ())
    source = _SOURCES[type(certificate)] if isinstance(certificate, Document) else os.fspath(certificate)
    report(f"{source}: reading")
    try:
        with metered(max(READING_SECONDS, seconds), memory):
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
                found = verify_ledger(text, source, seconds, report, rigorous=rigorous)
            else:
                found = _verified(text, source, seconds, report, rigorous=rigorous)
            found = _with_signature(found, *signed)
            total = functools.partial(total_check, text=text, seconds=seconds)
            more = policy_checks(rules, found, decide_total=total)
            return dataclasses.replace(found, checks=(*found.checks, *more))
    except CertificateError as error:
        failed = Verification(source, None, (Check("file", ok=False, detail=str(error)),))
        return _with_signature(failed, *signed)


def _with_signature(found: Verification, check: Check | None, signed: tuple[Statement, ...]) -> Verification:
    checks = found.checks if check is None else (*found.checks, check)
    return dataclasses.replace(found, checks=checks, signed=signed)


def _verified(text: str, source: str, seconds: float, report: Progress, *, rigorous: bool) -> Verification:
    run: RunRecord | None = None
    names: tuple[str, ...] = ()
    if is_run_record(text):
        run, derived = RunRecord.read(text)
        read, names = run.certificate, ("executed",)
    else:
        read, derived = Certificate.read(text)
    spend_on_claim(read if run is None else run)
    # Forged numbers may overflow; the result is refused, without a warning.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        read.check_derived(derived)
        checks = [Check("file", ok=True, detail="schema, checksum and derived entries hold")]
        checks += [sensitivity_check(read), *label_checks(read)]
        report(f"{source}: checker")
        claims = claim_checks(text, names, seconds=seconds)
        checks += claims
        if run is not None:
            checks += [*executed_labels(run), *run_checks(run, rigorous=rigorous)]
        elif all(check.ok for check in claims):
            checks += end_checks(read, text, seconds=seconds)
    if rigorous:
        checks += rigour_checks(read)
    return Verification(source, read, tuple(checks), run)


def _silent(line: str) -> None:
    del line
