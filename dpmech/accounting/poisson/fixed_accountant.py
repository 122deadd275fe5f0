"""Lots of exactly B of n examples, one of which is replaced: T of the largest losses that one step allows."""

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.poisson.accountant import PoissonAccountant, saddle_point_sigma
from dpmech.accounting.poisson.lattice_route import LatticeRoute
from dpmech.accounting.poisson.release import FixedRelease, PoissonRelease
from dpmech.accounting.sigma_search import smallest_sigma
from dpmech.numerics import BOUND, Bounds

__all__ = ["FixedAccountant"]


class FixedAccountant(Accountant):
    """From above by the law that dominates every step, on lattices; from below by one run that is possible.

    From below, the gradients of all others, and the one that is replaced, are against the one that
    replaces it: that is Poisson sampling with q = B / n of an example of twice the norm. A single step has
    the curve of that pair, so that both ends meet.

    Args:
        release: what is accounted for.
    """

    def __init__(self, release: FixedRelease) -> None:
        self.release = release
        self.sensitivity = release.sensitivity
        self.route = LatticeRoute(release)
        self.by = self.route.by
        self.guarantee = BOUND
        least, most = (
            PoissonAccountant(PoissonRelease(q, release.steps, release.sensitivity, release.tight))
            for q in release.draw.joined
        )
        self._attained = least
        self._one_step = most if release.steps == 1 else None

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        upper = self.upper_delta(sigma, eps, tolerance=tolerance)
        lower = self._attained.delta(sigma, eps, tolerance=tolerance).lower
        return Bounds(min(lower, upper), upper, self.guarantee, self.by)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper end, however far the lower one may be."""
        if self._one_step is not None:
            return self._one_step.upper_delta(sigma, eps, tolerance=tolerance)
        return self.route.bracket(sigma, eps, tolerance)[1]

    def bounded_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Of the law that dominates."""
        if self._one_step is not None:
            return self.delta(sigma, eps, tolerance=tolerance)
        return self.route.delta(sigma, eps, tolerance=tolerance)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        lower = self._attained.epsilon(sigma, delta, tolerance=tolerance).lower
        if self._one_step is not None:
            upper = self._one_step.epsilon(sigma, delta, tolerance=tolerance).upper
        else:
            upper = self.route.epsilon(sigma, delta, tolerance)[1]
        return Bounds(min(lower, upper), upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Safeguarded secant on the upper bound; see the base class."""
        start = saddle_point_sigma(self._attained.release, eps, delta)
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.05, progress=progress)
