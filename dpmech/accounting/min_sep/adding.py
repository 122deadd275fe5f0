r"""The ADD mixture of b-min-sep sampling: Gaussians along one direction, with a proved weight bound.

For any other law rho of the participations the variational formula gives, wherever L <= -eps,

    sum_t rho_t w_t <= L + sum_t rho_t K_tt / 2 + KL(rho || P) <= -c,    rho_t = rho(step t is joined),

c = eps - sum_t rho_t K_tt / 2 - KL(rho || P): the set lies beyond a hyperplane. rho is a tilt, whose
marginals and divergence the recursion gives, chosen to make the distance c / sqrt(rho^T K rho) large.
"""

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import Self

import numpy as np

from dpmech.accounting.balls_in_bins import ADD_PARTS, AddPoint, AddProposal, LogError, add_mixture
from dpmech.accounting.min_sep.gram import ChainGram, Tilt, loss_rounding
from dpmech.numerics import UNIT, FloatArray

__all__ = ["ChainAdd"]

_STEPS, _SETTLED, _FAR = 40, 1e-9, 1e4


@dataclasses.dataclass(frozen=True)
class ChainAdd(AddProposal):
    """The ADD mixture: as `AddProposal`, with the likelihood ratio of the chain."""

    gram: ChainGram

    @classmethod
    def at(cls, gram: ChainGram, eps: float, names: Collection[str] | None = None) -> Self:  # type: ignore[override]  # of its own Gram matrix
        """The mixture at eps, with equal probabilities."""
        del names
        point = _point(gram, eps)
        curvature = 0.5 * float(point.direction @ gram.diagonal)
        tilts = np.array([max(point.depth + part * curvature, 0.0) for part in ADD_PARTS]) / point.square
        return cls(gram, eps, point, tilts, None, np.full(tilts.size, 1.0 / tilts.size))

    @functools.cached_property
    def loss_rounding(self) -> LogError:
        """Of the recursion."""
        return loss_rounding(self.gram, self.farthest)

    def losses(self, values: FloatArray) -> FloatArray:
        """Log dP/dQ of rows w."""
        return self.gram.losses(values)


def _point(gram: ChainGram, eps: float) -> AddPoint:
    half = 0.5 * gram.diagonal
    gains, height = np.zeros(gram.bins), -math.inf
    best = AddPoint(gains, gains, 1.0, 0.0, 0.0)
    for _ in range(_STEPS):
        law = gram.tilt(gains)
        direction = law.marginals()
        image = gram.matvec(direction)
        square = float(image @ direction)
        depth = eps - float(direction @ half) - (float(direction @ gains) - law.log_total)
        found = math.copysign(depth**2, depth) / square
        if found > height:
            best = AddPoint(direction, image, square, depth, _rounding(gram, law, eps))
        # Where nobody joins with more than e^-eps the set is empty, and the distance has no end.
        if depth <= 0.0 or found > _FAR or found - height < _SETTLED * abs(found):
            break
        height = max(height, found)
        gains = 0.5 * gains + 0.5 * (-(depth / square) * image - half)
    return best


def _rounding(gram: ChainGram, law: Tilt, eps: float) -> float:
    """How far the depth may be off: of the recursion, and of n terms each of two sums."""
    gains = float(np.abs(law.gains).max())
    largest = gains + float(gram.diagonal.max())
    total = 1.001 * float(law.marginals().sum())
    recursion = gram.sum_rounding(gains, 8.0 * UNIT * gains)
    terms = total * largest * (gram.entry_rounding + (2.0 * gram.bins + 40.0) * UNIT)
    return recursion.error + terms + 8.0 * UNIT * (eps + recursion.size)


add_mixture.register(ChainGram, ChainAdd.at)
