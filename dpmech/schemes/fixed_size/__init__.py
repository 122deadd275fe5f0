"""Batches of a fixed size, sampled without replacement."""

from dpmech.schemes.fixed_size.participation import FixedSizeBatches
from dpmech.schemes.fixed_size.sampler import FixedSizeSampler

__all__ = ["FixedSizeBatches", "FixedSizeSampler"]
