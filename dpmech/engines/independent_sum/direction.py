"""One direction of the pair of independent bins: bounds on lattices that are refined until they meet."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.independent_sum.likelihood_ratio import LONGEST, Moments, Ratio, TiltedTotal, tilted_total
from dpmech.engines.sigma_search import gaussian_scale
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
        """Lower and upper value for T = e^log_level; the lower one is 0 where c may be below T.

        By the first l with a_l > c: (a_l - T)_+ has mean C(c) + (c - T) p with C(c) = E (a - c)_+, delta of
        the plain Gaussian mechanism at log c, and p = P(a > c); the others have theirs, below c before l.
        Where c < T, still S > c, and (S - T)_+ <= S - c.
        """
        bins, spread, high = self.bins, self.spread, self.high
        log_cut = spread * high - 0.5 * spread**2
        # In units of u: products and sums in log c; p is off by 2 high^2 from its argument and 24 of its own,
        # and so is the mean below c. Powers of 1 - p are off by what their logarithms are, b p / (1 - p)
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


# Below this delta no lattice is needed.
NOTHING = 1e-300
_LOG_NOTHING = math.log(NOTHING) + 8.0
# How much of the tolerance a lattice may use up; the rest is for the search around it.
_OF_DELTA, _OF_EPS = 0.5, 0.25
_MOST_CELLS = 4_000_000
# Lattices on one ladder.
_RUNGS = 5
_FARTHEST = 38.0
# What is left out of a lattice may change delta by about this, in log.
_TAIL = -23.0
_LOOKS = 4
# How far around an eps a lattice serves, and how fine the first one is on which eps is looked for.
_MARGIN, _ROUGH = 0.05, 0.3
# An eps below which none is searched for.
_SMALLEST_EPS = 1e-9


@dataclasses.dataclass(frozen=True)
class _Sight:
    """What a rough look at one level found.

    Args:
        log_delta: about log delta; -infinity where it is below float64.
        theta: the tilt; infinite where the sum cannot pass the level.
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
        if sight.log_delta < _LOG_NOTHING or math.isinf(sight.theta):
            return 0.0, self._ceiling(eps, sight, ratio)

        def interval(step: float) -> tuple[float, float]:
            lower, upper = self.totals(ratio, sight, step, self.level(eps))
            return self.lower(lower, ratio, eps), self.upper(upper, ratio, eps)

        goal = _OF_DELTA * tolerance * self.slope(eps, sight.log_delta)
        found = self._steps(ratio, sight, goal).climb(interval, log_gap, goal=goal)
        return found.lower, found.upper

    def deltas(self, eps: FloatArray, goal: float) -> list[tuple[float, float]]:
        """Lower and upper delta at several eps by the same sums, laid out for the middle of them.

        Args:
            eps: increasing, shape (m,); delta should not fall by more than a few orders of magnitude.
            goal: how far apart the ends may be, in log delta; where the common sums do not get there, an eps
                has sums of its own.
        """
        low, high = float(eps[0]), float(eps[-1])
        near = 0.5 * (low + high)
        sight, ratio = self._look(near, 0.5 * (high - low))
        if sight.log_delta < _LOG_NOTHING or math.isinf(sight.theta):
            return [self.delta(float(one), goal) for one in eps]
        # Where one bin decides, levels differ in what is cut off, and sums of their own cost less than finer
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
        """Lower and upper eps, as close as `tolerance`, relative, asks for.

        Args:
            delta: in (0, 1).
            guess: about the eps sought, > 0; it is corrected.
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
        steps = self._steps(ratio, sight, goal * self.slope(near, math.log(delta)))
        found = steps.climb(search.interval, relative_gap, goal=goal)
        return found.lower, found.upper

    def log_delta(self, eps: float) -> float:
        """About log delta: an estimate, to start from."""
        sight, ratio = self._look(eps)
        if sight.log_delta < _LOG_NOTHING or math.isinf(sight.theta):
            return sight.log_delta
        step = self._steps(ratio, sight, _ROUGH).rungs[0]
        rough = self._tilted(ratio, sight, step, self.level(eps), upper=True)
        return math.log(max(self.upper(rough, ratio, eps), NOTHING))

    def ceiling(self, eps: float) -> float:
        """A cheap upper bound on delta: Chernoff's, and the closed form of jumps."""
        return self._ceiling(eps, *self._look(eps))

    @staticmethod
    def slope(eps: float, log_delta: float) -> float:
        """How fast log delta falls with log sigma for the plain Gaussian mechanism: here it falls faster."""
        delta = math.exp(max(min(log_delta, -1e-9), -600.0))
        change = gaussian_scale(eps, delta * math.exp(-0.01)) - gaussian_scale(eps, delta)
        return max(0.05, 0.01 / max(change, 1e-6))

    def level(self, eps: float) -> float:
        """The tau of V at eps, to 16 roundings."""
        signed_eps = eps if self.remove else -eps
        sign = 1.0 if self.remove else -1.0
        if Ratio(self.most, self.remove).centre:
            return sign * self.bins * math.expm1(signed_eps)
        return sign * self.bins * math.exp(signed_eps)

    def _look(self, eps: float, margin: float = 0.0) -> tuple[_Sight, Ratio]:
        """A rough look, and the law without tails that do not matter at this eps, and so much around it.

        Tails that add nothing to delta may still decide the tilt, as e^(theta a) grows so fast: the look is
        repeated without them.
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
        """The law on |x| <= far, upwards for REMOVE far_up; without what passes the level alone."""
        ratio = Ratio(self.most, self.remove)
        far, far_up = min(far, _FARTHEST), min(far_up if self.remove else far, _FARTHEST)
        log_total = math.log(self.bins) + (eps if self.remove else -eps)
        # A little farther than needed, so that rounding does not matter.
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
            return _Sight(log_jumps, theta, 1.0, (1.0, 1.0), 1.0)
        spread = math.sqrt(self.bins * moments.cumulants(theta)[2])
        log_sum = moments.log_excess(tau, theta) - math.log(self.bins) + (0.0 if self.remove else eps)
        reaches, window = moments.reaches(theta)
        return _Sight(float(np.logaddexp(log_sum, log_jumps)), theta, spread, reaches, window)

    def _log_jumps(self, ratio: Ratio, eps: float) -> float:
        if not self.remove:
            return -math.inf
        return math.log(
            Jumps(self.bins, self.most, ratio.high).bounds(math.log(self.bins) + eps)[1] / self.bins
        )

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

    def totals(self, ratio: Ratio, sight: _Sight, step: float, tau: float) -> tuple[TiltedTotal, TiltedTotal]:
        """The lower and the upper sum at one step, on windows that hold a level."""
        private = dataclasses.replace(ratio, spread=self.least)
        lower = self._tilted(private, sight, step, tau, upper=False)
        return lower, self._tilted(ratio, sight, step, tau, upper=True)

    def _tilted(self, ratio: Ratio, sight: _Sight, step: float, tau: float, *, upper: bool) -> TiltedTotal:
        lattice = ratio.upper(step) if upper else ratio.lower(step)
        return tilted_total(lattice, self.bins, sight.theta, sight.reaches, upper=upper, least=tau)

    def upper(self, total: TiltedTotal, ratio: Ratio, eps: float) -> float:
        """Upper bound on delta from an upper sum of values of this law."""
        level = self.level(eps)
        excess = total.excess(level - 16.0 * UNIT * abs(level))
        return self._scaled_up(excess, ratio, eps)

    def _scaled_up(self, excess: float, ratio: Ratio, eps: float) -> float:
        """Delta from E (V - tau)_+ without what is above the values of the lattice, and that added."""
        if self.remove:
            jumps = Jumps(self.bins, ratio.spread, ratio.high).bounds(math.log(self.bins) + eps)[1]
            found = (excess + jumps) / self.bins
        else:
            # Above `high` lies a small a, and V - tau is b e^-eps at most. Below `low` lies a large one, and
            # it is at most b e^-eps less that.
            left = math.log(self.bins) - eps - (-ratio.spread * ratio.low - 0.5 * ratio.spread**2)
            left += 8.0 * UNIT * (math.log(self.bins) + eps + ratio.spread * abs(ratio.low) + ratio.spread**2)
            found = excess * math.exp(eps) / self.bins + self.bins * ratio.tail(-ratio.high)
            found += self.bins * ratio.tail(ratio.low) * -math.expm1(-max(left, 0.0))
        return min(1.0, found * (1.0 + 32.0 * UNIT))

    def lower(self, total: TiltedTotal, ratio: Ratio, eps: float) -> float:
        """Lower bound on delta from a lower sum; 0 where it is next to nothing."""
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
            # Every value is at most that at `high`.
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
    """For eps at one delta, on lattices that were laid out for an eps near it."""

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
