"""Balls-in-Bins with independent bins: two-sided bounds from the law of a sum, without sampling."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.engines.accountant import Accountant, Progress, Solution, too_wide
from dpmech.engines.gaussian import gaussian_sigma
from dpmech.engines.independent_sum.direction import NOTHING, Direction
from dpmech.engines.profiles import LEAST_DELTA, Curve, Nodes, placed_nodes
from dpmech.engines.sigma_search import slope_at, smallest_sigma
from dpmech.exceptions import NumericalError
from dpmech.methods import Exact
from dpmech.numerics import BOUND, Bounds, Provenance, quotient_down, quotient_up, register_words

register_words(
    {"bins.independent": "Balls-in-Bins, {bins} independent bins: the law of their sum on lattices"}
)

# Wider bounds (relative in eps, as a change of sigma in delta) raise an error.
_WIDEST = 0.01
_SMALLEST_EPS = 1e-9
# Range in log delta beyond the end of a curve in which slopes are still evaluated.
_BEYOND = 32.0
_AGREEMENTS = 12
# Entries of the Gram matrix that differ by less than this count as equal; their roots differ by half of it.
_ALIKE = 1e-13
# Sensitivity over sigma beyond which lattices of the losses no longer fit into memory.
_MOST = 500.0
# Sigmas whose logs differ by less share a survey of the curve.
_NEAR = 0.02
# Range of log delta over which nodes share sums; distance of their bounds, relative to the error of the hull.
_STRETCH, _OF_HULL = 3.0, 0.5


class IndependentAccountant(Accountant):
    """Bounds on both directions, for bins that share no noise and are identical.

    The likelihood ratio is then a mean of independent lognormals, and its law is approximated on lattices
    that are above and below it in convex order. Both bounds are rigorous, rounding included.

    Args:
        bins: b >= 2.
        sensitivity: root of a diagonal entry of the Gram matrix at sigma 1, for the worst-case support.
    """

    def __init__(self, bins: int, sensitivity: Bounds) -> None:
        self.bins = bins
        self.sensitivity = sensitivity
        self.by = Provenance("bins.independent", {"bins": bins})
        self.guarantee = BOUND
        self._surveys: dict[bool, tuple[float, _Survey]] = {}

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        lower, upper, slope = self._bracket(sigma, eps, tolerance)
        allowed = max(tolerance, _WIDEST) * max(1.0, slope)
        if upper > 1e3 * NOTHING and not (lower > 0.0 and math.log(upper / lower) <= allowed):
            raise too_wide("delta", sigma, lower, upper, self.method)
        return Bounds(lower, upper, self.guarantee, self.by)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound, regardless of the distance from the lower one."""
        return self._bracket(sigma, eps, tolerance)[1]

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        target = math.log(delta)
        directions = self._directions(sigma)
        guesses = [direction.rough_epsilon(target) for direction in directions]
        if max(guesses) <= _SMALLEST_EPS and self._bracket(sigma, 0.0, tolerance)[1] <= delta:
            return Bounds(0.0, 0.0, self.guarantee, self.by)
        first = guesses.index(max(guesses))
        lower, upper = directions[first].epsilon(delta, max(guesses[first], _SMALLEST_EPS), tolerance)
        other = directions[1 - first]
        if other.ceiling(lower) > delta:
            found = other.epsilon(delta, max(guesses[1 - first], _SMALLEST_EPS), tolerance)
            lower, upper = max(lower, found[0]), max(upper, found[1])
        else:
            # The eps of the other direction is below the lower bound.
            upper = max(upper, lower)
        upper = agreed(lambda at: self._bracket(sigma, at, tolerance)[1], upper, delta, tolerance)
        # Both bounds are valid: this checks only that they are close enough to be useful.
        if upper - lower > max(tolerance, _WIDEST) * upper + _SMALLEST_EPS:
            raise too_wide("eps", sigma, lower, upper, self.method)
        return Bounds(lower, upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Safeguarded secant on the upper bound; see the base class."""
        start = self._rough_sigma(eps, delta)
        found = smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.01, progress=progress)
        return dataclasses.replace(found, method=Exact())

    def start_for_mu(self, mu: float) -> float:
        """Uses that the mean of b lognormals of variance V has variance V / b."""
        return self.sensitivity.upper / math.sqrt(math.log1p(self.bins * math.expm1(min(mu**2, 500.0))))

    def curve(
        self, sigma: float, *, rel_error: float, steepest: float = math.inf, least: float = LEAST_DELTA
    ) -> Curve:
        """Nodes of both directions.

        Args:
            sigma: > 0.
            rel_error: largest relative height of the hull of nodes above the curve.
            steepest: as in `placed_nodes`.
            least: a delta, in (0, 1), at which the curve may end.
        """
        remove, add = self._directions(sigma)
        return Curve(
            _followed(remove, self._survey(sigma, remove, least), rel_error, steepest, least),
            _followed(add, self._survey(sigma, add, least), rel_error, steepest, least),
        )

    def _survey(self, sigma: float, direction: Direction, least: float) -> "_Survey":
        """A survey of one direction, at this sigma or at one so close that nodes are placed alike."""
        known = self._surveys.get(direction.remove)
        if known is None or abs(math.log(known[0] / sigma)) > _NEAR:
            known = sigma, _Survey((0.0,), (direction.log_delta(0.0),))
        self._surveys[direction.remove] = known[0], known[1].down_to(math.log(least), direction)
        return self._surveys[direction.remove][1]

    def _bracket(self, sigma: float, eps: float, tolerance: float) -> tuple[float, float, float]:
        """Lower and upper delta, and a lower bound on the decrease of log delta per unit of log sigma."""
        found = [(direction.log_delta(eps), direction) for direction in self._directions(sigma)]
        (log_delta, first), (_, second) = sorted(found, key=lambda pair: -pair[0])
        lower, upper = first.delta(eps, tolerance)
        ceiling = second.ceiling(eps)
        if ceiling > lower:
            other = second.delta(eps, tolerance)
            lower, ceiling = max(lower, other[0]), other[1]
        return lower, max(upper, ceiling), slope_at(eps, math.exp(min(log_delta, 0.0)))

    def _directions(self, sigma: float) -> tuple[Direction, Direction]:
        most = quotient_up(self.sensitivity.upper, sigma)
        if most > _MOST:
            raise NumericalError(
                f"sigma={sigma!r} is below the sensitivity over {_MOST:g}: losses are too large for a lattice"
            )
        least = quotient_down(self.sensitivity.lower * (1.0 - _ALIKE), sigma)
        return (
            Direction(self.bins, least, most, remove=True),
            Direction(self.bins, least, most, remove=False),
        )

    def _rough_sigma(self, eps: float, delta: float) -> float:
        """Approximate sigma, from saddle points; no guarantee depends on it."""
        squared = gaussian_sigma(eps, delta) ** -2.0
        # For a mean of b lognormals with this variance.
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


def agreed(bound: Callable[[float], float], eps: float, delta: float, tolerance: float) -> float:
    """An eps, at least the given bound, at which a bound on delta, on separate lattices, meets the target.

    Raises:
        NumericalError: if there is none near.
    """
    step = 0.1 * tolerance * eps
    for _ in range(_AGREEMENTS):
        if eps == 0.0 or bound(eps) <= delta:
            return eps
        eps, step = eps + step, 2.0 * step
    raise NumericalError(f"bounds on delta and on eps do not agree near eps={eps!r}")


@dataclasses.dataclass(frozen=True)
class _Survey:
    """Approximate logs of one direction of a curve; they place nodes, and enter no bound.

    Args:
        eps: increasing, from 0 on.
        logs: approximate log delta there.
    """

    eps: tuple[float, ...]
    logs: tuple[float, ...]

    def down_to(self, least: float, direction: Direction) -> "_Survey":
        """Continued until log delta is at most `least`."""
        eps, logs = list(self.eps), list(self.logs)
        while logs[-1] > least:
            width = 0.1
            if len(eps) > 1:
                fall = max((logs[-2] - logs[-1]) / (eps[-1] - eps[-2]), 1e-3)
                width = min(1.0 / fall, 2.0 * (eps[-1] - eps[-2]))
            eps.append(eps[-1] + width)
            logs.append(direction.log_delta(eps[-1]))
        return _Survey(tuple(eps), tuple(logs))


def _followed(
    direction: Direction, survey: _Survey, rel_error: float, steepest: float, least: float
) -> Nodes:
    """Nodes of one direction, down to where the curve may end, and a few beyond."""
    end = 1 + next(place for place, log in enumerate(survey.logs) if log <= math.log(least))
    eps, logs = survey.eps[:end], survey.logs[:end]
    known = np.maximum(np.array(logs), math.log(least) - _BEYOND)
    nodes = placed_nodes(np.array(eps), known, rel_error, steepest)
    far = nodes[-1] * np.array([1.1, 1.3, 1.6, 2.0])
    every = np.unique(np.concatenate([nodes, far]))
    # Beyond the estimates, delta decreases at least as fast as at their end.
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
