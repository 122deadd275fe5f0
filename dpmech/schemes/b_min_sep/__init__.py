"""b-min-sep sampling: after taking part an example waits b - 1 steps."""

from dpmech.schemes.b_min_sep.participation import BMinSep
from dpmech.schemes.b_min_sep.sampler import BMinSepSampler

__all__ = ["BMinSep", "BMinSepSampler"]
