"""A work budget: the cost of a computation is counted before it starts, and refused if it exceeds the budget.

Times are those of one core, with a margin. They decide what is started, and enter no proof. No clock is used,
so that the same file is accepted or refused on every machine.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Iterator

from dpmech.exceptions import WorkLimitError


@dataclasses.dataclass(frozen=True)
class Work:
    """The cost of a computation.

    Args:
        seconds: on one core, >= 0; infinite if it would not end.
        memory: peak memory in bytes, >= 0.
    """

    seconds: float
    memory: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """Sequential work: times are added, and the larger of the peaks counts."""
        return Work(self.seconds + other.seconds, max(self.memory, other.memory))

    def __mul__(self, times: float) -> "Work":
        """The same work, several times."""
        return Work(self.seconds * times, self.memory)

    def within(self, seconds: float, memory: float) -> bool:
        """Whether it is within the limits; NaN is not."""
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
    """A context in which `spend` refuses work beyond a total of `seconds`, or beyond `memory` bytes at once.

    A nested block also counts towards the budget of the enclosing one.
    """
    token = _METER.set(_Meter(seconds, memory, _METER.get()))
    try:
        yield
    finally:
        _METER.reset(token)


def spend(seconds: float, memory: float = 0.0, *, what: str) -> None:
    """Announce work before it starts; without a budget this has no effect.

    Args:
        seconds: an estimate on the high side.
        memory: peak memory in bytes.
        what: description for the message.

    Raises:
        WorkLimitError: if it exceeds the remaining budget.
    """
    meter = _METER.get()
    if meter is not None:
        meter.spend(Work(seconds if not math.isnan(seconds) else math.inf, memory), what)
