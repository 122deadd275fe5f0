"""Refinement on fixed ladders of resolutions: results depend only on the rung that was reached.

A tolerance decides how many rungs are used, never their positions. So a tighter tolerance gives the same
numbers if the same rung suffices, and otherwise an interval inside the earlier one.
"""

import dataclasses
import math
from collections.abc import Callable

from dpmech.exceptions import InvalidParameterError, NumericalError


@dataclasses.dataclass(frozen=True)
class Reached:
    """The intersection of the intervals of all rungs up to the last one.

    Attributes:
        lower: the largest lower bound.
        upper: the smallest upper bound.
        resolution: the last rung.
        met: whether the gap met the goal; if not, the ladder ended.
    """

    lower: float
    upper: float
    resolution: float
    met: bool


@dataclasses.dataclass(frozen=True)
class Settled:
    """The rung at which upper bounds stopped improving.

    Attributes:
        upper: the smallest bound.
        resolution: the last rung.
        before: the rung before it; the same if only one was tried.
        gain: by how much, in log, the last rung lowered the bound; infinite if only one was tried.
    """

    upper: float
    resolution: float
    before: float
    gain: float


@dataclasses.dataclass(frozen=True)
class Ladder:
    """A fixed sequence of resolutions, the coarsest first.

    Args:
        rungs: strictly monotone, positive and finite: decreasing steps, or increasing numbers of nodes.

    Raises:
        InvalidParameterError: if the rungs do not satisfy this.

    Examples:
        >>> Ladder.down(1.0, 0.2)
        Ladder(rungs=(1.0, 0.5, 0.25, 0.2))
        >>> Ladder((1.0, 0.5)).climb(lambda h: (2.0 - h, 2.0 + h), relative_gap, goal=0.6)
        Reached(lower=1.5, upper=2.5, resolution=0.5, met=True)
    """

    rungs: tuple[float, ...]

    def __post_init__(self) -> None:
        pairs = list(zip(self.rungs, self.rungs[1:], strict=False))
        falls, grows = all(a > b for a, b in pairs), all(a < b for a, b in pairs)
        positive = all(0.0 < rung < math.inf for rung in self.rungs)
        if not (self.rungs and positive and (falls or grows)):
            raise InvalidParameterError("rungs", self.rungs, "strictly monotone positive numbers")

    @classmethod
    def down(cls, first: float, last: float) -> "Ladder":
        """`first`, half of it, and so on, down to `last`; `last` alone if it is not below `first`."""
        rungs = []
        rung = first
        while rung > last:
            rungs.append(rung)
            rung *= 0.5
        return cls((*rungs, last))

    @classmethod
    def up(cls, first: float, last: float) -> "Ladder":
        """`first`, twice it, and so on, up to at most `last`; contains at least `first`."""
        rungs = [first]
        while 2.0 * rungs[-1] <= last:
            rungs.append(2.0 * rungs[-1])
        return cls(tuple(rungs))

    def within(self, goal: float) -> float:
        """The first rung that is at most the goal; the smallest rung if there is none.

        Examples:
            >>> Ladder((0.5, 0.2, 0.1)).within(0.3)
            0.2
        """
        return max((rung for rung in self.rungs if rung <= goal), default=min(self.rungs))

    def climb(
        self,
        interval: Callable[[float], tuple[float, float]],
        gap: Callable[[float, float], float],
        *,
        goal: float,
    ) -> Reached:
        """Evaluate rung after rung until the gap between the bounds is at most the goal, or the ladder ends.

        Args:
            interval: bounds on the value, at a resolution.
            gap: distance of the bounds, in the measure of the goal.
            goal: >= 0.

        Raises:
            NumericalError: if intervals are disjoint, or an end is NaN.
        """
        lower, upper = -math.inf, math.inf
        for rung in self.rungs:
            least, most = (_number(end, rung) for end in interval(rung))
            lower, upper = max(lower, least), min(upper, most)
            if not lower <= upper:
                raise NumericalError(
                    f"bounds at resolution {rung!r}, [{least!r}, {most!r}], leave nothing of those before it"
                )
            if gap(lower, upper) <= goal:
                return Reached(lower, upper, rung, met=True)
        return Reached(lower, upper, rung, met=False)

    def leap(
        self,
        interval: Callable[[float], tuple[float, float]],
        gap: Callable[[float, float], float],
        *,
        goal: float,
        order: float,
        patience: int = 1,
    ) -> Reached:
        """Like `climb`, but skips rungs that cannot meet the goal, and returns the bounds of a single rung.

        Where the gap falls like the resolution to the power `order`, the gap of one rung predicts which rung
        may suffice. The ladder ends at a rung that raises NumericalError, except for the first, and after
        `patience` consecutive rungs that bring the bounds no closer.

        Args:
            interval: bounds on the value, at a resolution.
            gap: distance of the bounds, in the measure of the goal.
            goal: >= 0.
            order: > 0.
            patience: number of rungs without a gain of a fifth that end the ladder, >= 1.

        Raises:
            NumericalError: if an end is NaN, lower > upper, or the first rung fails.

        Examples:
            >>> asked = []
            >>> def interval(h):
            ...     asked.append(h)
            ...     return 1.0 - h * h, 1.0
            >>> Ladder.down(0.5, 1e-3).leap(interval, relative_gap, goal=1e-3, order=2.0)
            Reached(lower=0.9990234375, upper=1.0, resolution=0.03125, met=True)
            >>> asked
            [0.5, 0.03125]
        """
        found: Reached | None = None
        place = reached = stalled = 0
        last = len(self.rungs) - 1
        while True:
            rung = self.rungs[place]
            try:
                lower, upper = (_number(end, rung) for end in interval(rung))
            except NumericalError:
                if found is None:
                    raise
                if place - reached <= 1:
                    return found
                last, place = place - 1, (reached + place) // 2
                continue
            if not lower <= upper:
                raise NumericalError(
                    f"bounds at resolution {rung!r}, [{lower!r}, {upper!r}], are no interval"
                )
            before = math.inf if found is None else gap(found.lower, found.upper)
            left = gap(lower, upper)
            stalled = stalled + 1 if 0.8 * before < left < 0.5 and left > goal else 0
            if found is None or not (stalled and before <= left):
                found = Reached(lower, upper, rung, met=left <= goal)
            if found.met or place == last or stalled == patience:
                return found
            reached = place
            # A rung that is up to half a rung coarser than predicted is still tried.
            wanted = rung * (goal / left) ** (1.0 / order) if goal > 0.0 and left < math.inf else rung
            place += 1
            while not stalled and place < last and self.rungs[place] > 1.5 * wanted and left < 0.9:
                place += 1

    def settle(
        self,
        upper: Callable[[float], float],
        *,
        goal: float,
        stop: Callable[[float], bool] = lambda _: False,
    ) -> Settled:
        """Evaluate rung after rung until one lowers an upper bound by no more than the goal, in log.

        Args:
            upper: an upper bound at a resolution, >= 0.
            goal: >= 0.
            stop: called with the smallest bound before each further rung; True ends the search.

        Raises:
            NumericalError: if a bound is NaN.
        """
        best = _number(upper(self.rungs[0]), self.rungs[0])
        before = last = self.rungs[0]
        gain = math.inf
        for rung in self.rungs[1:]:
            if stop(best):
                break
            before, last = last, rung
            found = _number(upper(rung), rung)
            gain = math.log(best / found) if 0.0 < found < best else 0.0
            best = min(best, found)
            if gain <= goal:
                break
        return Settled(best, last, before, gain)


def _number(value: float, resolution: float) -> float:
    if math.isnan(value):
        raise NumericalError(f"the bound at resolution {resolution!r} is not a number")
    return value


def relative_gap(lower: float, upper: float) -> float:
    """(upper - lower) / upper; 0 where both are 0."""
    return 0.0 if upper == lower else (upper - lower) / upper


def log_gap(lower: float, upper: float) -> float:
    """Log of upper / lower, for ends >= 0; 0 where both are 0."""
    if upper == lower:
        return 0.0
    return math.log(upper / lower) if lower > 0.0 else math.inf


def rung_below(goal: float, anchor: float) -> float:
    """The largest anchor 2^k that is at most `goal`, both > 0; goals below 1e-250 are raised to that."""
    (part, power), (own, start) = math.frexp(max(goal, 1e-250)), math.frexp(anchor)
    return math.ldexp(anchor, power - start - (part < own))
