"""What every format tells: files with their checks, and files that could not be verified."""

import dataclasses
from collections.abc import Mapping, Sequence

from dpmech.cli.words import plain
from dpmech.free_text import printable
from dpmech.verifying import Check, Question, Verification

__all__ = ["UNREAD", "Verdicts", "exit_code", "name_of", "shown"]

# The name of what went wrong where a file could not be verified at all.
UNREAD = "not verified"


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """What `dpmech verify` found.

    Attributes:
        found: one verification a file.
        unread: why others were not verified, by file.
    """

    found: Sequence[Verification]
    unread: Mapping[str, str]

    def failures(self, of: Verification) -> list[Check]:
        """The checks of a file that do not hold."""
        return [check for check in of.checks if not check.ok]


def exit_code(found: Sequence[Verification]) -> int:
    """0 if all hold, 1 if one is refused, 3 if nothing was found wrong, but a claim was not checked."""
    failed = [one for one in found if not one.ok]
    return 0 if not failed else 3 if all(one.undecided for one in failed) else 1


def name_of(check: Check) -> str:
    """The name of a check, which of the two questions it is about, and whether it was left open."""
    about = check.question
    of_two = about in (Question.CLAIM, Question.RUN) and check.name != about.value
    name = f"{about.value}: {check.name}" if of_two else check.name
    return f"{name} not checked" if check.undecided else name


def shown(text: str) -> str:
    """Text from a file, or its name, on one line and without characters that no format can hold."""
    return printable(plain(text)).replace("\n", "\\n")
