"""Balls-in-Bins where the bins are independent and alike: the sum of their likelihood ratios on a lattice."""

from dpmech.accounting.balls_in_bins.independent.accountant import IndependentAccountant

__all__ = ["IndependentAccountant"]
