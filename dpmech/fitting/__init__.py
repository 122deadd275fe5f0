"""Fitting: the strategy with the smallest error for a workload, a participation and a budget."""

from dpmech.fitting.better_member import BetterMember, better_member
from dpmech.fitting.optimizing import Fit, check_family, cyclic_choices, optimize

__all__ = [
    "BetterMember",
    "Fit",
    "better_member",
    "check_family",
    "cyclic_choices",
    "optimize",
]
