"""Privacy profiles: the whole curve delta(eps) in both directions, its composition, and derived measures."""

from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.curves import (
    LEAST_DELTA,
    Curve,
    Nodes,
    SampledPart,
    curve_of_bounds,
    placed_nodes,
)
from dpmech.engines.profiles.exact_losses import ExactLoss
from dpmech.engines.profiles.private_selection import (
    NegativeBinomialRuns,
    PoissonRuns,
    RunCount,
    run_count_from,
)
from dpmech.engines.profiles.profile import PrivacyProfile

__all__ = [
    "LEAST_DELTA",
    "Composition",
    "Curve",
    "ExactLoss",
    "NegativeBinomialRuns",
    "Nodes",
    "PoissonRuns",
    "PrivacyProfile",
    "RunCount",
    "SampledPart",
    "curve_of_bounds",
    "placed_nodes",
    "run_count_from",
]
