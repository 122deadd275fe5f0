"""The largest physical batch that fits: what one example more needs, measured, against what is free."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["free_memory", "largest_batch", "memory_of"]

_SHARE = 0.5  # of what is free now: others want some, and allocators do not give all of it
_FEW, _MORE = 2, 6  # examples that are tried


def largest_batch(run: Callable[[int], object], device: torch.device, most: int) -> int:
    """How many examples may be held at once.

    Gradients of 2 and of 6 examples are computed; memory grows linearly from there. Half of what is free may
    be used.

    Args:
        run: computes the gradients of so many examples, and drops them.
        device: where.
        most: of interest, at least 1.

    Returns:
        In [1, most]; a power of two where it is less than `most`.
    """
    run(_FEW)  # what a first run sets up stays
    few, more = (memory_of(lambda count=count: run(count), device) for count in (_FEW, _MORE))  # type: ignore[misc]  # a default binds it
    each = max((more - few) / (_MORE - _FEW), 1.0)
    fixed = max(few - _FEW * each, 0.0)
    fits = int((_SHARE * free_memory(device) - fixed) / each)
    return most if fits >= most else 1 << max(fits.bit_length() - 1, 0)


def memory_of(run: Callable[[], object], device: torch.device) -> int:
    """The most that torch held at once during a run, beyond what it held before, in bytes.

    On CPUs without what operations need for themselves meanwhile.
    """
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return int(torch.cuda.max_memory_allocated(device) - before)
    found = _Held()
    with found:
        run()
    return found.most


class _Held(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, for as long as anything refers to them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.most = 0
        self._here: dict[Any, int] = {}
        self._before: set[Any] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Any = (),  # noqa: ANN401 - torch's signature
        kwargs: Any = None,  # noqa: ANN401 - the same
    ) -> Any:  # noqa: ANN401 - the same
        """Run the operation and look at what it gave."""
        del types
        reference: Any = StorageWeakRef  # untyped
        for one in tree_leaves((args, kwargs)):
            if isinstance(one, Tensor) and (ref := reference(one.untyped_storage())) not in self._here:
                self._before.add(ref)
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                storage = one.untyped_storage()
                ref = reference(storage)
                if ref not in self._before:
                    self._here[ref] = storage.nbytes()
        self._here = {ref: size for ref, size in self._here.items() if not ref.expired()}
        self.most = max(self.most, sum(self._here.values()))
        return result


def free_memory(device: torch.device) -> int:
    """Bytes that are free now: of the device, or of the machine and its control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = Path("/sys/fs/cgroup")
    try:
        free = _available()
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no such files: what the machine says counts
    return max(free, 0)


def _available() -> int:
    """What Linux could give without swapping, caches included."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no MemAvailable")
