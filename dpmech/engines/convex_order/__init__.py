"""A deterministic bound for Gaussian mixtures by a cyclic dominating pair: dynamic program or transforms."""

from dpmech.engines.convex_order.accountant import DeterministicAccountant

__all__ = ["DeterministicAccountant"]
