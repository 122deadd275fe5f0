"""Cyclic Poisson sampling: fixed groups take turns."""

from dpmech.schemes.cyclic_poisson.participation import CyclicPoisson, UserCyclicPoisson
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler, UserCyclicPoissonSampler

__all__ = ["CyclicPoisson", "CyclicPoissonSampler", "UserCyclicPoisson", "UserCyclicPoissonSampler"]
