"""Sampling: an estimate of delta with its interval, and a bound with probability 1 - beta."""

from dpmech.accounting.balls_in_bins.sampling.adaptation import pilot_size
from dpmech.accounting.balls_in_bins.sampling.aims import FarAimError
from dpmech.accounting.balls_in_bins.sampling.blocks import draw_entropy
from dpmech.accounting.balls_in_bins.sampling.certified_accountant import CertifiedAccountant
from dpmech.accounting.balls_in_bins.sampling.curve_estimate import CurveEstimate, estimate_curve
from dpmech.accounting.balls_in_bins.sampling.estimate_accountant import ImportanceAccountant
from dpmech.accounting.balls_in_bins.sampling.rough_sigma import RoughSample, RoughSigma

__all__ = [
    "CertifiedAccountant",
    "CurveEstimate",
    "FarAimError",
    "ImportanceAccountant",
    "RoughSample",
    "RoughSigma",
    "draw_entropy",
    "estimate_curve",
    "pilot_size",
]
