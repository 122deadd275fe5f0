"""The SDE paper: noisy clipped gradients, and their signs, as stochastic differential equations."""

from dpmech.analysis.sde.bounds import sgd_loss_bound, sign_loss_bound
from dpmech.analysis.sde.dynamics import GradientNoise, clipped_gain, sgd_diffusion, sgd_drift
from dpmech.analysis.sde.sign import sign_diffusion, sign_drift
from dpmech.analysis.sde.simulation import euler_maruyama
from dpmech.analysis.sde.stationary import Moments, sgd_moments, sign_moments

__all__ = [
    "GradientNoise",
    "Moments",
    "clipped_gain",
    "euler_maruyama",
    "sgd_diffusion",
    "sgd_drift",
    "sgd_loss_bound",
    "sgd_moments",
    "sign_diffusion",
    "sign_drift",
    "sign_loss_bound",
    "sign_moments",
]
