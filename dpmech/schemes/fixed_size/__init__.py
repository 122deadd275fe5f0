"""Batches of exactly so many examples, without replacement."""

from dpmech.schemes.fixed_size.participation import FixedSizeLots
from dpmech.schemes.fixed_size.sampler import FixedSizeSampler

__all__ = ["FixedSizeLots", "FixedSizeSampler"]
