"""Samplers: which examples take part at every step, exactly as a calibration assumes; numpy only."""

from dpmech.drawing import Contributions, Sampler, discrete_gaussian
from dpmech.samplers.choice import padded, sampler_for, shard
from dpmech.samplers.shared_contributions import SharedContributions
from dpmech.samplers.tracker import ParticipationTracker
from dpmech.schemes.b_min_sep import BMinSepSampler
from dpmech.schemes.balls_in_bins import BallsInBinsSampler
from dpmech.schemes.cyclic_poisson import CyclicPoissonSampler
from dpmech.schemes.fixed_order import SequentialSampler
from dpmech.schemes.fixed_size import FixedSizeSampler
from dpmech.schemes.poisson import PoissonSampler, TruncatedPoissonSampler
from dpmech.schemes.random_allocation import RandomAllocationSampler

__all__ = [
    "BMinSepSampler",
    "BallsInBinsSampler",
    "Contributions",
    "CyclicPoissonSampler",
    "FixedSizeSampler",
    "ParticipationTracker",
    "PoissonSampler",
    "RandomAllocationSampler",
    "Sampler",
    "SequentialSampler",
    "SharedContributions",
    "TruncatedPoissonSampler",
    "discrete_gaussian",
    "padded",
    "sampler_for",
    "shard",
]
