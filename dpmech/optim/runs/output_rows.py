"""The rows of examples in the outputs of a model, and gradients for them."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor


def row_dimension(mine: Tensor, theirs: Tensor, count: int, other: int) -> int | None:
    """The dimension proportional to the number of examples, if there is exactly one."""
    if mine.ndim != theirs.ndim or mine.ndim == 0:
        return None
    if count == other:
        return 0 if len(mine) == count and mine.shape == theirs.shape else None
    dims = [dim for dim in range(mine.ndim) if mine.shape[dim] != theirs.shape[dim]]
    if len(dims) != 1:
        return None
    size, other_size = mine.shape[dims[0]], theirs.shape[dims[0]]
    return dims[0] if size % count == 0 and size * other == other_size * count else None


def upstream(output: Tensor, dim: int, examples: Sequence[int], seed: int, *, major: bool) -> Tensor:
    """A gradient of an output that differs between examples, and is the same for each in every batch."""
    source = torch.Generator().manual_seed(seed)
    shape = [1 if place == dim else size for place, size in enumerate(output.shape)]
    common = torch.randn(shape, generator=source, dtype=torch.float64)
    own = torch.tensor([random.Random(one).uniform(0.5, 2.0) for one in examples], dtype=torch.float64)
    times = output.shape[dim] // len(examples)
    own = own.repeat_interleave(times) if major else own.repeat(times)
    return common * own.view([-1 if place == dim else 1 for place in range(output.ndim)])
