"""C = T diag(scale), T lower-triangular Toeplitz: the form of nine of the ten strategies."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from dpmech.numerics import (
    UNIT,
    FloatArray,
    checked_finite,
    checked_norms,
    cumulative_sum,
    is_short,
    toeplitz_matmul,
    toeplitz_solve,
)


@dataclasses.dataclass(frozen=True, eq=False)
class ScaledToeplitz:
    """The matrix T diag(scale) and its inverse, represented by their defining vectors.

    Args:
        coefs: first column of T, shape (n,).
        inverse_coefs: first column of T^-1, shape (n,).
        scale: shape (n,), positive; None for ones.
        bands: p if coefs[p:] is zero by construction, else None.
        inverse_bands: the same for inverse_coefs.
        exponentials: (decays, weights) if coefs[0] = 1 and coefs[t] = sum_j weights[j] decays[j]^(t - 1),
            so that one buffer per decay carries the past; else None.
        error: each column of this matrix is within error times its norm of that of the exact strategy; 0 if
            its entries are given. `scale` is the factor by which noise is scaled, and is exact.
    """

    coefs: FloatArray
    inverse_coefs: FloatArray
    scale: FloatArray | None = None
    bands: int | None = None
    inverse_bands: int | None = None
    exponentials: tuple[FloatArray, FloatArray] | None = None
    error: float = 0.0

    def __post_init__(self) -> None:
        for name in ("coefs", "inverse_coefs", "scale"):
            value = getattr(self, name)
            if value is not None:
                checked_finite(value, f"{name} of the strategy").setflags(write=False)

    @property
    def n(self) -> int:
        """Number of rows and columns."""
        return self.coefs.size

    def scales(self) -> FloatArray:
        """The diagonal, shape (n,), ones if `scale` is None."""
        return np.ones(self.n) if self.scale is None else self.scale

    def rescaled(self, factors: FloatArray) -> "ScaledToeplitz":
        """The matrix times diag(factors) from the right."""
        # The factors and the product are each rounded once, and noise is divided by the result.
        return dataclasses.replace(self, scale=self.scales() * factors, error=self.error + 4.0 * UNIT)

    def matmul(self, x: FloatArray) -> FloatArray:
        """T diag(scale) @ x."""
        scaled = x if self.scale is None else (x.T * self.scale).T
        if self.inverse_bands is not None and is_short(self.inverse_coefs, self.n):
            return toeplitz_solve(self.inverse_coefs, scaled)
        return toeplitz_matmul(self.coefs, scaled)

    def solve(self, z: FloatArray) -> FloatArray:
        """diag(1 / scale) T^-1 @ z."""
        if self.inverse_bands is None and self.bands is not None and is_short(self.coefs, self.n):
            solution = toeplitz_solve(self.coefs, z)
        else:
            solution = toeplitz_matmul(self.inverse_coefs, z)
        return solution if self.scale is None else (solution.T / self.scale).T

    def to_dense(self) -> FloatArray:
        """The matrix, shape (n, n)."""
        steps = np.arange(self.n)
        lags = steps[:, None] - steps[None, :]
        return np.where(lags >= 0, self.coefs[np.maximum(lags, 0)], 0.0) * self.scales()

    def column_norms(self) -> FloatArray:
        """Norms of the columns, shape (n,)."""
        with np.errstate(over="ignore", under="ignore"):
            norms = checked_norms(np.sqrt(cumulative_sum(self.coefs**2))[::-1])
        return norms.copy() if self.scale is None else checked_norms(norms * self.scale)

    def noising_row_norms(self) -> FloatArray:
        """Norms of the rows of the inverse, shape (n,)."""
        norms = np.sqrt(cumulative_sum(self.inverse_coefs**2))
        return norms if self.scale is None else norms / self.scale

    def gram_diagonal(self, offset: int) -> FloatArray:
        """Entries (j, j + offset) of the Gram matrix, shape (n - offset,)."""
        length = self.n - offset
        entries = cumulative_sum(self.coefs[:length] * self.coefs[offset:])[::-1]
        if self.scale is None:
            return entries.copy()
        return entries * self.scale[:length] * self.scale[offset:]

    def gram_rows(self) -> Iterator[tuple[int, FloatArray]]:
        """Rows of the Gram matrix from the last to the first.

        Moving one step up and left along a diagonal adds one product:
        <T_(i-1), T_(j-1)> = <T_i, T_j> + c_(n-i) c_(n-j).
        """
        n = self.n
        reversed_coefs = self.coefs[::-1]
        scales = self.scales()
        # Up to n consecutive sums: the rounding error of each is kept next to it (Knuth's two-sum).
        row, rest = np.zeros(n), np.zeros(n)
        for i in range(n - 1, -1, -1):
            row[:-1], rest[:-1] = row[1:].copy(), rest[1:].copy()
            row[-1] = rest[-1] = 0.0
            added = self.coefs[n - 1 - i] * reversed_coefs
            summed = row + added
            back = summed - row
            rest += (row - (summed - back)) + (added - back)
            row = summed
            yield i, (row + rest) * scales * scales[i]
