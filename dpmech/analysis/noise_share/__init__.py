"""The noise-share paper: what part of an optimizer's moments is noise, floors and ceilings."""

from dpmech.analysis.noise_share import convergence, moments, signal_ceiling

__all__ = ["convergence", "moments", "signal_ceiling"]
