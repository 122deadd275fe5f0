"""Measurements of a run: canaries, for its leakage, and a meter of its noise."""

from dpmech.optim.canaries.data import CanaryData
from dpmech.optim.canaries.meter import NoiseMeter
from dpmech.optim.canaries.watch import CanaryWatch

__all__ = ["CanaryData", "CanaryWatch", "NoiseMeter"]
