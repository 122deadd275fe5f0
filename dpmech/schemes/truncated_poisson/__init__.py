"""Truncated Poisson sampling: batches of at most so many examples."""

from dpmech.schemes.truncated_poisson.participation import TruncatedPoisson, check_truncated
from dpmech.schemes.truncated_poisson.sampler import TruncatedPoissonSampler

__all__ = ["TruncatedPoisson", "TruncatedPoissonSampler", "check_truncated"]
