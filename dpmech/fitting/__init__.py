"""Fitting: the strategy with the smallest error for a workload, a participation and a budget."""

from dpmech.fitting.better_member import BetterMember, better_member
from dpmech.fitting.lower_bounds import error_lower_bound, gap_of, gap_words
from dpmech.fitting.optimizing import Fit, check_family, cyclic_choices, optimize
from dpmech.fitting.recommending import (
    Choice,
    FamilySizes,
    Recommendation,
    Refusal,
    Search,
    Trial,
    check_vectors,
    choices,
    chosen,
    recommend_under,
    tried,
)

__all__ = [
    "BetterMember",
    "Choice",
    "FamilySizes",
    "Fit",
    "Recommendation",
    "Refusal",
    "Search",
    "Trial",
    "better_member",
    "check_family",
    "check_vectors",
    "choices",
    "chosen",
    "cyclic_choices",
    "error_lower_bound",
    "gap_of",
    "gap_words",
    "optimize",
    "recommend_under",
    "tried",
]
