"""The noise-share paper: what part of an optimizer's moments is noise, floors and ceilings."""

from dpmech.analysis.noise_share import convergence, signal_ceiling
from dpmech.analysis.noise_share import convergence as budgeted_floor
from dpmech.analysis.noise_share import moments as first_moment
from dpmech.analysis.noise_share import moments as moment_scatter
from dpmech.analysis.noise_share import moments as share

__all__ = ["budgeted_floor", "convergence", "first_moment", "moment_scatter", "share", "signal_ceiling"]
