r"""The privacy loss of a step whose lot is cut down to B examples where more were drawn.

With q the probability of every coin, tau that B or more of the others were drawn, and p that the example is
kept if so: with probability 1 - tau the pair is that of plain Poisson sampling. With probability tau it is
the pair whose hockey-stick curve is, of P against Q (A_u as in `one_sided_loss`), that of A_2 against A_1 at
eps >= 0, and that of A_0 against A_1 at eps < 0: the largest curve of all that gradients allow. Its law has
the positive losses of the one, the negative ones of the other, and what is left at 0. That it dominates is
shown in docs/truncated_lots.md.
"""

import dataclasses
from typing import ClassVar

import numpy as np
import scipy

from dpmech.accounting.poisson.lattice import Loss
from dpmech.accounting.poisson.one_sided_loss import OneSidedLoss
from dpmech.accounting.poisson.step_loss import AnyLoss
from dpmech.numerics import UNIT, FloatArray, IntArray

__all__ = ["TruncatedLoss"]

Ends = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class TruncatedLoss(AnyLoss):
    """The law of the loss of one step in one direction.

    Args:
        sampling_prob: q in (0, 1].
        untruncated: lower and upper end of 1 - tau.
        truncated: of tau.
        kept: of p, in (0, 1).
        noise_multiplier: s > 0.
        remove: the direction: P is with the example (True) or without (False).
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    exact_cuts: ClassVar[bool] = False
    sampling_prob: float
    untruncated: Ends
    truncated: Ends
    kept: Ends
    noise_multiplier: float
    remove: bool
    reach: float = 38.0

    def _parts(self, end: int) -> list[tuple[float, Loss | OneSidedLoss]]:
        """Weighted laws, without what lies at 0; by the lower (0) or the upper end (1) of all numbers."""
        s, kept, weight = self.noise_multiplier, self.kept[end], self.truncated[end]
        above, below = (2, 1) if self.remove else (1, 2)
        parts: list[tuple[float, Loss | OneSidedLoss]] = []
        if self.untruncated[1] > 0.0:
            parts.append((self.untruncated[end], Loss(self.sampling_prob, s, self.remove, self.reach)))
        parts.append((weight, OneSidedLoss(kept, above, s, remove=True, reach=self.reach)))
        parts.append((weight, OneSidedLoss(kept, below, s, remove=False, reach=self.reach)))
        return [(weight, part) for weight, part in parts if weight > 0.0]

    def _at_zero(self, end: int) -> float:
        """What is left at 0: (1 - p) P(|N(0, 1)| < 1 / (2 s) or so), tau times; its ends are 8 u further."""
        near, far = (float(scipy.special.ndtr(-k / self.noise_multiplier)) for k in (0.5, 1.5))
        aside = (-8.0, 8.0)[end] * UNIT
        return self.truncated[end] * max(0.0, (1.0 - self.kept[1 - end]) * (1.0 - near - far) + aside)

    def interval(self) -> tuple[float, float]:
        """Over all parts; 0 lies inside."""
        ends = [part.interval() for _, part in self._parts(1)]
        return min(0.0, *(low for low, _ in ends)), max(0.0, *(high for _, high in ends))

    def tail_mass(self) -> float:
        """Of three parts, each with its weight."""
        weight = self.untruncated[1] + 2.0 * self.truncated[1]
        return 2.0 * weight * float(scipy.special.ndtr(-self.reach))

    def sampled(self) -> tuple[FloatArray, FloatArray]:
        """Of all parts, by increasing losses."""
        pieces = [(part.sampled(), weight) for weight, part in self._parts(1)]
        at_zero = np.array([max(self._at_zero(1), 1e-300)])
        losses = np.concatenate([np.zeros(1), *(values for (values, _), _ in pieces)])
        masses = np.concatenate([np.log(at_zero), *(logs + np.log(weight) for (_, logs), weight in pieces)])
        order = np.argsort(losses, kind="stable")
        return losses[order], masses[order]

    def quadrature(self, edges: FloatArray, *, upwards: bool) -> tuple[FloatArray, FloatArray, IntArray]:
        """Nodes of all parts, and one for what lies at 0; see the base class."""
        end, aside = (1, 1.0) if upwards else (0, -1.0)
        losses, masses = [np.zeros(1)], [np.array([self._at_zero(end)])]
        cells = [np.searchsorted(edges, np.zeros(1), side="right") - 1]
        for weight, part in self._parts(end):
            own, weights, places = part.quadrature(edges, upwards=upwards)
            losses.append(own)
            masses.append(weights * (weight * (1.0 + aside * 4.0 * UNIT)))
            cells.append(places)
        return np.concatenate(losses), np.concatenate(masses), np.concatenate(cells)
