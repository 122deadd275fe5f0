"""Sampling: an estimate of delta with its interval, and a bound with probability 1 - beta."""

from dpmech.accounting.balls_in_bins.sampling.certified_accountant import CertifiedAccountant
from dpmech.accounting.balls_in_bins.sampling.estimate import pilot_size
from dpmech.accounting.balls_in_bins.sampling.estimate_accountant import ImportanceAccountant
from dpmech.accounting.balls_in_bins.sampling.rough_sigma import ENTROPY, RoughSigma, RoughSizer

__all__ = ["ENTROPY", "CertifiedAccountant", "ImportanceAccountant", "RoughSigma", "RoughSizer", "pilot_size"]
