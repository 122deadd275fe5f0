"""Sums of independent likelihood ratios on a lattice: two-sided bounds without sampling."""

from dpmech.engines.independent_sum.accountant import IndependentAccountant
from dpmech.engines.independent_sum.blocks import BlockBound
from dpmech.engines.independent_sum.fresh_epochs import FreshEpochsAccountant

__all__ = ["BlockBound", "FreshEpochsAccountant", "IndependentAccountant"]
