"""What code refers to: names in bytecode, the functions of classes, and whose code it is."""

import dis
import functools
import gc
import random
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from dpmech.optim.state.generators import GENERATORS, global_generators

_CLOSED = (types.ModuleType, types.FrameType, torch.optim.Optimizer)
_ATOMS = {int, float, complex, bool, str, bytes, type(None)}
_LONG = 1000  # a container with more is data
_MOST = 5000  # objects that are followed
_KNOWN = {"torch", "numpy", "dpmech"}


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and the code objects nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


@functools.lru_cache(maxsize=4096)
def named(code: types.CodeType) -> frozenset[str]:
    """Names of globals and attributes, and identifiers among the constants, as in `getattr(x, "rate")`."""
    words = {
        text for one in codes(code) for text in one.co_consts if isinstance(text, str) and text.isidentifier()
    }
    return frozenset(name for one in codes(code) for name in one.co_names) | words


def _arguments(code: types.CodeType, *kinds: str) -> frozenset[str]:
    """The arguments of instructions of these kinds."""
    steps = (step for one in codes(code) for step in dis.get_instructions(one))
    return frozenset(str(step.argval) for step in steps if step.opname in kinds)


@functools.lru_cache(maxsize=4096)
def globals_read(code: types.CodeType) -> frozenset[str]:
    """Names of globals only."""
    return _arguments(code, "LOAD_GLOBAL", "LOAD_NAME")


@functools.lru_cache(maxsize=4096)
def imports(code: types.CodeType) -> list[tuple[int, str, tuple[str, ...]]]:
    """Imports within code: how many packages up, the module's name, and the names taken from it."""
    found = []
    for one in codes(code):
        loaded: list[Any] = []
        for step in dis.get_instructions(one):
            if step.opname == "IMPORT_NAME":
                level, names = loaded[-2:]
                found.append((int(level or 0), str(step.argval), tuple(names or ())))
            if step.opname != "EXTENDED_ARG":
                loaded.append(step.argval)
    return found


@functools.lru_cache(maxsize=4096)
def attributes_set(code: types.CodeType) -> frozenset[str]:
    """Names of attributes that code sets."""
    return _arguments(code, "STORE_ATTR")


def functions(value: object) -> Iterator[Callable[..., Any]]:
    """The functions behind an entry of a class."""
    match value:
        case types.FunctionType():
            yield value
        case staticmethod() | classmethod():
            yield value.__func__
        case property():
            yield from (one for one in (value.fget, value.fset, value.fdel) if one is not None)


def hooks_of(tensor: Any) -> dict[int, Any]:
    """The hooks of a tensor."""
    found: dict[int, Any] | None = tensor._backward_hooks
    return {} if found is None else found


def root(value: object) -> str:
    """The top-level package of a function, a method, a partial or an object."""
    while isinstance(value, functools.partial):
        value = value.func
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0]


def known(module: str | None) -> bool:
    """Whether the module's name identifies its code: the versions of Python and torch are compared anyway."""
    root = (module or "builtins").partition(".")[0]
    return root != "__main__" and (root in sys.stdlib_module_names or root in _KNOWN)


def is_own(module: str | None) -> bool:
    """Whether it is the user's code: what it refers to is followed."""
    return module is None or not (known(module) or installed(module))


@functools.cache
def installed(module: str) -> bool:
    """Whether a module belongs to an installed package."""
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    homes = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return file is not None and any(home in Path(file).resolve().parents for home in homes)


def generators_of(roots: Iterable[object]) -> list[Any]:
    """The generators of random numbers that objects refer to, except the global ones.

    Followed are attributes, containers and closures, and of the user's code classes and the globals that
    functions name: at most 5000 objects. Long containers, such as data, come last.
    """
    found: list[Any] = []
    others = {id(one) for one in global_generators()}
    seen: dict[int, object] = {}
    left, last = deque[object](roots), deque[object]()
    while (left or last) and len(seen) < _MOST:
        one = (left or last).popleft()
        if id(one) in seen or id(one) in others:
            continue
        if isinstance(one, GENERATORS):
            seen[id(one)] = one
            found += [one] if not isinstance(one, random.SystemRandom) else []
        elif not (type(one) in _ATOMS or isinstance(one, _CLOSED) or _is_run(one)):
            seen[id(one)] = one
            inner = _referents(one)
            (last if len(inner) > _LONG else left).extend(inner)
    return found


def _is_run(one: object) -> bool:
    """Whether it is part of a run, whose noise and batches have keys of their own."""
    return root(type(one)) == "dpmech" and not isinstance(one, Dataset)


def _referents(one: Any) -> list[Any]:
    if isinstance(one, type):
        return [*vars(one).values(), *one.__mro__[1:]] if is_own(one.__module__) else []
    if not isinstance(one, types.FunctionType):
        return gc.get_referents(one)
    used = globals_read(one.__code__) if is_own(one.__module__) else ()
    named = [one.__globals__.get(name) for name in used]
    return [*named, one.__closure__, one.__defaults__, one.__kwdefaults__, vars(one)]
