"""Update rules for private gradients, and their diagnostics."""

from dpmech.optim.rules.adam import AdamBC
from dpmech.optim.rules.base import SignSGD
from dpmech.optim.rules.denoiser import attach_denoiser, denoise_matrices
from dpmech.optim.rules.diagnostics import (
    NoiseShare,
    clamp_fraction,
    effective_degrees,
    logged_values,
    momentum_noise_ratios,
    muon_quality,
    noise_share,
)
from dpmech.optim.rules.muon import QUINTIC_COEFS, Muon, MuonScale, orthogonalize, taylor_coefs

__all__ = [
    "QUINTIC_COEFS",
    "AdamBC",
    "Muon",
    "MuonScale",
    "NoiseShare",
    "SignSGD",
    "attach_denoiser",
    "clamp_fraction",
    "denoise_matrices",
    "effective_degrees",
    "logged_values",
    "momentum_noise_ratios",
    "muon_quality",
    "noise_share",
    "orthogonalize",
    "taylor_coefs",
]
