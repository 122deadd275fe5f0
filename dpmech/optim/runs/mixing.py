"""Whether a model mixes the examples of a batch: what it gives some together, against each alone."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.clipping import Batch, spared_random_numbers

__all__ = ["buffers_put_back", "check_unmixed", "tensors_of"]

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative
_HALF = 0.1  # for less
_FLOOR = 1e-6
_EXAMPLES = 4  # that are tried


def check_unmixed(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a model whose output for one example depends on another.

    Under hooks nothing else would notice: every gradient is clipped, but that of one example holds another,
    and changes with it. The model is called, without gradients, on the first four examples together and on
    each alone; in training mode if it draws no random numbers there, else in eval mode. A model that draws
    some in eval mode, or cannot be called on parts of a batch, is not checked.

    Args:
        model: what is trained.
        args: of a call with at least two examples.
        kwargs: the same.

    Raises:
        UnsupportedCombinationError: if the outputs differ by more than roundings.
    """
    try:
        batch = Batch(args, kwargs)
    except InvalidParameterError:
        return  # something else among the arguments: nobody can tell what belongs to one example
    if batch.examples < 2:
        return
    before = {layer: layer.training for layer in model.modules()}
    try:
        outputs = _outputs(model, batch)
        if outputs is None:
            model.eval()
            outputs = _outputs(model, batch)
    finally:
        for layer, training in before.items():
            layer.training = training
    if outputs is None:
        return
    together, alone = outputs
    coarsest = _coarsest(model, batch.tensors)
    if any(_differ(together, one, index, coarsest) for index, one in enumerate(alone)):
        raise UnsupportedCombinationError(
            "the model mixes examples: what it gives one of a batch is not what it gives that one alone, so "
            "that the gradient of one example depends on the others",
            supported="a model that takes every example by itself (no statistics, sorting or branches over a "
            "batch); make_private(..., loss=...), which calls it with one example at a time",
        )


def _coarsest(model: nn.Module, tensors: Sequence[Tensor]) -> float:
    """The roundings that may stand in what a model gives, whatever type that has; relative."""
    dtypes = {one.dtype for one in (*model.parameters(), *tensors) if one.is_floating_point()}
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        return _HALF
    found = max((_TOLERANCES.get(dtype, _HALF) for dtype in dtypes), default=0.0)
    # Products on tensor cores may keep ten bits of float32.
    return found if device == "cpu" else max(found, 1e-2)


def _differ(together: Sequence[Tensor], alone: Sequence[Tensor], index: int, coarsest: float) -> bool:
    """Whether an example has other outputs alone, where outputs have a row an example."""
    for whole, own in zip(together, alone, strict=False):
        if not own.is_floating_point() or own.ndim == 0 or own.shape != (1, *whole.shape[1:]):
            continue
        if len(whole) <= index:
            continue
        row, single = whole[index].double(), own[0].double()
        limit = max(coarsest, _TOLERANCES.get(own.dtype, _HALF)) * float(single.norm()) + _FLOOR
        if float((row - single).norm()) > limit:  # NaN, which data may bring, is no difference
            return True
    return False


def _outputs(model: nn.Module, batch: Batch) -> tuple[list[Tensor], list[list[Tensor]]] | None:
    """What it gives some examples together, and each alone; None if that is random or fails."""
    some = range(min(batch.examples, _EXAMPLES))

    def given(examples: slice, *, shift: int = 0) -> list[Tensor]:
        with spared_random_numbers(batch.tensors):
            torch.rand(shift)
            args, kwargs = batch.arguments([tensor[examples] for tensor in batch.tensors])
            return tensors_of(model(*args, **kwargs))

    try:
        with torch.no_grad(), buffers_put_back(model):
            together, again = (given(slice(len(some)), shift=shift) for shift in (0, 1))
            alone = [given(slice(index, index + 1)) for index in some]
    except Exception:  # noqa: BLE001 - whatever a model raises on batches that it is not made for
        return None
    same = len(together) == len(again) and all(
        one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
        for one, other in zip(together, again, strict=True)
    )
    return (together, alone) if same else None


def tensors_of(value: Any) -> list[Tensor]:  # noqa: ANN401 - what a model takes or gives
    """The tensors in tuples, lists and mappings, in their order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [one for inner in value.values() for one in tensors_of(inner)]
    if isinstance(value, tuple | list):
        return [one for inner in value for one in tensors_of(inner)]
    return []


@contextmanager
def buffers_put_back(model: nn.Module) -> Iterator[None]:
    """Undo what calls for a try write into buffers."""
    before = [(buffer, buffer.detach().clone(), buffer._version) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, copy, version in before:
                if buffer._version != version:
                    buffer.copy_(copy)
