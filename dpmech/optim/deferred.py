"""Deferred: values of a device that a step reads all at once, before it releases anything."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Then: TypeAlias = Callable[[list[float]], None]

# Devices whose operations end before they return, so that reading a value costs nothing.
_AT_ONCE = frozenset({"cpu"})


def is_deferred(device: torch.device) -> bool:
    """Whether the host would wait for a value of this device: it queues operations, and runs them later."""
    return device.type not in _AT_ONCE


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without a wait for the device."""
    host = values.pin_memory() if device.type == "cuda" else values
    return host.to(device, non_blocking=True)


class Deferred:
    """Checks and counts of a batch whose values are still on a device.

    Reading one value makes the host wait until the device has done all its work, and meanwhile the device
    gets no more. So what a step has to know is computed on the device, collected here, and read once by
    `settle`, before anything is released. A check that fails stays, and fails again at every later step.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, Then, bool]] = []

    def add(self, values: Tensor, then: Then, *, counts: bool = False) -> None:
        """Note values for `settle`, or pass them on at once if the host does not wait for them.

        Args:
            values: of a device, float64, one dimension; integers up to 2^53 are exact.
            then: receives the values as numbers; a check raises.
            counts: whether it counts, and cannot fail: then it also runs if the batch is discarded.
        """
        if is_deferred(values.device):
            self._waiting.append((values, then, counts))
        else:
            then(values.tolist())

    def settle(self, also: Sequence[tuple[Tensor, Then]] = ()) -> None:
        """Read all values, with one wait for every device, and pass them on in order.

        Args:
            also: values that are read together with those that were noted, and are not kept.

        Raises:
            What a check raises, the first that fails; it and those after it remain.
        """
        if not self._waiting and not also:
            return
        read = _read([values for values, *_ in self._waiting] + [values for values, _ in also])
        more = read[len(self._waiting) :]
        for values in read[: len(self._waiting)]:
            _, then, counts = self._waiting[0]
            if counts:
                del self._waiting[0]  # first: after an interrupt nothing is counted twice
                then(values)
            else:
                then(values)
                del self._waiting[0]
        for values, (_, then) in zip(more, also, strict=True):
            then(values)

    def discard(self) -> None:
        """Forget the checks of a batch that is not released; what was counted is counted."""
        self._waiting = [one for one in self._waiting if one[2]]
        self.settle()


def _read(tensors: Sequence[Tensor]) -> list[list[float]]:
    places: dict[torch.device, list[int]] = {}
    for place, one in enumerate(tensors):
        places.setdefault(one.device, []).append(place)
    found: list[list[float]] = [[] for _ in tensors]
    for members in places.values():
        parts = [tensors[place] for place in members]
        left = iter(torch.cat(parts).tolist())
        for place, part in zip(members, parts, strict=True):
            found[place] = [next(left) for _ in range(part.numel())]
    return found
