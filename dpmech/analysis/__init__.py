"""The formulas of the papers as pure functions of numpy arrays: for a researcher to use and to check.

Nothing here enters a privacy guarantee. Every function says whether it is exact, a bound or an estimate,
and names the statement it computes; `python -m verification` holds each statement against an oracle.
A folder a paper.
"""

from dpmech.analysis.muon import heat, newton_schulz
from dpmech.analysis.sde import (
    GradientNoise,
    Moments,
    clipped_gain,
    euler_maruyama,
    sgd_diffusion,
    sgd_drift,
    sgd_loss_bound,
    sgd_moments,
    sign_diffusion,
    sign_drift,
    sign_loss_bound,
    sign_moments,
)
from dpmech.analysis.spectral import denoising, singular_values

__all__ = [
    "GradientNoise",
    "Moments",
    "clipped_gain",
    "denoising",
    "euler_maruyama",
    "heat",
    "newton_schulz",
    "sgd_diffusion",
    "sgd_drift",
    "sgd_loss_bound",
    "sgd_moments",
    "sign_diffusion",
    "sign_drift",
    "sign_loss_bound",
    "sign_moments",
    "singular_values",
]
