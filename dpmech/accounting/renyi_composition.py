"""Releases of several kinds composed by moments: their Renyi divergences add up at every order."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins import log_tail_factor
from dpmech.accounting.renyi_orders import delta_at, epsilon_at
from dpmech.exceptions import NumericalError
from dpmech.numerics import sum_up

__all__ = ["Divergence", "RenyiComposition"]

# A Renyi divergence at an order > 1, rounded up; infinite where float64 has none.
Divergence = Callable[[float], float]

# Orders less one between which the best is looked for, and how closely, in log.
_LEAST, _MOST, _COARSE = 0.02, 1e6, 14
_RESOLUTION = 0.02


class RenyiComposition:
    """Upper bounds on what independent releases add up to, from the best order.

    Args:
        divergences: of each release, in the worse direction; at least one.
    """

    def __init__(self, divergences: Sequence[Divergence]) -> None:
        self.divergences = tuple(divergences)

    def divergence(self, order: float) -> float:
        """Of all releases together, rounded up."""
        values = [one(order) for one in self.divergences]
        return sum_up(values) if all(map(math.isfinite, values)) else math.inf

    def delta(self, eps: float) -> float:
        """An upper bound on delta at eps >= 0; 1 where no order has a finite divergence."""

        def log_delta(order: float) -> float:
            return (order - 1.0) * self.divergence(order) + log_tail_factor(order, eps)

        order = _best(log_delta)
        return 1.0 if order is None else delta_at(order, self.divergence(order), eps)

    def epsilon(self, delta: float) -> float:
        """An upper bound on eps at delta.

        Raises:
            NumericalError: where no order has a finite divergence.
        """

        def eps(order: float) -> float:
            return self.divergence(order) + (log_tail_factor(order, 0.0) - math.log(delta)) / (order - 1.0)

        order = _best(eps)
        if order is None:
            raise NumericalError("the Renyi divergences are within float64 at no order")
        return epsilon_at(order, self.divergence(order), delta)


def _best(value: Callable[[float], float]) -> float | None:
    """The order where a function of it is least; None where it is nowhere finite."""

    def at(log_excess: float) -> float:
        found = value(1.0 + math.exp(log_excess))
        return found if not math.isnan(found) else math.inf

    grid = np.linspace(math.log(_LEAST), math.log(_MOST), _COARSE)
    values = [at(float(x)) for x in grid]
    place = int(np.argmin(values))
    if not math.isfinite(values[place]):
        return None
    ends = float(grid[max(place - 1, 0)]), float(grid[min(place + 1, _COARSE - 1)])
    near = scipy.optimize.minimize_scalar(
        lambda x: min(at(float(x)), 1e300), bounds=ends, method="bounded", options={"xatol": _RESOLUTION}
    )
    best = float(near.x) if near.fun <= values[place] else float(grid[place])
    return 1.0 + math.exp(best)
