"""Upper bounds on the norms of sums of outer products, from Gram matrices in float64."""

import dataclasses
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

_UNIT = 2.0**-53
# Added to a squared norm, relative to the product of lengths that bounds its rounding error. It also bounds
# the cancellation inside one example, and thus the rounding error of the sum over the batch.
_CANCELLED = 2.0**-30
# Compute capabilities of devices whose float64 is at least half as fast as float32; the last two are AMD's.
_FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (9, 4), (9, 5)}


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """The contribution of one use of a weight to its gradients: for every example sum_t left[t] right[t]^T.

    Args:
        left: shape (examples, positions, rows); or int64, shape (examples, positions), the row of every
            position, for lookups.
        right: shape (examples, positions, columns).
    """

    left: Tensor
    right: Tensor

    @property
    def looks_up(self) -> bool:
        """Whether `left` contains row numbers."""
        return self.left.ndim == 2

    def picked(self, rows: slice) -> "Piece":
        """The piece for some examples, in float64."""
        left = self.left[rows]
        return Piece(left if self.looks_up else left.double(), self.right[rows].double())

    def zeroed(self, examples: Tensor) -> "Piece":
        """The piece with zeros for the examples of a mask, whatever values they have."""
        rows = examples[:, None, None]
        left = self.left if self.looks_up else self.left.masked_fill(rows, 0.0)
        return Piece(left, self.right.masked_fill(rows, 0.0))

    def mass(self) -> Tensor:
        """sum_t |left[t]|^2 times sum_t |right[t]|^2 of every example, in float64."""
        right = self.right.square().sum(dim=(1, 2))
        if self.looks_up:
            return right * self.left.shape[1]
        return right * self.left.square().sum(dim=(1, 2))


def squared_norms(pieces: Sequence[Piece]) -> Tensor:
    """Upper bounds on the squared norms of examples, float64; non-finite for non-finite gradients.

    Args:
        pieces: the uses of a weight, in float64.
    """
    masses = [piece.mass() for piece in pieces]
    if len(pieces) == 1 and pieces[0].right.shape[1] == 1:
        return masses[0] * (1.0 + _CANCELLED)  # one outer product: no cancellation
    total = torch.zeros_like(masses[0])
    for number, one in enumerate(pieces):
        total += (_gram_of_left(one, one) * (one.right @ one.right.mT)).sum(dim=(1, 2))
        for other in pieces[number + 1 :]:
            total += 2.0 * (_gram_of_left(one, other) * (one.right @ other.right.mT)).sum(dim=(1, 2))
    # A product of Gram entries has an error of at most (rows + columns + 2) units of the norms of its
    # factors, and the sum one more for every term (Cauchy-Schwarz gives the masses).
    positions = sum(piece.right.shape[1] for piece in pieces)
    rows = max(1 if piece.looks_up else piece.left.shape[2] for piece in pieces)
    units = (rows + pieces[0].right.shape[2] + positions**2 + 16) * _UNIT
    bound = torch.stack([mass.sqrt() for mass in masses]).sum(dim=0).square()
    # NaN stays NaN, and inf - inf becomes NaN: such an example is excluded.
    return total.clamp(min=0.0) + max(units, _CANCELLED) * bound


def _gram_of_left(one: Piece, other: Piece) -> Tensor:
    """<one.left[s], other.left[t]> for every example, shape (examples, positions, positions), float64."""
    if one.looks_up and other.looks_up:
        return (one.left[:, :, None] == other.left[:, None, :]).double()
    if other.looks_up:
        rows = other.left[:, None, :].expand(-1, one.left.shape[1], -1)
        return one.left.gather(2, rows).double()
    if one.looks_up:
        return _gram_of_left(other, one).mT
    return one.left @ other.left.mT


@functools.cache
def has_fast_float64(device: torch.device) -> bool:
    """Whether it is a CUDA device whose float64 is at least half as fast as its float32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in _FAST_FLOAT64
