"""Upper bounds on the norms of sums of outer products, from Gram matrices in float64 or float32."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_UNIT = 2.0**-53
# Added to a squared norm, relative to the product of lengths that bounds its rounding error. It also bounds
# the cancellation inside one example, and thus the rounding error of the sum over the batch.
_CANCELLED = 2.0**-30
# Devices whose Gram matrices are float32 unless their float64 is fast: on CPUs it is.
_IN_FLOAT32 = {"cuda"}
# Compute capabilities of devices whose float64 is at least half as fast as float32; the last two are AMD's.
_FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (9, 4), (9, 5)}
_RUN = 128  # products that are added in float32
# At least (1 + g)^2 - 1 for g = _RUN 2^-24 / (1 - _RUN 2^-24), by more than the roundings of `lengths`.
_GRAM_ERROR = 2.0**-16 * (1.0 + 2.0**-10)
_UNDERFLOW = 2.0**-116


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

    def picked(self, rows: slice, dtype: torch.dtype = torch.float64) -> "Piece":
        """The piece for some examples, in a dtype."""
        left = self.left[rows]
        return Piece(left if self.looks_up else left.to(dtype), self.right[rows].to(dtype))

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


def squared_norms(pieces: Sequence[Piece], rows: slice) -> Tensor:
    """Upper bounds on the squared norms of examples, float64; non-finite for non-finite gradients.

    Args:
        pieces: the uses of a weight.
        rows: the examples.
    """
    if _takes_float32(pieces):
        return _in_float32([piece.picked(rows, torch.float32) for piece in pieces])
    return _in_float64([piece.picked(rows) for piece in pieces])


def _in_float64(pieces: Sequence[Piece]) -> Tensor:
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
    units = (_width(pieces) + pieces[0].right.shape[2] + positions**2 + 16) * _UNIT
    bound = torch.stack([mass.sqrt() for mass in masses]).sum(dim=0).square()
    # NaN stays NaN, and inf - inf becomes NaN: such an example is excluded.
    return total.clamp(min=0.0) + max(units, _CANCELLED) * bound


def _in_float32(pieces: Sequence[Piece]) -> Tensor:
    r"""The same with products in float32, 128 of them added in float32, and everything else in float64.

    **Bound.** A product of float32 matrices with inner dimension k <= 128, in any order of additions, has
    errors of at most g |a| |b| for rows a and b, fused or not, g = 128 u / (1 - 128 u), u = 2^-24 (Higham,
    Accuracy and Stability of Numerical Algorithms, section 3.5; Cauchy-Schwarz). Runs are added in float64.
    So an entry of the Gram matrix of left factors is off by at most g |l_s| |l_t|, one of right factors by
    g |r_s| |r_t|, and their product by ((1 + g)^2 - 1) |l_s| |l_t| |r_s| |r_t|, but for units of float64.
    Summed over s and t, also over pairs of pieces, the squared norm is off by at most

        ((1 + g)^2 - 1 + (positions^2 + ...) 2^-53) (sum_t |l_t| |r_t|)^2,  (1 + g)^2 - 1 < 2^-16 (1 + 2^-15),

    which is added, with the 2^-30 of the path in float64. Before, the factors of every example are scaled by
    powers of two to largest values in [1, 4), so that no product overflows. Underflow, also if small values
    are flushed to zero, then loses at most 2^-116 positions^2 rows columns in scaled units, which is added
    where an example has a gradient. Devices that flush factors before they are scaled take float64.
    """
    columns = pieces[0].right.shape[2]
    lengths = torch.stack([_lengths(piece) for piece in pieces]).sum(dim=0)
    if len(pieces) == 1 and pieces[0].right.shape[1] == 1:
        return pieces[0].picked(slice(None)).mass() * (1.0 + _CANCELLED)
    scaled = [_scaled(piece) for piece in pieces]
    total = torch.zeros_like(lengths)
    with full_float32(lengths.device):
        for number, (one, own) in enumerate(scaled):
            for second, (other, others) in enumerate(scaled[number:]):
                rights = _products(one.right, other.right)
                terms = (_gram_of_left(one, other) * rights).sum(dim=(1, 2))
                total += (1.0 if second == 0 else 2.0) * terms * _power(own + others, torch.float64)
    positions = sum(piece.right.shape[1] for piece in pieces)
    rows = _width(pieces)
    units = (rows // _RUN + columns // _RUN + positions**2 + 32) * _UNIT
    lost = _UNDERFLOW * positions**2 * rows * columns
    scales = torch.stack([_power(exponent, torch.float64) for _, exponent in scaled]).sum(dim=0)
    bound = lengths.square()
    slack = (_GRAM_ERROR + max(units, _CANCELLED)) * bound + torch.where(
        bound > 0.0, lost * scales.square(), 0.0
    )
    # An infinity or NaN in a factor makes `lengths` infinite or NaN.
    return total.clamp(min=0.0) + slack


def _lengths(piece: Piece) -> Tensor:
    """sum_t |left[t]| |right[t]| of every example, float64."""
    right: Tensor = torch.linalg.vector_norm(piece.right, dim=2, dtype=torch.float64)
    if not piece.looks_up:
        right = right * torch.linalg.vector_norm(piece.left, dim=2, dtype=torch.float64)
    return right.sum(dim=1)


def _scaled(piece: Piece) -> tuple[Piece, Tensor]:
    """The factors of every example times powers of two, and the exponent that undoes both."""
    right, exponent = _to_ones(piece.right)
    if piece.looks_up:
        return Piece(piece.left, right), exponent
    left, more = _to_ones(piece.left)
    return Piece(left, right), exponent + more


def _to_ones(factor: Tensor) -> tuple[Tensor, Tensor]:
    """A factor with largest values in [1, 4), or smaller ones if they were below 2^-126."""
    bits = factor.abs().amax(dim=(1, 2)).view(torch.int32)
    exponent = ((bits >> 23) - 127).clamp(-126, 126).to(torch.int64)
    return factor * _power(-exponent, torch.float32)[:, None, None], exponent


def _power(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2 to integers, exactly: libraries may round it."""
    if dtype == torch.float32:
        return ((exponent + 127) << 23).to(torch.int32).view(torch.float32)
    return ((exponent + 1023) << 52).view(torch.float64)


def _products(one: Tensor, other: Tensor) -> Tensor:
    """One times other transposed, of every example: float64 as it is, float32 in runs added in float64."""
    if one.dtype == torch.float64:
        return one @ other.mT
    total = torch.zeros(len(one), one.shape[1], other.shape[1], dtype=torch.float64, device=one.device)
    for start in range(0, one.shape[2], _RUN):
        run = slice(start, start + _RUN)
        total.add_(one[..., run] @ other[..., run].mT)  # torch adds mixed dtypes in float64
    return total


def _gram_of_left(one: Piece, other: Piece) -> Tensor:
    """<one.left[s], other.left[t]> for every example, shape (examples, positions, positions), float64."""
    if one.looks_up and other.looks_up:
        return (one.left[:, :, None] == other.left[:, None, :]).double()
    if other.looks_up:
        rows = other.left[:, None, :].expand(-1, one.left.shape[1], -1)
        return one.left.gather(2, rows).double()
    if one.looks_up:
        return _gram_of_left(other, one).mT
    return _products(one.left, other.left)


def _width(pieces: Sequence[Piece]) -> int:
    """Number of rows of the left factors, 1 for lookups."""
    return max(1 if piece.looks_up else piece.left.shape[2] for piece in pieces)


def _takes_float32(pieces: Sequence[Piece]) -> bool:
    """Whether Gram matrices are float32: float64 is slow, nothing is empty, and float32 holds all factors."""
    device = pieces[0].right.device
    if device.type not in _IN_FLOAT32 or has_fast_float64(device):
        return False
    factors = [one for piece in pieces for one in (piece.left, piece.right) if one.is_floating_point()]
    narrow = all(one.numel() > 0 and one.dtype != torch.float64 for one in factors)
    return narrow and _keeps_float32(device)


@functools.cache
def has_fast_float64(device: torch.device) -> bool:
    """Whether it is a CUDA device whose float64 is at least half as fast as its float32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in _FAST_FLOAT64


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """A context in which products of float32 matrices keep all bits: neither TF32 nor autocast."""
    with torch.autocast(device.type, enabled=False), _without_tf32():
        yield


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Switch TF32 off the way that the caller switched it on: readers of the other way would raise."""
    older = _older_setting()
    older = None if older == "highest" else older
    # The older setting sets that of CPUs too.
    backend: Any = torch.backends.cuda if older is None else torch.backends.mkldnn
    matmul: Any = getattr(backend, "matmul", None)
    kept = getattr(matmul, "fp32_precision", None)
    if older is not None:
        torch.set_float32_matmul_precision("highest")
    elif kept is not None:
        matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        if kept is not None:
            matmul.fp32_precision = kept


def _older_setting() -> str | None:
    """The precision of products by torch's older setting; None if the newer one says something else."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


@functools.cache  # once for each device: the host waits for the answer
def _keeps_float32(device: torch.device) -> bool:
    """Whether products on a device have the errors that `_in_float32` allows for, on values that show less.

    TF32, bfloat16 and splits of float32 into few parts of these drop the last bits of 1 + 2^-12 + 2^-23. A
    device that flushes values below 2^-126 to zero makes 0 of all of them.
    """
    drawn = torch.Generator().manual_seed(0)
    one, other = (1.0 + 2.0**-12 + 2.0**-23 * torch.randint(4, (2, 64, _RUN), generator=drawn) for _ in "ab")
    there = one.to(device, torch.float32), other.to(device, torch.float32)
    worst = 0.0  # in units of what is allowed for
    with full_float32(device):
        for width in (1, 4, 16):  # fewer terms show more
            found = (there[0][..., :width] @ there[1][..., :width].mT).double().cpu()
            exact = one[..., :width].double() @ other[..., :width].double().mT
            allowed = width * 2.0**-24 / (1.0 - width * 2.0**-24) * exact
            worst = max(worst, float(((found - exact).abs() / allowed).max()))
    small = torch.full((_RUN,), 2.0**-130).to(device) * _power(
        torch.tensor(126, device=device), torch.float32
    )
    if not bool((small == 2.0**-4).all()):
        worst = math.inf
    if worst <= 1.0:
        return True
    warnings.warn(
        f"products of float32 on {device} are off by {worst:.1e} times what it allows, while TF32 is off: "
        "norms of ghost clipping are computed in float64. An emulation of float32 may be on, or small values "
        "are flushed to zero",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
