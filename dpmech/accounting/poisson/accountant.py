"""Poisson sampling: T steps, each a Gaussian release of a random lot, composed."""

import math

import scipy

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.gaussian import gaussian_sigma
from dpmech.accounting.poisson.direction import Direction
from dpmech.accounting.poisson.lattice import Loss
from dpmech.accounting.poisson.line import Sketch
from dpmech.accounting.poisson.one_step import one_step_delta, one_step_epsilon
from dpmech.accounting.poisson.release import PoissonRelease
from dpmech.accounting.sigma_search import gaussian_scale, smallest_sigma
from dpmech.exceptions import NumericalError, UnattainableBudgetError
from dpmech.numerics import BOUND, Bounds, Provenance, quotient_down, quotient_up

__all__ = ["PoissonAccountant", "saddle_point_sigma"]

# Below this delta Chernoff's bound says enough.
_NOTHING = 1e-300
# Bounds wider than this (relative in eps, as a change of sigma in delta) are refused, not returned.
_WIDEST = 0.01
_SMALLEST_EPS = 1e-9
# How wide brackets around the first guess may be, in units of the root of rtol; how often it is mended.
_COARSE, _MOST_CORRECTIONS = 0.15, 8


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
    sides = [True]
    if eps < -release.steps * math.log1p(-release.sampling_prob):  # where the loss of ADD ends
        sides.append(False)

    def excess(log_sigma: float) -> float:
        multiplier = quotient_down(math.exp(log_sigma), release.sensitivity.upper)
        sketches = (Sketch(Loss(release.sampling_prob, multiplier, side), release.steps) for side in sides)
        return max(sketch.line(eps).log_delta for sketch in sketches) - math.log(delta)

    low, high, step = guess, guess, 0.05
    while excess(low) < 0.0:
        high, low, step = low, low - step, 2.0 * step
    while excess(high) > 0.0:
        low, high, step = high, high + step, 2.0 * step
    return (
        math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-3))) if low < high else math.exp(low)
    )


class PoissonAccountant(Accountant):
    """Both directions by the transform of the privacy loss distribution, along a line in the complex plane.

    The upper end is a rigorous bound, rounding included; so is the lower end. The smoothing that makes the
    integral finite is narrowed until they are as close as asked.
    """

    def __init__(self, release: PoissonRelease) -> None:
        self.release = release
        self.sensitivity = release.sensitivity
        self.by = Provenance("pld.poisson", {"q": release.sampling_prob, "steps": release.steps})
        self.guarantee = BOUND
        # The last bracket: a search ends where it has just looked, and its end is checked there.
        self._asked = (math.nan, math.nan, math.nan), (0.0, 1.0, 1.0)

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
        asked = sigma, eps, tolerance
        if asked != self._asked[0]:
            self._asked = asked, self._found(*asked)
        return self._asked[1]

    def _found(self, sigma: float, eps: float, tolerance: float) -> tuple[float, float, float]:
        if self.release.steps == 1:
            return *one_step_delta(self.release.sampling_prob, self._multipliers(sigma), eps), math.inf
        ranked = sorted(
            ((side.log_ceiling(eps), side) for side in self._directions(sigma)), key=lambda pair: -pair[0]
        )
        (most_of_all, first), (ceiling, second) = ranked
        if math.exp(most_of_all) <= _NOTHING:
            return 0.0, _NOTHING, 1.0
        lower, upper, slope = first.delta(eps, tolerance)
        if math.exp(ceiling) > lower:
            least, most, other = second.delta(eps, tolerance)
            slope = min(slope, other) if most > lower else slope
            lower, upper = max(lower, least), max(upper, most)
        return lower, max(lower, min(upper, math.exp(most_of_all))), slope

    def _multipliers(self, sigma: float) -> tuple[float, float]:
        """Sigma over the sensitivity, not below it for lower ends and not above it for upper ones."""
        return quotient_up(sigma, self.sensitivity.lower), quotient_down(sigma, self.sensitivity.upper)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        if self.release.steps == 1:
            ends = one_step_epsilon(self.release.sampling_prob, self._multipliers(sigma), delta)
            return Bounds(*ends, self.guarantee, self.by)
        remove, add = self._directions(sigma)
        lower, upper = remove.epsilon(delta, tolerance)
        # Where ADD has no more than delta at the lower end, its own eps is not above that.
        if add.log_ceiling(lower) > math.log(delta) and add.delta(lower, tolerance)[1] > delta:
            other = add.epsilon(delta, tolerance)
            lower, upper = max(lower, other[0]), max(upper, other[1])
        # Both ends hold: this decides only whether they are close enough to be of use.
        if upper - lower > max(tolerance, _WIDEST) * upper + _SMALLEST_EPS:
            raise self._too_wide(sigma, "eps", lower, upper)
        return Bounds(lower if self.release.tight else 0.0, upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Safeguarded secant on the upper bound; see the base class."""
        start = saddle_point_sigma(self.release, eps, delta)
        step = 0.01
        if self.release.steps > 1:
            # Where the upper end is on the safe side, and a step from there where it is not.
            start, step = self._closer(start, eps, delta, rtol) * (1.0 + 0.25 * rtol), 0.35 * rtol
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=step, progress=progress)

    def _closer(self, start: float, eps: float, delta: float, rtol: float) -> float:
        """A sigma that is close to where delta is met, from the middle of coarse brackets.

        The middle is off by the square of what the ends are, so that brackets as wide as the root of rtol
        will do. `gaussian_scale` is close to linear in log sigma; its slope is at first taken for 1.
        """
        target, tolerance = gaussian_scale(eps, delta), _COARSE * math.sqrt(rtol)
        here, slope, last = math.log(start), 1.0, (math.nan, math.nan)
        for _ in range(_MOST_CORRECTIONS):
            lower, upper, _ = self._bracket(math.exp(here), eps, tolerance)
            short = gaussian_scale(eps, 0.5 * (lower + upper)) - target
            if here != last[0] and (short - last[1]) / (here - last[0]) > 0.02:
                slope = (short - last[1]) / (here - last[0])
            last = here, short
            here -= min(max(short / slope, -1.0), 1.0)
            if abs(here - last[0]) <= 0.1 * rtol:
                break
        return math.exp(here)

    def _directions(self, sigma: float) -> tuple[Direction, Direction]:
        return Direction(self.release, sigma, remove=True), Direction(self.release, sigma, remove=False)

    def _too_wide(self, sigma: float, name: str, lower: float, upper: float) -> NumericalError:
        return NumericalError(
            f"{name} at sigma={sigma!r} is only known to lie in [{lower!r}, {upper!r}] ({self.method}), "
            "wider than the tolerance"
        )
