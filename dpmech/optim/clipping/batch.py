"""Batch: the arguments of a loss, of which every example has a part."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from dpmech.exceptions import InvalidParameterError


class Batch:
    """The arguments of a loss, whose tensors have the examples along their first dimension.

    Tensors may be in tuples, lists and mappings, including those of transformers (a BatchEncoding becomes
    a dict); None stays None. Other values are refused: they belong to no single example, and values shared by
    the examples may depend on all of them.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.

    Attributes:
        tensors: all tensors, in order.

    Raises:
        InvalidParameterError: if there is no tensor, if numbers of examples differ, or on other values.
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
                "batch",
                shown,
                "tensors with the same number of examples, at least one; for examples of several sizes a "
                "collate function that pads them to a fixed one, with a mask",
            )
        self.examples = lengths.pop()

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the tensors replaced."""
        left = iter(tensors)
        args, kwargs = (build(left) for build in self._build)
        return args, kwargs


def _taken(name: str, value: Any, found: list[Tensor]) -> Callable[[Any], Any]:
    """Append the tensors of a value to a list; returns a function that rebuilds it from an iterator."""
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
