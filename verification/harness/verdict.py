"""What a check returns, how checks register themselves, and how margins become a status."""

import dataclasses
import math
from collections.abc import Callable

STATUSES = ("CONFIRMED", "CONDITIONAL", "REFUTED", "UNVERIFIABLE")


class InconclusiveError(RuntimeError):
    """Neither the printed statement nor its correction came out as it should: there is no verdict."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of one statement.

    Args:
        status: CONFIRMED, CONDITIONAL (true under a stated condition), REFUTED, or UNVERIFIABLE.
        method: how it was checked.
        cases: how many cases were tried.
        worst_margin: the largest deviation seen, in the unit that `method` names.
        note: the condition, the smallest counterexample, or why it cannot be verified.
    """

    status: str
    method: str
    cases: int
    worst_margin: float
    note: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {STATUSES}, got {self.status!r}")


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
        if expected not in STATUSES:
            raise ValueError(f"expected must be one of {STATUSES}, got {expected!r}")
        CHECKS[identifier] = Check(identifier, paper, expected, function, full)
        return function

    return register


def judged(worst: float, tolerance: float) -> str:
    """CONFIRMED if the worst deviation is within the tolerance, else REFUTED."""
    return "CONFIRMED" if worst <= tolerance else "REFUTED"


def judged_condition(inside: float, outside: float, tolerance: float) -> str:
    """For a statement true under a condition.

    Args:
        inside: its worst deviation where the condition holds.
        outside: its deviation at a witness where the condition fails.
        tolerance: what counts as agreement.

    Returns:
        CONDITIONAL if it holds inside and fails outside, CONFIRMED if it holds in both (the condition is
        not needed), REFUTED if it fails inside.
    """
    _refuse_nan(inside, outside)
    if inside > tolerance:
        return "REFUTED"
    return "CONDITIONAL" if outside > tolerance else "CONFIRMED"


def judged_erratum(printed: float, corrected: float, tolerance: float) -> str:
    """For a misprint or a false statement that comes with its correction.

    Args:
        printed: the worst deviation of the statement as printed.
        corrected: the worst deviation of the corrected form.
        tolerance: what counts as agreement.

    Returns:
        REFUTED if the printed form fails, CONFIRMED if it holds.

    Raises:
        InconclusiveError: if the correction does not hold either.
    """
    _refuse_nan(printed, corrected)
    if corrected > tolerance:
        raise InconclusiveError(f"the corrected form is off by {corrected:.3g}, tolerance {tolerance:.3g}")
    return "REFUTED" if printed > tolerance else "CONFIRMED"


def judged_arithmetic(worst: float, tolerance: float) -> str:
    """For reported measurements: UNVERIFIABLE if what arithmetic can check holds, else REFUTED."""
    return "UNVERIFIABLE" if worst <= tolerance else "REFUTED"


def _refuse_nan(*values: float) -> None:
    if any(math.isnan(value) for value in values):
        raise InconclusiveError(f"not a number among {values}")
