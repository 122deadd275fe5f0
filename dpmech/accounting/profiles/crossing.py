"""Where a bound on delta passes a given delta: an eps on the side that was asked for."""

import math
from collections.abc import Callable

__all__ = ["Bound", "crossing"]

# A bound on delta at any eps.
Bound = Callable[[float], float]

# How closely an eps is searched for, and with how many looks.
_RESOLUTION, _PROBES = 3e-6, 60
_LARGEST_EPS = 1e6
_NOTHING = 1e-300


def crossing(bound: Bound, delta: float, near: float, *, safe: bool) -> float:
    """Where a bound passes delta: on the far side if `safe`, else on the near one; infinite if nowhere.

    Every eps > 0 that is returned was looked at. A bound may say little far from where it was laid out.
    """
    if safe and bound(0.0) <= delta:
        return 0.0
    low, high, step = 0.0, max(near, 1e-9), 0.01
    if bound(high) > delta:
        while bound(high) > delta:
            low, high, step = high, high * (1.0 + step) + 1e-9, 2.0 * step
            if high > _LARGEST_EPS:
                return math.inf if safe else low
    else:
        while high > 0.0:
            low, step = high * max(1.0 - step, 0.0), 2.0 * step
            if low == 0.0 or bound(low) > delta:
                break
            high = low
        if low == 0.0 and not safe and bound(low) <= delta:
            return 0.0
    return _narrowed(lambda eps: math.log(max(bound(eps), _NOTHING) / delta), low, high)[1 if safe else 0]


def _narrowed(excess: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Two points around a root of a falling function, > 0 at the first one and <= 0 at the second.

    Secants, aimed a little to either side by turns; every third probe halves the bracket.
    """
    above, below = excess(low), excess(high)
    for probe in range(_PROBES):
        width = high - low
        if width <= _RESOLUTION * high:
            break
        at = low + 0.5 * width
        if probe % 3 != 2 and math.isfinite(above - below) and above > below:
            aside = 0.4 * _RESOLUTION * high
            root = low + width * above / (above - below) + (aside if probe % 3 == 0 else -aside)
            at = min(max(root, low + 0.02 * aside), high - 0.02 * aside)
        value = excess(at)
        if value > 0.0:
            low, above = at, value
        else:
            high, below = at, value
    return low, high
