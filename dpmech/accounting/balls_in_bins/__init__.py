"""Balls-in-Bins: every example in one random bin, for correlated strategies.

From the Gram matrix of the bins (`gram`) come a closed-form bound (`moments`), estimates and bounds by
importance sampling (`proposals`, `sampling`), and a deterministic programme (`ring`). Independent bins need
none of these: the law of a sum (`independent`).
"""

from dpmech.accounting.balls_in_bins.by_default import (
    accountant_in_turn,
    certified_accountant,
    deterministic_accountant,
)
from dpmech.accounting.balls_in_bins.dominating_pair import (
    bin_gram,
    check_nonnegative,
    folded,
    lower_gram,
    ring_profile,
    sampling_gram,
)
from dpmech.accounting.balls_in_bins.fresh_epochs import FreshEpochsAccountant
from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.half_space import half_space_add
from dpmech.accounting.balls_in_bins.in_turn import InTurnAccountant, Turn
from dpmech.accounting.balls_in_bins.independent import IndependentAccountant
from dpmech.accounting.balls_in_bins.moment_bound import log_tail_factor
from dpmech.accounting.balls_in_bins.moments import AllocationRenyiAccountant, rough_log_delta
from dpmech.accounting.balls_in_bins.proposals import (
    ADD_PARTS,
    AddPoint,
    AddProposal,
    CollectiveParts,
    LiftedGroup,
    LogError,
    PointGroup,
    Proposal,
    RemoveProposal,
    add_mixture,
    chosen_parts,
    farthest_normal,
    log_largest_weight,
    log_mean_exp,
    mean_rounding,
    remove_mixture,
    sum_product_rounding,
)
from dpmech.accounting.balls_in_bins.ring import DeterministicAccountant
from dpmech.accounting.balls_in_bins.sampling import (
    CertifiedAccountant,
    CurveEstimate,
    ImportanceAccountant,
    RoughSample,
    RoughSigma,
    draw_entropy,
    estimate_curve,
    pilot_size,
)
from dpmech.accounting.balls_in_bins.streams import RemoveDraw, Stage, generator, stage_seed

__all__ = [
    "ADD_PARTS",
    "AddPoint",
    "AddProposal",
    "AllocationRenyiAccountant",
    "BinGram",
    "CertifiedAccountant",
    "CollectiveParts",
    "CurveEstimate",
    "DeterministicAccountant",
    "FreshEpochsAccountant",
    "ImportanceAccountant",
    "InTurnAccountant",
    "IndependentAccountant",
    "LiftedGroup",
    "LogError",
    "PointGroup",
    "Proposal",
    "RemoveDraw",
    "RemoveProposal",
    "RoughSample",
    "RoughSigma",
    "Stage",
    "Turn",
    "accountant_in_turn",
    "add_mixture",
    "bin_gram",
    "certified_accountant",
    "check_nonnegative",
    "chosen_parts",
    "deterministic_accountant",
    "draw_entropy",
    "estimate_curve",
    "farthest_normal",
    "folded",
    "generator",
    "half_space_add",
    "log_largest_weight",
    "log_mean_exp",
    "log_tail_factor",
    "lower_gram",
    "mean_rounding",
    "pilot_size",
    "remove_mixture",
    "ring_profile",
    "rough_log_delta",
    "sampling_gram",
    "stage_seed",
    "sum_product_rounding",
]
