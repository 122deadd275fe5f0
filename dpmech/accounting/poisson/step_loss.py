"""The privacy loss of one step by quadrature: any one, and one that is monotone in a single output."""

import abc
import dataclasses
import math
from typing import ClassVar, Self

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, FloatArray, IntArray, gauss_legendre, spend

__all__ = ["AnyLoss", "StepLoss"]

# Gauss-Legendre rules for intervals that are wide and narrow against the scales of the densities.
_WIDE, _NARROW = gauss_legendre(8), gauss_legendre(3)
_MAX_CELLS = 5_000_000
_POINTS = 20_001


class AnyLoss(abc.ABC):
    """The law of log dP/dQ of one step in one direction, as lattices need it. Subclasses are frozen records.

    Attributes:
        sigma_over_sensitivity: s > 0.
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
        exact_cuts: whether a panel of the quadrature leaves its cell by rounding alone.
    """

    exact_cuts: ClassVar[bool] = True
    sigma_over_sensitivity: float
    reach: float

    @abc.abstractmethod
    def interval(self) -> tuple[float, float]:
        """The least and the largest loss that is not counted as tail."""

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
            upwards: whether losses and masses are taken for larger, not smaller, by what they may be off by.

        Returns:
            Losses, P-masses and cell indices (cell i lies between edges i and i + 1) of all nodes.
        """

    def within(self, reach: float) -> Self:
        """The same with another reach."""
        return dataclasses.replace(self, reach=reach)  # type: ignore[type-var]  # all are dataclasses

    def under(self, sigma_over_sensitivity: float) -> Self:
        """The same with another sigma / sensitivity."""
        return dataclasses.replace(self, sigma_over_sensitivity=sigma_over_sensitivity)  # type: ignore[type-var]  # as above

    def finest_step(self) -> float:
        """The smallest lattice step that is affordable over the interval of losses."""
        low, high = self.interval()
        return (high - low) / _MAX_CELLS


class StepLoss(AnyLoss):
    """Log dP/dQ of one step in one direction, where P or Q is N(0, s^2) and the other one a mixture.

    The mixture is one of N(k, s^2) for shifts k >= 0, so that its density over the pure one rises with the
    output. Final subclasses are frozen records.

    Attributes:
        remove: the direction: P is the mixture (True) or the pure noise (False).
    """

    remove: bool

    @abc.abstractmethod
    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Log of the mixture density over the pure one at output x."""

    @abc.abstractmethod
    def rounding(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the absolute error of `log_ratio`, and on the relative one of the mass of a node."""

    @abc.abstractmethod
    def output_at(self, log_ratio: FloatArray) -> FloatArray:
        """The output with this log ratio (> `least_ratio`): the inverse of `log_ratio`."""

    @property
    def furthest(self) -> int:
        """The largest shift."""
        return 1

    @property
    def terms(self) -> int:
        """How many exponentials the ratio takes at a point, for what work is charged."""
        return 1

    @property
    @abc.abstractmethod
    def least_ratio(self) -> float:
        """The limit of the log ratio far to the left."""

    @property
    @abc.abstractmethod
    def panel_width(self) -> float:
        """Of the panels of the quadrature."""

    @property
    def whole(self) -> float:
        """The P-mass of all outputs."""
        return 1.0

    @property
    def points(self) -> int:
        """How many points `sampled` takes."""
        return _POINTS

    def log_density(self, x: FloatArray) -> FloatArray:
        """Log density of P at output x."""
        return self._log_density(x, self.log_ratio(x) if self.remove else np.zeros_like(x))

    def _log_density(self, x: FloatArray, ratio: FloatArray) -> FloatArray:
        s = self.sigma_over_sensitivity
        pure = -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2.0 * math.pi))
        return pure + ratio if self.remove else pure

    def outputs(self) -> tuple[float, float]:
        """The interval of outputs that is not counted as tail."""
        spread = self.reach * self.sigma_over_sensitivity
        return -spread, spread + self.furthest

    def tail_mass(self) -> float:
        """Upper bound on the P-mass beyond either end of `outputs`."""
        return 2.0 * float(scipy.special.ndtr(-self.reach))

    def interval(self) -> tuple[float, float]:
        """The least and the largest loss on `outputs`."""
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
        grows by a factor e^2.75 at most, and the rule with 8 nodes is exact to 1.2 u, that with 3 on those
        below 0.004 of it to 0.3 u.

        Args:
            edges: shape (m + 1,).
            upwards: whether losses and masses are taken for larger, not smaller, by what they may be off by.

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
        # Sums of so many terms, in pairs, are off by less than 64 u of themselves.
        if abs(total - self.whole) > doubt + 64.0 * UNIT + self.tail_mass():
            raise NumericalError(f"quadrature of {self!r} lost mass: {total!r}")
        return losses, masses, owners
