"""One direction of T Poisson-sampled steps at one sigma: lower and upper bounds on delta and eps."""

import dataclasses
import functools
import math
from collections.abc import Callable

from dpmech.engines.losses.contour import Contour, Line, Sketch, Smoothed
from dpmech.engines.losses.lattice import Loss
from dpmech.engines.losses.release import PoissonRelease
from dpmech.engines.losses.transform import exponent_of, transform
from dpmech.exceptions import NumericalError
from dpmech.numerics import (
    Ladder,
    Reached,
    bisect_boundary,
    log_gap,
    quotient_down,
    quotient_up,
    relative_gap,
)

# Share of the tolerance for the width of the smoothing; the remainder is for the search around it.
_OF_DELTA, _OF_EPS = 1.0, 0.5
# Maximum number of halvings of the first width.
_HALVINGS = 16
# Smallest start of a search for eps, the delta and log delta that count as 0, and the search's resolution.
_SMALLEST_EPS = 1e-9
_NOTHING = 1e-280
_FAR_BELOW = -800.0
_RESOLUTION = 1e-10
# Safety factor for a slope computed from coarse bounds.
_CAUTION = 0.7
# Largest relative distance of eps from a line's own; slopes are taken over the same distance.
_NEAR = 0.02
_MOST_LINES = 40
# The number of lines, the closest ones, that are tried before another one is made.
_TRIED = 2
# Below this delta, in log, Chernoff's bound suffices.
_LOG_TINY, _LOG_LEAST = -460.0, -690.0

Interval = Callable[[float], tuple[float, float]]


class Direction:
    """The composition of T losses in one direction.

    Args:
        release: the releases to account for.
        sigma: > 0.
        remove: REMOVE (mixture against noise), or ADD.
    """

    def __init__(self, release: PoissonRelease, sigma: float, *, remove: bool) -> None:
        # The upper sensitivity never over-states privacy, and the lower one never under-states it.
        self.steps = release.steps
        self.loss = Loss(
            release.sampling_prob, quotient_down(sigma, release.sensitivity.upper), remove=remove
        )
        self.private = dataclasses.replace(
            self.loss, sigma_over_sensitivity=quotient_up(sigma, release.sensitivity.lower)
        )

    @functools.cached_property
    def sketch(self) -> Sketch:
        """An approximate law of one loss."""
        return Sketch(self.loss, self.steps)

    def beyond_all_losses(self, eps: float) -> bool:
        """Whether the sum of T losses never exceeds eps: in ADD each is below -log(1 - q)."""
        most = -self.steps * math.log1p(-self.loss.sampling_prob)
        return not self.loss.remove and eps > most * (1.0 + 1e-12)

    def log_ceiling(self, eps: float) -> float:
        """Log of Chernoff's bound on delta at eps."""
        if self.beyond_all_losses(eps):
            return -math.inf
        theta = self.sketch.whole.tilt_for_eps(eps)
        if theta == 0.0:
            return 0.0
        # Every theta gives a bound; a large one, far in the tail, is not needed if delta is below float64.
        moments = self.sketch.whole
        while self.steps * moments.cumulants(0.5 * theta)[0] - 0.5 * theta * eps < _FAR_BELOW:
            theta *= 0.5
        bound = self._chernoff(theta, eps)
        # The sketch may miss outputs with a large share of this moment; then a smaller theta bounds more.
        for _ in range(_HALVINGS if bound == 0.0 else 0):
            theta *= 0.5
            before, bound = bound, min(bound, self._chernoff(theta, eps))
            if bound == before < 0.0:
                break
        return bound

    def _chernoff(self, theta: float, eps: float) -> float:
        """Chernoff's bound by the moment of order theta > 0; 0 if that is not known."""
        try:
            one = transform(
                self.loss,
                exponent_of(self.loss, theta),
                (-math.inf, math.inf),
                frequency=0.0,
                share=min(1e-6, 1e-3 / self.steps),
            )
        except NumericalError:
            return 0.0
        return min(0.0, self.steps * one.log_ends[1] - theta * eps + 1e-9 * (1.0 + theta * eps))

    def delta(self, eps: float, tolerance: float) -> tuple[float, float, float]:
        """Lower and upper delta, as close as `tolerance`, a change of sigma, requires; and their slope.

        Returns:
            Both bounds, and the slope of `resolved`.
        """
        if self.beyond_all_losses(eps):
            return 0.0, 0.0, 1.0
        found = self.resolved(eps, tolerance)
        return *found.ends(eps), found.slope

    def resolved(self, eps: float, tolerance: float) -> "Resolved":
        """The composed losses on a line for one eps, with a smoothing as narrow as `tolerance` requires."""
        line = self.sketch.line(eps)
        contour = Contour(self.loss, self.steps, line)
        coarse = contour.smoothed(line.width)
        answer = math.log(max(0.5 * sum(coarse.ends(eps)), _NOTHING))
        if abs(answer - line.log_delta) > 1.0:
            line = self.sketch.line(eps, answer)
            contour = Contour(self.loss, self.steps, line)
            coarse = contour.smoothed(line.width)
        here, there = (sum(coarse.ends(at)) for at in (eps, eps * (1.0 + _NEAR)))
        slope = max(1.0, _CAUTION * math.log(here / there) / _NEAR) if 0.0 < there < here else 1.0
        known = {line.width: coarse}

        def interval(width: float) -> tuple[float, float]:
            if width not in known:
                known[width] = contour.smoothed(width)
            return known[width].ends(eps)

        # By both ends of the loss for upper bounds: that for lower ones differs by rounding, or by a gap
        # between both ends of the sensitivity, which no width closes.
        width = self._settled(line, interval, log_gap, _OF_DELTA * tolerance * slope).resolution
        return Resolved(self, known[width], slope)

    def epsilon(self, delta: float, tolerance: float) -> tuple[float, float]:
        """Lower and upper eps, as close as the relative `tolerance` requires."""
        guess = self._guess(delta)
        if guess == 0.0:
            return 0.0, 0.0
        line = self.sketch.line(guess)
        ends = self._on(line)

        def interval(width: float) -> tuple[float, float]:
            private, loss = ends(width)
            upper = _least_eps(lambda eps: loss.ends(eps)[1], delta, guess)
            lower = _least_eps(lambda eps: private.ends(eps)[0], delta, guess, safe=False)
            return min(lower, upper), upper

        found = self._settled(line, interval, relative_gap, _OF_EPS * tolerance)
        return found.lower, found.upper

    def _guess(self, delta: float) -> float:
        """An eps with approximately this delta, from coarse brackets; 0 if delta at 0 is smaller."""
        guess = self.sketch.whole.chernoff_eps(math.log(delta))
        most = -self.steps * math.log1p(-self.loss.sampling_prob)
        if not self.loss.remove:
            guess = min(guess, 0.9 * most)
        guess = max(guess, _SMALLEST_EPS)
        for _ in range(_MOST_LINES):
            line = self.sketch.line(guess)
            found = Contour(self.loss, self.steps, line).smoothed(line.width)
            better = _least_eps(_upper_end(found), delta, guess)
            if not self.loss.remove and better > most:
                better = 0.5 * (guess + most)
            if abs(better - guess) <= _NEAR * guess or max(better, guess) <= _SMALLEST_EPS:
                return better if better > _SMALLEST_EPS * 1e-3 else self._none_or(delta, better)
            guess = max(better, 0.02 * guess, 1e-3 * _SMALLEST_EPS)
        return guess

    def _none_or(self, delta: float, guess: float) -> float:
        """0 if delta at eps 0 is at most `delta`; otherwise the guess."""
        return 0.0 if self.delta(0.0, 1e-4)[1] <= delta else max(guess, 1e-3 * _SMALLEST_EPS)

    def _on(self, line: Line) -> Callable[[float], tuple[Smoothed, Smoothed]]:
        """The composed losses for lower and upper bounds, as a function of the width of the smoothing."""
        upper = Contour(self.loss, self.steps, line)
        same = self.private == self.loss
        lower = upper if same else Contour(self.private, self.steps, line)

        def at(width: float) -> tuple[Smoothed, Smoothed]:
            found = upper.smoothed(width)
            return (found if same else lower.smoothed(width)), found

        return at

    @staticmethod
    def _settled(
        line: Line, interval: Interval, gap: Callable[[float, float], float], goal: float
    ) -> Reached:
        """Bounds at the first width that is narrow enough, or at the narrowest affordable one."""
        ladder = Ladder.down(line.width, line.width * 0.5**_HALVINGS)
        return ladder.leap(interval, gap, goal=goal, order=2.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Resolved:
    """The composed losses on one line, for bounds at its own eps and, if less close, at others.

    Args:
        direction: of the composed losses.
        loss: for upper bounds.
        slope: an approximate lower bound on how fast log delta falls with log sigma: at least as with log
            eps, because losses grow at least like 1 / sigma. It only decides how close the bounds have to be.
    """

    direction: Direction
    loss: Smoothed
    slope: float

    @functools.cached_property
    def _private(self) -> Smoothed:
        """The losses for lower bounds."""
        own = self.direction
        if own.private == own.loss:
            return self.loss
        return Contour(own.private, own.steps, self.loss.contour.line).smoothed(self.loss.tau)

    def ends(self, eps: float) -> tuple[float, float]:
        """Lower and upper delta at eps >= 0."""
        upper = self.loss.ends(eps)[1]
        return min(self._private.ends(eps)[0], upper), upper


class FewLines:
    """Bounds on delta at many eps, from lines that serve a range of eps around their own.

    A bound on a line is one at every eps. An eps whose bounds on earlier lines are not close enough gets its
    own line, so that the bounds depend on what was evaluated before.

    Args:
        direction: the composed losses.
        tolerance: as in `Direction.delta`.
    """

    def __init__(self, direction: Direction, tolerance: float) -> None:
        self.direction = direction
        self.tolerance = tolerance
        self._lines: list[tuple[float, Resolved]] = []

    def delta(self, eps: float) -> tuple[float, float]:
        """Lower and upper delta at eps >= 0."""
        line = self._at(eps)
        return (0.0, self._next_to_nothing(eps)) if line is None else line.ends(eps)

    def upper(self, eps: float) -> float:
        """The upper delta alone, for half of the computing."""
        line = self._at(eps)
        return self._next_to_nothing(eps) if line is None else line.loss.ends(eps)[1]

    def _at(self, eps: float) -> Resolved | None:
        """A line whose bounds at eps are close enough; None where delta is next to 0."""
        for _, line in sorted(self._lines, key=lambda own: abs(own[0] - eps))[:_TRIED]:
            if log_gap(*line.loss.ends(eps)) <= _OF_DELTA * self.tolerance * line.slope:
                return line
        if self.direction.log_ceiling(eps) < _LOG_TINY:
            return None
        own = self.direction.resolved(eps, self.tolerance)
        self._lines.append((eps, own))
        return own

    def _next_to_nothing(self, eps: float) -> float:
        """Chernoff's bound: not 0 because it is below the range of float64, unless no loss is that large."""
        ceiling = self.direction.log_ceiling(eps)
        return math.exp(max(ceiling, _LOG_LEAST)) if ceiling > -math.inf else 0.0


def _upper_end(found: Smoothed) -> Callable[[float], float]:
    return lambda eps: found.ends(eps)[1]


def _least_eps(bound: Callable[[float], float], delta: float, guess: float, *, safe: bool = True) -> float:
    """Where a bound on delta(eps) passes `delta`: on the far side of it if `safe`, else on the near one.

    Searches from `guess` in growing steps; bounds are weaker far from it. 0 if the bound at 0 is at most
    `delta`.
    """
    step = 1e-3
    if bound(guess) > delta:
        low, high = guess, guess * (1.0 + step)
        while bound(high) > delta:
            step *= 2.0
            low, high = high, high * (1.0 + step)
            if math.isinf(high):
                raise NumericalError(f"delta={delta!r} is below the resolution of the composed loss")
    else:
        low, high = guess * (1.0 - step), guess
        while bound(low) <= delta:
            step *= 2.0
            low, high = (low * (1.0 - step) if step < 0.9 else 0.1 * low), low
            if low < 1e-6 * guess:
                if bound(0.0) <= delta:
                    return 0.0
                low = 0.0
                break
    return bisect_boundary(lambda eps: bound(eps) > delta, low, high, safe=safe, rtol=_RESOLUTION)
