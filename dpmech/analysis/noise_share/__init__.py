"""The noise-share paper: what part of an optimizer's moments is noise, floors and ceilings."""

from dpmech.analysis.noise_share import (
    budgeted_floor,
    convergence,
    first_moment,
    moment_scatter,
    share,
    signal_ceiling,
)

__all__ = ["budgeted_floor", "convergence", "first_moment", "moment_scatter", "share", "signal_ceiling"]
