"""The result of a verification: one line per check, and the conclusion."""

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Any

from dpmech.certificates import Certificate, RunRecord, Statement
from dpmech.checker import Kind, Verdict
from dpmech.files import on_one_line
from dpmech.ledgers import Ledger
from dpmech.numerics import typed

_ABOUT_RUNS = ("run", "randomness", "examples", "noise", "checkpoints")
LOOSE = "true and loose: more noise than this eps needs"
_ABOUT_FILES = ("file", "sensitivity", "evidence", "signature")


class Question(enum.Enum):
    """The question that a check answers; answers to different questions are never combined."""

    FILE = "file"  # Is the file consistent, and who signed it?
    CLAIM = "claim"  # Is the claim true? The checker decides.
    RUN = "run"  # Does the run follow the claim? Only the process that trained can vouch for it.
    RULES = "rules"  # Does the caller allow it?


@dataclasses.dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: what was checked: "file", "sensitivity", "evidence" or "signature"; "claim", "achieved" (stated
            bounds on eps) or "executed" (the eps of the executed steps); for ledgers "mode" or "total";
            "run", "randomness", "examples", "noise" or "checkpoints"; "rigour"; for a policy its rule,
            such as "policy max_eps".
        ok: whether it passed.
        detail: the finding, in one line.
        verdict: the checker's verdict if it decided, otherwise None.
        loose: whether it found that the claim also holds for an eps below the smallest eps that the file
            states.

    Example:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.Identity(12), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> found = dm.verify(cal.certificate())
        >>> all(check.ok for check in found.checks)
        True
    """

    name: str
    ok: bool
    detail: str
    verdict: Verdict | None = None
    loose: bool = False

    @property
    def question(self) -> Question:
        """The question that the check helps to answer."""
        if self.name in _ABOUT_RUNS:
            return Question.RUN
        if self.name in _ABOUT_FILES:
            return Question.FILE
        if self.name == "rigour" or self.name.startswith("policy"):
            return Question.RULES
        return Question.CLAIM

    @property
    def undecided(self) -> bool:
        """Whether it failed because the checker could not decide, and not because an error was found."""
        return not self.ok and self.verdict is not None and self.verdict.kind is Kind.NOT_CHECKED

    @property
    def left_open(self) -> bool:
        """Whether it passed although the checker could not decide, because a decision is not required."""
        return self.ok and self.verdict is not None and self.verdict.kind is Kind.NOT_CHECKED

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "question": self.question.value,
            "ok": self.ok,
            "verdict": None if self.verdict is None else self.verdict.kind.value,
            "detail": self.detail,
        }


def check_noise_of_each(found: Sequence["Verification"]) -> list["Verification"]:
    """Refuse run records that state the noise of an earlier one among the same files.

    The difference of two sums with the same noise reveals them without noise. No ledger contains the noise of
    its releases, so only records show that it was used twice. The same record may be given twice.

    Args:
        found: the results for several files.

    Returns:
        The results, with a failed check of the noise for each such record.
    """
    known: dict[str, Verification] = {}
    checked = []
    for one in found:
        first = one if one.run is None else known.setdefault(one.run.noise.fingerprint, one)
        again: tuple[Check, ...] = ()
        if first.run != one.run:
            detail = (
                f"the same random numbers as in {first.source}: two releases with the same noise are not "
                "private, and no total of a ledger holds for them; of one run, verify the last record only"
            )
            again = (Check("noise", ok=False, detail=detail),)
        checked.append(dataclasses.replace(one, checks=(*one.checks, *again)))
    return checked


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of `dm.verify`; true in a boolean context if and only if every check passed.

    Two questions are answered separately. *Is the claim true?* The independent checker proves it, refutes it,
    or does not decide. *Does the run follow the claim?* A run record states that it does; no file can prove
    this.

    Attributes:
        source: the file, or "certificate" for an object.
        certificate: the verified certificate; None for a ledger, or if the file could not be read.
        checks: the checks, in the order in which they were made.
        run: the run record that contains the certificate; None if a certificate was verified.
        ledger: the verified ledger, if it was one.
        signed: the statements of issuers that trusted keys signed.

    Example:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(12, 0.8), 2.0, 1e-5, participation=dm.MinSep(4))
        >>> found = dm.verify(cal.certificate())
        >>> found.ok, found.claim.value, found.failures
        (True, 'PROVED', ())
    """

    source: str
    certificate: Certificate | None
    checks: tuple[Check, ...]
    run: RunRecord | None = None
    ledger: Ledger | None = None
    signed: tuple[Statement, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the claim is proved and every other check passed."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def claim(self) -> Kind | None:
        """The checker's verdict on the claim, or on all claims of a ledger; None if there is none."""
        decided = [check.verdict for check in self.checks if check.name in ("claim", "total")]
        found = {verdict.kind for verdict in decided if verdict is not None}
        return next((kind for kind in (Kind.REFUTED, Kind.NOT_CHECKED, Kind.PROVED) if kind in found), None)

    @property
    def failure(self) -> float:
        """Probability, over the checker's random numbers, that something PROVED is false: a union bound."""
        return math.fsum(verdict.failure for verdict in self._verdicts(Kind.PROVED))

    @property
    def undecided(self) -> bool:
        """Whether no error was found, but something could not be shown."""
        failed = [check for check in self.checks if not check.ok]
        return bool(failed) and all(check.undecided for check in failed)

    @property
    def loose(self) -> bool:
        """Whether the claim is true, but with more noise than the file states as necessary."""
        return any(check.loose for check in self.checks)

    @property
    def executed_open(self) -> bool:
        """Whether the eps of a run's executed steps is stated, but neither proved nor refuted."""
        return any(check.name == "executed" and check.left_open for check in self.checks)

    @property
    def achieved_open(self) -> bool:
        """Whether the certificate states an upper bound on eps below its claim that was not proved."""
        own, run = self.certificate, self.run
        if own is None or own.achieved.upper >= own.budget.eps:
            return False
        # A complete run states this bound as its own.
        name = "achieved" if run is None or run.executed != own.achieved else "executed"
        decided = (check.verdict for check in self.checks if check.name == name)
        return all(verdict is None or verdict.kind is not Kind.PROVED for verdict in decided)

    @property
    def profile_open(self) -> tuple[str, ...]:
        """Words on upper ends of stored privacy profiles that were neither proved nor refuted."""
        found = dict.fromkeys(check.verdict.open_nodes for check in self.checks if check.verdict is not None)
        return tuple(f"{left} of {every} upper ends of the privacy profile" for left, every in found if left)

    @property
    def stated_open(self) -> tuple[str, ...]:
        """One line for every stated bound, other than the claim, that was neither proved nor refuted."""
        ends = [str(check) for check in self.checks if check.left_open]
        if self.run is not None and self.achieved_open and not self.executed_open:
            ends.append("achieved: the stated eps of the certificate in a run record is not checked")
        return (*ends, *self.profile_open)

    @property
    def proved(self) -> tuple[str, ...]:
        """One line for everything that the checker proved."""
        return self._said(Kind.PROVED)

    @property
    def refuted(self) -> tuple[str, ...]:
        """One line for everything that the checker refuted."""
        return self._said(Kind.REFUTED)

    @property
    def not_checked(self) -> tuple[str, ...]:
        """One line for everything neither proved nor refuted, and for every part of the file left out."""
        return (*self._said(Kind.NOT_CHECKED), *self.left_out)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Parts of the file that the checker's verdict does not cover."""
        verdicts = [check.verdict for check in self.checks if check.verdict is not None]
        return tuple(dict.fromkeys(part for verdict in verdicts for part in verdict.unchecked))

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for every failed check."""
        return tuple(str(check) for check in self.checks if not check.ok)

    @property
    def statements(self) -> tuple[str, ...]:
        """Statements of a run record about its run, one line each; only the trainer vouches for them."""
        return tuple(str(check) for check in self.checks if check.question is Question.RUN)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if not self.ok:
            return "\n".join(
                on_one_line(f"{self.source}: {'NOT CHECKED' if check.undecided else 'REFUSED'}: {check}")
                for check in self.checks
                if not check.ok
            )
        said = [self._headline()]
        if self.claim is not None:
            chance = f" except with probability {typed(self.failure)}" if self.failure else ""
            said.append(f"claim {self.claim.value}{chance}")
        if self.run is not None:
            said.append("that the run follows it is stated by its record, not proved")
        said += [f"{check.name} {check.detail}" for check in self.checks if check.left_open]
        said += [f"NOT CHECKED: {part}" for part in self.profile_open]
        if self.signed:
            said += [str(one) for one in self.signed]
        elif any(check.name == "signature" for check in self.checks):
            said.append("not signed")  # so that a caller who gave a key does not take silence for a signature
        return on_one_line(f"{self.source}: VERIFIED: {'; '.join(said)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; `claim` and `run_follows` answer one question each."""
        statements = [check for check in self.checks if check.question is Question.RUN]
        return {
            "source": self.source,
            "ok": self.ok,
            "guarantee": self._guarantee(),
            "fingerprint": None if self.certificate is None else self.certificate.fingerprint(),
            "claim": {
                "question": "is the claim true?",
                "verdict": None if self.claim is None else self.claim.value,
                "failure": self.failure,
                "proved": list(self.proved),
                "refuted": list(self.refuted),
                "not_checked": list(self.not_checked),
            },
            "run_follows": None
            if self.run is None
            else {
                "question": "does the run follow the claim?",
                "verdict": "STATED" if all(check.ok for check in statements) else "REFUSED",
                "statements": list(self.statements),
            },
            "run": None if self.run is None else self.run.to_dict()["run"],
            "ledger": None if self.ledger is None else self.ledger.to_dict()["ledger"],
            "signed": [one.to_dict() for one in self.signed],
            "failures": list(self.failures),
            "checks": [check.to_dict() for check in self.checks],
        }

    def _verdicts(self, kind: Kind) -> list[Verdict]:
        return [
            check.verdict for check in self.checks if check.verdict is not None and check.verdict.kind is kind
        ]

    def _said(self, kind: Kind) -> tuple[str, ...]:
        return tuple(
            str(check) for check in self.checks if check.verdict is not None and check.verdict.kind is kind
        )

    def _headline(self) -> str:
        if self.ledger is not None:
            return self.ledger.headline
        if self.run is not None:
            proved = f"; proved is eps {typed(self.run.certificate.budget.eps)}" if self.executed_open else ""
            return f"{self.run}{proved}"
        if self.certificate is None:
            return ""
        return LOOSE if self.loose else self.certificate.headline

    def _guarantee(self) -> str | None:
        if self.ledger is not None:
            return str(self.ledger.guarantee)
        if self.certificate is None:
            return None
        return LOOSE if self.loose else str(self.certificate.guarantee)
