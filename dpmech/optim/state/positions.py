"""Positions: how far iterators and generators have got, as far as Python tells."""

import operator
import types
import warnings
from collections.abc import Iterator
from typing import Any

_HOMES = {"builtins", "itertools"}


def is_iterator(value: object) -> bool:
    """Whether it is a generator, or an iterator of Python itself."""
    return isinstance(value, Iterator) and type(value).__module__ in _HOMES


def position(held: Any) -> tuple[Any, ...]:
    """What changes as an iterator is advanced; what it iterates over has its own position.

    Args:
        held: an iterator for which `is_iterator` holds.

    Returns:
        Objects that are compared by identity, and atoms.
    """
    if isinstance(held, types.GeneratorType):
        frame = held.gi_frame
        if frame is None:
            return ("ended",)
        here = frame.f_locals
        own = [*frame.f_code.co_varnames, *frame.f_code.co_cellvars]
        return (frame.f_lasti, *(here.get(name) for name in own))
    kind = type(held).__qualname__
    if kind in {"count", "repeat"}:
        return (repr(held),)  # which holds the next number
    if kind == "cycle":
        return _in_cycle(held)
    try:
        return (operator.length_hint(held, -1),)
    except Exception:  # noqa: BLE001 - a hint of the user's may raise anything
        return ()


def _in_cycle(held: Any) -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        try:
            _, (inner,), (found, _) = held.__reduce__()
        except (TypeError, ValueError):  # without it, as in newer versions of Python
            return ()
    return operator.length_hint(inner, -1), len(found)


def same_position(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two positions of an iterator are the same."""
    return len(one) == len(other) and all(
        mine is theirs or (type(mine) is type(theirs) and type(mine) in {int, str} and mine == theirs)
        for mine, theirs in zip(one, other, strict=True)
    )
