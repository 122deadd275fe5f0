"""What a run record adds to its certificate, and how it is checked."""

import dataclasses
from collections.abc import Iterator

from dpmech.certificates import Certificate, Kept, RunRecord, Uniqueness
from dpmech.mechanism import PrivacyBudget
from dpmech.numerics import Bounds
from dpmech.schemes import accountant_for
from dpmech.verifying.report import Check

__all__ = ["run_checks", "stopped_certificate"]


def run_checks(record: RunRecord, *, rigorous: bool) -> Iterator[Check]:
    """Steps and participations (without which there is no record), and what the run states of itself."""
    own = record.certificate
    seen = "kept secret"
    if record.most_participations is not None:
        seen = f"at most {record.most_participations} of one example"
        if record.smallest_separation is not None:
            seen += f", {record.smallest_separation} steps apart or more"
    detail = f"{record.steps} of {own.strategy.n} certified steps; participations: {seen}"
    yield Check("run", ok=True, detail=f"{detail}; certified: {own.participation!r}")
    seeded = [name for name, used in (("lots", record.sampler), ("noise", record.noise)) if used.seeded]
    if seeded:
        detail = f"the caller seeded the {' and the '.join(seeded)}: they are as secret as that seed"
    else:
        detail = "keys from the operating system"
    made = f"batches from {record.sampler.generator_words}, noise from {record.noise.generator_words}"
    yield Check("randomness", ok=not (rigorous and seeded), detail=f"{detail}; {made}")
    checked = {
        Uniqueness.FLATTENED: "each under one index of tensors, arrays or plain sequences",
        Uniqueness.EXAMPLE_IDS: "each once, by the ids that the dataset gives them",
        Uniqueness.NOT_CHECKED: "not checked that none stands in the dataset twice",
    }
    yield Check("examples", ok=True, detail=checked[record.uniqueness])
    if record.continuity is None:
        yield Check("checkpoints", ok=True, detail="none saved or loaded")
        return
    accepted = record.continuity.of_kind(Kept.ACCEPTED)
    found = [f"the same {name}" for name in record.continuity.of_kind(Kept.SAME)]
    found += [f"no whole fingerprint of the {name}" for name in record.continuity.of_kind(Kept.UNKNOWN)]
    found += [f"another {name}, for which the caller took the responsibility" for name in accepted]
    if record.continuity.settings == Kept.UNKNOWN:
        found.append("settings of later steps not compared")
    if record.continuity.loads:
        found.append(f"{record.continuity.loads} loads of a saved state")
    yield Check("checkpoints", ok=not (rigorous and accepted), detail=", ".join(found))


def stopped_certificate(record: RunRecord) -> Certificate | None:
    """The claim about the steps executed, where it says more than the certificate's; else None."""
    own = record.certificate
    if record.steps == 0 or record.executed == own.achieved:
        return None
    executed = own.mechanism.prefix(record.steps)
    accountant = accountant_for(executed, own.evidence.accountant)
    return dataclasses.replace(
        own,
        mechanism=executed,
        budget=PrivacyBudget(record.executed.upper, own.budget.delta),
        sensitivity=accountant.sensitivity,
        achieved=_of_the_mechanism(record.executed),
    )


def _of_the_mechanism(executed: Bounds) -> Bounds:
    """What was executed with the words of its own accountant, in place of the duty that they stand under."""
    by = executed.by
    if by.route == "release.executed" and len(by.rests_on) == 1:
        return dataclasses.replace(executed, by=by.rests_on[0])
    return executed
