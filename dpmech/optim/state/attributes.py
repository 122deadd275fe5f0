"""Attributes: compare and restore what calls of a model and its loss leave in attributes and variables."""

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.state.kept import ATOMS, HOOKS, NOT_OWN, Kept, KeptDict, KeptParts, KeptTensor, Walk
from dpmech.optim.state.parts import named_parts, own_tensors
from dpmech.optim.state.references import hooks_of

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
        parts = [part for _, part in named_parts(model)]
        members: list[Any] = [*parts]
        for part in parts:
            members += part._parameters.values()
            members += [] if buffers else part._buffers.values()
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
        for tensor in {id(one): one for _, one in own_tensors(self._model)}.values():
            held = vars(tensor)
            yield KeptDict(held)
            for value in [*held.values(), *hooks_of(tensor).values()]:
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
        keys = [
            (part, name)
            for part, kept in self._parts.items()
            for name in kept.copy
            if name not in NOT_OWN or name == "training"
        ]
        keys += [key for key in self._kept if key[1] == _CODE and key in before._kept]
        found = [
            key
            for key in keys
            if (key in self._kept) != (key in before._kept)
            or not _same(self._of(key, "marks"), before._of(key, "marks"))
        ]
        if not found:
            return {}
        names = {part: f"{prefix}." if prefix else "" for prefix, part in named_parts(self._model)}
        return {(part, name): f"{names.get(part, '')}{name}" for part, name in found}

    def same_values(self, other: "Attributes", keys: Iterable[_Key]) -> bool:
        """Whether tensors and atoms are equal in these attributes."""
        return all(_same(self._of(key, "values"), other._of(key, "values")) for key in keys)

    def graphs(self) -> dict[str, Tensor]:
        """Tensors from which a backward pass can start, by name."""
        names = {part: f"{prefix}." if prefix else "" for prefix, part in named_parts(self._model)}
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

    def _of(self, key: _Key, kind: Literal["marks", "values"]) -> list[Any] | None:
        """The marks or the values of an attribute; None without it."""
        if key in self._kept:
            return [one for kept in self._kept[key] for one in getattr(kept, kind)]
        part, name = key
        held = self._parts[part].copy if part in self._parts else {}
        return [held[name]] if name in held else None


_FORWARD = ("_forward_pre_hooks", "_forward_hooks")
_CODE = "what its code refers to"


def _same(values: list[Any] | None, others: list[Any] | None) -> bool:
    if values is None or others is None or len(values) != len(others):
        return False
    return all(
        torch.equal(one, two)
        if isinstance(one, Tensor) and isinstance(two, Tensor)
        else type(one) is type(two) and not isinstance(one, Tensor) and _same_atom(one, two)
        for one, two in zip(values, others, strict=True)
    )


def _same_atom(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - NaN
