"""Arithmetic of a device that gives the same bits when steps are repeated, and whether a run has it."""

import operator
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from dpmech.exceptions import InvalidParameterError
from dpmech.optim.deferred import is_deferred
from dpmech.optim.processes import Group, order_of_sums

_KEYS = {"repeats", "devices"}
# Settings of torch.backends that choose kernels or the precision of products, as torch has them at first.
_SETTINGS = {
    "cuda.matmul.allow_tf32": False,
    "cuda.matmul.fp32_precision": "none",
    "cudnn.conv.fp32_precision": "tf32",
    "cudnn.enabled": True,
    "cudnn.rnn.fp32_precision": "tf32",
    "fp32_precision": "none",
    "mkldnn.enabled": True,
    "mkldnn.matmul.fp32_precision": "none",
}


@contextmanager
def in_fixed_order(device: torch.device) -> Iterator[None]:
    """A context in which torch adds values at given indices in a fixed order, on devices with threads.

    For the sums of this library alone: other kernels of the context are not refused.
    """
    if not is_deferred(device) or torch.are_deterministic_algorithms_enabled():
        yield
        return
    torch.set_deterministic_debug_mode("warn")  # the other function also sets the compiler's own setting
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


class Arithmetic:
    """Whether a repetition of steps gives the same bits, as far as torch's settings say.

    On the CPU it does, with as many threads, the same kind of processor and the same precision of products.
    On another device the kernels of a model may add in any order, unless
    `torch.use_deterministic_algorithms(True)` is set and cudnn does not choose kernels by their speed. A run
    that goes on on another kind of device rounds differently, and so may one whose processes are on other
    machines or use another version of NCCL, see `order_of_sums`.

    Args:
        devices: of the parameters.
        group: the processes that train together. All of them make one at the same time.

    Attributes:
        repeats: whether all steps so far are such, those before a loaded state included.
    """

    def __init__(self, devices: Iterable[torch.device], group: Group = None) -> None:
        self._devices = list(dict.fromkeys(devices))
        self._first: list[str] | None = None  # names at the first step
        self._order = order_of_sums(group)
        self.repeats = True
        self._warned = False

    def note_step(self) -> None:
        """Look at the settings, before a step is released."""
        names = self._names()
        self._first = names if self._first is None else self._first
        self.repeats = self.repeats and self._is_fixed() and names == self._first

    def check_saved(self) -> None:
        """Warn once, where a state is saved, if steps that are repeated from it may give other bits."""
        if self._warned or (self.repeats and self._is_fixed()):
            return
        self._warned = True
        names = ", ".join(self._names())
        warnings.warn(
            f"steps on {names} after this state may be rounded differently if they are repeated: two sums "
            "under the same noise then reveal their difference, and the record of a resumed run says so. "
            "torch.use_deterministic_algorithms(True) before the first step, and "
            "torch.backends.cudnn.benchmark = False, fix the order of additions, on a CPU the same number of "
            "threads; older versions of torch then also require CUBLAS_WORKSPACE_CONFIG=:4096:8 in the "
            "environment",
            RuntimeWarning,
            stacklevel=3,
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a state."""
        return {"repeats": self.repeats, "devices": (self._first or self._names()) + self._order}

    def load_state_dict(self, state: object) -> None:
        """Go on from a state; one without an entry was saved before there was one.

        Raises:
            InvalidParameterError: if it is malformed.
        """
        if state is None:
            self.repeats = not any(map(is_deferred, self._devices))
            return
        if not isinstance(state, dict) or set(state) != _KEYS or not isinstance(state["repeats"], bool):
            raise InvalidParameterError("state of the arithmetic", state, f"a dict with {sorted(_KEYS)}")
        self.repeats = state["repeats"] and state["devices"] == self._names() + self._order

    def _is_fixed(self) -> bool:
        return not any(map(is_deferred, self._devices)) or (
            torch.are_deterministic_algorithms_enabled()
            and not torch.is_deterministic_algorithms_warn_only_enabled()
            and not torch.backends.cudnn.benchmark
        )

    def _names(self) -> list[str]:
        """Kinds of the devices, of processors with the number of threads, and settings that were changed."""
        processor = f"cpu, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
        names = sorted({processor if one.type == "cpu" else _kind(one) for one in self._devices})
        for name, first in _SETTINGS.items():
            with suppress(AttributeError, RuntimeError):  # not there, or set in torch's other way
                value = operator.attrgetter(name)(torch.backends)
                names += [f"{name}={value}"] * (value != first)
        return names


def _kind(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
