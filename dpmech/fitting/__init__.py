"""Best coefficients: the strategy with the least error for a workload, a participation and a budget."""

from dpmech.fitting.fit import Fit, FitCache
from dpmech.fitting.optimizing import cyclic_choices, optimize

__all__ = ["Fit", "FitCache", "cyclic_choices", "optimize"]
