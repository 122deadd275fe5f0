"""Subject and Review: a certificate, its run and its ledger, with the results of verification and attacks."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpmech.certificates import Certificate, Document, RunRecord, clip_norm_stated
from dpmech.exceptions import InvalidParameterError, shown_value
from dpmech.ledgers import Ledger
from dpmech.numerics import Kind, counted, typed, up
from dpmech.reports.answers import Answers
from dpmech.reports.attacks import Attacks
from dpmech.verifying import LOOSE, Check, Question, Verification


@dataclasses.dataclass(frozen=True)
class Subject:
    """A certificate with its related documents.

    Attributes:
        certificate: the claim; if there is a run, the certificate inside it, under which training ran.
        run: the run under it.
        ledger: the ledger that contains it.
        names: names of the files, by kind: "certificate", "run record", "ledger".
        fixed: terms that the file of the certificate leaves open and the run fixed, in words.
    """

    certificate: Certificate
    run: RunRecord | None
    ledger: Ledger | None
    names: Mapping[str, str]
    fixed: tuple[str, ...] = ()

    @classmethod
    def of(cls, documents: Mapping[str, Document]) -> "Subject":
        """From the documents of a report, by the names of their files, in any order.

        Raises:
            InvalidParameterError: if there are two of a kind, or a ledger only; if a run or a ledger is not
                about the certificate, or the certificate is only a run of a private selection in the ledger.
        """
        names: dict[str, str] = {}
        found: dict[str, Document] = {}
        for name, one in documents.items():
            kind = kind_of(one)
            if kind in found:
                raise InvalidParameterError("files", name, f"left out: {names[kind]} is a {kind} already")
            found[kind], names[kind] = one, name
        run, ledger, own = (found.get(kind) for kind in ("run record", "ledger", "certificate"))
        certificate = run.certificate if own is None and isinstance(run, RunRecord) else own
        if not isinstance(certificate, Certificate):
            ledgers = names.get("ledger", "")
            raise InvalidParameterError("files", ledgers, "given with a certificate or a run record")
        fixed: tuple[str, ...] = ()
        if isinstance(run, RunRecord) and run.certificate is not certificate:
            fixed = _fixed_by(run.certificate, certificate, names)
            certificate = run.certificate
        if isinstance(ledger, Ledger):
            _check_entered(certificate, ledger, names["ledger"])
        return cls(
            certificate,
            run if isinstance(run, RunRecord) else None,
            ledger if isinstance(ledger, Ledger) else None,
            names,
            fixed,
        )

    @property
    def to_verify(self) -> tuple[str, ...]:
        """The files whose verification covers all: a run record contains its certificate."""
        named = "run record" if self.run is not None else "certificate"
        return tuple(self.names[kind] for kind in (named, "ledger") if kind in self.names)


# Terms of the training that a certificate may leave open.
_TERMS = {
    "clip_norm": "clip norm",
    "expected_batch_size": "expected batch size",
    "dataset_size": "dataset size",
}
_CLAIMED = {
    "sigma": "sigma",
    "budget": "budget",
    "strategy": "strategy",
    "participation": "participation",
    "adjacency": "adjacency",
    "unit": "unit",
} | _TERMS
_SHOWN = 60


def _fixed_by(executed: Certificate, stated: Certificate, names: Mapping[str, str]) -> tuple[str, ...]:
    """The terms that a run fixed and its certificate's file leaves open.

    The evidence may differ: the run has evidence of its own, which is verified.

    Raises:
        InvalidParameterError: if the claims differ, or the file fixes something else, with the difference.
    """
    fixed, differing = [], []
    for name, words in _CLAIMED.items():
        own, other = getattr(executed, name), getattr(stated, name)
        if own == other:
            continue
        if name in _TERMS and other is None:
            fixed.append(f"{words} {own}, left open in {names['certificate']}")
        else:
            there, here = (shown_value(one, _SHOWN) for one in (other, own))
            differing.append(f"{words} {there} there, {here} in the run")
    if differing:
        more = f", and {counted(len(differing) - 1, 'more difference')}" if len(differing) > 1 else ""
        raise InvalidParameterError(
            "files",
            names["run record"],
            f"a run under the certificate in {names['certificate']} ({differing[0]}{more})",
        )
    return tuple(fixed)


def _check_entered(certificate: Certificate, ledger: Ledger, name: str) -> None:
    """Refuse a ledger without the certificate, or with it only as the run of a private selection.

    A report states the eps of one run, and the best of many costs more.
    """
    own = certificate.fingerprint()
    entries = [release for release in ledger.releases if release.certificate.fingerprint() == own]
    if not entries:
        raise InvalidParameterError("files", name, "a ledger that has the certificate among its releases")
    if all(release.runs is not None for release in entries):
        raise InvalidParameterError(
            "files",
            name,
            "a ledger that has the certificate as a release of its own: there it is one run of a private "
            "selection, whose best costs more than the certificate says (dpmech ledger show has the total)",
        )


def kind_of(one: Document) -> str:
    """What a document is, in words."""
    if isinstance(one, Ledger):
        return "ledger"
    return "run record" if isinstance(one, RunRecord) else "certificate"


@dataclasses.dataclass(frozen=True)
class Review:
    """All data of a report.

    Attributes:
        subject: the documents.
        verifications: one for each of `subject.to_verify`, in that order.
        attacks: None if something was refused: no numbers should be derived from an invalid claim.
        said: what people answered; it replaces nothing that the files state.

    Raises:
        InvalidParameterError: if the verifications are not those of the subject, or a file changed in
            between.
    """

    subject: Subject
    verifications: tuple[Verification, ...]
    attacks: Attacks | None
    said: Answers = dataclasses.field(default_factory=Answers)

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
        """Whether the verified content is the content shown, as a file is read twice."""
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
        """Whether every check passed."""
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
        if found.loose:
            verdict += f", {LOOSE.removeprefix('true ')}"
        if self.subject.run is None:
            followed = "not stated: there is no run record"
        elif any(check.question is Question.RUN and not check.ok for check in found.checks):
            followed = "the statements of its record were refused"
        else:
            followed = "its record states so; only the training process can vouch for this, no file proves it"
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
        """Every check, with its file."""
        return tuple((one.source, check) for one in self.verifications for check in one.checks)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Parts of the files that the checker's verdicts do not cover, each once."""
        return tuple(dict.fromkeys(part for one in self.verifications for part in one.left_out))

    @property
    def issuers(self) -> tuple[tuple[str, str], ...]:
        """The issuer of every verified file, as far as a trusted key shows it."""
        found = []
        for one in self.verifications:
            told = next((check.detail for check in one.checks if check.name == "signature"), None)
            found.append((one.source, told or "not checked: no trusted key was given (--key)"))
        return tuple(found)

    @property
    def headline(self) -> str:
        """The guarantee in one line: the certificate's; of a loose claim nothing is exact."""
        return LOOSE if self.verifications[0].loose else self.certificate.headline

    @property
    def eps(self) -> float:
        """The eps charged: that of the executed steps if it is less and proved, otherwise of the claim."""
        own, run = self.certificate, self.subject.run
        if run is None or run.executed == own.achieved or self.verifications[0].executed_open:
            return own.budget.eps
        return run.executed.upper

    @property
    def cost(self) -> str:
        """The eps charged, rounded up."""
        return typed(self.eps) if self.eps == self.certificate.budget.eps else up(self.eps)

    def summary(self) -> dict[str, Any]:
        """The results as plain data."""
        own = self.certificate
        attacks, run = self.attacks, self.subject.run
        return {
            "files": dict(self.subject.names),
            "verified": self.ok,
            "answers": dict(self.answers),
            "guarantee": self.headline,
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
                "eps": own.budget.eps if self.verifications[0].executed_open else run.executed.upper,
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
            "signatures": {one.source: [each.to_dict() for each in one.signed] for one in self.verifications},
            "fingerprints": self.fingerprints(),
            "versions": dict(own.versions),
        }

    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the claim, its strategy and the files, in hexadecimal."""
        own, run, ledger = self.certificate, self.subject.run, self.subject.ledger
        found = {
            "claim": own.fingerprint(),
            "strategy": own.strategy.fingerprint(),
            "checksum of the certificate": own.to_dict()["checksum"],
        }
        if run is not None:
            found |= {
                "checksum of the run record": run.to_dict()["checksum"],
                "random numbers of the batches": run.sampler.fingerprint,
                "random numbers of the noise": run.noise.fingerprint,
            }
        if ledger is not None:
            found["checksum of the ledger"] = ledger.to_dict()["checksum"]
        return found
