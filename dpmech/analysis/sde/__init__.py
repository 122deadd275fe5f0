"""The SDE paper: noisy clipped gradients, and their signs, as stochastic differential equations."""

from dpmech.analysis.sde import bounds, dynamics, estimates, stationary

__all__ = ["bounds", "dynamics", "estimates", "stationary"]
