"""Poisson sampling of lots of at most B examples: T mixtures of what full lots and others lose."""

import contextlib
from collections.abc import Iterator

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.poisson.accountant import PoissonAccountant, saddle_point_sigma
from dpmech.accounting.poisson.lattice_route import LatticeRoute
from dpmech.accounting.poisson.release import PoissonRelease, TruncatedRelease
from dpmech.accounting.sigma_search import smallest_sigma
from dpmech.exceptions import NumericalError
from dpmech.numerics import BOUND, Bounds, next_down, next_up, product_up

__all__ = ["TruncatedAccountant"]

# Where a truncation anywhere in the run is so rare against delta, it counts as a failure.
_RARE = 1e-4


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    """Say what to do where lattices end in an error."""
    try:
        yield
    except NumericalError as error:
        raise NumericalError(
            f"{error}; a full lot loses far more than others do. Try a larger max_lot_size (six standard "
            "deviations above the mean size cost nothing) or a smaller sampling_prob"
        ) from error


class TruncatedAccountant(Accountant):
    """Both directions from above by the law that dominates; from below by a run that is one of those allowed.

    From above, a step whose lot could be truncated counts as such with what it loses at most, on lattices;
    or, where a truncation in the whole run is less likely than a ten-thousandth of delta, its probability is
    added to the delta of Poisson sampling. From below, the others have gradients of zero: that is Poisson
    sampling with the probability of being in the lot.

    Args:
        release: what is accounted for.
    """

    def __init__(self, release: TruncatedRelease) -> None:
        self.release = release
        self.sensitivity = release.sensitivity
        self.route = LatticeRoute(release)
        self.by = self.route.by
        self.guarantee = BOUND
        odds, steps = release.truncation, release.steps
        # That any lot of the run is truncated: a bound, not below T tau.
        self._ever = product_up(odds.truncated[1], steps)
        self._alone = PoissonAccountant(
            PoissonRelease(odds.joined[0], steps, release.sensitivity, release.tight)
        )
        self._whole = (
            PoissonAccountant(PoissonRelease(odds.sampling_prob, steps, release.sensitivity))
            if odds.sampling_prob < 1.0 and self._ever <= _RARE
            else None
        )

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        upper = self.bounded_delta(sigma, eps, tolerance=tolerance).upper
        lower = self._alone.delta(sigma, eps, tolerance=tolerance).lower
        return Bounds(min(lower, upper), upper, self.guarantee, self.by)

    def bounded_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Of the law that dominates; where truncation is a rare failure, of Poisson sampling below."""
        upper = self._rarely_truncated(sigma, eps, tolerance)
        if upper is None or self._whole is None:
            with _advised():
                return self.route.delta(sigma, eps, tolerance=tolerance)
        plain = self._whole.delta(sigma, eps, tolerance=tolerance)
        return Bounds(plain.lower, upper, self.guarantee, self.by)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper end, however far the lower one may be."""
        upper = self._rarely_truncated(sigma, eps, tolerance)
        if upper is not None:
            return upper
        with _advised():
            return self.route.bracket(sigma, eps, tolerance)[1]

    def _rarely_truncated(self, sigma: float, eps: float, tolerance: float) -> float | None:
        """Upper delta where truncation is a rare failure; None where it is not."""
        if self._whole is None:
            return None
        upper = self._whole.upper_delta(sigma, eps, tolerance=tolerance)
        return min(1.0, next_up(upper + self._ever)) if self._ever <= _RARE * upper else None

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        lower = self._alone.epsilon(sigma, delta, tolerance=tolerance).lower
        if self._whole is not None and self._ever <= _RARE * delta:
            upper = self._whole.epsilon(sigma, next_down(delta - self._ever), tolerance=tolerance).upper
            return Bounds(min(lower, upper), upper, self.guarantee, self.by)
        with _advised():
            upper = self.route.epsilon(sigma, delta, tolerance)[1]
        return Bounds(min(lower, upper), upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Safeguarded secant on the upper bound; see the base class."""
        start = saddle_point_sigma(self._alone.release, eps, delta)
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.01, progress=progress)
