"""Review: a subject with what its verification found and what it leaves to an attacker."""

import dataclasses
from typing import Any

from dpmech.certificates import Certificate, clip_norm_stated
from dpmech.exceptions import InvalidParameterError
from dpmech.numerics import Kind, typed, up
from dpmech.reports.attacks import Attacks
from dpmech.reports.subject import Subject
from dpmech.verifying import Check, Question, Verification

__all__ = ["Review"]


@dataclasses.dataclass(frozen=True)
class Review:
    """Everything that a report says is made from this.

    Attributes:
        subject: what it is about.
        verifications: one for each of `subject.to_verify`, in that order.
        attacks: None where something was refused: nobody should read numbers off a claim that does not hold.

    Raises:
        InvalidParameterError: if the verifications are not those of the subject, or a file changed between
            them.
    """

    subject: Subject
    verifications: tuple[Verification, ...]
    attacks: Attacks | None

    def __post_init__(self) -> None:
        found = tuple(one.source for one in self.verifications)
        if found != self.subject.to_verify:
            raise InvalidParameterError("verifications", found, f"those of {self.subject.to_verify}")
        for one in self.verifications:
            if one.ok and not self._is_about(one):
                raise InvalidParameterError(
                    "files", one.source, "left as it is while it is read and verified"
                )
        if self.attacks is not None and not self.ok:
            raise InvalidParameterError("attacks", self.attacks, "None where a check failed")

    def _is_about(self, found: Verification) -> bool:
        """Whether what was verified is what is shown, as a file is read twice."""
        subject = self.subject
        if found.ledger is not None:
            return subject.ledger is not None and found.ledger.to_json() == subject.ledger.to_json()
        return found.certificate == subject.certificate and found.run == subject.run

    @property
    def certificate(self) -> Certificate:
        """The claim."""
        return self.subject.certificate

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return all(self.verifications)

    @property
    def undecided(self) -> bool:
        """Whether nothing was found wrong, but a claim was not checked."""
        failed = [one for one in self.verifications if not one.ok]
        return bool(failed) and all(one.undecided for one in failed)

    @property
    def answers(self) -> tuple[tuple[str, str], ...]:
        """The two questions with their answers: whether the claim is true, and whether the run follows it."""
        found = self.verifications[0]
        verdict = "not decided: the file could not be read" if found.claim is None else found.claim.value
        if found.failure:
            verdict += f" except with probability {typed(found.failure)}"
        if self.subject.run is None:
            followed = "nothing is said: there is no run record"
        elif any(check.question is Question.RUN and not check.ok for check in found.checks):
            followed = "its record states what was refused"
        else:
            followed = "its record says so; only the process that trained can vouch for it, no file proves it"
        return (
            ("Is the claim true?", f"{verdict}, by the independent checker (dpmech.checker)"),
            ("Does the run follow the claim?", followed),
        )

    @property
    def estimate(self) -> bool:
        """Whether the claim was issued on an estimate."""
        return self.certificate.guarantee.kind is Kind.ESTIMATE

    @property
    def checks(self) -> tuple[tuple[str, Check], ...]:
        """Every check, with the file that it is about."""
        return tuple((one.source, check) for one in self.verifications for check in one.checks)

    @property
    def issuers(self) -> tuple[tuple[str, str], ...]:
        """Of every file that was verified, who issued it, as far as a trusted key shows that."""
        found = []
        for one in self.verifications:
            told = next((check.detail for check in one.checks if check.name == "signature"), None)
            found.append((one.source, told or "not looked at: no trusted key was given (--key)"))
        return tuple(found)

    @property
    def cost(self) -> str:
        """The eps that is owed: of the run where there is one, else of the claim; rounded up."""
        own, run = self.certificate, self.subject.run
        if run is None or run.executed == own.achieved:
            return typed(own.budget.eps)
        return up(run.executed.upper)

    def summary(self) -> dict[str, Any]:
        """What was found, as plain data."""
        own = self.certificate
        attacks, run = self.attacks, self.subject.run
        return {
            "files": dict(self.subject.names),
            "verified": self.ok,
            "answers": dict(self.answers),
            "guarantee": own.headline,
            "rigorous": own.guarantee.rigorous,
            "claim": {
                "eps": own.budget.eps,
                "delta": own.budget.delta,
                "adjacency": own.adjacency.value,
                "unit": own.unit.value,
                "sigma": own.sigma,
                "clip_norm": clip_norm_stated(own.clip_norm, own.sigma),
                "expected_batch_size": own.expected_batch_size,
                "steps": own.strategy.n,
                "strategy": repr(own.strategy),
                "participation": own.participation.to_dict(),
            },
            "run": None
            if run is None
            else {
                "steps": run.steps,
                "eps": run.executed.upper,
                "stopped_by_plan": run.stopped_by_plan,
            },
            "attacks": None
            if attacks is None
            else {
                "basis": attacks.basis,
                "guarantee": str(attacks.guarantee),
                "by": attacks.by,
                "reason": attacks.reason,
                "findings": [one.to_dict() for one in attacks.findings],
            },
            "checks": [{"source": source, **one.to_dict()} for source, one in self.checks],
            "signatures": {
                one.source: None if one.signed is None else one.signed.to_dict() for one in self.verifications
            },
            "fingerprints": self.fingerprints(),
            "versions": dict(own.versions),
        }

    def fingerprints(self) -> dict[str, str]:
        """What names the claim, its strategy and the files, in hexadecimal."""
        own, run, ledger = self.certificate, self.subject.run, self.subject.ledger
        found = {
            "claim": own.fingerprint(),
            "strategy": own.strategy.fingerprint(),
            "seal of the certificate": own.to_dict()["seal"],
        }
        if run is not None:
            found |= {
                "seal of the run record": run.to_dict()["seal"],
                "random numbers of the lots": run.sampler.fingerprint,
                "random numbers of the noise": run.noise.fingerprint,
            }
        if ledger is not None:
            found["seal of the ledger"] = ledger.to_dict()["seal"]
        return found
