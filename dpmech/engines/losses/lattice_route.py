"""Delta under random batches by lattices and convolution, an alternative to the transform."""

import math
from collections.abc import Callable

import scipy

from dpmech.engines.accountant import too_wide
from dpmech.engines.losses.convolution import LOG_WRAP, MAX_LENGTH, ComposedLoss, LossMoments, compose
from dpmech.engines.losses.lattice import lower_lattice, upper_lattice
from dpmech.engines.losses.release import (
    FixedRelease,
    PoissonRelease,
    ReplacedRelease,
    TruncatedRelease,
    UserRelease,
)
from dpmech.engines.losses.step_losses import AnyLoss
from dpmech.exceptions import NumericalError
from dpmech.numerics import BOUND, Bounds, Ladder, bisect_boundary, log_gap, quotient_down, quotient_up

# The first and the finest step, in standard deviations of one tilted loss.
_FIRST, _FINEST = 0.04, 1e-6
# Share of the tolerance for a lattice; the remainder is for the search around it.
_OF_DELTA = _OF_EPS = 0.5
# Relative bounds on eps wider than this raise an error.
_WIDEST = 0.01
# Below this delta Chernoff's bound suffices.
_NOTHING = 1e-300
# Beyond this step e^step is close to overflow.
_COARSEST = 500.0
# Share of a goal for tails, and the maximum number of extensions of the outputs.
_OF_TAILS, _REACHES = 0.1, 4
# Number of consecutive steps without progress that are tolerated: steps may divide the losses differently.
_PATIENCE = 3
# The moments in Chernoff's bound come from quadrature. It replaces a direction only if it is at most half of
# the other direction's bound: T log M would need an error of log 2 to invalidate it.
_CHERNOFF_SLACK = math.log(2.0)
# Smallest start of a search for eps, and its resolution.
_SMALLEST_EPS, _RESOLUTION = 1e-9, 1e-10
# First relative distance below a guess at which a lower bound is tried.
_CLOSE = 1e-3

AnyRelease = PoissonRelease | ReplacedRelease | UserRelease | TruncatedRelease | FixedRelease


class LatticeRoute:
    """Privacy loss distributions of both directions on a lattice fitted to the loss.

    Both bounds are rigorous, rounding included; the lattice is refined until they are as close as requested.

    Args:
        release: the releases to account for.
    """

    def __init__(self, release: AnyRelease) -> None:
        self.release = release
        self.by = release.by_lattice

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta at eps >= 0 that differ by at most the effect of changing sigma by `tolerance`.

        Raises:
            NumericalError: if no lattice is fine enough.
        """
        lower, upper, steepness = self.bracket(sigma, eps, tolerance)
        if upper > _NOTHING and not (lower > 0.0 and math.log(upper / lower) <= tolerance * steepness):
            raise too_wide("delta", sigma, lower, upper, str(self.by))
        return Bounds(lower if self.release.tight else 0.0, upper, BOUND, self.by)

    def bracket(self, sigma: float, eps: float, tolerance: float) -> tuple[float, float, float]:
        """The closest lower and upper delta that were found, and how fast log delta falls with log sigma."""
        first, *others = sorted(self.sides(sigma), key=lambda side: -side.moments.chernoff_log_delta(eps))
        if math.exp(first.moments.chernoff_log_delta(eps) + _CHERNOFF_SLACK) <= _NOTHING:
            return 0.0, _NOTHING, 1.0
        lower, upper = first.delta(eps, tolerance)
        for second in others:
            ceiling = math.exp(second.moments.chernoff_log_delta(eps) + _CHERNOFF_SLACK)
            if ceiling > lower:
                other = second.delta(eps, tolerance, settled=lower)
                lower, ceiling = max(lower, other[0]), other[1]
            upper = max(upper, ceiling)
        return lower, upper, first.steepness(eps)

    def epsilon(self, sigma: float, delta: float, tolerance: float) -> tuple[float, float]:
        """Lower and upper eps of the dominating law.

        Raises:
            NumericalError: if no lattice is fine enough for the larger of `tolerance` and 0.01, relative.
        """
        log_delta = math.log(delta)
        first, *others = sorted(self.sides(sigma), key=lambda side: -side.moments.chernoff_eps(log_delta))
        lower, upper = first.epsilon(delta, _OF_EPS * tolerance)
        for second in others:
            # With at most delta at the lower bound, its own eps is not above that bound. The losses of ADD
            # have a maximum, and no lattice resolves them close to it if there is little noise.
            if second.moments.chernoff_log_delta(lower) + _CHERNOFF_SLACK > log_delta:
                ends = second.epsilon(delta, _OF_EPS * tolerance, settled=lower)
                lower, upper = max(lower, ends[0]), max(upper, ends[1])
        if upper - lower > max(tolerance, _WIDEST) * upper + _SMALLEST_EPS:
            raise too_wide("eps", sigma, lower, upper, str(self.by))
        return lower, upper

    def sides(self, sigma: float) -> "tuple[Side, ...]":
        """REMOVE and ADD at one sigma; only one of them if they are equal."""
        ways = (True,) if self.release.symmetric else (True, False)
        return tuple(Side(self.release, sigma, remove=remove) for remove in ways)


class Side:
    """One direction at one sigma."""

    def __init__(self, release: AnyRelease, sigma: float, *, remove: bool) -> None:
        # The upper sensitivity never over-states privacy, and the lower one never under-states it.
        self.steps = release.steps
        self.loss: AnyLoss = release.loss(quotient_down(sigma, release.sensitivity.upper), remove=remove)
        self.most_noise = quotient_up(sigma, release.sensitivity.lower)
        self.moments = LossMoments(*self.loss.sampled(), self.steps)

    def steepness(self, eps: float) -> float:
        """A lower bound on how fast log delta falls with log sigma: the larger of theta eps and 1."""
        return max(1.0, self.moments.tilt_for_eps(eps) * eps)

    def delta(self, eps: float, tolerance: float, *, settled: float = 0.0) -> tuple[float, float]:
        """Lower and upper delta, on lattices as fine as `tolerance`, a change of sigma, requires.

        Args:
            eps: >= 0.
            tolerance: as in `LatticeRoute.delta`.
            settled: lower bound for the larger direction; smaller values need no resolution.
        """
        theta = self.moments.tilt_for_eps(eps)
        goal = _OF_DELTA * tolerance * self.steepness(eps)
        log_delta = self.moments.chernoff_log_delta(eps)
        for _ in range(_REACHES):
            loss, ladder = self._lattices(theta, log_delta)

            def interval(step: float, loss: AnyLoss = loss) -> tuple[float, float]:
                lower, upper = self._composed(loss, step, theta)
                least, most = lower.delta(eps), upper.delta(eps)
                return max(min(least, most), min(settled, most)), most

            found = ladder.leap(interval, log_gap, goal=goal, order=2.0, patience=_PATIENCE)
            # For rare, large losses Chernoff's bound is far above delta, and too much mass counts as tail.
            if found.met or self.steps * loss.tail_mass() <= _OF_TAILS * goal * found.upper:
                break
            log_delta = min(log_delta, math.log(max(found.upper, _NOTHING)))
        return found.lower, found.upper

    def epsilon(self, delta: float, tolerance: float, *, settled: float = 0.0) -> tuple[float, float]:
        """Lower and upper eps >= 0 at delta, on lattices as fine as the relative `tolerance` requires.

        Args:
            delta: in (0, 1).
            tolerance: relative, of eps.
            settled: lower bound for the larger direction; smaller values need no resolution.
        """
        theta = self.moments.tilt_for_delta(math.log(delta))
        guess = max(self.moments.chernoff_eps(math.log(delta)), _SMALLEST_EPS)
        # Chernoff's bound may be far above; the bound of the coarsest lattice is close.
        loss, ladder = self._lattices(theta, math.log(delta))
        coarse = compose(upper_lattice(loss, ladder.rungs[0]), self.steps, theta, upper=True)
        guess = max(_least_eps(coarse.delta, delta, guess, safe=True), _SMALLEST_EPS)
        theta = self.moments.tilt_for_eps(guess)
        loss, ladder = self._lattices(theta, math.log(delta))

        def interval(step: float) -> tuple[float, float]:
            lower, upper = self._composed(loss, step, theta)
            most = _least_eps(upper.delta, delta, guess, safe=True)
            least = _least_eps(lower.delta, delta, guess, safe=False)
            return max(min(least, most), min(settled, most)), most

        found = ladder.leap(interval, _gap_in_eps, goal=tolerance, order=2.0, patience=_PATIENCE)
        return found.lower, found.upper

    def _lattices(self, theta: float, log_delta: float) -> tuple[AnyLoss, Ladder]:
        """The loss without negligible tails, and the steps of its lattices.

        The gap between the bounds falls like the square of the step once the step resolves the loss, and
        linearly before.
        """
        # Outputs so rare that they change delta by less than one part in 1e9 count as tails.
        tail = max(min(log_delta, -1.0) - 21.0 - math.log(self.steps), -725.0)
        reach = min(38.0, -float(scipy.special.ndtri_exp(tail)))
        loss = self.loss.within(reach)
        spread = math.sqrt(self.moments.cumulants(theta)[2])
        # Window of the truncated loss: far tails, now at infinity, would require a wide one.
        least, most = LossMoments(*loss.sampled(), self.steps).window(theta, LOG_WRAP)
        finest = max(loss.finest_step(), _FINEST * spread, (most - least) / (0.9 * MAX_LENGTH))
        if finest > _COARSEST:
            raise NumericalError(f"the losses of {loss!r} are too large for a lattice")
        return loss, Ladder.down(min(_FIRST * spread, _COARSEST), finest)

    def _composed(self, loss: AnyLoss, step: float, theta: float) -> tuple[ComposedLoss, ComposedLoss]:
        """The composed lower and upper lattice."""
        private = loss.under(self.most_noise)
        return (
            compose(lower_lattice(private, step), self.steps, theta, upper=False),
            compose(upper_lattice(loss, step), self.steps, theta, upper=True),
        )


def _gap_in_eps(lower: float, upper: float) -> float:
    """The relative gap, except for eps close to 0."""
    return (upper - lower) / max(upper, _SMALLEST_EPS)


def _least_eps(bound: Callable[[float], float], delta: float, guess: float, *, safe: bool) -> float:
    """Where a bound on delta(eps) passes `delta`: on the far side of it if `safe`, else on the near one.

    Raises:
        NumericalError: if the bound does not fall to `delta`.
    """
    low, step = 0.0, _CLOSE
    if bound(0.0) <= delta:
        # Under a tilt for `guess`, bounds from below may be trivial far from it.
        while not safe and step < 1.0 and bound(guess * (1.0 - step)) <= delta:
            step *= 2.0
        if safe or step >= 1.0:
            return 0.0
        low = guess * (1.0 - step)
    high = guess
    while bound(high) > delta:
        high *= 1.5
        if high > 1e3 * max(guess, 1.0):
            raise NumericalError(f"delta={delta!r} is below the resolution of the lattice")
    return bisect_boundary(lambda eps: bound(eps) > delta, low, high, safe=safe, rtol=_RESOLUTION)
