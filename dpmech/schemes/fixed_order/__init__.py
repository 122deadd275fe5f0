"""Participation without sampling: patterns that the order of the batches keeps."""

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
