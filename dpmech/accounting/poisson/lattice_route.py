"""Delta under Poisson sampling by lattices and convolution: the second route to what the transform gives."""

import dataclasses
import math

import scipy

from dpmech.accounting.poisson.convolution import LOG_WRAP, MAX_LENGTH, ComposedLoss, LossMoments, compose
from dpmech.accounting.poisson.lattice import Loss, lower_lattice, upper_lattice
from dpmech.accounting.poisson.release import PoissonRelease
from dpmech.exceptions import NumericalError
from dpmech.numerics import BOUND, Bounds, Ladder, Provenance, log_gap, quotient_down, quotient_up

__all__ = ["LatticeRoute"]

# The first and the finest step, in standard deviations of one tilted loss.
_FIRST, _FINEST = 0.04, 1e-6
# How much of the tolerance a lattice may use up.
_OF_DELTA = 0.5
# Below this delta no lattice is needed: Chernoff's bound says enough.
_NOTHING = 1e-300
# Beyond this step e^step nears the end of float64.
_COARSEST = 500.0
# The moments behind Chernoff's bound come from quadrature. It stands in for a direction only where it says
# half of what the other direction has: T log M would have to be off by log 2 for the bound to fail.
_CHERNOFF_SLACK = math.log(2.0)


class LatticeRoute:
    """Privacy loss distributions of both directions on a lattice tied to the loss at hand.

    Both ends are rigorous, rounding included; the lattice is refined until they are as close as asked.

    Args:
        release: what is accounted for.
    """

    def __init__(self, release: PoissonRelease) -> None:
        self.release = release
        self.by = Provenance("lattice.poisson", {"q": release.sampling_prob, "steps": release.steps})

    @property
    def method(self) -> str:
        """The route in words."""
        return str(self.by)

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta at eps >= 0, no further apart than a change of sigma by `tolerance` makes.

        Raises:
            NumericalError: where no lattice is fine enough for that.
        """
        first, second = sorted(
            (_Side(self.release, sigma, remove=remove) for remove in (True, False)),
            key=lambda side: -side.moments.chernoff_log_delta(eps),
        )
        if math.exp(first.moments.chernoff_log_delta(eps) + _CHERNOFF_SLACK) <= _NOTHING:
            return Bounds(0.0, _NOTHING, BOUND, self.by)
        lower, upper = first.delta(eps, tolerance)
        ceiling = math.exp(second.moments.chernoff_log_delta(eps) + _CHERNOFF_SLACK)
        if ceiling > lower:
            other = second.delta(eps, tolerance)
            lower, ceiling = max(lower, other[0]), other[1]
        upper = max(upper, ceiling)
        if not (lower > 0.0 and math.log(upper / lower) <= tolerance * first.steepness(eps)):
            raise NumericalError(
                f"delta at sigma={sigma!r} is only known to lie in [{lower!r}, {upper!r}] ({self.method}), "
                "wider than the tolerance"
            )
        return Bounds(lower if self.release.tight else 0.0, upper, BOUND, self.by)


class _Side:
    """One direction at one sigma."""

    def __init__(self, release: PoissonRelease, sigma: float, *, remove: bool) -> None:
        # The upper sensitivity never over-states privacy, and the lower one never under-states it.
        self.steps = release.steps
        self.loss = Loss(release.sampling_prob, quotient_down(sigma, release.sensitivity.upper), remove)
        self.most_noise = quotient_up(sigma, release.sensitivity.lower)
        self.moments = LossMoments(*self.loss.sampled(), self.steps)

    def steepness(self, eps: float) -> float:
        """How fast log delta falls with log sigma: like theta eps at least, not slower than 1 / sigma."""
        return max(1.0, self.moments.tilt_for_eps(eps) * eps)

    def delta(self, eps: float, tolerance: float) -> tuple[float, float]:
        """Lower and upper delta, on lattices as fine as `tolerance`, a change of sigma, asks for."""
        theta = self.moments.tilt_for_eps(eps)
        loss, ladder = self._lattices(theta, self.moments.chernoff_log_delta(eps))

        def interval(step: float) -> tuple[float, float]:
            lower, upper = self._composed(loss, step, theta)
            least, most = lower.delta(eps), upper.delta(eps)
            return min(least, most), most

        found = ladder.climb(interval, log_gap, goal=_OF_DELTA * tolerance * self.steepness(eps))
        return found.lower, found.upper

    def _lattices(self, theta: float, log_delta: float) -> tuple[Loss, Ladder]:
        """The loss without tails that do not matter, and the steps of its lattices.

        The gap between the ends falls like the square of the step once the step resolves the loss, and in
        proportion to it before.
        """
        # Outputs so rare that they change delta by less than one part in 1e9 count as tails.
        tail = max(min(log_delta, -1.0) - 21.0 - math.log(self.steps), -725.0)
        reach = min(38.0, -float(scipy.special.ndtri_exp(tail)))
        loss = dataclasses.replace(self.loss, reach=reach)
        spread = math.sqrt(self.moments.cumulants(theta)[2])
        least, most = self.moments.window(theta, LOG_WRAP)
        finest = max(loss.finest_step(), _FINEST * spread, (most - least) / (0.9 * MAX_LENGTH))
        if finest > _COARSEST:
            raise NumericalError(f"the losses of {loss!r} are too large for a lattice")
        return loss, Ladder.down(min(_FIRST * spread, _COARSEST), finest)

    def _composed(self, loss: Loss, step: float, theta: float) -> tuple[ComposedLoss, ComposedLoss]:
        """The composed lower and upper lattice."""
        private = dataclasses.replace(loss, noise_multiplier=self.most_noise)
        return (
            compose(lower_lattice(private, step), self.steps, theta, upper=False),
            compose(upper_lattice(loss, step), self.steps, theta, upper=True),
        )
