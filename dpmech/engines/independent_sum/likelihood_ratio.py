r"""The likelihood ratio of one bin on a lattice, and the sum over all bins under a tilt.

For independent bins with Gram matrix kappa^2 I the pair has dP/dQ = (1/b) sum_l a_l under Q, where the
a_l = exp(kappa Z_l - kappa^2 / 2) are independent. With v = a - c for REMOVE and v = c - a for ADD, and V
the sum of the v_l, both directions are E (V - tau)_+ up to a factor: a convex increasing function of V. The
centre c is 1 where a is close to it, and else 0, so that differences are accurate.

Below, x is Z for REMOVE and -Z for ADD: v = g (exp(g kappa x - kappa^2 / 2) - c), g = 1 or -1, increases.

The sum of all bins is tilted. With p_theta(y) = p(y) e^(theta y) / M and V = y_1 + ... + y_b,
E (V - tau)_+ = M^b e^(-theta tau) sum_V p_theta^(*b)(V) (V - tau)_+ e^(-theta (V - tau)). At the theta for
which p_theta^(*b) has mean tau, the absolute error of an FFT is relative to the result.
"""

import dataclasses
import math
import sys

import numpy as np
import scipy

from dpmech.engines.losses import LatticeLoss
from dpmech.exceptions import NumericalError
from dpmech.numerics import (
    ELEMENTARY,
    UNIT,
    FloatArray,
    IntArray,
    gauss_legendre,
    lattice_product,
    merge_cells,
    spend,
)

# Gauss-Legendre rules for wide and for narrow panels.
_WIDE, _NARROW = gauss_legendre(8), gauss_legendre(3)
# Below this log probability of the lowest cell the lattice is not moved to its mean.
_NO_MASS = -50.0
# Below this spread a is close to 1.
_CLOSE = 0.1


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The law of v of one bin between two values of x.

    Args:
        spread: kappa > 0, the standard deviation of log a.
        remove: whether this is REMOVE; else ADD.
        low: the least x.
        high: the largest x.
        centre: the c of v = g (a - c), 0 or 1. By default it follows from the spread; laws that are compared
            at one level need the same.
    """

    spread: float
    remove: bool
    low: float = -38.0
    high: float = 38.0
    centre: float = math.nan

    def __post_init__(self) -> None:
        if math.isnan(self.centre):
            object.__setattr__(self, "centre", 1.0 if self.spread < _CLOSE else 0.0)

    @property
    def _sign(self) -> float:
        return 1.0 if self.remove else -1.0

    def values(self, x: FloatArray) -> FloatArray:
        """The value of v at x."""
        exponent = self._sign * self.spread * x - 0.5 * self.spread**2
        return self._sign * (np.expm1(exponent) if self.centre else np.exp(exponent))

    def places(self, values: FloatArray) -> FloatArray:
        """The x of v; infinite if no x has this value."""
        with np.errstate(divide="ignore"):
            if self.centre:
                logs = np.log1p(np.maximum(self._sign * values, -1.0))
            else:
                logs = np.log(np.maximum(self._sign * values, 0.0))
        return self._sign * (logs + 0.5 * self.spread**2) / self.spread

    def _rounding(self, x: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the absolute error of v, and on the relative error of the mass, of a node near x.

        In units of u, with 8 for an elementary function. A node has an error of 2 |x|, the exponent of a one
        of 5 kappa |x| with its product and sum, plus 2 kappa^2; that changes v by a times as much, the
        function itself adds 8 |v|, and splitting into cells 4 |v|. The exponent x^2 / 2 has an error of 2 x^2
        from the node and a relative one of 2; exponential, weight (half a difference of neighbours times a
        tabulated one, 7), quadrature (16) and products add less than 64.
        """
        ratio = self.centre + self._sign * values
        off = UNIT * (ratio * (5.0 * self.spread * np.abs(x) + 2.0 * self.spread**2) + 16.0 * np.abs(values))
        # Underflow causes an error of at most the smallest normal number.
        return 1.01 * off + sys.float_info.min, UNIT * (4.0 * x * x + 64.0)

    def nodes(
        self, edges: FloatArray | None = None, *, upwards: bool
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        r"""Quadrature nodes that resolve the cells between increasing values, with their masses.

        On a panel of half-width c / (reach + kappa + 4), on the ellipse with axes about R times that around
        it, densities, times a or not, are at most 4 e^(cR) times those in the middle. The error of
        Gauss-Legendre with n nodes is at most 64/15 4 e^(cR) (2R)^-2n / (1 - (2R)^-2) of that: for c <= 1 and
        n = 8 at R = 15 less than 2e-16, for c <= 0.004 and n = 3 at R = 750 less than 1e-16. The factor on it
        in the split of a cell grows at most R-fold.

        Args:
            edges: edges of the cells, shape (m + 1,); None for none.
            upwards: whether values and masses are raised, not lowered, by their largest error.

        Returns:
            Values, masses and cells (cell i is between edges i and i + 1; -1 is below all).
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

    def upper(self, step: float) -> LatticeLoss:
        """Every value split between its two neighbours on a lattice, which keeps its mean.

        For REMOVE values below `low` are raised to it. Other tails are omitted.
        """
        first, count = self._cells(step, 0.0)
        edges = (first + np.arange(count + 1, dtype=np.float64)) * step
        values, masses, cells = self.nodes(edges, upwards=True)
        share = np.clip((values - edges[cells]) / step, 0.0, 1.0)
        found = np.zeros(count + 1)
        terms = np.bincount(cells, None, count).astype(np.float64)
        # A sequential sum of k terms has an error of k u; the split adds less than 8 u.
        raised = 1.0 + (terms + 8.0) * UNIT
        found[:-1] += np.bincount(cells, masses * (1.0 - share), count) * raised
        found[1:] += np.bincount(cells, masses * share, count) * raised
        found *= 1.0 + UNIT
        if self.remove:
            found[1] += self.tail(self.low)
        return LatticeLoss(step, first, found, 0.0)

    def tail(self, x: float) -> float:
        """Bound on the mass below x; the error of its argument adds x^2 u, and the function 24 u."""
        return float(scipy.special.ndtr(x)) * (1.0 + UNIT * (2.0 * x * x + 32.0))

    def lower(self, step: float) -> LatticeLoss:
        """Every cell merged into its mean, and cells merged with parts of others until means are nodes.

        Values outside of `low` and `high` are omitted. If much of the law is next to a = 0, the cell there
        has no neighbour below to take from, and the lattice is moved to its mean.
        """
        origin = self._anchor(step)
        first, count = self._cells(step, origin)
        first, count = first - 2, count + 5
        edges = origin + (first - 0.5 + np.arange(count + 1, dtype=np.float64)) * step
        values, masses, cells = self.nodes(edges, upwards=False)
        cells = np.maximum(cells, 0)
        if origin != 0.0:
            # All values next to a = 0 form one cell.
            cells = np.maximum(cells, -first) if self.remove else np.minimum(cells, -first)
        centres = origin + (first + np.arange(count, dtype=np.float64)) * step
        # In steps. Sums of k terms have errors of k u of their sizes, the merger of below 64 u of masses.
        excess = masses * ((values - centres[cells]) / step)
        terms = np.bincount(cells, None, count).astype(np.float64)
        total = np.bincount(cells, masses, count) * (1.0 - (terms + 4.0) * UNIT)
        sizes = np.bincount(cells, np.abs(excess), count)
        surplus = np.bincount(cells, excess, count) - UNIT * ((3.0 * terms + 96.0) * sizes + 64.0 * total)

        def moved(mass: FloatArray, surplus: FloatArray, nodes: int) -> FloatArray:
            return surplus - nodes * mass

        merged = merge_cells(total, surplus, moved, share=0.8, rounds=400)
        return LatticeLoss(step, first, merged, 0.0, origin)

    def _cells(self, step: float, origin: float) -> tuple[int, int]:
        """Index of the node below all values, and the number of cells up to above all of them."""
        low, high = (float(end) for end in self.values(np.array([self.low, self.high])))
        first = math.floor((low - origin) / step)
        return first, math.floor((high - origin) / step) + 2 - first

    def _anchor(self, step: float) -> float:
        """Offset of the lattice: a mean of the values next to a = 0, or 0 if almost none are there."""
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
        # Slightly low, so that the cell has a surplus.
        return self._sign * (mean - self.centre) - 1e-10 * step

    def _log_below(self, edge: float) -> float:
        """Log of the probability that a < edge."""
        return float(scipy.special.log_ndtr((math.log(edge) + 0.5 * self.spread**2) / self.spread))


# Log of the largest tilted mass beyond either end of the window.
_LOG_WRAP = math.log(1e-15)
LONGEST = 1 << 24
# Beyond this many 1 / theta, excesses have weights below e^-64 of the largest.
_FARTHEST = 64.0
_SLIGHTLY_MORE = 1.0 + 2.0**-20


class Moments:
    """The moments of points and masses under tilts; estimates unless the points are a lattice.

    Args:
        points: shape (m,).
        masses: shape (m,), >= 0.
        times: b, number of terms of the sum.
    """

    def __init__(self, points: FloatArray, masses: FloatArray, times: int) -> None:
        keep = masses > 0.0
        self.points, self.logs = points[keep], np.log(masses[keep])
        self.times = times

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """Log M, and mean and variance of one tilted value."""
        exponent = self.logs + theta * self.points
        top = float(exponent.max())
        weights = np.exp(np.maximum(exponent - top, -700.0))
        total = float(weights.sum())
        mean = float(weights @ self.points) / total
        return top + math.log(total), mean, float(weights @ (self.points - mean) ** 2) / total

    def tilt(self, tau: float) -> float:
        """A theta >= 0 whose mean is approximately tau / b; infinite if no value is above that."""
        aim = tau / self.times
        if self.cumulants(0.0)[1] >= aim:
            return 0.0
        top = float(self.points.max())
        if not top > aim:
            return math.inf
        high = 1.0 / (top - float(self.points.min()))
        while self.cumulants(high)[1] < aim:
            high *= 4.0
            if high * (top - aim) > 1e6:
                return high
        low = 0.0 if high * (top - float(self.points.min())) <= 1.0 else 0.25 * high
        return float(
            scipy.optimize.brentq(
                lambda theta: self.cumulants(theta)[1] - aim, low, high, xtol=1e-5 * high, rtol=1e-5
            )
        )

    def log_excess(self, tau: float, theta: float) -> float:
        """Approximate log E (V - tau)_+ at a tilt, by the saddle point."""
        log_m, _, variance = self.cumulants(theta)
        spread = math.sqrt(self.times * variance)
        # The integral of y e^(-theta y) against the normal density of this spread.
        z = theta * spread
        tail = math.sqrt(0.5 * math.pi) * float(scipy.special.erfcx(z * math.sqrt(0.5)))
        shape = 1.0 - z * tail if z < 50.0 else z**-2
        return self.times * log_m - theta * tau + math.log(spread * shape / math.sqrt(2.0 * math.pi))

    def reaches(self, theta: float) -> tuple[tuple[float, float], float]:
        """Exponents t > 0 for Chernoff's bounds on the tilted sum, up and down; the width of the window."""
        log_m, _, variance = self.cumulants(theta)
        scale = math.sqrt(-2.0 * _LOG_WRAP / (self.times * variance))
        found, width = [], 0.0
        for side in (1.0, -1.0):
            ends = []
            for factor in np.geomspace(2.0**-8, 2.0**3, 12):
                t = scale * float(factor)
                ends.append((self._end(theta, side * t, log_m) / t, t))
            found.append(min(ends)[1])
            width += min(ends)[0]
        return (found[0], found[1]), width

    def _end(self, theta: float, t: float, log_m: float) -> float:
        return self.times * (self.cumulants(theta + t)[0] - log_m) - _LOG_WRAP


@dataclasses.dataclass(frozen=True, eq=False)
class TiltedTotal:
    """The tilted sum on a window, as an upper or a lower sum.

    Args:
        points: shape (m,), increasing.
        masses: tilted masses, shape (m,); rounding may make some negative.
        theta: the tilt, >= 0.
        log_scale: b log M.
        error: bound on the rounding error of a mass.
        rate: t > 0 such that E e^(t (V - end)) is at most `wrapped` for the end of the window.
        wrapped: bound on the tilted mass that is outside the window and wraps into it.
        displaced: bound on the error of the points, in addition to their own rounding.
        upper: whether it is an upper sum.
    """

    points: FloatArray
    masses: FloatArray
    theta: float
    log_scale: float
    error: float
    rate: float
    wrapped: float
    displaced: float
    upper: bool

    def excess(self, tau: float) -> float:
        """The bound on E (V - tau)_+ for an exact tau."""
        side = 1.0 if self.upper else -1.0
        shift = 4.0 * UNIT * abs(tau) + self.displaced
        level = tau - side * shift
        above = int(np.searchsorted(self.points, level, side="right"))
        theta = self.theta
        farthest = _FARTHEST / theta if theta > 0.0 else math.inf
        last = int(np.searchsorted(self.points, level + farthest, side="right"))
        excesses = self.points[above:last] - level
        weights = excesses * np.exp(-theta * excesses)
        value = float(self.masses[above:last] @ weights)
        size = float(np.abs(self.masses[above:last]) @ weights)
        # The largest weight, including beyond the window.
        top = float(self.points[-1]) - level
        highest = 1.0 / (math.e * theta) if theta > 0.0 else math.inf
        if self.rate * top >= 1.0:
            # Then V - tau <= top e^(rate (V - end)).
            highest = min(highest, top)
        slack = self.error * float(weights.sum()) * _SLIGHTLY_MORE + self.wrapped * highest
        if self.upper and last < self.points.size:
            slack += farthest * math.exp(-_FARTHEST) * (1.0 + 2.0 * float(np.abs(self.masses[last:]).sum()))
        # The error of a weight is 12 u plus that of its exponent, sums add 64 u, and the change of the level.
        moved = 2.0 * theta * (max(abs(float(self.points[0])), abs(float(self.points[-1]))) + abs(tau))
        slack += UNIT * size * (80.0 + moved) * _SLIGHTLY_MORE
        exponent = self.log_scale - theta * level
        relative = ELEMENTARY + 4.0 * UNIT * (abs(self.log_scale) + theta * abs(tau))
        if exponent > 700.0:
            raise NumericalError("the tilt of a sum leaves the range of float64")
        scale = math.exp(exponent)
        if not self.upper:
            return max(0.0, (value - slack) * scale * (1.0 - relative - ELEMENTARY))
        return max(0.0, (value + slack) * scale * (1.0 + relative + ELEMENTARY)) + 1e-300


def tilted_total(
    lattice: LatticeLoss, times: int, theta: float, reaches: tuple[float, float], *, upper: bool, least: float
) -> TiltedTotal:
    """The b-fold sum at one tilt, rounded up or down.

    Args:
        lattice: that of one value v, in place of a loss; its step is a power of two.
        times: b.
        theta: the tilt, >= 0.
        reaches: exponents for Chernoff's bounds on the ends of the window, > 0.
        upper: whether masses are rounded up.
        least: a tau that the window must contain.

    Raises:
        NumericalError: if the window needs more than 2^24 points.
    """
    points = lattice.losses()
    with np.errstate(divide="ignore"):
        logs = np.log(lattice.masses)
    exponents = logs + theta * points
    highest = float(exponents.max())
    log_m = highest + math.log(float(np.exp(np.maximum(exponents - highest, -700.0)).sum()))
    # Logarithm and exponential have relative errors of 8 u; the others have 4 u of their parts.
    moved = 12.0 * np.abs(logs) + 6.0 * theta * np.abs(points) + 3.0 * abs(log_m) + 12.0
    moved = UNIT * np.where(np.isfinite(logs), moved, 0.0)
    tilted = np.exp(exponents - log_m) * (1.0 + (moved if upper else -moved))
    ends = []
    for side, t in zip((1.0, -1.0), reaches, strict=True):
        with np.errstate(divide="ignore"):
            powers = np.log(tilted) + side * t * points
        highest = float(powers.max())
        log_moment = highest + math.log(float(np.exp(np.maximum(powers - highest, -700.0)).sum()))
        ends.append(side * (times * log_moment - _LOG_WRAP) / t)
    offset = times * lattice.offset
    high, low = max(ends[0], least + 1.0 / reaches[0]), min(ends[1], least)
    start = math.floor((low - offset) / lattice.step) - 1
    needed = math.ceil((high - offset) / lattice.step) + 2 - start
    if needed > LONGEST:
        raise NumericalError(f"a sum over {times} bins needs {needed} lattice points: tolerance too small")
    length = scipy.fft.next_fast_len(needed, real=True)
    spend(1e-8 * length * math.log2(length), 96.0 * length, what=f"a sum over {times} bins")
    masses, error = lattice_product([(tilted, lattice.first, times)], start=start, length=length)
    indices = start + np.arange(length, dtype=np.float64)
    farthest = max(abs(start), abs(start + length)) * lattice.step
    return TiltedTotal(
        points=offset + indices * lattice.step,
        masses=masses,
        theta=theta,
        log_scale=times * log_m,
        error=error,
        rate=reaches[0],
        wrapped=4.0 * math.exp(_LOG_WRAP),
        # Without an origin, points are multiples of a power of two, and exact.
        displaced=0.0 if lattice.offset == 0.0 else 4.0 * UNIT * (abs(offset) + farthest),
        upper=upper,
    )
