"""Whether the gradients that hooks found for single examples are all that a backward pass computed."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.optim.clipping import Factored
from dpmech.optim.local_parts import local_part

__all__ = ["check_add_up"]

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative to what was added up; 0.1 for less


@torch.no_grad()
def check_add_up(params: Sequence[Tensor], names: Mapping[int, str], examples: int) -> None:
    """Compare the mean of every parameter's per-example gradients with its gradient, where it has both.

    Hooks see calls of layers. What else a parameter is used for (a product by hand, a regulariser) is in the
    gradient of the batch alone, and would be missing from the steps without a word.

    Args:
        params: with `grad` and `grad_sample` of one backward pass.
        names: of the parameters, by identity.
        examples: of the batch.

    Raises:
        UnsupportedCombinationError: if they differ, or if a layer was called with another number of examples.
    """
    for param in params:
        sample = getattr(param, "grad_sample", None)
        name = names.get(id(param), f"a parameter of shape {tuple(param.shape)}")
        if isinstance(sample, Tensor | Factored) and len(sample) < examples:
            raise UnsupportedCombinationError(
                f"the layer of {name} was called with {len(sample)} examples where the batch has {examples}: its "
                "gradients are sums over examples, of which none can be clipped",
                supported="inputs with as many rows as there are examples (for positions of transformers: "
                "position_ids of shape (examples, length)), or make_private(..., loss=...)",
            )
        if not isinstance(sample, Tensor | Factored) or not len(sample) or param.grad is None:
            continue
        if isinstance(sample, Factored):
            ones = torch.ones(len(sample), dtype=torch.float64, device=sample.device)
            total, scale = sample.weighted_sum(ones, None), sample.squares().sqrt().sum()
        else:
            wide = sample.double()
            total, scale = wide.sum(dim=0), wide.flatten(1).norm(dim=1).sum()
        difference = torch.linalg.vector_norm(total / len(sample) - local_part(param.grad).double())
        # NaN and infinities, which data may bring, are no difference.
        if float(difference) > _TOLERANCES.get(param.dtype, 0.1) * float(scale) / len(sample) + 1e-30:
            raise UnsupportedCombinationError(
                f"the per-example gradients of {name} add up to another gradient than the batch has: the weights "
                "are used beside their layer too (tied by hand, or in a regulariser), which its hooks do not see",
                supported="make_private(..., loss=...), which differentiates the whole loss of one example; "
                "zero_grad() before the backward pass",
            )
