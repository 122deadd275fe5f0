"""Accounting: what a noise scale is worth, for every mechanism that a theorem covers.

`accountant_for` finds the accountant of a mechanism; the method objects choose another one. A folder for
each sampling scheme whose loss needs more than a closed form.
"""

from dpmech.accounting.accountant import Accountant, Progress, Solution
from dpmech.accounting.balls_in_bins import (
    AddPoint,
    AddProposal,
    AllocationRenyiAccountant,
    BinGram,
    CollectiveParts,
    LiftedGroup,
    PointGroup,
    RemoveProposal,
    RoughSample,
    RoughSigma,
    Stage,
    bin_gram,
    draw_entropy,
    folded,
    log_mean_exp,
    pilot_size,
    stage_seed,
)
from dpmech.accounting.dispatch import (
    SCHEMES,
    Scheme,
    accountant_for,
    effective_method,
    method_among,
    unsampled_method,
)
from dpmech.accounting.gaussian import (
    GaussianAccountant,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_log_sigma,
    gaussian_sigma,
)
from dpmech.accounting.methods import (
    Certified,
    Deterministic,
    Exact,
    Importance,
    Method,
    Pld,
    Prv,
    Rdp,
    check_method,
)
from dpmech.accounting.poisson import LatticeRoute, Loss, LossMoments, PoissonAccountant, PoissonRelease
from dpmech.accounting.renyi_orders import best_order, budget_at, delta_at, epsilon_at, sampled_divergence
from dpmech.accounting.sigma_search import gaussian_scale

__all__ = [
    "SCHEMES",
    "Accountant",
    "AddPoint",
    "AddProposal",
    "AllocationRenyiAccountant",
    "BinGram",
    "Certified",
    "CollectiveParts",
    "Deterministic",
    "Exact",
    "GaussianAccountant",
    "Importance",
    "LatticeRoute",
    "LiftedGroup",
    "Loss",
    "LossMoments",
    "Method",
    "Pld",
    "PointGroup",
    "PoissonAccountant",
    "PoissonRelease",
    "Progress",
    "Prv",
    "Rdp",
    "RemoveProposal",
    "RoughSample",
    "RoughSigma",
    "Scheme",
    "Solution",
    "Stage",
    "accountant_for",
    "best_order",
    "bin_gram",
    "budget_at",
    "check_method",
    "delta_at",
    "draw_entropy",
    "effective_method",
    "epsilon_at",
    "folded",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_log_sigma",
    "gaussian_scale",
    "gaussian_sigma",
    "log_mean_exp",
    "method_among",
    "pilot_size",
    "sampled_divergence",
    "stage_seed",
    "unsampled_method",
]
