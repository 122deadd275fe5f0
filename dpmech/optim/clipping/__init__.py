"""Clipping: bound the norm of every example's gradient, and sum a batch."""

from dpmech.optim.clipping.batch import Batch
from dpmech.optim.clipping.clipped_sum import Accumulator, ClippedSum, NonFiniteGradientsWarning, clip_and_sum
from dpmech.optim.clipping.factored import (
    Factored,
    Intake,
    bias_gradients,
    factors_of,
    joined,
    matrix_shape,
    positions_of,
    prefers_factors,
)
from dpmech.optim.clipping.norms import Piece
from dpmech.optim.clipping.per_example import (
    MODES,
    ClippingMode,
    ExampleGradients,
    StandIn,
    clipped_gradients,
    coverable,
)
from dpmech.optim.clipping.styles import Blocks, Clipping, FlatClipping, PerLayerClipping, PerMatrixClipping
from dpmech.optim.clipping.vmapping import UnfollowedError, place_of, reentrant

__all__ = [
    "MODES",
    "Accumulator",
    "Batch",
    "Blocks",
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
    "StandIn",
    "UnfollowedError",
    "bias_gradients",
    "clip_and_sum",
    "clipped_gradients",
    "coverable",
    "factors_of",
    "joined",
    "matrix_shape",
    "place_of",
    "positions_of",
    "prefers_factors",
    "reentrant",
]
