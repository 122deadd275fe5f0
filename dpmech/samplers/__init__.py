"""Samplers: which examples take part at every step, exactly as a calibration assumes; numpy only."""

from dpmech.drawing import Contributions, Sampler, discrete_gaussian
from dpmech.samplers.choice import SAMPLERS, sampler_for
from dpmech.samplers.shared_contributions import SharedContributions
from dpmech.samplers.sharing import padded, shard
from dpmech.samplers.tracker import ParticipationTracker
from dpmech.schemes import (
    BallsInBinsSampler,
    CyclicPoissonSampler,
    FixedSizeSampler,
    FreshBallsInBinsSampler,
    MinSepSampler,
    PoissonSampler,
    SequentialSampler,
    TruncatedPoissonSampler,
    UserBallsInBinsSampler,
    UserCyclicPoissonSampler,
    UserPoissonSampler,
)

__all__ = [
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
    "padded",
    "sampler_for",
    "shard",
]
