"""Containers: take batches, arguments and outputs apart into tensors, and rebuild them."""

import copy
import dataclasses
import types
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a plain data object by name; None for any other object."""
    if isinstance(value, type | types.ModuleType | nn.Module | Tensor) or callable(value):
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    named = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    slots = [
        name for kind in named for name in ([kind] if isinstance(kind, str) else kind) if name[:2] != "__"
    ]
    held = getattr(value, "__dict__", None)
    if not slots and not isinstance(held, dict):
        return None
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | dict(held or {})


def with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a container or a plain data object with its parts changed; any other value itself.

    Mappings keep their type: models may read `batch.input_ids`.
    """
    if isinstance(value, Mapping):
        items = {key: change(item) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return items
        twin: Any = copy.copy(value)
        for key, item in items.items():
            twin[key] = item
        return twin
    if isinstance(value, tuple | list):
        inner = [change(item) for item in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    held = fields_of(value)
    if not held:
        return value
    twin = copy.copy(value)
    for name, content in held.items():
        changed = change(content)
        if changed is not content:
            object.__setattr__(twin, name, changed)
    return twin


def copied(value: Any) -> Any:
    """A writable copy of an example; objects that cannot be copied (locks, files) are returned as is."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping) or type(value) in {list, tuple}:
        return with_parts(value, copied)
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - objects without copy support may raise anything
        return value


class Given:
    """The arguments of a call on `count` examples."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> None:
        self._args, self._kwargs = args, kwargs
        self.count = count
        self.tensors: list[Tensor] = []
        self.lists = 0

        def note(one: Tensor) -> Tensor:
            self.tensors.append(one)
            return one

        self._mapped(note, note)
        self.rows = [tensor for tensor in self.tensors if tensor.ndim and len(tensor) == count]

    @property
    def followed(self) -> bool:
        """False if no argument has one entry per example."""
        return bool(self.rows or self.lists)

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with `self.tensors` replaced by other tensors."""
        others = {id(one): other for one, other in zip(self.tensors, tensors, strict=True)}
        return self._mapped(lambda one: others.get(id(one), one), lambda one: one.detach().clone())

    def picked(self, examples: Sequence[int], *, wide: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call on some of the examples."""

        def copy_of(one: Tensor) -> Tensor:
            return one.detach().double() if wide and one.is_floating_point() else one.detach().clone()

        def rows_of(one: Tensor) -> Tensor:
            has_rows = one.ndim and len(one) == self.count
            return copy_of(one.detach()[torch.tensor(examples, device=one.device)] if has_rows else one)

        return self._mapped(rows_of, copy_of, examples)

    def _mapped(
        self,
        change: Callable[[Tensor], Tensor],
        change_alone: Callable[[Tensor], Tensor],
        examples: Sequence[int] | None = None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other tensors; those in a list with one entry per example are of one alone."""

        def mapped(value: Any, inside: tuple[int, ...] = ()) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if id(value) in inside:
                return value
            if type(value) is list and self._is_rows(value):
                self.lists += 1
                every = range(len(value)) if examples is None else examples
                return [alone(value[place]) for place in every]
            return with_parts(value, lambda one: mapped(one, (*inside, id(value))))

        def alone(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change_alone(value)
            nested = isinstance(value, Mapping) or type(value) in {list, tuple}
            return with_parts(value, alone) if nested else value

        # The arguments are not examples, even if their number matches.
        return tuple(mapped(one) for one in self._args), mapped(self._kwargs)

    def _is_rows(self, value: list[Any]) -> bool:
        """Whether a list has one entry per example, rather than tensors with one row per example."""
        return len(value) == self.count and not all(
            isinstance(one, Tensor) and one.ndim and len(one) == self.count for one in value
        )


def leaves_of(value: Any, inside: tuple[int, ...] = (), *, arrays: bool = True) -> list[Any]:
    """The tensors in tuples, lists, mappings and data objects, in order; and the arrays of numbers."""
    if isinstance(value, Tensor) or (
        arrays and isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
    ):
        return [value]
    if value is None or isinstance(value, str | int | float | np.ndarray) or id(value) in inside:
        return []
    if isinstance(value, Mapping):
        held: Any = value.values()
    else:
        held = value if isinstance(value, tuple | list) else (fields_of(value) or {}).values()
    return [one for part in held for one in leaves_of(part, (*inside, id(value)), arrays=arrays)]


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in tuples, lists, mappings and data objects, in order."""
    return leaves_of(value, arrays=False)
