"""Curves from any upper bound on delta: where to ask it, so that the hull of what it says loses little."""

import math
from collections.abc import Callable

import numpy as np

from dpmech.accounting.profiles.parts import Curve, Nodes
from dpmech.exceptions import NumericalError
from dpmech.numerics import Bounds, FloatArray

__all__ = ["LEAST_DELTA", "curve_of_bounds", "placed_nodes"]

# Below this delta a curve need not be followed.
LEAST_DELTA = 1e-12
# Where nodes are looked for first.
_COARSE = 24
_SMALLEST_EPS, _LARGEST_EPS = 1e-4, 1e4


def placed_nodes(eps: FloatArray, logs: FloatArray, hull: float, steepest: float = math.inf) -> FloatArray:
    """Nodes between which the line in e^eps is at most a factor 1 + hull above a curve, about.

    Over a step h of eps it is above by h^2 / 8 (l'^2 + l'' - l'), l the log of the curve; l'' < 0 is left
    out.

    Args:
        eps: where the curve was looked at, shape (m,), increasing.
        logs: its logs there, about.
        hull: > 0.
        steepest: a slope l' beyond which none counts: in a composition under a tilt theta a loss that is
            split over h weighs h^2 / 8 (theta (theta + 1)) times its own share, however steep its curve is
            there.
    """
    if eps.size < 2:
        return eps
    slopes = np.clip(-np.gradient(logs, eps), 0.0, steepest)
    density = np.sqrt(np.maximum(slopes**2 + slopes, 0.02) / (8.0 * hull))
    steps = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(eps))])
    count = max(1, math.ceil(float(steps[-1])))
    return np.interp(np.linspace(0.0, steps[-1], count + 1), steps, eps)


def curve_of_bounds(
    bounds: Callable[[float], Bounds], hull: float, ceiling: Callable[[float], float]
) -> Curve:
    """The curve of a mechanism whose accountant gives the larger direction alone: it bounds both from above.

    Args:
        bounds: on delta at eps >= 0.
        hull: by how much, relative, the hull may be above the curve, about.
        ceiling: a cheap upper bound on delta, for where the curve ends and beyond.
    """

    def log_delta(eps: float) -> float:
        return math.log(max(bounds(eps).upper, 1e-300))

    low, high = _SMALLEST_EPS, _SMALLEST_EPS
    while high < _LARGEST_EPS and ceiling(high) > LEAST_DELTA:
        high *= 2.0
    coarse = [low]
    logs = [log_delta(low)]
    width = 0.25 * min(high, 1.0)
    while logs[-1] > math.log(LEAST_DELTA) and coarse[-1] < high:
        at = min(coarse[-1] + width, high)
        coarse.append(at)
        logs.append(log_delta(at))
        fall = max((logs[-2] - logs[-1]) / (coarse[-1] - coarse[-2]), 1e-3)
        width = min(1.2 / fall, 2.0 * width)
        if len(coarse) > 40 * _COARSE:
            raise NumericalError("the bound on delta does not fall: no curve can be made of it")
    nodes = placed_nodes(np.array(coarse), np.array(logs), hull)
    found = [bounds(float(eps)) for eps in nodes]
    lower, upper = (np.array([getattr(one, end) for one in found]) for end in ("lower", "upper"))
    return Curve.of_larger(Nodes.of(nodes, lower, upper))
