"""One direction of the pair for independent bins: bounds on lattices that are refined until they agree."""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.independent_sum.likelihood_ratio import LONGEST, Moments, Ratio, TiltedTotal, tilted_total
from dpmech.engines.sigma_search import slope_at
from dpmech.exceptions import NumericalError
from dpmech.numerics import (
    UNIT,
    FloatArray,
    Ladder,
    bisect_boundary,
    log_gap,
    relative_gap,
    rung_below,
    sum_rounding,
    total,
)


@dataclasses.dataclass(frozen=True)
class Jumps:
    """E [(S - T)_+; some a_l > c] for a sum S of b independent a = exp(kappa Z - kappa^2 / 2).

    Args:
        bins: b.
        spread: kappa.
        high: c is a at Z = high, at least kappa / 2.
    """

    bins: int
    spread: float
    high: float

    def bounds(self, log_level: float) -> tuple[float, float]:
        """Lower and upper bound for T = e^log_level; the lower one is 0 if c may be below T.

        Split by the first l with a_l > c: (a_l - T)_+ has mean C(c) + (c - T) p with C(c) = E (a - c)_+,
        delta of the plain Gaussian mechanism at log c, and p = P(a > c); the others keep their means, below c
        before l. If c < T, S > c still holds, and (S - T)_+ <= S - c.
        """
        bins, spread, high = self.bins, self.spread, self.high
        log_cut = spread * high - 0.5 * spread**2
        # In units of u: products and sums in log c; the error of p is 2 high^2 from its argument plus 24, and
        # so is that of the mean below c. Powers of 1 - p have the error of their logarithms, b p / (1 - p)
        # times that of p, and p < 1/2 as c > 1.
        off = UNIT * 4.0 * (spread * abs(high) + spread**2 + 1.0)
        p = float(scipy.special.ndtr(-high))
        below = float(scipy.special.ndtr(high - spread))
        part = UNIT * (4.0 * high**2 + 4.0 * (high - spread) ** 2 + 64.0)
        relative = 2.0 * part * (2.0 + bins * p) + 2.0 * sum_rounding(bins)
        index = np.arange(bins, dtype=np.float64)
        before = np.exp(index * math.log1p(-p))
        first = total(before)
        # Before the jump l - 1 others below c, with (1 - p)^(l - 2); after it b - l with mean 1.
        others = below * total(index[1:] * before[:-1]) + total((bins - 1.0 - index) * before)
        exact = log_cut - off >= log_level + UNIT * 4.0 * log_level
        found = []
        for side in (-1.0, 1.0):
            most = gaussian_delta(1.0 / spread, log_cut - side * off)[0 if side < 0.0 else 1]
            over = math.exp(log_cut + side * off) * (1.0 + side * 16.0 * UNIT)
            level = math.exp(log_level - side * 8.0 * UNIT * (log_level + 2.0))
            gap = max(0.0, over - level) if exact else over - over * (1.0 - 4.0 * off - 64.0 * UNIT)
            found.append((first * (most + gap * p) + p * others) * (1.0 + side * (relative + 16.0 * UNIT)))
        return (max(0.0, found[0]) if exact else 0.0), found[1] + 1e-300


# Below this delta no lattice is used.
NOTHING = 1e-300
_LOG_NOTHING = math.log(NOTHING) + 8.0
# Share of the tolerance for a lattice; the remainder is for the search around it.
_OF_DELTA, _OF_EPS = 0.5, 0.25
_MOST_CELLS = 4_000_000
# Number of lattices on one ladder.
_RUNGS = 5
_FARTHEST = 38.0
# Approximate log of the relative change of delta by the tails that a lattice omits.
_TAIL = -23.0
_LOOKS = 4
# Range of eps around its centre that a lattice covers; resolution of the first lattice in a search for eps.
_MARGIN, _ROUGH = 0.05, 0.3
# Lower end of searches for eps.
_SMALLEST_EPS = 1e-9


@dataclasses.dataclass(frozen=True)
class _Sight:
    """Rough estimates at one level.

    Args:
        log_delta: approximate log delta; -infinity if it is below float64.
        theta: the tilt; infinite if the sum cannot exceed the level.
        spread: standard deviation of the tilted sum.
        moments: of the law, for the window of its sum.
    """

    log_delta: float
    theta: float
    spread: float
    moments: Moments

    @functools.cached_property
    def _ends(self) -> tuple[tuple[float, float], float]:
        return ((1.0, 1.0), 1.0) if math.isinf(self.theta) else self.moments.reaches(self.theta)

    @property
    def reaches(self) -> tuple[float, float]:
        """Exponents for the ends of the window."""
        return self._ends[0]

    @property
    def window(self) -> float:
        """Approximate length of the window."""
        return self._ends[1]


@dataclasses.dataclass(frozen=True)
class Direction:
    """One direction at one sigma.

    Args:
        bins: b >= 2.
        least: lower bound on kappa, the root of a diagonal entry of the Gram matrix.
        most: upper bound on kappa.
        remove: whether this is REMOVE; else ADD.
    """

    bins: int
    least: float
    most: float
    remove: bool

    def delta(self, eps: float, tolerance: float) -> tuple[float, float]:
        """Lower and upper delta, as close as `tolerance`, a change of sigma, requires."""
        sight, ratio = self._look(eps)
        if sight.log_delta < _LOG_NOTHING or math.isinf(sight.theta):
            return 0.0, self._ceiling(eps, sight, ratio)

        def interval(step: float) -> tuple[float, float]:
            lower, upper = self.totals(ratio, sight, step, self.level(eps))
            return self.lower(lower, ratio, eps), self.upper(upper, ratio, eps)

        goal = _OF_DELTA * tolerance * slope_at(eps, math.exp(min(sight.log_delta, 0.0)))
        found = self._steps(ratio, sight, goal).climb(interval, log_gap, goal=goal)
        return found.lower, found.upper

    def deltas(self, eps: FloatArray, goal: float) -> list[tuple[float, float]]:
        """Lower and upper delta at several eps from common sums, set up for the middle of them.

        Args:
            eps: increasing, shape (m,); delta should decrease by at most a few orders of magnitude.
            goal: target distance of the bounds, in log delta; where the common sums do not reach it, an eps
                gets separate sums.
        """
        low, high = float(eps[0]), float(eps[-1])
        near = 0.5 * (low + high)
        sight, ratio = self._look(near, 0.5 * (high - low))
        if sight.log_delta < _LOG_NOTHING or math.isinf(sight.theta):
            return [self.delta(float(one), goal) for one in eps]
        # Where one bin dominates, levels differ in their truncation, and separate sums cost less than finer
        # ones.
        lower, upper = self.totals(
            ratio, sight, self._steps(ratio, sight, 0.25 * goal).rungs[0], self.level(near)
        )
        found = [(self.lower(lower, ratio, one), self.upper(upper, ratio, one)) for one in map(float, eps)]
        return [
            ends if log_gap(*ends) <= goal else self.delta(float(one), goal)
            for one, ends in zip(eps, found, strict=True)
        ]

    def epsilon(self, delta: float, guess: float, tolerance: float) -> tuple[float, float]:
        """Lower and upper eps, as close as the relative `tolerance` requires.

        Args:
            delta: in (0, 1).
            guess: approximate eps, > 0; it is corrected.
            tolerance: > 0.
        """
        near = guess
        for _ in range(_LOOKS):
            margin = min(_MARGIN, 2.0 * _MARGIN * near)
            sight, ratio = self._look(near, margin)
            search = _Search(self, sight, ratio, near, delta)
            rough = search.interval(self._steps(ratio, sight, _ROUGH).rungs[0])[1]
            if abs(rough - near) <= 0.5 * margin or rough <= 0.0:
                break
            near = rough
        goal = _OF_EPS * tolerance
        steps = self._steps(ratio, sight, goal * slope_at(near, delta))
        found = steps.climb(search.interval, relative_gap, goal=goal)
        return found.lower, found.upper

    def log_delta(self, eps: float) -> float:
        """Approximate log delta, as a start value."""
        sight, ratio = self._look(eps)
        if sight.log_delta < _LOG_NOTHING or math.isinf(sight.theta):
            return sight.log_delta
        step = self._steps(ratio, sight, _ROUGH).rungs[0]
        rough = self._tilted(ratio, sight, step, self.level(eps), upper=True)
        return math.log(max(self.upper(rough, ratio, eps), NOTHING))

    def rough_epsilon(self, target: float) -> float:
        """Approximate eps where log delta is `target`; 0 if log delta is below it at eps 0."""

        def excess(eps: float) -> float:
            return max(self.log_delta(eps), -1e4) - target

        if excess(0.0) <= 0.0:
            return 0.0
        high = 1e-3
        while excess(high) > 0.0:
            high *= 4.0
            if high > 1e4:
                raise NumericalError(f"eps is beyond {high:g}")
        low = 0.0 if high <= 1e-3 else 0.25 * high
        return float(scipy.optimize.brentq(excess, low, high, xtol=1e-12, rtol=1e-5))

    def ceiling(self, eps: float) -> float:
        """A cheap upper bound on delta: Chernoff's bound, and the closed form of jumps."""
        return self._ceiling(eps, *self._look(eps))

    def level(self, eps: float) -> float:
        """The tau of V at eps, with an error of up to 16 roundings."""
        signed_eps = eps if self.remove else -eps
        sign = 1.0 if self.remove else -1.0
        if Ratio(self.most, self.remove).centre:
            return sign * self.bins * math.expm1(signed_eps)
        return sign * self.bins * math.exp(signed_eps)

    def _look(self, eps: float, margin: float = 0.0) -> tuple[_Sight, Ratio]:
        """Rough estimates, and the law without tails that are negligible within `margin` of this eps.

        Tails that are negligible for delta may still dominate the tilt, because e^(theta a) grows so fast:
        the estimates are repeated without them.
        """
        widest = eps + margin if self.remove else eps - margin
        ratio = self._cut(widest, _FARTHEST, _FARTHEST)
        sight = self._sight(ratio, eps)
        for _ in range(_LOOKS):
            tail = max(sight.log_delta, -680.0) + _TAIL
            far = -float(scipy.special.ndtri_exp(min(tail - math.log(self.bins), -2.0)))
            far_up = self.most - float(scipy.special.ndtri_exp(min(tail, -2.0)))
            ratio, before = self._cut(widest, far, max(far, far_up)), sight.log_delta
            sight = self._sight(ratio, eps)
            if sight.log_delta >= before - 2.0:
                break
        return sight, ratio

    def _cut(self, eps: float, far: float, far_up: float) -> Ratio:
        """The law on |x| <= far, upwards for REMOVE far_up; without values that exceed the level alone."""
        ratio = Ratio(self.most, self.remove)
        far, far_up = min(far, _FARTHEST), min(far_up if self.remove else far, _FARTHEST)
        log_total = math.log(self.bins) + (eps if self.remove else -eps)
        # Slightly farther than needed, so that rounding has no effect.
        edge = max((log_total + 0.5 * spread**2) / spread for spread in (self.least, self.most))
        edge += 1e-9 * (1.0 + abs(edge))
        if self.remove:
            return dataclasses.replace(ratio, low=-far, high=max(min(far_up, edge), 0.5 * self.most))
        return dataclasses.replace(ratio, low=max(-far, min(-edge, far - 1.0)), high=far)

    def _sight(self, ratio: Ratio, eps: float) -> _Sight:
        values, masses, _ = ratio.nodes(upwards=True)
        moments = Moments(values, masses, self.bins)
        tau = self.level(eps)
        theta = moments.tilt(tau)
        log_jumps = self._log_jumps(ratio, eps)
        if math.isinf(theta):
            return _Sight(log_jumps, theta, 1.0, moments)
        spread = math.sqrt(self.bins * moments.cumulants(theta)[2])
        log_sum = moments.log_excess(tau, theta) - math.log(self.bins) + (0.0 if self.remove else eps)
        return _Sight(float(np.logaddexp(log_sum, log_jumps)), theta, spread, moments)

    def _log_jumps(self, ratio: Ratio, eps: float) -> float:
        if not self.remove:
            return -math.inf
        return math.log(
            Jumps(self.bins, self.most, ratio.high).bounds(math.log(self.bins) + eps)[1] / self.bins
        )

    def _steps(self, ratio: Ratio, sight: _Sight, goal: float) -> Ladder:
        """Steps whose lattices are expected to agree to the goal, in log delta, and finer ones.

        A split adds h^2 / 6 to the variance of a value, on average, and a merger removes h^2 / 12.
        """
        sensitive = self.bins * (sight.theta**2 + sight.spread**-2)
        step = math.sqrt(8.0 * goal / sensitive)
        low, high = (float(end) for end in ratio.values(np.array([ratio.low, ratio.high])))
        finest = max((high - low) / _MOST_CELLS, sight.window / (0.7 * LONGEST))
        first = rung_below(max(min(step, 0.25 * (high - low)), finest), 1.0)
        last = max(first * 0.5**_RUNGS, rung_below(2.0 * finest, 1.0))
        return Ladder.down(max(first, last), last)

    def totals(self, ratio: Ratio, sight: _Sight, step: float, tau: float) -> tuple[TiltedTotal, TiltedTotal]:
        """The lower and the upper sum at one step, on windows that contain a level."""
        private = dataclasses.replace(ratio, spread=self.least)
        lower = self._tilted(private, sight, step, tau, upper=False)
        return lower, self._tilted(ratio, sight, step, tau, upper=True)

    def _tilted(self, ratio: Ratio, sight: _Sight, step: float, tau: float, *, upper: bool) -> TiltedTotal:
        lattice = ratio.upper(step) if upper else ratio.lower(step)
        return tilted_total(lattice, self.bins, sight.theta, sight.reaches, upper=upper, least=tau)

    def upper(self, total: TiltedTotal, ratio: Ratio, eps: float) -> float:
        """Upper bound on delta from an upper sum of values with this law."""
        level = self.level(eps)
        excess = total.excess(level - 16.0 * UNIT * abs(level))
        return self._scaled_up(excess, ratio, eps)

    def _scaled_up(self, excess: float, ratio: Ratio, eps: float) -> float:
        """Delta from E (V - tau)_+ on the lattice, plus a bound on the part above its values."""
        if self.remove:
            jumps = Jumps(self.bins, ratio.spread, ratio.high).bounds(math.log(self.bins) + eps)[1]
            found = (excess + jumps) / self.bins
        else:
            # Above `high` a is small, and V - tau is at most b e^-eps. Below `low` a is large, and V - tau is
            # at most b e^-eps minus a.
            left = math.log(self.bins) - eps - (-ratio.spread * ratio.low - 0.5 * ratio.spread**2)
            left += 8.0 * UNIT * (math.log(self.bins) + eps + ratio.spread * abs(ratio.low) + ratio.spread**2)
            found = excess * math.exp(eps) / self.bins + self.bins * ratio.tail(-ratio.high)
            found += self.bins * ratio.tail(ratio.low) * -math.expm1(-max(left, 0.0))
        return min(1.0, found * (1.0 + 32.0 * UNIT))

    def lower(self, total: TiltedTotal, ratio: Ratio, eps: float) -> float:
        """Lower bound on delta from a lower sum; 0 if it is negligible."""
        level = self.level(eps)
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
        if math.isinf(sight.theta):
            # Every value is at most the one at `high`.
            top = self.bins * float(ratio.values(np.array([ratio.high]))[0])
            top += 64.0 * UNIT * (1.0 + ratio.spread**2) * (abs(top) + self.bins)
            return self._scaled_up(max(0.0, top - self.level(eps)), ratio, eps) + NOTHING
        values, masses, _ = ratio.nodes(upwards=True)
        if self.remove:
            values, masses = np.append(values, values.min()), np.append(masses, ratio.tail(ratio.low))
        log_m = Moments(values, masses, self.bins).cumulants(sight.theta)[0]
        moved = sight.theta * abs(self.level(eps))
        log_excess = self.bins * log_m - sight.theta * self.level(eps) - math.log(math.e * sight.theta)
        # Logarithms, exponentials and tilts of b values, and the level; the sum of all masses.
        farthest = sight.theta * float(np.abs(values).max())
        off = self.bins * (abs(log_m) + 800.0 + 4.0 * farthest + values.size) + 24.0 * moved
        log_excess += 4.0 * UNIT * off
        return self._scaled_up(math.exp(min(log_excess, 700.0)) + NOTHING, ratio, eps) + NOTHING


@dataclasses.dataclass(frozen=True)
class _Search:
    """Search for eps at one delta, on lattices that were set up for a nearby eps."""

    direction: Direction
    sight: _Sight
    ratio: Ratio
    near: float
    delta: float

    def interval(self, step: float) -> tuple[float, float]:
        """Lower and upper eps at one step."""
        one, ratio = self.direction, self.ratio
        lower, upper = one.totals(ratio, self.sight, step, one.level(self.near))
        most = _upper_boundary(lambda eps: one.upper(upper, ratio, eps) > self.delta, self.near)
        start = min(most, self.near)
        least = _lower_boundary(lambda eps: one.lower(lower, ratio, eps) > self.delta, start)
        return min(least, most), most


def _upper_boundary(above: Callable[[float], bool], guess: float) -> float:
    """An eps where `above` is False, close to the smallest such eps near a guess."""
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
    """An eps where `above` is True, close to the largest such eps near a guess; 0 if none is found."""
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
