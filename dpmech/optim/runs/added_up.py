"""Whether the gradients that hooks found for single examples are all that a backward pass computed."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.clipping import Factored
from dpmech.optim.local_parts import local_part

__all__ = ["check_add_up"]

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative to what was added up; 0.1 for less
_FLOOR = 1e-5  # relative to the largest gradient of a parameter


@torch.no_grad()
def check_add_up(params: Sequence[Tensor], names: Mapping[int, str], examples: int) -> None:
    """Compare the mean of every parameter's per-example gradients with its gradient, where it has both.

    Hooks see calls of layers. What else a parameter is used for (a product by hand, a regulariser) is in the
    gradient of the batch alone, and would be missing from the steps without a word.

    Args:
        params: with `grad` and `grad_sample` of one backward pass.
        names: of the parameters that are looked at, by identity.
        examples: of the batch.

    Raises:
        UnsupportedCombinationError: if they differ, or if a layer was called with another number of examples.
    """
    compared: list[tuple[str, torch.dtype, float, float]] = []
    found = [getattr(param, "grad_sample", None) for param in params]
    rows = [len(one) for one in found if isinstance(one, Tensor | Factored)]
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
        if param.grad is None:
            continue
        if isinstance(sample, Factored):
            ones = torch.ones(len(sample), dtype=torch.float64, device=sample.device)
            total, scale = sample.weighted_sum(ones, None), float(sample.squares().sqrt().sum())
        else:
            wide = sample.double()
            total, scale = wide.sum(dim=0), float(wide.flatten(1).norm(dim=1).sum())
        difference = total / len(sample) - local_part(param.grad).double()
        compared.append((name, param.dtype, float(difference.norm()), scale / len(sample)))
    # Where all cancels, as for biases of keys under a softmax, roundings are all that there is.
    floor = _FLOOR * max((scale for *_, scale in compared), default=0.0)
    # NaN and infinities, which data may bring, are no difference.
    strange = [
        name
        for name, dtype, difference, scale in compared
        if difference > _TOLERANCES.get(dtype, 0.1) * scale + floor
    ]
    if strange:
        raise UnsupportedCombinationError(
            f"the per-example gradients of {', '.join(strange)} add up to another gradient than that of the "
            "batch: the weights are used beside their layer too (tied by hand, a regulariser), which its "
            "hooks do not see",
            supported="make_private(..., loss=...), which differentiates the whole loss of one example; "
            "zero_grad() before the backward pass; no clip_grad_norm_, clipping is done here",
        )
