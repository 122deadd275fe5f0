"""The SDE paper: noisy clipped gradients, and their signs, as stochastic differential equations."""

from dpmech.analysis.sde import bounds, dynamics, stationary
from dpmech.analysis.sde import bounds as tuning
from dpmech.analysis.sde import dynamics as directions
from dpmech.analysis.sde import dynamics as sign
from dpmech.analysis.sde import dynamics as simulation

__all__ = ["bounds", "directions", "dynamics", "sign", "simulation", "stationary", "tuning"]
