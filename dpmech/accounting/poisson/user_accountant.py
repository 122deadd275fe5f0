"""Poisson sampling of examples, accounted for users who have several: T mixtures of Gaussians, composed."""

import math

import scipy

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.gaussian import gaussian_sigma
from dpmech.accounting.poisson.convolution import LossMoments
from dpmech.accounting.poisson.lattice_route import LatticeRoute
from dpmech.accounting.poisson.release import UserRelease
from dpmech.accounting.sigma_search import smallest_sigma
from dpmech.exceptions import UnattainableBudgetError
from dpmech.numerics import BOUND, Bounds, quotient_down

__all__ = ["UserAccountant"]


class UserAccountant(Accountant):
    """Both directions by privacy loss distributions on lattices, from above and below.

    Args:
        release: what is accounted for.
        sensitivity: of one release to a user, m times that to one example.
    """

    def __init__(self, release: UserRelease, sensitivity: Bounds) -> None:
        self.release = release
        self.sensitivity = sensitivity
        self.route = LatticeRoute(release)
        self.by = self.route.by
        self.guarantee = BOUND

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        return self.route.delta(sigma, eps, tolerance=tolerance)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper end, however far the lower one may be."""
        return self.route.bracket(sigma, eps, tolerance)[1]

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        lower, upper = self.route.epsilon(sigma, delta, tolerance)
        return Bounds(lower if self.release.tight else 0.0, upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Safeguarded secant on the upper bound; see the base class."""
        start = self._guess(eps, delta)
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.01, progress=progress)

    def _guess(self, eps: float, delta: float) -> float:
        """A first guess at sigma: saddle-point delta at the target."""
        own = self.release
        never = own.examples * own.steps * math.log1p(-own.sampling_prob)
        if delta >= -math.expm1(never):
            raise UnattainableBudgetError(
                eps,
                delta,
                f"every sigma > 0 meets it: a user takes part with probability {-math.expm1(never):g} only",
            )
        # Examples that join together, all m or none, cost more: the search goes down from there.
        mu = 1.0 / gaussian_sigma(eps, delta)
        exponent = math.log1p((mu / own.sampling_prob) ** 2 / own.steps)
        guess = math.log(self.sensitivity.upper / math.sqrt(exponent))
        sides = [True]
        if eps < -never:  # where the loss of ADD ends
            sides.append(False)

        def excess(log_sigma: float) -> float:
            multiplier = quotient_down(math.exp(log_sigma), own.sensitivity.upper)
            losses = (own.loss(multiplier, remove=side) for side in sides)
            found = (LossMoments(*loss.sampled(), own.steps).saddle_log_delta(eps) for loss in losses)
            return max(found) - math.log(delta)

        low, high, step = guess, guess, 0.1
        while excess(low) < 0.0:
            high, low, step = low, low - step, 2.0 * step
        while excess(high) > 0.0:
            low, high, step = high, high + step, 2.0 * step
        return math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-3)) if low < high else low)
