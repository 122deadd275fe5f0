"""What every format tells: files with their checks, and files that could not be verified."""

import dataclasses
from collections.abc import Mapping, Sequence

from dpmech.cli.words import plain
from dpmech.free_text import printable
from dpmech.verifying import Check, Verification

__all__ = ["UNREAD", "Verdicts", "shown"]

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


def shown(text: str) -> str:
    """Text from a file, or its name, on one line and without characters that no format can hold."""
    return printable(plain(text)).replace("\n", "\\n")
