"""Participation without sampling: patterns that a fixed order of the batches enforces."""

from dpmech.schemes.fixed_order.participation import FixedEpochs, MinSep, SingleParticipation
from dpmech.schemes.fixed_order.sampler import SequentialSampler
from dpmech.schemes.fixed_order.scheme import FixedOrderScheme

__all__ = [
    "FixedEpochs",
    "FixedOrderScheme",
    "MinSep",
    "SequentialSampler",
    "SingleParticipation",
]
