"""Nodes of the dynamic program, their resolution, and the effect of float64 rounding on a run.

A run adds and multiplies numbers >= 0, so that relative errors of its weights and sums multiply:
`sums_factor`. Errors of the running sum S, its increments and the comparison with 1 amount to a change of
eps: `level_shift`. Errors of the coefficients of the bridge amount to a change of the Gram matrix:
`raised_ring`.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from dpmech.engines.convex_order.dynamic_program import Curve, Direction, Placement, RingBridge
from dpmech.engines.convex_order.node_laws import lognormal_split, normal_split
from dpmech.engines.convex_order.ring import RingGram
from dpmech.guards import check_integer, check_real
from dpmech.numerics import ELEMENTARY, UNIT

Vector = npt.NDArray[np.float64]

FREE = 4.5
MOST_X_NODES = 6000
LEAST_FLOOR = 1e-100
# Relative to the largest density of nodes, to the third power; it affects only the effort.
SPARSEST = 1e-9
# Least distance of nodes of y_0, in deviations: smaller ones gain nothing and lose digits.
LEAST_GAP = 1e-3


@dataclasses.dataclass(frozen=True)
class RingGrid:
    """Resolution of the dynamic program; every grid gives an upper bound, a coarse one a loose bound.

    Args:
        y_step: distance of the nodes of y in standard deviations of one step, in (0, 10].
        z_nodes: number of nodes of y_0, >= 3 (unused if z_places is given).
        s_nodes: number of intervals of the running sum, >= 1.
        white_nodes: number of nodes of the white factor above 0, >= 2.
        constant_nodes: number of nodes of the common factor above 0, >= 2.
        tail: number of standard deviations to keep on the side where the remainder is charged, in [0.5, 30].
        prune: limit on the charge, in delta, for cells that are emptied, in [0, 1].
        z_places: nodes of y_0 in standard deviations, increasing around 0; empty for equally spaced nodes.

    Raises:
        InvalidParameterError: if a value is outside its range.
    """

    y_step: float = 0.5
    z_nodes: int = 33
    s_nodes: int = 64
    white_nodes: int = 24
    constant_nodes: int = 256
    tail: float = 9.0
    prune: float = 0.0
    z_places: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_real("y_step", self.y_step, minimum=0.0, maximum=10.0, open_minimum=True)
        check_integer("z_nodes", self.z_nodes, minimum=3)
        check_integer("s_nodes", self.s_nodes, minimum=1)
        check_integer("white_nodes", self.white_nodes, minimum=2)
        check_integer("constant_nodes", self.constant_nodes, minimum=2)
        check_real("prune", self.prune, minimum=0.0, maximum=1.0)
        check_real("tail", self.tail, minimum=0.5, maximum=30.0)


def coarser(grid: RingGrid) -> RingGrid:
    """A grid with the same range at a fraction of the cost."""
    return dataclasses.replace(
        grid,
        y_step=max(grid.y_step, 0.4),
        z_nodes=max(3, min(grid.z_nodes, 17)),
        z_places=grid.z_places[:1] + grid.z_places[2:-1:2] + grid.z_places[-1:]
        if len(grid.z_places) > 6
        else (),
        s_nodes=max(grid.s_nodes // 4, min(grid.s_nodes, 16)),
        white_nodes=max(grid.white_nodes // 4, min(grid.white_nodes, 16)),
    )


def place_nodes(
    ring: RingGram, eps: float, direction: Direction, grid: RingGrid, s_factor: float
) -> Placement:
    """Nodes of one run for the white and exponential parts of a ring with b >= 2.

    Args:
        ring: a cyclic Gram matrix; its constant part is ignored.
        eps: the reference eps of the curve.
        direction: REMOVE or ADD.
        grid: the resolution.
        s_factor: factor on the number of intervals of S.
    """
    variance = ring.amplitude if ring.decay > 0.0 else 0.0
    white = ring.white + (ring.amplitude - variance)
    low, high = (-FREE, grid.tail) if direction is Direction.REMOVE else (-grid.tail, FREE)
    shift = 1.0 if direction is Direction.REMOVE else 0.0
    x: Vector = np.zeros(1)
    z: Vector = np.zeros(1)
    if variance > 0.0:
        sd = math.sqrt(variance)
        first, last = low * sd, high * sd + shift * variance
        step = grid.y_step * sd * math.sqrt((1.0 - ring.decay) * (1.0 + ring.decay))
        step = max(step, (last - first) / MOST_X_NODES)
        x = np.asarray(
            step * np.arange(math.floor(first / step), math.ceil(last / step) + 1), dtype=np.float64
        )
        z = np.asarray(
            sd * np.array(grid.z_places) if grid.z_places else np.linspace(first, last, grid.z_nodes),
            dtype=np.float64,
        )
        z[-1] = max(z[-1], last)
    root = math.sqrt(white)
    log_w = np.linspace(low * root, high * root + shift * white, grid.white_nodes) - 0.5 * white
    nodes = math.ceil(grid.s_nodes * s_factor)
    decay = ring.decay if variance > 0.0 else 0.0
    unit = math.exp(-eps) if direction is Direction.REMOVE else 1.0
    floor = max(grid.prune * unit / (ring.bins * x.size * nodes), LEAST_FLOOR)
    return Placement(ring.bins, variance, decay, white, eps, x, z, log_w, nodes, grid.tail, floor)


def constant_nodes(constant: float, direction: Direction, grid: RingGrid) -> Vector:
    """Logarithms of the nodes of the common factor R = exp(sqrt(c) G - c/2); shape (constant_nodes,)."""
    root = math.sqrt(constant)
    low, high = (-FREE, grid.tail) if direction is Direction.REMOVE else (-grid.tail, FREE)
    shift = constant if direction is Direction.REMOVE else 0.0
    return np.asarray(np.linspace(low * root, high * root + shift, grid.constant_nodes) - 0.5 * constant)


def spread_z(
    place: Placement, curve: Curve, direction: Direction, goal: float, least: int
) -> tuple[float, ...]:
    """Positions of y_0, in standard deviations, that equidistribute the error of interpolation.

    Per unit length that error is density * |second derivative| * spacing^2 / 12, so nodes are placed with
    a density proportional to its cube root. This affects only the effort: any nodes give a bound.

    Args:
        place: nodes of an earlier run.
        curve: result of that run at each node.
        direction: REMOVE or ADD.
        goal: target for the sum of errors.
        least: one tenth of the largest number of nodes.
    """
    z, values = place.z_nodes, curve.z_values
    sd = math.sqrt(place.variance)
    add = direction is Direction.ADD
    heights = np.exp(z - z[-1]) if add else z
    left = (heights[2:] - heights[1:-1]) / (heights[2:] - heights[:-2])
    bend = np.maximum(left * values[:-2] + (1.0 - left) * values[2:] - values[1:-1], 0.0)
    weights = (lognormal_split(z, 0.0, sd) if add else normal_split(z, sd)).weights[1:-1]
    # omitting a node adds an error of f'' h^2 / 2 there; keeping it, f'' h^2 / 12 on average
    width = 0.5 * (z[2:] - z[:-2])
    error = weights * bend / 6.0
    inner = z[1:-1]
    density = np.cbrt(np.maximum(error / width**3, SPARSEST * np.max(error / width**3)))
    gaps = np.diff(inner)
    cumulative = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * gaps)])
    total = float(cumulative[-1])
    count = int(np.clip(math.ceil(math.sqrt(total**3 / max(goal, 1e-300))), 6, 10 * least)) + 1
    chosen = np.concatenate([[z[0]], np.interp(np.linspace(0.0, total, count), cumulative, inner), [z[-1]]])
    keep = np.concatenate([[True], np.diff(chosen) > LEAST_GAP * sd])
    return tuple(float(value) for value in chosen[keep] / sd)


# Margin on the errors measured against 450 digits, for steps of 0.01 to 2, nodes 0.02 to 4 deviations apart,
# up to 29 deviations from the mean (tests/unit/engines/convex_order/test_rounding.py).
SPLIT_SAFETY = 4.0


def split_rounding(
    gaps: npt.ArrayLike, deviations: npt.ArrayLike, tail: float, farthest: npt.ArrayLike
) -> Vector:
    """Bound on the relative error of every weight of a law that is split onto nodes.

    At t deviations, calls are phi(t) - t P(N > t): cancellation of terms with errors of t^2 roundings loses a
    factor t^2; those of e^X lose 1 / deviation instead. Second differences over nodes `gap` deviations apart
    lose 1 / gap^2 of that near the mean, where positions have errors of `farthest` roundings. The constants
    are at least the measured ones, times SPLIT_SAFETY.

    Args:
        gaps: distances of nodes, in deviations of the law.
        deviations: standard deviations of the law.
        tail: range of the nodes on either side of the mean, in deviations.
        farthest: largest node, in deviations.
    """
    gap, deviation = np.minimum(gaps, 1.0), np.minimum(deviations, 1.0)
    out = tail + np.asarray(deviations) + 2.0
    lost = out**4 + (32.0 * out**2 + (100.0 + 10.0 * np.asarray(farthest)) / gap**2) / deviation
    return np.asarray(SPLIT_SAFETY * UNIT * lost)


def sums_factor(place: Placement) -> float:
    """Factor for a bound from one run: weights of all steps, and sequential sums of terms >= 0."""
    tail = max(place.tail, FREE)
    # Rows of x, nodes of S twice, and a few products and splits in every bin; the law of S at the end, and
    # the sums over z and over later bins.
    per_bin = UNIT * (place.x_nodes.size + 2.0 * place.s_nodes + 4.0 * place.white_nodes.size + 64.0)
    error = (place.bins + 1.0) * per_bin + UNIT * (place.z_nodes.size + place.bins)
    if place.white > 0.0:
        error += place.bins * law_rounding(place.white_nodes + 0.5 * place.white, math.sqrt(place.white))
    if place.variance > 0.0:
        bridge = RingBridge(place.bins, place.variance, place.decay)
        steps = np.array([bridge.step(start)[1] for start in range(place.bins - 1)])
        spacing = float(place.x_nodes[1] - place.x_nodes[0])
        farthest = float(np.max(np.abs(place.x_nodes)))
        error += float(np.sum(split_rounding(spacing / steps, steps, tail, farthest / steps)))
        error += law_rounding(place.z_nodes, math.sqrt(place.variance))
    return math.exp(1.01 * error)


def common_factor(logs: Vector, constant: float) -> float:
    """Factor for the law of the common factor of all bins, on nodes e^logs."""
    return math.exp(1.01 * law_rounding(logs + 0.5 * constant, math.sqrt(constant)))


def law_rounding(nodes: Vector, deviation: float) -> float:
    """Bound on the relative error of every weight of a lognormal law that is split onto e^nodes."""
    reach = float(np.max(np.abs(nodes))) / deviation
    gap = float(np.min(np.diff(nodes))) / deviation
    return float(split_rounding(gap, deviation, reach, reach)) + 4.0 * UNIT * nodes.size


def level_shift(ring: RingGram, eps: float, grid: RingGrid) -> float:
    """Reduction of eps that ensures that no rounding of S makes delta too small.

    Increments are exponentials of sums of x, z, half variances and eps, each with an error of about 40
    roundings of its size. S - 1 is a difference of numbers about 1 with roundings of sums over the nodes of
    S; an absolute error eta of it is at most a factor 1 + eta of S >= 1. A lower eps makes S larger if delta
    increases with it (REMOVE), and smaller if delta decreases (ADD). Expected later increments have the same
    relative error.
    """
    reach = max(grid.tail, FREE) + 1.0
    places = sum(reach * math.sqrt(part) + 1.5 * part for part in (ring.amplitude, ring.white, ring.constant))
    size = 2.0 * places + abs(eps) + math.log(ring.bins) + 1.0
    # A group of common factors has up to GROUP_RATIO = 2 times the nodes of S.
    return 1.01 * (4.0 * ELEMENTARY + UNIT * (48.0 * size + 16.0 * grid.s_nodes))


def raised_ring(ring: RingGram) -> RingGram:
    """A ring whose exponential part is at least that of the program with rounded coefficients.

    Slopes and deviations are computed from three exponentials, three differences of them from 1, and the
    logarithm of the decay, with an error proportional to it. An entry of K is a sum of products >= 0 of two
    times at most b of them.
    """
    if ring.amplitude == 0.0 or ring.decay == 0.0:
        return ring
    each = ELEMENTARY * (5.0 - math.log(ring.decay))
    return dataclasses.replace(ring, amplitude=ring.amplitude * (1.0 + 2.0 * (ring.bins + 2.0) * each))
