"""The ADD mixture: Gaussians along one direction, with a proved weight bound, and the tilt of all bins."""

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import Self

import numpy as np

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.proposals.all_bins_tilt import CollectiveParts
from dpmech.accounting.balls_in_bins.proposals.design_points import AddPoint, add_point
from dpmech.accounting.balls_in_bins.proposals.gaussian_groups import log_mean_exp
from dpmech.accounting.balls_in_bins.proposals.mixture import (
    Proposal,
    chosen_parts,
    log_largest_weight,
    row_batches,
)
from dpmech.accounting.balls_in_bins.proposals.rounding import (
    LogError,
    farthest_normal,
    sum_product_rounding,
)
from dpmech.accounting.balls_in_bins.streams import AddDraw, generator
from dpmech.numerics import UNIT, FloatArray

__all__ = ["ADD_PARTS", "AddProposal"]

ADD_PARTS = (0.0, 0.5, 1.0)


@dataclasses.dataclass(frozen=True)
class AddProposal(Proposal):
    """The ADD mixture: Gaussians N(-tau K w, K) along one direction w, with a proved weight bound.

    A collective tilt joins them where bins are nearly independent; the bound does not rest on it.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level.
        point: the direction.
        tilts: tau of each Gaussian part, non-negative.
        collective: the tilt of all bins, or None.
        alphas: probabilities of the parts, shape (J,).
        below: as there.
    """

    gram: BinGram
    eps: float
    point: AddPoint
    tilts: FloatArray
    collective: CollectiveParts | None
    alphas: FloatArray
    below: bool = False

    @classmethod
    def at(cls, gram: BinGram, eps: float, names: Collection[str] | None = None) -> Self:
        """The mixture at eps, with equal probabilities; with the collective tilt where its name is given.

        The first part reaches the hyperplane that bounds {L <= -eps}, or is Q where that does not exclude
        0; the others reach further, up to where the mean of r is e^-eps, since L exceeds its value at the
        mean by up to K_ll / 2.
        """
        point = add_point(gram, eps)
        curvature = 0.5 * float(point.direction @ gram.diagonal)
        tilts = np.array([max(point.depth + part * curvature, 0.0) for part in ADD_PARTS]) / point.square
        collective = CollectiveParts.falling(gram, eps, names)
        parts = tilts.size + (collective is not None)
        return cls(gram, eps, point, tilts, collective, np.full(parts, 1.0 / parts))

    def losses(self, values: FloatArray) -> FloatArray:
        """Log dP/dQ of rows y, shape (m,)."""
        return log_mean_exp(values - 0.5 * self.gram.diagonal)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts."""
        together = self.collective.names if self.collective is not None else ()
        return (*(f"shift {part:.0%}" for part in ADD_PARTS), *together)

    @property
    def weights(self) -> FloatArray:
        """Probabilities of the parts."""
        return self.alphas

    def at_level(self, eps: float) -> "AddProposal":
        """The same parts, for another payoff: the half-space that holds {L <= -eps} moves along."""
        point = dataclasses.replace(self.point, depth=self.point.depth + (eps - self.eps))
        return dataclasses.replace(self, eps=eps, point=point)

    def payoffs_at(self, log_payoffs: FloatArray, eps: float) -> FloatArray:
        """Log (1 - e^(eps + L))_+ from log (1 - e^(eps' + L))_+, eps' <= eps."""
        ratios = math.exp(eps - self.eps) * -np.expm1(log_payoffs)
        out = np.full(ratios.shape, -np.inf)
        hits = (ratios < 1.0) & (log_payoffs > -np.inf)
        out[hits] = np.log1p(-ratios[hits])
        return out

    @property
    def log_weight_bound(self) -> float:
        """Log of an upper bound on every weight, proved.

        A weight is not 0 only where L = -eps - x, x >= 0. There `f = 1 - e^-x`, and `u = -w . y >= c + x`
        (`add_point`, for any w and any eps), so that `D_j = exp(tau_j u - tau_j^2 w^T K w / 2)` is at least
        its value at u = c + x.
        """
        depths = self.tilts * self.point.depth - 0.5 * self.tilts**2 * self.point.square
        return log_largest_weight(self.tilts, depths, self.alphas[: depths.size])

    @property
    def bounding(self) -> Collection[str]:
        """The Gaussians."""
        return self.names[: self.tilts.size]

    @functools.cached_property
    def farthest(self) -> float:
        """Means of all parts, 40 deviations beyond."""
        together = 0.0 if self.collective is None else self.collective.reach
        beyond = farthest_normal * math.sqrt(float(self.gram.diagonal.max()))
        return max(float(self.tilts.max()) * self._mean + beyond, together)

    @functools.cached_property
    def _sizes(self) -> tuple[float, float]:
        """The sum of w, and its norm; rounded up."""
        return 1.001 * float(self.point.direction.sum()), 1.001 * float(np.linalg.norm(self.point.direction))

    @functools.cached_property
    def _mean(self) -> float:
        """The largest entry of K w."""
        return 1.001 * float(np.abs(self.point.image).max()) + self.gram.product_rounding(*self._sizes)

    @functools.cached_property
    def part_rounding(self) -> LogError:
        """The largest of all parts, and of the depth of the half-space that bounds the weights."""
        tilt, (total, norm) = float(self.tilts.max()), self._sizes
        size = tilt * (total * self.farthest + abs(self.point.depth) + tilt * total * self._mean)
        off = tilt * (self.point.rounding + sum_product_rounding(self.gram.bins, total, self.farthest))
        off += tilt**2 * total * self.gram.product_rounding(total, norm)
        off += tilt**2 * sum_product_rounding(self.gram.bins, total, self._mean) + 8.0 * UNIT * size
        found = LogError(off, size)
        if self.collective is None:
            return found
        other = self.collective.rounding
        return LogError(max(off, other.error), max(size, other.size))

    def reweighted(self, weights: FloatArray) -> "AddProposal":
        """The same parts with other probabilities."""
        return dataclasses.replace(self, alphas=weights)

    def restricted(self, names: Collection[str]) -> "AddProposal":
        """Without the collective tilt where its name is not given."""
        if self.collective is None or set(names) & set(self.collective.names):
            return self
        alphas = self.alphas[: self.tilts.size]
        return dataclasses.replace(self, collective=None, alphas=alphas / alphas.sum())

    def block(self, seed: np.random.SeedSequence, count: int) -> tuple[FloatArray, FloatArray]:
        """Samples of the mixture."""
        values = self.gram.sample(generator(seed, AddDraw.NORMALS), count)
        parts = chosen_parts(self.alphas, generator(seed, AddDraw.CHOICES).random(count))
        for rows in row_batches(values):
            values[rows] -= np.append(self.tilts, 0.0)[parts[rows]][:, None] * self.point.image
        together = np.flatnonzero(parts == self.tilts.size)
        if self.collective is not None and together.size:
            only = np.zeros(together.size, dtype=np.int64)
            tilt = generator(seed, AddDraw.TILTS)
            values[together] = self.collective.draw(only, values[together], tilt)
        payoffs = np.full(count, -np.inf)
        densities = np.zeros((count, self.alphas.size))
        for rows in row_batches(values):
            self._weigh(values[rows], payoffs[rows], densities[rows])
        return payoffs, densities

    def _weigh(self, values: FloatArray, payoffs: FloatArray, densities: FloatArray) -> None:
        """Fill in log f and log D where f is not 0."""
        losses = self.losses(values) - self.payoff_side
        hits = np.flatnonzero(losses < -self.eps)
        self.check_reach(values[hits])
        payoffs[hits] = np.log(-np.expm1(self.eps + losses[hits]))
        along = -(values[hits] @ self.point.direction)
        gaussian = along[:, None] * self.tilts - 0.5 * self.tilts**2 * self.point.square
        densities[hits, : self.tilts.size] = gaussian
        if self.collective is not None and hits.size:
            densities[hits, self.tilts.size :] = self.collective.log_densities(values[hits])
            if self.below:
                payoffs[hits[np.isneginf(densities[hits]).any(axis=1)]] = -np.inf
