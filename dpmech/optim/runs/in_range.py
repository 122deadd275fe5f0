"""Trials on GPUs: an index out of range raises an error of the CPU, and never meets the device."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_ATEN = torch.ops.aten
# Arguments whose values CUDA asserts inside of a kernel: no process survives that, as every later call fails
# too.
_INDICES = {"index", "indices", "target"}
_VALUED = {_ATEN.binary_cross_entropy}  # asserts that its inputs are in [0, 1]


class _InRange(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Runs such operations on the CPU first, with zeros for fractions, which raises what it raises there."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation unless the CPU refuses it."""
        del types
        kwargs = kwargs or {}
        packet = getattr(func, "overloadpacket", None)
        if _takes_indices(func) or packet is _ATEN._assert_async or packet in _VALUED:
            devices = {one.device.type for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
            if devices - {"cpu", "meta"}:
                _run_here(func, args, kwargs, values=packet in _VALUED)
        return func(*args, **kwargs)


@functools.cache
def _takes_indices(func: Any) -> bool:
    """Whether an operation of torch has a tensor of indices among its arguments."""
    return getattr(func, "namespace", "") == "aten" and any(
        one.name in _INDICES and "Tensor" in str(one.type) for one in func._schema.arguments
    )


def _run_here(func: Any, args: Any, kwargs: Any, *, values: bool) -> None:
    def here(one: Any) -> Any:
        if isinstance(one, torch.device):  # of the result, as of the gradient of a sparse embedding
            return torch.device("cpu")
        if not isinstance(one, Tensor):
            return one
        if not (one.is_floating_point() or one.is_complex()):
            return one.to("cpu", copy=True)
        # In a precision in which the CPU has all operations.
        dtype = torch.complex64 if one.is_complex() else torch.float32
        if values:
            return one.to("cpu", copy=True).to(dtype)
        return torch.zeros((), dtype=dtype).expand(one.shape)  # an embedding may be large

    given, named = tree_map(here, (list(args), dict(kwargs)))
    for place, argument in enumerate(func._schema.arguments[: len(given)]):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given[place] = given[place].clone(memory_format=torch.contiguous_format)
    try:
        func(*given, **named)
    except NotImplementedError:
        return  # the CPU does not tell


@contextmanager
def in_range() -> Iterator[bool]:
    """Check indices before a device meets them, while a model or a loss is tried on values it may refuse.

    Yields:
        Whether they are checked: not without an accelerator, as the CPU raises an error itself. Compiled
            functions run uncompiled then.
    """
    if not torch.accelerator.is_available():
        yield False
        return
    # Compiled functions do not show their operations, and some refuse to be called where they would.
    with torch.compiler.set_stance("force_eager"), _InRange():  # type: ignore[no-untyped-call]  # torch's
        yield True
