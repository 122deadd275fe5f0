"""Privacy profiles: the whole curve delta(eps) in both directions, bounded, composed, and read in other terms."""

from dpmech.accounting.profiles.composition import Composition
from dpmech.accounting.profiles.loss_atoms import LossAtoms, atoms_above
from dpmech.accounting.profiles.parts import Curve, Nodes, SampledPart, grouped

__all__ = ["Composition", "Curve", "LossAtoms", "Nodes", "SampledPart", "atoms_above", "grouped"]
