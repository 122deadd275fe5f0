"""Privacy losses of finitely many known values, and those of pairs that such losses bracket closely.

The loss of one release is an exact law on multiples of a grid, the same in both directions. From above it is
a loss that dominates the mechanism's, from below one that the mechanism's dominates; for randomised response
and discrete Laplace noise both are the loss itself. Lattices whose step divides the grid hold it without any
discretisation, so that compositions of one kind are exact up to rounding.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from dpmech.engines.losses import LatticeLoss
from dpmech.engines.profiles.atoms import LossAtoms, LowerAtoms
from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, FloatArray, IntArray

# Relative error of a multiple of the grid as a float, and of a step that divides the grid.
_MULTIPLE, _DIVIDED = 4.0 * UNIT, 8.0 * UNIT
_MOST_CELLS = 20_000_000

# Lower and upper bound on delta of one release at eps >= 0.
ClosedForm = Callable[[float], tuple[float, float]]


@dataclasses.dataclass(frozen=True, eq=False)
class _Grid:
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
class _GridAtoms(LossAtoms):
    """A dominating loss on a grid; of one release, delta may have a closed form."""

    on: _Grid
    closed: ClosedForm | None

    @property
    def grid(self) -> float:
        """Distance of the multiples that have losses."""
        return self.on.grid

    def delta(self, eps: float) -> float:
        """H at e^eps, rounded up."""
        return super().delta(eps) if self.closed is None or eps < 0.0 else self.closed(eps)[1]

    def lattice(self, step: float) -> LatticeLoss:
        """On multiples of a step: exactly if it divides the grid, otherwise as for any loss."""
        found = self.on.lattice(step, self.masses, self.infinite, upper=True)
        return super().lattice(step) if found is None else found


@dataclasses.dataclass(frozen=True, eq=False)
class _LowerGridAtoms(LowerAtoms):
    """A dominated loss on a grid."""

    on: _Grid

    @property
    def grid(self) -> float:
        """Distance of the multiples that have losses."""
        return self.on.grid

    def lattice(self, step: float) -> LatticeLoss:
        """On multiples of a step: exactly if it divides the grid, otherwise as for any loss."""
        found = self.on.lattice(step, self.masses, 0.0, upper=False)
        return super().lattice(step) if found is None else found


@dataclasses.dataclass(frozen=True, eq=False)
class ExactLoss:
    """The privacy loss of one release, the same in both directions, between two losses on one grid.

    Args:
        grid: distance of neighbouring multiples, > 0.
        relative: bound on the relative error of `grid`.
        indexes: multiples of the dominating loss, shape (m,), increasing.
        masses: their probabilities under P, shape (m,), rounded up.
        infinite: the probability under P of outputs that are impossible under Q, rounded up.
        below: multiples of the dominated loss, shape (k,), increasing; empty if nothing is known from below.
        masses_below: their probabilities under P, shape (k,), > 0, rounded down.
        closed: bounds on delta of one release, if they are closer than those of the two losses.
    """

    grid: float
    relative: float
    indexes: IntArray
    masses: FloatArray
    infinite: float
    below: IntArray
    masses_below: FloatArray
    closed: ClosedForm | None = None

    def atoms(self, *, add: bool) -> LossAtoms:
        """The dominating loss; both directions have the same."""
        del add
        on = _Grid(self.grid, self.relative, self.indexes)
        return _GridAtoms(on.values + on.off, self.masses, self.infinite, on, self.closed)

    def atoms_below(self, *, add: bool) -> LowerAtoms:
        """The dominated loss; both directions have the same."""
        del add
        on = _Grid(self.grid, self.relative, self.below)
        return _LowerGridAtoms(on.values - on.off, self.masses_below, on)

    def lower(self, eps: float, *, add: bool) -> float:
        """A lower bound on delta of one release at any eps >= 0, rounded down."""
        if self.closed is not None:
            return self.closed(eps)[0]
        atoms = self.atoms_below(add=add)
        above = atoms.losses > eps
        terms = atoms.masses[above] * -np.expm1(eps - atoms.losses[above])
        # The difference has error u of the larger number, the exponential 8 u, a sum of m terms m u.
        off = 2.0 * UNIT * (np.abs(atoms.losses[above]) + eps) * atoms.masses[above]
        return max(0.0, float((terms - off).sum()) * (1.0 - (terms.size + 24.0) * UNIT))
