"""Balls-in-Bins: every example in one random bin; bin i is step i of every epoch."""

from dpmech.schemes.balls_in_bins.participation import BallsInBins
from dpmech.schemes.balls_in_bins.sampler import BallsInBinsSampler

__all__ = ["BallsInBins", "BallsInBinsSampler"]
