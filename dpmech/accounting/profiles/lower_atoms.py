r"""A privacy loss on finitely many values whose curve is nowhere above a mechanism's: for lower bounds.

Where h(a_i) is known to lie in [l_i, u_i], the curve h, convex and non-increasing, is above l_(i+1) between
two nodes, and above the lines through (a_(i-1), u_(i-1)) and (a_i, l_i), and through (a_(i+2), u_(i+2)) and
(a_(i+1), l_(i+1)). The largest of these is g <= h, linear between nodes and at most one corner in between.
**Theorem.** The lower convex hull G of g and (1 - a)_+ is the curve of a pair (P', Q') of laws on finitely
many points, and every product of such pairs has a curve below that of the product of the mechanisms' own
pairs.

*Proof.* G <= g <= h, G is convex, non-increasing, 1 at 0 with a slope >= -1, and 0 in the end: as in the
proof for upper hulls it is the curve of a pair. Of two pairs with G <= h the first is a post-processing of
the second (Blackwell), coordinate by coordinate so is the product of the first ones of that of the second
ones, and no post-processing raises a curve. []

Mass that rounding takes off counts as loss -infinity, and losses are rounded down: the sum over all outputs
of P'-mass times (1 - a e^-loss)_+ only falls.

References:
    Zhu, Dong and Wang 2022, Proposition 8; Dong, Roth and Su 2022, Theorem 2.
"""

import dataclasses
import functools

import numpy as np

from dpmech.accounting.poisson import LatticeLoss
from dpmech.accounting.profiles.loss_atoms import lower_hull
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, spend

__all__ = ["LowerAtoms", "atoms_below"]

# Relative, far above what products and quotients of these numbers are off by.
_SLACK = 1e-11
# Nodes this close, relative, count as one.
_CLOSE = 1e-9
# What a node is moved to the left by, relative: more than e^eps is off.
_MOVED = 4.0 * ELEMENTARY
# A corner is no closer to a node than this part of the distance between two, so that slopes are known.
_INSIDE = 0.02
_MOST_CELLS = 20_000_000
# An e^eps beyond this counts as infinite.
_LARGEST = 700.0


@dataclasses.dataclass(frozen=True, eq=False)
class LowerAtoms:
    """A privacy loss of one direction on finitely many values, under P; what it says bounds from below.

    Args:
        losses: the values, shape (m,), increasing.
        masses: their probabilities under P, shape (m,), > 0; what lacks to 1 is at -infinity.
    """

    losses: FloatArray
    masses: FloatArray

    @property
    def says_nothing(self) -> bool:
        """Whether no loss is above 0, so that it is that of doing nothing."""
        return not bool(np.any(self.losses > 0.0))

    def lattice(self, step: float) -> LatticeLoss:
        """The loss on multiples of a step, every value moved down to one.

        Raises:
            NumericalError: if that takes more than 2e7 points.
        """
        cells = np.floor((self.losses - 4.0 * UNIT * (np.abs(self.losses) + step)) / step)
        first, count = int(cells[0]), int(cells[-1] - cells[0]) + 1
        if count > _MOST_CELLS:
            raise NumericalError(
                f"losses from {self.losses[0]!r} to {self.losses[-1]!r} in steps of {step!r}: too many points"
            )
        spend(1e-8 * count, 24.0 * count, what=f"a lattice of {count} points")
        nodes: FloatArray = np.bincount((cells - first).astype(np.int64), self.masses, count).astype(
            np.float64
        )
        # A sum of k terms, one after another, is off by k u.
        return LatticeLoss(step, first, nodes * (1.0 - (self.losses.size + 8.0) * UNIT), 0.0)

    @functools.cached_property
    def log_masses(self) -> FloatArray:
        """Logs of the masses."""
        return np.log(self.masses)


def atoms_below(eps: FloatArray, lower: FloatArray, upper: FloatArray) -> LowerAtoms:
    """The loss whose curve is the lower convex hull of what brackets at nodes leave from below.

    Args:
        eps: any real numbers, shape (m,).
        lower: lower bounds on H at e^eps, shape (m,).
        upper: upper bounds, shape (m,), each at least its lower one.
    """
    order = np.argsort(eps, kind="stable")
    order = order[np.abs(eps[order]) < _LARGEST]
    # Moved to the left, where the curve is no lower.
    a = np.append(0.0, np.exp(eps[order]) * (1.0 - _MOVED))
    low = np.append(1.0, np.maximum.accumulate(np.maximum(lower[order], 0.0)[::-1])[::-1])
    high = np.append(1.0, np.minimum.accumulate(np.minimum(upper[order], 1.0)))
    distinct = np.append(True, np.diff(a) > _CLOSE * a[1:])
    a, low, high = a[distinct], np.maximum(low[distinct], 1.0 - a[distinct]), high[distinct]
    if a.size == 1:
        return LowerAtoms(np.zeros(0), np.zeros(0))
    # It rises by no more than the line from the node before does.
    high[1:] += 2.0 * _MOVED * a[1:] * np.maximum(high[:-1] - low[1:], 0.0) / np.diff(a)
    x, y = _with_corners(a, low, high)
    vertices = lower_hull(x, y)
    x, y = x[vertices], y[vertices]
    slopes = np.append(-np.diff(y) / np.diff(x), 0.0)
    # A slope near -1 hides what the heights, near 1, are rounded by.
    doubt = np.append(8.0 * UNIT * (y[:-1] + y[1:]) / np.diff(x), 0.0) + _SLACK * slopes
    drops = slopes[:-1] - slopes[1:] - doubt[:-1] - doubt[1:]
    masses = x[1:] * drops * (1.0 - _SLACK)
    losses = np.log(x[1:])
    losses -= 4.0 * ELEMENTARY * (1.0 + np.abs(losses))
    used = masses > 0.0
    return LowerAtoms(losses[used], masses[used])


def _with_corners(a: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The nodes with their lower bounds, and a point between neighbours where the lines from both sides meet.

    A point anywhere between them at the height of the lower line will do: what it leaves to the left is below
    one line, and to the right below the other one.
    """
    width = np.diff(a)
    # Of the line that comes down to a node, and of the one that leaves the next node behind it.
    left = np.clip(np.append(-1.0, (low[1:-1] - high[:-2]) / width[:-1]), -1.0, 0.0)
    # How far that line is above 0; a node from which it gets nowhere counts as one at 0.
    far = low[:-1] / np.maximum(-left, 1e-300)
    low = np.append(np.where(far > _CLOSE * a[:-1], low[:-1], 0.0), low[-1])
    low[0] = 1.0
    low = np.maximum.accumulate(low[::-1])[::-1]
    right = np.clip(np.append((high[2:] - low[1:-1]) / width[1:], 0.0), -1.0, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        at = (low[1:] - low[:-1] - right * width) / (left - right)
    meet = (left < right) & (at > 0.0) & (at < width)
    at = np.clip(at[meet], _INSIDE * width[meet], (1.0 - _INSIDE) * width[meet])
    at = np.minimum(at, (1.0 - _INSIDE) * far[meet])
    height = np.minimum(low[:-1][meet] + left[meet] * at, low[1:][meet] - right[meet] * (width[meet] - at))
    # Beyond the last node the line that comes down to it, until 0.
    fall = max((high[-2] - low[-1]) / width[-1], 1e-300)
    reach = min(low[-1] / fall, a[-1]) if low[-1] > 0.0 else a[-1]
    x = np.concatenate([a, a[:-1][meet] + at, [a[-1] + (1.0 - _INSIDE) * reach]])
    y = np.concatenate([low, np.maximum(height, 0.0), [0.0]])
    if reach <= _CLOSE * a[-1]:
        # Then the last node is at height 0.
        x, y = x[:-1], y[:-1]
        y[a.size - 1] = 0.0
    order = np.argsort(x)
    return x[order], y[order]
