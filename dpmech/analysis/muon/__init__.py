"""DP-Muon: Newton-Schulz quality, stationarity, and the bias of a non-linear map."""

from dpmech.analysis.muon import newton_schulz, stationarity
from dpmech.analysis.muon import newton_schulz as heat

__all__ = ["heat", "newton_schulz", "stationarity"]
