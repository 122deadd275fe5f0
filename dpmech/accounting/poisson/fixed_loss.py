r"""The largest privacy loss of a step whose lot is a uniform set of B of n examples, one of them replaced.

With q = B / n, s the noise over the distance of what replaces each other, and A_1 = (1 - q) N(0, s^2) +
q N(1, s^2) against A_0 = N(0, s^2): no gradients have a hockey-stick curve above that of A_1 against A_0 at
eps >= 0, nor above that of A_0 against A_1 at eps < 0, in either direction. The law with this curve has the
positive losses of the one pair, the negative ones of the other, and what is left at 0. That it dominates is
shown in docs/fixed_size_lots.md.
"""

import dataclasses

import scipy

from dpmech.accounting.poisson.one_sided_loss import OneSidedLoss
from dpmech.accounting.poisson.parted_loss import PartedLoss
from dpmech.accounting.poisson.step_loss import StepLoss
from dpmech.numerics import UNIT

__all__ = ["FixedLoss"]


@dataclasses.dataclass(frozen=True)
class FixedLoss(PartedLoss):
    """The law of the loss of one step, the same in both directions.

    Args:
        joined: lower and upper end of q, in (0, 1).
        sigma_over_sensitivity: s > 0.
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    joined: tuple[float, float]
    sigma_over_sensitivity: float
    reach: float = 38.0

    def _parts(self, end: int) -> list[tuple[float, StepLoss]]:
        """Of both signs: the negative losses mirror the positive ones, each under its own first law."""
        q, s = self.joined[end], self.sigma_over_sensitivity
        return [(1.0, OneSidedLoss(q, 1, s, remove=sign, reach=self.reach)) for sign in (True, False)]

    def _at_zero(self, end: int) -> float:
        """What is left at 0: (1 - q) P(|N(0, 1)| < 1 / (2 s)); its ends are 8 u further."""
        near = 1.0 - 2.0 * float(scipy.special.ndtr(-0.5 / self.sigma_over_sensitivity))
        return max(0.0, (1.0 - self.joined[1 - end]) * near + (-8.0, 8.0)[end] * UNIT)
