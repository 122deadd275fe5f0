"""Roots on the safe side: a bracket is narrowed by probes, and its safe end is returned.

All searches that enter a guarantee use this module. (scipy.optimize.brentq is used for starting points.)
"""

import dataclasses
import math
from collections.abc import Callable

from dpmech.exceptions import NumericalError

_MAX_PROBES = 60
_MAX_HALVINGS = 200

_LARGEST = math.log(1e15)


def signed(value: float, *, safe: bool) -> float:
    """The value with the sign that the comparison of delta itself determined."""
    return max(value, 0.0) if safe else min(value, -1e-15)


def safe_root(excess: Callable[[float], float], start: float, *, step: float, resolution: float) -> float:
    """A point where `excess` is >= 0, at most `resolution` above one where it is negative.

    A safeguarded secant method: it aims half the resolution above the root, and never returns an unsafe
    point.

    Args:
        excess: increasing; >= 0 where safe.
        start: first guess.
        step: expected error of the guess; doubled until the root is bracketed.
        resolution: > 0.

    Raises:
        OverflowError: if no safe point lies below log 1e15.
        NumericalError: after 60 probes.
    """
    narrow = _Bracket(excess, *_bracket(excess, start, step))
    for probe in range(_MAX_PROBES):
        if narrow.width <= resolution:
            return narrow.high
        slope = narrow.slope
        narrow.probe(resolution, by_secant=probe % 4 != 3)
        if narrow.width > resolution and 0.0 <= narrow.newest < resolution * max(slope, 0.1):
            # Close from above: a probe just below ends the search.
            narrow.at(narrow.high - 0.9 * resolution)
    raise NumericalError(f"no root found within {_MAX_PROBES} probes: the bound is not monotone enough")


def bisect_boundary(
    above: Callable[[float], bool], low: float, high: float, *, safe: bool, rtol: float = 1e-14
) -> float:
    """The point where `above` turns from True (at low) to False (at high), within rtol.

    `above` is False at the result if `safe`, otherwise True. A comparison has a sign only: there is no slope
    for a secant, and every probe halves the bracket.
    """

    def excess(point: float) -> float:
        return -math.inf if above(point) else math.inf

    narrow = _Bracket(excess, low, high, -math.inf, math.inf)
    for _ in range(_MAX_HALVINGS):
        if narrow.width <= rtol * narrow.high or not narrow.low < narrow.middle < narrow.high:
            break
        narrow.probe(0.0, by_secant=False)
    return narrow.high if safe else narrow.low


@dataclasses.dataclass
class _Bracket:
    """Two points around the root of an increasing function: unsafe at `low`, safe at `high`."""

    excess: Callable[[float], float]
    low: float
    high: float
    low_value: float
    high_value: float
    newest: float = math.nan

    @property
    def width(self) -> float:
        return self.high - self.low

    @property
    def middle(self) -> float:
        return 0.5 * (self.low + self.high)

    @property
    def slope(self) -> float:
        return (self.high_value - self.low_value) / self.width

    def probe(self, resolution: float, *, by_secant: bool) -> None:
        """Probe the middle, or half the resolution above the root of the secant, away from both ends."""
        point = self.middle
        if by_secant and 0.0 < self.slope < math.inf:
            point = self.low - self.low_value / self.slope + 0.5 * resolution
        margin = 0.4 * resolution
        self.at(min(max(point, self.low + margin), self.high - margin))

    def at(self, point: float) -> None:
        """Probe an inner point, which becomes an end."""
        self.newest = _number(self.excess(point), point)
        if self.newest < 0.0:
            self.low, self.low_value = point, self.newest
        else:
            self.high, self.high_value = point, self.newest


def _bracket(
    excess: Callable[[float], float], start: float, step: float
) -> tuple[float, float, float, float]:
    """Points on both sides of the root, and the excess there, by doubling steps."""
    here, value = start, _number(excess(start), start)
    while True:
        other = here - step if value >= 0.0 else here + step
        if other > _LARGEST:
            raise OverflowError
        other_value = _number(excess(other), other)
        if (other_value >= 0.0) != (value >= 0.0):
            return (other, here, other_value, value) if value >= 0.0 else (here, other, value, other_value)
        here, value = other, other_value
        step *= 2.0


def _number(value: float, point: float) -> float:
    """The value; raises on NaN, which gives no side and must not count as safe."""
    if math.isnan(value):
        raise NumericalError(f"the bound at {point!r} is not a number")
    return value
