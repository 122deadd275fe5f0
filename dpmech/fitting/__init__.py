"""Best coefficients: the strategy with the least error for a workload, a participation and a budget."""

from dpmech.fitting.fit import Fit as Fit
from dpmech.fitting.fit import FitCache as FitCache
from dpmech.fitting.optimizing import cyclic_choices as cyclic_choices
from dpmech.fitting.optimizing import optimize as optimize

__all__ = ["Fit", "FitCache", "cyclic_choices", "optimize"]
