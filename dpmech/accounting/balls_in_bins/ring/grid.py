"""Where the nodes of the ring programme stand, and how fine they have to be."""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from dpmech.accounting.balls_in_bins.ring.gram import RingGram
from dpmech.accounting.balls_in_bins.ring.node_laws import lognormal_split, normal_split
from dpmech.accounting.balls_in_bins.ring.programme import Curve, Direction, Placement
from dpmech.guards import check_integer, check_real

__all__ = ["RingGrid", "coarser", "constant_nodes", "place_nodes", "spread_z"]

Vector = npt.NDArray[np.float64]

FREE = 4.5
MOST_X_NODES = 6000
LEAST_FLOOR = 1e-100
# Of the largest density of nodes, to the third power; it steers the effort only.
SPARSEST = 1e-9
# Of nodes of y_0, in its deviations: closer ones gain nothing and lose digits.
LEAST_GAP = 1e-3


@dataclasses.dataclass(frozen=True)
class RingGrid:
    """How fine the programme is; every grid gives an upper bound, a coarse one a loose bound.

    Args:
        y_step: distance of the nodes of y, in standard deviations of one step, in (0, 10].
        z_nodes: number of nodes of y_0, >= 3 (unused if z_places is given).
        s_nodes: number of intervals of the running sum, >= 1.
        white_nodes: number of nodes of the white factor above 0, >= 2.
        constant_nodes: number of nodes of the common factor above 0, >= 2.
        tail: standard deviations kept on the side where what lies beyond is charged, in [0.5, 30].
        prune: cells may be emptied as long as this much, in delta, is charged for them at most, in [0, 1].
        z_places: nodes of y_0 in its standard deviations, increasing around 0; empty means equally spaced.

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
    """A grid of the same reach that costs a small part of this one."""
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
        ring: its constant part is not looked at.
        eps: the reference eps of the curve.
        direction: REMOVE or ADD.
        grid: the resolution.
        s_factor: multiplies the number of intervals of S.
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
    """Places of y_0 (in its standard deviations) that equidistribute the error of interpolation.

    Per unit of length that error is density * |second derivative| * spacing^2 / 12, so the nodes are to be
    as dense as its cube root. This steers the effort only: any nodes give a bound.

    Args:
        place: nodes of an earlier run.
        curve: what that run gave at each node.
        direction: REMOVE or ADD.
        goal: the sum of errors aimed at.
        least: the most nodes to spend is ten times this.
    """
    z, values = place.z_nodes, curve.z_values
    sd = math.sqrt(place.variance)
    add = direction is Direction.ADD
    heights = np.exp(z - z[-1]) if add else z
    left = (heights[2:] - heights[1:-1]) / (heights[2:] - heights[:-2])
    bend = np.maximum(left * values[:-2] + (1.0 - left) * values[2:] - values[1:-1], 0.0)
    weights = (lognormal_split(z, 0.0, sd) if add else normal_split(z, sd)).weights[1:-1]
    # skipping a node misses f'' h^2 / 2 there; keeping it, f'' h^2 / 12 on average
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
