"""Poisson sampling: every example joins every step independently; for examples or users, or truncated."""

from dpmech.schemes.poisson.participation import Poisson
from dpmech.schemes.poisson.sampler import PoissonSampler
from dpmech.schemes.poisson.truncated_sampler import TruncatedPoissonSampler

__all__ = ["Poisson", "PoissonSampler", "TruncatedPoissonSampler"]
