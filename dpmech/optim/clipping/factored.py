"""Factored: per-example gradients of a weight as sums of outer products, and the layers that support them."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.optim.clipping.norms import Piece, has_fast_float64, squared_norms
from dpmech.optim.deferred import Deferred
from dpmech.optim.processes import local_part
from dpmech.optim.repeatable import in_fixed_order

# Largest number of float64 values held at once: little on CPUs, for their caches; elsewhere few calls matter.
_AT_ONCE = {"cpu": 1 << 21}
_AT_ONCE_ELSEWHERE = 1 << 25


@dataclasses.dataclass(frozen=True, eq=False)
class Factored:
    """Per-example gradients of one weight, as sums over its uses.

    Norms and sums are computed from the same factors, so that the added gradient is the clipped one: sums in
    float64, norms as in `squared_norms`. In float32, without what it adds, a sum over positions with
    cancellation could give norms that are too small by any factor.

    Args:
        pieces: the uses; all have the rows and columns of the weight.
        shape: of the weight; rows times columns values.
    """

    pieces: Sequence[Piece]
    shape: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        """Device of the factors."""
        return self.pieces[0].right.device

    @property
    def dtypes(self) -> set[torch.dtype]:
        """Of the factors that are not row numbers."""
        factors = [factor for piece in self.pieces for factor in (piece.left, piece.right)]
        return {factor.dtype for factor in factors if factor.is_floating_point()}

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.pieces[0].right)

    def formed(self) -> Tensor:
        """The gradients as a tensor of shape (examples, *shape)."""
        parts = []
        for piece in self.pieces:
            if piece.looks_up:
                part = piece.right.new_zeros(len(piece.right), self.shape[0], piece.right.shape[2])
                rows = piece.left[:, :, None].expand_as(piece.right)
                with in_fixed_order(self.device):
                    part.scatter_add_(1, rows, piece.right)
            else:
                part = piece.left.to(piece.right.dtype).mT @ piece.right
            parts.append(part.reshape(len(part), *self.shape))
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)

    def squares(self) -> Tensor:
        """Upper bounds on the squared norms, float64, shape (examples,); non-finite for non-finite gradients.

        They exceed the squared norms by at most 2^-30 times the squared sum over the pieces of |left| |right|
        (Frobenius norms), or by the rounding error of float64 if many positions make it larger.
        """
        positions = max(piece.right.shape[1] for piece in self.pieces)
        runs = self._runs(max(positions**2, self._factor_size()))  # of Gram matrices
        parts = [squared_norms([piece.picked(rows) for piece in self.pieces]) for rows in runs]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=self.device)

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The sum over examples of factors[i] times the gradient of example i, float64.

        Args:
            factors: float64, shape (examples,).
            kept: mask of the examples to include, boolean; None for all. Others may have any values: they are
                replaced by zeros, not removed, for which the host would have to read their number.
        """
        total: Tensor | None = None
        for run in self._runs(self._factor_size()):
            weight = factors[run][:, None, None]
            for one in self.pieces:
                piece = one.picked(run)
                if kept is not None:
                    piece = piece.zeroed(~kept[run])
                right = (piece.right * weight).flatten(0, 1)
                if not piece.looks_up:
                    left = piece.left.flatten(0, 1).T
                    total = left @ right if total is None else total.addmm_(left, right)
                    continue
                total = self._zeros() if total is None else total
                with in_fixed_order(self.device):
                    total.index_add_(0, piece.left.flatten(), right)
        return (self._zeros() if total is None else total).view(self.shape)

    def _zeros(self) -> Tensor:
        columns = self.pieces[0].right.shape[2]
        rows = math.prod(self.shape) // max(columns, 1)
        return torch.zeros(rows, columns, dtype=torch.float64, device=self.device)

    def _factor_size(self) -> int:
        """Number of values in the factors of one example."""
        return max(piece.right.numel() + piece.left.numel() for piece in self.pieces) // max(len(self), 1)

    def _runs(self, values: int) -> Iterator[slice]:
        """Examples in runs that fit into memory, given the number of values per example."""
        at_once = _AT_ONCE.get(self.device.type, _AT_ONCE_ELSEWHERE)
        step = max(at_once // max(values, 1), 1)
        for start in range(0, len(self), step):
            yield slice(start, min(start + step, len(self)))


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclasses.dataclass(frozen=True)
class _Costs:
    """Time of parts of a gradient, in any unit: only ratios matter.

    Attributes:
        factor: per value of a factor, for norms and sums.
        gram: per product of a Gram matrix.
        entry: per entry of it.
        summed: per product of the sum over positions and examples.
        product: per product of a formed gradient.
        formed: per value of one (written, squared, added).
    """

    factor: float
    gram: float
    entry: float
    summed: float
    product: float
    formed: float


# Nanoseconds on one CPU core, measured. Picoseconds on GPUs, estimated from their rates and not measured, for
# which `make_private` times the choices: 50 bytes a value of a factor and 28 of a gradient at 3.3 TB/s,
# products at 60 TFLOPS; and at 1 TB/s, 80 TFLOPS and 1.3 in float64.
_ON_CPU = _Costs(factor=6.0, gram=0.1, entry=3.0, summed=0.06, product=0.06, formed=2.0)
_ON_GPU = _Costs(factor=15.0, gram=0.033, entry=12.0, summed=0.033, product=0.033, formed=8.5)
_WITH_SLOW_FLOAT64 = _Costs(factor=50.0, gram=1.5, entry=40.0, summed=1.5, product=0.024, formed=30.0)
# From this number of values factors may take twice the time, since gradients would fill the memory.
_LARGE = 1 << 16


def has_factors(layer: nn.Module) -> bool:
    """Whether the gradients of a layer's weight are sums of outer products of its input and output.

    Only exact classes with their original forward: the computation of a subclass, a parametrization, or a
    replaced `forward` is unknown. Convolutions with groups or with padding other than zeros are left to
    autograd, and so are embeddings that change or rescale their weight.
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
    """The contribution of one call of a layer to the gradients of its weight.

    Args:
        layer: a layer for which `has_factors` holds.
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
    """The contribution of one call to the gradients of its bias, shape (examples, outputs)."""
    return _outputs(layer, gradient).sum(dim=1)


def positions_of(layer: nn.Module, shape: Sequence[int]) -> int:
    """Number of outer products added by one call for an example with this output shape."""
    outputs = shape[-1 - len(layer.kernel_size)] if isinstance(layer, nn.modules.conv._ConvNd) else shape[-1]
    return math.prod(shape) // max(outputs, 1)


def matrix_shape(weight: Tensor) -> tuple[int, int]:
    """Rows and columns of a weight, as in its factors."""
    return weight.shape[0], weight[0].numel()


def prefers_factors(
    positions: int, rows: int, columns: int, device: torch.device, factor_cost: float = 1.0
) -> bool:
    """Whether factors are cheaper than a gradient of this shape, computed as a sum over `positions`.

    Depends only on shapes, the kind of device and `factor_cost`, so that a resumed run makes the same choice.

    Args:
        positions: number of outer products that are added.
        rows: of the weight as a matrix.
        columns: of the weight as a matrix.
        device: where they are computed.
        factor_cost: the cost of factors as a multiple of its estimate, at least 0.
    """
    costs, values = _costs_on(device), rows * columns
    products = costs.gram * positions**2 + costs.factor * positions
    factors = (rows + columns) * products + costs.entry * positions**2 + costs.summed * positions * values
    formed = (costs.formed + costs.product * positions) * values
    return factor_cost * factors <= formed * (2.0 if values >= _LARGE else 1.0)


@functools.cache
def _costs_on(device: torch.device) -> _Costs:
    if device.type != "cuda":
        return _ON_CPU
    return _ON_GPU if has_fast_float64(device) else _WITH_SLOW_FLOAT64


def joined(pieces: Sequence[Piece], shape: torch.Size, *, factors: bool = True) -> Factored | Tensor:
    """The gradients of a weight of this shape as factors, or as a tensor if that is cheaper."""
    positions, columns = sum(piece.right.shape[1] for piece in pieces), pieces[0].right.shape[2]
    rows, device = math.prod(shape) // max(columns, 1), pieces[0].right.device
    if factors and prefers_factors(positions, rows, columns, device):
        return Factored(pieces, tuple(shape))
    return Factored(pieces, tuple(shape)).formed()


def _is_transposed(layer: nn.Module) -> bool:
    """Whether it is the linear layer of GPT-2 in transformers, whose weight has its inputs first."""
    kind = type(layer)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def _last(values: Tensor) -> Tensor:
    """Reshape to (examples, positions, values)."""
    return values.reshape(len(values), math.prod(values.shape[1:-1]), values.shape[-1])


def _outputs(layer: nn.Module, gradient: Tensor) -> Tensor:
    """Gradients of a layer's outputs, shape (examples, positions, outputs)."""
    if isinstance(layer, nn.modules.conv._ConvNd):
        return _last(gradient.movedim(-1 - len(layer.kernel_size), -1))
    return _last(gradient)


def _unfolded(layer: nn.modules.conv._ConvNd, given: Tensor) -> Tensor:
    """The input window of every output position, shape (examples, positions, channels times kernel)."""
    count = len(layer.kernel_size)
    images = given.flatten(0, -2 - count)  # an example may contain several images
    windows = nn.functional.pad(images, _padding(layer))
    steps = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    for dim, (size, stride, gap) in enumerate(steps, start=2):
        # Positions within the window come last: (images, channels, *positions, *kernel).
        windows = windows.unfold(dim, (size - 1) * gap + 1, stride)[..., ::gap]
    order = (0, *range(2, 2 + count), 1, *range(2 + count, 2 + 2 * count))
    positions = math.prod(given.shape[1 : -1 - count]) * math.prod(windows.shape[2 : 2 + count])
    return windows.permute(order).reshape(
        len(given), positions, images.shape[1] * math.prod(layer.kernel_size)
    )


def _padding(layer: nn.modules.conv._ConvNd) -> list[int]:
    """Zeros before and after, the last dimension first, as for `pad`."""
    if layer.padding == "valid":
        return [0] * (2 * len(layer.kernel_size))
    if layer.padding == "same":
        totals = [gap * (size - 1) for size, gap in zip(layer.kernel_size, layer.dilation, strict=True)]
        return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return [side for pad in reversed(layer.padding) for side in (pad, pad)]  # type: ignore[misc]  # integers here


class Intake:
    """Removes `grad_sample` from the parameters, and refuses gradients that would bypass clipping or noise.

    Args:
        trained: parameters that get noise.
        frozen: parameters of the optimizer that did not require gradients when it was wrapped.
    """

    def __init__(self, trained: Sequence[Tensor], frozen: Sequence[Tensor]) -> None:
        self._trained = trained
        self._frozen = frozen
        self._own: list[tuple[int, int] | None] = []
        # Earlier gradients, for instance of an earlier private run, are never read: steps overwrite them.
        self.note_own()

    def take(self, examples: int | None, deferred: Deferred) -> list[Tensor | Factored | None]:
        """Per-example gradients of the trained parameters, or their factors, removed from them.

        Shape (examples, ...). None for a parameter without: its gradient is zero for every example.

        Args:
            examples: number of different examples in the gradients; None for one per row, if every
                parameter has a single tensor.
            deferred: takes the last of the checks.

        Raises:
            UnsupportedCombinationError: if a frozen parameter has a gradient, or a trained one has one
                without per-example gradients, or one has those of several backward passes and `examples`
                is None.
            InvalidParameterError: on a grad_sample of the wrong shape, or of another number of examples.
        """
        for index, param in enumerate(self._frozen):
            given = param.grad is not None or getattr(param, "grad_sample", None) is not None
            if given or param.requires_grad:
                what = "received a gradient" if given else "requires gradients now"
                raise UnsupportedCombinationError(
                    f"frozen parameter {index}, of shape {tuple(param.shape)}, {what}: it would be trained "
                    "without noise, or not at all",
                    supported="parameters that require gradients when PrivateOptimizer is built; to train "
                    "some of them later, freeze them after that",
                )
        parts = [_grad_sample(index, param) for index, param in enumerate(self._trained)]
        samples = _rows(parts, examples)
        suspects = [
            index
            for index, (param, sample) in enumerate(zip(self._trained, samples, strict=True))
            if sample is None and param.grad is not None and _identity(param.grad) != self._own[index]
        ]
        if suspects:
            self._refuse_foreign(suspects, deferred)
        for param, sample in zip(self._trained, samples, strict=True):
            if sample is not None:
                param.grad_sample = None  # type: ignore[attr-defined]  # as Opacus does
                param.grad = None
        return samples

    def clear(self) -> None:
        """Discard per-example gradients."""
        for param in self._trained:
            if getattr(param, "grad_sample", None) is not None:
                param.grad_sample = None  # type: ignore[attr-defined]  # as Opacus does

    def leave_zeros(self) -> None:
        """Give a parameter a gradient of zeros if none has one: clip_grad_value_ of torch fails then."""
        if all(param.grad is None for param in self._trained):
            index = min(range(len(self._trained)), key=lambda place: self._trained[place].numel())
            param = self._trained[index]
            param.grad = torch.zeros_like(param)
            self._own[index] = _identity(param.grad)

    def forget_own(self) -> None:
        """Remove the noted gradients that are still on the parameters."""
        for index, param in enumerate(self._trained):
            if self._own[index] is not None and _identity(param.grad) == self._own[index]:
                param.grad = None
        self._own = [None] * len(self._trained)

    def note_own(self) -> None:
        """Note the current gradients of the parameters, which are then accepted."""
        self._own = [_identity(param.grad) for param in self._trained]

    def _refuse_foreign(self, suspects: Sequence[int], deferred: Deferred) -> None:
        """Refuse gradients, other than zeros, that are neither per example nor of an earlier step."""
        grads = [local_part(grad) for index in suspects if (grad := self._trained[index].grad) is not None]
        device = grads[0].device
        flags = torch.stack([torch.any(grad != 0).to(device) for grad in grads]).double()
        shapes = [tuple(self._trained[index].shape) for index in suspects]

        def check(flagged: list[float]) -> None:
            for index, shape, flag in zip(suspects, shapes, flagged, strict=True):
                if flag:
                    raise UnsupportedCombinationError(
                        f"parameter {index}, of shape {shape}, has a gradient but no per-example gradients "
                        "(grad_sample): the contribution of one example is not bounded",
                        supported="grad_sample on every parameter (Opacus' GradSampleModule), "
                        "clipped_gradients, or ClippedSum.from_grads if the gradients are sums of clipped "
                        "ones; after make_private(loss=...) model.backward(inputs, targets) instead of "
                        "loss.backward(); other calls of the model under torch.no_grad(); no "
                        "clip_grad_norm_ or clip_grad_value_, since the optimizer clips; no gradient "
                        "checkpointing",
                    )

        deferred.add(flags, check)


def _identity(grad: Tensor | None) -> tuple[int, int] | None:
    return None if grad is None else (local_part(grad).data_ptr(), grad._version)


def _grad_sample(index: int, param: Tensor) -> list[Tensor | Factored] | None:
    """The per-example gradients that backward passes left on a parameter: one tensor each."""
    value = getattr(param, "grad_sample", None)
    if value is None:
        return None
    parts = list(value) if isinstance(value, list | tuple) else [value]
    for part in parts:
        if isinstance(part, Factored) and part.shape == tuple(param.shape):
            continue
        if not isinstance(part, Tensor) or part.shape[1:] != param.shape or part.ndim != param.ndim + 1:
            shown = tuple(part.shape) if isinstance(part, Tensor) else part
            raise InvalidParameterError(
                f"grad_sample of parameter {index}", shown, f"of shape (examples, *{tuple(param.shape)})"
            )
    return parts


def _rows(
    found: Sequence[list[Tensor | Factored] | None], examples: int | None
) -> list[Tensor | Factored | None]:
    """One tensor per parameter, with one row per example.

    Several backward passes over one batch give every example several rows, several batches give it one, and
    the rows look alike. Only the number of examples distinguishes them: rows of the same example are added
    before they are clipped.
    """
    lengths = [[len(part) for part in parts] for parts in found if parts is not None]
    if examples is None:
        if any(len(one) > 1 for one in lengths):
            raise UnsupportedCombinationError(
                f"per-example gradients of {max(map(len, lengths))} backward passes: those of one example "
                "may be in several rows, each clipped separately",
                supported="accumulate() after every backward pass over different examples, or "
                "accumulate(examples=...), the number of different examples in all of them",
            )
        return [None if parts is None else parts[0] if parts else None for parts in found]
    check_integer("examples", examples, minimum=0)
    formed = [
        None if parts is None else [one.formed() if isinstance(one, Factored) else one for one in parts]
        for parts in found
    ]
    if all(sum(one) == examples for one in lengths):
        return [None if parts is None else torch.cat(parts) for parts in formed]
    if all(length == examples for one in lengths for length in one):
        return [None if parts is None else torch.stack(parts).sum(dim=0) for parts in formed]
    raise InvalidParameterError(
        "examples",
        examples,
        f"the number of rows of all backward passes together, or of each, for every parameter: they have "
        f"{sorted(set(map(tuple, lengths)))} rows",
    )
