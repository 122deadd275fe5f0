"""What code refers to, and where it comes from."""

import dis
import functools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["functions", "globals_read", "installed", "known", "named", "root"]

_KNOWN = {"torch", "numpy", "dpmech"}


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def named(code: types.CodeType) -> frozenset[str]:
    """Names of globals and attributes, and words among the constants, as `getattr(settings, "rate")` has."""
    words = {
        text for one in codes(code) for text in one.co_consts if isinstance(text, str) and text.isidentifier()
    }
    return frozenset(name for one in codes(code) for name in one.co_names) | words


def globals_read(code: types.CodeType) -> frozenset[str]:
    """Names of globals alone."""
    reading = ("LOAD_GLOBAL", "LOAD_NAME")
    return frozenset(
        str(step.argval)
        for one in codes(code)
        for step in dis.get_instructions(one)
        if step.opname in reading
    )


def functions(value: object) -> Iterator[Callable[..., Any]]:
    """The functions behind an entry of a class."""
    match value:
        case types.FunctionType():
            yield value
        case staticmethod() | classmethod():
            yield value.__func__
        case property():
            yield from (one for one in (value.fget, value.fset, value.fdel) if one is not None)


def root(value: object) -> str:
    """The package of a function, a method, a partial or an object."""
    while isinstance(value, functools.partial):
        value = value.func
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0]


def known(module: str | None) -> bool:
    """Whether a name says what code does: that a checkpoint is of another Python or torch is said by it."""
    root = (module or "builtins").partition(".")[0]
    return root != "__main__" and (root in sys.stdlib_module_names or root in _KNOWN)


@functools.cache
def installed(module: str) -> bool:
    """Whether a module comes from a package."""
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    homes = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return file is not None and any(home in Path(file).resolve().parents for home in homes)
