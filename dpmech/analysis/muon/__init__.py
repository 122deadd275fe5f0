"""DP-Muon: Newton-Schulz quality, stationarity, and the bias of a non-linear map."""

from dpmech.analysis.muon import newton_schulz, stationarity

__all__ = ["newton_schulz", "stationarity"]
