"""The convex-order dynamic program on a cyclic Gram matrix: one grid, one direction, a whole curve of delta.

With y_l = x_l + rho_l z, z = y_0 and x the bridge that is 0 at both ends of the ring (the bins in cyclic
order), it steps through bins 0 to b - 1 with the joint law of (x_l, S_l), S the running sum of exp(y_l - V/2)
W_l. Moving a point to the neighbouring nodes replaces a convex function by its interpolant from above, so the
result is an upper bound (docs/balls_in_bins_proof.md). S is in units of b e^eps (REMOVE) or b e^-eps (ADD).
The coefficients of the bridge are in closed form, from ratios of sinh that neither overflow nor cancel.
"""

import dataclasses
import enum
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmech.engines.convex_order.node_laws import SUM_TOLERANCE, lognormal_split, normal_split
from dpmech.exceptions import NumericalError
from dpmech.numerics import spend

Vector = npt.NDArray[np.float64]

# A dependence of the mean of a later bin on x_l with a slope below this is omitted, and `at` compensates for
# it; a smaller threshold keeps more terms.
NEGLIGIBLE_SLOPE = 1e-13

# the entries of Walk.totals, as the compiled loops address them
MASS = 0
EXCESS = 1
CHARGE = 2


class Window(NamedTuple):
    """The cells of a state that may hold mass, ends included; it is empty if `row_hi` is negative.

    Attributes:
        row_lo: first node of x.
        row_hi: last node of x.
        col_lo: first node of S.
        col_hi: last node of S.
    """

    row_lo: int
    row_hi: int
    col_lo: int
    col_hi: int


@dataclasses.dataclass(eq=False)
class Walk:
    """The state of the program for one value of z.

    Attributes:
        z: the value.
        state: shape (N, s_nodes), the joint law of x and S below 1 after a bin.
        mixed: shape (N, s_nodes), the same after the step of x to the next bin, before its increment.
        window: where the current one of the two may hold mass.
        law: shape (s_nodes,), the law of S on paths that gain nothing more.
        totals: shape (3,), the probability that S reached 1 (MASS), the expected final S - 1 on that event
            (EXCESS), and the charge for truncated edges and emptied cells (CHARGE).
    """

    z: float
    state: Vector
    mixed: Vector
    window: Window
    law: Vector
    totals: Vector


def start_walk(z: float, x: Vector, s_nodes: int) -> Walk:
    """Start with all mass at x = 0, S = 0 in `mixed`, before the increment of bin 0."""
    row = int(np.argmin(np.abs(x)))
    mixed = np.zeros((x.size, s_nodes))
    mixed[row, 0] = 1.0
    return Walk(z, np.zeros_like(mixed), mixed, Window(row, row, 0, 0), np.zeros(s_nodes), np.zeros(3))


class RingBridge:
    """Coefficients of the bridge.

    Args:
        bins: b >= 2.
        variance: V >= 0.
        decay: lam in (0, 1); ignored if V is 0.
    """

    def __init__(self, bins: int, variance: float, decay: float) -> None:
        self.bins = bins
        self.variance = variance
        self.theta = -math.log(decay) if variance > 0.0 else math.inf

    def ratio(self, m: Any, n: Any) -> Any:  # noqa: ANN401 - integers or arrays of them
        """sinh(m theta) / sinh(n theta), 0 <= m <= n, n >= 1."""
        return (
            np.exp((m - n) * self.theta) * np.expm1(-2.0 * m * self.theta) / np.expm1(-2.0 * n * self.theta)
        )

    def correlation(self, m: Any) -> Any:  # noqa: ANN401 - integers or arrays of them
        """Correlation of y_m and y_0: cosh((b/2 - m) theta) / cosh(b theta / 2)."""
        up, down = np.exp(-m * self.theta), np.exp(-(self.bins - m) * self.theta)
        return (up + down) / (1.0 + math.exp(-self.bins * self.theta))

    def bridge_variance(self, start: int, m: Any) -> Any:  # noqa: ANN401 - integers or arrays of them
        """Variance of y_m given y_start and y_0, for 0 <= start < m < b."""
        b, theta = self.bins, self.theta
        if start == 0:
            # V (1 - rho_m^2) = V sinh(m theta) sinh((b - m) theta) / cosh(b theta / 2)^2
            top = np.expm1(-2.0 * m * theta) * np.expm1(-2.0 * (b - m) * theta)
            return self.variance * top / (1.0 + math.exp(-b * theta)) ** 2
        # 2 V tanh(b theta / 2) sinh((m - start) theta) sinh((b - m) theta) / sinh((b - start) theta)
        half = math.tanh(0.5 * b * theta)
        top = np.expm1(-2.0 * (m - start) * theta) * np.expm1(-2.0 * (b - m) * theta)
        return self.variance * half * top / -np.expm1(-2.0 * (b - start) * theta)

    def step(self, start: int) -> tuple[float, float]:
        """Slope and standard deviation of x_(start + 1) given x_start."""
        if self.variance == 0.0:
            return 0.0, 0.0
        slope = 0.0 if start == 0 else float(self.ratio(self.bins - start - 1, self.bins - start))
        return slope, math.sqrt(float(self.bridge_variance(start, start + 1)))


class Futures:
    """Expected later increments given (x_l, z), in closed form."""

    def __init__(self, ring: RingBridge, x: Vector, z_nodes: Vector, offset: float) -> None:
        self.ring, self.x, self.z, self.offset = ring, x, z_nodes, offset
        bins = np.arange(ring.bins)
        if ring.variance > 0.0:
            self.rho = np.asarray(ring.correlation(bins))
            self.reach = math.ceil(-math.log(NEGLIGIBLE_SLOPE) / ring.theta)
        else:
            self.rho = np.zeros(ring.bins)
            self.reach = 0
        # far[m]: expected increments of the bins from m on given z alone. Far away, x_l changes the mean by a
        # negligible multiple of x_l and can only decrease the variance.
        spread = 0.5 * ring.variance * (1.0 - self.rho * self.rho)
        rise = np.exp(self.rho[:, None] * z_nodes[None, :] + spread[:, None] - offset)
        self.far = np.concatenate([np.cumsum(rise[::-1], axis=0)[::-1], np.zeros((1, z_nodes.size))])

    def at_start(self) -> Vector:
        """Shape (M,): after bin 0."""
        return np.asarray(self.far[1])

    def at(self, bin_: int) -> Vector:
        """Shape (N, M): after this bin; an upper bound where the dependence on x_l is omitted."""
        ring, b = self.ring, self.ring.bins
        stop = min(b, bin_ + 1 + self.reach)
        # There the slope is at most NEGLIGIBLE_SLOPE, including one rounding of the reach.
        most = np.exp(1.01 * NEGLIGIBLE_SLOPE * np.maximum(self.x, 0.0))
        total: Vector = most[:, None] * self.far[stop]
        near = np.arange(bin_ + 1, stop)
        if near.size:
            slopes = np.asarray(ring.ratio(b - near, b - bin_))
            spread = 0.5 * np.asarray(ring.bridge_variance(bin_, near))
            total += np.exp(self.x[:, None] * slopes[None, :] + spread[None, :] - self.offset) @ np.exp(
                self.rho[near, None] * self.z[None, :]
            )
        return total


FREE_TAIL = 4.5
GROUP_BYTES = 256 * 2**20


class Direction(enum.Enum):
    """Which of the two divergences: REMOVE is H_eps(P || Q), ADD is H_eps(Q || P), BOTH their maximum."""

    REMOVE = "remove"
    ADD = "add"
    BOTH = "both"


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """Positions of the nodes, for one ring, direction and reference eps.

    Attributes:
        bins: b >= 2.
        variance: V >= 0, the variance of the ring exponential.
        decay: lam in [0, 1); 0 only with variance 0.
        white: variance of the independent part, >= 0.
        eps: the reference; REMOVE is valid for every smaller eps, ADD for every larger one.
        x_nodes: shape (N,), equally spaced around 0 (one node 0 if variance is 0).
        z_nodes: shape (M,), increasing (one node 0 if variance is 0).
        white_nodes: shape (J,), logarithms of the nodes of W (ignored if white is 0).
        s_nodes: number of intervals of S between 0 and 1.
        tail: number of standard deviations of a step to keep on the side that is charged.
        floor: cells with less mass (times their largest further gain) are emptied and charged, > 0.
    """

    bins: int
    variance: float
    decay: float
    white: float
    eps: float
    x_nodes: Vector
    z_nodes: Vector
    white_nodes: Vector
    s_nodes: int
    tail: float
    floor: float


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """delta as a function of eps, from one run.

    Attributes:
        direction: REMOVE or ADD.
        eps: the reference.
        law: shape (s_nodes,), the final law of S below 1.
        mass: probability that S reached 1.
        excess: expected S - 1 at the end on that event (REMOVE).
        charge: cost of the edges, in units of S (REMOVE) or of probability (ADD).
        z_values: shape (M,), delta at the reference given each node of z.
    """

    direction: Direction
    eps: float
    law: Vector
    mass: float
    excess: float
    charge: float
    z_values: Vector

    def delta(self, eps: float) -> float:
        """Upper bound on delta at an eps on the valid side of the reference, before slack for rounding."""
        nodes = np.arange(self.law.size) / self.law.size
        if self.direction is Direction.REMOVE:
            kink = math.exp(eps - self.eps)
            tail = self.excess + (1.0 - kink) * self.mass
            return math.exp(self.eps) * (float(self.law @ np.maximum(nodes - kink, 0.0)) + tail + self.charge)
        slope = math.exp(eps - self.eps)
        return float(self.law @ np.maximum(1.0 - slope * nodes, 0.0)) + self.charge


def run_program(place: Placement, direction: Direction) -> Curve:
    """Run the dynamic program once. The result is an upper bound up to rounding (`grid`).

    Args:
        place: the nodes.
        direction: REMOVE or ADD.

    Returns:
        The curve of delta.

    Raises:
        NumericalError: if the weights of a step do not sum to 1.
    """
    spend(*program_cost(place), what=f"a run of the convex-order program over {place.bins} bins")
    weights, z_charge = _z_split(place, direction)
    count = place.x_nodes.size * (place.s_nodes + 1) * 16
    size = max(1, min(place.z_nodes.size, GROUP_BYTES // count))
    walks: list[Walk] = []
    with ThreadPoolExecutor(max_workers=_workers()) as pool:
        for start in range(0, place.z_nodes.size, size):
            walks += _run_group(place, direction, place.z_nodes[start : start + size], pool.map)
    law = sum((w * walk.law for w, walk in zip(weights, walks, strict=True)), np.zeros(place.s_nodes))
    parts = [_curve(place, direction, walk.law, walk.totals).delta(place.eps) for walk in walks]
    whole = _curve(place, direction, law, weights @ np.array([walk.totals for walk in walks]))
    return dataclasses.replace(whole, charge=whole.charge + z_charge, z_values=np.array(parts))


def program_cost(place: Placement) -> tuple[float, float]:
    """Conservative estimate of core seconds and bytes of a run: measured values times about three."""
    x = place.x_nodes
    band = 1.0
    if x.size > 1:
        step = math.sqrt(place.variance * (1.0 - place.decay) * (1.0 + place.decay))
        band = min(x.size, (place.tail + FREE_TAIL) * step / float(x[1] - x[0]) + 1.0)
    cells = place.bins * place.z_nodes.size * x.size * (place.s_nodes + 16.0)
    white = place.white_nodes.size if place.white > 0.0 else 0
    return cells * (3e-8 + 1e-10 * band + 2e-9 * white), 2.0 * GROUP_BYTES + 128.0 * x.size**2


def _curve(place: Placement, direction: Direction, law: Vector, totals: Vector) -> Curve:
    mass, excess, charge = float(totals[MASS]), float(totals[EXCESS]), float(totals[CHARGE])
    return Curve(direction, place.eps, law, mass, excess, charge, np.empty(0))


def _workers() -> int:
    """Number of processors for this process; the result does not depend on it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _z_split(place: Placement, direction: Direction) -> tuple[Vector, float]:
    if place.variance == 0.0:
        return np.ones(1), 0.0
    sd = math.sqrt(place.variance)
    if direction is Direction.ADD:
        split = lognormal_split(place.z_nodes, 0.0, sd)
        return split.weights, split.zero
    split = normal_split(place.z_nodes, sd)
    ring, top = RingBridge(place.bins, place.variance, place.decay), place.z_nodes[-1]
    later = np.arange(place.bins)
    rho = ring.correlation(later)
    value = float(
        np.sum(np.exp(rho * top - 0.5 * rho * rho * place.variance - math.log(place.bins) - place.eps))
    )
    return split.weights, split.excess * value


def _white_law(place: Placement, direction: Direction) -> tuple[Vector, Vector, float]:
    """Nodes and weights of W, and the cost of truncating its upper tail, over all bins."""
    if place.white == 0.0:
        return np.ones(1), np.ones(1), 0.0
    split = lognormal_split(place.white_nodes, -0.5 * place.white, math.sqrt(place.white))
    sizes = np.concatenate([[0.0], np.exp(place.white_nodes)])
    cost = split.excess * math.exp(-place.eps) if direction is Direction.REMOVE else 0.0
    return sizes, np.concatenate([[split.zero], split.weights]), cost


def _run_group(
    place: Placement, direction: Direction, z_nodes: Vector, each: Callable[..., Any]
) -> list[Walk]:
    from dpmech.engines.convex_order import kernels  # numba is slow to import

    ring = RingBridge(place.bins, place.variance, place.decay)
    x = place.x_nodes
    n_x, n_s, b = x.size, place.s_nodes, place.bins
    offset = 0.5 * place.variance + math.log(b) + (place.eps if direction is Direction.REMOVE else -place.eps)
    sizes, chances, white_cost = _white_law(place, direction)
    walks = [start_walk(float(z), x, n_s) for z in z_nodes]
    remove = direction is Direction.REMOVE
    futures = Futures(ring, x, z_nodes, offset)
    steps = _Steps(kernels, ring, place, direction)
    for walk, later in zip(walks, futures.at_start() if remove else np.zeros(z_nodes.size), strict=True):
        walk.totals[CHARGE] += white_cost
        first = np.full(n_x, math.exp(walk.z - offset)), np.full(n_x, later)
        walk.window = kernels.accumulate(
            walk.mixed, walk.window, *first, sizes, chances, place.floor, walk.state, walk.totals
        )
    for bin_ in range(1, b):
        steps.build(bin_ - 1)
        shift = ring.correlation(bin_) * z_nodes if ring.variance > 0.0 else z_nodes
        increments = np.exp(x[:, None] + shift[None, :] - offset)
        future = futures.at(bin_) if remove else np.zeros_like(increments)
        job = partial(_advance, kernels, direction, steps, increments, future, (sizes, chances, place.floor))
        list(each(job, range(len(walks)), walks))
    for walk in walks:
        kernels.weighted_rows(walk.state, walk.window, np.ones(n_x), walk.law)
        walk.state = walk.mixed = np.empty((0, 0))
    return walks


class _Steps:
    """The weights of the current step, rebuilt only when its coefficients change."""

    def __init__(self, kernels: Any, ring: RingBridge, place: Placement, direction: Direction) -> None:  # noqa: ANN401 - a module
        n_x = place.x_nodes.size
        self.kernels, self.ring, self.place, self.direction = kernels, ring, place, direction
        self.current = (math.nan, math.nan)
        self.weights = np.ones((n_x, n_x))
        self.edge = np.zeros(n_x)
        self.top = np.zeros(n_x, dtype=np.int64)
        self.first = np.zeros(n_x, dtype=np.int64)
        self.last = np.zeros(n_x, dtype=np.int64)

    def build(self, start: int) -> None:
        """Prepare the step from bin `start` to the next."""
        slope, q = self.ring.step(start)
        if (slope, q) == self.current or q == 0.0:
            return
        self.current = (slope, q)
        x, tail = self.place.x_nodes, self.place.tail
        if self.direction is Direction.REMOVE:
            worst = self.kernels.normal_steps(
                x, slope, q, FREE_TAIL, tail + max(q - 1.0, 0.0), self.weights, self.edge, self.top
            )
        else:
            worst = self.kernels.split_steps(x, slope, q, tail, FREE_TAIL, self.weights, self.edge)
        if not worst <= SUM_TOLERANCE:
            raise NumericalError(f"weights of the step from bin {start} are off by {worst!r}")
        filled = self.weights > 0.0
        self.first = np.argmax(filled, axis=1).astype(np.int64)
        self.last = (x.size - 1 - np.argmax(filled[:, ::-1], axis=1)).astype(np.int64)


def _advance(
    kernels: Any,  # noqa: ANN401 - a module
    direction: Direction,
    steps: _Steps,
    increments: Vector,
    future: Vector,
    law: tuple[Vector, Vector, float],
    index: int,
    walk: Walk,
) -> None:
    """Process one bin for one value of z."""
    step, later = np.ascontiguousarray(increments[:, index]), np.ascontiguousarray(future[:, index])
    if direction is Direction.REMOVE:
        lost = steps.edge * (step + later)[steps.top]
        walk.totals[CHARGE] += kernels.weighted_rows(walk.state, walk.window, lost, np.zeros(walk.law.size))
    else:
        kernels.weighted_rows(walk.state, walk.window, steps.edge, walk.law)
    if walk.window.row_hi < 0:
        return
    rows = int(np.searchsorted(step, 1.0)) if law[0].size == 1 else step.size
    band = (steps.weights, steps.first, steps.last, walk.state, walk.window, rows)
    if rows < step.size and direction is Direction.REMOVE:
        kernels.stop_rows(*band, step, later, walk.totals)
    mixed = kernels.mix_rows(*band, walk.mixed)
    walk.window = kernels.accumulate(walk.mixed, mixed, step, later, *law, walk.state, walk.totals)
