r"""Dense Gram matrices of bins, and factors of low rank off the diagonal as a recursion.

Divide the columns of a lower-triangular F into groups, `x = (x_1, ..., x_P)`. Where the block of F below and
to the left of every cut has low rank, later rows depend on the earlier groups only through a short state:

    [s_p, y_p] = [s_(p-1), x_p] G_p,    y = F x,

and, as every step is linear, the transpose runs backwards through the same tables,
`[t_(p-1), z_p] = [t_p, v_p] G_p^T`, `z = F^T v`. (This is the sequentially semiseparable form of F.) A
product then takes about b (c + 2 r) multiplications instead of b^2, c the size of a group and r that of a
state. Strategies with a short recursion, or with columns near sums of a few exponentials, have r of 2 to 30.

References:
    Chandrasekaran, Dewilde, Gu, Pals, Sun, van der Veen and White 2005, "Some fast algorithms for
    sequentially semiseparable representations".
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import final

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines.gaussian_mixture.gram import (
    FACTOR_RTOL,
    NEGATIVE_RTOL,
    BinGram,
    DiagonalFactor,
    factor_rounding,
    pair_sums,
)
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_matrix, check_real
from dpmech.numerics import UNIT, FloatArray, IntArray

GROUP = 48
# With fewer columns a recursion does not pay off; nor does one that saves less.
FEWEST = 128
WORTH = 0.5
# Singular values below this many roundings of the largest row, times sqrt(b), count as rounding errors.
ROUNDINGS = 4.0
BATCH_ENTRIES = 2**16


@dataclasses.dataclass(frozen=True, eq=False)
class SequentialFactor:
    """A lower-triangular b x b matrix F, stored as a recursion.

    Attributes:
        cuts: ends of the groups, from 0 to b, shape (P + 1,).
        tables: G_p, shape (r_(p-1) + c_p, r_p + c_p), r_0 = r_P = 0.
    """

    cuts: tuple[int, ...]
    tables: tuple[FloatArray, ...]

    @classmethod
    def of(cls, factor: FloatArray) -> "SequentialFactor | None":
        """The recursion of a lower-triangular F, up to rounding; None if it would save little.

        The part that is omitted from every block below a cut has a spectral norm of at most
        `ROUNDINGS sqrt(b)` roundings of the largest row of F. No guarantee depends on that: callers compare
        the result of the recursion with F.
        """
        bins = factor.shape[0]
        if bins < FEWEST:
            return None
        groups = math.ceil(bins / GROUP)
        cuts = tuple(round(bins * number / groups) for number in range(groups + 1))
        least = ROUNDINGS * UNIT * math.sqrt(bins) * float(np.max(np.linalg.norm(factor, axis=1)))
        budget = WORTH * bins**2
        tables = []
        # Rows from the last cut on, in state coordinates.
        seen = np.zeros((bins, 0))
        for start, stop in itertools.pairwise(cuts):
            size = stop - start
            block = np.concatenate([seen, factor[start:, start:stop]], axis=1)
            shown, below = block[:size].T, block[size:]
            basis = np.zeros((block.shape[1], 0))
            if below.size:
                _, values, vectors = np.linalg.svd(below, full_matrices=False)
                basis = vectors[values > least].T
            seen = below @ basis
            tables.append(np.ascontiguousarray(np.concatenate([basis, shown], axis=1)))
            budget -= tables[-1].size
            if budget < 0.0:
                return None
        return cls(cuts, tuple(tables))

    @property
    def bins(self) -> int:
        """The size b of the matrix."""
        return self.cuts[-1]

    @property
    def rounding(self) -> float:
        """Largest error of a component of F x, relative to the largest row norm of F times |x|.

        Group p multiplies k_p = r_(p-1) + c_p numbers with G_p. States are coordinates in orthonormal bases,
        so that |s_p| <= |x|, and the part of G_p that F x uses has rows of at most the norm of those of F.
        Each of the at most k_p + r_p results has an error of k_p + 2 roundings of |x| times a norm, and later
        groups pass an error on without increasing its norm. The same holds backwards, for the transpose. The
        result is twice that.
        """
        parts = (float(max(table.shape)) for table in self.tables)
        return 2.0 * UNIT * math.fsum((part + 2.0) * math.sqrt(part) for part in parts)

    def applied(self, rows: FloatArray) -> FloatArray:
        """F x for every row x of an array of shape (m, b), in place."""
        for part in _batches(rows):
            state = np.empty((part.shape[0], 0))
            for start, stop, table in zip(self.cuts[:-1], self.cuts[1:], self.tables, strict=True):
                found = np.concatenate([state, part[:, start:stop]], axis=1) @ table
                width = table.shape[1] - (stop - start)
                state, part[:, start:stop] = found[:, :width], found[:, width:]
        return rows

    def transpose_applied(self, rows: FloatArray) -> FloatArray:
        """F^T v for every row v of an array of shape (m, b), in place."""
        groups = tuple(zip(self.cuts[:-1], self.cuts[1:], self.tables, strict=True))
        for part in _batches(rows):
            state = np.empty((part.shape[0], 0))
            for start, stop, table in reversed(groups):
                found = np.concatenate([state, part[:, start:stop]], axis=1) @ table.T
                width = table.shape[0] - (stop - start)
                state, part[:, start:stop] = found[:, :width], found[:, width:]
        return rows


def _batches(rows: FloatArray) -> Iterator[FloatArray]:
    """Batches of a few rows, which stay in the cache."""
    step = max(1, BATCH_ENTRIES // rows.shape[1])
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


@dataclasses.dataclass(frozen=True, eq=False)
class TriangularFactor(DiagonalFactor):
    """A lower-triangular F with F F^T = K: the root of a scale times a matrix.

    Attributes:
        matrix: F at scale 1, shape (b, b).
        root: of the scale.
        known: the condition, once it is computed; common to all scales.
    """

    matrix: FloatArray
    root: float
    known: list[float]

    @property
    def condition(self) -> float:
        """An upper bound on the largest row sum of |F^-1| |F|, from the computed inverse."""
        if not self.known:
            bins = len(self.matrix)
            inverse = scipy.linalg.solve_triangular(self.matrix, np.eye(bins), lower=True, check_finite=False)
            found = float(np.max(np.abs(inverse) @ np.abs(self.matrix).sum(axis=1)))
            # The error of the inverse is (b + 2) u |F^-1| |F| |F^-1| (Higham 2002, Theorem 8.5).
            small = (bins + 2.0) * UNIT * found <= 1e-3
            self.known.append(1.01 * found if small else math.inf)
        return self.known[0]

    def whiten(self, values: FloatArray) -> FloatArray:
        """F^-1 y for every row y, by a triangular solve."""
        solved = scipy.linalg.solve_triangular(self.matrix, values.T, lower=True, check_finite=False)
        return np.asarray(np.ascontiguousarray(solved.T) / self.root)

    def rows(self, start: int, stop: int) -> FloatArray:
        """F[start:stop, :stop]."""
        return self.root * self.matrix[start:stop, :stop]

    def sums(self) -> FloatArray:
        """F^T 1, shape (b,)."""
        return np.asarray(self.root * self.matrix.sum(axis=0))


# With fewer columns, the product uses the matrix itself.
SEVERAL = 16


@final
class DenseGram(BinGram):
    """A Gram matrix stored as a dense array and factored once: O(b^2) memory.

    Args:
        matrix: K, shape (b, b), symmetric to 1e-12 of its largest entry, non-negative, positive
            semidefinite (it may be singular), with a positive diagonal.

    Raises:
        InvalidParameterError: if `matrix` does not satisfy this.
        NumericalError: if no factor reproduces it to 16 (b + 8) roundings of its largest entry.
    """

    def __init__(self, matrix: npt.ArrayLike) -> None:
        given = check_matrix("matrix", matrix)
        top = float(np.max(np.diag(given)))
        if np.min(np.diag(given)) <= 0.0 or np.min(given) < -NEGATIVE_RTOL * top:
            raise InvalidParameterError("matrix", matrix, "non-negative, with a positive diagonal")
        if np.max(np.abs(given - given.T)) > NEGATIVE_RTOL * top:
            raise InvalidParameterError("matrix", matrix, "symmetric")
        self._matrix = np.maximum(np.maximum(given, given.T), 0.0)
        self._factor, self._triangular = _factor(self._matrix)
        self._sequential = _sequential(self._matrix, self._factor) if self._triangular else None
        self._condition: list[float] = []
        self._scale = 1.0

    def __repr__(self) -> str:
        return f"DenseGram(bins={self.bins}, largest={float(self.diagonal.max()):.6g})"

    @property
    def bins(self) -> int:
        """The number of bins b."""
        return int(self._matrix.shape[0])

    @property
    def diagonal(self) -> FloatArray:
        """The diagonal of K, shape (b,)."""
        return self._scale * np.diag(self._matrix)

    def product_rounding(self, total: float, norm: float) -> float:
        """Error of the array, or of the recursion, which reproduces the array to `factor_rounding`."""
        del norm
        relative = 1.01 * (self.bins + 4.0) * UNIT
        if self._sequential is not None:
            relative += factor_rounding(self.bins) + 2.0 * self._sequential.rounding
        return relative * float(self.diagonal.max()) * total

    def matmat(self, values: FloatArray) -> FloatArray:
        """K @ values, for values of shape (b, m)."""
        if self._sequential is not None and values.shape[1] >= SEVERAL:
            rows = self._sequential.transpose_applied(np.array(values.T, order="C"))
            rows = self._sequential.applied(rows)
            rows *= self._scale
            return rows.T
        return self._scale * (self._matrix @ values)

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draws of N(0, K), shape (count, b)."""
        normals = rng.standard_normal((count, self.bins))
        if self._sequential is not None:
            normals *= np.sqrt(self._scale)
            return self._sequential.applied(normals)
        drawn: FloatArray = (normals @ self._factor.T) * np.sqrt(self._scale)
        return drawn

    def scaled(self, factor: float) -> "DenseGram":
        """`factor * K`, sharing the factor."""
        out = object.__new__(DenseGram)
        out._matrix, out._factor, out._triangular = self._matrix, self._factor, self._triangular
        out._sequential, out._condition = self._sequential, self._condition
        out._scale = self._scale * check_real("factor", factor, minimum=0.0, open_minimum=True)
        return out

    @property
    def factor(self) -> "TriangularFactor | None":
        """The Cholesky factor; None if K is singular."""
        if not self._triangular:
            return None
        root = math.sqrt(self._scale)
        return TriangularFactor(root * np.diag(self._factor), self._factor, root, self._condition)

    def columns(self, indices: IntArray) -> FloatArray:
        """Columns of K as rows, shape (len(indices), b)."""
        return self._scale * self._matrix[indices]

    def column_sums(self, indices: IntArray) -> FloatArray:
        """Sums of columns, shape (m, b); gathered if that is cheaper than a product."""
        if indices.shape[1] > 16:
            return super().column_sums(indices)
        total = np.zeros((indices.shape[0], self.bins))
        for column in indices.T:
            total += self._matrix[column]
        return self._scale * total

    def tuple_fields(self, indices: IntArray) -> FloatArray:
        """Sums of K over each tuple, shape (m, q)."""
        if indices.shape[1] ** 2 > 4 * self.bins:
            return super().tuple_fields(indices)
        bins, entries = self.bins, self._matrix.reshape(-1)
        return self._scale * pair_sums(indices, lambda rows, columns: entries.take(rows * bins + columns))


def _sequential(matrix: FloatArray, factor: FloatArray) -> SequentialFactor | None:
    """The factor as a recursion, if that is faster and reproduces the matrix as accurately as `_factor`."""
    found = SequentialFactor.of(factor)
    if found is None:
        return None
    dense = found.applied(np.eye(matrix.shape[0])).T
    error = float(np.max(np.abs(dense @ dense.T - matrix)))
    return found if error <= factor_rounding(matrix.shape[0]) * float(np.max(matrix)) else None


def _factor(matrix: FloatArray) -> tuple[FloatArray, bool]:
    """A square F with F F^T = matrix to `factor_rounding`, and whether F is lower triangular."""
    top = float(np.max(matrix))
    triangular = True
    try:
        factor = np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
    except np.linalg.LinAlgError:
        values, vectors = scipy.linalg.eigh(matrix)
        if values[0] < -FACTOR_RTOL * top * matrix.shape[0]:
            raise InvalidParameterError("matrix", matrix, "positive semidefinite") from None
        factor = vectors * np.sqrt(np.maximum(values, 0.0))
        triangular = False
    error = float(np.max(np.abs(factor @ factor.T - matrix)))
    allowed = factor_rounding(matrix.shape[0])
    if not error <= allowed * top:
        raise NumericalError(
            f"the factor of the Gram matrix misses it by {error:.3g}, more than {allowed:.3g} of its "
            f"largest entry {top:.6g}"
        )
    return factor, triangular
