"""Dense: any lower-triangular invertible matrix."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
import scipy

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_matrix
from dpmech.mechanism.strategies.base import Strategy, check_steps
from dpmech.mechanism.strategies.factored import check_operand
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.numerics import UNIT, FloatArray, checked_norms


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dense(Strategy):
    """C given entry by entry. Memory and time O(n^2) to O(n^3).

    Args:
        matrix: shape (n, n), lower-triangular with a non-zero diagonal.

    Raises:
        InvalidParameterError: if the matrix is not square, not lower-triangular, or singular.
        NumericalError: when C^-1 overflows float64.

    Example:
        >>> import dpmech as dm
        >>> f"{dm.sensitivity(dm.Dense([[1.0, 0.0], [0.5, 1.0]])).upper:.3f}"
        '1.803'
    """

    matrix: FloatArray

    def __post_init__(self) -> None:
        matrix = check_matrix("matrix", self.matrix)
        for accepted, places in (
            ("lower-triangular (zeros above the diagonal)", np.argwhere(np.triu(matrix, 1))),
            ("invertible (no zero on the diagonal)", np.argwhere(np.diag(np.diagonal(matrix) == 0.0))),
        ):
            if len(places):
                row, column = places[0].tolist()
                where = f": row {row}, column {column} has {matrix[row, column]:g}"
                raise InvalidParameterError("matrix", self.matrix, accepted, where)
        object.__setattr__(self, "matrix", matrix)

    @property
    def n(self) -> int:  # type: ignore[override]  # the number of steps is the size of the matrix
        """Number of steps."""
        return len(self.matrix)

    @functools.cached_property
    def _inverse(self) -> FloatArray:
        inverse = np.asarray(
            scipy.linalg.solve_triangular(self.matrix, np.eye(self.n), lower=True, check_finite=False)
        )
        if not np.all(np.isfinite(inverse)):
            raise NumericalError("the inverse of matrix overflows float64: it is too ill-conditioned")
        return np.tril(inverse)

    @functools.cached_property
    def _gram(self) -> FloatArray:
        return np.asarray(self.matrix.T @ self.matrix, dtype=np.float64)

    def to_dense(self) -> FloatArray:
        """A copy of C."""
        return np.array(self.matrix)

    def matmul(self, x: FloatArray) -> FloatArray:
        """C @ x."""
        return np.asarray(self.matrix @ check_operand("x", x, self.n), dtype=np.float64)

    def solve(self, z: FloatArray) -> FloatArray:
        """C^-1 @ z by forward substitution."""
        operand = check_operand("z", z, self.n)
        solution = np.asarray(
            scipy.linalg.solve_triangular(self.matrix, operand, lower=True, check_finite=False)
        )
        if not np.all(np.isfinite(solution)):
            raise NumericalError("the solution overflows float64: matrix is too ill-conditioned")
        return solution

    def column_norms(self) -> FloatArray:
        """Norms of the columns of C."""
        with np.errstate(over="ignore", under="ignore"):
            return checked_norms(np.asarray(np.linalg.norm(self.matrix, axis=0), dtype=np.float64))

    def noising_row_norms(self) -> FloatArray:
        """Norms of the rows of C^-1."""
        return np.asarray(np.linalg.norm(self._inverse, axis=1), dtype=np.float64)

    def gram_diagonal(self, offset: int) -> FloatArray:
        """Entries (j, j + offset) of C^T C."""
        return np.diagonal(self._gram, offset).copy()

    def gram_rows(self) -> Iterator[tuple[int, FloatArray]]:
        """Rows of C^T C."""
        return enumerate(self._gram.copy())

    def prefix(self, steps: int) -> "Dense":
        """The leading block."""
        count = check_steps(steps, self.n)
        return Dense(self.matrix[:count, :count])

    @property
    def gram_rounding(self) -> float:
        """Bound for sums of n products in the order chosen by the linear algebra library."""
        return 1.01 * (self.n + 8) * UNIT

    @property
    def factored(self) -> ScaledToeplitz | None:
        """None: no structure is assumed."""
        return None

    @property
    def nonnegative(self) -> bool:
        """Whether every entry is >= 0."""
        return bool(np.all(self.matrix >= 0.0))

    @property
    def bands(self) -> int | None:
        """Number of bands of C, from its zeros; None if it has all n."""
        return _bands(self.matrix)

    @property
    def inverse_bands(self) -> int | None:
        """Number of bands of C^-1, from its exact zeros; None if it has all n."""
        return _bands(self._inverse)


def _bands(matrix: FloatArray) -> int | None:
    n = matrix.shape[0]
    rows, columns = np.nonzero(matrix)
    count = int((rows - columns).max()) + 1
    return count if count < n or n == 1 else None
