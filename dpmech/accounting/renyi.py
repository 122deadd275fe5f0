r"""Renyi accounting: an upper bound on both directions, never a lower one.

For the Poisson-subsampled Gaussian the REMOVE divergence is the larger one at every order (Mironov,
Talwar and Zhang 2019, Theorem 5). That of order a is log E_Q r^a / (a - 1), r the density of the mixture
over that of the noise: a moment of `poisson.transform`, with a proved error. Every order gives a bound; the
best one is searched for among all real ones above 1. Lots without replacement have a bound of their own.
"""

import functools
import math

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.gaussian import gaussian_sigma
from dpmech.accounting.poisson import Loss, transform
from dpmech.accounting.renyi_composition import Divergence, RenyiComposition
from dpmech.accounting.replaced_renyi import replaced_divergence
from dpmech.accounting.sigma_search import smallest_sigma
from dpmech.exceptions import NumericalError
from dpmech.mechanism import FixedDraw
from dpmech.numerics import BOUND, UNIT, Bounds, Provenance, next_up, quotient_down, spend

__all__ = ["RenyiAccountant"]

# What a moment may lack, of itself.
_SHARE = 1e-14


class RenyiAccountant(Accountant):
    """RDP of `steps` Gaussian releases, each Poisson-sampled with `sampling_prob` (1: not sampled).

    With a `draw`, each is of a lot of one size without replacement, and the sensitivity is that to a replaced
    example.
    """

    def __init__(
        self,
        sensitivity: Bounds,
        sampling_prob: float = 1.0,
        steps: int = 1,
        *,
        draw: FixedDraw | None = None,
    ) -> None:
        self.sensitivity = sensitivity
        self.sampling_prob = sampling_prob if draw is None else draw.joined[1]
        self.steps = steps
        self.draw = draw
        if draw is None:
            self.by = Provenance("rdp.releases", {"q": sampling_prob, "releases": steps})
        else:
            facts = {"lot": draw.lot_size, "size": draw.dataset_size, "releases": steps}
            self.by = Provenance("rdp.fixed", facts)
        self.guarantee = BOUND

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """An upper bound on delta; the lower end is 0."""
        found = RenyiComposition([self.divergence(sigma)]).delta(eps)
        return Bounds(0.0, self._checked(found, sigma), self.guarantee, self.by)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """An upper bound on eps; the lower end is 0."""
        try:
            found = RenyiComposition([self.divergence(sigma)]).epsilon(delta)
        except NumericalError as error:
            raise NumericalError(
                f"{self.method} has no divergence within float64 at sigma={sigma!r}"
            ) from error
        return Bounds(0.0, self._checked(found, sigma), self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that RDP certifies, within rtol."""
        # As many releases as there are, by the central limit theorem.
        mu = 1.0 / gaussian_sigma(eps, delta)
        start = self.sensitivity.upper / math.sqrt(math.log1p((mu / self.sampling_prob) ** 2 / self.steps))
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.1, progress=progress)

    def divergence(self, sigma: float) -> Divergence:
        """Renyi divergence of all releases at an order > 1, rounded up; infinite where float64 has none."""
        multiplier = quotient_down(sigma, self.sensitivity.upper)
        spend(2.0 if self.sampling_prob < 1.0 else 0.1, 1e8, what="Renyi divergences at all orders")
        replaced = None if self.draw is None else replaced_divergence(self.sampling_prob, multiplier)

        @functools.cache
        def found(order: float) -> float:
            if replaced is not None:
                value = self.steps * replaced(order)
            elif self.sampling_prob == 1.0:
                value = self.steps * (0.5 * order / multiplier / multiplier)
            else:
                loss = Loss(self.sampling_prob, multiplier, remove=True)
                whole = (-math.inf, math.inf)
                try:
                    one = transform(loss, order, whole, frequency=0.0, share=_SHARE)
                except NumericalError:
                    return math.inf
                value = self.steps * max(one.log_ends[1], 0.0) / (order - 1.0)
            return next_up(value * (1.0 + 8.0 * UNIT))

        return found

    def _checked(self, value: float, sigma: float) -> float:
        if not math.isfinite(value) or value < 0.0:
            raise NumericalError(f"{self.method} returned {value!r} at sigma={sigma!r}")
        return value
