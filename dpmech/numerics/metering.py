"""A budget of work: what a computation is about to cost is counted first, and refused beyond the budget.

Times are those of one core, with a margin; they steer what is started, and prove nothing. Nothing looks at a
clock, so that the same file is accepted or refused on every machine.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Iterator

from dpmech.exceptions import WorkLimitError


@dataclasses.dataclass(frozen=True)
class Work:
    """What a computation costs.

    Args:
        seconds: of one core, >= 0; infinite where it would not end.
        memory: bytes at the peak, >= 0.
    """

    seconds: float
    memory: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """One after the other: times add up, of the peaks the higher one counts."""
        return Work(self.seconds + other.seconds, max(self.memory, other.memory))

    def __mul__(self, times: float) -> "Work":
        """The same work several times."""
        return Work(self.seconds * times, self.memory)

    def within(self, seconds: float, memory: float) -> bool:
        """Whether it fits; what is not a number does not."""
        return self.seconds <= seconds and self.memory <= memory


class _Meter:
    def __init__(self, seconds: float, memory: float, outer: "_Meter | None") -> None:
        self.seconds = self.left = seconds
        self.memory = memory
        self.outer = outer

    def spend(self, work: Work, what: str) -> None:
        if not work.within(self.left, self.memory):
            raise WorkLimitError(
                what, (self.seconds - self.left + work.seconds, work.memory), (self.seconds, self.memory)
            )
        if self.outer is not None:
            self.outer.spend(work, what)
        self.left -= work.seconds


_METER: contextvars.ContextVar[_Meter | None] = contextvars.ContextVar("dpmech work", default=None)


@contextlib.contextmanager
def metered(seconds: float, memory: float) -> Iterator[None]:
    """Inside, `spend` refuses what goes beyond so many seconds altogether, or so many bytes at once.

    A block inside another one draws on both budgets.
    """
    token = _METER.set(_Meter(seconds, memory, _METER.get()))
    try:
        yield
    finally:
        _METER.reset(token)


def spend(seconds: float, memory: float = 0.0, *, what: str) -> None:
    """Announce work before it is begun; nothing happens where no budget was set.

    Args:
        seconds: an estimate on the high side.
        memory: bytes, at its peak.
        what: in words, for the message.

    Raises:
        WorkLimitError: if it does not fit into what is left.
    """
    meter = _METER.get()
    if meter is not None:
        meter.spend(Work(seconds if not math.isnan(seconds) else math.inf, memory), what)
