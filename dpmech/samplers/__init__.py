"""Samplers: which examples take part at every step, exactly as a calibration assumes; numpy only."""

from dpmech.samplers.balls_in_bins import BallsInBinsSampler, FreshBallsInBinsSampler
from dpmech.samplers.base import Sampler
from dpmech.samplers.choice import SAMPLERS, sampler_for
from dpmech.samplers.contributions import Contributions
from dpmech.samplers.fixed import FixedSizeSampler
from dpmech.samplers.min_sep import MinSepSampler
from dpmech.samplers.poisson import CyclicPoissonSampler, PoissonSampler, UserPoissonSampler
from dpmech.samplers.sequential import SequentialSampler
from dpmech.samplers.sharing import padded, shard
from dpmech.samplers.tracker import ParticipationTracker
from dpmech.samplers.truncated import TruncatedPoissonSampler

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
    "TruncatedPoissonSampler",
    "UserPoissonSampler",
    "padded",
    "sampler_for",
    "shard",
]
