"""Clipping: every example's gradient brought to its norm, and the sum of a lot."""

from dpmech.optim.clipping.clipped_sum import ClippedSum, clip_and_sum
from dpmech.optim.clipping.grad_samples import Intake
from dpmech.optim.clipping.lot_sum import Accumulator
from dpmech.optim.clipping.nonfinite import NonFiniteGradientsWarning
from dpmech.optim.clipping.per_example import clipped_gradients
from dpmech.optim.clipping.styles import Clipping, FlatClipping, PerLayerClipping, PerMatrixClipping

__all__ = [
    "Accumulator",
    "ClippedSum",
    "Clipping",
    "FlatClipping",
    "Intake",
    "NonFiniteGradientsWarning",
    "PerLayerClipping",
    "PerMatrixClipping",
    "clip_and_sum",
    "clipped_gradients",
]
