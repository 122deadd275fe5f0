"""What float64 may do to a run of the ring programme, from above.

A run adds and multiplies numbers >= 0, so that relative errors of its weights and sums multiply:
`sums_factor`. What moves the running sum S, its increments and the comparison with 1, is a change of eps:
`level_shift`. What moves the coefficients of the bridge is a change of the Gram matrix: `raised_ring`.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from dpmech.accounting.balls_in_bins.ring.bridge import RingBridge
from dpmech.accounting.balls_in_bins.ring.gram import RingGram
from dpmech.accounting.balls_in_bins.ring.grid import FREE, RingGrid
from dpmech.accounting.balls_in_bins.ring.programme import Placement
from dpmech.numerics import ELEMENTARY, UNIT

__all__ = ["common_factor", "law_rounding", "level_shift", "raised_ring", "split_rounding", "sums_factor"]

Vector = npt.NDArray[np.float64]

# At least this often what was measured against 450 digits, for steps of 0.01 to 2, nodes 0.02 to 4 of their
# deviations apart, up to 29 deviations out (tests/unit/accounting/balls_in_bins/ring/test_rounding.py).
SPLIT_SAFETY = 4.0


def split_rounding(
    gaps: npt.ArrayLike, deviations: npt.ArrayLike, tail: float, farthest: npt.ArrayLike
) -> Vector:
    """Bound on the relative error of every weight of a law that is split onto nodes.

    Calls t deviations out are phi(t) - t P(N > t), which lose a factor t^2 by cancellation of terms that are
    off by t^2 roundings; those of e^X lose 1 / deviation instead. Second differences over nodes `gap`
    deviations apart lose 1 / gap^2 of that near the mean, where positions are known to `farthest` roundings.
    The numbers in front are at least what was measured, and SPLIT_SAFETY times that is taken.

    Args:
        gaps: distances of nodes, in deviations of the law.
        deviations: standard deviations of the law.
        tail: how many of them the nodes reach from the mean.
        farthest: the largest node, in deviations.
    """
    gap, deviation = np.minimum(gaps, 1.0), np.minimum(deviations, 1.0)
    out = tail + np.asarray(deviations) + 2.0
    lost = out**4 + (32.0 * out**2 + (100.0 + 10.0 * np.asarray(farthest)) / gap**2) / deviation
    return np.asarray(SPLIT_SAFETY * UNIT * lost)


def sums_factor(place: Placement) -> float:
    """Factor for a bound from one run: weights of all steps, and sums of terms >= 0 one after the other."""
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
    """Factor for the law of what all bins share, on nodes e^logs."""
    return math.exp(1.01 * law_rounding(logs + 0.5 * constant, math.sqrt(constant)))


def law_rounding(nodes: Vector, deviation: float) -> float:
    """Bound on the relative error of every weight of a lognormal law that is split onto e^nodes."""
    reach = float(np.max(np.abs(nodes))) / deviation
    gap = float(np.min(np.diff(nodes))) / deviation
    return float(split_rounding(gap, deviation, reach, reach)) + 4.0 * UNIT * nodes.size


def level_shift(ring: RingGram, eps: float, grid: RingGrid) -> float:
    """How much lower eps has to be taken so that no rounding of S makes delta too small.

    Increments are exponentials of sums of x, z, half variances and eps, each known to some 40 roundings of
    its size. S - 1 is a difference of numbers about 1 with roundings of sums over the nodes of S; an absolute
    error eta of it is at most a factor 1 + eta of S >= 1. A lower eps makes S larger where delta grows with
    it (REMOVE), and smaller where delta falls (ADD). Expected later increments are off by the same, relative
    to themselves.
    """
    reach = max(grid.tail, FREE) + 1.0
    places = sum(reach * math.sqrt(part) + 1.5 * part for part in (ring.amplitude, ring.white, ring.constant))
    size = 2.0 * places + abs(eps) + math.log(ring.bins) + 1.0
    # A group of shared factors has up to GROUP_RATIO = 2 times the nodes of S.
    return 1.01 * (4.0 * ELEMENTARY + UNIT * (48.0 * size + 16.0 * grid.s_nodes))


def raised_ring(ring: RingGram) -> RingGram:
    """A ring whose exponential part is at least that of the walk whose coefficients are rounded.

    Slopes and deviations are made of three exponentials, three differences of them from 1, and the logarithm
    of the decay, whose error is multiplied by itself. An entry of K is a sum of products >= 0 of two times at
    most b of them.
    """
    if ring.amplitude == 0.0 or ring.decay == 0.0:
        return ring
    each = ELEMENTARY * (5.0 - math.log(ring.decay))
    return dataclasses.replace(ring, amplitude=ring.amplitude * (1.0 + 2.0 * (ring.bins + 2.0) * each))
