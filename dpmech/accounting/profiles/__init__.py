"""Privacy profiles: the whole curve delta(eps) in both directions, bounded, composed, read in other terms."""

from dpmech.accounting.profiles.composition import Composition
from dpmech.accounting.profiles.loss_atoms import LossAtoms, atoms_above
from dpmech.accounting.profiles.node_placing import LEAST_DELTA, curve_of_bounds, placed_nodes
from dpmech.accounting.profiles.parts import Curve, Nodes, SampledPart, grouped
from dpmech.accounting.profiles.profile import PrivacyProfile
from dpmech.accounting.profiles.run_counts import NegativeBinomialRuns, PoissonRuns, RunCount, run_count_from

__all__ = [
    "LEAST_DELTA",
    "Composition",
    "Curve",
    "LossAtoms",
    "NegativeBinomialRuns",
    "Nodes",
    "PoissonRuns",
    "PrivacyProfile",
    "RunCount",
    "SampledPart",
    "atoms_above",
    "curve_of_bounds",
    "grouped",
    "placed_nodes",
    "run_count_from",
]
