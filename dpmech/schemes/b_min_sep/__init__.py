"""b-min-sep sampling: after it took part an example waits b - 1 steps."""

from dpmech.schemes.b_min_sep.participation import MinSepSampling
from dpmech.schemes.b_min_sep.sampler import MinSepSampler

__all__ = ["MinSepSampler", "MinSepSampling"]
