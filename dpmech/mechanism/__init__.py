"""What runs: a strategy, who takes part when, between which datasets; sensitivities and errors."""

from dpmech.mechanism import workloads
from dpmech.mechanism.budget import Adjacency, PrivacyBudget, Unit
from dpmech.mechanism.noise_cost import noise_cost
from dpmech.mechanism.objectives import (
    decoder_norm,
    decoder_row_norm,
    last_iterate_error,
    max_se,
    per_step_error,
    rmse,
)
from dpmech.mechanism.participation import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedEpochs,
    MinSep,
    Participation,
    Pattern,
    Poisson,
    SingleParticipation,
    check_participation,
)
from dpmech.mechanism.sensitivities import sensitivity
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
from dpmech.mechanism.workloads import Workload, check_workload

__all__ = [
    "BLT",
    "Adjacency",
    "BallsInBins",
    "BandedInverse",
    "BandedToeplitz",
    "ColumnNormalized",
    "CyclicPoisson",
    "Dense",
    "Diagonal",
    "EveryStep",
    "FixedEpochs",
    "Identity",
    "InverseSquareRoot",
    "LambdaCGD",
    "MinSep",
    "Participation",
    "Pattern",
    "Poisson",
    "PrivacyBudget",
    "ScaledToeplitz",
    "SingleParticipation",
    "SquareRoot",
    "Strategy",
    "Unit",
    "Workload",
    "check_participation",
    "check_strategy",
    "check_workload",
    "decoder_norm",
    "decoder_row_norm",
    "decoder_work",
    "form_work",
    "inverse_square_root_coefs",
    "last_iterate_error",
    "max_se",
    "noise_cost",
    "per_step_error",
    "rmse",
    "sensitivity",
    "square_root_coefs",
    "workloads",
]
