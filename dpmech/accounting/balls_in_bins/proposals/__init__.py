"""Proposals of importance sampling: mixtures of tilted laws, part by part."""

from dpmech.accounting.balls_in_bins.proposals.add_mixture import ADD_PARTS, AddProposal
from dpmech.accounting.balls_in_bins.proposals.all_bins_tilt import CollectiveParts
from dpmech.accounting.balls_in_bins.proposals.choice import add_mixture, remove_mixture
from dpmech.accounting.balls_in_bins.proposals.design_points import AddPoint, add_point
from dpmech.accounting.balls_in_bins.proposals.gaussian_groups import LiftedGroup, PointGroup, log_mean_exp
from dpmech.accounting.balls_in_bins.proposals.mixture import Proposal, chosen_parts, log_largest_weight
from dpmech.accounting.balls_in_bins.proposals.remove_mixture import RemoveProposal
from dpmech.accounting.balls_in_bins.proposals.rounding import (
    LogError,
    farthest_normal,
    mean_rounding,
    sum_product_rounding,
)

__all__ = [
    "ADD_PARTS",
    "AddPoint",
    "AddProposal",
    "CollectiveParts",
    "LiftedGroup",
    "LogError",
    "PointGroup",
    "Proposal",
    "RemoveProposal",
    "add_mixture",
    "add_point",
    "chosen_parts",
    "farthest_normal",
    "log_largest_weight",
    "log_mean_exp",
    "mean_rounding",
    "remove_mixture",
    "sum_product_rounding",
]
