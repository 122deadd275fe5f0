"""What one step does with the row of one vector: add it to a sum, round, divide."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpmech.optim.noise.lattice import add_on_lattice
from dpmech.optim.processes import Slot


class Addition(NamedTuple):
    """The sum of a vector, and what becomes of it; all tensors have one dimension and the vector's length.

    A tuple, since one is made for every parameter in every step.

    Attributes:
        slot: of the vector.
        total: the sum, float32 or float64.
        out: where the result goes: `total` itself, or float32 or float64.
        state: of the recursion.
        factor: the standard deviation of Z.
        lattice: None, or the step of the lattice to which the noisy sum is rounded.
        divisor: of the noisy sum.
    """

    slot: Slot
    total: Tensor
    out: Tensor
    state: Sequence[Tensor]
    factor: float
    lattice: float | None = None
    divisor: float = 1.0

    def add(self, start: int, noise: Tensor) -> None:
        """Add a part of the row in float64, from value `start` on; both may be overwritten.

        Only the result is rounded to the dtype of the sum.
        """
        size = noise.numel()
        # Most vectors are one chunk, for which a slice costs as much as some of the operations.
        part = self.total if size == self.total.numel() else self.total[start : start + size]
        if self.lattice is not None:
            add_on_lattice(part, noise, self.lattice)
        elif self.out is not self.total and part.dtype == noise.dtype and part.device == noise.device:
            self.out[start : start + size].copy_(divided(noise.add_(part), self.divisor))
            return  # the sum stays as it is, which nobody reads
        elif part.device == noise.device:
            part.add_(noise)  # torch adds mixed dtypes in float64
        else:
            part.copy_(noise.add_(part.to(noise.device)))
        if self.divisor != 1.0 or self.out is not self.total:
            self.finish(start, start + size)

    def finish(self, start: int, end: int) -> None:
        """Divide values of the noisy sum, and store them."""
        total = divided(self.total[start:end], self.divisor)
        if self.out is not self.total:
            self.out[start:end].copy_(total)


def divided(total: Tensor, divisor: float) -> Tensor:
    """Divide a tensor in place by a number, rounding once, and return it."""
    if divisor == 1.0:
        return total
    if total.device.type == "cpu":
        return total.div_(divisor)
    # CUDA would multiply by the inverse of a number, which rounds twice.
    return total.div_(torch.full((), divisor, dtype=total.dtype, device=total.device))
