r"""Privacy losses of one step, by quadrature: monotone losses, mixtures, one-sided losses, and combined laws.

**A user with a binomial number of examples.** REMOVE: P = sum_k w_k N(k, s^2) with w the binomial law of k
out of m with probability q, against Q = N(0, s^2). ADD: the same pair exchanged. The ratio r(x) = sum_k w_k
e^{k x / s^2 - k^2 / (2 s^2)} rises with x, and log r is convex: its derivative is the mean of k over s^2
under the weights of the sum at x, the posterior law of k given the output.

docs/users.md proves that this pair dominates a step for all gradients, and for users with m examples or
fewer.

**Losses of one sign, of a step that was full without the example.** With p the probability that the example
is kept nevertheless, A_u = (1 - p) N(0, s^2) + p N(u, s^2), and u = 1 or 2: the log ratio of A_u over A_{u-1}
(A_0 is the noise alone) is positive exactly where the output is above u - 1/2, and increases there: its
derivative is (u w_u - (u - 1) w_{u-1}) / s^2, w the posterior probability of having been kept, and from there
on w_u >= w_{u-1}. The inverse is the root of a quadratic equation in e^(x / s^2).

docs/poisson.md#truncated-batches explains why these two pairs are used.
"""

import abc
import dataclasses
import functools
import math
from typing import ClassVar, Self

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, FloatArray, IntArray, gauss_legendre, spend

# Gauss-Legendre rules for intervals that are wide or narrow compared with the scales of the densities.
_WIDE, _NARROW = gauss_legendre(8), gauss_legendre(3)
_MAX_CELLS = 5_000_000
_POINTS = 20_001


class AnyLoss(abc.ABC):
    """The law of log dP/dQ of one step in one direction, for lattices. Subclasses are frozen dataclasses.

    Attributes:
        sigma_over_sensitivity: s > 0.
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
        exact_cuts: whether panels of the quadrature exceed their cells by rounding only.
    """

    exact_cuts: ClassVar[bool] = True
    sigma_over_sensitivity: float
    reach: float

    @abc.abstractmethod
    def interval(self) -> tuple[float, float]:
        """The smallest and the largest loss that is not counted as tail."""

    @abc.abstractmethod
    def tail_mass(self) -> float:
        """Upper bound on the P-mass of either tail."""

    @abc.abstractmethod
    def sampled(self) -> tuple[FloatArray, FloatArray]:
        """Losses and log P-masses, for moments."""

    @abc.abstractmethod
    def quadrature(self, edges: FloatArray, *, upwards: bool) -> tuple[FloatArray, FloatArray, IntArray]:
        """Nodes that resolve the loss cells between the given edges (increasing losses).

        Args:
            edges: shape (m + 1,).
            upwards: whether losses and masses are rounded up by their error bounds, or down.

        Returns:
            Losses, P-masses and cell indices (cell i lies between edges i and i + 1) of all nodes.
        """

    def within(self, reach: float) -> Self:
        """The same loss with another reach."""
        return dataclasses.replace(self, reach=reach)  # type: ignore[type-var]  # all are dataclasses

    def under(self, sigma_over_sensitivity: float) -> Self:
        """The same loss with another sigma / sensitivity."""
        return dataclasses.replace(self, sigma_over_sensitivity=sigma_over_sensitivity)  # type: ignore[type-var]  # as above

    def finest_step(self) -> float:
        """The smallest affordable lattice step for the interval of losses."""
        low, high = self.interval()
        return (high - low) / _MAX_CELLS


class StepLoss(AnyLoss):
    """Log dP/dQ of one step in one direction, where one of P, Q is N(0, s^2) and the other one a mixture.

    The mixture is one of N(k, s^2) for shifts k >= 0, so that its density over the pure one increases with
    the output. Concrete subclasses are frozen dataclasses.

    Attributes:
        remove: the direction: P is the mixture (True) or the pure noise (False).
    """

    remove: bool

    @abc.abstractmethod
    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Log of the mixture density over the pure one at output x."""

    @abc.abstractmethod
    def rounding(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the absolute error of `log_ratio` and on the relative error of the mass of a node."""

    @abc.abstractmethod
    def output_at(self, log_ratio: FloatArray) -> FloatArray:
        """The output with this log ratio (> `least_ratio`): the inverse of `log_ratio`."""

    @property
    def furthest(self) -> int:
        """The largest shift."""
        return 1

    @property
    def terms(self) -> int:
        """Number of exponentials per evaluation of the ratio, for the work budget."""
        return 1

    @property
    @abc.abstractmethod
    def least_ratio(self) -> float:
        """The limit of the log ratio far to the left."""

    @property
    @abc.abstractmethod
    def panel_width(self) -> float:
        """Width of the panels of the quadrature."""

    @property
    def whole(self) -> float:
        """The P-mass of all outputs."""
        return 1.0

    @property
    def points(self) -> int:
        """Number of points of `sampled`."""
        return _POINTS

    def log_density(self, x: FloatArray) -> FloatArray:
        """Log density of P at output x."""
        return self._log_density(x, self.log_ratio(x) if self.remove else np.zeros_like(x))

    def _log_density(self, x: FloatArray, ratio: FloatArray) -> FloatArray:
        s = self.sigma_over_sensitivity
        pure = -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2.0 * math.pi))
        return pure + ratio if self.remove else pure

    def outputs(self) -> tuple[float, float]:
        """The interval of outputs that do not count as tail."""
        spread = self.reach * self.sigma_over_sensitivity
        return -spread, spread + self.furthest

    def tail_mass(self) -> float:
        """Upper bound on the P-mass beyond either end of `outputs`."""
        return 2.0 * float(scipy.special.ndtr(-self.reach))

    def interval(self) -> tuple[float, float]:
        """The smallest and the largest loss on `outputs`."""
        ends = self.log_ratio(np.array(self.outputs()))
        return (float(ends[0]), float(ends[1])) if self.remove else (-float(ends[1]), -float(ends[0]))

    def sampled(self) -> tuple[FloatArray, FloatArray]:
        """Losses and log P-masses of a fine trapezoidal rule in x, spectrally accurate for moments."""
        low, high = self.outputs()
        x = np.linspace(low, high, self.points)
        return self.log_ratio(x) * (1.0 if self.remove else -1.0), self.log_density(x) + math.log(x[1] - x[0])

    def quadrature(self, edges: FloatArray, *, upwards: bool) -> tuple[FloatArray, FloatArray, IntArray]:
        """Nodes that resolve the loss cells between the given edges (increasing losses).

        On panels of `panel_width`, of at most 2.5 / reach and 1 / 4 standard deviations, a normal density
        grows by a factor e^2.75 at most. The rule with 8 nodes is exact to 1.2 u; the rule with 3 nodes, on
        panels below 0.004 of that width, to 0.3 u.

        Args:
            edges: shape (m + 1,).
            upwards: whether losses and masses are rounded up by their error bounds, or down.

        Returns:
            Losses, P-masses and cell indices (cell i lies between edges i and i + 1) of all nodes.
        """
        low, high = self.outputs()
        sign = 1.0 if self.remove else -1.0
        inside = edges[sign * edges > self.least_ratio]
        cuts = self.output_at(sign * inside)
        width = self.panel_width
        count = 2 + int((high - low) / width)
        work = self.terms * float(_WIDE[0].size * (count + cuts.size))
        spend(3e-7 * work, 80.0 * work, what=f"a lattice of {cuts.size} cells")
        grid = np.linspace(low, high, count)
        points = np.unique(np.concatenate([grid, cuts[(cuts > low) & (cuts < high)]]))
        half = 0.5 * np.diff(points)
        middle = points[:-1] + half
        cells = np.searchsorted(edges, sign * self.log_ratio(middle), side="right") - 1
        narrow = half < 0.004 * width
        aside = 1.0 if upwards else -1.0
        off, relative = (np.maximum(ends[:-1], ends[1:])[:, None] for ends in self.rounding(points))
        total = doubt = 0.0
        pieces = []
        for chosen, (nodes, weights) in ((narrow, _NARROW), (~narrow, _WIDE)):
            x = middle[chosen, None] + half[chosen, None] * nodes
            ratio = self.log_ratio(x)
            masses = np.exp(self._log_density(x, ratio)) * (half[chosen, None] * weights)
            total += float(masses.sum())
            doubt += float((masses * relative[chosen]).sum())
            masses *= 1.0 + aside * relative[chosen]
            losses = sign * ratio + aside * off[chosen]
            owners = np.broadcast_to(cells[chosen, None], losses.shape)
            pieces.append((losses.ravel(), masses.ravel(), owners.ravel()))
        losses, masses, owners = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        # Pairwise sums of this many terms have relative error below 64 u.
        if abs(total - self.whole) > doubt + 64.0 * UNIT + self.tail_mass():
            raise NumericalError(f"quadrature of {self!r} lost mass: {total!r}")
        return losses, masses, owners


# Size of a block: outputs times shifts.
_BLOCK = 1 << 19
_MOST_POINTS = 1 << 20
# Newton steps from a chord over a panel, on which k z changes by at most half a unit: a chord has an error of
# a 16th of the panel, and each step squares that at least.
_NEWTON = 3


@dataclasses.dataclass(frozen=True)
class MixtureLoss(StepLoss):
    """The privacy loss of one step in one direction, for a user with m examples.

    Args:
        sampling_prob: q in (0, 1), of each example.
        examples: m >= 1.
        sigma_over_sensitivity: s > 0, of one example: the shifts are 0, 1, ..., m.
        remove: the direction: P is the mixture (True) or the pure noise (False).
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    exact_cuts: ClassVar[bool] = False
    sampling_prob: float
    examples: int
    sigma_over_sensitivity: float
    remove: bool
    reach: float = 38.0

    @functools.cached_property
    def _shifts(self) -> FloatArray:
        return np.arange(self.examples + 1, dtype=np.float64)

    @functools.cached_property
    def _log_parts(self) -> tuple[FloatArray, FloatArray]:
        """Log w_k - k^2 / (2 s^2), and 14 or 6 times the sizes of its terms."""
        m, k = self.examples, self._shifts
        chosen = np.array([math.log(math.comb(m, count)) for count in range(m + 1)])
        joined, absent = k * math.log(self.sampling_prob), (m - k) * math.log1p(-self.sampling_prob)
        energy = k * k / (2.0 * self.sigma_over_sensitivity**2)
        return chosen + joined + absent - energy, 14.0 * (chosen - joined - absent) + 6.0 * energy

    def _ratio_and_means(self, x: FloatArray, *values: FloatArray) -> tuple[FloatArray, list[FloatArray]]:
        """Log r at x, and the posterior means of functions of k."""
        z, constants = x / self.sigma_over_sensitivity**2, self._log_parts[0]
        ratio, means = np.empty_like(x), [np.empty_like(x) for _ in values]
        rows = max(1, _BLOCK // constants.size)
        for start in range(0, x.size, rows):
            part = slice(start, start + rows)
            terms = np.multiply.outer(z[part], self._shifts)
            terms += constants
            top = terms.max(axis=1)
            np.exp(np.subtract(terms, top[:, None], out=terms), out=terms)
            total = terms.sum(axis=1)
            ratio[part] = top + np.log(total)
            for mean, value in zip(means, values, strict=True):
                mean[part] = (terms @ value) / total
        return ratio, means

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Log of the mixture density over the pure one at output x, of any shape."""
        return self._ratio_and_means(x.reshape(-1))[0].reshape(x.shape)

    def rounding(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the absolute error of `log_ratio` and on the relative error of the mass of a node.

        Both hold for nodes between two points x at most a panel apart, by the larger one: there k z changes
        by at most half a unit, and posterior weights by a factor e^(1/2) < 2.

        In units of u = 2^-53, with 8 for an elementary function: the logarithm of a binomial weight has error
        at most 14 of its parts: 8, 2 for the product, 2 for sums. Its energy has error 3 of itself and 2 for
        sums, z 3 and x 2 of itself, which k z passes on, with 2 for sums. These errors of the exponents enter
        log r by their posterior mean. The difference from the largest exponent has an error of itself, of
        which the mean is at most m / e, exponentials 8, their sum of m + 1 terms m, its logarithm 8
        log (m + 1), and the last sum log r. The error of the mass of a node is as in `Loss.rounding`.

        Args:
            x: computed outputs, shape (m,).

        Returns:
            Two arrays of shape (m,).
        """
        s, m = self.sigma_over_sensitivity, self.examples
        ratio, (parts, shift) = self._ratio_and_means(x, self._log_parts[1], self._shifts)
        exponents = parts + 8.0 * shift * np.abs(x) / s**2
        off = UNIT * (2.02 * exponents + 3.0 * m + 8.0 * math.log(m + 1.0) + 2.0 * np.abs(ratio) + 48.0)
        pure = 5.0 * (x / s) ** 2 + 2.0 * np.abs(x) / s**2 + 8.0 * abs(math.log(s))
        mass = UNIT * (pure + np.abs(ratio) + 68.0)
        return off, (mass + off if self.remove else mass)

    def output_at(self, log_ratio: FloatArray) -> FloatArray:
        """The output with this log ratio, by Newton's method: the inverse of `log_ratio`."""
        low, high = self.outputs()
        grid = np.linspace(low, high, 2 + math.ceil((high - low) / self.panel_width))
        values = np.maximum.accumulate(self.log_ratio(grid))
        place = np.clip(np.searchsorted(values, log_ratio, side="right") - 1, 0, grid.size - 2)
        x = np.interp(log_ratio, values, grid)
        for _ in range(_NEWTON):
            found, (mean,) = self._ratio_and_means(x, self._shifts)
            slope = np.maximum(mean / self.sigma_over_sensitivity**2, 1e-300)
            x = np.clip(x - (found - log_ratio) / slope, grid[place], grid[place + 1])
        return x

    @property
    def furthest(self) -> int:
        """The number of examples m."""
        return self.examples

    @property
    def terms(self) -> int:
        """One for each number of examples; cuts need a few times as many."""
        return self.examples + 1

    @property
    def least_ratio(self) -> float:
        """Log of the probability that none of the m examples joins."""
        return self.examples * math.log1p(-self.sampling_prob)

    @property
    def panel_width(self) -> float:
        """At most half a unit of m z; the farthest component is m / s further away than the tail."""
        s, m = self.sigma_over_sensitivity, self.examples
        return min(0.25 * s, 2.5 * s / (self.reach + m / s), 0.5 * s * s / m)

    @property
    def points(self) -> int:
        """Points whose distance is a tenth of the scale on which the ratio changes.

        Raises:
            NumericalError: if little noise requires more than a million points.
        """
        low, high = self.outputs()
        s = self.sigma_over_sensitivity
        count = math.ceil((high - low) / (0.1 * min(s, s * s / self.examples)))
        if count > _MOST_POINTS:
            raise NumericalError(f"{self!r} has too little noise for {self.examples} examples of a user")
        return max(super().points, count)


_NODES, _WEIGHTS = gauss_legendre(8)


@dataclasses.dataclass(frozen=True)
class OneSidedLoss(StepLoss):
    """The part of a step's loss where A_u is above A_{u-1}.

    Args:
        kept_prob: p in (0, 1).
        shift: u, 1 or 2.
        sigma_over_sensitivity: s > 0.
        remove: whether masses are those of A_u and losses positive (True), or those of A_{u-1} and
            losses negative (False).
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    kept_prob: float
    shift: int
    sigma_over_sensitivity: float
    remove: bool
    reach: float = 38.0

    def _log_mixture(self, shift: int, x: FloatArray) -> FloatArray:
        """Log density of A_shift over the noise."""
        if shift == 0:
            return np.zeros_like(x)
        exponent = shift * (x - 0.5 * shift) / self.sigma_over_sensitivity**2
        return np.logaddexp(math.log1p(-self.kept_prob), math.log(self.kept_prob) + exponent)

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Log density of A_u over that of A_{u-1} at output x."""
        return self._log_mixture(self.shift, x) - self._log_mixture(self.shift - 1, x)

    def _log_density(self, x: FloatArray, ratio: FloatArray) -> FloatArray:
        del ratio
        s, shift = self.sigma_over_sensitivity, self.shift if self.remove else self.shift - 1
        return -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2.0 * math.pi)) + self._log_mixture(shift, x)

    def rounding(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the absolute error of `log_ratio` and on the relative error of the mass of a node.

        Both hold for nodes between two points x at most a panel apart, by the larger one.

        In units of u = 2^-53, with 8 for an elementary function: the exponent y (x - y / 2) / s^2 of a
        mixture has error 6 of the sizes |y x| + y^2 / 2 over s^2 of its terms, log p and log (1 - p) 8 of
        themselves, their sum u; all enter log A with a weight of at most 1. The logarithm of the sum adds 10
        times itself and log (1 - p). That is doubled for the step within a panel, where exponents change by
        at most half a unit, and counted for both mixtures. The error of the mass of a node is as in
        `Loss.rounding`, with log A in place of the ratio.
        """
        s, u, p = self.sigma_over_sensitivity, self.shift, self.kept_prob
        top, below = self._log_mixture(u, x), self._log_mixture(u - 1, x)
        energy = u * (np.abs(x) + 0.5 * u) / s**2
        parts = 8.0 * energy + 10.0 * (abs(math.log(p)) + abs(math.log1p(-p)))
        off = UNIT * (4.0 * parts + 24.0 * (np.abs(top) + np.abs(below)) + 48.0)
        mixed = top if self.remove else below
        pure = 5.0 * (x / s) ** 2 + 2.0 * np.abs(x) / s**2 + 8.0 * abs(math.log(s))
        return off, UNIT * (pure + np.abs(mixed) + 68.0) + off

    def output_at(self, log_ratio: FloatArray) -> FloatArray:
        """The output, above u - 1/2, with this log ratio > 0."""
        p, square = self.kept_prob, self.sigma_over_sensitivity**2
        if self.shift == 1:
            low = np.minimum(log_ratio, 50.0)
            near = np.log1p(np.expm1(low) / p)
            far = log_ratio - math.log(p) + np.log1p(-(1.0 - p) * np.exp(-np.maximum(log_ratio, 50.0)))
            return 0.5 + square * np.where(log_ratio < 50.0, near, far)
        # With y = e^((x - 1) / s^2) and d = e^(1 / (2 s^2)) it is p y^2 = e^l p y d + (1 - p) (e^l - 1).
        added = -4.0 * (1.0 - p) / p * np.expm1(-log_ratio) * np.exp(-log_ratio - 1.0 / square)
        return 1.5 + square * (log_ratio + np.log1p(0.5 * (np.sqrt(1.0 + added) - 1.0)))

    @property
    def furthest(self) -> int:
        """The shift."""
        return self.shift

    @property
    def start(self) -> float:
        """The output above which this part of the loss is supported: u - 1/2."""
        return self.shift - 0.5

    def outputs(self) -> tuple[float, float]:
        """Outputs from where the ratio is 1."""
        return self.start, self.shift + self.reach * self.sigma_over_sensitivity

    @property
    def whole(self) -> float:
        """The mass of A_u, or A_{u-1}, above the start."""
        s, mean = self.sigma_over_sensitivity, self.shift if self.remove else self.shift - 1
        pure, moved = (float(scipy.special.ndtr((at - self.start) / s)) for at in (0, mean))
        return (1.0 - self.kept_prob) * pure + self.kept_prob * moved

    def sampled(self) -> tuple[FloatArray, FloatArray]:
        """Losses and log masses of a Gauss-Legendre rule, because the law is not smooth at its start."""
        low, high = self.outputs()
        count = max(64, math.ceil((high - low) / self.panel_width))
        edges = np.linspace(low, high, count + 1)
        half = 0.5 * np.diff(edges)[:, None]
        x = (edges[:-1, None] + half * (1.0 + _NODES)).ravel()
        ratio = self.log_ratio(x)
        widths = np.log((half * _WEIGHTS).ravel())
        return (ratio if self.remove else -ratio), self._log_density(x, ratio) + widths

    @property
    def terms(self) -> int:
        """Two for each of the two mixtures."""
        return 4

    @property
    def least_ratio(self) -> float:
        """0, the log ratio at the start."""
        return 0.0

    @property
    def panel_width(self) -> float:
        """At most half a unit of u z, as for a user with u examples."""
        s, u = self.sigma_over_sensitivity, self.shift
        return min(0.25 * s, 2.5 * s / (self.reach + u / s), 0.5 * s * s / u)


_BEYOND = 1.0 + 1e-9


class PartedLoss(AnyLoss):
    """A law that is the sum of weighted laws and a mass at 0. Subclasses are frozen dataclasses.

    A subclass defines the parts for the lower (0) or the upper bound (1) of all numbers that are known only
    within bounds: its curve has to increase with each of these.
    """

    exact_cuts: ClassVar[bool] = False

    @abc.abstractmethod
    def _parts(self, end: int) -> list[tuple[float, StepLoss]]:
        """Weighted laws, without the mass at 0."""

    @abc.abstractmethod
    def _at_zero(self, end: int) -> float:
        """The mass at 0."""

    def _weighted(self, end: int) -> list[tuple[float, StepLoss]]:
        return [(weight, part) for weight, part in self._parts(end) if weight > 0.0]

    def interval(self) -> tuple[float, float]:
        """The interval of all parts; it includes 0."""
        ends = [part.interval() for _, part in self._weighted(1)]
        low, high = min(0.0, *(low for low, _ in ends)), max(0.0, *(high for _, high in ends))
        # Where both ends are multiples of a step, rounding must not leave a sliver outside the last cell.
        return low * _BEYOND, high * _BEYOND

    def tail_mass(self) -> float:
        """Upper bound on the weighted tail mass of all parts."""
        weight = sum(weight for weight, _ in self._weighted(1))
        return 2.0 * weight * float(scipy.special.ndtr(-self.reach))

    def sampled(self) -> tuple[FloatArray, FloatArray]:
        """Losses and log masses of all parts, by increasing losses."""
        pieces = [(part.sampled(), weight) for weight, part in self._weighted(1)]
        at_zero = np.array([max(self._at_zero(1), 1e-300)])
        losses = np.concatenate([np.zeros(1), *(values for (values, _), _ in pieces)])
        masses = np.concatenate([np.log(at_zero), *(logs + np.log(weight) for (_, logs), weight in pieces)])
        order = np.argsort(losses, kind="stable")
        return losses[order], masses[order]

    def quadrature(self, edges: FloatArray, *, upwards: bool) -> tuple[FloatArray, FloatArray, IntArray]:
        """Nodes of all parts, and one for the mass at 0; see the base class."""
        end, aside = (1, 1.0) if upwards else (0, -1.0)
        losses, masses = [np.zeros(1)], [np.array([self._at_zero(end)])]
        cells = [np.searchsorted(edges, np.zeros(1), side="right") - 1]
        for weight, part in self._weighted(end):
            own, weights, places = part.quadrature(edges, upwards=upwards)
            losses.append(own)
            masses.append(weights * (weight * (1.0 + aside * 4.0 * UNIT)))
            cells.append(places)
        return np.concatenate(losses), np.concatenate(masses), np.concatenate(cells)
