r"""The privacy loss of a step whose lot is cut down to B examples where more were drawn.

With q the probability of every coin, tau that B or more of the others were drawn, and p that the example is
kept if so: with probability 1 - tau the pair is that of plain Poisson sampling. With probability tau it is
the pair whose hockey-stick curve is, of P against Q (A_u as in `one_sided_loss`), that of A_2 against A_1 at
eps >= 0, and that of A_0 against A_1 at eps < 0: the largest curve of all that gradients allow. Its law has
the positive losses of the one, the negative ones of the other, and what is left at 0. That it dominates is
shown in docs/truncated_lots.md.
"""

import dataclasses

import scipy

from dpmech.accounting.poisson.lattice import Loss
from dpmech.accounting.poisson.one_sided_loss import OneSidedLoss
from dpmech.accounting.poisson.parted_loss import PartedLoss
from dpmech.accounting.poisson.step_loss import StepLoss
from dpmech.numerics import UNIT

__all__ = ["TruncatedLoss"]

Ends = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class TruncatedLoss(PartedLoss):
    """The law of the loss of one step in one direction.

    Args:
        sampling_prob: q in (0, 1].
        untruncated: lower and upper end of 1 - tau.
        truncated: of tau.
        kept: of p, in (0, 1).
        sigma_over_sensitivity: s > 0.
        remove: the direction: P is with the example (True) or without (False).
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    sampling_prob: float
    untruncated: Ends
    truncated: Ends
    kept: Ends
    sigma_over_sensitivity: float
    remove: bool
    reach: float = 38.0

    def _parts(self, end: int) -> list[tuple[float, StepLoss]]:
        """Of Poisson sampling where the lot was not full, and of both signs where it was."""
        s, kept, weight = self.sigma_over_sensitivity, self.kept[end], self.truncated[end]
        above, below = (2, 1) if self.remove else (1, 2)
        parts: list[tuple[float, StepLoss]] = []
        if self.untruncated[1] > 0.0:
            parts.append((self.untruncated[end], Loss(self.sampling_prob, s, self.remove, self.reach)))
        parts.append((weight, OneSidedLoss(kept, above, s, remove=True, reach=self.reach)))
        parts.append((weight, OneSidedLoss(kept, below, s, remove=False, reach=self.reach)))
        return parts

    def _at_zero(self, end: int) -> float:
        """What is left at 0: (1 - p) P(|N(0, 1)| < 1 / (2 s) or so), tau times; its ends are 8 u further."""
        near, far = (float(scipy.special.ndtr(-k / self.sigma_over_sensitivity)) for k in (0.5, 1.5))
        aside = (-8.0, 8.0)[end] * UNIT
        return self.truncated[end] * max(0.0, (1.0 - self.kept[1 - end]) * (1.0 - near - far) + aside)
