"""Batch: what a collate function made, as tensors with the examples first, and back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError

__all__ = ["Batch", "spared_random_numbers"]


class Batch:
    """The arguments of a loss, whose tensors have the examples along their first dimension.

    Tensors may stand in tuples, lists and mappings, those of transformers among them (a BatchEncoding becomes
    a dict); None stays None. Anything else is refused: it is no example's own, and what the examples share
    may depend on all of them.

    Args:
        args: positional arguments.
        kwargs: the others.

    Attributes:
        tensors: all tensors, in the order in which they stand.

    Raises:
        InvalidParameterError: if there is no tensor, if numbers of examples differ, or on anything else.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.tensors: list[Tensor] = []
        self._build = (
            _taken("batch", tuple(args), self.tensors),
            _taken("batch", dict(kwargs), self.tensors),
        )
        lengths = {tensor.shape[0] for tensor in self.tensors if tensor.ndim}
        if len(lengths) != 1 or any(tensor.ndim == 0 for tensor in self.tensors):
            shown = [tuple(tensor.shape) for tensor in self.tensors]
            raise InvalidParameterError(
                "batch", shown, "tensors with the same number of examples, at least one"
            )
        self.examples = lengths.pop()

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other tensors in their places."""
        left = iter(tensors)
        args, kwargs = (build(left) for build in self._build)
        return args, kwargs


def _taken(name: str, value: Any, found: list[Tensor]) -> Callable[[Any], Any]:  # noqa: ANN401 - any batch
    """Move the tensors of a value into a list; returns what builds the value from an iterator of others."""
    if isinstance(value, Tensor):
        found.append(value)
        return next
    if value is None:
        return lambda _: None
    if isinstance(value, Mapping):
        parts = {key: _taken(f"{name}[{key!r}]", one, found) for key, one in value.items()}
        return lambda left: {key: build(left) for key, build in parts.items()}
    if isinstance(value, tuple | list):
        inner = [_taken(f"{name}[{number}]", one, found) for number, one in enumerate(value)]
        kind: Any = type(value)
        if hasattr(value, "_fields"):
            return lambda left: kind(*(build(left) for build in inner))
        return lambda left: kind(build(left) for build in inner)
    raise InvalidParameterError(
        name,
        type(value).__name__,
        "tensors with the same number of examples, which come first, in tuples, lists and dicts; or None",
    )


@contextmanager
def spared_random_numbers(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put torch's random numbers, on the devices of these tensors, back at the end."""
    devices = sorted({one.device.index or 0 for one in tensors if one.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        yield
