"""Whether the gradients that hooks found for single examples are all that a backward pass computed."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.clipping import Factored, Piece
from dpmech.optim.local_parts import local_part

__all__ = ["check_add_up"]

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative to what was added up; 0.1 for less
_FLOOR = 1e-5  # relative to the largest gradient of a parameter
_SOME = 16  # one of so many parameters is looked at where it is not the first batch,
_COLUMNS = 16  # in so many columns of its factors
_VALUES = 1024  # or so many values of its gradients
_RANDOM = random.SystemRandom()  # no stream of the training's own


@torch.no_grad()
def check_add_up(params: Sequence[Tensor], names: Mapping[int, str], examples: int, *, whole: bool) -> None:
    """Compare the mean of every parameter's per-example gradients with its gradient, where it has both.

    Hooks see calls of layers. What else a parameter is used for (a product by hand, a regulariser) is in the
    gradient of the batch alone, and would be missing from the steps without a word. Such a use may begin at
    any step, so that some parameters, chosen at random, are compared at every batch.

    Args:
        params: with `grad` and `grad_sample` of one backward pass.
        names: of the parameters that are looked at, by identity.
        examples: of the batch.
        whole: whether to compare all; else one of 16 parameters, in some of its values.

    Raises:
        UnsupportedCombinationError: if they differ, or if a layer was called with another number of examples.
    """
    found = [getattr(param, "grad_sample", None) for param in params]
    rows = [len(one) for one in found if isinstance(one, Tensor | Factored)]
    pairs: list[_Pair] = []
    for param, sample in zip(params, found, strict=True):
        name = names.get(id(param))
        if name is None or not isinstance(sample, Tensor | Factored) or not len(sample):
            continue
        if len(sample) != examples and examples in rows:
            raise UnsupportedCombinationError(
                f"the layer of {name} was called with {len(sample)} rows where the batch has {examples} "
                "examples: its gradients are sums over examples, of which none can be clipped",
                supported="inputs with as many rows as there are examples (for positions of transformers: "
                "position_ids of shape (examples, length)); requires_grad_(False) for this parameter "
                "(relative positions of T5); or make_private(..., loss=...)",
            )
        if param.grad is not None:
            pairs.append(_Pair(name, local_part(param.grad), sample, param.dtype))
    if not whole and not _strange(map(_part, _RANDOM.sample(pairs, -(-len(pairs) // _SOME)))):
        return
    # Small gradients are judged by the largest, so that what seems strange in a part is compared with all.
    strange = _strange(pairs)
    if strange:
        raise UnsupportedCombinationError(
            f"the per-example gradients of {', '.join(strange)} add up to another gradient than that of the "
            "batch: the weights are used beside their layer too (tied by hand, a regulariser), which its "
            "hooks do not see",
            supported="make_private(..., loss=...), which differentiates the whole loss of one example; "
            "zero_grad() before the backward pass; no clip_grad_norm_, clipping is done here",
        )


class _Pair(NamedTuple):
    """The gradient of a batch and those of its examples."""

    name: str
    grad: Tensor
    sample: Tensor | Factored
    dtype: torch.dtype


def _part(pair: _Pair) -> _Pair:
    """Some of the values, at a random place."""
    sample = pair.sample
    if isinstance(sample, Factored):
        columns = sample.pieces[0].right.shape[2]
        at = _window(columns, _COLUMNS)
        grad = pair.grad.reshape(-1, columns)[:, at]
        pieces = [Piece(one.left, one.right[..., at]) for one in sample.pieces]
        return pair._replace(grad=grad, sample=Factored(pieces, tuple(grad.shape)))
    at = _window(pair.grad.numel(), _VALUES)
    return pair._replace(grad=pair.grad.flatten()[at], sample=sample.flatten(1)[:, at])


def _window(values: int, width: int) -> slice:
    start = _RANDOM.randint(0, max(values - width, 0))
    return slice(start, start + width)


def _strange(pairs: Iterable[_Pair]) -> list[str]:
    """The names of parameters whose gradients differ by more than roundings."""
    compared: list[tuple[str, float, float, float]] = []
    for name, grad, sample, whole in pairs:
        if isinstance(sample, Factored):
            ones = torch.ones(len(sample), dtype=torch.float64, device=sample.device)
            total, scale = sample.weighted_sum(ones, None), float(sample.squares().sqrt().sum())
            factors = [one for piece in sample.pieces for one in (piece.left, piece.right)]
            dtypes = {whole, *(one.dtype for one in factors if one.is_floating_point())}
        else:
            wide, dtypes = sample.double(), {whole, sample.dtype}
            total, scale = wide.sum(dim=0), float(wide.flatten(1).norm(dim=1).sum())
        difference = total / len(sample) - grad.double()
        # Under autocast gradients in full precision have the roundings of half precision.
        tolerance = max(_TOLERANCES.get(one, 0.1) for one in dtypes)
        if grad.device.type != "cpu":
            tolerance = max(tolerance, 1e-2)  # tensor cores may keep ten bits of float32
        compared.append((name, tolerance, float(difference.norm()), scale / len(sample)))
    # Where all cancels, as for biases of keys under a softmax, roundings are all that there is.
    floor = _FLOOR * max((scale for *_, scale in compared), default=0.0)
    # NaN and infinities, which data may bring, are no difference.
    return [name for name, tolerance, off, scale in compared if off > tolerance * scale + floor]
