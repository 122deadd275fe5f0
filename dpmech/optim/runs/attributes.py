"""Attributes: compare and restore the attributes of modules other than parameters, buffers and submodules."""

import dataclasses
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# Attributes that torch sets in every module, and Opacus in modules with its hooks.
_NOT_OWN = frozenset(vars(nn.Module())) | {"activations", "max_batch_len", "autograd_grad_sample_hooks"}
_SIMPLE = (int, str, type(None), nn.Parameter, nn.Module)
_LONGEST = 1000  # longer containers, such as vocabularies, are not traversed


class Attributes:
    """A snapshot of the plain attributes of a model's modules, including containers and tensors.

    Args:
        model: whose modules.
        earlier: a previous snapshot, whose copies of unmodified tensors are reused.
    """

    def __init__(self, model: nn.Module, earlier: "Attributes | None" = None) -> None:
        known = {id(buffer) for buffer in model.buffers()}
        copies = {} if earlier is None else earlier._copies
        self._copies: dict[int, tuple[Tensor, int, Tensor | None]] = {}
        self._all = {part: dict(vars(part)) for part in model.modules()}
        self._kept: dict[tuple[nn.Module, str], _Kept] = {}
        self._names: dict[tuple[nn.Module, str], str] = {}
        for prefix, part in model.named_modules():
            for name, value in self._all[part].items():
                if name not in _NOT_OWN and not isinstance(value, _SIMPLE):
                    self._kept[part, name] = _Kept(value, known, copies, self._copies)
                    self._names[part, name] = f"{prefix}.{name}" if prefix else name

    @property
    def parts(self) -> Iterable[Mapping[str, Any]]:
        """The attributes of every module."""
        return self._all.values()

    def changed(self, before: "Attributes", *, numbers: bool = True) -> dict[tuple[nn.Module, str], str]:
        """Attributes whose tensors or floats differ from before, with their names."""
        return {
            key: self._names[key]
            for key, kept in self._kept.items()
            if (numbers or any(isinstance(one, Tensor) for one in kept.marks))
            and kept.marks
            and kept.differs(before._kept.get(key))
        }

    def same_values(self, other: "Attributes", keys: Iterable[tuple[nn.Module, str]]) -> bool:
        """Whether tensors and numbers are equal in these attributes."""
        return all(
            (kept := self._kept.get(key)) is not None
            and (theirs := other._kept.get(key)) is not None
            and kept.equals(theirs)
            for key in keys
        )

    def graphs(self) -> dict[str, Tensor]:
        """Tensors from which a backward pass can start, by name."""
        return {
            f"{self._names[key]} {place}": one
            for key, kept in self._kept.items()
            for place, one in enumerate(kept.marks)
            if isinstance(one, Tensor) and one.grad_fn is not None
        }

    def put_back(self, keys: Iterable[tuple[nn.Module, str]] | None = None) -> None:
        """Restore these attributes, or all."""
        if keys is not None:
            for part, name in keys:
                kept = self._kept.get((part, name))
                if kept is not None:
                    kept.restored()
                if part in self._all and name in self._all[part]:
                    vars(part)[name] = self._all[part][name]
                else:
                    vars(part).pop(name, None)
            return
        for part, values in self._all.items():
            now = vars(part)
            for name in [name for name in now if name not in values]:
                del now[name]
            now.update({key: old for key, old in values.items() if key not in now or now[key] is not old})
        for attribute in self._kept.values():
            attribute.restored()


class _Kept:
    """One attribute. `marks` are its tensors and floats, in order."""

    def __init__(
        self,
        value: Any,  # noqa: ANN401 - anything
        known: set[int],
        copies: Mapping[int, tuple[Tensor, int, Tensor | None]],
        taken: dict[int, tuple[Tensor, int, Tensor | None]],
    ) -> None:
        self._value = value
        self._known, self._earlier, self._taken = known, copies, taken
        self._undo: list[Callable[[], None]] = []
        self.marks: list[Tensor | float] = []
        self._versions: list[int] = []
        self._values: list[Tensor | float] = []
        self._seen: set[int] = set()
        self._take(value)
        del self._known, self._earlier, self._taken, self._seen

    def restored(self) -> Any:  # noqa: ANN401 - anything
        """The value, with its former contents."""
        for undo in self._undo:
            undo()
        return self._value

    def differs(self, before: "_Kept | None") -> bool:
        return (
            before is None
            or self._versions != before._versions
            or any(
                one is not other and not (isinstance(one, float) and one == other)
                for one, other in zip(self.marks, before.marks, strict=True)
            )
        )

    def equals(self, other: "_Kept") -> bool:
        pairs = list(zip(self._values, other._values, strict=False))
        return len(self._values) == len(other._values) and all(
            torch.equal(one, two) if isinstance(one, Tensor) and isinstance(two, Tensor) else one == two
            for one, two in pairs
        )

    def _take(self, value: Any) -> None:  # noqa: ANN401 - anything
        if isinstance(value, float):
            self._note(value, 0, value)
        elif value is None or isinstance(value, int | str | nn.Module) or id(value) in self._seen:
            return
        elif isinstance(value, Tensor):
            self._seen.add(id(value))
            if id(value) not in self._known and not isinstance(value, nn.Parameter):
                self._take_tensor(value)
        elif isinstance(value, list | tuple | deque | dict | set):
            self._seen.add(id(value))
            self._take_container(value)
        elif isinstance(value, types.SimpleNamespace) or (
            dataclasses.is_dataclass(value) and hasattr(value, "__dict__")
        ):
            self._seen.add(id(value))
            self._take_container(vars(value))

    def _note(self, mark: Tensor | float, version: int, copy: Tensor | float) -> None:
        self.marks.append(mark)
        self._versions.append(version)
        self._values.append(copy)

    def _take_tensor(self, tensor: Tensor) -> None:
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # left by vmap, unusable outside it
            self._note(tensor, 0, tensor)
            return
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_inference():
            return
        version = tensor._version
        known = self._earlier.get(id(tensor))
        if tensor.grad_fn is not None:
            copy = tensor.detach()
        elif known is not None and known[0] is tensor and known[1] == version and known[2] is not None:
            copy = known[2]
        else:
            copy = tensor.detach().clone()
        self._note(tensor, version, copy)
        if tensor.grad_fn is None:
            self._taken[id(tensor)] = (tensor, version, copy)
            self._undo.append(lambda: _written_back(tensor, version, copy))

    def _take_container(self, held: Any) -> None:  # noqa: ANN401 - a container
        if not isinstance(held, tuple):
            copy = dict(held) if isinstance(held, dict) else list(held)
            self._undo.append(lambda: _refilled(held, copy))
        if len(held) <= _LONGEST:
            for one in list(held.values()) if isinstance(held, dict) else list(held):
                self._take(one)


def _written_back(tensor: Tensor, version: int, copy: Tensor) -> None:
    if tensor._version != version:
        with torch.no_grad():
            tensor.copy_(copy)


def _refilled(held: Any, copy: Any) -> None:  # noqa: ANN401 - containers
    """Restore the contents of a container if they changed."""
    if isinstance(held, dict):
        if list(map(id, held)) == list(map(id, copy)) and all(held[key] is copy[key] for key in copy):
            return
        held.clear()
        held.update(copy)
    elif list(map(id, held)) != list(map(id, copy)):
        held.clear()
        (held.update if isinstance(held, set) else held.extend)(copy)


class Afresh:
    """Calls a loss so that no call sees attributes of the model left by examples of an earlier call.

    A batch takes several calls: one for each microbatch, and one of its first example alone if
    it is not yet known which layers a loss uses.

    Args:
        loss: `loss(model, *example)`.
        model: whose attributes are restored.
    """

    def __init__(self, loss: Callable[..., Tensor], model: nn.Module) -> None:
        self._loss = loss
        self._model = model
        self._before: Attributes | None = None
        self._called = False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """A context within which, and after which, tensors in attributes are restored."""
        self._before, self._called = Attributes(self._model), False
        try:
            yield
        finally:
            self._put_back()
            self._before = None

    def __call__(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401 - one example
        """The loss of one example."""
        if self._called:
            self._put_back()
        self._called = True
        return self._loss(model, *args, **kwargs)

    def _put_back(self) -> None:
        if self._before is not None:
            self._before.put_back(Attributes(self._model).changed(self._before, numbers=False))
