"""What runs: a strategy, who takes part when, between which datasets; its sensitivity and its errors."""

from dpmech.mechanism import workloads
from dpmech.mechanism.budget import UNSTATED, Adjacency, PrivacyBudget, Unit, Unstated
from dpmech.mechanism.fixed_draw import FixedDraw
from dpmech.mechanism.mechanism import Mechanism, mechanism_of, sensitivity
from dpmech.mechanism.noise_cost import noise_cost
from dpmech.mechanism.noise_multiplier import noise_multiplier, sigma_use
from dpmech.mechanism.objectives import (
    decoder_norm,
    decoder_row_norm,
    last_iterate_error,
    max_se,
    per_step_error,
    rmse,
)
from dpmech.mechanism.participation import (
    EveryStep,
    Participation,
    Pattern,
    check_examples_per_user,
    check_participation,
    check_sampling_prob,
    forget,
    kinds,
    needed_setting,
    register,
    register_later,
)
from dpmech.mechanism.strategies import (
    BLT,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    Diagonal,
    Identity,
    InverseSquareRoot,
    LambdaCGD,
    ScaledToeplitz,
    SquareRoot,
    Strategy,
    check_strategy,
    inverse_square_root_coefs,
    square_root_coefs,
)
from dpmech.mechanism.strategy_costs import decoder_work, form_work
from dpmech.mechanism.truncation import Truncation
from dpmech.mechanism.workloads import Workload, check_workload

__all__ = [
    "BLT",
    "UNSTATED",
    "Adjacency",
    "BandedInverse",
    "BandedToeplitz",
    "ColumnNormalized",
    "Dense",
    "Diagonal",
    "EveryStep",
    "FixedDraw",
    "Identity",
    "InverseSquareRoot",
    "LambdaCGD",
    "Mechanism",
    "Participation",
    "Pattern",
    "PrivacyBudget",
    "ScaledToeplitz",
    "SquareRoot",
    "Strategy",
    "Truncation",
    "Unit",
    "Unstated",
    "Workload",
    "check_examples_per_user",
    "check_participation",
    "check_sampling_prob",
    "check_strategy",
    "check_workload",
    "decoder_norm",
    "decoder_row_norm",
    "decoder_work",
    "forget",
    "form_work",
    "inverse_square_root_coefs",
    "kinds",
    "last_iterate_error",
    "max_se",
    "mechanism_of",
    "needed_setting",
    "noise_cost",
    "noise_multiplier",
    "per_step_error",
    "register",
    "register_later",
    "rmse",
    "sensitivity",
    "sigma_use",
    "square_root_coefs",
    "workloads",
]
