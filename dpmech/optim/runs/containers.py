"""Containers: what holds tensors in batches, arguments and outputs, taken apart and put together again."""

import copy
import dataclasses
import types
from collections.abc import Mapping, MutableMapping
from typing import Any

from torch import Tensor, nn

__all__ = ["copied", "fields_of", "with_fields", "with_items"]


def fields_of(value: Any) -> dict[str, Any] | None:  # noqa: ANN401 - anything
    """What an object that only holds things holds, by name; None for any other."""
    if isinstance(value, type | types.ModuleType | nn.Module | Tensor) or callable(value):
        return None
    if dataclasses.is_dataclass(value):
        return {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
    named = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    slots = [name for one in named for name in ([one] if isinstance(one, str) else one) if name[:2] != "__"]
    held = getattr(value, "__dict__", None)
    if not slots and not isinstance(held, dict):
        return None
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | dict(held or {})


def with_fields(value: Any, held: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the same
    """A copy of such an object that holds other things under some names."""
    twin = copy.copy(value)
    for name, one in held.items():
        if one is not getattr(value, name, None):
            object.__setattr__(twin, name, one)
    return twin


def with_items(value: Mapping[Any, Any], items: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """A copy of a mapping with other values, of its own kind: models may ask for `batch.input_ids`."""
    if type(value) is dict or not isinstance(value, MutableMapping):
        return dict(items)
    twin = copy.copy(value)
    for key, one in items.items():
        twin[key] = one
    return twin


def copied(value: Any) -> Any:  # noqa: ANN401 - an example
    """A copy of an example, to be written to; of what cannot be copied (locks, files) the thing itself."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return with_items(value, {key: copied(one) for key, one in value.items()})
    if type(value) in {list, tuple}:
        return type(value)(map(copied, value))
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever an object raises that was not made for it
        return value
