"""Sampling schemes: who takes part when, the accountant, and the sampler, in one folder each."""

from dpmech.schemes.b_min_sep import MinSepSampler, MinSepSampling, min_sep_sampling
from dpmech.schemes.balls_in_bins import (
    BallsInBins,
    BallsInBinsSampler,
    FreshBallsInBins,
    FreshBallsInBinsSampler,
    UserBallsInBins,
    UserBallsInBinsSampler,
    accountant_in_turn,
    certified_accountant,
    check_bins,
    deterministic_accountant,
    epochs_begun,
    one_bin,
    user_balls_in_bins,
    users_in_fresh_bins,
)
from dpmech.schemes.cyclic_poisson import (
    CyclicPoisson,
    CyclicPoissonSampler,
    UserCyclicPoisson,
    UserCyclicPoissonSampler,
)
from dpmech.schemes.dispatch import (
    SCHEMES,
    Scheme,
    accountant_for,
    effective_method,
    method_among,
    unsampled_method,
)
from dpmech.schemes.fixed_order import FixedEpochs, MinSep, SequentialSampler, SingleParticipation, UserMinSep
from dpmech.schemes.fixed_size import FixedSizeLots, FixedSizeSampler
from dpmech.schemes.poisson import Poisson, PoissonSampler, UserPoisson, UserPoissonSampler
from dpmech.schemes.profiling import nodes_label, profile_for
from dpmech.schemes.truncated_poisson import TruncatedPoisson, TruncatedPoissonSampler, check_truncated

__all__ = [
    "SCHEMES",
    "BallsInBins",
    "BallsInBinsSampler",
    "CyclicPoisson",
    "CyclicPoissonSampler",
    "FixedEpochs",
    "FixedSizeLots",
    "FixedSizeSampler",
    "FreshBallsInBins",
    "FreshBallsInBinsSampler",
    "MinSep",
    "MinSepSampler",
    "MinSepSampling",
    "Poisson",
    "PoissonSampler",
    "Scheme",
    "SequentialSampler",
    "SingleParticipation",
    "TruncatedPoisson",
    "TruncatedPoissonSampler",
    "UserBallsInBins",
    "UserBallsInBinsSampler",
    "UserCyclicPoisson",
    "UserCyclicPoissonSampler",
    "UserMinSep",
    "UserPoisson",
    "UserPoissonSampler",
    "accountant_for",
    "accountant_in_turn",
    "certified_accountant",
    "check_bins",
    "check_truncated",
    "deterministic_accountant",
    "effective_method",
    "epochs_begun",
    "method_among",
    "min_sep_sampling",
    "nodes_label",
    "one_bin",
    "profile_for",
    "unsampled_method",
    "user_balls_in_bins",
    "users_in_fresh_bins",
]
