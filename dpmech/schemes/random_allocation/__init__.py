"""Random allocation: every example takes part in exactly k of n steps, in a uniformly random set of them."""

from dpmech.schemes.random_allocation.participation import RandomAllocation
from dpmech.schemes.random_allocation.sampler import RandomAllocationSampler

__all__ = ["RandomAllocation", "RandomAllocationSampler"]
