"""The SDE paper: noisy clipped gradients, and their signs, as stochastic differential equations."""

from dpmech.analysis.sde import bounds, directions, dynamics, sign, simulation, stationary, tuning

__all__ = ["bounds", "directions", "dynamics", "sign", "simulation", "stationary", "tuning"]
