"""Clipped sums by torch.func: per-example gradients of a few examples at a time, never of a whole lot."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.optim.clipping.clipped_sum import ClippedSum, clip_and_sum
from dpmech.optim.clipping.styles import Clipping, FlatClipping

__all__ = ["clipped_gradients"]


def clipped_gradients(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batch: Sequence[Tensor],
    clipping: Clipping | float,
    *,
    microbatch_size: int | None = None,
    weights: Tensor | None = None,
) -> ClippedSum:
    """The sum over a batch of clipped per-example gradients.

    Args:
        model: any module whose forward pass treats examples one by one (no batch normalisation) and works
            under `torch.func.vmap`.
        loss: `loss(model, *example)` of one example, without a batch dimension; a scalar. Call the model it
            is given, not the one outside.
        batch: tensors with the examples along their first dimension; it may be empty.
        clipping: how to clip, or a clip norm. Blocks follow the order of the model's parameters that
            require gradients.
        microbatch_size: how many examples to differentiate at once; None for all of them. Memory grows
            with it, the result changes in the last bits only.
        weights: None, or a tensor of zeros and ones, shape (examples,): examples with 0 are left out, as
            padding must be. Other weights would undo the clipping.

    Returns:
        A ClippedSum for `PrivateOptimizer.accumulate`.

    Raises:
        InvalidParameterError: on a bad argument, tensors of different lengths, or other weights.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> batch = (torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.ones(2))
        >>> total = clipped_gradients(model, lambda f, x, y: 0.5 * (f(x) - y).square().sum(), batch, 1.0)
        >>> [round(value, 3) for value in total.sums[0].flatten().tolist()]
        [-0.9, -1.2]
    """
    if not isinstance(model, nn.Module):
        raise InvalidParameterError("model", model, "a torch.nn.Module")
    clip = clipping if isinstance(clipping, Clipping) else FlatClipping(clipping)
    tensors = _check_batch(batch)
    rows = tensors[0].shape[0]
    if weights is not None:
        kept = _check_weights(weights, tensors[0].shape[0])
        tensors = [tensor[kept.to(tensor.device)] for tensor in tensors]
    params = dict(model.named_parameters())
    names = [name for name, param in params.items() if param.requires_grad]
    trained = [params[name] for name in names]
    if not trained:
        raise InvalidParameterError("model", model, "a module with parameters that require gradients")
    name_of = {id(param): name for name, param in zip(names, trained, strict=True)}
    places = _places(model)
    tied = {place: name_of[id(tensor)] for place, tensor in places.items() if id(tensor) in name_of}
    fixed = {place: tensor.detach() for place, tensor in places.items() if place not in tied}
    values = {name: params[name].detach() for name in names}

    def example_loss(own: dict[str, Tensor], *example: Tensor) -> Tensor:
        held = fixed | {place: own[name] for place, name in tied.items()}
        return loss(functools.partial(_call, model, held), *example)

    per_example: Any = torch.func.vmap(
        torch.func.grad(example_loss), in_dims=(None, *[0] * len(tensors)), randomness="different"
    )
    length = tensors[0].shape[0]
    size = length if microbatch_size is None else check_integer("microbatch_size", microbatch_size, minimum=1)
    blocks = clip.blocks(len(trained))
    sums: list[Tensor | None] = [None] * len(trained)
    dropped = 0
    for start in range(0, length, max(size, 1)):
        gradients = per_example(values, *[tensor[start : start + size] for tensor in tensors])
        parts, _, lost = clip_and_sum([gradients[name] for name in names], blocks)
        sums = [_added(total, part) for total, part in zip(sums, parts, strict=True)]
        dropped += lost
    return ClippedSum(trained, sums, clip, examples=length, dropped=dropped, left_out=rows - length)


def _check_weights(weights: object, length: int) -> Tensor:
    if (
        not isinstance(weights, Tensor)
        or weights.shape != (length,)
        or not bool(((weights == 0) | (weights == 1)).all())
    ):
        shown = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise InvalidParameterError("weights", shown, f"a tensor of {length} zeros and ones")
    return weights != 0


def _call(model: nn.Module, values: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - what the model takes and returns
    return torch.func.functional_call(model, values, args, kwargs, tie_weights=False)


def _places(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a model by its places: tied ones have several, a layer that is used twice has one.

    (functional_call itself would put a shared layer's tensors in place twice, and take them out once.)
    """
    return {
        f"{prefix}.{name}" if prefix else name: tensor
        for prefix, layer in model.named_modules()
        for name, tensor in [*layer._parameters.items(), *layer._buffers.items()]
        if tensor is not None
    }


def _added(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    return part if total is None or part is None else total.add_(part)


def _check_batch(batch: Sequence[Tensor]) -> list[Tensor]:
    tensors = [batch] if isinstance(batch, Tensor) else list(batch)
    lengths = {one.shape[0] for one in tensors if isinstance(one, Tensor) and one.ndim > 0}
    if (
        not tensors
        or len(lengths) != 1
        or any(not isinstance(one, Tensor) or one.ndim == 0 for one in tensors)
    ):
        shown = [tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__ for one in tensors]
        raise InvalidParameterError("batch", shown, "tensors with the same number of examples, at least one")
    return tensors
