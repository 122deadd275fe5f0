"""An accelerator without hardware: it computes on the CPU, and behaves like CUDA otherwise.

Its tensors report another device, refuse to meet those of the CPU, and draw from a generator of their own.
Every read of a value that would make the host wait for the device is counted.
"""

import traceback
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from dpmech.optim.runs import measured_choice
from dpmech.optim.state import afresh, generators

_NAME = "pretend"
_ATEN = torch.ops.aten
_COPIES = (_ATEN._to_copy.default, _ATEN.copy_.default)
# What a device answers only after it has finished: values, and results whose shape depends on values.
_WAITS = {
    _ATEN._local_scalar_dense,
    _ATEN.equal,
    _ATEN.nonzero,
    _ATEN.masked_select,
    _ATEN.unique_dim,
    _ATEN._unique,
    _ATEN._unique2,
    _ATEN.bincount,
    _ATEN._linalg_check_errors,
}
# An index out of range ends the context of the device: no later call works, whoever catches the error.
_ASSERTED = {
    _ATEN.embedding,
    _ATEN.index_select,
    _ATEN.gather,
    _ATEN.scatter,
    _ATEN.scatter_,
    _ATEN.scatter_add,
    _ATEN.index,
    _ATEN.index_add,
    _ATEN.index_put,
    _ATEN.take,
    _ATEN._embedding_bag,
    _ATEN._embedding_bag_forward_only,
    _ATEN.nll_loss_forward,
    _ATEN.nll_loss2d_forward,
    _ATEN.max_unpool2d,
    _ATEN.binary_cross_entropy,
}
_INDEXED = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_}


class _Hook(getattr(backend_registration, "_DummyPrivateUse1Hook", object)):
    pass


class _Backend(getattr(backend_registration, "_DummyBackendModule", object)):
    """The module `torch.pretend`; other tests of this process see no accelerator."""

    used = False
    lost = False
    generator = torch.Generator()  # torch.manual_seed seeds it too, as it does those of CUDA

    def is_available(self):
        return self.used

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):
        self.generator.manual_seed(seed)

    def synchronize(self):
        _note("synchronize")

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]


_BACKEND = _Backend()


def known():
    """Whether this torch can register a device from Python."""
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


def other():
    """The device."""
    if not hasattr(torch, _NAME):
        backend_registration._setup_privateuseone_for_python_backend(
            _NAME, backend_module=_BACKEND, hook=_Hook()
        )
    return torch.device(_NAME, 0)


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
            device=other(),
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def __reduce_ex__(self, protocol):
        """Files hold the values: they are read onto the CPU."""
        return self.values.__reduce_ex__(protocol)


class Waits:
    """What made the host wait.

    Attributes:
        reads: the operations that returned values of the device to the host, each with the line that asked.
        uploads: the copies to the device that block, as copies from ordinary memory do.
    """

    def __init__(self):
        self.reads = []
        self.uploads = []

    def clear(self):
        self.reads, self.uploads = [], []


_COUNTED = []


@contextmanager
def other_device():
    """While it lasts, `.to(other())` and `device=other()` make tensors there; counts what waits for them."""
    waits = Waits()
    other()
    _COUNTED.append(waits)
    _BACKEND.used, _BACKEND.lost = True, False
    try:
        # A backward pass runs in this thread: those of the engine need more of a backend than Python has.
        # (For the same reason an error in a hook of a backward pass ends the process instead of the test.)
        with (
            torch.autograd.set_multithreading_enabled(False),
            _Dispatched(),
            _Written(),
            _generator_known(),
            mock.patch.object(measured_choice, "least_seconds", _as_long),
        ):
            yield waits
    finally:
        _COUNTED.remove(waits)
        _BACKEND.used = bool(_COUNTED)


def _as_long(run, device, best, begin):
    """Every way to clip takes as long as another, so that tests choose the same one every time."""
    del device, best
    begin()
    run()
    return 1.0


@contextmanager
def _generator_known():
    """The library finds the generator where it would find those of CUDA."""
    everywhere = generators.global_generators

    def found():
        others = everywhere()
        return others if _BACKEND.generator in others else [*others, _BACKEND.generator]

    with (
        mock.patch.object(generators, "global_generators", found),
        mock.patch.object(afresh, "global_generators", found),
    ):
        yield


@contextmanager
def _drawing():
    """Random operations of the CPU draw from the device's generator."""
    held = torch.default_generator.get_state()
    torch.default_generator.set_state(_BACKEND.generator.get_state())
    try:
        yield
    finally:
        _BACKEND.generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(held)


def _place():
    """The line of the library that asked."""
    frames = traceback.extract_stack()
    own = [one for one in frames if "/dpmech/" in one.filename]
    last = (own or frames)[-1]
    return f"{last.filename.split('/dpmech/')[-1]}:{last.lineno} {last.line}"


def _note(what, *, upload=False):
    for waits in _COUNTED:
        (waits.uploads if upload else waits.reads).append(f"{what} at {_place()}")


class _Written(TorchFunctionMode):
    """What torch does before it dispatches: tensors from numbers, and numbers from tensors."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        asked = kwargs.get("device")
        if func is torch.tensor and asked is not None and torch.device(asked).type == _NAME:
            return torch.tensor(*args, **kwargs | {"device": None}).to(other())
        if args and isinstance(args[0], There):
            if func is torch.Tensor.numpy:
                raise TypeError(f"can't convert {_NAME}:0 device type tensor to numpy")
            if func is torch.Tensor.tolist:
                _note("tolist")
                return func(args[0].values, *args[1:], **kwargs)
            if func is torch.Tensor.data_ptr:
                return args[0].values.data_ptr()
        return func(*args, **kwargs)


class _Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    """Run an operation where its tensors are."""
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    there = [one for one in tensors if isinstance(one, There)]
    asked = kwargs.get("device")
    asked_there = asked is not None and torch.device(asked).type == _NAME
    if there and func not in _COPIES:
        for one in tensors:
            if not isinstance(one, There) and one.ndim:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    f"{other()} and {one.device}! ({func})"
                )
    if not there and not asked_there:
        return func(*args, **kwargs)
    goes = bool(there) if asked is None else asked_there
    if func is _COPIES[1]:
        goes = isinstance(args[0], There)
    _count(func, tensors, there, goes=goes, blocks=not kwargs.get("non_blocking", False))
    given, named = tree_map(lambda one: one.values if isinstance(one, There) else one, (args, kwargs))
    if asked is not None:
        named["device"] = torch.device("cpu")
    draws = torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None
    if _BACKEND.lost:
        raise RuntimeError("device-side assert triggered")
    try:
        with _drawing() if draws else nullcontext():
            found = func(*given, **named)
    except (IndexError, RuntimeError) as error:
        if func.overloadpacket not in _ASSERTED:
            raise
        _BACKEND.lost = True
        raise RuntimeError("device-side assert triggered") from error
    written = [
        one for one, argument in zip(args, func._schema.arguments, strict=False) if _is_written(argument)
    ]
    if written and isinstance(found, torch.Tensor):
        if torch.Tag.inplace_view in func.tags:
            with no_dispatch():
                func(*args, **kwargs)  # the shape of the outer tensor
        return written[0]
    return tree_map(lambda one: There(one) if goes and isinstance(one, torch.Tensor) else one, found)


def _count(func, tensors, there, *, goes, blocks):
    packet = func.overloadpacket
    if func in _COPIES:
        source = tensors[-1]
        if there and not goes:
            _note("a copy to the CPU")
        elif goes and not isinstance(source, There) and blocks:
            _note("a copy to the device", upload=True)
    elif packet in _WAITS or (
        packet in _INDEXED and any(one.dtype in (torch.bool, torch.uint8) for one in there[1:])
    ):
        _note(str(packet))


def _is_written(argument):
    return argument.alias_info is not None and argument.alias_info.is_write


def moved(model):
    """The model with its tensors on the other device (`.to` would keep the Python type of parameters)."""
    for layer in model.modules():
        for name, param in layer.named_parameters(recurse=False):
            there = torch.nn.Parameter(There(param.detach().clone()), requires_grad=param.requires_grad)
            layer.register_parameter(name, there)
        for name, buffer in layer.named_buffers(recurse=False):
            layer._buffers[name] = There(buffer.detach().clone())
    return model
