"""The bound on one grid: one run of the programme, or a sum of runs over the factor that all bins share.

A constant part c multiplies r by R = exp(sqrt(c) G - c / 2). R is split onto nodes; one run serves all nodes
within a factor GROUP_RATIO (docs/balls_in_bins_proof.md, "The constant part").
"""

import math

import numpy as np
import numpy.typing as npt

from dpmech.accounting.balls_in_bins.ring.gram import RingGram
from dpmech.accounting.balls_in_bins.ring.grid import RingGrid, coarser, constant_nodes, place_nodes
from dpmech.accounting.balls_in_bins.ring.node_laws import lognormal_split
from dpmech.accounting.balls_in_bins.ring.programme import Curve, Direction, Placement, run_programme
from dpmech.accounting.balls_in_bins.ring.rounding import (
    common_factor,
    level_shift,
    raised_ring,
    sums_factor,
)
from dpmech.accounting.gaussian import gaussian_delta

__all__ = ["Found", "bound_on"]

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

GROUP_RATIO = 2.0
# Shares of the whole that may stay without a run, and on the coarse grid.
LEFT_OUT = 1e-4
LEFT_COARSE = 0.01

# Above what underflow may lose in the sums of a run, whose terms are >= 0.
TINY = 1e-250

Found = tuple[float, Placement, Curve]


def bound_on(
    ring: RingGram, eps: float, direction: Direction, grid: RingGrid, *, coarse_only: bool = False
) -> Found:
    """Upper bound on delta of a ring with b >= 2 in one direction on one grid, constant part included.

    Rounding is on the safe side (`ring.rounding`): eps is taken a little lower, the bound a little higher.

    Args:
        ring: the Gram matrix.
        eps: the privacy loss level.
        direction: REMOVE or ADD.
        grid: the nodes.
        coarse_only: whether all runs of a ring with a constant part are to be coarse.

    Returns:
        The bound, and the placement and curve of the run that matters most.
    """
    shift = level_shift(ring, eps, grid)
    ring, eps = raised_ring(ring), eps - shift
    if ring.constant == 0.0:
        place = place_nodes(ring, eps, direction, grid, 1.0)
        curve = run_programme(place, direction)
        return min(1.0, curve.delta(eps) * sums_factor(place) * (1.0 + shift) + TINY), place, curve
    common = _Common(ring, eps, direction, grid)
    shares, left = common.coarse()
    heaviest = max(shares, key=lambda group: shares[group][0])
    if not coarse_only:
        shares[heaviest] = common.share(heaviest, grid)
        total = left + sum(one[0] for one in shares.values())
        unrefined = total - shares[heaviest][0]
        for group in sorted(shares, key=lambda group: -shares[group][0]):
            if group == heaviest or unrefined <= LEFT_COARSE * total:
                continue
            unrefined -= shares[group][0]
            finer = common.share(group, grid)
            shares[group] = min(finer, shares[group], key=lambda one: one[0])
    total = left + sum(one[0] for one in shares.values())
    _, place, curve = shares[heaviest]
    # The finest run loses most: it has the largest number of nodes, the smallest steps.
    factor = max(sums_factor(one[1]) for one in shares.values()) * common_factor(common.logs, ring.constant)
    return min(1.0, total * factor * (1.0 + shift) + TINY), place, curve


class _Common:
    """The nodes of R in groups, and what each group adds to delta."""

    def __init__(self, ring: RingGram, eps: float, direction: Direction, grid: RingGrid) -> None:
        self.ring, self.eps, self.direction, self.grid = ring, eps, direction, grid
        self.remove = direction is Direction.REMOVE
        self.logs = constant_nodes(ring.constant, direction, grid)
        split = lognormal_split(self.logs, -0.5 * ring.constant, math.sqrt(ring.constant))
        # REMOVE: p_R R delta_0(eps - ln R), ADD: p_R delta_0(eps + ln R)
        self.weights = split.weights * np.exp(self.logs) if self.remove else split.weights
        self.levels = eps - self.logs if self.remove else eps + self.logs
        self.beyond = split.excess if self.remove else split.zero
        groups = np.floor((self.logs - self.logs[0]) / math.log(GROUP_RATIO)).astype(np.int64)
        self.members = [np.flatnonzero(groups == group) for group in np.unique(groups)]

    def coarse(self) -> tuple[dict[int, Found], float]:
        """Every group that may matter on a coarse grid, and a bound on all that was left out."""
        caps = [self._cap(members) for members in self.members]
        order = sorted(range(len(caps)), key=lambda group: -caps[group])
        grid = coarser(self.grid)
        shares: dict[int, Found] = {}
        rest = sum(caps)
        for group in order:
            if shares and rest <= LEFT_OUT * sum(one[0] for one in shares.values()):
                break
            rest = max(rest - caps[group], 0.0)
            shares[group] = self.share(group, grid)
        left = sum(caps[group] for group in order if group not in shares)
        return shares, left + self.beyond

    def _cap(self, members: Indices) -> float:
        """What the group adds at most: without amplification, one Gaussian for each node."""
        scale = (self.ring.white + self.ring.amplitude) ** -0.5
        deltas = [
            gaussian_delta(scale, level)[1] if level > 0.0 else 1.0 for level in self.levels[members].tolist()
        ]
        return float(self.weights[members] @ np.array(deltas))

    def share(self, group: int, grid: RingGrid) -> Found:
        """What the nodes of one group add, from one run: its curve serves them all."""
        members = self.members[group]
        reference = float(np.max(self.levels[members]) if self.remove else np.min(self.levels[members]))
        reach = float(np.ptp(self.levels[members]))
        place = place_nodes(self.ring, reference, self.direction, grid, math.exp(reach))
        curve = run_programme(place, self.direction)
        parts = [min(1.0, curve.delta(level)) for level in self.levels[members].tolist()]
        return float(self.weights[members] @ np.array(parts)), place, curve
