"""Canaries: examples put in to measure what a run gives away."""

from dpmech.optim.canaries.data import CanaryData
from dpmech.optim.canaries.watch import CanaryWatch

__all__ = ["CanaryData", "CanaryWatch"]
