"""Private training with torch: correlated noise, clipping, and update rules that know the noise they get.

Needs torch (from a checkout: `pip install '.[torch]'`). `PrivateOptimizer` makes any torch optimizer private
under a certificate; `NoiseStream` is its source of noise.
"""

import importlib.util as _util
from types import ModuleType as _ModuleType

from dpmech.exceptions import MissingDependencyError as _MissingDependencyError

if _util.find_spec("torch") is None:
    raise _MissingDependencyError("torch", "torch")

from dpmech.optim.adam import AdamBC as AdamBC
from dpmech.optim.canaries import CanaryData as CanaryData
from dpmech.optim.canary_watch import CanaryWatch as CanaryWatch
from dpmech.optim.checkpoints import load_checkpoint as load_checkpoint
from dpmech.optim.checkpoints import save_checkpoint as save_checkpoint
from dpmech.optim.clipped_sum import ClippedSum as ClippedSum
from dpmech.optim.clipping import Clipping as Clipping
from dpmech.optim.clipping import FlatClipping as FlatClipping
from dpmech.optim.clipping import PerLayerClipping as PerLayerClipping
from dpmech.optim.clipping import PerMatrixClipping as PerMatrixClipping
from dpmech.optim.correlation import NoiseMode as NoiseMode
from dpmech.optim.denoise import attach_denoiser as attach_denoiser
from dpmech.optim.denoise import denoise_matrices as denoise_matrices
from dpmech.optim.loaders import LotSampler as LotSampler
from dpmech.optim.loaders import PrivateLoader as PrivateLoader
from dpmech.optim.lot_optimizer import LotOptimizer as LotOptimizer
from dpmech.optim.making import make_private as make_private
from dpmech.optim.momentum_noise import momentum_noise_ratios as momentum_noise_ratios
from dpmech.optim.muon import Muon as Muon
from dpmech.optim.muon import MuonScale as MuonScale
from dpmech.optim.newton_schulz import QUINTIC_COEFS as QUINTIC_COEFS
from dpmech.optim.newton_schulz import orthogonalize as orthogonalize
from dpmech.optim.newton_schulz import taylor_coefs as taylor_coefs
from dpmech.optim.noise import NoiseStream as NoiseStream
from dpmech.optim.nonfinite import NonFiniteGradientsWarning as NonFiniteGradientsWarning
from dpmech.optim.per_example import clipped_gradients as clipped_gradients
from dpmech.optim.private import PrivateOptimizer as PrivateOptimizer
from dpmech.optim.private_model import PerExampleModel as PerExampleModel
from dpmech.optim.probes import Alignment as Alignment
from dpmech.optim.probes import NoiseShare as NoiseShare
from dpmech.optim.probes import clamp_fraction as clamp_fraction
from dpmech.optim.probes import denoiser_improvement as denoiser_improvement
from dpmech.optim.probes import effective_degrees as effective_degrees
from dpmech.optim.probes import muon_alignment as muon_alignment
from dpmech.optim.probes import muon_quality as muon_quality
from dpmech.optim.probes import noise_share as noise_share
from dpmech.optim.record import ExecutedSteps as ExecutedSteps
from dpmech.optim.sign import SignSGD as SignSGD

__all__ = [
    name for name, value in vars().items() if not name.startswith("_") and not isinstance(value, _ModuleType)
]
