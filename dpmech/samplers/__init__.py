"""Samplers: which examples take part at every step, exactly as a calibration assumes; numpy only."""

from dpmech.samplers.base import Sampler as Sampler
from dpmech.samplers.bins import BallsInBinsSampler as BallsInBinsSampler
from dpmech.samplers.choosing import sampler_for as sampler_for
from dpmech.samplers.lots import padded as padded
from dpmech.samplers.lots import shard as shard
from dpmech.samplers.poisson import CyclicPoissonSampler as CyclicPoissonSampler
from dpmech.samplers.poisson import PoissonSampler as PoissonSampler
from dpmech.samplers.sequential import SequentialSampler as SequentialSampler
from dpmech.samplers.tracker import ParticipationTracker as ParticipationTracker

__all__ = [
    "BallsInBinsSampler",
    "CyclicPoissonSampler",
    "ParticipationTracker",
    "PoissonSampler",
    "Sampler",
    "SequentialSampler",
    "padded",
    "sampler_for",
    "shard",
]
