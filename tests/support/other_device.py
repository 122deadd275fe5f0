"""A second device without hardware: its tensors refuse to meet those of the CPU, as CUDA's do."""

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

OTHER = torch.device("cpu:1")
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
_TAKEN_OUT = (torch.ops.aten._local_scalar_dense.default,)


class There(torch.Tensor):
    """A tensor that says it is on the other device; its values are in an ordinary one."""

    @staticmethod
    def __new__(cls, values):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=OTHER,
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


@contextmanager
def other_device():
    """While it lasts, `.to(OTHER)` and `device=OTHER` make tensors there."""
    with _Dispatched(), _Written():
        yield


class _Written(TorchFunctionMode):
    """What torch does before it dispatches: tensors from numbers, and numbers from tensors."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") == OTHER:
            return torch.tensor(*args, **kwargs | {"device": None}).to(OTHER)
        if func in (torch.Tensor.tolist, torch.Tensor.numpy) and isinstance(args[0], There):
            return func(args[0].values, *args[1:], **kwargs)
        return func(*args, **kwargs)


class _Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    """Run an operation where its tensors are."""
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    there = [one for one in tensors if isinstance(one, There)]
    asked = kwargs.get("device")
    if there and func not in _COPIES:
        for one in tensors:
            if not isinstance(one, There) and one.ndim:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    f"{OTHER} and {one.device}! ({func})"
                )
    if not there and (asked is None or torch.device(asked) != OTHER):
        return func(*args, **kwargs)
    goes = bool(there) if asked is None else torch.device(asked) == OTHER
    if func is _COPIES[1]:
        goes = isinstance(args[0], There)
    given, named = tree_map(lambda one: one.values if isinstance(one, There) else one, (args, kwargs))
    if asked is not None:
        named["device"] = torch.device("cpu")
    found = func(*given, **named)
    written = [
        one for one, argument in zip(args, func._schema.arguments, strict=False) if _is_written(argument)
    ]
    if written and isinstance(found, torch.Tensor):
        return written[0]
    return tree_map(lambda one: There(one) if goes and isinstance(one, torch.Tensor) else one, found)


def _is_written(argument):
    return argument.alias_info is not None and argument.alias_info.is_write


def moved(model):
    """The model with its parameters on the other device (`.to` would keep the Python type of parameters)."""
    for layer in model.modules():
        for name, param in layer.named_parameters(recurse=False):
            there = torch.nn.Parameter(There(param.detach().clone()), requires_grad=param.requires_grad)
            layer.register_parameter(name, there)
    return model
