r"""Privacy losses on finitely many values, above or below a curve that is bounded at nodes.

**From above.** The curve of a pair, h(a) = H_a(P || Q) = sup_E P(E) - a Q(E), is convex and non-increasing in
a >= 0, and h(0) = 1. **Theorem.** Let U be the lower convex hull of (0, 1) and of points (a_i, u_i) with u_i
>= h(a_i), continued by its last value. Then U >= h, and U is the curve of a pair (P', Q') of laws on finitely
many points.

*Proof.* A point of the hull is a mixture of points that lie above the convex curve h. U is convex and
non-increasing, and U >= (1 - a)_+ because h is, so its slope at 0 is >= -1. With slopes s_0 <= s_1 <= ... < 0
after the vertices a_0 = 0 < a_1 < ... < a_m let Q' have mass s_i - s_(i - 1) at a_i (s_(-1) = -1, s_m = 0),
and P' have a_i times that mass, and U(a_m) where Q' has none. Then E_Q'(r - a)_+ + U(a_m) = U(a). []

A pair whose curve is nowhere below that of every pair of neighbouring datasets dominates the mechanism, and
products of dominating pairs dominate adaptive compositions.

**From below.** Where h(a_i) is known to lie in [l_i, u_i], the curve h, convex and non-increasing, is above
l_(i+1) between two nodes, and above the lines through (a_(i-1), u_(i-1)) and (a_i, l_i), and through
(a_(i+2), u_(i+2)) and (a_(i+1), l_(i+1)). The largest of these is g <= h, linear between nodes with at most
one corner in between. **Theorem.** The lower convex hull G of g and (1 - a)_+ is the curve of a pair (P', Q')
of laws on finitely many points, and every product of such pairs has a curve below that of the product of the
mechanisms' own pairs.

*Proof.* G <= g <= h; G is convex and non-increasing, is 1 at 0 with a slope >= -1, and is 0 in the end. As in
the proof for upper hulls, it is the curve of a pair. If two pairs satisfy G <= h, the first is a
post-processing of the second (Blackwell). Coordinate by coordinate, the product of the first pairs is a
post-processing of the product of the second ones, and no post-processing raises a curve. []

Mass that rounding removes counts as loss -infinity, and losses are rounded down: the sum over all outputs
of P'-mass times (1 - a e^-loss)_+ only decreases. Outputs may also be merged before: their masses add, and
the pair is a post-processing.

References:
    Zhu, Dong and Wang 2022, Proposition 8 and Theorem 10; Dong, Roth and Su 2022, Theorem 2.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from dpmech.engines.losses import LatticeLoss
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, IntArray, spend

# Slopes have error 4 u, masses 3 u more.
_SLOPES, _MASSES = 8.0 * UNIT, 8.0 * UNIT
_MOST_CELLS = 20_000_000
# Values of eps beyond this count as infinite.
_LARGEST = 700.0
# Relative error of a multiple of a grid as a float, and of a step that divides the grid.
_MULTIPLE, _DIVIDED = 4.0 * UNIT, 8.0 * UNIT

# Lower and upper bound on delta of one release at eps >= 0.
ClosedForm = Callable[[float], tuple[float, float]]


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Values on multiples of a grid.

    Args:
        grid: distance of neighbouring multiples, > 0.
        relative: bound on the relative error of `grid`.
        indexes: the multiples, shape (m,), increasing.
    """

    grid: float
    relative: float
    indexes: IntArray

    @property
    def values(self) -> FloatArray:
        """The values, rounded to nearest."""
        return self.indexes.astype(np.float64) * self.grid

    @property
    def off(self) -> float:
        """Bound on the absolute error of all values."""
        return float(np.abs(self.values).max(initial=0.0)) * (self.relative + _MULTIPLE)

    def lattice(self, step: float, masses: FloatArray, infinite: float, *, upper: bool) -> LatticeLoss | None:
        """These values on a lattice with this step; None if the step does not divide the grid."""
        ratio = round(self.grid / step)
        if ratio < 1 or abs(self.grid - ratio * step) > _DIVIDED * self.grid:
            return None
        first = int(self.indexes[0]) * ratio
        count = int(self.indexes[-1]) * ratio - first + 1
        if count > _MOST_CELLS:
            raise NumericalError(f"losses on {count} multiples of {step!r}: too many points")
        nodes: FloatArray = np.zeros(count)
        nodes[self.indexes * ratio - first] = masses
        # All values are moved by the largest error of one.
        off = self.off + 2.0 * _DIVIDED * float(np.abs(self.values).max())
        return LatticeLoss(step, first, nodes, infinite, off if upper else -off)


@dataclasses.dataclass(frozen=True, eq=False)
class LossAtoms:
    """A dominating privacy loss of one direction on finitely many values, under P; it bounds from above.

    Args:
        losses: the values, shape (m,), increasing.
        masses: their probabilities under P, shape (m,), >= 0; the total including `infinite` is at least 1,
            unless mass at -infinity is left out.
        infinite: the probability under P of outputs that are impossible under Q.
        on: the grid of the losses, which are raised by its largest error; None if they are on none.
        closed: bounds on delta of one release, if they are closer than those of the loss.
    """

    losses: FloatArray
    masses: FloatArray
    infinite: float
    on: Grid | None = None
    closed: ClosedForm | None = None

    @property
    def grid(self) -> float:
        """Distance of the multiples that have all losses; 0 if there is none."""
        return 0.0 if self.on is None else self.on.grid

    def delta(self, eps: float) -> float:
        """H at e^eps, any real eps, rounded up."""
        if self.closed is not None and eps >= 0.0:
            return self.closed(eps)[1]
        return float(self.deltas(np.array([eps]))[0])

    def deltas(self, eps: FloatArray) -> FloatArray:
        """The same at several eps, shape (k,)."""
        at = eps[:, None]
        masses = np.where(self.losses > at, self.masses, 0.0)
        terms = masses * -np.expm1(-np.maximum(self.losses - at, 0.0))
        # The difference has error u of the larger number, which changes a term by that times its mass; the
        # exponential adds 8 u.
        off = UNIT * (np.abs(self.losses) + np.abs(at)) * masses
        found = terms.sum(axis=1) + off.sum(axis=1)
        found *= 1.0 + ELEMENTARY + (self.losses.size + 8.0) * UNIT
        return np.asarray(np.minimum(1.0, np.nextafter(found + self.infinite, math.inf)))

    def lattice(self, step: float) -> LatticeLoss:
        """The loss on multiples of a step; splitting each mass preserves its P-mass and its Q-mass.

        The curve becomes its own interpolation in e^eps, which is above it. A grid that the step divides
        remains as it is.

        Raises:
            NumericalError: if that takes more than 2e7 points.
        """
        if self.on is not None:
            found = self.on.lattice(step, self.masses, self.infinite, upper=True)
            if found is not None:
                return found
        first = math.floor(float(self.losses[0]) / step) - 1
        count = math.floor(float(self.losses[-1]) / step) + 2 - first
        if count > _MOST_CELLS:
            raise NumericalError(
                f"losses from {self.losses[0]!r} to {self.losses[-1]!r} in steps of {step!r}: too many points"
            )
        spend(1e-8 * count, 24.0 * count, what=f"a lattice of {count} points")
        cells = np.clip(np.floor(self.losses / step).astype(np.int64) - first, 0, count - 2)
        edges = (first + cells.astype(np.float64)) * step
        # Increasing a loss by its own rounding error gives an upper bound.
        inside = np.clip(self.losses - edges + 4.0 * UNIT * (step + np.abs(self.losses)), 0.0, step)
        high = self.masses * (np.expm1(-inside) / np.expm1(-step))
        low = self.masses * (math.exp(-step) * np.expm1(step - inside) / -np.expm1(-step))
        raised = 1.0 + (self.losses.size + 64.0) * UNIT
        nodes: FloatArray = np.zeros(count)
        for cell, mass in ((cells, low), (cells + 1, high)):
            nodes += np.bincount(cell, mass, count)
        return LatticeLoss(step, first, nodes * raised, min(1.0, self.infinite))

    @functools.cached_property
    def log_masses(self) -> FloatArray:
        """Logs of the masses."""
        with np.errstate(divide="ignore"):
            return np.log(self.masses)


def atoms_above(eps: FloatArray, deltas: FloatArray) -> LossAtoms:
    """The loss whose curve is the lower convex hull of upper bounds.

    Args:
        eps: any real numbers, shape (m,).
        deltas: upper bounds on H at e^eps, shape (m,).

    Raises:
        NumericalError: if a bound is NaN or below 1 - e^eps, which no curve is.
    """
    order = np.argsort(eps, kind="stable")
    eps, deltas = eps[order], np.minimum(deltas[order], 1.0)
    # Where e^eps underflows to 0 every curve is 1.
    kept = (eps < _LARGEST) & (np.exp(np.minimum(eps, 0.0)) > 0.0)
    eps, deltas = eps[kept], deltas[kept]
    least = np.maximum(0.0, -np.expm1(eps)) * (1.0 - 4.0 * ELEMENTARY)
    if not np.all(deltas >= least):
        raise NumericalError("an upper bound on delta is below what every mechanism has, or not a number")
    # Curves are non-increasing: a bound at one a holds at every larger one.
    deltas = np.minimum.accumulate(deltas)
    ratios = np.exp(eps)
    # Moved to the right, where the curve is no higher.
    ratios *= 1.0 + 2.0 * ELEMENTARY
    vertices = lower_hull(np.append(0.0, ratios), np.append(1.0, deltas))
    a, h = np.append(0.0, ratios)[vertices], np.append(1.0, deltas)[vertices]
    if a.size == 1:
        return LossAtoms(np.zeros(0), np.zeros(0), 1.0)
    slopes = -np.diff(h) / np.diff(a) * (1.0 + _SLOPES)
    drops = np.maximum(slopes - np.append(slopes[1:], 0.0), 0.0)
    masses = a[1:] * drops * (1.0 + _MASSES)
    losses = np.log(a[1:])
    losses += 4.0 * ELEMENTARY * (1.0 + np.abs(losses))
    used = masses > 0.0
    return LossAtoms(losses[used], masses[used], float(h[-1]))


def lower_hull(x: FloatArray, y: FloatArray) -> list[int]:
    """Indices of the vertices of the lower convex hull of points with increasing x and non-increasing y."""
    kept: list[int] = []
    for index in range(x.size):
        while len(kept) >= 2:
            before, last = kept[-2], kept[-1]
            rise = (y[last] - y[before]) * (x[index] - x[last])
            if rise < (y[index] - y[last]) * (x[last] - x[before]):
                break
            kept.pop()
        kept.append(index)
    return kept


# Relative slack, far above the rounding error of products and quotients of these numbers.
_SLACK = 1e-11
# Nodes this close, relative, count as one.
_CLOSE = 1e-9
# How far nodes are moved to the left, relative: more than the error of e^eps.
_MOVED = 4.0 * ELEMENTARY
# Minimum distance of a corner from a node, relative to that of two nodes, for accurate slopes.
_INSIDE = 0.02
# An e^eps beyond this counts as infinite.


@dataclasses.dataclass(frozen=True, eq=False)
class LowerAtoms:
    """A dominated privacy loss of one direction on finitely many values, under P; it bounds from below.

    Args:
        losses: the values, shape (m,), increasing.
        masses: their probabilities under P, shape (m,), > 0; the remaining mass is at -infinity.
        on: the grid of the losses, which are lowered by its largest error; None if they are on none.
    """

    losses: FloatArray
    masses: FloatArray
    on: Grid | None = None

    @property
    def grid(self) -> float:
        """Distance of the multiples that have all losses; 0 if there is none."""
        return 0.0 if self.on is None else self.on.grid

    @property
    def says_nothing(self) -> bool:
        """Whether no loss is above 0, so that the bound is trivial."""
        return not bool(np.any(self.losses > 0.0))

    def lattice(self, step: float) -> LatticeLoss:
        """A loss on multiples of a step, which this one dominates.

        From the largest value down, each value is merged with as much of the next lower ones as moves the
        merged loss to the multiple below it. That is a post-processing, and costs a small part of what moving
        each value down by itself would cost.

        Raises:
            NumericalError: if that takes more than 2e7 points.
        """
        if self.on is not None:
            found = self.on.lattice(step, self.masses, 0.0, upper=False)
            if found is not None:
                return found
        cells = np.floor((self.losses - 40.0 * UNIT * (np.abs(self.losses) + step)) / step)
        first, count = int(cells[0]), int(cells[-1] - cells[0]) + 1
        if count > _MOST_CELLS:
            raise NumericalError(
                f"losses from {self.losses[0]!r} to {self.losses[-1]!r} in steps of {step!r}: too many points"
            )
        spend(1e-8 * count + 2e-6 * cells.size, 24.0 * count, what=f"a lattice of {count} points")
        nodes: FloatArray = np.zeros(count)
        np.add.at(nodes, (cells - first).astype(np.int64), self._merged(cells * step, step))
        # A sum of k masses has error k u, and its parts 4 u more.
        return LatticeLoss(step, first, nodes * (1.0 - (self.losses.size + 16.0) * UNIT), 0.0)

    def _merged(self, floors: FloatArray, step: float) -> FloatArray:
        """Masses with a loss of at least the floor of each value, after parts of lower values joined them.

        Outputs with P-masses p_i and Q-masses p_i e^(-l_i) have together a loss of at least f if
        sum p_i (e^(f - l_i) - 1) <= 0. A floor has error u |f|, a difference that and one rounding, and the
        function 8 u: terms are raised by 16 u (|f| + |l_i| + step) e^(f - l_i).
        """
        losses, left, gathered = self.losses.tolist(), self.masses.tolist(), [0.0] * self.losses.size

        def price(floor: float, loss: float) -> float:
            off = 16.0 * UNIT * (abs(floor) + abs(loss) + step)
            return math.expm1(floor - loss) + off * math.exp(floor - loss)

        top = len(losses) - 1
        while top >= 0:
            floor, mass, below = float(floors[top]), left[top], top - 1
            surplus = -mass * price(floor, losses[top]) * (1.0 - 4.0 * UNIT)
            # A value of the same cell has a negative price, and adds to the surplus.
            while below >= 0 and surplus > 0.0 and floor - losses[below] < _LARGEST:
                each = price(floor, losses[below])
                if left[below] * each > surplus:
                    part = surplus / each * (1.0 - 8.0 * UNIT)
                    mass, left[below] = mass + part, (left[below] - part) * (1.0 - 2.0 * UNIT)
                    break
                mass += left[below]
                paid = left[below] * each
                surplus -= paid + 4.0 * UNIT * (abs(paid) + surplus)
                below -= 1
            gathered[top] = mass
            top = below
        return np.array(gathered)

    def distance(self, theta: float) -> float:
        """Mean distance of a value from the next lower one, under a tilt; an estimate."""
        if self.losses.size < 2:
            return 0.0
        exponents = self.log_masses[1:] + theta * self.losses[1:]
        weights = np.exp(exponents - exponents.max())
        return float(weights @ np.diff(self.losses) / weights.sum())

    @functools.cached_property
    def log_masses(self) -> FloatArray:
        """Logs of the masses."""
        return np.log(self.masses)


def atoms_below(eps: FloatArray, lower: FloatArray, upper: FloatArray) -> LowerAtoms:
    """The loss whose curve is the lower convex hull of the lower bound implied by brackets at nodes.

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
    # Moving a node to the left raises it by at most as much as the line from the previous node.
    high[1:] += 2.0 * _MOVED * a[1:] * np.maximum(high[:-1] - low[1:], 0.0) / np.diff(a)
    x, y = _with_corners(a, low, high)
    vertices = lower_hull(x, y)
    x, y = x[vertices], y[vertices]
    slopes = np.append(-np.diff(y) / np.diff(x), 0.0)
    # Where the slope is near -1 the heights are near 1, and their rounding dominates.
    doubt = np.append(8.0 * UNIT * (y[:-1] + y[1:]) / np.diff(x), 0.0) + _SLACK * slopes
    drops = slopes[:-1] - slopes[1:] - doubt[:-1] - doubt[1:]
    masses = x[1:] * drops * (1.0 - _SLACK)
    losses = np.log(x[1:])
    losses -= 4.0 * ELEMENTARY * (1.0 + np.abs(losses))
    used = masses > 0.0
    return LowerAtoms(losses[used], masses[used])


def _with_corners(a: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The nodes with their lower bounds, and a point between neighbours where the lines from both sides meet.

    A point anywhere between them at the height of the lower line is valid: the curve left of it stays below
    one line, and right of it below the other one.
    """
    width = np.diff(a)
    # Slopes of the line that descends to a node, and (`right`) of the line from the next node on.
    left = np.clip(np.append(-1.0, (low[1:-1] - high[:-2]) / width[:-1]), -1.0, 0.0)
    # Distance at which that line reaches 0; a node where it is negligible counts as one at 0.
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
    # Beyond the last node, extend the line that descends to it until 0.
    fall = max((high[-2] - low[-1]) / width[-1], 1e-300)
    reach = min(low[-1] / fall, a[-1]) if low[-1] > 0.0 else a[-1]
    x = np.concatenate([a, a[:-1][meet] + at, [a[-1] + (1.0 - _INSIDE) * reach]])
    y = np.concatenate([low, np.maximum(height, 0.0), [0.0]])
    if reach <= _CLOSE * a[-1]:
        # In this case the last node is at height 0.
        x, y = x[:-1], y[:-1]
        y[a.size - 1] = 0.0
    order = np.argsort(x)
    return x[order], y[order]
