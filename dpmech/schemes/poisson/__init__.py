"""Poisson sampling: every example joins every step independently."""

from dpmech.schemes.poisson.accountant import of_examples, of_group, of_users
from dpmech.schemes.poisson.participation import Poisson, UserPoisson
from dpmech.schemes.poisson.sampler import PoissonSampler, UserPoissonSampler

__all__ = [
    "Poisson",
    "PoissonSampler",
    "UserPoisson",
    "UserPoissonSampler",
    "of_examples",
    "of_group",
    "of_users",
]
