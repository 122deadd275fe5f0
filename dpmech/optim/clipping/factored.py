"""Factored: per-example gradients of a weight as sums of outer products, whose norms need no gradient."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["Factored", "Piece"]

_UNIT = 2.0**-53
# What is added to a squared norm, relative to the trace product that bounds its roundings. It also bounds
# what cancels inside one example, and so the roundings of the sum over the lot.
_CANCELLED = 2.0**-30
# Values in float64 that are held at once.
_AT_ONCE = 1 << 21


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """What one use of a weight adds to its gradients: for every example sum_t left[t] right[t]^T.

    Args:
        left: shape (examples, positions, rows); or int64, shape (examples, positions), the row of every
            position, for lookups.
        right: shape (examples, positions, columns).
    """

    left: Tensor
    right: Tensor

    @property
    def looks_up(self) -> bool:
        """Whether `left` holds rows by their numbers."""
        return self.left.ndim == 2

    def picked(self, rows: Tensor | slice) -> "Piece":
        """The piece of some examples, with wide numbers."""
        left = self.left[rows]
        return Piece(left if self.looks_up else left.double(), self.right[rows].double())

    def mass(self) -> Tensor:
        """sum_t |left[t]|^2 times sum_t |right[t]|^2 of every example, in float64."""
        right = self.right.square().sum(dim=(1, 2))
        if self.looks_up:
            return right * self.left.shape[1]
        return right * self.left.square().sum(dim=(1, 2))


@dataclasses.dataclass(frozen=True, eq=False)
class Factored:
    """Per-example gradients of one weight, as sums over its uses.

    Norms and sums are formed in float64 from the same factors, so that what is added up is what was clipped.
    In float32 a sum over positions that cancel would give norms that are too small by any factor.

    Args:
        pieces: the uses; the rows and columns of all of them are those of the weight.
        shape: of the weight; rows times columns values.
    """

    pieces: Sequence[Piece]
    shape: tuple[int, ...]

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return len(self.pieces[0].right)

    @property
    def device(self) -> torch.device:
        """Where the factors are."""
        return self.pieces[0].right.device

    def __len__(self) -> int:
        return self.examples

    def formed(self) -> Tensor:
        """The gradients themselves, shape (examples, *shape)."""
        found = []
        for piece in self.pieces:
            if piece.looks_up:
                one = piece.right.new_zeros(len(piece.right), self.shape[0], piece.right.shape[2])
                one.scatter_add_(1, piece.left[:, :, None].expand_as(piece.right), piece.right)
            else:
                one = piece.left.to(piece.right.dtype).mT @ piece.right
            found.append(one.reshape(len(one), *self.shape))
        return found[0] if len(found) == 1 else torch.stack(found).sum(dim=0)

    def squares(self) -> Tensor:
        """Upper bounds on the squared norms, float64, shape (examples,); not finite where gradients are not.

        Above by at most 2^-30 times the squared sum over the pieces of |left| |right| (Frobenius norms), or
        by the roundings of float64 where there are so many positions that these are more.
        """
        found = [self._squares(rows) for rows in self._runs(self._gram_size())]
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64, device=self.device)

    def weighted_sum(self, factors: Tensor, kept: Tensor | None) -> Tensor:
        """The sum over examples of factors[i] times the gradient of example i, float64, as the weight is.

        Args:
            factors: float64, shape (examples,).
            kept: which examples count, boolean; None for all. The others may hold anything.
        """
        total: Tensor | None = None
        for run in self._runs(self._factor_size()):
            chosen: Tensor | slice = run
            if kept is not None:
                chosen = kept[run].nonzero()[:, 0] + run.start
            weight = factors[chosen][:, None, None]
            for one in self.pieces:
                piece = one.picked(chosen)
                right = (piece.right * weight).flatten(0, 1)
                if not piece.looks_up:
                    left = piece.left.flatten(0, 1).T
                    total = left @ right if total is None else total.addmm_(left, right)
                    continue
                total = self._zeros() if total is None else total
                total.index_add_(0, piece.left.flatten(), right)
        return (self._zeros() if total is None else total).view(self.shape)

    def _zeros(self) -> Tensor:
        columns = self.pieces[0].right.shape[2]
        rows = math.prod(self.shape) // max(columns, 1)
        return torch.zeros(rows, columns, dtype=torch.float64, device=self.device)

    def _squares(self, rows: slice) -> Tensor:
        pieces = [piece.picked(rows) for piece in self.pieces]
        masses = [piece.mass() for piece in pieces]
        if len(pieces) == 1 and pieces[0].right.shape[1] == 1:
            return masses[0] * (1.0 + _CANCELLED)  # one outer product: nothing can cancel
        total = torch.zeros_like(masses[0])
        for number, one in enumerate(pieces):
            total += (_gram_of_left(one, one) * (one.right @ one.right.mT)).sum(dim=(1, 2))
            for other in pieces[number + 1 :]:
                total += 2.0 * (_gram_of_left(one, other) * (one.right @ other.right.mT)).sum(dim=(1, 2))
        # A product of Gram entries is off by at most (rows + columns + 2) units of the norms of its factors,
        # the sum of all by one more for every addend (Cauchy and Schwarz give the masses).
        positions = sum(piece.right.shape[1] for piece in pieces)
        left = max(1 if piece.looks_up else piece.left.shape[2] for piece in pieces)
        units = (left + pieces[0].right.shape[2] + positions**2 + 16) * _UNIT
        bound = torch.stack([mass.sqrt() for mass in masses]).sum(dim=0).square()
        # NaN stays NaN, and inf - inf is one: such an example is left out.
        return total.clamp(min=0.0) + max(units, _CANCELLED) * bound

    def _gram_size(self) -> int:
        """Values that the norms of one example need at once."""
        positions = max(piece.right.shape[1] for piece in self.pieces)
        return max(positions**2, self._factor_size())

    def _factor_size(self) -> int:
        """Values of the factors of one example."""
        return max(piece.right.numel() + piece.left.numel() for piece in self.pieces) // max(self.examples, 1)

    def _runs(self, values: int) -> Iterator[slice]:
        """Examples in runs of which each has so many values an example in memory."""
        step = max(_AT_ONCE // max(values, 1), 1)
        for start in range(0, self.examples, step):
            yield slice(start, min(start + step, self.examples))


def _gram_of_left(one: Piece, other: Piece) -> Tensor:
    """<one.left[s], other.left[t]> for every example, shape (examples, positions, positions), float64."""
    if one.looks_up and other.looks_up:
        return (one.left[:, :, None] == other.left[:, None, :]).double()
    if other.looks_up:
        rows = other.left[:, None, :].expand(-1, one.left.shape[1], -1)
        return one.left.gather(2, rows)
    if one.looks_up:
        return _gram_of_left(other, one).mT
    return one.left @ other.left.mT
