"""Poisson sampling: T steps, each a Gaussian release of a random lot, composed."""

import dataclasses
import math

import scipy

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_sigma
from dpmech.accounting.poisson.convolution import LOG_WRAP, MAX_LENGTH, ComposedLoss, LossMoments, compose
from dpmech.accounting.poisson.lattice import Loss, lower_lattice, upper_lattice
from dpmech.accounting.sigma_search import smallest_sigma
from dpmech.exceptions import NumericalError, UnattainableBudgetError
from dpmech.numerics import (
    BOUND,
    UNIT,
    Bounds,
    Ladder,
    Provenance,
    bisect_boundary,
    log_gap,
    outward,
    quotient_down,
    quotient_up,
    relative_gap,
)

__all__ = ["PoissonAccountant", "PoissonRelease", "saddle_point_sigma"]

# The first and the finest step, in standard deviations of one tilted loss.
_FIRST, _FINEST = 0.04, 1e-6
# How much of the tolerance a lattice may use up; the rest is for the search around it.
_OF_DELTA, _OF_EPS = 0.5, 0.25
# Below this delta no lattice is needed: Chernoff's bound says enough.
_NOTHING = 1e-300
# Where a search for eps starts at least.
_SMALLEST_EPS = 1e-9
# Bounds wider than this (relative in eps, as a change of sigma in delta) are refused, not returned.
_WIDEST = 0.01
# Beyond this step e^step nears the end of float64.
_COARSEST = 500.0
# The moments behind Chernoff's bound come from quadrature. It stands in for a direction only where it says
# half of what the other direction has: T log M would have to be off by log 2 for the bound to fail.
_CHERNOFF_SLACK = math.log(2.0)


@dataclasses.dataclass(frozen=True)
class PoissonRelease:
    """T Poisson-subsampled Gaussian releases.

    Args:
        sampling_prob: q in (0, 1).
        steps: T >= 1.
        sensitivity: of one release.
        tight: whether all T releases reach that sensitivity; if not, there is no lower bound.
    """

    sampling_prob: float
    steps: int
    sensitivity: Bounds
    tight: bool = True


def saddle_point_sigma(release: PoissonRelease, eps: float, delta: float) -> float:
    """A first guess at sigma: saddle-point delta at the target, searched from the central limit theorem."""
    taken_part = -math.expm1(release.steps * math.log1p(-release.sampling_prob))
    if delta >= taken_part:
        raise UnattainableBudgetError(
            eps,
            delta,
            f"every sigma > 0 meets it, as an example takes part with probability {taken_part:g} only",
        )
    mu = 1.0 / gaussian_sigma(eps, delta)
    exponent = math.log1p((mu / release.sampling_prob) ** 2 / release.steps)
    guess = math.log(release.sensitivity.upper / math.sqrt(exponent))

    def excess(log_sigma: float) -> float:
        sides = (_Direction(release, math.exp(log_sigma), remove=remove) for remove in (True, False))
        return max(side.moments.saddle_log_delta(eps) for side in sides) - math.log(delta)

    low, high, step = guess, guess, 0.05
    while excess(low) < 0.0:
        high, low, step = low, low - step, 2.0 * step
    while excess(high) > 0.0:
        low, high, step = high, high + step, 2.0 * step
    return (
        math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-4))) if low < high else math.exp(low)
    )


class PoissonAccountant(Accountant):
    """Privacy loss distributions of both directions on a lattice tied to the loss at hand.

    The upper end is a rigorous bound, rounding included; so is the lower end. The lattice is refined
    until they are as close as asked.
    """

    def __init__(self, release: PoissonRelease) -> None:
        self.release = release
        self.sensitivity = release.sensitivity
        self.by = Provenance("pld.poisson", {"q": release.sampling_prob, "steps": release.steps})
        self.guarantee = BOUND

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        lower, upper, slope = self._bracket(sigma, eps, tolerance)
        allowed = max(tolerance, _WIDEST) * slope
        if upper > _NOTHING and not (lower > 0.0 and math.log(upper / lower) <= allowed):
            raise self._too_wide(sigma, "delta", lower, upper)
        return Bounds(lower if self.release.tight else 0.0, upper, self.guarantee, self.by)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper end, however far the lower one may be."""
        return self._bracket(sigma, eps, tolerance)[1]

    def _bracket(self, sigma: float, eps: float, tolerance: float) -> tuple[float, float, float]:
        """Lower and upper delta, and how fast log delta changes with log sigma at least."""
        if self.release.steps == 1:
            return *self._one_step(sigma, eps), math.inf
        first, second = sorted(
            self._directions(sigma), key=lambda side: -side.moments.chernoff_log_delta(eps)
        )
        if math.exp(first.moments.chernoff_log_delta(eps) + _CHERNOFF_SLACK) <= _NOTHING:
            return 0.0, _NOTHING, 1.0
        lower, upper = first.delta(eps, tolerance)
        ceiling = math.exp(second.moments.chernoff_log_delta(eps) + _CHERNOFF_SLACK)
        if ceiling > lower:
            other = second.delta(eps, tolerance)
            lower, ceiling = max(lower, other[0]), other[1]
        upper = max(upper, ceiling)
        # delta falls at least like sigma^-(theta eps), and never slower than like 1 / sigma.
        return lower, upper, max(1.0, first.moments.tilt_for_eps(eps) * eps)

    def _one_step(self, sigma: float, eps: float) -> tuple[float, float]:
        """Lower and upper delta of a single step, from the plain Gaussian mechanism: exact up to rounding.

        REMOVE is q H_a(N(1) || N(0)) with e^a = 1 + (e^eps - 1) / q, and ADD is c H_a(N(0) || N(1)) with
        c = 1 - e^eps (1 - q) and e^a = q e^eps / c, or 0 where c <= 0.
        """
        q = self.release.sampling_prob
        growth = math.expm1(min(eps, 700.0)) / q
        small = eps < 700.0 and growth < math.inf
        a = math.log1p(growth) if small else eps - math.log(q)
        # An elementary function of the C library is off by 4 u (2 units in the last place), all else by u;
        # log1p passes relative errors on at most as they are: 9 u of a. The rest of the sum is below e^-700
        # beyond.
        off = 12.0 * UNIT * (a if small else a + abs(math.log(q)))
        # c = q - (e^eps - 1) (1 - q) cancels where the two are close: 7 u of the product, and u of c.
        possible = eps < 1.0 - math.log1p(-q)
        share = q - math.expm1(eps) * (1.0 - q) if possible else 0.0
        share_off = 8.0 * UNIT * (q + math.expm1(eps)) if possible else 0.0
        found = []
        for end, multiplier in enumerate(self._multipliers(sigma)):
            side = -1.0 if end == 0 else 1.0
            value = q * gaussian_delta(multiplier, max(0.0, a - side * off))[end]
            # ADD grows with c, at a fixed q e^eps.
            part = share + side * share_off
            if part > 0.0:
                exponent = math.log(q) + eps - math.log(part)
                slack = 8.0 * UNIT * (abs(math.log(q)) + eps + abs(math.log(part)))
                value = max(value, part * gaussian_delta(multiplier, max(0.0, exponent - side * slack))[end])
            found.append(outward(value, value, 2.0 * UNIT)[end])
        # Subnormal numbers are not accurate to that.
        return (found[0] if found[0] > _NOTHING else 0.0), min(1.0, max(found[1], _NOTHING))

    def _multipliers(self, sigma: float) -> tuple[float, float]:
        """Sigma over the sensitivity, not below it for lower ends and not above it for upper ones."""
        return quotient_up(sigma, self.sensitivity.lower), quotient_down(sigma, self.sensitivity.upper)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        if self.release.steps == 1:
            if self._one_step(sigma, 0.0)[1] <= delta:
                return Bounds(0.0, 0.0, self.guarantee, self.by)
            # Sampling only lowers it, up to rounding.
            high = max(gaussian_epsilon(self._multipliers(sigma)[1], delta, safe=True), _SMALLEST_EPS)
            while self._one_step(sigma, high)[1] > delta:
                high *= 2.0
                if math.isinf(high):
                    raise NumericalError(f"delta={delta!r} is below the resolution of one step")
            lower = bisect_boundary(lambda eps: self._one_step(sigma, eps)[0] > delta, 0.0, high, safe=False)
            upper = bisect_boundary(lambda eps: self._one_step(sigma, eps)[1] > delta, 0.0, high, safe=True)
            return Bounds(min(lower, upper), upper, self.guarantee, self.by)
        target = math.log(delta)
        first, second = sorted(self._directions(sigma), key=lambda side: -side.moments.chernoff_eps(target))
        lower, upper = first.epsilon(delta, tolerance)
        ceiling = second.moments.chernoff_eps(target - _CHERNOFF_SLACK)
        if ceiling > lower:
            other = second.epsilon(delta, tolerance)
            lower, ceiling = max(lower, other[0]), other[1]
        upper = max(upper, ceiling)
        # Both ends hold: this decides only whether they are close enough to be of use.
        if upper - lower > max(tolerance, _WIDEST) * upper + _SMALLEST_EPS:
            raise self._too_wide(sigma, "eps", lower, upper)
        return Bounds(lower if self.release.tight else 0.0, upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Safeguarded secant on the upper bound; see the base class."""
        return smallest_sigma(
            self,
            eps,
            delta,
            rtol=rtol,
            start=saddle_point_sigma(self.release, eps, delta),
            step=0.01,
            progress=progress,
        )

    def _directions(self, sigma: float) -> "tuple[_Direction, _Direction]":
        return _Direction(self.release, sigma, remove=True), _Direction(self.release, sigma, remove=False)

    def _too_wide(self, sigma: float, name: str, lower: float, upper: float) -> NumericalError:
        return NumericalError(
            f"{name} at sigma={sigma!r} is only known to lie in [{lower!r}, {upper!r}] ({self.method}), "
            "wider than the tolerance"
        )


class _Direction:
    """One direction at one sigma."""

    def __init__(self, release: PoissonRelease, sigma: float, *, remove: bool) -> None:
        # The upper sensitivity never over-states privacy, and the lower one never under-states it.
        self.steps = release.steps
        self.loss = Loss(release.sampling_prob, quotient_down(sigma, release.sensitivity.upper), remove)
        self.most_noise = quotient_up(sigma, release.sensitivity.lower)
        self.moments = LossMoments(*self.loss.sampled(), self.steps)

    def delta(self, eps: float, tolerance: float) -> tuple[float, float]:
        """Lower and upper delta, on lattices as fine as `tolerance`, a change of sigma, asks for."""
        theta = self.moments.tilt_for_eps(eps)
        loss, ladder = self._lattices(theta, self.moments.chernoff_log_delta(eps))

        def interval(step: float) -> tuple[float, float]:
            lower, upper = self._composed(loss, step, theta)
            least, most = lower.delta(eps), upper.delta(eps)
            return min(least, most), most

        found = ladder.climb(interval, log_gap, goal=_OF_DELTA * tolerance * max(1.0, theta * eps))
        return found.lower, found.upper

    def epsilon(self, delta: float, tolerance: float) -> tuple[float, float]:
        """Lower and upper eps, on lattices as fine as `tolerance`, relative, asks for."""
        theta = self.moments.tilt_for_delta(math.log(delta))
        loss, ladder = self._lattices(theta, math.log(delta))

        def interval(step: float) -> tuple[float, float]:
            lower, upper = self._composed(loss, step, theta)
            most = upper.upper_epsilon(delta)
            return lower.lower_epsilon(delta, most), most

        found = ladder.climb(interval, relative_gap, goal=_OF_EPS * tolerance)
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
