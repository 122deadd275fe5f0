"""What a check returns, and how checks register themselves."""

import dataclasses
from collections.abc import Callable

STATUSES = ("CONFIRMED", "CONDITIONAL", "REFUTED", "UNVERIFIABLE")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of one statement.

    Args:
        status: CONFIRMED, CONDITIONAL (true under a stated condition), REFUTED, or UNVERIFIABLE.
        method: how it was checked.
        cases: how many cases were tried.
        worst_margin: the largest deviation seen, in the unit that `method` names.
        note: the condition, or the smallest counterexample.
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
    run: Callable[[], Verdict]
    full: bool


CHECKS: dict[str, Check] = {}


def statement(
    identifier: str, *, paper: str, expected: str = "CONFIRMED", full: bool = False
) -> Callable[[Callable[[], Verdict]], Callable[[], Verdict]]:
    """Register a check; `full` ones run with --full only."""

    def register(function: Callable[[], Verdict]) -> Callable[[], Verdict]:
        if identifier in CHECKS:
            raise ValueError(f"{identifier} is registered twice")
        CHECKS[identifier] = Check(identifier, paper, expected, function, full)
        return function

    return register


def judged(worst: float, tolerance: float) -> str:
    """CONFIRMED if the worst deviation is within the tolerance, else REFUTED."""
    return "CONFIRMED" if worst <= tolerance else "REFUTED"
