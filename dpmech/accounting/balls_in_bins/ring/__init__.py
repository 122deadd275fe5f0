"""The deterministic bound: a dynamic programme on a ring that dominates the bins."""

from dpmech.accounting.balls_in_bins.ring.accountant import DeterministicAccountant

__all__ = ["DeterministicAccountant"]
