r"""Privacy-loss distributions of the Poisson-subsampled Gaussian mechanism on a lattice.

REMOVE: P = (1-q) N(0, s^2) + q N(1, s^2) against Q = N(0, s^2). ADD: the same pair exchanged. The loss L =
log dP/dQ is monotone in the output x, so that the mass of every loss interval is an integral over an interval
of x, computed by Gauss-Legendre quadrature. All quantities below are sums of positive terms and keep their
relative accuracy even if they are tiny.

Upper: the mass of a cell [l, l + h] is split between its two ends so that both its P-mass and its Q-mass are
preserved (connect the dots, Doroshenko et al. 2022, Algorithm 1): the hockey-stick curve becomes its
piecewise-linear interpolation in e^eps, which is above it. Lower: the outcomes of a cell [l - h/2, l + h/2)
are merged, a post-processing, after which their common loss is l up to O(h^2); a small part of a neighbouring
cell is merged in to make it at least l.

Rounding errors are bounded node by node: `Loss.rounding` bounds the errors of a node's loss and mass. The
upper lattice increases every loss and mass by these bounds, the lower one decreases them.
"""

import dataclasses
import math

import numpy as np

from dpmech.engines.losses.step_losses import AnyLoss, StepLoss
from dpmech.numerics import UNIT, FloatArray, IntArray, merge_cells

_ALIGNMENTS = 6


@dataclasses.dataclass(frozen=True, eq=False)
class LatticeLoss:
    """A loss supported on offset + (first + i) step, i >= 0, with probabilities under P.

    Mass missing from a total of one is at loss -infinity (it never contributes to delta).

    Args:
        step: h > 0.
        first: index of the lowest loss.
        masses: shape (m,), >= 0.
        infinite_mass: mass at loss +infinity.
        offset: shift of all losses.
    """

    step: float
    first: int
    masses: FloatArray
    infinite_mass: float
    offset: float = 0.0

    def losses(self) -> FloatArray:
        """The losses, shape (m,)."""
        return self.offset + (self.first + np.arange(self.masses.size, dtype=np.float64)) * self.step


@dataclasses.dataclass(frozen=True)
class Loss(StepLoss):
    """The privacy loss of one step in one direction.

    Args:
        sampling_prob: q in (0, 1).
        sigma_over_sensitivity: s > 0.
        remove: the direction: P is the mixture (True) or the pure noise (False).
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    sampling_prob: float
    sigma_over_sensitivity: float
    remove: bool
    reach: float = 38.0

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Log of the mixture density over the pure one at output x."""
        q = self.sampling_prob
        z = (x - 0.5) / self.sigma_over_sensitivity**2
        small = self._log_mixed(np.minimum(z, 50.0))
        large = math.log(q) + z + np.log1p((1.0 - q) / q * np.exp(-np.maximum(z, 50.0)))
        return np.where(z < 50.0, small, large)

    def _log_mixed(self, z: FloatArray) -> FloatArray:
        """log(1 + q (e^z - 1)); near log(1 - q), for large q, as the logarithm of a sum of positive terms."""
        q = self.sampling_prob
        growth = q * np.expm1(z)
        near = np.log1p(np.maximum(growth, -0.5))
        return near if q <= 0.5 else np.where(growth > -0.5, near, np.log((1.0 - q) + q * np.exp(z)))

    def rounding(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the absolute error of `log_ratio` and on the relative error of the mass of a node.

        Both hold for nodes between two points x that are at most half a unit of z apart; the larger one
        applies.

        In units of u = 2^-53, with 8 for an elementary function: the argument z has error 3 |z|, and x itself
        2 |x|, which change the ratio by its slope q e^z / (1 - q + q e^z) <= 1 times that; between two points
        that is less than e^(1/2) times its value at the point with the larger |z|. Later operations,
        functions of relative slope <= 1, add at most 26 times the ratio, or 30 log q where log q is split
        off; the edges of cells, which are products and sums, add 4 times themselves. With E = x^2 / (2 s^2)
        the exponent of the pure density has error 4 E from x, 3 E from its own operations and 2 E from sums,
        its constant 8 log s + 8; exponential, weights (half a difference of neighbours times a tabulated one,
        7) and quadrature (4) add less than 32, and the split of a cell 28.

        Args:
            x: computed outputs, shape (m,).

        Returns:
            Two arrays of shape (m,).
        """
        q, s = self.sampling_prob, self.sigma_over_sensitivity
        z = (x - 0.5) / s**2
        ratio = self.log_ratio(x)
        slope = np.exp(np.minimum(math.log(q) + z - ratio, 0.0))
        split = np.where(z >= 49.0, 30.0 * abs(math.log(q)), 0.0)
        off = UNIT * (32.0 * np.abs(ratio) + slope * (10.0 * np.abs(z) + 2.0 / s**2) + split)
        pure = 5.0 * (x / s) ** 2 + 2.0 * np.abs(x) / s**2 + 8.0 * abs(math.log(s))
        mass = UNIT * (pure + np.abs(ratio) + 68.0)
        return off, (mass + off if self.remove else mass)

    def output_at(self, log_ratio: FloatArray) -> FloatArray:
        """The output with this log ratio (> log(1 - q)): the inverse of `log_ratio`."""
        q = self.sampling_prob
        low = np.minimum(log_ratio, 50.0)
        small = np.log1p(np.maximum(np.expm1(low) / q, -1.0 + 2.0**-53))
        large = log_ratio - math.log(q) + np.log1p(-(1.0 - q) * np.exp(-np.maximum(log_ratio, 50.0)))
        return 0.5 + self.sigma_over_sensitivity**2 * np.where(log_ratio < 50.0, small, large)

    @property
    def least_ratio(self) -> float:
        """Log(1 - q)."""
        return math.log1p(-self.sampling_prob)

    @property
    def panel_width(self) -> float:
        """At most half a unit of z."""
        s = self.sigma_over_sensitivity
        return min(0.25 * s, 2.5 * s / self.reach, 0.5 * s * s)


def upper_lattice(loss: AnyLoss, step: float) -> LatticeLoss:
    """A lattice loss whose hockey-stick curve, also composed, is nowhere below the true one."""
    first, count = _cells(loss, step)
    edges = (first + np.arange(count + 1, dtype=np.float64)) * step
    losses, masses, cells = _split(loss, edges, upwards=True)
    inside = np.clip(losses - edges[cells] + 4.0 * UNIT * step, 0.0, step)
    high = masses * (np.expm1(-inside) / np.expm1(-step))
    low = masses * (math.exp(-step) * np.expm1(step - inside) / -np.expm1(-step))
    nodes = np.zeros(count + 1)
    # A sequential sum of k masses has error k u, and the sum of two such sums one more.
    raised = 1.0 + (_by_cell(cells, None, count) + 4.0) * UNIT
    nodes[:-1] += _by_cell(cells, low, count) * raised
    nodes[1:] += _by_cell(cells, high, count) * raised
    # If cuts between cells are found by iteration, all losses are raised by the largest excess over a cell.
    above = 0.0 if loss.exact_cuts else max(0.0, float((losses - edges[cells]).max()) - step)
    # Lower tails move up to the first node; both tails also count at infinity, which is conservative.
    return LatticeLoss(step, first, nodes, loss.tail_mass(), 2.0 * above)


def lower_lattice(loss: AnyLoss, step: float) -> LatticeLoss:
    """A lattice loss whose hockey-stick curve, also composed, is nowhere above the true one.

    The lattice is shifted so that the heaviest cell's merged loss is a node: with a small sampling
    probability almost all mass is in one cell, which no neighbour is heavy enough to correct.
    """
    first, count = _cells(loss, step)
    first -= 2
    count += 4
    offset = 0.0
    for remaining in range(_ALIGNMENTS - 1, -1, -1):
        edges = offset + (first - 0.5 + np.arange(count + 1, dtype=np.float64)) * step
        losses, masses, cells = _split(loss, edges, upwards=False)
        centres = offset + (first + np.arange(count, dtype=np.float64)) * step
        # surplus = P-mass - e^l Q-mass: >= 0 where the merged loss is at least the node's l.
        excess = -masses * np.expm1(centres[cells] - losses + 4.0 * UNIT * step)
        # A sum of k terms has error k u of their sizes, here plus the error of each term and the downward
        # rounding of the total; the merger below adds less than 64 u of both on steps up to 1 / 2.
        terms = _by_cell(cells, None, count)
        total = _by_cell(cells, masses, count) * (1.0 - (terms + 4.0) * UNIT)
        sizes = _by_cell(cells, np.abs(excess), count)
        surplus = _by_cell(cells, excess, count) - UNIT * ((3.0 * terms + 96.0) * sizes + 64.0 * total)
        heaviest = int(total.argmax())
        shift = -math.log1p(-float(surplus[heaviest] / total[heaviest]))
        if abs(shift) <= 0.02 * step or remaining == 0:
            break
        # Whole steps only renumber the nodes, and would move the lattice off the interval.
        offset = math.remainder(offset + shift, step)
    # The nodes move by the last shift; the cells do not.
    surplus = -total * math.expm1(shift) + math.exp(shift) * surplus

    def moved(mass: FloatArray, excess: FloatArray, nodes: int) -> FloatArray:
        """The surplus of the same mass when it is counted at a node that many positions higher."""
        return -mass * math.expm1(nodes * step) + math.exp(nodes * step) * excess

    return LatticeLoss(step, first, merge_cells(total, surplus, moved), 0.0, offset + shift)


def _split(loss: AnyLoss, edges: FloatArray, *, upwards: bool) -> tuple[FloatArray, FloatArray, IntArray]:
    """The quadrature between edges; raises FloatingPointError if they are so near that it leaves them."""
    losses, masses, cells = loss.quadrature(edges, upwards=upwards)
    if cells.max() > edges.size - 2:
        raise FloatingPointError("cells of a lattice have no width")
    return losses, masses, cells


def _by_cell(cells: IntArray, weights: FloatArray | None, count: int) -> FloatArray:
    return np.bincount(cells, weights, count).astype(np.float64)


def _cells(loss: AnyLoss, step: float) -> tuple[int, int]:
    low, high = loss.interval()
    first = math.floor(low / step)
    return first, max(1, math.ceil(high / step) - first)
