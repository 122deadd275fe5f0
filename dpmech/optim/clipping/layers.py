"""Layers whose per-example gradients follow from what went in and from the gradient of what came out."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpmech.optim.clipping.factored import Factored, Piece

__all__ = [
    "bias_gradients",
    "factors_of",
    "has_factors",
    "joined",
    "matrix_shape",
    "positions_of",
    "prefers_factors",
]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Nanoseconds for one example on a core of a CPU, measured: for each value of a factor (in float64, for norms
# and sums), for each product of a Gram matrix, for each of its entries, for each product of the sum over
# positions, and for each value of a gradient that is formed (written, squared, added up).
_FACTOR, _GRAM, _ENTRY, _PRODUCT, _FORMED = 6.0, 0.1, 3.0, 0.06, 2.0
# From so many values on factors are taken at up to twice the time: gradients fill the memory.
_LARGE = 1 << 16


def has_factors(layer: nn.Module) -> bool:
    """Whether the gradients of a layer's weight are sums of outer products of its input and output.

    Exact classes alone, with their own forward: what a subclass computes, a parametrization, or a function
    that was put in the place of `forward`, cannot be known. Convolutions in
    groups or with another padding than zeros are left to autograd, and so are lookups that change their
    weight or count.
    """
    if "forward" in vars(layer) or "weight" not in layer._parameters:
        return False  # torch.nn.utils.weight_norm and prune compute the weight before every call
    if type(layer) is nn.Linear or _is_transposed(layer):
        return True
    if type(layer) is nn.Embedding:
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    if type(layer) in _CONVOLUTIONS:
        convolution: nn.modules.conv._ConvNd = layer  # type: ignore[assignment]  # one of the three
        return convolution.groups == 1 and convolution.padding_mode == "zeros"
    return False


def factors_of(layer: nn.Module, given: Tensor, gradient: Tensor) -> Piece:
    """What one call of a layer adds to the gradients of its weight.

    Args:
        layer: one that `has_factors`.
        given: its input, examples first.
        gradient: of the loss of each example in its output, examples first.
    """
    if isinstance(layer, nn.Embedding):
        right = _last(gradient)
        rows = given.reshape(right.shape[:2])
        if layer.padding_idx is not None:
            right = right.masked_fill((rows == layer.padding_idx)[:, :, None], 0.0)
        return Piece(rows.long(), right)
    outputs = _outputs(layer, gradient)
    if isinstance(layer, nn.modules.conv._ConvNd):
        return Piece(outputs, _unfolded(layer, given))
    return Piece(_last(given), outputs) if _is_transposed(layer) else Piece(outputs, _last(given))


def bias_gradients(layer: nn.Module, gradient: Tensor) -> Tensor:
    """What one call adds to the gradients of its bias, shape (examples, outputs)."""
    return _outputs(layer, gradient).sum(dim=1)


def positions_of(layer: nn.Module, shape: Sequence[int]) -> int:
    """Outer products that one call adds for an example whose output has that shape."""
    outputs = shape[-1 - len(layer.kernel_size)] if isinstance(layer, nn.modules.conv._ConvNd) else shape[-1]
    return math.prod(shape) // max(outputs, 1)


def matrix_shape(weight: Tensor) -> tuple[int, int]:
    """Rows and columns of a weight, as its factors have them."""
    return weight.shape[0], weight[0].numel()


def prefers_factors(positions: int, rows: int, columns: int) -> bool:
    """Whether factors cost less than a gradient of that shape, formed as a sum over so many positions.

    Depends on shapes alone, so that a run that goes on from a checkpoint decides as before.
    """
    sums = _PRODUCT * positions * rows * columns
    factors = (rows + columns) * (_FACTOR * positions + _GRAM * positions**2) + _ENTRY * positions**2 + sums
    formed = _FORMED * rows * columns + sums
    return factors <= formed * (2.0 if rows * columns >= _LARGE else 1.0)


def joined(pieces: Sequence[Piece], shape: torch.Size, *, factors: bool = True) -> Factored | Tensor:
    """The gradients of a weight of that shape as factors, or themselves where that costs less.

    Args:
        pieces: the uses.
        shape: of the weight.
        factors: whether factors are wanted at all.
    """
    positions, columns = sum(piece.right.shape[1] for piece in pieces), pieces[0].right.shape[2]
    if factors and prefers_factors(positions, math.prod(shape) // max(columns, 1), columns):
        return Factored(pieces, tuple(shape))
    return Factored(pieces, tuple(shape)).formed()


def _is_transposed(layer: nn.Module) -> bool:
    """Whether it is the linear layer of GPT-2 in transformers, whose weight has its inputs first."""
    kind = type(layer)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def _last(values: Tensor) -> Tensor:
    """Shape (examples, positions, values), whatever stands between."""
    return values.reshape(len(values), math.prod(values.shape[1:-1]), values.shape[-1])


def _outputs(layer: nn.Module, gradient: Tensor) -> Tensor:
    """Gradients in what a layer gives, shape (examples, positions, outputs)."""
    if isinstance(layer, nn.modules.conv._ConvNd):
        return _last(gradient.movedim(-1 - len(layer.kernel_size), -1))
    return _last(gradient)


def _unfolded(layer: nn.modules.conv._ConvNd, given: Tensor) -> Tensor:
    """What every position of the output saw, shape (examples, positions, channels times kernel)."""
    count = len(layer.kernel_size)
    images = given.flatten(0, -2 - count)  # an example may consist of several
    windows = nn.functional.pad(images, _padding(layer))
    steps = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    for dim, (size, stride, gap) in enumerate(steps, start=2):
        # The window's own places come last: (images, channels, *positions, *kernel).
        windows = windows.unfold(dim, (size - 1) * gap + 1, stride)[..., ::gap]
    order = (0, *range(2, 2 + count), 1, *range(2 + count, 2 + 2 * count))
    positions = math.prod(given.shape[1 : -1 - count]) * math.prod(windows.shape[2 : 2 + count])
    return windows.permute(order).reshape(
        len(given), positions, images.shape[1] * math.prod(layer.kernel_size)
    )


def _padding(layer: nn.modules.conv._ConvNd) -> list[int]:
    """Zeros before and after, the last dimension first, as `pad` takes them."""
    if layer.padding == "valid":
        return [0] * (2 * len(layer.kernel_size))
    if layer.padding == "same":
        totals = [gap * (size - 1) for size, gap in zip(layer.kernel_size, layer.dilation, strict=True)]
        return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return [side for pad in reversed(layer.padding) for side in (pad, pad)]  # type: ignore[misc]  # integers here
