"""Cyclic Poisson sampling: fixed groups take turns."""

from dpmech.schemes.cyclic_poisson.participation import CyclicPoisson
from dpmech.schemes.cyclic_poisson.sampler import CyclicPoissonSampler

__all__ = ["CyclicPoisson", "CyclicPoissonSampler"]
