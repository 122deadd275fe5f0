r"""The likelihood ratio of one bin, on a lattice: from above and from below in convex order.

Of independent bins with Gram matrix kappa^2 I the pair has dP/dQ = (1/b) sum_l a_l under Q, where the
a_l = exp(kappa Z_l - kappa^2 / 2) are independent. With v = a - c for REMOVE and v = c - a for ADD, and V
the sum of the v_l, both directions are E (V - tau)_+ up to a factor: a convex increasing function of V. The
centre c is 1 where a is close to it, and else 0, so that differences keep their digits.

Below, x is Z for REMOVE and -Z for ADD: v = g (exp(g kappa x - kappa^2 / 2) - c), g = 1 or -1, increases.
"""

import dataclasses
import math
import sys

import numpy as np
import scipy

from dpmech.numerics import UNIT, FloatArray, IntArray, gauss_legendre, merge_cells, spend

__all__ = ["Lattice", "Ratio"]

# Gauss-Legendre rules for wide and for narrow panels.
_WIDE, _NARROW = gauss_legendre(8), gauss_legendre(3)
# Below this probability of the lowest cell the lattice need not be moved to its mean.
_NO_MASS = -50.0
# Below this spread a is close to 1.
_CLOSE = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Lattice:
    """Masses of v at origin + (first + i) step.

    Args:
        step: a power of two.
        first: index of the first mass.
        masses: shape (m,), >= 0.
        origin: where the lattice is anchored; 0 for multiples of the step.
    """

    step: float
    first: int
    masses: FloatArray
    origin: float

    def points(self) -> FloatArray:
        """Where the masses are, shape (m,)."""
        return self.origin + (self.first + np.arange(self.masses.size, dtype=np.float64)) * self.step


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The law of v of one bin between two values of x.

    Args:
        spread: kappa > 0, the standard deviation of log a.
        remove: the direction.
        low: the least x.
        high: the largest x.
    """

    spread: float
    remove: bool
    low: float = -38.0
    high: float = 38.0

    @property
    def _sign(self) -> float:
        return 1.0 if self.remove else -1.0

    @property
    def centre(self) -> float:
        """The c of v = g (a - c)."""
        return 1.0 if self.spread < _CLOSE else 0.0

    def values(self, x: FloatArray) -> FloatArray:
        """The value of v at x."""
        exponent = self._sign * self.spread * x - 0.5 * self.spread**2
        return self._sign * (np.expm1(exponent) if self.centre else np.exp(exponent))

    def places(self, values: FloatArray) -> FloatArray:
        """The x of v; infinite where no x has it."""
        with np.errstate(divide="ignore"):
            if self.centre:
                logs = np.log1p(np.maximum(self._sign * values, -1.0))
            else:
                logs = np.log(np.maximum(self._sign * values, 0.0))
        return self._sign * (logs + 0.5 * self.spread**2) / self.spread

    def _rounding(self, x: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the absolute error of v, and on the relative one of the mass, of a node near x.

        In units of u, with 8 for an elementary function. A node is off by 2 |x|, the exponent of a by
        5 kappa |x| with its product and sum, and by 2 kappa^2; that moves v by a times as much, the function
        itself adds 8 |v|, and taking it apart into cells 4 |v|. The exponent x^2 / 2 is off by 2 x^2 from
        the node and 2 of itself; exponential, weight (half a difference of neighbours times a tabulated one,
        7), quadrature (16) and products add less than 64.
        """
        ratio = self.centre + self._sign * values
        off = UNIT * (ratio * (5.0 * self.spread * np.abs(x) + 2.0 * self.spread**2) + 16.0 * np.abs(values))
        # What underflows is off by no more than the smallest normal number.
        return 1.01 * off + sys.float_info.min, UNIT * (4.0 * x * x + 64.0)

    def nodes(
        self, edges: FloatArray | None = None, *, upwards: bool
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        r"""Quadrature nodes that resolve the cells between increasing values, with their masses.

        On a panel of half-width c / (reach + kappa + 4), on the ellipse with axes about R times that around
        it, densities, times a or not, are at most 4 e^(cR) times those in the middle. Gauss-Legendre with n
        nodes misses at most 64/15 4 e^(cR) (2R)^-2n / (1 - (2R)^-2) of that: for c <= 1 and n = 8 at R = 15
        less than 2e-16, for c <= 0.004 and n = 3 at R = 750 less than 1e-16. What it is multiplied by in the
        split of a cell grows R-fold at most.

        Args:
            edges: of the cells, shape (m + 1,); None for none.
            upwards: whether values and masses are taken for larger, not smaller, by what they may be off by.

        Returns:
            Values, masses and cells (cell i lies between edges i and i + 1; -1 is below all).
        """
        width = 2.0 / (max(abs(self.low), abs(self.high)) + self.spread + 4.0)
        points = np.linspace(self.low, self.high, 2 + math.ceil((self.high - self.low) / width))
        if edges is not None:
            cuts = self.places(edges)
            points = np.unique(np.concatenate([points, cuts[(cuts > self.low) & (cuts < self.high)]]))
        spend(3e-7 * points.size, 400.0 * points.size, what=f"a lattice of {points.size} cells")
        half = 0.5 * np.diff(points)
        middle = points[:-1] + half
        cells = np.zeros(half.size, dtype=np.int64)
        if edges is not None:
            cells = np.searchsorted(cuts, middle, side="right") - 1
        narrow = half < 0.002 * width
        aside = 1.0 if upwards else -1.0
        pieces = []
        for chosen, (nodes, weights) in ((narrow, _NARROW), (~narrow, _WIDE)):
            x = middle[chosen, None] + half[chosen, None] * nodes
            values = self.values(x)
            off, relative = self._rounding(x, values)
            masses = np.exp(-0.5 * x * x) * (half[chosen, None] * weights / math.sqrt(2.0 * math.pi))
            owners = np.broadcast_to(cells[chosen, None], x.shape)
            pieces.append(
                ((values + aside * off).ravel(), (masses * (1.0 + aside * relative)).ravel(), owners.ravel())
            )
        values, masses, owners = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        return values, masses, owners

    def upper(self, step: float) -> Lattice:
        """Every value split between its two neighbours on a lattice, which keeps its mean.

        For REMOVE what is below `low` moves up to it. Other tails are left out.
        """
        first, count = self._cells(step, 0.0)
        edges = (first + np.arange(count + 1, dtype=np.float64)) * step
        values, masses, cells = self.nodes(edges, upwards=True)
        share = np.clip((values - edges[cells]) / step, 0.0, 1.0)
        found = np.zeros(count + 1)
        terms = np.bincount(cells, None, count).astype(np.float64)
        # A sum of k terms, one after another, is off by k u; the split by less than 8 u.
        raised = 1.0 + (terms + 8.0) * UNIT
        found[:-1] += np.bincount(cells, masses * (1.0 - share), count) * raised
        found[1:] += np.bincount(cells, masses * share, count) * raised
        found *= 1.0 + UNIT
        if self.remove:
            found[1] += self.tail(self.low)
        return Lattice(step, first, found, 0.0)

    def tail(self, x: float) -> float:
        """At least the mass below x; its argument is off by x^2 u, and it by 24 u of its own."""
        return float(scipy.special.ndtr(x)) * (1.0 + UNIT * (2.0 * x * x + 32.0))

    def lower(self, step: float) -> Lattice:
        """Every cell merged into its mean, and cells merged with parts of others until means are nodes.

        What is not between `low` and `high` is left out. Where much of the law lies next to a = 0, the cell
        there has no neighbour below to take from, and the lattice is moved to its mean.
        """
        origin = self._anchor(step)
        first, count = self._cells(step, origin)
        first, count = first - 2, count + 5
        edges = origin + (first - 0.5 + np.arange(count + 1, dtype=np.float64)) * step
        values, masses, cells = self.nodes(edges, upwards=False)
        cells = np.maximum(cells, 0)
        if origin != 0.0:
            # All that is next to a = 0 is one cell.
            cells = np.maximum(cells, -first) if self.remove else np.minimum(cells, -first)
        centres = origin + (first + np.arange(count, dtype=np.float64)) * step
        # In steps. Sums of k terms are off by k u of their sizes, and the merger by less than 64 u of masses.
        excess = masses * ((values - centres[cells]) / step)
        terms = np.bincount(cells, None, count).astype(np.float64)
        total = np.bincount(cells, masses, count) * (1.0 - (terms + 4.0) * UNIT)
        sizes = np.bincount(cells, np.abs(excess), count)
        surplus = np.bincount(cells, excess, count) - UNIT * ((3.0 * terms + 96.0) * sizes + 64.0 * total)

        def moved(mass: FloatArray, surplus: FloatArray, nodes: int) -> FloatArray:
            return surplus - nodes * mass

        return Lattice(step, first, merge_cells(total, surplus, moved, share=0.8, rounds=400), origin)

    def _cells(self, step: float, origin: float) -> tuple[int, int]:
        """Index of the node below all values, and how many cells reach above all of them."""
        low, high = (float(end) for end in self.values(np.array([self.low, self.high])))
        first = math.floor((low - origin) / step)
        return first, math.floor((high - origin) / step) + 2 - first

    def _anchor(self, step: float) -> float:
        """Where the lattice is moved to: a mean of the values next to a = 0, or 0 if hardly any are there."""
        edge = mean = 0.5 * step
        if self._log_below(edge) < _NO_MASS:
            return 0.0
        for _ in range(200):
            place = (math.log(edge) + 0.5 * self.spread**2) / self.spread
            log_mean = float(scipy.special.log_ndtr(place - self.spread) - scipy.special.log_ndtr(place))
            mean, before = math.exp(log_mean), mean
            edge = mean + 0.5 * step
            if abs(mean - before) <= 1e-13 * step:
                break
        # A little low, so that the cell has a surplus.
        return self._sign * (mean - self.centre) - 1e-10 * step

    def _log_below(self, edge: float) -> float:
        """Log of the probability that a < edge."""
        return float(scipy.special.log_ndtr((math.log(edge) + 0.5 * self.spread**2) / self.spread))
