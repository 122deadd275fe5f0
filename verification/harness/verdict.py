"""The words of a verdict, what a check returns, how checks register, and how margins become a verdict."""

import dataclasses
import math
from collections.abc import Callable

WORDS = {
    "CONFIRMED": "The statement is true under its printed conditions",
    "CONFIRMED, MISPRINT IN THE PROOF": "The statement is true, but a line of its proof is misprinted",
    "CONDITIONAL": "The statement is true under a condition that is not printed; the entry names it",
    "MISPRINT": "The right form is elsewhere in the paper, or only one reading is consistent",
    "WORDING": "The prose is imprecise or does not fit the rest of the paper; no result is affected",
    "PROOF GAP": "A step of the proof does not follow as written",
    "NOT REPRODUCED": "We could not recompute a cell, figure or measurement; the entry lists what we tried",
    "COUNTEREXAMPLE": "The statement fails in a case that satisfies the printed hypotheses",
    "UNVERIFIABLE": "The statement is a measurement or an assumption; we only checked its arithmetic",
    "BEYOND THE PAPER": "The statement is an addition of ours, which the paper does not contain",
}
STATUSES = tuple(WORDS)
# What a check returns that came out otherwise than any verdict on record. No entry may carry it.
UNSETTLED = "UNSETTLED"


class InconclusiveError(RuntimeError):
    """Neither the printed statement nor what is right came out as it should: there is no verdict."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of one statement.

    Args:
        status: a key of WORDS, or UNSETTLED.
        method: how it was checked.
        cases: how many cases were tried.
        worst_margin: the largest deviation seen, in the unit that `method` names.
        note: what the run found: the condition, the witness, or why it cannot be verified.
    """

    status: str
    method: str
    cases: int
    worst_margin: float
    note: str = ""

    def __post_init__(self) -> None:
        if self.status not in {*STATUSES, UNSETTLED}:
            raise ValueError(f"status must be one of {(*STATUSES, UNSETTLED)}, got {self.status!r}")


@dataclasses.dataclass(frozen=True)
class Check:
    """A registered statement."""

    id: str
    paper: str
    expected: str
    run: Callable[..., Verdict]
    full: bool


CHECKS: dict[str, Check] = {}


def statement(
    identifier: str, *, paper: str, expected: str = "CONFIRMED", full: bool = False
) -> Callable[[Callable[..., Verdict]], Callable[..., Verdict]]:
    """Register a check; `full` ones run with --full only.

    The function takes what it judges (the claim, or the oracle) as keyword arguments with defaults, so that
    a test can hand it an altered one and see the verdict change.
    """

    def register(function: Callable[..., Verdict]) -> Callable[..., Verdict]:
        if identifier in CHECKS:
            raise ValueError(f"{identifier} is registered twice")
        _refuse_unknown(expected)
        CHECKS[identifier] = Check(identifier, paper, expected, function, full)
        return function

    return register


def judged(worst: float, tolerance: float, *, word: str = "CONFIRMED") -> str:
    """The word if the worst deviation is within the tolerance, else UNSETTLED.

    Args:
        worst: the largest deviation of what is claimed.
        tolerance: what counts as agreement.
        word: CONFIRMED, or BEYOND THE PAPER for an addition of ours.
    """
    _refuse_unknown(word)
    return word if worst <= tolerance else UNSETTLED


def judged_condition(inside: float, outside: float, tolerance: float) -> str:
    """For a statement true under a condition.

    Args:
        inside: its worst deviation where the condition holds.
        outside: its deviation at a witness where the condition fails.
        tolerance: what counts as agreement.

    Returns:
        CONDITIONAL if it holds inside and fails outside, CONFIRMED if it holds in both (the condition is
        not needed), UNSETTLED if it fails inside.
    """
    _refuse_nan(inside, outside)
    if inside > tolerance:
        return UNSETTLED
    return "CONDITIONAL" if outside > tolerance else "CONFIRMED"


def judged_erratum(printed: float, corrected: float, tolerance: float, *, word: str) -> str:
    """For what does not hold as printed, beside what is right.

    Args:
        printed: the worst deviation of the printed form.
        corrected: the worst deviation of the right form.
        tolerance: what counts as agreement.
        word: the verdict of the entry: MISPRINT, WORDING, COUNTEREXAMPLE, ...

    Returns:
        The word if the printed form fails, CONFIRMED if it holds.

    Raises:
        InconclusiveError: if the right form does not hold either.
    """
    _refuse_unknown(word)
    _refuse_nan(printed, corrected)
    if corrected > tolerance:
        raise InconclusiveError(f"the corrected form is off by {corrected:.3g}, tolerance {tolerance:.3g}")
    return word if printed > tolerance else "CONFIRMED"


def judged_proof(holds: float, line: float, corrected: float, tolerance: float) -> str:
    """For a true statement with a misprinted line in its proof.

    Args:
        holds: the worst deviation of the statement.
        line: the worst deviation of the printed line of the proof.
        corrected: the worst deviation of that line put right.
        tolerance: what counts as agreement.

    Returns:
        CONFIRMED, MISPRINT IN THE PROOF; CONFIRMED if the printed line holds; UNSETTLED if the statement
        fails.

    Raises:
        InconclusiveError: if the line put right does not hold either.
    """
    _refuse_nan(holds, line, corrected)
    if holds > tolerance:
        return UNSETTLED
    return judged_erratum(line, corrected, tolerance, word="CONFIRMED, MISPRINT IN THE PROOF")


def judged_arithmetic(worst: float, tolerance: float) -> str:
    """For reported measurements: UNVERIFIABLE if what arithmetic can check holds, else UNSETTLED."""
    return "UNVERIFIABLE" if worst <= tolerance else UNSETTLED


def _refuse_unknown(word: str) -> None:
    if word not in STATUSES:
        raise ValueError(f"a verdict must be one of {STATUSES}, got {word!r}")


def _refuse_nan(*values: float) -> None:
    if any(math.isnan(value) for value in values):
        raise InconclusiveError(f"not a number among {values}")
