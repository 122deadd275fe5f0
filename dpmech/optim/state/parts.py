"""The modules of a model and their tensors, several times as fast as by the generators of torch.

They are read several times in a step, and models have hundreds of modules.
"""

from collections.abc import Iterator

from torch import Tensor, nn


def named_parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """As `model.named_modules()`: a model and all modules inside it, each once, in the same order."""
    left, seen = [("", model)], set()
    while left:
        name, part = left.pop()
        if part in seen:
            continue
        seen.add(part)
        yield name, part
        prefix = f"{name}." if name else ""
        inside = [(prefix + key, one) for key, one in part._modules.items() if one is not None]
        left += reversed(inside)


def own_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, each module's under its first name."""
    for prefix, part in named_parts(model):
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    yield f"{prefix}.{name}" if prefix else name, tensor


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers under all of their names."""
    left = [("", model)]
    while left:
        prefix, part = left.pop()
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    yield prefix + name, tensor
        left += [(f"{prefix}{name}.", child) for name, child in part._modules.items() if child is not None]
