"""Checks that per-example gradients of hooks add up to the gradient of the batch."""

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.clipping import Factored, Piece
from dpmech.optim.deferred import Deferred, is_deferred
from dpmech.optim.processes import local_part
from dpmech.optim.runs.collated import HALF, TOLERANCES

_FLOOR = 1e-5  # relative to the largest gradient of a parameter
_AT_ONCE = 1 << 22  # values in float64 at once
_SOME = 16  # one in 16 parameters is compared after the first batch,
_COLUMNS = 16  # in this many columns of its factors
_VALUES = 1024  # or this many values of its gradients
_RANDOM = random.SystemRandom()  # independent of the random numbers of training


@torch.no_grad()
def check_add_up(
    params: Sequence[Tensor],
    names: Mapping[int, str],
    examples: int,
    *,
    whole: bool,
    deferred: Deferred,
    last: bool = True,
) -> None:
    """Compare the mean of every parameter's per-example gradients with its gradient, if it has both.

    Hooks see calls of layers. Other uses of a parameter (an explicit product, a regularizer) contribute only
    to the gradient of the batch, and would silently be missing from the steps. Such a use may begin at
    any step, so that some parameters, chosen at random, are compared at every batch.

    Args:
        params: with `grad` and `grad_sample` of one backward pass.
        names: of the parameters to compare, by identity.
        examples: number of examples in the batch.
        whole: whether to compare all; else one in 16 parameters, in some of its values.
        deferred: takes the comparison if `whole` is false.
        last: whether `deferred` is settled before more memory is needed. If not, gradients are not kept for a
            closer look: the chosen parameters are compared in all of their values.

    Raises:
        UnsupportedCombinationError: if they differ, or if a layer was called with another number of examples.
    """
    samples = [getattr(param, "grad_sample", None) for param in params]
    rows = [len(sample) for sample in samples if isinstance(sample, Tensor | Factored)]
    pairs: list[_Pair] = []
    for param, sample in zip(params, samples, strict=True):
        name = names.get(id(param))
        if name is None or not isinstance(sample, Tensor | Factored) or not len(sample):
            continue
        if len(sample) != examples and examples in rows:
            raise UnsupportedCombinationError(
                # Without the numbers: the size of a sampled batch is private.
                f"the layer of {name} was called without one row for every example of the batch: its "
                "gradients are sums over examples, which cannot be clipped per example",
                supported="inputs with as many rows as there are examples (for positions of transformers: "
                "position_ids of shape (examples, length)); requires_grad_(False) for this parameter "
                "(relative positions of T5); or make_private(..., loss=...)",
            )
        if param.grad is not None:
            pairs.append(_Pair(name, local_part(param.grad).to_dense(), sample))
    if not pairs:
        return
    if whole:
        _refuse(_strange(pairs))
        return
    chosen = _RANDOM.sample(pairs, -(-len(pairs) // _SOME))
    if last or not is_deferred(pairs[0].grad.device):
        # Small gradients are compared relative to the largest, so a suspicious part is compared with all.
        parts = _Measured(map(_part, chosen))
        deferred.add(parts.values, lambda read: _refuse(_strange(pairs) if parts.strange(read) else []))
    else:
        taken = {pair.name for pair in chosen}
        all_of_some = _Measured(chosen, [pair for pair in pairs if pair.name not in taken])
        deferred.add(all_of_some.values, lambda read: _refuse(all_of_some.strange(read)))


def _refuse(strange: Sequence[str]) -> None:
    if strange:
        raise UnsupportedCombinationError(
            f"the per-example gradients of {', '.join(strange)} do not add up to that of the batch: "
            "the weights are also used outside their layer (tied explicitly, a regularizer), which its hooks "
            "do not see",
            supported="make_private(..., loss=...), which differentiates the whole loss of one example; "
            "zero_grad() before the backward pass; no clip_grad_norm_ or clip_grad_value_, since the "
            "optimizer clips",
        )


class _Pair(NamedTuple):
    """The gradient of a batch and the per-example gradients."""

    name: str
    grad: Tensor
    sample: Tensor | Factored


def _part(pair: _Pair) -> _Pair:
    """Some of the values, at a random position."""
    sample = pair.sample
    if isinstance(sample, Factored):
        columns = sample.pieces[0].right.shape[2]
        at = _window(columns, _COLUMNS)
        grad = pair.grad.reshape(-1, columns)[:, at]
        pieces = [Piece(piece.left, piece.right[..., at]) for piece in sample.pieces]
        return pair._replace(grad=grad, sample=Factored(pieces, tuple(grad.shape)))
    at = _window(pair.grad.numel(), _VALUES)
    return pair._replace(grad=pair.grad.flatten()[at], sample=sample.reshape(len(sample), -1)[:, at])


def _window(values: int, width: int) -> slice:
    start = _RANDOM.randint(0, max(values - width, 0))
    return slice(start, start + width)


def _strange(pairs: Iterable[_Pair]) -> list[str]:
    """The names of parameters whose gradients differ by more than rounding errors."""
    measured = _Measured(pairs)
    return measured.strange(measured.values.tolist())


class _Measured:
    """Differences and sizes of gradients, which a device has yet to compute.

    Args:
        pairs: whose gradients are compared; at least one.
        others: of which only the size matters.

    Attributes:
        values: of every pair the norm of the difference, then of all the mean norm of an example, float64.
    """

    def __init__(self, pairs: Iterable[_Pair], others: Sequence[_Pair] = ()) -> None:
        self._names: list[str] = []
        self._tolerances: list[float] = []
        differences, scales = [], []
        for name, grad, sample in pairs:
            if isinstance(sample, Factored):
                ones = torch.ones(len(sample), dtype=torch.float64, device=sample.device)
                total, dtypes = sample.weighted_sum(ones, None), {grad.dtype, *sample.dtypes}
            else:
                total, dtypes = _total(sample), {grad.dtype, sample.dtype}
            tolerance = max(TOLERANCES.get(dtype, HALF) for dtype in dtypes)
            if grad.device.type != "cpu":
                tolerance = max(tolerance, 1e-2)  # tensor cores may keep only ten bits of float32
            self._names.append(name)
            self._tolerances.append(tolerance)
            differences.append((total / len(sample) - grad.double()).norm())
            scales.append(_mean_norm(sample))
        found = differences + scales + [_mean_norm(pair.sample) for pair in others]
        self.values = torch.stack([one.to(found[0].device) for one in found])

    def strange(self, read: Sequence[float]) -> list[str]:
        """The names of parameters whose gradients differ by more than rounding errors, given `values`."""
        count = len(self._names)
        scales = read[count:]
        # If everything cancels, as for key biases under a softmax, only rounding errors are left.
        floor = _FLOOR * max(scales)
        # NaN and infinities, which data may cause, are not a difference.
        return [
            name
            for name, tolerance, off, scale in zip(
                self._names, self._tolerances, read[:count], scales[:count], strict=True
            )
            if off > tolerance * scale + floor
        ]


def _mean_norm(sample: Tensor | Factored) -> Tensor:
    """The mean norm of an example's gradient, float64."""
    if isinstance(sample, Factored):
        return sample.squares().sqrt().mean()
    found = [torch.linalg.vector_norm(part, dim=1) for part in _widened(sample)]
    norms: Tensor = torch.linalg.vector_norm(torch.stack(found), dim=0)
    return norms.mean()


def _total(sample: Tensor) -> Tensor:
    """The sum over the examples, float64."""
    return torch.cat([part.sum(dim=0) for part in _widened(sample)]).view(sample.shape[1:])


def _widened(sample: Tensor) -> Iterator[Tensor]:
    """Columns of the gradients of examples in float64: all of them would be twice the memory of a batch."""
    flat = sample.reshape(len(sample), math.prod(sample.shape[1:]))
    for part in torch.split(flat, max(_AT_ONCE // max(len(flat), 1), 1), dim=1):
        yield part.double()
