"""The lot of the coming step: one clipped sum a parameter, over micro-batches and processes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_integer, check_real
from dpmech.optim.clipping.clipped_sum import ClippedSum, clip_and_sum
from dpmech.optim.clipping.factored import Factored
from dpmech.optim.clipping.nonfinite import Probe, warn_operator
from dpmech.optim.clipping.styles import Clipping
from dpmech.optim.local_parts import is_sharded, local_part, noise_dtype
from dpmech.optim.processes import Group, add_over, check_processes, is_first, processes

__all__ = ["Accumulator"]


class Accumulator:
    """Sums of clipped gradients, which leave it in float64.

    In float32 the roundings of many additions could add up to more than one example may change. No sum is
    rounded before the noise is in it, and all are rounded in the same way after that.

    Args:
        params: the parameters.
        clipping: how every example must be clipped.
        loss_scale: what the loss was multiplied by, > 0.
        group: the processes that train together.
        counts: none; or a tensor like the count that is added up beside the gradients: minus one half for
            every example that was scaled down, one half for every other one whose gradient is not zero.
            Float64, so exact.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        clipping: Clipping,
        loss_scale: float,
        group: Group,
        counts: Sequence[Tensor] = (),
    ) -> None:
        self._trained = params
        self._params = [*params, *counts]
        self._counts = counts
        self._clipping = clipping
        self._blocks = clipping.blocks(params)
        self._scale = 1.0 / check_real("loss_scale", loss_scale, minimum=0.0, open_minimum=True)
        self._group = group
        self._world = processes(group)
        self._sums: list[Tensor | None] = [None] * len(self._params)
        self.dropped = 0
        self._probe = Probe()
        self._warned = False

    def add_samples(
        self, samples: Sequence[Tensor | Factored | None], note: Callable[[], None] = lambda: None
    ) -> None:
        """Clip per-example gradients, one tensor a parameter, and add them.

        Args:
            samples: one tensor a parameter.
            note: is called after everything that may be refused, right before the first sum changes. Who
                counts examples counts there: an interrupt afterwards cannot make them come twice.
        """
        if any(is_sharded(param) and samples[i] is not None for i, param in enumerate(self._trained)):
            raise UnsupportedCombinationError(
                "per-example gradients of a sharded parameter: no process sees the whole norm of an example",
                supported="a ClippedSum with reduced=True",
            )
        found = clip_and_sum(samples, self._blocks, scale=self._scale)
        self._probe.note(found.examples, found.dropped)
        counted = self._counted(found.below, found.above)
        self._add([*found.sums, *counted], found.dropped, note, lent=False)

    def add_clipped(self, clipped: ClippedSum, note: Callable[[], None] = lambda: None) -> None:
        """Add a sum that was clipped elsewhere, after checking that it was clipped in the same way.

        Args:
            clipped: the sum.
            note: as for add_samples.
        """
        if not isinstance(clipped, ClippedSum):
            raise InvalidParameterError("clipped", clipped, "None or a ClippedSum")
        blocks = clipped.clipping.blocks(clipped.parameters)
        if blocks.clip_norms != self._blocks.clip_norms:
            raise InvalidParameterError("clipping of the sum", clipped.clipping, f"{self._clipping!r}")
        position = {id(param): index for index, param in enumerate(self._trained)}
        sums: list[Tensor | None] = [None] * len(self._params)
        for param, value, member in zip(clipped.parameters, clipped.sums, blocks.members, strict=True):
            index = position.get(id(param))
            if index is None or self._blocks.members[index] != member:
                raise InvalidParameterError(
                    "parameters of the sum",
                    f"one of shape {tuple(param.shape)}",
                    "those of the optimizer, each in the same block of the clipping",
                )
            if value is not None:
                if is_sharded(param) and not clipped.reduced and processes(self._group) > 1:
                    raise InvalidParameterError(
                        "reduced", clipped.reduced, "True for the sum of a sharded parameter"
                    )
                sums[index] = local_part(value.detach())
        if self._counts:
            for name, number in (("below", clipped.below), ("above", clipped.above)):
                if clipped.examples is None or (number is None and clipped.examples):
                    raise InvalidParameterError(
                        name, number, "given, with examples, in a ClippedSum under an AdaptiveClip"
                    )
            sums[-1:] = self._counted(clipped.below or 0, clipped.above or 0)
        if clipped.reduced and not is_first(self._group):
            # The first process brings what all processes have; sharded parameters are not added up.
            sums = [s if is_sharded(p) else None for s, p in zip(sums, self._params, strict=True)]
        else:
            self._probe.note(clipped.examples, clipped.dropped)
        self._add(sums, clipped.dropped, note, lent=clipped.lent)

    def reclip(self, clipping: Clipping) -> None:
        """Clip as the noise of the coming step is scaled; nothing was added yet where that is another way."""
        if clipping != self._clipping:
            self._blocks = clipping.blocks(self._trained)
            self._clipping = clipping  # last: until then it is done again

    def take(self) -> list[Tensor]:
        """The sums over all processes, zeros where nothing was added; the next lot starts empty.

        All are float64, whatever was added and whether anything was: to which type a sum with its noise is
        rounded first shows in its last bits. Those of sharded parameters stay as they were formed.

        Raises:
            UnsupportedCombinationError: if processes came or went.
        """
        check_processes(self._world, self._group)
        sums = [
            _zeros(param) if total is None else total
            for param, total in zip(self._params, self._sums, strict=True)
        ]
        self.clear()
        sums = [x if is_sharded(param) else x.double() for x, param in zip(sums, self._params, strict=True)]
        add_over(
            [x for x, param in zip(sums, self._params, strict=True) if not is_sharded(param)], self._group
        )
        return sums

    def check_probe(self) -> None:
        """Before the first release: refuse what would train on noise alone, see `Probe`.

        Raises:
            NumericalError: if 32 examples or more came, in all processes, and no gradient was finite.
            UnsupportedCombinationError: if processes came or went.
        """
        check_processes(self._world, self._group)
        self._probe.check(self._params[0].device, self._group)

    def clear(self) -> None:
        """Forget what was added."""
        self._sums = [None] * len(self._params)

    def state_dict(self) -> dict[str, Any]:
        """The sums so far (without noise: secret) and the number of dropped examples."""
        return {
            "sums": [None if total is None else total.clone() for total in self._sums],
            "dropped": self.dropped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a saved lot."""
        if not isinstance(state, dict) or set(state) != {"sums", "dropped"}:
            raise InvalidParameterError(
                "state of the lot", type(state).__name__, "a dict with sums and dropped"
            )
        if len(state["sums"]) != len(self._params):
            raise InvalidParameterError("sums of the lot", len(state["sums"]), f"{len(self._params)} tensors")
        sums = [
            None if total is None else torch.empty_like(_zeros(param), dtype=total.dtype).copy_(total)
            for total, param in zip(state["sums"], self._params, strict=True)
        ]
        self.dropped = check_integer("dropped", state["dropped"], minimum=0)
        self._probe = Probe(known=all(total is None for total in sums) and not self.dropped)
        self._sums = sums

    def _counted(self, below: int, above: int) -> list[Tensor]:
        return [torch.full_like(count, 0.5 * (below - above)) for count in self._counts]

    @torch.no_grad()
    def _add(
        self, sums: Sequence[Tensor | None], dropped: int, note: Callable[[], None], *, lent: bool
    ) -> None:
        if dropped and not self._warned:
            self._warned = True
            warn_operator(dropped)  # raises where warnings are errors: nothing may have been added then
        note()
        self.dropped += dropped
        for index, (value, param) in enumerate(zip(sums, self._params, strict=True)):
            if value is None:
                continue
            total = self._sums[index]
            if total is None and not lent and value.dtype == torch.float64 and value.device == param.device:
                self._sums[index] = value
            elif total is None:
                # The first value is copied, so that the sum is ours to change.
                empty = _zeros(param)
                wide = empty.double() if value.dtype == torch.float64 else empty
                self._sums[index] = wide.copy_(value)
            else:
                self._sums[index] = total.double().add_(value)


def _zeros(param: Tensor) -> Tensor:
    return torch.zeros(local_part(param).shape, dtype=noise_dtype(param), device=param.device)
