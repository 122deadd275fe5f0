"""Samplers: which examples take part at every step, exactly as a calibration assumes; numpy only."""

from dpmech.samplers.balls_in_bins import BallsInBinsSampler, FreshBallsInBinsSampler, UserBallsInBinsSampler
from dpmech.samplers.base import Sampler
from dpmech.samplers.choice import SAMPLERS, sampler_for
from dpmech.samplers.contributions import Contributions
from dpmech.samplers.discrete_gaussian import discrete_gaussian
from dpmech.samplers.fixed import FixedSizeSampler
from dpmech.samplers.min_sep import MinSepSampler
from dpmech.samplers.poisson import (
    CyclicPoissonSampler,
    PoissonSampler,
    UserCyclicPoissonSampler,
    UserPoissonSampler,
)
from dpmech.samplers.secure_words import CIPHER, keystream
from dpmech.samplers.sequential import SequentialSampler
from dpmech.samplers.shared_contributions import SharedContributions
from dpmech.samplers.sharing import padded, shard
from dpmech.samplers.tracker import ParticipationTracker
from dpmech.samplers.truncated import TruncatedPoissonSampler

__all__ = [
    "CIPHER",
    "SAMPLERS",
    "BallsInBinsSampler",
    "Contributions",
    "CyclicPoissonSampler",
    "FixedSizeSampler",
    "FreshBallsInBinsSampler",
    "MinSepSampler",
    "ParticipationTracker",
    "PoissonSampler",
    "Sampler",
    "SequentialSampler",
    "SharedContributions",
    "TruncatedPoissonSampler",
    "UserBallsInBinsSampler",
    "UserCyclicPoissonSampler",
    "UserPoissonSampler",
    "discrete_gaussian",
    "keystream",
    "padded",
    "sampler_for",
    "shard",
]
