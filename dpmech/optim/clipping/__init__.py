"""Clipping: bound the norm of every example's gradient, and sum a batch."""

from dpmech.optim.clipping.clipped_sum import Accumulator, ClippedSum, NonFiniteGradientsWarning, clip_and_sum
from dpmech.optim.clipping.factored import (
    Factored,
    Intake,
    Piece,
    bias_gradients,
    factors_of,
    joined,
    matrix_shape,
    positions_of,
    prefers_factors,
)
from dpmech.optim.clipping.per_example import (
    Batch,
    ClippingMode,
    ExampleGradients,
    clipped_gradients,
    coverable,
    spared_random_numbers,
)
from dpmech.optim.clipping.styles import Clipping, FlatClipping, PerLayerClipping, PerMatrixClipping

__all__ = [
    "Accumulator",
    "Batch",
    "ClippedSum",
    "Clipping",
    "ClippingMode",
    "ExampleGradients",
    "Factored",
    "FlatClipping",
    "Intake",
    "NonFiniteGradientsWarning",
    "PerLayerClipping",
    "PerMatrixClipping",
    "Piece",
    "bias_gradients",
    "clip_and_sum",
    "clipped_gradients",
    "coverable",
    "factors_of",
    "joined",
    "matrix_shape",
    "positions_of",
    "prefers_factors",
    "spared_random_numbers",
]
