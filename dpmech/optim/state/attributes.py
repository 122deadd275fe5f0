"""Attributes: compare and restore what calls of a model and its loss leave in attributes and variables."""

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.state.kept import ATOMS, HOOKS, NOT_OWN, Kept, KeptDict, KeptParts, KeptTensor, Walk

_Key = tuple[nn.Module, str]


class Attributes:
    """A snapshot of the plain attributes of a model's modules, and of what can be reached from them.

    These are attributes other than parameters, buffers and submodules: numbers, tensors, arrays, containers,
    and objects with attributes; and what the code of the modules and of their hooks refers to (see `Walk`).

    Args:
        model: whose modules.
        earlier: a previous snapshot, whose copies of unmodified tensors are reused.
        loss: is followed too, and attributes of parameters and hooks of all modules are kept; None for the
            model alone.
        buffers: whether buffers are restored as well.
    """

    def __init__(
        self,
        model: nn.Module,
        earlier: "Attributes | None" = None,
        *,
        loss: Callable[..., Any] | None = None,
        buffers: bool = False,
    ) -> None:
        self._model = model
        parts = list(model.modules())
        members = [*parts, *model.parameters(), *([] if buffers else model.buffers())]
        strict = loss is not None
        self._walk: Walk = Walk(members, {} if earlier is None else earlier._walk.copies, strict=strict)
        self._parts = {part: KeptDict(vars(part)) for part in parts}
        self._kept: dict[_Key, list[Kept]] = {
            (part, name): self._walk.reach(value)
            for part in parts
            for name, value in self._parts[part].copy.items()
            if name not in NOT_OWN and type(value) not in ATOMS
        }
        seen: set[int] = set()
        for part in parts:
            hooks = (vars(part).get(kind, {}) for kind in (HOOKS if strict else _FORWARD))
            used = [type(part), *(hook for held in hooks for hook in held.values())]
            code = [kept for one in used if id(one) not in seen for kept in self._walk.reach(one)]
            seen.update(map(id, used))
            if code:
                self._kept[part, _CODE] = code
        more: list[Kept] = [KeptParts(vars(part)) for part in parts]
        if strict:
            self._walk.reach(loss)
            more += self._of_parameters()
            # Hooks of all modules.
            everywhere = vars(nn.modules.module)
            names = [name for name in everywhere if name.startswith("_global_") and "hook" in name]
            more.append(KeptParts(everywhere, names))
            for name in names:
                held = everywhere[name]
                for hook in held.values() if isinstance(held, dict) else ():
                    self._walk.reach(hook)
        if buffers:
            for part in parts:
                self._walk.reach(part._buffers)
        self._all: list[Kept] = [*self._parts.values(), *more, *self._walk.found]

    def _of_parameters(self) -> Iterator[Kept]:
        """Attributes of the parameters and buffers themselves, and what their hooks refer to."""
        for tensor in {id(one): one for one in [*self._model.parameters(), *self._model.buffers()]}.values():
            held = vars(tensor)
            yield KeptDict(held)
            hooks: Any = tensor._backward_hooks  # untyped
            for value in [*held.values(), *(hooks or {}).values()]:
                self._walk.reach(value)

    @property
    def generators(self) -> list[Any]:
        """Generators of random numbers that were found. Their states are not restored."""
        return self._walk.generators

    @property
    def functions(self) -> list[types.FunctionType]:
        """Functions that were found: methods of the modules and of other objects, hooks, what they call."""
        return self._walk.functions

    def changed(self, before: "Attributes") -> dict[_Key, str]:
        """Attributes whose tensors or atoms differ from before, with their names."""
        found = []
        for part, kept in self._parts.items():
            then = before._parts.get(part)
            for name, value in kept.copy.items():
                old = None if then is None else then.copy.get(name, _MISSING)
                if (name not in NOT_OWN or name == "training") and (
                    _differ([value], [old])
                    if type(value) in ATOMS
                    else (part, name) not in before._kept
                    or _differ(self._marks(part, name), before._marks(part, name))
                ):
                    found.append((part, name))
        found += [
            (part, name)
            for part, name in self._kept
            if name == _CODE
            and (part, name) in before._kept
            and _differ(self._marks(part, name), before._marks(part, name))
        ]
        if not found:
            return {}
        names = {part: f"{prefix}." if prefix else "" for prefix, part in self._model.named_modules()}
        return {(part, name): f"{names.get(part, '')}{name}" for part, name in found}

    def same_values(self, other: "Attributes", keys: Iterable[_Key]) -> bool:
        """Whether tensors and atoms are equal in these attributes."""
        return all(
            self._has(part, name)
            and other._has(part, name)
            and _equal(self._values(part, name), other._values(part, name))
            for part, name in keys
        )

    def _has(self, part: nn.Module, name: str) -> bool:
        return (part, name) in self._kept or (part in self._parts and name in self._parts[part].copy)

    def graphs(self) -> dict[str, Tensor]:
        """Tensors from which a backward pass can start, by name."""
        names = {part: f"{prefix}." if prefix else "" for prefix, part in self._model.named_modules()}
        return {
            f"{names.get(part, '')}{name} {place}": one.tensor
            for (part, name), kept in self._kept.items()
            for place, one in enumerate(kept)
            if isinstance(one, KeptTensor) and one.tensor.grad_fn is not None
        }

    def put_back(self, keys: Iterable[_Key] | None = None) -> None:
        """Restore these attributes, or everything.

        Raises:
            UnsupportedCombinationError: if something changed that cannot be restored; the rest is.
        """
        if keys is None:
            refused: list[UnsupportedCombinationError] = []
            for kept in self._all:
                try:
                    kept.put_back()
                except UnsupportedCombinationError as error:
                    refused.append(error)
            if refused:
                raise refused[0]
            return
        for part, name in keys:
            for kept in self._kept.get((part, name), ()):
                kept.put_back()
            held = self._parts[part].copy if part in self._parts else {}
            if name == _CODE:
                continue
            if name in held:
                vars(part)[name] = held[name]
            else:
                vars(part).pop(name, None)

    def check(self) -> None:
        """Raise UnsupportedCombinationError if a tensor changed that `put_back` does not compare."""
        for kept in self._walk.found:
            if isinstance(kept, KeptTensor):
                kept.check()

    def _marks(self, part: nn.Module, name: str) -> list[Any]:
        return [mark for kept in self._kept[part, name] for mark in kept.marks]

    def _values(self, part: nn.Module, name: str) -> list[Any]:
        if (part, name) not in self._kept:
            return [self._parts[part].copy[name]]
        return [one for kept in self._kept[part, name] for one in kept.values]


_MISSING = object()
_FORWARD = ("_forward_pre_hooks", "_forward_hooks")
_CODE = "what its code refers to"


def _differ(marks: list[Any], others: list[Any]) -> bool:
    if len(marks) != len(others):
        return True
    return any(
        one is not other
        and not (
            one[0] is other[0] and one[1] == other[1]
            if _is_tensor(one) and _is_tensor(other)
            else type(one) is type(other) and not _is_tensor(one) and _same_atom(one, other)
        )
        for one, other in zip(marks, others, strict=True)
    )


def _is_tensor(mark: Any) -> bool:
    return isinstance(mark, tuple) and len(mark) == 2 and isinstance(mark[0], Tensor)


def _equal(values: list[Any], others: list[Any]) -> bool:
    return len(values) == len(others) and all(
        torch.equal(one, two)
        if isinstance(one, Tensor) and isinstance(two, Tensor)
        else type(one) is type(two) and not isinstance(one, Tensor) and _same_atom(one, two)
        for one, two in zip(values, others, strict=True)
    )


def _same_atom(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - NaN
