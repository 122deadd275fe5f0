"""The noise-share paper: the noise share of an optimizer's moments, floors and ceilings."""

from dpmech.analysis.noise_share import convergence, moments, signal_ceiling, targets

__all__ = ["convergence", "moments", "signal_ceiling", "targets"]
