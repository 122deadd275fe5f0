"""One direction of the pair of independent bins: bounds on delta and on eps, on lattices refined until they meet."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.independent.jumps import Jumps
from dpmech.accounting.balls_in_bins.independent.ratio import Lattice, Ratio
from dpmech.accounting.balls_in_bins.independent.total import LONGEST, Moments, TiltedTotal, tilted_total
from dpmech.accounting.sigma_search import gaussian_scale
from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, Ladder, Reached, bisect_boundary, log_gap, relative_gap, rung_below

__all__ = ["NOTHING", "Direction"]

# Below this delta no lattice is needed.
NOTHING = 1e-300
# How much of the tolerance a lattice may use up; the rest is for the search around it.
_OF_DELTA, _OF_EPS = 0.5, 0.25
_MOST_CELLS = 4_000_000
# Lattices on one ladder.
_RUNGS = 9
_FARTHEST = 38.0
# What is left out of a lattice may change delta by about this, in log.
_TAIL = -23.0
_LOOKS = 4
# An eps below which none is searched for.
_SMALLEST_EPS = 1e-9


@dataclasses.dataclass(frozen=True)
class _Sight:
    """What a rough look at one level found.

    Args:
        log_delta: about log delta; -infinity where it is below float64.
        theta: the tilt.
        spread: standard deviation of the tilted sum.
        reaches: exponents for the ends of the window.
        window: about its length.
    """

    log_delta: float
    theta: float
    spread: float
    reaches: tuple[float, float]
    window: float


@dataclasses.dataclass(frozen=True)
class Direction:
    """One direction at one sigma.

    Args:
        bins: b >= 2.
        least: kappa, the root of a diagonal entry of the Gram matrix, from below.
        most: the same from above.
        remove: which direction.
    """

    bins: int
    least: float
    most: float
    remove: bool

    def delta(self, eps: float, tolerance: float) -> tuple[float, float]:
        """Lower and upper delta, as close as `tolerance`, a change of sigma, asks for."""
        sight, ratio = self._look(eps)
        if sight.log_delta < math.log(NOTHING) - 2.0:
            return 0.0, self._ceiling(eps, sight, ratio)

        def interval(step: float) -> tuple[float, float]:
            lower, upper = self._totals(ratio, sight, step, self._level(eps))
            return self._lower(lower, ratio, eps), self._upper(upper, ratio, eps)

        goal = _OF_DELTA * tolerance * self.slope(eps, sight.log_delta)
        found = self._climb(interval, log_gap, goal, self._steps(ratio, sight, goal))
        return found.lower, found.upper

    def epsilon(self, delta: float, guess: float, tolerance: float) -> tuple[float, float]:
        """Lower and upper eps, as close as `tolerance`, relative, asks for.

        Args:
            delta: in (0, 1).
            guess: about the eps sought, > 0.
            tolerance: > 0.
        """
        sight, ratio = self._look(guess)

        def interval(step: float) -> tuple[float, float]:
            lower, upper = self._totals(ratio, sight, step, self._level(guess))
            most = _upper_boundary(lambda eps: self._upper(upper, ratio, eps) > delta, guess)
            least = _lower_boundary(lambda eps: self._lower(lower, ratio, eps) > delta, min(most, guess))
            return min(least, most), most

        goal = _OF_EPS * tolerance
        steps = self._steps(ratio, sight, goal * self.slope(guess, math.log(delta)))
        found = self._climb(interval, relative_gap, goal, steps)
        return found.lower, found.upper

    def log_delta(self, eps: float) -> float:
        """About log delta: an estimate, to start from."""
        return self._look(eps)[0].log_delta

    def ceiling(self, eps: float) -> float:
        """A cheap upper bound on delta: Chernoff's, and the closed form of jumps."""
        return self._ceiling(eps, *self._look(eps))

    @staticmethod
    def slope(eps: float, log_delta: float) -> float:
        """How fast log delta falls with log sigma for the plain Gaussian mechanism: sampled ones fall faster."""
        delta = math.exp(max(min(log_delta, -1e-9), -600.0))
        change = gaussian_scale(eps, delta * math.exp(-0.01)) - gaussian_scale(eps, delta)
        return max(0.05, 0.01 / max(change, 1e-6))

    def _level(self, eps: float) -> float:
        """The tau of V at eps, to 16 roundings."""
        signed_eps = eps if self.remove else -eps
        sign = 1.0 if self.remove else -1.0
        if Ratio(self.most, self.remove).centre:
            return sign * self.bins * math.expm1(signed_eps)
        return sign * self.bins * math.exp(signed_eps)

    def _look(self, eps: float) -> tuple[_Sight, Ratio]:
        """A rough look, and the law without tails that do not matter.

        Tails that add nothing to delta may still decide the tilt, as e^(theta a) grows so fast: the look is
        repeated without them.
        """
        ratio = self._cut(eps, _FARTHEST, _FARTHEST)
        sight = self._sight(ratio, eps)
        for _ in range(_LOOKS):
            tail = max(sight.log_delta, -680.0) + _TAIL
            far = -float(scipy.special.ndtri_exp(min(tail - math.log(self.bins), -2.0)))
            far_up = self.most - float(scipy.special.ndtri_exp(min(tail, -2.0)))
            ratio, before = self._cut(eps, far, max(far, far_up)), sight.log_delta
            sight = self._sight(ratio, eps)
            if sight.log_delta >= before - 2.0:
                break
        return sight, ratio

    def _cut(self, eps: float, far: float, far_up: float) -> Ratio:
        """The law on |x| <= far, upwards for REMOVE far_up; without what passes the level alone."""
        ratio = Ratio(self.most, self.remove)
        far, far_up = min(far, _FARTHEST), min(far_up if self.remove else far, _FARTHEST)
        log_total = math.log(self.bins) + (eps if self.remove else -eps)
        # A little farther than needed, so that rounding does not matter.
        edge = (log_total + 0.5 * self.most**2) / self.most
        edge += 1e-9 * (1.0 + abs(edge))
        if self.remove:
            return dataclasses.replace(ratio, low=-far, high=max(min(far_up, edge), 0.5 * self.most))
        return dataclasses.replace(ratio, low=max(-far, min(-edge, far - 1.0)), high=far)

    def _sight(self, ratio: Ratio, eps: float) -> _Sight:
        values, masses, _ = ratio.nodes(upwards=True)
        moments = Moments(values, masses, self.bins)
        tau = self._level(eps)
        theta = moments.tilt(tau)
        log_jumps = self._log_jumps(ratio, eps)
        if theta is None:
            return _Sight(log_jumps, 0.0, 1.0, (1.0, 1.0), 1.0)
        spread = math.sqrt(self.bins * moments.cumulants(theta)[2])
        log_sum = moments.log_excess(tau, theta) - math.log(self.bins) + (0.0 if self.remove else eps)
        reaches, window = moments.reaches(theta)
        return _Sight(float(np.logaddexp(log_sum, log_jumps)), theta, spread, reaches, window)

    def _log_jumps(self, ratio: Ratio, eps: float) -> float:
        if not self.remove:
            return -math.inf
        return math.log(Jumps(self.bins, self.most, ratio.high).bounds(math.log(self.bins) + eps)[1] / self.bins)

    def _steps(self, ratio: Ratio, sight: _Sight, goal: float) -> Ladder:
        """Steps whose lattices are likely to be apart by the goal, in log delta, and finer ones.

        A split adds h^2 / 6 to the variance of a value, in the mean, and a merger takes h^2 / 12 off.
        """
        sensitive = self.bins * (sight.theta**2 + sight.spread**-2)
        step = math.sqrt(8.0 * goal / sensitive)
        low, high = (float(end) for end in ratio.values(np.array([ratio.low, ratio.high])))
        finest = max((high - low) / _MOST_CELLS, sight.window / (0.7 * LONGEST))
        first = rung_below(max(min(step, 0.25 * (high - low)), finest), 1.0)
        last = max(first * 0.5**_RUNGS, rung_below(2.0 * finest, 1.0))
        return Ladder.down(max(first, last), last)

    def _totals(
        self, ratio: Ratio, sight: _Sight, step: float, tau: float
    ) -> tuple[TiltedTotal, TiltedTotal]:
        def tilted(lattice: Lattice, *, upper: bool) -> TiltedTotal:
            return tilted_total(lattice, self.bins, sight.theta, sight.reaches, upper=upper, least=tau)

        private = dataclasses.replace(ratio, spread=self.least)
        return tilted(private.lower(step), upper=False), tilted(ratio.upper(step), upper=True)

    def _upper(self, total: TiltedTotal, ratio: Ratio, eps: float) -> float:
        level = self._level(eps)
        excess = total.excess(level - 16.0 * UNIT * abs(level))
        return self._scaled_up(excess, ratio, eps)

    def _scaled_up(self, excess: float, ratio: Ratio, eps: float) -> float:
        """Delta from E (V - tau)_+ without what is above the values of the lattice, and that added."""
        if self.remove:
            jumps = Jumps(self.bins, ratio.spread, ratio.high).bounds(math.log(self.bins) + eps)[1]
            found = (excess + jumps) / self.bins
        else:
            # V - tau is b e^-eps at most.
            found = excess * math.exp(eps) / self.bins + self.bins * ratio.tail(-ratio.high)
        return min(1.0, found * (1.0 + 32.0 * UNIT))

    def _lower(self, total: TiltedTotal, ratio: Ratio, eps: float) -> float:
        level = self._level(eps)
        excess = total.excess(level + 16.0 * UNIT * abs(level))
        if self.remove:
            jumps = Jumps(self.bins, self.least, ratio.high).bounds(math.log(self.bins) + eps)[0]
            found = (excess + jumps) / self.bins
        else:
            found = excess * math.exp(eps) / self.bins
        found *= 1.0 - 32.0 * UNIT
        return found if found > NOTHING else 0.0

    def _ceiling(self, eps: float, sight: _Sight, ratio: Ratio) -> float:
        """E (V - tau)_+ <= M^b e^(-theta tau) / (e theta), on quadrature nodes that are rounded up."""
        if sight.theta <= 0.0:
            return 1.0
        values, masses, _ = ratio.nodes(upwards=True)
        values, masses = np.append(values, values.min()), np.append(masses, ratio.tail(ratio.low))
        log_m = Moments(values, masses, self.bins).cumulants(sight.theta)[0]
        moved = sight.theta * abs(self._level(eps))
        log_excess = self.bins * log_m - sight.theta * self._level(eps) - math.log(math.e * sight.theta)
        # Logarithms, exponentials and tilts of b values, and the level; the sum of all masses.
        farthest = sight.theta * float(np.abs(values).max())
        off = self.bins * (abs(log_m) + 800.0 + 4.0 * farthest + values.size) + 24.0 * moved
        log_excess += 4.0 * UNIT * off
        return self._scaled_up(math.exp(min(log_excess, 700.0)) + NOTHING, ratio, eps) + NOTHING

    @staticmethod
    def _climb(
        interval: Callable[[float], tuple[float, float]],
        gap: Callable[[float, float], float],
        goal: float,
        steps: Ladder,
    ) -> Reached:
        return steps.climb(interval, gap, goal=goal)


def _upper_boundary(above: Callable[[float], bool], guess: float) -> float:
    """An eps where `above` is False, close to the least one near a guess."""
    low, high, step = guess, guess, 1e-3 * guess
    if above(guess):
        while above(high):
            low, high, step = high, high + step, 2.0 * step
            if step > 64.0 * guess:
                raise NumericalError("delta is below the resolution of the sum")
    else:
        while not above(low):
            high = low
            if low <= 0.0:
                return 0.0
            low, step = max(0.0, low - step), 2.0 * step
    return bisect_boundary(above, low, high, safe=True, rtol=1e-9)


def _lower_boundary(above: Callable[[float], bool], guess: float) -> float:
    """An eps where `above` is True, close to the largest one near a guess; 0 if none is found."""
    if above(guess):
        low, high, step = guess, guess, 1e-3 * guess
        while above(high):
            low, high, step = high, high + step, 2.0 * step
        return bisect_boundary(above, low, high, safe=False, rtol=1e-9)
    low, high, step = guess, guess, 1e-3 * guess
    while high > 0.0:
        low = max(0.0, high - step)
        if above(low):
            return bisect_boundary(above, low, high, safe=False, rtol=1e-9)
        high, step = low, 2.0 * step
    return 0.0
