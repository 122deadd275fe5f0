"""Canaries: examples inserted to measure the privacy leakage of a run."""

from dpmech.optim.canaries.data import CanaryData
from dpmech.optim.canaries.watch import CanaryWatch

__all__ = ["CanaryData", "CanaryWatch"]
