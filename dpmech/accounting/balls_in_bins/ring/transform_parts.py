"""What every bound by transforms is made of: a white law on nodes, what all bins share, and rough sizes.

The proofs are in docs/balls_in_bins_proof.md, "Two exponentials: Laplace transforms".
"""

import dataclasses
import math

import numpy as np

from dpmech.accounting.balls_in_bins.moment_bound import ORDERS
from dpmech.accounting.balls_in_bins.moments import log_add_bound
from dpmech.accounting.balls_in_bins.ring.dominating import Height
from dpmech.accounting.balls_in_bins.ring.mixture_gram import MixtureGram
from dpmech.accounting.balls_in_bins.ring.node_laws import lognormal_split
from dpmech.accounting.balls_in_bins.ring.rounding import common_factor, law_rounding
from dpmech.accounting.balls_in_bins.ring.white_law import WhiteLaw
from dpmech.accounting.gaussian import gaussian_delta
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, IntArray

__all__ = ["Common", "Parts", "groups_of"]

# Shares of the relative error aimed at. They steer the effort; any choice gives a bound.
NODES = 0.1
# The moment bound is above delta by about this factor or less.
LOOSE = 30.0
FREE = 5.0


@dataclasses.dataclass(frozen=True, eq=False)
class Common:
    """Nodes of what all bins share: kinks in units of r, and weights of the payoff (1 - r / kink)_+."""

    kinks: FloatArray
    weights: FloatArray
    beyond: float
    factor: float


class Parts:
    """One direction of the bound on a ring.

    Args:
        gram: the Gram matrix.
        eps: the privacy loss level.
        rel_error: what is aimed at, relative.
        floor: a delta below which nothing need be resolved.
        remove: REMOVE, or else ADD.
    """

    def __init__(
        self, gram: MixtureGram, eps: float, rel_error: float, floor: float, *, remove: bool
    ) -> None:
        self.gram, self.remove, self.rel_error = gram, remove, rel_error
        self.own = dataclasses.replace(gram, constant=0.0)
        self.shift = self.level_shift()
        self.eps = eps - self.shift
        order, rough = self.rough(gram, max(eps, 1e-3))
        self.order, self.floor = order, floor
        self.scale = max(rough / LOOSE, floor, 1e-290)

    def level_shift(self) -> float:
        """How much lower eps is taken: increments are exponentials of numbers known to some roundings."""
        places = sum(60.0 * math.sqrt(part) + 2.0 * part for part in (self.gram.white, self.gram.exponential))
        size = places + 2.0 * math.log(self.gram.bins) + 60.0 * math.sqrt(self.gram.constant) + 1.0
        slopes = sum(a * 512.0 / (1.0 - decay) for a, decay in self.gram.parts)
        return 1.01 * (8.0 * ELEMENTARY + UNIT * (64.0 * size + slopes))

    @staticmethod
    def rough(gram: MixtureGram, level: float) -> tuple[float, float]:
        """Order and value of the best moment bound."""
        height = Height(gram.bins, level).of(gram.profile())
        best = int(np.argmin(height))
        return float(ORDERS[best]), math.exp(min(float(height[best]), 0.0))

    def white_law(self, wanted: float) -> tuple[WhiteLaw, float, float]:
        """The law of W, what its top costs, and the factor for rounding of its weights."""
        white, root = self.gram.white, math.sqrt(self.gram.white)
        tail = min(FREE + math.sqrt(2.0 * math.log(1.0 / min(wanted, 0.1))), 37.0)
        step = math.sqrt(12.0 * NODES * self.rel_error / (self.order * (self.order - 1.0)))
        low, high = (-FREE, tail) if self.remove else (-tail, FREE)
        step = min(step, 0.5 * root)
        count = min(math.ceil(((high - low) * root + white) / step) + 1, 4000)
        logs = np.linspace(low * root, high * root + (white if self.remove else 0.0), count) - 0.5 * white
        split = lognormal_split(logs, -0.5 * white, root)
        chances = np.concatenate([[split.zero], split.weights])
        # they add up to 1 but for rounding: less than what the factor below allows the largest to be off
        chances[np.argmax(chances)] += 1.0 - math.fsum(chances)
        law = WhiteLaw(np.concatenate([[0.0], np.exp(logs)]), chances)
        lost = law_rounding(logs + 0.5 * white, root)
        return law, 1.01 * split.excess if self.remove else 0.0, math.exp(1.01 * self.gram.bins * lost)

    def common(self, wanted: float) -> Common:
        """The nodes of what all bins share."""
        constant = self.gram.constant
        kink = math.exp(self.eps if self.remove else -self.eps)
        if constant == 0.0:
            return Common(np.array([kink]), np.ones(1), 0.0, 1.0)
        root = math.sqrt(constant)
        tail = -float(np.log(min(wanted, 0.1)))
        tail = math.sqrt(2.0 * tail)
        low, high = (-FREE, tail) if self.remove else (-tail, FREE)
        step = math.sqrt(12.0 * NODES * self.rel_error / (self.order * (self.order - 1.0)))
        count = min(math.ceil(((high - low) * root + constant) / min(step, 0.5 * root)) + 1, 4000)
        logs = np.linspace(low * root, high * root + (constant if self.remove else 0.0), count)
        logs -= 0.5 * constant
        split = lognormal_split(logs, -0.5 * constant, root)
        # REMOVE: p R (r - kink / R)_+ = p kink (1 - r R / kink)_+ and what is linear; see `_Run.share`
        weights = split.weights * np.exp(logs) if self.remove else split.weights
        beyond = split.excess if self.remove else split.zero
        return Common(kink * np.exp(-logs), weights, beyond, common_factor(logs, constant))

    def level(self, kink: float) -> float:
        """The privacy loss at which a kink stands."""
        return math.log(kink) if self.remove else -math.log(kink)

    def spread(self) -> float:
        """The standard deviation of r without what all bins share, about."""
        counts = np.full(self.own.bins // 2 + 1, 2.0)
        counts[0] = 1.0
        return math.sqrt(float(counts @ np.expm1(np.minimum(self.own.profile(), 50.0))) / self.own.bins)

    def importance(self, common: Common, members: IntArray) -> tuple[float, float]:
        """About what a group adds, and the slope of ln delta at its heaviest node; it steers the effort."""
        levels = [max(self.level(kink), 1e-3) for kink in common.kinks[members].tolist()]
        found = [self.rough(self.own, level) for level in levels]
        shares = common.weights[members] * np.array([rough for _, rough in found])
        return float(shares.sum()), max(found[int(np.argmax(shares))][0] - 1.0, 1.0)

    def cap(self, common: Common, members: IntArray) -> float:
        """What a group adds at most: one Gaussian for each node, without amplification, or by moments."""
        scale = self.own.diagonal**-0.5
        levels = [self.level(kink) for kink in common.kinks[members].tolist()]
        deltas = [gaussian_delta(scale, level)[1] if level > 0.0 else 1.0 for level in levels]
        if self.remove:
            # a falling function of the level; its rounding is some 1e-12
            moments = self.rough(self.own, min(levels))[1] * (1.0 + 1e-9)
            deltas = [min(delta, moments) for delta in deltas]
        else:
            trace, mean = self.own.diagonal * (1.0 + 1e-12), self.own.mean
            logs = [log_add_bound(trace, mean, level) if level > 0.0 else 0.0 for level in levels]
            deltas = [min(delta, math.exp(min(log, 0.0))) for delta, log in zip(deltas, logs, strict=True)]
        return float(common.weights[members] @ np.array(deltas)) * (1.0 + 1e-12)


def groups_of(kinks: FloatArray, ratio: float) -> list[IntArray]:
    """Indices of kinks within a factor `ratio` of each other."""
    numbers = np.floor(np.log(kinks / kinks.min()) / math.log(ratio)).astype(np.int64)
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
