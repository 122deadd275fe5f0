"""The privacy loss of one step whose law is put together from laws with weights, and an atom at 0."""

import abc
from typing import ClassVar

import numpy as np
import scipy

from dpmech.accounting.poisson.step_loss import AnyLoss, StepLoss
from dpmech.numerics import UNIT, FloatArray, IntArray

__all__ = ["PartedLoss"]


_BEYOND = 1.0 + 1e-9


class PartedLoss(AnyLoss):
    """A law that is the sum of weighted laws and of what lies at 0. Subclasses are frozen records.

    A subclass says of what, by the lower (0) or the upper end (1) of all numbers that are only known between
    two floats: its curve has to rise with each of these.
    """

    exact_cuts: ClassVar[bool] = False

    @abc.abstractmethod
    def _parts(self, end: int) -> list[tuple[float, StepLoss]]:
        """Weighted laws, without what lies at 0."""

    @abc.abstractmethod
    def _at_zero(self, end: int) -> float:
        """The mass at 0."""

    def _weighted(self, end: int) -> list[tuple[float, StepLoss]]:
        return [(weight, part) for weight, part in self._parts(end) if weight > 0.0]

    def interval(self) -> tuple[float, float]:
        """Over all parts; 0 lies inside."""
        ends = [part.interval() for _, part in self._weighted(1)]
        low, high = min(0.0, *(low for low, _ in ends)), max(0.0, *(high for _, high in ends))
        # Where both ends are multiples of a step, rounding must not leave a sliver outside the last cell.
        return low * _BEYOND, high * _BEYOND

    def tail_mass(self) -> float:
        """Of all parts, each with its weight."""
        weight = sum(weight for weight, _ in self._weighted(1))
        return 2.0 * weight * float(scipy.special.ndtr(-self.reach))

    def sampled(self) -> tuple[FloatArray, FloatArray]:
        """Of all parts, by increasing losses."""
        pieces = [(part.sampled(), weight) for weight, part in self._weighted(1)]
        at_zero = np.array([max(self._at_zero(1), 1e-300)])
        losses = np.concatenate([np.zeros(1), *(values for (values, _), _ in pieces)])
        masses = np.concatenate([np.log(at_zero), *(logs + np.log(weight) for (_, logs), weight in pieces)])
        order = np.argsort(losses, kind="stable")
        return losses[order], masses[order]

    def quadrature(self, edges: FloatArray, *, upwards: bool) -> tuple[FloatArray, FloatArray, IntArray]:
        """Nodes of all parts, and one for what lies at 0; see the base class."""
        end, aside = (1, 1.0) if upwards else (0, -1.0)
        losses, masses = [np.zeros(1)], [np.array([self._at_zero(end)])]
        cells = [np.searchsorted(edges, np.zeros(1), side="right") - 1]
        for weight, part in self._weighted(end):
            own, weights, places = part.quadrature(edges, upwards=upwards)
            losses.append(own)
            masses.append(weights * (weight * (1.0 + aside * 4.0 * UNIT)))
            cells.append(places)
        return np.concatenate(losses), np.concatenate(masses), np.concatenate(cells)
