"""Roots that end on the safe side."""

import math
from collections.abc import Callable

from dpmech.exceptions import NumericalError

__all__ = ["bisect_boundary", "safe_root", "signed"]

_MAX_PROBES = 60

_LARGEST = math.log(1e15)


def signed(value: float, *, safe: bool) -> float:
    """The value with the sign that the comparison of delta itself decided."""
    return max(value, 0.0) if safe else min(value, -1e-15)


def safe_root(excess: Callable[[float], float], start: float, *, step: float, resolution: float) -> float:
    """A point where `excess` is >= 0, at most `resolution` above one where it is negative.

    A safeguarded secant: it aims half the resolution above the root, and never ends on an unsafe point.

    Args:
        excess: increasing; >= 0 where safe.
        start: first guess.
        step: how far off the guess is expected to be; doubled until the root is bracketed.
        resolution: > 0.

    Raises:
        OverflowError: if no safe point lies below log 1e15.
        NumericalError: after 60 probes.
    """
    low, high, low_value, high_value = _bracket(excess, start, step)
    for probe in range(_MAX_PROBES):
        if high - low <= resolution:
            return high
        slope = (high_value - low_value) / (high - low)
        middle = 0.5 * (low + high)
        if probe % 4 != 3 and 0.0 < slope < math.inf:
            middle = low - low_value / slope + 0.5 * resolution
        margin = 0.4 * resolution
        middle = min(max(middle, low + margin), high - margin)
        value = excess(middle)
        if value < 0.0:
            low, low_value = middle, value
            continue
        high, high_value = middle, value
        if high - low > resolution and value < resolution * max(slope, 0.1):
            # Close from above: a probe just below closes the bracket.
            below = high - 0.9 * resolution
            value = excess(below)
            if value < 0.0:
                low, low_value = below, value
            else:
                high, high_value = below, value
    raise NumericalError(f"no root found within {_MAX_PROBES} probes: the bound is not monotone enough")


def _bracket(
    excess: Callable[[float], float], start: float, step: float
) -> tuple[float, float, float, float]:
    """Points on both sides of the root, and the excess there, by doubling steps."""
    here, value = start, excess(start)
    while True:
        other = here - step if value >= 0.0 else here + step
        if other > _LARGEST:
            raise OverflowError
        other_value = excess(other)
        if (other_value >= 0.0) != (value >= 0.0):
            return (other, here, other_value, value) if value >= 0.0 else (here, other, value, other_value)
        here, value = other, other_value
        step *= 2.0


def bisect_boundary(
    above: Callable[[float], bool], low: float, high: float, *, safe: bool, rtol: float = 1e-14
) -> float:
    """The point where `above` turns from True (at low) to False (at high), within rtol."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high or high - low <= rtol * high:
            break
        if above(middle):
            low = middle
        else:
            high = middle
    return high if safe else low
