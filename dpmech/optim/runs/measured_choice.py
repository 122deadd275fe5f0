"""The fastest way to clip on an accelerator, from times of public examples."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from dpmech.optim.clipping import Batch, Clipping, ClippingMode, ExampleGradients
from dpmech.optim.runs.clipping_choice import ClippingChoice, choose

# Costs of factors to try, as multiples of their estimates; with 0 every layer that has factors uses them.
_FACTOR_COSTS = (1.0, 0.25, 4.0, 0.0)
_REPEATS = 3
# The estimated choice stays unless another takes less than this share of its time, so that starts rarely
# differ.
_FASTER = 0.9
# A way whose first call takes this many times the least time so far is not timed again.
_HOPELESS = 3.0


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to clip that gives the exact gradients.

    Attributes:
        mode: "per_example" or "ghost".
        factor_cost: as for `ClippingChoice`.
        covered: the parameters with factors.
    """

    mode: ClippingMode
    factor_cost: float
    covered: frozenset[str]

    def __str__(self) -> str:
        return f"{self.mode} ({len(self.covered)} by factors)" if self.covered else self.mode


def is_timed(batch: Batch) -> bool:
    """Whether ways are timed where a batch is: not on CPUs, on which equal seeds give equal bits."""
    return batch.tensors[0].device.type != "cpu"


def exact_ways(
    choice: ClippingChoice,
    made: Callable[[float], Mapping[ClippingMode, ExampleGradients]],
    batch: Batch,
    begin: Callable[[], object],
) -> list[Way]:
    """Gradients, and factors of different weights where they give the same gradients; the chosen way first.

    Args:
        choice: by the estimates.
        made: makes the modes, given the cost of factors.
        batch: of public examples whose gradients can be compared.
        begin: called before every trial.
    """
    ways = [Way("per_example", 1.0, frozenset())]
    for cost in _FACTOR_COSTS:
        modes = made(cost)
        try:
            begin()
            covered = modes["ghost"].covered(batch, batch.tensors)
            if not covered or any(one.covered == covered for one in ways):
                continue
            begin()
            choose("ghost", modes, batch, batch.tensors, begin=begin)
        except Exception:  # noqa: BLE001 - whatever only factors meet
            continue
        ways.append(Way("ghost", cost, covered))
    return sorted(ways, key=lambda one: (one.mode, one.factor_cost) != (choice.mode, choice.factor_cost))


def fastest(
    ways: Sequence[Way],
    made: Callable[[float], Mapping[ClippingMode, ExampleGradients]],
    batch: Batch,
    clipping: Clipping,
    *,
    examples: int,
    microbatch_size: int | None,
    begin: Callable[[], object],
) -> ClippingChoice | None:
    """Time clipped sums of copies of a public example, and choose the fastest way; None if all fail.

    Args:
        ways: of `exact_ways`.
        made: as for `exact_ways`.
        batch: of public examples, on the device that trains.
        clipping: of the run.
        examples: how many.
        microbatch_size: as for `clipped_gradients`.
        begin: called before every trial.
    """
    device = batch.tensors[0].device
    try:
        copies = [one[:1].expand(examples, *one.shape[1:]).contiguous() for one in batch.tensors]
    except torch.OutOfMemoryError:
        return None
    full = Batch(*batch.arguments(copies))
    times: dict[Way, float] = {}
    for way in ways:
        gradients = made(way.factor_cost)[way.mode]

        def run(gradients: ExampleGradients = gradients) -> None:
            gradients.clipped(full, clipping, microbatch_size=microbatch_size, read=False)

        try:
            times[way] = least_seconds(run, device, min(times.values(), default=math.inf), begin)
        except Exception:  # noqa: BLE001 - out of memory, or what a kernel does not do at this size
            continue
        finally:
            _release(device)
    if not times:
        return None
    best = min(times, key=times.__getitem__)
    first = next(iter(times))  # what the estimates choose, if it runs
    if times[best] > _FASTER * times[first]:
        best = first
    shown = "; ".join(f"{way} {1e3 * seconds:.3g} ms" for way, seconds in times.items())
    reason = f"by times measured on {device} for {examples} examples: {shown}"
    return ClippingChoice(best.mode, reason, best.factor_cost)


def least_seconds(
    run: Callable[[], object],
    device: torch.device,
    best: float = math.inf,
    begin: Callable[[], object] = lambda: None,
) -> float:
    """The least seconds of a few calls, after one that is not counted.

    Args:
        run: what is timed.
        device: is waited for before and after.
        best: seconds of something else: what is much slower is not repeated.
        begin: called before every call, and not timed.
    """
    found = math.inf
    for number in range(_REPEATS + 1):
        begin()
        _finish(device)
        start = time.perf_counter()
        run()
        _finish(device)
        seconds = time.perf_counter() - start
        if number:
            found = min(found, seconds)
            if found > _HOPELESS * best:
                break
    return found


def _finish(device: torch.device) -> None:
    """Wait until a device has done all its work."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def _release(device: torch.device) -> None:
    """Give memory back that trials held, of which the run may need another share."""
    empty = getattr(torch.get_device_module(device), "empty_cache", None)
    if device.type != "cpu" and empty is not None:
        empty()
