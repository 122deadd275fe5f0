"""Privacy losses of finitely many known values, and those of pairs that such losses bracket closely.

The loss of one release is an exact law on multiples of a grid, the same in both directions. From above it is
a loss that dominates the mechanism's, from below one that the mechanism's dominates; for randomised response
and discrete Laplace noise both are the loss itself. Lattices whose step divides the grid hold it without any
discretisation, so that compositions of one kind are exact up to rounding.
"""

import dataclasses

import numpy as np

from dpmech.engines.profiles.atoms import ClosedForm, Grid, LossAtoms, LowerAtoms
from dpmech.numerics import UNIT, FloatArray, IntArray


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
        on = Grid(self.grid, self.relative, self.indexes)
        return LossAtoms(on.values + on.off, self.masses, self.infinite, on, self.closed)

    def atoms_below(self, *, add: bool) -> LowerAtoms:
        """The dominated loss; both directions have the same."""
        del add
        on = Grid(self.grid, self.relative, self.below)
        return LowerAtoms(on.values - on.off, self.masses_below, on)

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
