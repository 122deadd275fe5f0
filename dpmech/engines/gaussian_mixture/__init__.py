"""Mixtures of Gaussians against one Gaussian: closed-form bounds and importance sampling."""

from dpmech.engines.gaussian_mixture.all_bins_tilt import CollectiveParts
from dpmech.engines.gaussian_mixture.allocation_chain import AllocationGram, allocation_gram
from dpmech.engines.gaussian_mixture.certified_accountant import CertifiedAccountant
from dpmech.engines.gaussian_mixture.chain_mixtures import ChainRemove
from dpmech.engines.gaussian_mixture.chains import ChainGram, chain_gram
from dpmech.engines.gaussian_mixture.dominating_pair import (
    bin_gram,
    check_nonnegative,
    folded,
    lower_gram,
    lower_profiles,
    ring_profile,
    sampling_gram,
)
from dpmech.engines.gaussian_mixture.estimate_accountant import ImportanceAccountant
from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal
from dpmech.engines.gaussian_mixture.moments import (
    ORDERS,
    AllocationRenyiAccountant,
    half_space_add,
    log_add_bound,
    log_tail_factor,
)
from dpmech.engines.gaussian_mixture.pilots import FarAimError, pilot_size
from dpmech.engines.gaussian_mixture.points import AddPoint, LiftedGroup, PointGroup, log_mean_exp
from dpmech.engines.gaussian_mixture.rough_sigma import RoughSample, RoughSigma
from dpmech.engines.gaussian_mixture.samples import draw_entropy
from dpmech.engines.gaussian_mixture.streams import Stage, stage_seed
from dpmech.engines.gaussian_mixture.user_gram import UserGram, lower_tuple_gram, tuple_gram

__all__ = [
    "ORDERS",
    "AddPoint",
    "AddProposal",
    "AllocationGram",
    "AllocationRenyiAccountant",
    "BinGram",
    "CertifiedAccountant",
    "ChainGram",
    "ChainRemove",
    "CollectiveParts",
    "FarAimError",
    "ImportanceAccountant",
    "LiftedGroup",
    "PointGroup",
    "RemoveProposal",
    "RoughSample",
    "RoughSigma",
    "Stage",
    "UserGram",
    "allocation_gram",
    "bin_gram",
    "chain_gram",
    "check_nonnegative",
    "draw_entropy",
    "folded",
    "half_space_add",
    "log_add_bound",
    "log_mean_exp",
    "log_tail_factor",
    "lower_gram",
    "lower_profiles",
    "lower_tuple_gram",
    "pilot_size",
    "ring_profile",
    "sampling_gram",
    "stage_seed",
    "tuple_gram",
]
