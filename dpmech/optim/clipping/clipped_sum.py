"""Sums of clipped per-example gradients: what one example adds is bounded, whatever it is."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real
from dpmech.optim.clipping.factored import Factored
from dpmech.optim.clipping.styles import Blocks, Clipping
from dpmech.optim.local_parts import local_part

__all__ = ["ClippedSum", "clip_and_sum"]

# Norms are formed from runs of 1024 squares in float32, whose relative error is below 1024 x 2^-25 in any
# order of summation; together with the roundings of float64 afterwards it stays below this slack.
_RUN = 1024
_SLACK = 2.0**-14
_TINY = 2.0**-126  # a square below it may vanish in float32
# Values multiplied by their factors at once, so that they need little memory in float64, and stay in the
# cache of a CPU.
_AT_ONCE = {"cpu": 1 << 18}
_AT_ONCE_ELSEWHERE = 1 << 24
_SMALL = 1024  # values of a parameter that is worked on together with others


@dataclasses.dataclass(frozen=True, eq=False)
class ClippedSum:
    """A sum of clipped per-example gradients, and what was done to get it.

    Whoever makes one states that every example's gradient was clipped as `clipping` says before it was
    added (ghost clipping does so without forming per-example gradients). Nothing can check that from the
    sum; `examples` lets gross errors be seen.

    Args:
        parameters: the parameters.
        sums: one tensor of the same shape a parameter, float32 or float64 (in half precision a sum is rounded
            by more than one example adds), or None where no example has a gradient.
        clipping: how the examples were clipped.
        reduced: whether the sum is already over all processes (and the same on all of them).
        examples: how many examples it holds, or None. Private.
        dropped: how many had a gradient that is not finite, and were left out. Private.
        left_out: rows of the batch that were given weight 0, and are not in `examples`. Private.
        below: how many of the others had a gradient that is not zero and was not scaled down, or None; an
            AdaptiveClip needs it. Private.
        above: how many had one that was scaled down, or None; as `below`. Private.
        lent: whether the sums are used elsewhere too; where not, an optimizer adds to them in place.

    Raises:
        InvalidParameterError: on a bad argument.
        NumericalError: if a sum is not finite, or larger than `examples` clipped gradients can be.
    """

    parameters: Sequence[Tensor] = dataclasses.field(repr=False)
    sums: Sequence[Tensor | None] = dataclasses.field(repr=False)
    clipping: Clipping
    reduced: bool = False
    examples: int | None = None
    dropped: int = 0
    left_out: int = 0
    lent: bool = True
    below: int | None = None
    above: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.clipping, Clipping):
            raise InvalidParameterError("clipping", self.clipping, "a Clipping such as FlatClipping(1.0)")
        if len(self.sums) != len(self.parameters):
            raise InvalidParameterError("sums", len(self.sums), f"{len(self.parameters)}, one a parameter")
        total = 0.0
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
                    "float32 or float64: in less, a sum is rounded by more than one example adds",
                )
            total += float(_squared_norms(_flat(local_part(value.detach())[None], index)))
        if not math.isfinite(total):
            raise NumericalError("a sum of clipped gradients is not finite: the examples were not clipped")
        if self.examples is None:
            return
        most = check_integer("examples", self.examples, minimum=0) * self.clipping.joint_norm
        # Norms are formed with a little on top, zeros too, for squares that vanish.
        finite = self.examples - self.dropped
        below = 0 if self.below is None else check_integer("below", self.below, minimum=0, maximum=finite)
        if self.above is not None:
            check_integer("above", self.above, minimum=0, maximum=finite - below)
        slack = math.sqrt(sum(value.numel() for value in self.sums if value is not None) * _TINY)
        if math.sqrt(total) > 1.001 * most + slack:
            raise NumericalError(
                f"the sum has norm {math.sqrt(total):.6g}, more than {self.examples} examples clipped to "
                f"{self.clipping.joint_norm:.6g} can have"
            )

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
        """Take `param.grad * scale` for the sum, as after the second backward pass of ghost clipping.

        Args:
            parameters: the parameters; their `grad` is copied and cleared.
            clipping: how the examples were clipped.
            scale: what makes a sum of it: the batch size after a mean loss, the number of processes after
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
    """What `clip_and_sum` found.

    Attributes:
        sums: one a parameter.
        examples: how many there were.
        dropped: how many of them had a gradient that is not finite, and were left out.
        below: how many have a gradient that is not zero and was not scaled down in any block.
        above: how many were scaled down.
    """

    sums: list[Tensor | None]
    examples: int
    dropped: int
    below: int
    above: int


@torch.no_grad()
def clip_and_sum(
    samples: Sequence[Tensor | Factored | None], blocks: Blocks, *, scale: float = 1.0
) -> "Summed":
    """Clip every example by blocks and add the examples.

    An example whose norm is not finite in any parameter is left out of all of them. Clipped norms are below
    the clip norm by at least the rounding of float32, a factor of at most 1 - 6.2e-5.

    Args:
        samples: per-example gradients, shape (examples, ...) a parameter, or their factors; None for zeros.
        blocks: blocks and their clip norms.
        scale: the gradients are `samples * scale`.

    Returns:
        Sums in float64, and counts of examples. (A sum rounded to float32 could change with one example by
        more than what it adds.)

    Raises:
        InvalidParameterError: if parameters have different numbers of examples.
    """
    present = {index: _opened(one, index) for index, one in enumerate(samples) if one is not None}
    if not present:
        return Summed([None] * len(samples), 0, 0, 0, 0)
    counts = {one.examples if isinstance(one, Factored) else one.shape[0] for one in present.values()}
    if len(counts) > 1:
        raise InvalidParameterError("per-example gradients", sorted(counts), "of one number of examples")
    examples = counts.pop()
    units = _units(present, blocks)
    device = units[0].value.device
    squares = torch.zeros(len(blocks.clip_norms), examples, dtype=torch.float64, device=device)
    for unit in units:
        value = unit.value
        own = value.squares() if isinstance(value, Factored) else _squared_norms(value)
        squares[unit.block] += own.to(device)
    finite = torch.isfinite(squares).all(dim=0)
    limits = torch.tensor(blocks.clip_norms, dtype=torch.float64, device=device)[:, None] * (1.0 - _SLACK)
    norms = squares.sqrt() * scale
    longer = (norms > limits).any(dim=0) & finite
    # What zeros leave in `squares` (see _squared_norms): whole multiples of one power of two, so exact sums.
    present_values = sum(one.shape[1] for one in present.values() if isinstance(one, Tensor))
    zero = squares.sum(dim=0) <= present_values * _TINY
    counts_of = [finite.sum(), (finite & ~longer & ~zero).sum(), (longer & ~zero).sum()]
    kept, below, above = torch.stack(counts_of).tolist()  # waits for a device once
    mask = None if kept == examples else finite
    factors = (limits / norms).clamp(max=1.0) * scale
    sums: list[Tensor | None] = [None] * len(samples)
    for unit in units:
        value, factor = unit.value, factors[unit.block].to(unit.value.device)
        chosen = None if mask is None else mask.to(factor.device)
        if isinstance(value, Factored):
            sums[unit.members[0]] = value.weighted_sum(factor, chosen)
            continue
        rows = value if chosen is None else value[chosen]
        parts = _weighted_sum(rows, factor if chosen is None else factor[chosen]).split_with_sizes(unit.sizes)
        for index, part in zip(unit.members, parts, strict=True):
            sample = samples[index]
            sums[index] = part.view(sample.shape[1:]) if isinstance(sample, Tensor) else part
    return Summed(sums, examples, examples - kept, below, above)


@dataclasses.dataclass(frozen=True, eq=False)
class _Unit:
    """Gradients of a parameter, or of several small ones of a block side by side."""

    block: int
    members: list[int]
    sizes: list[int]
    value: Tensor | Factored


def _units(present: dict[int, Tensor | Factored], blocks: Blocks) -> list[_Unit]:
    """What is worked on at once: a pass costs as much for ten values as for a thousand."""
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


def _opened(sample: Tensor | Factored, index: int) -> Tensor | Factored:
    return sample if isinstance(sample, Factored) else _flat(sample, index)


def _weighted_sum(values: Tensor, factor: Tensor) -> Tensor:
    """The sum of factor[i] values[i, :], products and sums in float64; factor is float64."""
    total = torch.empty(values.shape[1], dtype=torch.float64, device=values.device)
    at_once = _AT_ONCE.get(values.device.type, _AT_ONCE_ELSEWHERE)
    width = max(at_once // max(len(values), 1), 1)
    for start in range(0, values.shape[1], width):
        part = slice(start, start + width)
        torch.mv(values[:, part].double().T, factor, out=total[part])
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
    """Squared norms of the rows in float64, low by at most the slack."""
    whole = flat.shape[1] // _RUN * _RUN
    runs: Tensor = torch.linalg.vector_norm(
        flat[:, :whole].view(len(flat), whole // _RUN, _RUN), dim=2
    ).double()
    rest: Tensor = torch.linalg.vector_norm(flat[:, whole:], dim=1).double()
    return runs.square().sum(dim=1) + rest.square() + flat.shape[1] * _TINY
