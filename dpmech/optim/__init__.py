"""Private training with torch: correlated noise, clipping, and update rules that use the noise variance.

Requires torch (the extra `torch`). `PrivateOptimizer` makes any torch optimizer private under a
certificate; `NoiseStream` is its source of noise.
"""

import importlib.util as _util

from dpmech.certificates import AdaptiveClip
from dpmech.exceptions import MissingDependencyError as _MissingDependencyError

if _util.find_spec("torch") is None:
    raise _MissingDependencyError("torch", "torch")

from dpmech.optim.canaries import CanaryData, CanaryWatch, NoiseMeter
from dpmech.optim.clipping import (
    ClippedSum,
    Clipping,
    FlatClipping,
    NonFiniteGradientsWarning,
    PerLayerClipping,
    PerMatrixClipping,
    clipped_gradients,
)
from dpmech.optim.noise import LatticeLoss, NoiseMode, NoiseStream, lattice_loss
from dpmech.optim.opacus_registry import register_opacus_accountant
from dpmech.optim.private_optimizer import ExecutedSteps, PrivateOptimizer
from dpmech.optim.rules import (
    QUINTIC_COEFS,
    AdamBC,
    Muon,
    MuonScale,
    NoiseShare,
    SignSGD,
    attach_denoiser,
    clamp_fraction,
    denoise_matrices,
    effective_degrees,
    momentum_noise_ratios,
    muon_quality,
    noise_share,
    orthogonalize,
    taylor_coefs,
)
from dpmech.optim.runs import (
    BatchOptimizer,
    BetterParameterWarning,
    MeanOverViews,
    PerExampleModel,
    PrivateLoader,
    UserDataset,
    UserExamples,
    fix,
    load_checkpoint,
    make_private,
    make_private_with_epsilon,
    save_checkpoint,
)

__all__ = [
    "QUINTIC_COEFS",
    "AdamBC",
    "AdaptiveClip",
    "BatchOptimizer",
    "BetterParameterWarning",
    "CanaryData",
    "CanaryWatch",
    "ClippedSum",
    "Clipping",
    "ExecutedSteps",
    "FlatClipping",
    "LatticeLoss",
    "MeanOverViews",
    "Muon",
    "MuonScale",
    "NoiseMeter",
    "NoiseMode",
    "NoiseShare",
    "NoiseStream",
    "NonFiniteGradientsWarning",
    "PerExampleModel",
    "PerLayerClipping",
    "PerMatrixClipping",
    "PrivateLoader",
    "PrivateOptimizer",
    "SignSGD",
    "UserDataset",
    "UserExamples",
    "attach_denoiser",
    "clamp_fraction",
    "clipped_gradients",
    "denoise_matrices",
    "effective_degrees",
    "fix",
    "lattice_loss",
    "load_checkpoint",
    "make_private",
    "make_private_with_epsilon",
    "momentum_noise_ratios",
    "muon_quality",
    "noise_share",
    "orthogonalize",
    "register_opacus_accountant",
    "save_checkpoint",
    "taylor_coefs",
]
