"""Upper bound on delta of a cyclic dominating pair by the dynamic program: grid search and evaluation.

Its Gram matrix is cyclic (here: ring, `RingGram`). A constant part c multiplies the likelihood ratio r by
R = exp(sqrt(c) G - c / 2). R is split onto nodes; one run covers all nodes within a factor GROUP_RATIO
(docs/balls_in_bins_proof.md, "The constant part").
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines.convex_order.dynamic_program import Curve, Direction, Placement, run_program
from dpmech.engines.convex_order.grid import (
    RingGrid,
    coarser,
    common_factor,
    constant_nodes,
    level_shift,
    place_nodes,
    raised_ring,
    spread_z,
    sums_factor,
)
from dpmech.engines.convex_order.node_laws import lognormal_split
from dpmech.engines.convex_order.ring import RingGram
from dpmech.engines.gaussian import gaussian_delta
from dpmech.exceptions import NumericalError
from dpmech.guards import check_real
from dpmech.numerics import Ladder, rung_below

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

GROUP_RATIO = 2.0
# Shares of the total that may be left without a run, and on the coarse grid.
LEFT_OUT = 1e-4
LEFT_COARSE = 0.01

# Exceeds the loss by underflow in the sums of a run, whose terms are >= 0.
TINY = 1e-250

Found = tuple[float, Placement, Curve]


def bound_on(
    ring: RingGram, eps: float, direction: Direction, grid: RingGrid, *, coarse_only: bool = False
) -> Found:
    """Upper bound on delta of a ring with b >= 2 in one direction on one grid, constant part included.

    Rounding is on the safe side (`grid`): eps is lowered slightly, and the bound raised slightly.

    Args:
        ring: the Gram matrix.
        eps: the privacy loss level.
        direction: REMOVE or ADD.
        grid: the nodes.
        coarse_only: whether all runs of a ring with a constant part are coarse.

    Returns:
        The bound, and the placement and curve of the run with the largest share.
    """
    shift = level_shift(ring, eps, grid)
    ring, eps = raised_ring(ring), eps - shift
    if ring.constant == 0.0:
        place = place_nodes(ring, eps, direction, grid, 1.0)
        curve = run_program(place, direction)
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
    # The finest run has the largest rounding error: it has the most nodes and the smallest steps.
    factor = max(sums_factor(one[1]) for one in shares.values()) * common_factor(common.logs, ring.constant)
    return min(1.0, total * factor * (1.0 + shift) + TINY), place, curve


class _Common:
    """The nodes of R in groups, and the contribution of each group to delta."""

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
        """Relevant groups on a coarse grid, and a bound on the total of the omitted ones."""
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
        """Upper bound on the contribution of a group: without amplification, one Gaussian for each node."""
        scale = (self.ring.white + self.ring.amplitude) ** -0.5
        deltas = [
            gaussian_delta(scale, level)[1] if level > 0.0 else 1.0 for level in self.levels[members].tolist()
        ]
        return float(self.weights[members] @ np.array(deltas))

    def share(self, group: int, grid: RingGrid) -> Found:
        """Contribution of the nodes of one group, from one run: its curve covers them all."""
        members = self.members[group]
        reference = float(np.max(self.levels[members]) if self.remove else np.min(self.levels[members]))
        reach = float(np.ptp(self.levels[members]))
        place = place_nodes(self.ring, reference, self.direction, grid, math.exp(reach))
        curve = run_program(place, self.direction)
        parts = [min(1.0, curve.delta(level)) for level in self.levels[members].tolist()]
        return float(self.weights[members] @ np.array(parts)), place, curve


LARGEST_DIAGONAL = 300.0
LARGEST_EPS = 500.0
NEGLIGIBLE = 1e-6
FINEST_STEP = 0.02
MOST_S_NODES = 16384
MOST_WHITE_NODES = 384
TEST_STEPS = (0.5, 0.25)
REL_ERROR = 0.05


@dataclasses.dataclass(frozen=True)
class RingResult:
    """Upper bounds on delta of a ring, and the grids that they use.

    Attributes:
        deltas: the bound in each requested direction.
        grids: the grid of each bound; absent if a closed form was used. Pass it as `grid` for a nearby ring
            or eps to skip the search.
    """

    deltas: Mapping[Direction, float]
    grids: Mapping[Direction, RingGrid]

    @property
    def delta(self) -> float:
        """The larger bound."""
        return max(self.deltas.values())


def ring_delta(
    ring: RingGram,
    eps: float,
    *,
    rel_error: float = 0.05,
    direction: Direction = Direction.BOTH,
    grid: RingGrid | Mapping[Direction, RingGrid] | None = None,
) -> RingResult:
    """Upper bound on delta(eps) of the Balls-in-Bins pair whose Gram matrix is `ring`.

    Deterministic: no sampling, and the same value for any number of threads. With both directions, the
    smaller one is refined only until it is known not to be the maximum.

    Args:
        ring: the Gram matrix, or one that dominates it.
        eps: in [0, 500].
        rel_error: target relative distance from the exact delta of the ring, in (0, 10]; rounded down to
            0.05 times a power of two. It controls the effort; the result is an upper bound whether or not the
            target is met.
        direction: REMOVE, ADD or BOTH.
        grid: a grid to use instead of a search, for both directions or for each.

    Returns:
        The bounds. **Guarantee:** upper bounds, rounding included.

    Raises:
        InvalidParameterError: if an argument is outside its range.
        NumericalError: if weights that must sum to 1 do not.

    References:
        docs/balls_in_bins_proof.md: monotonicity, the dynamic program, mass outside of a grid.

    Examples:
        >>> from dpmech.engines.convex_order.bound import RingGram, ring_delta
        >>> ring = RingGram(bins=1, white=0.0, amplitude=1.0, decay=0.0, constant=0.0)
        >>> round(ring_delta(ring, 1.0).delta, 6)
        0.126937
    """
    eps = check_real("eps", eps, minimum=0.0, maximum=LARGEST_EPS)
    # grids depend only on the rung, so that a slightly smaller rel_error gives the same bound or a new search
    rel_error = rung_below(
        check_real("rel_error", rel_error, minimum=0.0, maximum=10.0, open_minimum=True), REL_ERROR
    )
    wanted = [Direction.REMOVE, Direction.ADD] if direction is Direction.BOTH else [direction]
    searches = [_Search(_simplified(ring), eps, one, rel_error) for one in wanted]
    for search in searches:
        chosen = grid.get(search.direction) if isinstance(grid, Mapping) else grid
        search.start(chosen)
    # the larger first: the other one is refined only until its bound is below
    searches.sort(key=lambda search: -search.best)
    floor = 0.0
    for search in searches:
        search.refine(floor)
        floor = max(floor, search.best)
    return RingResult(
        {search.direction: search.best for search in searches},
        {search.direction: search.grid for search in searches if search.grid is not None},
    )


def _simplified(ring: RingGram) -> RingGram:
    """A ring that dominates this one, without parts that are too small for the nodes to resolve."""
    white, amplitude, constant = ring.white, ring.amplitude, ring.constant
    if ring.decay == 0.0:
        white, amplitude = white + amplitude, 0.0
    if amplitude < NEGLIGIBLE:
        constant, amplitude = constant + amplitude, 0.0  # ring <= amplitude 1 1^T
    if white < NEGLIGIBLE and amplitude > 0.0:
        white, amplitude = (
            0.0,
            amplitude + white,
        )  # a ring has 1 on its diagonal and nonnegative entries elsewhere
    elif white < NEGLIGIBLE:
        white, constant = 0.0, constant + white
    if 0.0 < constant < NEGLIGIBLE and white + amplitude > 0.0:
        constant = NEGLIGIBLE
    return dataclasses.replace(ring, white=white, amplitude=amplitude, constant=constant)


class _Search:
    """One direction: the best bound so far, and the grid for a better one.

    With a constant part, delta is a sum over its nodes of bounds for the other parts of the ring. The grid
    search evaluates the largest term only, and its result is run for all of them.
    """

    def __init__(self, ring: RingGram, eps: float, direction: Direction, rel_error: float) -> None:
        self.ring, self.eps, self.direction, self.rel_error = ring, eps, direction, rel_error
        self.part, self.level = ring, eps
        self.grid: RingGrid | None = None
        self.fixed = False
        self.seen: dict[RingGrid, Found] = {}
        # K <= K_00 1 1^T: without amplification, one Gaussian
        self.best = 0.0 if ring.diagonal == 0.0 else gaussian_delta(ring.diagonal**-0.5, eps)[1]

    @property
    def closed(self) -> bool:
        """Whether the Gaussian bound is exact (one bin, or all bins equal), or no better one is tried."""
        ring = self.ring
        alike = ring.bins == 1 or ring.white + ring.amplitude == 0.0
        return alike or ring.diagonal > LARGEST_DIAGONAL

    def start(self, grid: RingGrid | None) -> None:
        """Compute a first bound, on the given grid or on a coarse one."""
        if self.closed:
            return
        self.fixed = grid is not None
        self.grid = RingGrid() if grid is None else grid
        _, place, _ = self.whole(self.grid, coarse_only=not self.fixed)
        self.part, self.level = dataclasses.replace(self.ring, constant=0.0), place.eps

    def whole(self, grid: RingGrid, *, coarse_only: bool = False) -> Found:
        """A bound on delta, with slack for rounding."""
        found = bound_on(self.ring, self.eps, self.direction, grid, coarse_only=coarse_only)
        if not math.isfinite(found[0]):
            raise NumericalError(f"the ring program gave {found[0]!r} on {grid!r}")
        self.best = min(self.best, found[0])
        return found

    def run(self, grid: RingGrid) -> Found:
        """A bound on the largest term, which is delta itself without a constant part."""
        if grid not in self.seen:
            if self.ring.constant == 0.0:
                self.seen[grid] = self.whole(grid)
            else:
                self.seen[grid] = bound_on(self.part, self.level, self.direction, grid)
        return self.seen[grid]

    def refine(self, floor: float) -> None:
        """Search a grid for `rel_error`, and run it; stop once the bound is at most `floor`."""
        if self.grid is None or self.fixed or self.best <= floor:
            return
        grid, goal = self.grid, self.rel_error
        tail = -float(scipy.special.ndtri(max(1e-4 * goal * self.best / self.ring.bins, 1e-200)))
        grid = dataclasses.replace(grid, tail=min(max(tail, 5.0), 29.0), prune=1e-3 * goal * self.best)
        bound, place, curve = self.run(grid)
        if self.ring.amplitude > 0.0:
            # a first estimate on equally spaced nodes of y_0, a second on the nodes it suggests
            for share in (0.5, 0.2):
                places = spread_z(place, curve, self.direction, share * goal * bound, grid.z_nodes)
                grid = dataclasses.replace(grid, z_places=places, z_nodes=len(places))
                if share == 0.5:
                    bound, place, curve = self.run(grid)
        grid = self._double("s_nodes", grid, MOST_S_NODES, 0.2 * goal, floor)
        if self.ring.white > 0.0:
            grid = self._double("white_nodes", grid, MOST_WHITE_NODES, 0.2 * goal, floor)
        if self.best > floor:
            if self.ring.amplitude > 0.0:
                grid = self._y_step(grid, 0.5 * goal)
            if self.ring.constant == 0.0:
                self.run(grid)
            else:
                self.whole(grid)
        self.grid = grid

    def _double(self, name: str, grid: RingGrid, most: int, goal: float, floor: float) -> RingGrid:
        """Double one resolution, on a coarse y grid, until the next doubling would gain less than `goal`."""

        def with_nodes(count: float) -> RingGrid:
            if name == "s_nodes":
                return dataclasses.replace(grid, s_nodes=int(count))
            return dataclasses.replace(grid, white_nodes=int(count))

        doublings = Ladder.up(getattr(grid, name), most)
        found = doublings.settle(
            lambda count: self.run(with_nodes(count))[0], goal=goal, stop=lambda _: self.best <= floor
        )
        # the error decreases like 1/n at first, like 1/n^2 later: between gain / 3 and gain remains
        return with_nodes(found.before if found.gain <= 0.5 * goal else found.resolution)

    def _y_step(self, grid: RingGrid, goal: float) -> RingGrid:
        """Step of y for a relative error of `goal`: ln delta is linear in the square of the step."""
        trial = dataclasses.replace(grid, s_nodes=max(grid.s_nodes // 4, 64))
        coarse, fine = (self.run(dataclasses.replace(trial, y_step=step))[0] for step in TEST_STEPS)
        slope = max(math.log(coarse / fine), 1e-6) / (TEST_STEPS[0] ** 2 - TEST_STEPS[1] ** 2)
        step = min(max(math.sqrt(goal / slope), FINEST_STEP), TEST_STEPS[1])
        return dataclasses.replace(grid, y_step=step)
