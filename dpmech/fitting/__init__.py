"""Best coefficients: the strategy with the least error for a workload, a participation and a budget."""

from dpmech.fitting.fit import Fit, FitCache
from dpmech.fitting.optimizing import check_family, cyclic_choices, optimize

__all__ = ["Fit", "FitCache", "check_family", "cyclic_choices", "optimize"]
