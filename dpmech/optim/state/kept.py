"""Kept: what calls of a model and its loss can change, found by following references, and put back."""

import array
import collections
import contextvars
import functools
import gc
import itertools
import operator
import random
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import resolve_name
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.state.generators import GENERATORS, global_generators
from dpmech.optim.state.positions import is_iterator, position, same_position
from dpmech.optim.state.references import (
    attributes_set,
    functions,
    globals_read,
    hooks_of,
    imports,
    is_own,
    known,
    named,
    root,
)

# Attributes that torch sets in every module, and Opacus in modules with its hooks.
NOT_OWN = frozenset(vars(nn.Module())) | {"activations", "max_batch_len", "autograd_grad_sample_hooks"}
ATOMS = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(Ellipsis)}
    | {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, range, slice}
)
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_HOOKS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
# Data sets are read only, and optimizers are changed by steps.
_CLOSED = (DataLoader, Dataset, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_MISSING: Any = object()
_MOST = 5000  # objects that are followed from a loss or an attribute of a model, nearer ones first
_LONGEST = 1000  # atoms of a longer container, such as a vocabulary, are not compared
_LARGEST = 1 << 26  # bytes: larger tensors are not copied
_COMPARED = 200  # tensors; more of them are data
# Values that are compared after every call, as torch does not count writes through `.data` and by numpy;
# larger tensors are compared once a batch.
_SMALL = 1 << 16

Mark: TypeAlias = Any  # an atom, or the identity of a tensor with its number of writes


class Kept:
    """Something that calls can change; as it is, a tuple or a frozenset, of which only what is in it can.

    Attributes:
        marks: its atoms, or the identity of its tensor and the number of writes.
        values: its atoms, or a copy of its tensor.
    """

    marks: Sequence[Mark] = ()
    values: Sequence[Any] = ()

    def __init__(self, found: Iterable[Any] = ()) -> None:
        self.marks = self.values = _atoms(found)

    def put_back(self) -> None:
        """Restore it."""


class KeptDict(Kept):
    """The entries of a dictionary, which may be the attributes of an object."""

    def __init__(self, held: dict[Any, Any]) -> None:
        self._held = held
        # Methods of the builtin classes: `update` of a Counter adds, and classes of the user override them.
        self._kind: Any = collections.OrderedDict if isinstance(held, collections.OrderedDict) else dict
        self.copy = dict(self._kind.items(held))
        self.marks = self.values = _atoms(self.copy.values())

    def put_back(self) -> None:
        """Restore the entries, in their order."""
        kind, copy, held = self._kind, self.copy, self._held
        if dict.__len__(held) == len(copy) and (
            not copy
            or (
                all(map(operator.is_, kind.values(held), copy.values()))
                and all(map(operator.is_, kind.keys(held), copy))
            )
        ):
            return
        now = dict(kind.items(held))
        for key in [key for key in now if key not in copy]:
            kind.__delitem__(held, key)
        if [key for key in now if key in copy] != list(copy):
            kind.clear(held)
        for key, value in copy.items():
            kind.__setitem__(held, key, value)


_SEQUENCES: tuple[Any, ...] = (list, deque, set, bytearray, array.array)


class _KeptSequence(Kept):
    """The entries of a list, a deque, a set, a bytearray or an array of Python."""

    def __init__(self, held: Any) -> None:
        self._held = held
        self._kind = next(kind for kind in _SEQUENCES if isinstance(held, kind))
        self._copy = entries(held)
        self.marks = self.values = _atoms(self._copy)

    def put_back(self) -> None:
        kind, now, copy = self._kind, entries(self._held), self._copy
        if len(now) == len(copy) and all(map(operator.is_, now, copy)):
            return
        if kind in {array.array, bytearray}:  # in place: there may be views
            old = array.array(self._held.typecode, copy) if kind is array.array else bytes(copy)
            kind.__setitem__(self._held, slice(None), old)
            return
        kind.clear(self._held)
        (set.update if kind is set else kind.extend)(self._held, copy)


def entries(held: Any) -> list[Any]:
    """The entries of a container, whatever a subclass overrides."""
    if isinstance(held, dict):
        kind = collections.OrderedDict if isinstance(held, collections.OrderedDict) else dict
        return list(kind.values(held))
    kind = next((kind for kind in (*_SEQUENCES, tuple, frozenset) if isinstance(held, kind)), type(held))
    return list(kind.__iter__(held))


_NOTHING: dict[Any, Any] = {}


class KeptParts(Kept):
    """The submodules and hooks of a module, except hooks of this package, which last for a call."""

    def __init__(self, held: dict[str, Any], names: Sequence[str] = ("_modules", *HOOKS, *_OF_HOOKS)) -> None:
        # Most are empty.
        self._all = [
            (one, dict(one) if one else _NOTHING) for name in names if isinstance(one := held.get(name), dict)
        ]

    def put_back(self) -> None:
        """Restore them."""
        for now, copy in self._all:
            if (not now and not copy) or (
                len(now) == len(copy) and all(map(operator.is_, now.values(), copy.values()))
            ):
                continue
            own = {key for one, _ in self._all for key, hook in one.items() if root(hook) == "dpmech"}
            others = {key: one for key, one in now.items() if key not in own}
            before = {key: one for key, one in copy.items() if key not in own}
            if list(others) == list(before) and all(map(operator.is_, others.values(), before.values())):
                continue
            mine = {key: one for key, one in now.items() if key in own and key not in copy}
            now.clear()
            now.update(mine)  # first, inside of the hooks of others
            now.update(copy)


class _KeptCache(Kept):
    """The entries of a `functools.lru_cache`: cleared if a call computed one."""

    def __init__(self, held: Any) -> None:
        self._held = held
        self._misses = held.cache_info().misses

    def put_back(self) -> None:
        if self._held.cache_info().misses != self._misses:
            self._held.cache_clear()
            self._misses = 0


class _Advanced(Kept):
    """The position of an iterator or a generator, which cannot be put back."""

    def __init__(self, held: Any) -> None:
        self._held = held
        self._position = position(held)

    def put_back(self) -> None:
        """Raise UnsupportedCombinationError if it was advanced."""
        if not same_position(position(self._held), self._position):
            raise UnsupportedCombinationError(
                f"a call of the loss advanced a {type(self._held).__qualname__}: how many calls there are "
                "follows from the examples of a batch, and what one takes the next cannot have",
                supported="a loss that is a function of its example and the model; a schedule as an "
                "attribute, set by the training loop",
            )


class _Place(Kept):
    """A global variable, a slot, or a variable of a closure."""

    def __init__(self, owner: Any, name: str, *, item: bool = False) -> None:
        self._owner, self._name, self._item = owner, name, item
        self.value = self._now()
        self.marks = self.values = _atoms([self.value])

    def _now(self) -> Any:
        if self._item:
            return self._owner.get(self._name, _MISSING)
        try:
            return getattr(self._owner, self._name)
        except (AttributeError, ValueError):  # ValueError: an empty closure
            return _MISSING

    def put_back(self) -> None:
        if self._now() is not self.value:
            with suppress(AttributeError):  # of compiled classes, which cannot be set and made a new object
                self._set()

    def _set(self) -> None:
        if self.value is not _MISSING:
            if self._item:
                self._owner[self._name] = self.value
            else:
                object.__setattr__(self._owner, self._name, self.value)  # past a frozen data class
        elif self._item:
            del self._owner[self._name]
        else:
            object.__delattr__(self._owner, self._name)


class _KeptVariable(_Place):
    """The value of a context variable; raises UnsupportedCombinationError if it had none before."""

    def __init__(self, held: contextvars.ContextVar[Any]) -> None:
        super().__init__(held, held.name)

    def _now(self) -> Any:
        return self._owner.get(_MISSING)

    def _set(self) -> None:
        if self.value is _MISSING:
            raise UnsupportedCombinationError(
                f"a call of the loss set the context variable {self._name!r}, which had no value before",
                supported="a value of the variable that is set before training, or an attribute instead",
            )
        self._owner.set(self.value)


class _KeptClass(Kept):
    """The attributes of a class."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._copy = dict(vars(kind))
        self.marks = self.values = _atoms(
            one for name, one in self._copy.items() if not _is_internal(name) and not callable(one)
        )

    def put_back(self) -> None:
        now, copy = vars(self._kind), self._copy
        if len(now) == len(copy) and all(map(operator.is_, now.values(), copy.values())):
            return
        for name in [name for name in now if name not in copy and not _is_internal(name)]:
            type.__delattr__(self._kind, name)
        for name, value in copy.items():
            if not _is_internal(name) and now.get(name, _MISSING) is not value:
                type.__setattr__(self._kind, name, value)


def _is_internal(name: str) -> bool:
    """Whether Python keeps it, as caches of abstract classes."""
    return name.startswith("_abc") or (name.startswith("__") and name.endswith("__"))


class KeptTensor(Kept):
    """The contents of a tensor.

    Args:
        tensor: any.
        copies: of tensors that did not change since, by identity.
        compared: whether contents are compared, if they are few, in addition to numbers of writes.
        summed: whether contents that are not copied are summed, for `check`.
    """

    def __init__(
        self, tensor: Tensor, copies: "Copies", *, compared: bool = True, summed: bool = False
    ) -> None:
        self.tensor = tensor
        self._small = compared and tensor.numel() <= _SMALL and tensor.device.type == "cpu"
        self._small &= tensor.layout == torch.strided  # torch compares no others
        # One that vmap left is unusable outside of it.
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        self._left = not (wrapped or tensor.is_inference())
        self.version = tensor._version if self._left else 0
        self.copy = self._copied(copies) if self._left else None
        self._checksum = _checksum(tensor) if self._left and summed and self.copy is None else None
        self.marks = [(id(tensor), self.version)]
        self.values = [tensor if self.copy is None else self.copy]

    def _copied(self, copies: "Copies") -> Tensor | None:
        tensor = self.tensor
        if tensor.grad_fn is not None:
            return tensor.detach()
        if isinstance(tensor, nn.Parameter) or tensor.numel() * tensor.element_size() > _LARGEST:
            return None  # models of others, and data: nothing but a fault writes into them
        known = copies.get(id(tensor))
        if (
            known is not None
            and known.tensor is tensor
            and known.version == self.version
            and known.copy is not None
            and _same(tensor, known.copy)
        ):
            return known.copy
        try:
            return tensor.detach().clone()
        except (RuntimeError, NotImplementedError):  # without storage
            return None

    def put_back(self) -> None:
        """Write the former contents into it, if they changed.

        Raises:
            UnsupportedCombinationError: for a parameter, or a tensor that is too large for a copy.
        """
        tensor, copy = self.tensor, self.copy
        if not self._left or tensor.grad_fn is not None:
            return
        if copy is None:
            if tensor._version != self.version and not tensor.is_meta:
                raise self._written()
            return
        if tensor._version != self.version or (self._small and not torch.equal(tensor, copy)):
            with torch.no_grad():
                tensor.copy_(copy)
            self.version = tensor._version

    def check(self) -> None:
        """After a batch: raise UnsupportedCombinationError for changes without a write that torch counts."""
        tensor, copy = self.tensor, self.copy
        if not self._left or tensor.grad_fn is not None or self._small or tensor._version != self.version:
            return
        if copy is None:
            same = self._checksum is None or _checksum(tensor) == self._checksum
        else:
            same = _same(tensor, copy)
        if not same:
            raise self._written()

    def _written(self) -> UnsupportedCombinationError:
        return UnsupportedCombinationError(
            f"a call of the loss wrote into a {type(self.tensor).__name__} of shape "
            f"{tuple(self.tensor.shape)} that is not the model's: what one example leaves there would reach "
            "the others",
            supported="a loss that does not change tensors, such as the weights of another model",
        )


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same values, as far as torch compares them; NaN is the same as NaN."""
    if one.layout != torch.strided:
        return True
    return one.shape == other.shape and (
        torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124 - NaN
    )


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _checksum(tensor: Tensor) -> int | None:
    """A sum of the bits of a tensor."""
    if tensor.is_meta or not tensor.numel():
        return None
    try:
        with torch.no_grad():
            flat = tensor.detach().contiguous().flatten()
            return int(flat.view(_WORDS.get(tensor.element_size(), torch.uint8)).sum(dtype=torch.int64))
    except (RuntimeError, NotImplementedError):  # without storage
        return None


Copies: TypeAlias = dict[int, KeptTensor]


class _KeptArray(Kept):
    """The contents of a numpy array."""

    def __init__(self, held: Any) -> None:
        self._held, self._copy = held, held.copy()
        self.marks = self.values = [held.tobytes()] if held.size <= _LONGEST else [held.shape]

    def put_back(self) -> None:
        if self._held.flags.writeable and self._held.shape == self._copy.shape:
            np.copyto(self._held, self._copy)


def _atoms(values: Iterable[Any]) -> list[Any]:
    """The atoms among some values; for others that there is something."""
    found = list(values)
    if len(found) > _LONGEST:
        return [len(found)]
    return [one if type(one) in ATOMS else None if one is _MISSING else ... for one in found]


_Opened: TypeAlias = tuple[list[Kept], list[Any]]


class Walk:
    """Finds what can be changed from some values on.

    Followed are containers, attributes and slots of objects, unregistered modules with their tensors, and
    functions: variables of their closures, defaults, and the globals that their code names. Code of torch,
    numpy and the standard library is not followed, nor are globals of other installed packages.

    Args:
        members: not followed: the modules and tensors of the model.
        copies: of tensors, by identity, from an earlier walk.
        strict: whether hooks, caches and what torch does not count are kept too.

    Attributes:
        generators: the generators of random numbers that were found. Their states are not put back.
    """

    def __init__(self, members: Iterable[object], copies: Copies, *, strict: bool = False) -> None:
        self._strict = strict
        self.copies: Copies = {}
        self.generators: list[Any] = []
        self._earlier = copies
        self._stop = {id(one) for one in members}
        self._opened: dict[int, tuple[object, _Opened]] = {}
        self._reached: dict[int, list[Kept]] = {}
        self._left = _MOST

    @property
    def found(self) -> Iterator[Kept]:
        """Everything that was found."""
        return (kept for _, (own, _) in self._opened.values() for kept in own)

    @property
    def functions(self) -> list[types.FunctionType]:
        """The functions that were followed."""
        return [one for one, _ in self._opened.values() if isinstance(one, types.FunctionType)]

    def reach(self, value: Any) -> list[Kept]:
        """What can be changed from a value on, nearer ones first."""
        if type(value) in ATOMS:
            return []
        known = self._reached.get(id(value))
        if known is not None and id(value) in self._opened:
            return known
        found: list[Kept] = []
        self._left = _MOST
        seen, left, last = {id(value)}, deque([value]), deque[Any]()
        while left or last:
            own, inner = self._open((left or last).popleft())
            found += own
            # Data come after everything else.
            queue = last if len(inner) > _LONGEST else left
            for one in inner:
                if type(one) not in ATOMS and id(one) not in seen:
                    seen.add(id(one))
                    queue.append(one)
        self._reached[id(value)] = found
        return found

    def _open(self, value: Any) -> _Opened:
        known = self._opened.get(id(value))
        if known is not None:
            return known[1]
        if id(value) in self._stop or self._left <= 0:
            return [], []
        self._left -= 1
        opened = self._inner(value)
        self._opened[id(value)] = value, opened  # with the value, so that its identity stays its own
        return opened

    def _inner(self, value: Any) -> _Opened:
        match value:
            case Tensor():
                compared = len(self.copies) < _COMPARED
                kept = KeptTensor(value, self._earlier, compared=compared, summed=self._strict)
                if kept.copy is not None and value.grad_fn is None:
                    self.copies[id(value)] = kept
                beside = [*getattr(value, "__dict__", {}).values(), *hooks_of(value).values()]
                return [kept, *_attributes(value)], _branches(beside)
            case dict():
                return [KeptDict(value), *_attributes(value)], _branches([*dict.keys(value), *entries(value)])
            case list() | deque() | set() | bytearray() | array.array():
                return [_KeptSequence(value), *_attributes(value)], _branches(entries(value))
            case tuple() | frozenset():
                return [Kept(entries(value)), *_attributes(value)], _branches(entries(value))
            case np.ndarray():
                return [_KeptArray(value)], []
            case nn.Module() if root(type(value)) in _RUNS:
                return [], []
            case nn.Module():
                own = {name: one for name, one in vars(value).items() if name not in NOT_OWN}
                registered = value._buffers, value._parameters, value._modules
                parts = [KeptParts(vars(value))] if self._strict else []
                return [KeptDict(vars(value)), *parts], [
                    *own.values(),
                    *registered,
                    *_hooks(value),
                    type(value),
                ]
            case functools._lru_cache_wrapper() if self._strict and is_own(value.__module__):
                return [_KeptCache(value), *_attributes(value)], [value.__wrapped__]
            case types.FunctionType():
                return _function(value)
            case types.MethodType():
                return [], [value.__func__, value.__self__]
            case types.BuiltinMethodType() | types.MethodWrapperType():
                return [], [value.__self__]
            case functools.partial():
                return [*_attributes(value)], [value.func, *value.args, value.keywords]
            case type():
                return _class(value)
            case contextvars.ContextVar():
                kept_value = _KeptVariable(value)
                return [kept_value], [kept_value.value]
            case weakref.ReferenceType():
                return [], [value()]
            case memoryview():
                return [], [value.obj]
            case threading.local():
                return _attributes(value), [*vars(value).values(), type(value)]
            case types.ModuleType():
                return [], []
        if self._strict and is_iterator(value):
            return [_Advanced(value)], gc.get_referents(value)
        if isinstance(value, GENERATORS) and not isinstance(value, random.SystemRandom):
            if not any(value is one for one in global_generators()):  # as of `random.random`
                self.generators.append(value)
            return [], []
        return _object(value)


def _attributes(value: Any) -> list[Kept]:
    held = getattr(value, "__dict__", None)
    return [KeptDict(held)] if isinstance(held, dict) else []  # empty ones too: calls add to them


def _branches(values: Iterable[Any]) -> list[Any]:
    """Values of a container that are no atoms."""
    found = list(values)
    return [] if ATOMS.issuperset(map(type, found)) else found


def _hooks(part: nn.Module) -> list[Any]:
    return [hook for kind in HOOKS for hook in vars(part).get(kind, {}).values()]


def _function(function: types.FunctionType) -> _Opened:
    kept: list[_Place] = [_Place(cell, "cell_contents") for cell in function.__closure__ or ()]
    own = is_own(function.__module__)
    if own:
        code = function.__code__
        kept += [_Place(function.__globals__, name, item=True) for name in globals_read(code)]
        modules = [sys.modules.get(name) for name in _imported(function)]
        left = [one for one in [*(place.value for place in kept), *modules] if _is_own_module(one)]
        seen: set[int] = set()
        while left:  # modules of the user, and modules in them
            held = left.pop()
            if id(held) in seen:
                continue
            seen.add(id(held))
            # Also names that are only set yet.
            names = sorted((named(code) & vars(held).keys()) | attributes_set(code))
            more = [_Place(vars(held), name, item=True) for name in names]
            kept += more
            left += [one.value for one in more if _is_own_module(one.value)]
    inner = [one.value for one in kept]
    inner += [*(function.__defaults__ or ()), function.__kwdefaults__, *vars(function).values()]
    return [*kept, *_attributes(function)], inner


def _is_own_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and is_own(value.__name__)


def _imported(function: types.FunctionType) -> list[str]:
    """Full names of the modules that code imports within it."""
    found: list[str] = []
    package = function.__globals__.get("__package__") or ""
    for level, name, inner in imports(function.__code__):
        with suppress(ImportError):  # which the code meets too
            whole = resolve_name("." * level + name, package)
            found += itertools.accumulate(whole.split("."), "{}.{}".format)
            found += [f"{whole}.{one}" for one in inner]
    return found


def _class(kind: type) -> _Opened:
    kept: list[Kept] = []
    inner: list[Any] = []
    for base in kind.__mro__:
        if not is_own(base.__module__):
            continue
        kept.append(_KeptClass(base))
        for name, value in vars(base).items():
            used = list(functions(value))
            inner += used or ([] if _is_internal(name) else [value])
    return kept, inner


def _object(value: Any) -> _Opened:
    kind = type(value)
    name = kind.__module__
    if root(kind) == "dpmech":
        # Losses hold the user's; anything else is the run itself.
        inside = name in _LOSSES
        return [], [*vars(value).values()] if inside else []
    if isinstance(value, _CLOSED):
        return _attributes(value), []  # what they hold is large
    wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
    if known(name) and root(kind) not in _HOLDERS:
        return [], [wrapped]
    kept = _attributes(value)
    slots = [one for base in kind.__mro__ for one in _slots(base)]
    kept += [_Place(value, one) for one in slots]
    held = [*getattr(value, "__dict__", {}).values(), *(getattr(value, one, None) for one in slots)]
    return kept, [*_branches(held), wrapped, kind]


_HOLDERS = {
    "_weakrefset",
    "argparse",
    "collections",
    "dataclasses",
    "queue",
    "types",
    "weakref",
}  # of the standard library
_LOSSES = {"dpmech.optim.runs.example_loss"}
_RUNS = {"dpmech", "opacus"}  # whose modules hold the model in training, and their own state


def _slots(kind: type) -> list[str]:
    """The names of the slots that instances can be asked for."""
    return [name for name, one in vars(kind).items() if isinstance(one, types.MemberDescriptorType)]
