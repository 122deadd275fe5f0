r"""Renyi accounting: an upper bound on both directions, never a lower one.

For the Poisson-subsampled Gaussian the REMOVE divergence is the larger one at every order (Mironov,
Talwar and Zhang 2019, Theorem 5). That of order a is log E_Q r^a / (a - 1), r the density of the mixture
over that of the noise: a moment of `poisson.transform`, with a proved error. Every order gives a bound; the
best one is searched for among all real ones above 1.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.balls_in_bins import log_tail_factor
from dpmech.accounting.gaussian import gaussian_sigma
from dpmech.accounting.poisson import Loss, transform
from dpmech.accounting.renyi_orders import delta_at, epsilon_at
from dpmech.accounting.sigma_search import smallest_sigma
from dpmech.exceptions import NumericalError
from dpmech.numerics import BOUND, UNIT, Bounds, Provenance, next_up, quotient_down, spend

__all__ = ["RenyiAccountant"]

# Orders less one between which the best is looked for, and how closely, in log.
_LEAST, _MOST, _COARSE = 0.02, 1e6, 14
_RESOLUTION = 0.02
# What a moment may lack, of itself.
_SHARE = 1e-14


class RenyiAccountant(Accountant):
    """RDP of `steps` Gaussian releases, each Poisson-sampled with `sampling_prob` (1: not sampled)."""

    def __init__(self, sensitivity: Bounds, sampling_prob: float = 1.0, steps: int = 1) -> None:
        self.sensitivity = sensitivity
        self.sampling_prob = sampling_prob
        self.steps = steps
        self.by = Provenance("rdp.releases", {"q": sampling_prob, "releases": steps})
        self.guarantee = BOUND

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """An upper bound on delta; the lower end is 0."""
        divergence = self._divergence(sigma)

        def log_delta(order: float) -> float:
            return (order - 1.0) * divergence(order) + log_tail_factor(order, eps)

        order = self._best(log_delta)
        value = 1.0 if order is None else delta_at(order, divergence(order), eps)
        return Bounds(0.0, self._checked(value, sigma), self.guarantee, self.by)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """An upper bound on eps; the lower end is 0."""
        divergence = self._divergence(sigma)

        def eps(order: float) -> float:
            return divergence(order) + (log_tail_factor(order, 0.0) - math.log(delta)) / (order - 1.0)

        order = self._best(eps)
        if order is None:
            raise NumericalError(f"{self.method} has no divergence within float64 at sigma={sigma!r}")
        value = epsilon_at(order, divergence(order), delta)
        return Bounds(0.0, self._checked(value, sigma), self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that RDP certifies, within rtol."""
        # As many releases as there are, by the central limit theorem.
        mu = 1.0 / gaussian_sigma(eps, delta)
        start = self.sensitivity.upper / math.sqrt(math.log1p((mu / self.sampling_prob) ** 2 / self.steps))
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.1, progress=progress)

    def _divergence(self, sigma: float) -> Callable[[float], float]:
        """Renyi divergence of all releases at an order > 1, rounded up; infinite where float64 has none."""
        multiplier = quotient_down(sigma, self.sensitivity.upper)
        spend(2.0 if self.sampling_prob < 1.0 else 0.1, 1e8, what="Renyi divergences at all orders")

        @functools.cache
        def found(order: float) -> float:
            if self.sampling_prob == 1.0:
                value = self.steps * (0.5 * order / multiplier / multiplier)
            else:
                loss = Loss(self.sampling_prob, multiplier, remove=True)
                whole = (-math.inf, math.inf)
                try:
                    one = transform(loss, order, whole, frequency=0.0, share=_SHARE)
                except NumericalError:
                    return math.inf
                value = self.steps * max(one.log_ends[1], 0.0) / (order - 1.0)
            return next_up(value * (1.0 + 8.0 * UNIT))

        return found

    @staticmethod
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

    def _checked(self, value: float, sigma: float) -> float:
        if not math.isfinite(value) or value < 0.0:
            raise NumericalError(f"{self.method} returned {value!r} at sigma={sigma!r}")
        return value
