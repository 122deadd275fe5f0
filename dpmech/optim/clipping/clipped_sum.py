"""Sums of clipped per-example gradients: the contribution of every example is bounded."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError, NumericalError, UnsupportedCombinationError
from dpmech.guards import check_integer, check_real
from dpmech.optim.clipping.factored import Factored
from dpmech.optim.clipping.styles import Blocks, Clipping
from dpmech.optim.deferred import Deferred, is_deferred
from dpmech.optim.processes import (
    Group,
    add_over,
    check_processes,
    is_first,
    is_sharded,
    local_part,
    noise_dtype,
    own_part,
    processes,
)

# Norms are formed from runs of 1024 squares in float32, whose relative error is below 1024 x 2^-25 in any
# order of summation; including later float64 rounding it stays below this slack.
_RUN = 1024
_SLACK = 2.0**-14
_TINY = 2.0**-126  # smaller squares may underflow in float32
# Values multiplied by their factors at once, to limit memory in float64 and to stay in the cache of a CPU.
_AT_ONCE = {"cpu": 1 << 18}
_AT_ONCE_ELSEWHERE = 1 << 24
_SMALL = 1024  # parameters with at most this many values are processed together

# A number of examples; or a tensor of one value that a device has yet to compute.
Count: TypeAlias = int | Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class ClippedSum:
    """A sum of clipped per-example gradients, with its clipping and counts.

    The code that makes one asserts that every example's gradient was clipped as in `clipping` before it was
    added (ghost clipping does so without forming per-example gradients). The sum alone cannot
    prove this; `examples` allows gross errors to be detected.

    Args:
        parameters: the parameters.
        sums: one tensor of the same shape per parameter, float32 or float64 (in half precision the rounding
            error of a sum exceeds the contribution of one example), or None if no example has a gradient.
        clipping: how the examples were clipped.
        reduced: whether the sum is already over all processes (and the same in all of them).
        examples: number of examples in the sum, or None. Private.
        dropped: number of examples with a non-finite gradient, which were excluded; or, as `below` and
            `above`, a tensor of one value on the device of the sums, which the optimizer reads together with
            everything else before it steps, so that the host does not wait here. Private.
        left_out: rows of the batch with weight 0, not counted in `examples`. Private.
        below: number of the others whose gradient is non-zero and was not scaled down, or None; an
            AdaptiveClip requires it. Private.
        above: number of those that were scaled down, or None; as `below`. Private.
        lent: whether the sums are used elsewhere too; if not, an optimizer adds to them in place.

    Raises:
        InvalidParameterError: on a bad argument.
        NumericalError: if a sum is not finite, or larger than possible for `examples` clipped gradients; by
            the optimizer's step if a count is a tensor.
    """

    parameters: Sequence[Tensor] = dataclasses.field(repr=False)
    sums: Sequence[Tensor | None] = dataclasses.field(repr=False)
    clipping: Clipping
    reduced: bool = False
    examples: int | None = None
    dropped: Count = 0
    left_out: int = 0
    lent: bool = True
    below: Count | None = None
    above: Count | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.clipping, Clipping):
            raise InvalidParameterError("clipping", self.clipping, "a Clipping such as FlatClipping(1.0)")
        if len(self.sums) != len(self.parameters):
            raise InvalidParameterError("sums", len(self.sums), f"{len(self.parameters)}, one per parameter")
        for index, (param, value) in enumerate(zip(self.parameters, self.sums, strict=True)):
            if value is None:
                continue
            if not isinstance(value, Tensor) or value.shape != param.shape:
                shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise InvalidParameterError(
                    f"sums[{index}]", shown, f"a tensor of shape {tuple(param.shape)}"
                )
            if value.dtype not in (torch.float32, torch.float64):
                raise InvalidParameterError(
                    f"sums[{index}]",
                    value.dtype,
                    "float32 or float64: in lower precision rounding exceeds the contribution of one example",
                )
        if self.examples is not None:
            check_integer("examples", self.examples, minimum=0)
        for name, count in (("dropped", self.dropped), ("below", self.below), ("above", self.above)):
            if isinstance(count, Tensor) and count.numel() != 1:
                raise InvalidParameterError(name, tuple(count.shape), "a number, or a tensor of one value")
        if not self.is_unread:
            self.check([float(self._square()), self.dropped, self.below or 0, self.above or 0])  # type: ignore[list-item]  # no tensors

    @property
    def is_unread(self) -> bool:
        """Whether a count is a tensor: then nothing was read, and the optimizer runs `check`."""
        return any(isinstance(count, Tensor) for count in (self.dropped, self.below, self.above))

    def values(self) -> Tensor:
        """What `check` wants, on the device of the sums."""
        counts = together((self.dropped, self.below, self.above))
        return torch.cat([self._square()[None].to(counts.device), counts])

    def check(self, values: Sequence[float]) -> None:
        """Check the sums and the counts.

        Args:
            values: the squared norm of all sums, and `dropped`, `below` and `above`, which may be read from a
                tensor as floats.

        Raises:
            InvalidParameterError: if a count is no number of examples, if more are dropped than there are, or
                more are below and above than finite ones.
            NumericalError: as in the class.
        """
        total, dropped, below, above = values
        if not math.isfinite(total):
            raise NumericalError("a sum of clipped gradients is not finite: the examples were not clipped")
        dropped = _checked_count("dropped", dropped, self.examples)
        if self.examples is None:
            return
        most = self.examples * self.clipping.joint_norm
        # Norms are slightly increased, also those of zeros, to account for underflow of squares.
        finite = self.examples - dropped
        if self.below is not None:
            below = _checked_count("below", below, finite)
        if self.above is not None:
            _checked_count("above", above, finite - int(below))
        slack = math.sqrt(sum(value.numel() for value in self.sums if value is not None) * _TINY)
        if math.sqrt(total) > 1.001 * most + slack:
            raise NumericalError(
                f"the sum has norm {math.sqrt(total):.6g}, more than possible for {self.examples} examples "
                f"clipped to {self.clipping.joint_norm:.6g}"
            )

    def _square(self) -> Tensor:
        """The squared norm of all sums, slightly increased."""
        squares = [
            _squared_norms(_flat(local_part(value.detach())[None], index))
            for index, value in enumerate(self.sums)
            if value is not None
        ]
        if not squares:
            return torch.zeros((), dtype=torch.float64)
        return torch.cat([one.to(squares[0].device) for one in squares]).sum()

    @classmethod
    def from_grads(
        cls,
        parameters: Sequence[Tensor],
        clipping: Clipping,
        *,
        scale: float = 1.0,
        reduced: bool = False,
        examples: int | None = None,
        below: int | None = None,
        above: int | None = None,
    ) -> "ClippedSum":
        """Use `param.grad * scale` as the sum, as after the second backward pass of ghost clipping.

        Args:
            parameters: the parameters; their `grad` is copied and cleared.
            clipping: how the examples were clipped.
            scale: factor to the sum: the batch size after a mean loss, the number of processes after
                a reduction by averaging; 1 after a sum.
            reduced: as in the class.
            examples: as in the class.
            below: as in the class.
            above: as in the class.

        Raises:
            InvalidParameterError: on a bad argument; gradients in half precision are refused.
        """
        factor = check_real("scale", scale, minimum=0.0, open_minimum=True)
        sums = [None if param.grad is None else param.grad.detach() * factor for param in parameters]
        result = cls(parameters, sums, clipping, reduced=reduced, examples=examples, below=below, above=above)
        for param in parameters:
            param.grad = None
        return result


class Summed(NamedTuple):
    """The result of `clip_and_sum`.

    Attributes:
        sums: one per parameter.
        examples: number of examples.
        dropped: number of these with a non-finite gradient, which were excluded.
        below: number of examples whose gradient is non-zero and was not scaled down in any block.
        above: number of examples that were scaled down.

    The three counts are tensors if the gradients are on a device for which the host would wait.
    """

    sums: list[Tensor | None]
    examples: int
    dropped: Count
    below: Count
    above: Count


@torch.no_grad()
def clip_and_sum(
    samples: Sequence[Tensor | Factored | None], blocks: Blocks, *, scale: float = 1.0
) -> "Summed":
    """Clip every example by blocks and add the examples.

    An example with a non-finite norm in any parameter is excluded from all of them. Examples are clipped to
    the clip norm times 1 - 2^-14, which leaves room for rounding in float32. On a device that queues its
    operations the host does not wait.

    Args:
        samples: per-example gradients, shape (examples, ...) per parameter, or their factors; None for zeros.
        blocks: blocks and their clip norms.
        scale: the gradients are `samples * scale`.

    Returns:
        Sums in float64, and counts of examples. (A sum rounded to float32 could change with one example by
        more than its contribution.)

    Raises:
        InvalidParameterError: if parameters have different numbers of examples.
    """
    present = {
        index: value if isinstance(value, Factored) else _flat(value, index)
        for index, value in enumerate(samples)
        if value is not None
    }
    if not present:
        return Summed([None] * len(samples), 0, 0, 0, 0)
    counts = {len(value) for value in present.values()}
    if len(counts) > 1:
        raise InvalidParameterError("per-example gradients", sorted(counts), "with equal numbers of examples")
    examples = counts.pop()
    units = _units(present, blocks)
    device = units[0].value.device
    squares = torch.zeros(len(blocks.clip_norms), examples, dtype=torch.float64, device=device)
    for unit in units:
        value = unit.value
        own = value.squares() if isinstance(value, Factored) else _squared_norms(value)
        squares[unit.block] += own.to(device)
    finite = torch.isfinite(squares).all(dim=0)
    limits = _limits(blocks.clip_norms, device) * (1.0 - _SLACK)
    norms = squares.sqrt() * scale
    longer = (norms > limits).any(dim=0) & finite
    # The values of zeros in `squares` (see _squared_norms): multiples of one power of two, so exact sums.
    present_values = sum(one.shape[1] for one in present.values() if isinstance(one, Tensor))
    zero = squares.sum(dim=0) <= present_values * _TINY
    counted = torch.stack([(~finite).sum(), (finite & ~longer & ~zero).sum(), (longer & ~zero).sum()])
    hidden = is_deferred(device)
    dropped, below, above = counted.unbind() if hidden else counted.tolist()
    mask = finite if hidden or dropped else None  # excluded rows count as zeros
    factors = torch.where(finite, (limits / norms).clamp(max=1.0) * scale, 0.0)
    sums: list[Tensor | None] = [None] * len(samples)
    for unit in units:
        value, factor = unit.value, factors[unit.block].to(unit.value.device)
        chosen = None if mask is None else mask.to(factor.device)
        if isinstance(value, Factored):
            sums[unit.members[0]] = value.weighted_sum(factor, chosen)
            continue
        parts = _weighted_sum(value, factor, chosen).split_with_sizes(unit.sizes)
        for index, part in zip(unit.members, parts, strict=True):
            sample = samples[index]
            sums[index] = part.view(sample.shape[1:]) if isinstance(sample, Tensor) else part
    return Summed(sums, examples, dropped, below, above)


def _limits(clip_norms: tuple[float, ...], device: torch.device) -> Tensor:
    """The clip norms as a column."""
    if len(clip_norms) == 1:  # it may change at every step
        return torch.full((1, 1), clip_norms[0], dtype=torch.float64, device=device)
    return _many_limits(clip_norms, device)


@functools.lru_cache(maxsize=8)  # a device is waited for when a copy to it begins
def _many_limits(clip_norms: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(clip_norms, dtype=torch.float64, device=device)[:, None]


@dataclasses.dataclass(frozen=True, eq=False)
class _Unit:
    """Gradients of a parameter, or of several small ones of a block next to each other."""

    block: int
    members: list[int]
    sizes: list[int]
    value: Tensor | Factored


def _units(present: dict[int, Tensor | Factored], blocks: Blocks) -> list[_Unit]:
    """Parameters grouped for processing: a pass costs as much for ten values as for a thousand."""
    units = []
    small: dict[tuple[int, torch.dtype, torch.device], list[int]] = {}
    for index, one in present.items():
        if isinstance(one, Tensor) and one.shape[1] <= _SMALL:
            small.setdefault((blocks.members[index], one.dtype, one.device), []).append(index)
        else:
            size = one.shape[1] if isinstance(one, Tensor) else 0
            units.append(_Unit(blocks.members[index], [index], [size], one))
    for (block, _, _), members in small.items():
        values = [value for value in (present[index] for index in members) if isinstance(value, Tensor)]
        sizes = [value.shape[1] for value in values]
        units.append(
            _Unit(block, members, sizes, values[0] if len(values) == 1 else torch.cat(values, dim=1))
        )
    return units


def _weighted_sum(values: Tensor, factor: Tensor, kept: Tensor | None = None) -> Tensor:
    """The sum of factor[i] values[i, :], products and sums in float64; factor is float64.

    Rows that are not `kept` may have any values, and count as zeros.
    """
    total = torch.empty(values.shape[1], dtype=torch.float64, device=values.device)
    at_once = _AT_ONCE.get(values.device.type, _AT_ONCE_ELSEWHERE)
    width = max(at_once // max(len(values), 1), 1)
    for start in range(0, values.shape[1], width):
        part = slice(start, start + width)
        some = values[:, part]
        if kept is not None:
            some = torch.where(kept[:, None], some, 0.0)  # before it is wide: half of the memory is moved
        torch.mv(some.double().T, factor, out=total[part])
    return total


def _flat(samples: Tensor, index: int) -> Tensor:
    """Shape (examples, values), float32 or float64."""
    if samples.ndim == 0 or not samples.is_floating_point():
        raise InvalidParameterError(
            f"per-example gradient {index}", (samples.dtype, tuple(samples.shape)), "real, examples first"
        )
    dtype = torch.float64 if samples.dtype == torch.float64 else torch.float32
    return samples.detach().to(dtype).reshape(samples.shape[0], math.prod(samples.shape[1:]))


def _squared_norms(flat: Tensor) -> Tensor:
    """Squared norms of the rows in float64, with the error bounded by the slack."""
    whole = flat.shape[1] // _RUN * _RUN
    runs: Tensor = torch.linalg.vector_norm(
        flat[:, :whole].view(len(flat), whole // _RUN, _RUN), dim=2
    ).double()
    rest: Tensor = torch.linalg.vector_norm(flat[:, whole:], dim=1).double()
    return runs.square().sum(dim=1) + rest.square() + flat.shape[1] * _TINY


_PROBE = 32  # examples


class NonFiniteGradientsWarning(UserWarning):
    """Examples were excluded because their gradients are not finite.

    This is raw data and must not be published. It is shown once per optimizer and never
    raised, even under the filter "error": a run that stops because of an example reveals its presence.
    """


def warn_operator(dropped: int) -> None:
    """Warn that examples were excluded, without ever stopping the run."""
    text = (
        f"{dropped} examples had a gradient that is not finite and were left out, the first of this run; "
        "dropped_examples counts all. Steps without any finite example are noise alone. This warning "
        "and that number are raw data: show them only to those who may see the data"
    )
    try:
        warnings.warn(text, NonFiniteGradientsWarning, stacklevel=4)
    except NonFiniteGradientsWarning:
        # The filter "error": a run that stopped here would reveal that there is such an example.
        with warnings.catch_warnings():
            warnings.simplefilter("always", NonFiniteGradientsWarning)
            warnings.warn(text, NonFiniteGradientsWarning, stacklevel=4)


class Accumulator:
    """Sums of clipped gradients, returned in float64.

    In float32 the rounding of many additions could add up to more than the contribution of one example. No
    sum is rounded before the noise is added, and all are rounded in the same way after that.

    Args:
        params: the parameters.
        clipping: how every example must be clipped.
        loss_scale: factor of the loss, > 0.
        group: the processes that train together.
        counts: empty; or a tensor for the count that is added next to the gradients: minus one half for
            every example that was scaled down, one half for every other one whose gradient is not zero.
            Float64, so exact.
        deferred: where checks and counts on a device wait to be read; None for one of its own.

    Attributes:
        whole: whether sums of sharded parameters are whole, over the examples of this process; else they are
            parts of sums over all processes. The same in all of them.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        clipping: Clipping,
        loss_scale: float,
        group: Group,
        counts: Sequence[Tensor] = (),
        deferred: Deferred | None = None,
    ) -> None:
        self._trained = params
        self._deferred = Deferred() if deferred is None else deferred
        self._params = [*params, *counts]
        self._counts = counts
        self._clipping = clipping
        self._blocks = clipping.blocks(params)
        self._scale = 1.0 / check_real("loss_scale", loss_scale, minimum=0.0, open_minimum=True)
        self._group = group
        self._world = processes(group)
        self._sums: list[Tensor | None] = [None] * len(self._params)
        self._dropped = 0
        self._seen = [0, 0, 0]  # examples, finite ones, and sums without their number, before the first step
        self._warned = False
        self.whole = False

    @property
    def dropped(self) -> int:
        """Number of dropped examples so far."""
        self._deferred.settle()
        return self._dropped

    def add_samples(
        self, samples: Sequence[Tensor | Factored | None], note: Callable[[], None] = lambda: None
    ) -> None:
        """Clip per-example gradients, one tensor per parameter, and add them.

        Args:
            samples: one tensor per parameter.
            note: called after all checks, right before the first sum changes. Callers count
                examples there: after an interrupt they cannot be added twice.
        """
        if any(is_sharded(param) and samples[i] is not None for i, param in enumerate(self._trained)):
            raise UnsupportedCombinationError(
                "per-example gradients of a sharded parameter: no process sees the whole norm of an example",
                supported="a ClippedSum with reduced=True",
            )
        summed = clip_and_sum(samples, self._blocks, scale=self._scale)
        counts = (summed.dropped, summed.below, summed.above)
        self._add(summed.sums, summed.examples, together(counts), note, lent=False)

    def add_clipped(self, clipped: ClippedSum, note: Callable[[], None] = lambda: None) -> None:
        """Add a sum that was clipped elsewhere, after checking that it was clipped in the same way."""
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
                if is_sharded(param) and clipped.reduced == self.whole and processes(self._group) > 1:
                    raise InvalidParameterError(
                        "reduced", clipped.reduced, f"{not self.whole} for the sum of a sharded parameter"
                    )
                if self.whole and is_sharded(value):
                    raise InvalidParameterError(
                        "sums", type(value), "whole tensors: make_private gathers sharded parameters"
                    )
                sums[index] = local_part(value.detach())
        if self._counts:
            for name, number in (("below", clipped.below), ("above", clipped.above)):
                if clipped.examples is None or (number is None and clipped.examples):
                    raise InvalidParameterError(
                        name, number, "given, with examples, in a ClippedSum under an AdaptiveClip"
                    )
        # The first process contributes the reduced sum; sharded parameters are not summed.
        mine = not clipped.reduced or is_first(self._group)
        if not mine:
            sums = [s if is_sharded(p) else None for s, p in zip(sums, self._params, strict=True)]
        counts = together((clipped.dropped, clipped.below, clipped.above))
        if clipped.is_unread:
            values = clipped.values()
            self._deferred.add(values, clipped.check)
            counts = values[1:]
        self._add(sums, clipped.examples, counts, note, lent=clipped.lent, mine=mine)

    def reclip(self, clipping: Clipping) -> None:
        """Clip to the norm of the next step's noise; nothing may have been added before a change."""
        if clipping != self._clipping:
            self._blocks = clipping.blocks(self._trained)
            self._clipping = clipping  # last: after an interrupt the update is repeated

    def take(self) -> list[Tensor]:
        """The sums over all processes, zeros if nothing was added; the next batch starts empty.

        All are float64, whatever was added and whether anything was: the dtype to which a noisy sum is
        first rounded shows in its last bits. Those of sharded parameters keep their dtype.

        Raises:
            UnsupportedCombinationError: if the number of processes changed.
        """
        check_processes(self._world, self._group)
        sums = [
            self._zeros(param) if total is None else total
            for param, total in zip(self._params, self._sums, strict=True)
        ]
        self.clear()
        parts = [is_sharded(param) and not self.whole for param in self._params]
        sums = [x if part else x.double() for x, part in zip(sums, parts, strict=True)]
        add_over([x for x, part in zip(sums, parts, strict=True) if not part], self._group)
        return [
            own_part(x, param) if is_sharded(param) and self.whole else x
            for x, param in zip(sums, self._params, strict=True)
        ]

    def check_probe(self) -> None:
        """Before the first release: refuse a run that would train only on noise.

        All processes give the same answer. After the first release the answer must have no effect.

        Raises:
            NumericalError: if there were 32 or more examples, in all processes, and no gradient was finite.
            UnsupportedCombinationError: if the number of processes changed.
        """
        check_processes(self._world, self._group)
        counts = torch.tensor(self._seen, dtype=torch.int64, device=self._params[0].device)
        add_over([counts], self._group)
        seen, finite, unknown = counts.tolist()
        if seen >= _PROBE and finite == 0 and unknown == 0:
            raise NumericalError(
                "the gradients of all examples before the first step are not finite: the run would "
                "train on noise alone. Nothing was released. Look for NaN in the data, and for a loss that "
                "overflows. (This message depends on the data: show it only to those who may see them.)"
            )

    def clear(self) -> None:
        """Discard the sums, and the checks that wait for them."""
        self._deferred.discard()
        self._sums = [None] * len(self._params)

    def state_dict(self) -> dict[str, Any]:
        """The sums so far (without noise: secret) and the number of dropped examples."""
        dropped = self.dropped  # first: counts that are read only now belong to the sums
        return {
            "sums": [None if total is None else _copied(total) for total in self._sums],
            "dropped": dropped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved batch."""
        if not isinstance(state, dict) or set(state) != {"sums", "dropped"}:
            raise InvalidParameterError(
                "state of the batch", type(state).__name__, "a dict with sums and dropped"
            )
        if len(state["sums"]) != len(self._params):
            raise InvalidParameterError("sums", len(state["sums"]), f"{len(self._params)} tensors")
        sums = [
            None if total is None else torch.empty_like(self._zeros(param), dtype=total.dtype).copy_(total)
            for total, param in zip(state["sums"], self._params, strict=True)
        ]
        dropped = check_integer("dropped", state["dropped"], minimum=0)
        self.clear()
        self._dropped = dropped
        self._seen = [0, 0, int(dropped > 0 or any(total is not None for total in sums))]
        self._sums = sums

    @torch.no_grad()
    def _add(
        self,
        sums: Sequence[Tensor | None],
        examples: int | None,
        counts: Tensor,
        note: Callable[[], None],
        *,
        lent: bool,
        mine: bool = True,
    ) -> None:
        """Add sums with their counts: dropped, below and above.

        Args:
            sums: one per parameter, and possibly more, None.
            examples: their number.
            counts: to read, at once or later.
            note: as for add_samples.
            lent: as in ClippedSum.
            mine: whether this process contributes the counts.
        """
        if not is_deferred(counts.device):
            self._warn(int(counts[0]))  # raises if warnings cannot be shown: before anything was added
        note()
        self._deferred.add(counts, lambda read: self._count(examples, read, mine=mine), counts=True)
        for index, value in enumerate(sums):
            if value is not None:
                self._put(index, value, lent=lent)

    def _count(self, examples: int | None, counts: Sequence[float], *, mine: bool) -> None:
        dropped, below, above = map(int, counts)
        self._warn(dropped)
        self._dropped += dropped
        if mine:
            if examples is None:
                self._seen[2] += 1
            else:
                self._seen[0] += examples
                self._seen[1] += examples - dropped
            for count in self._counts:
                self._put(-1, torch.full_like(count, 0.5 * (below - above)), lent=False)

    def _warn(self, dropped: int) -> None:
        if dropped and not self._warned:
            self._warned = True
            warn_operator(dropped)

    def _put(self, index: int, value: Tensor, *, lent: bool) -> None:
        """Add to one of the sums."""
        total, param = self._sums[index], self._params[index]
        if total is None and not lent and value.dtype == torch.float64 and value.device == param.device:
            self._sums[index] = value
        elif total is None:
            # The first value is copied, so that the sum can be modified.
            empty = self._zeros(param)
            wide = empty.double() if value.dtype == torch.float64 else empty
            self._sums[index] = wide.copy_(value)
        else:
            self._sums[index] = total.double().add_(value)

    def _zeros(self, param: Tensor) -> Tensor:
        shape = param.shape if self.whole else local_part(param).shape
        return torch.zeros(shape, dtype=noise_dtype(param), device=param.device)


def _copied(total: Tensor) -> Tensor:
    """A copy on the CPU: on a GPU it may not fit next to the model. Parts of a DTensor stay on its mesh."""
    return total.clone() if is_sharded(total) else total.to("cpu", copy=True)


def _checked_count(name: str, value: float, most: int | None) -> int:
    """A number of examples, which a tensor may have held as a float."""
    whole = isinstance(value, float) and value.is_integer()
    return check_integer(name, int(value) if whole else value, minimum=0, maximum=most)


def together(counts: Sequence[Count | None]) -> Tensor:
    """Counts, 0 for None, as one tensor, on their device."""
    device = next((one.device for one in counts if isinstance(one, Tensor)), torch.device("cpu"))
    parts = [
        one
        if isinstance(one, Tensor)
        else torch.full((), float(one or 0), dtype=torch.float64, device=device)
        for one in counts
    ]
    return torch.stack([part.double().reshape(()) for part in parts])
