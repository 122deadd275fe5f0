"""Digests of values, functions and modules, equal in every process that builds them in the same way."""

import enum
import functools
import hashlib
import itertools
import re
import types
from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dpmech.optim.state import HOOKS, NOT_OWN, functions, globals_read, installed, is_own, known, named, root

_Names: TypeAlias = frozenset[str] | None  # relevant attributes; None for all
_DEEPEST = 12
_MOST_VALUES = 1 << 16
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_BY_REPR = (range, slice, torch.dtype, torch.device, torch.layout, torch.memory_format, re.Pattern, PurePath)
_WATCHERS = {"dpmech", "opacus"}  # their hooks do not change results
# Modules whose objects call a loss.
_AROUND = ("dpmech.optim.runs.example_loss", "dpmech.optim.hf.private_run", "dpmech.optim.hf.embedding_noise")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


class Printer:
    """Turns values into SHA-256 digests.

    It covers plain values, tensors, arrays, images (mode, size and pixels), enumerations, containers of
    them, and attributes of objects. A function is digested as its bytecode, constants, names and defaults,
    the contents of its closure, and the globals that it reads, again including functions; objects and modules
    reached in this way contribute the attributes that the code names. The standard library, numpy and torch
    are identified by name; other installed packages contribute their code, but not what it refers to. An
    nn.Module is its structure with its hooks and the values of its tensors, except those in `apart`.

    Args:
        apart: the model in training: its tensors change, and a checkpoint restores them.
        home: a value whose package is followed although it is installed, to plain globals and functions.
        most: limit on the values read of a tensor, and on the number of other objects in total.

    Attributes:
        complete: whether all objects reached were covered.
        coded: whether bytecode was included: it differs between Python versions.
    """

    def __init__(
        self, apart: nn.Module | None = None, *, home: object = None, most: int = _MOST_VALUES
    ) -> None:
        self.complete = True
        self.coded = False
        self._most = self._left = most
        self._home = root(home)
        members = [] if apart is None else [*apart.modules(), *apart.parameters(), *apart.buffers()]
        self._apart = {id(member): member for member in members}
        self._open: set[int] = set()
        self._done: dict[int, tuple[object, bytes]] = {}  # functions and classes, often shared

    def of(self, value: Any, names: _Names = None, depth: int = _DEEPEST) -> bytes:
        """The digest of a value."""
        self._left -= 1
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            return _hashed(type(value).__name__, repr(value))
        if id(value) in self._done:
            return self._done[id(value)][1]
        if id(value) in self._open:
            return _hashed("again")
        if depth == 0 or self._left <= 0:
            return self._unknown("too deep, or too much")
        self._open.add(id(value))
        try:
            digest = self._inner(value, names, depth - 1)
        finally:
            self._open.discard(id(value))
        if isinstance(value, types.FunctionType | type):
            self._done[id(value)] = value, digest
        return digest

    def model(self, model: nn.Module) -> bytes:
        """The structure of the model in training, which a checkpoint of its tensors does not contain."""
        return self._module(model, _DEEPEST)

    def _inner(self, value: Any, names: _Names, depth: int) -> bytes:
        match value:
            case Tensor():
                return self._tensor(value)
            case np.ndarray() | np.generic():
                return self._array(value, depth)
            case bytearray() | memoryview():
                return _hashed("bytes", bytes(value))
            case enum.Enum():
                return _hashed("enum", type(value).__qualname__, value.name)
            case dict():
                pairs = sorted(
                    (self.of(key, None, depth), self.of(one, names, depth))
                    for key, one in self._first(value.items())
                )
                return _hashed("dict", str(len(value)), *(part for pair in pairs for part in pair))
            case set() | frozenset():
                if len(value) > self._left:  # the order of elements differs between processes
                    return self._unknown("set", str(len(value)))
                return _hashed("set", *sorted(self.of(one, names, depth) for one in value))
            case torch.Size():
                return _hashed("size", repr(tuple(value)))
            case tuple() | list():
                items = [self.of(one, names, depth) for one in self._first(value)]
                return _hashed(type(value).__name__, str(len(value)), *items)
            case types.CodeType():
                return self._code(value, depth)
            case types.FunctionType():
                return self._function(value, depth)
            case types.MethodType():
                used = named(value.__func__.__code__) if hasattr(value.__func__, "__code__") else frozenset()
                return _hashed(
                    "method", self.of(value.__func__, None, depth), self.of(value.__self__, used, depth)
                )
            case functools.partial():
                parts = value.func, list(value.args), value.keywords
                return _hashed("partial", *(self.of(part, names, depth) for part in parts))
            case type():
                return self._class(value, depth)
            case types.ModuleType():
                if names is None or not is_own(value.__name__):
                    return _hashed("module", value.__name__)
                return _hashed("module", *self._attributes(vars(value), names, depth))
            case nn.Module():
                return _hashed("the model") if id(value) in self._apart else self._module(value, depth)
            case _ if isinstance(value, _BY_REPR):
                return _hashed(type(value).__name__, repr(value))
            case types.BuiltinFunctionType():
                return _hashed("built in", str(value.__module__), value.__qualname__)
        return self._object(value, names, depth)

    def _tensor(self, value: Tensor) -> bytes:
        shape = _hashed("tensor", str(value.dtype), repr(tuple(value.shape)))
        if id(value) in self._apart:
            return shape
        try:
            flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
            if flat.numel() > self._most:
                self.complete = False
            kept = flat[: self._most].cpu().contiguous()
            return _hashed("values", shape, kept.view(torch.uint8).numpy().tobytes())
        except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantised, meta
            return self._unknown("tensor", shape)

    def _array(self, value: Any, depth: int) -> bytes:
        kept = np.asarray(value)
        if kept.dtype.hasobject:
            return _hashed("objects", repr(kept.shape), self.of(kept.reshape(-1).tolist(), None, depth))
        if kept.size > self._most:
            self.complete = False
        flat = np.ascontiguousarray(kept.reshape(-1)[: self._most])
        return _hashed("array", str(kept.dtype), repr(kept.shape), flat.tobytes())

    def _code(self, code: types.CodeType, depth: int) -> bytes:
        """The effect of the code, without its location and name."""
        self.coded = True
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        constants = (self.of(one, None, depth) for one in code.co_consts)
        return _hashed("code", code.co_code, code.co_exceptiontable, repr(counts), repr(names), *constants)

    def _function(self, function: types.FunctionType, depth: int) -> bytes:
        used = named(function.__code__)
        cells = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                cells += [name.encode(), self.of(cell.cell_contents, used, depth)]
            except ValueError:  # an empty cell
                cells += [name.encode(), b""]
        if known(function.__module__):
            inner = getattr(function, "__wrapped__", None)
            cells = cells if inner is None else [self.of(inner, used, depth)]
            return _hashed("known", str(function.__module__), function.__qualname__, *cells)
        parts: list[bytes | str] = [self._code(function.__code__, depth)]
        parts += [self.of(one, used, depth) for one in (function.__defaults__, function.__kwdefaults__)]
        parts += ["closure", *cells, "globals"]
        if not (is_own(function.__module__) or root(function) == self._home):
            return _hashed("installed", *parts)
        for name in sorted(globals_read(function.__code__)):
            if name not in function.__globals__:
                continue
            # The registries of a package may be filled in another order next time.
            simple = (types.FunctionType, Tensor, np.ndarray)
            value = function.__globals__[name]
            if not installed(function.__module__) or isinstance(value, simple) or _is_plain(value):
                parts += [name, self.of(value, used, depth)]
        return _hashed("function", *parts)

    def _class(self, kind: type, depth: int) -> bytes:
        """Functions and plain attributes of a class and of its bases outside known packages."""
        if known(kind.__module__):
            return _hashed("class", kind.__module__, kind.__qualname__)
        parts: list[bytes | str] = [kind.__qualname__]
        for base in kind.__mro__:
            if known(base.__module__):
                parts.append(f"{base.__module__}.{base.__qualname__}")
                continue
            for name, value in sorted(vars(base).items()):
                if isinstance(value, _PLAIN) and not name.startswith("__"):
                    parts += [name, self.of(value)]
                for function in functions(value):
                    if is_own(base.__module__):
                        parts += [name, self.of(function, None, depth)]
                    elif isinstance(function, types.FunctionType):
                        parts += [name, self._code(function.__code__, depth)]
        return _hashed("class", *parts)

    def _module(self, module: nn.Module, depth: int) -> bytes:
        parts: list[bytes | str] = []
        for name, part in module.named_modules():
            kind = type(part)
            parts += [name, self._class(kind, depth), _ADDRESS.sub("0x", part.extra_repr())]
            own = self._code_names(kind)
            for key, value in sorted(vars(part).items()):
                if key in NOT_OWN:
                    continue
                if key == "forward" or (key in own if own else _is_plain(value)):
                    parts += [key, self.of(value, own, depth)]
            for key, hook in _hooks(part, HOOKS):
                parts += [key, self.of(hook, frozenset(), depth)]
            for key, param in part.named_parameters(recurse=False):
                parts += [key, repr(param.requires_grad), self._tensor(param)]
                for kind_of_hook, hook in _hooks(param, ("_backward_hooks",)):
                    parts += [kind_of_hook, self.of(hook, frozenset(), depth)]
            for key, buffer in part.named_buffers(recurse=False):
                # Buffers that are not saved with the model must be built identically.
                saved = key not in part._non_persistent_buffers_set
                parts += [key, repr(saved), self._tensor(buffer)]
                if not saved and self._apart.pop(id(buffer), None) is not None:
                    parts.append(self._tensor(buffer))
        return _hashed("modules", *parts)

    def _object(self, value: Any, names: _Names, depth: int) -> bytes:
        kind = type(value)
        if all(hasattr(value, name) for name in ("mode", "size", "tobytes")):  # an image of PIL
            return _hashed("image", str(value.mode), repr(value.size), value.tobytes())
        if hasattr(value, "__array_interface__"):
            return self._array(np.asarray(value), depth)
        if hasattr(value, "__wrapped__"):
            return _hashed("wrapped", kind.__qualname__, self.of(value.__wrapped__, names, depth))
        slots = [name for base in kind.__mro__ for name in _slots(base)]
        held = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(
            value, "__dict__", {}
        )
        if kind.__module__ in _AROUND:
            parts = [part for name in sorted(held) for part in (name, self._apiece(held[name], depth))]
            return _hashed("around", kind.__qualname__, *parts)
        own = self._code_names(kind)
        if any(name in vars(base) for base in kind.__mro__[:-1] for name in ("__getstate__", "__reduce__")):
            self.complete = False  # its state may be stored elsewhere
        counted = names if names is None else names | own
        if counted is not None and root(value) == self._home:  # settings of an object of the followed package
            counted |= {name for name, one in held.items() if _is_plain(one) and not name.startswith("_")}
        label = self._class(kind, depth)
        if not held and own:
            return _hashed("object", label)
        if not held or not (counted is None or counted & held.keys()):
            return self._unknown("object", label)
        return _hashed("object", label, *self._attributes(held, counted, depth))

    def _apiece(self, value: Any, depth: int) -> bytes:
        """The digest of a part of a loss of dpmech, as if the run had it alone."""
        before, self._home = self._home, root(value)
        try:
            return self.of(value, frozenset(), depth)
        finally:
            self._home = before

    def _attributes(self, held: dict[str, Any], names: _Names, depth: int) -> Iterator[bytes | str]:
        for name in sorted(held):
            if names is None or name in names:
                yield name
                yield self.of(held[name], names, depth)

    def _code_names(self, kind: type) -> frozenset[str]:
        """The names in the code of a class, if it is followed."""
        return frozenset(
            name
            for base in kind.__mro__
            if is_own(base.__module__)
            for value in vars(base).values()
            for function in functions(value)
            if hasattr(function, "__code__")
            for name in named(function.__code__)
        )

    def _first(self, values: Collection[Any]) -> Iterator[Any]:
        """As many values as the limit still allows."""
        if len(values) > self._left:
            self.complete = False
        return itertools.islice(values, max(self._left, 0))

    def _unknown(self, *parts: bytes | str) -> bytes:
        self.complete = False
        return _hashed("unknown", *parts)


def code_digest(code: types.CodeType) -> str:
    """A SHA-256 digest (hex) of bytecode and its constants, excluding everything that it refers to."""
    return Printer().of(code).hex()


def _hooks(owner: nn.Module | Tensor, kinds: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Hooks that may change the result of a forward or backward pass."""
    for kind in kinds:
        for hook in (getattr(owner, kind, None) or {}).values():
            own = type(getattr(hook, "__self__", None)).__module__
            if root(hook) not in _WATCHERS and not own.startswith("torch.distributed."):
                yield kind, hook


def _hashed(*parts: bytes | str) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple | list) and all(map(_is_plain, value)))


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
