"""Balls-in-Bins with independent bins: two-sided bounds from the law of a sum, without sampling."""

import dataclasses
import math

import numpy as np
import scipy

from dpmech.engines.accountant import Accountant, Progress, Solution, too_wide
from dpmech.engines.gaussian import gaussian_sigma
from dpmech.engines.independent_sum.direction import NOTHING, Direction
from dpmech.engines.profiles import LEAST_DELTA, Curve, Nodes, placed_nodes
from dpmech.engines.sigma_search import smallest_sigma
from dpmech.exceptions import NumericalError
from dpmech.methods import Exact
from dpmech.numerics import BOUND, Bounds, Provenance, quotient_down, quotient_up, register_words

register_words(
    {"bins.independent": "Balls-in-Bins, {bins} independent bins: the law of their sum on lattices"}
)

# Bounds wider than this (relative in eps, as a change of sigma in delta) are refused, not returned.
_WIDEST = 0.01
_SMALLEST_EPS = 1e-9
# How far beyond where a curve is followed, in log delta, a slope is still read.
_BEYOND = 32.0
_AGREEMENTS = 12
# Entries of the Gram matrix that count as equal differ by less than this, and their roots by half of it.
_ALIKE = 1e-13
# Over so much of log delta nodes share their sums; how far, beside the hull, their ends may be apart.
_STRETCH, _OF_HULL = 3.0, 0.5


class IndependentAccountant(Accountant):
    """Bounds on both directions, for bins that share no noise and are all alike.

    The likelihood ratio is then a mean of independent lognormals, and its law is put on lattices that are
    above and below it in convex order. Both ends are rigorous, rounding included.

    Args:
        bins: b >= 2.
        sensitivity: of the worst-case support: the root of a diagonal entry of the Gram matrix at sigma 1.
    """

    def __init__(self, bins: int, sensitivity: Bounds) -> None:
        self.bins = bins
        self.sensitivity = sensitivity
        self.by = Provenance("bins.independent", {"bins": bins})
        self.guarantee = BOUND

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        lower, upper, slope = self._bracket(sigma, eps, tolerance)
        allowed = max(tolerance, _WIDEST) * max(1.0, slope)
        if upper > 1e3 * NOTHING and not (lower > 0.0 and math.log(upper / lower) <= allowed):
            raise too_wide("delta", sigma, lower, upper, self.method)
        return Bounds(lower, upper, self.guarantee, self.by)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper end, however far the lower one may be."""
        return self._bracket(sigma, eps, tolerance)[1]

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        target = math.log(delta)
        directions = self._directions(sigma)
        guesses = [_eps_of(direction, target) for direction in directions]
        if max(guesses) <= _SMALLEST_EPS and self._bracket(sigma, 0.0, tolerance)[1] <= delta:
            return Bounds(0.0, 0.0, self.guarantee, self.by)
        first = guesses.index(max(guesses))
        lower, upper = directions[first].epsilon(delta, max(guesses[first], _SMALLEST_EPS), tolerance)
        other = directions[1 - first]
        if other.ceiling(lower) > delta:
            found = other.epsilon(delta, max(guesses[1 - first], _SMALLEST_EPS), tolerance)
            lower, upper = max(lower, found[0]), max(upper, found[1])
        else:
            # Its eps is below the lower end.
            upper = max(upper, lower)
        upper = self._agreed(sigma, upper, delta, tolerance)
        # Both ends hold: this decides only whether they are close enough to be of use.
        if upper - lower > max(tolerance, _WIDEST) * upper + _SMALLEST_EPS:
            raise too_wide("eps", sigma, lower, upper, self.method)
        return Bounds(lower, upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Safeguarded secant on the upper bound; see the base class."""
        start = self._rough_sigma(eps, delta)
        found = smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.01, progress=progress)
        return dataclasses.replace(found, method=Exact())

    def start_for_mu(self, mu: float) -> float:
        """As the mean of b lognormals of variance V has variance V / b."""
        return self.sensitivity.upper / math.sqrt(math.log1p(self.bins * math.expm1(min(mu**2, 500.0))))

    def curve(
        self, sigma: float, *, rel_error: float, steepest: float = math.inf, least: float = LEAST_DELTA
    ) -> Curve:
        """Both directions at nodes.

        Args:
            sigma: > 0.
            rel_error: by how much, relative, the hull of nodes may be above the curve.
            steepest: as for `placed_nodes`.
            least: a delta, in (0, 1), below which the curve need not be followed.
        """
        sides = [_followed(one, rel_error, steepest, least) for one in self._directions(sigma)]
        return Curve(*sides)

    def _agreed(self, sigma: float, eps: float, delta: float, tolerance: float) -> float:
        """An eps not below the given bound at which `delta` says so too, on its own lattices."""
        step = 0.1 * tolerance * eps
        for _ in range(_AGREEMENTS):
            if self._bracket(sigma, eps, tolerance)[1] <= delta:
                return eps
            eps, step = eps + step, 2.0 * step
        raise NumericalError(f"bounds on delta and on eps at sigma={sigma!r} do not agree near eps={eps!r}")

    def _bracket(self, sigma: float, eps: float, tolerance: float) -> tuple[float, float, float]:
        """Lower and upper delta, and how fast log delta changes with log sigma at least."""
        found = [(direction.log_delta(eps), direction) for direction in self._directions(sigma)]
        (log_delta, first), (_, second) = sorted(found, key=lambda pair: -pair[0])
        lower, upper = first.delta(eps, tolerance)
        ceiling = second.ceiling(eps)
        if ceiling > lower:
            other = second.delta(eps, tolerance)
            lower, ceiling = max(lower, other[0]), other[1]
        return lower, max(upper, ceiling), Direction.slope(eps, log_delta)

    def _directions(self, sigma: float) -> tuple[Direction, Direction]:
        most = quotient_up(self.sensitivity.upper, sigma)
        least = quotient_down(self.sensitivity.lower * (1.0 - _ALIKE), sigma)
        return (
            Direction(self.bins, least, most, remove=True),
            Direction(self.bins, least, most, remove=False),
        )

    def _rough_sigma(self, eps: float, delta: float) -> float:
        """About the sigma sought, from saddle points; no guarantee rests on it."""
        squared = gaussian_sigma(eps, delta) ** -2.0
        # Of a mean of b lognormals with the variance of one.
        exponent = (
            squared + math.log(self.bins) if squared > 500.0 else math.log1p(self.bins * math.expm1(squared))
        )
        sensitivity = self.sensitivity.upper
        target = math.log(delta)

        def excess(log_sigma: float) -> float:
            return max(one.log_delta(eps) for one in self._directions(math.exp(log_sigma))) - target

        low = high = math.log(sensitivity / math.sqrt(exponent))
        step = 0.1
        for _ in range(40):
            if excess(low) >= 0.0:
                break
            high, low, step = low, low - step, 2.0 * step
        for _ in range(40):
            if excess(high) <= 0.0:
                break
            low, high, step = high, high + step, 2.0 * step
        if not excess(low) > 0.0 >= excess(high):
            return math.exp(high)
        return math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-4)))


def _followed(direction: Direction, rel_error: float, steepest: float, least: float) -> Nodes:
    """Nodes of one direction, down to where it need not be followed, and a few beyond."""
    eps, logs, width = [0.0], [direction.log_delta(0.0)], 0.1
    while logs[-1] > math.log(least):
        eps.append(eps[-1] + width)
        logs.append(direction.log_delta(eps[-1]))
        fall = max((logs[-2] - logs[-1]) / (eps[-1] - eps[-2]), 1e-3)
        width = min(1.0 / fall, 2.0 * width)
    known = np.maximum(np.array(logs), math.log(least) - _BEYOND)
    nodes = placed_nodes(np.array(eps), known, rel_error, steepest)
    far = nodes[-1] * np.array([1.1, 1.3, 1.6, 2.0])
    every = np.unique(np.concatenate([nodes, far]))
    # Beyond what was looked at, delta falls as fast as at its end, or faster.
    places = np.interp(every, eps, logs)
    ends: list[tuple[float, float]] = []
    first = 0
    while first < every.size:
        last = first + 1
        while last < every.size and every[last] <= eps[-1] and places[last] >= places[first] - _STRETCH:
            last += 1
        ends.extend(direction.deltas(every[first:last], _OF_HULL * rel_error))
        first = last
    lower, upper = np.array(ends).T
    return Nodes.of(every, lower, upper)


def _eps_of(direction: Direction, target: float) -> float:
    """About the eps where log delta is `target`; 0 where that of eps 0 is below."""

    def excess(eps: float) -> float:
        return max(direction.log_delta(eps), -1e4) - target

    if excess(0.0) <= 0.0:
        return 0.0
    high = 1e-3
    while excess(high) > 0.0:
        high *= 4.0
        if high > 1e4:
            raise NumericalError(f"eps is beyond {high:g}")
    low = 0.0 if high <= 1e-3 else 0.25 * high
    return float(scipy.optimize.brentq(excess, low, high, xtol=1e-12, rtol=1e-5))
