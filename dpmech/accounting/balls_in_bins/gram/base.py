"""Gram matrices of the bins: all that the Balls-in-Bins dominating pair needs of a strategy.

With `m_i` the sum of the columns of the strategy at which bin i takes part, everything depends on
`K = M M^T / sigma^2`, b x b, symmetric, positive semidefinite and elementwise non-negative: under
`Q = N(0, sigma^2 I)` the statistics `y_l = <x, m_l> / sigma^2` are `N(0, K)`, and under bin i they are
`N(K[:, i], K)`. A `BinGram` multiplies by K, reads its columns and samples from `N(0, K)`.

References:
    Balls-in-Bins: the dominating pair is Lemma 3.2 of the balls-in-bins paper.
"""

import abc
import functools
import math
from collections.abc import Callable
from typing import Self

import numpy as np

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.numerics import UNIT, FloatArray, IntArray

__all__ = ["FACTOR_RTOL", "NEGATIVE_RTOL", "BinGram", "factor_rounding", "fft_rounding", "pair_sums"]

# What is refused as no Gram matrix, relative to the largest entry; no guarantee rests on either. Eigenvalues
# further below 0 show a matrix that is not positive semidefinite, products further apart two that are not
# transposes. Entries that are negative, or differ from their mirror image, by up to NEGATIVE_RTOL are taken
# for 0, and for the larger of the two: a matrix that is nowhere smaller has no smaller delta.
FACTOR_RTOL = 1e-9
NEGATIVE_RTOL = 1e-12


BLOCK_ENTRIES = 2**21


def factor_rounding(bins: int) -> float:
    """By how much a factor of K may miss it, relative to the largest entry.

    Cholesky's misses entries by b + 1 roundings (Higham 2002, Theorem 10.3), and the product that is compared
    by b more; that of eigenvectors is given eight times that, and eight bins for small constants.
    """
    return 16.0 * (bins + 8.0) * UNIT


def fft_rounding(size: int) -> float:
    """How far a coefficient of a cyclic convolution by FFT may be off, relative to both norms.

    Twice what `convolution_rounding` has for powers of two: transforms of other lengths are made of shorter
    ones, or of three of at most four times the length.
    """
    return 2.0 * (36.0 * math.log2(4.0 * size) + 8.0) * UNIT


class BinGram(abc.ABC):
    """A positive semidefinite, elementwise non-negative b x b matrix K that can be sampled from.

    Subclasses are immutable, picklable, and share their factorisation under `scaled`.
    """

    @property
    @abc.abstractmethod
    def bins(self) -> int:
        """The number of bins b, at least 1."""

    @property
    @abc.abstractmethod
    def diagonal(self) -> FloatArray:
        """The diagonal of K, shape (b,), positive."""

    @property
    def family(self) -> str:
        """What routes of accountants with this matrix begin with."""
        return "bins"

    @property
    def facts(self) -> dict[str, int]:
        """What those routes say of it."""
        return {"bins": self.bins}

    @property
    def words(self) -> str:
        """What a draw has so many of."""
        return f"{self.bins} bins"

    @property
    def circulant(self) -> bool:
        """Whether K is known to be circulant, so that every bin looks the same."""
        return False

    @property
    def cheap_columns(self) -> bool:
        """Whether all of K may be read, column by column, at the cost of a few samples."""
        return True

    @property
    def independent(self) -> bool:
        """Whether K is known to be diagonal."""
        return False

    @property
    def product_size(self) -> int:
        """How many numbers a draw adds up for each of its own, at most."""
        return self.bins

    @property
    def entry_seconds(self) -> float:
        """What one number of a draw takes, its weights included, at most; for limits of work alone."""
        return 3e-7

    @property
    def entry_rounding(self) -> float:
        """How far entries and the diagonal, as read, may differ from those of K, relative to the largest."""
        return 2.0 * UNIT

    @abc.abstractmethod
    def product_rounding(self, total: float, norm: float) -> float:
        """How far an entry of K @ v, as computed, may be off.

        Args:
            total: at least sum |v|.
            norm: at least the Euclidean norm of v; at most `total`.
        """

    @property
    def row_factors(self) -> int:
        """Of how many means, each rounded by itself, a mean of `log_row_means` is the product."""
        return 1

    @property
    def innovation_scales(self) -> FloatArray | None:
        """The diagonal of a lower-triangular F with F F^T = K, shape (b,); None where none is known."""
        return None

    @property
    def innovation_condition(self) -> float:
        """An upper bound on the largest row sum of |F^-1| |F|. Only where `innovation_scales` is given."""
        raise self._no_factor()

    def whiten(self, values: FloatArray) -> FloatArray:
        """F^-1 y for rows y of shape (m, b); a copy. Only where `innovation_scales` is given."""
        raise self._no_factor()

    def factor_rows(self, start: int, stop: int) -> FloatArray:
        """F[start:stop, :stop]. Only where `innovation_scales` is given."""
        raise self._no_factor()

    def factor_sums(self) -> FloatArray:
        """F^T 1, shape (b,). Only where `innovation_scales` is given."""
        raise self._no_factor()

    def _no_factor(self) -> UnsupportedCombinationError:
        return UnsupportedCombinationError(
            f"no triangular factor of {self!r}", supported="a DenseGram that is positive definite"
        )

    @abc.abstractmethod
    def matmat(self, values: FloatArray) -> FloatArray:
        """K @ values, for values of shape (b, m)."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Independent draws of y ~ N(0, K), shape (count, b).

        The standard normals that are drawn do not depend on the scale of K.
        """

    @abc.abstractmethod
    def scaled(self, factor: float) -> Self:
        """The Gram matrix `factor * K`, factor > 0, sharing the factorisation."""

    def matvec(self, values: FloatArray) -> FloatArray:
        """K @ values, for values of shape (b,)."""
        return self.matmat(values[:, None])[:, 0]

    def columns(self, indices: IntArray) -> FloatArray:
        """The columns of K at `indices`, as rows: shape (len(indices), b)."""
        units = np.zeros((self.bins, indices.size))
        units[indices, np.arange(indices.size)] = 1.0
        return self.matmat(units).T

    def column_sums(self, indices: IntArray) -> FloatArray:
        """For every row of bins in `indices`, shape (m, q), the sum of those columns of K, shape (m, b)."""
        rows, width = indices.shape
        flat = (indices + self.bins * np.arange(rows)[:, None]).reshape(-1)
        counts = np.bincount(flat, minlength=rows * self.bins).reshape(rows, self.bins)
        return self.matmat(counts.T.astype(np.float64)).T if width else np.zeros((rows, self.bins))

    def tuple_fields(self, indices: IntArray) -> FloatArray:
        """For every row i of `indices`, shape (m, q), the sums `sum_v K[i_u, i_v]` over v, shape (m, q)."""
        return np.take_along_axis(self.column_sums(indices), indices, axis=1)

    def log_row_means(self, slope: float, offsets: FloatArray, rows: IntArray) -> FloatArray:
        """`log mean_m exp(offsets[m] + slope * K[l, m])` for each l in `rows`, shape (len(rows),)."""
        out = np.empty(rows.size)
        step = max(1, BLOCK_ENTRIES // self.bins)
        for start in range(0, rows.size, step):
            part = slope * self.columns(rows[start : start + step]) + offsets
            top = part.max(axis=1)
            np.exp(part - top[:, None], out=part)
            out[start : start + step] = top + np.log(part.mean(axis=1))
        return out


def pair_sums(indices: IntArray, entries: Callable[[IntArray, IntArray], FloatArray]) -> FloatArray:
    """For every row i of `indices`, shape (m, q), the sums `sum_v K[i_u, i_v]` over v, of a symmetric K.

    Args:
        indices: the tuples.
        entries: takes rows and columns, two arrays of one shape, to the entries of K there.

    Returns:
        The sums, shape (m, q); each pair is read once.
    """
    places = np.ascontiguousarray(indices.T)
    first, second, belongs = _pairs(len(places))
    out: FloatArray = (belongs @ entries(places[first], places[second])).T
    return out


@functools.lru_cache(maxsize=8)
def _pairs(size: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Both places of every pair, a place with itself included, and which pairs a place is in."""
    first, second = np.triu_indices(size)
    belongs = np.zeros((size, first.size))
    pairs = np.arange(first.size)
    belongs[first, pairs] = belongs[second, pairs] = 1.0
    return first, second, belongs
