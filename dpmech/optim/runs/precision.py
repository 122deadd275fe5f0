"""How exactly the calls of a model can be compared: in double precision, where it can run in it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["HALF", "TOLERANCES", "UntoldError", "coarsest", "widened"]

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative
HALF = 0.1  # for less


class UntoldError(Exception):
    """Nothing can be told: the model failed on a batch of ours, or does not repeat itself."""


def coarsest(model: nn.Module, tensors: Sequence[Tensor]) -> float:
    """The roundings that may stand in what a model gives, whatever type that has; relative."""
    dtypes = {one.dtype for one in (*model.parameters(), *tensors) if one.is_floating_point()}
    device = next(iter((*tensors, *model.parameters()))).device.type
    if torch.is_autocast_enabled(device):
        return HALF
    found = max((TOLERANCES.get(dtype, HALF) for dtype in dtypes), default=TOLERANCES[torch.float32])
    # Products on tensor cores may keep ten bits of float32.
    return found if device == "cpu" else max(found, 1e-2)


@contextmanager
def widened(model: nn.Module) -> Iterator[None]:
    """The weights and buffers of a model in double precision, for a while."""
    held = {id(one): one for one in (*model.parameters(), *model.buffers()) if one.is_floating_point()}
    if any(type(one.data) is not Tensor for one in held.values()) or "mps" in {
        one.device.type for one in held.values()
    }:
        raise UntoldError
    before = [(one, one.data) for one in held.values()]
    try:
        try:
            for one, data in before:
                one.data = data.double()
        except (RuntimeError, TypeError) as error:  # no memory left; a kind of tensor that cannot
            raise UntoldError from error
        yield
    finally:
        for one, data in before:
            one.data = data
