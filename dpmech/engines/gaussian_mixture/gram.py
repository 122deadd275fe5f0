"""Gram matrices of bins, which determine the dominating pair of a strategy: arbitrary, circulant, factored.

With `m_i` the sum of the columns of the strategy at which bin i takes part, everything depends on
`K = M M^T / sigma^2`, b x b, symmetric, positive semidefinite and elementwise non-negative: under
`Q = N(0, sigma^2 I)` the statistics `y_l = <x, m_l> / sigma^2` are `N(0, K)`, and under bin i they are
`N(K[:, i], K)`. A `BinGram` multiplies by K, reads its columns and samples from `N(0, K)`.

References:
    Balls-in-Bins: the dominating pair is Lemma 3.2 of the balls-in-bins paper.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Self, final

import numpy as np
import numpy.typing as npt

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real, check_vector
from dpmech.numerics import UNIT, Fact, FloatArray, IntArray, percent, register_words


def register_family(family: str, scheme: str, of: str) -> None:
    """Register the display names of the accountants for one family of Gram matrices.

    Args:
        family: prefix of their accounting method names.
        scheme: the sampling scheme.
        of: description of the matrices, with the facts of the family in braces.
    """

    def importance(facts: Mapping[str, Fact]) -> str:
        text = f"{scheme} importance sampling, {of.format_map(facts)}"
        text += f", two-sided {percent(float(facts['confidence']))} % interval"
        if "direction" in facts:
            parts = [(name, share) for name, share in facts.items() if isinstance(share, float)]
            shown = [f"{name} {share:.0%}" for name, share in parts if name != "confidence"]
            text += f", {facts['direction']} carried by " + "; ".join(shown)
        return text

    register_words(
        {
            f"{family}.moments": f"{scheme} moments, {of}, both directions",
            f"{family}.certified": f"{scheme} certified sampling, {of}, beta {{beta}}",
            f"{family}.importance": importance,
        }
    )


register_family("bins", "Balls-in-Bins", "{bins} bins")

# Tolerances for rejecting a matrix, relative to the largest entry; no guarantee depends on them. Eigenvalues
# further below 0 show a matrix that is not positive semidefinite; products further apart, two that are not
# transposes. Entries that are negative, or differ from their mirror image, by up to NEGATIVE_RTOL are
# replaced by 0, and by the larger of the two: a matrix that is nowhere smaller has no smaller delta.
FACTOR_RTOL = 1e-9
NEGATIVE_RTOL = 1e-12


BLOCK_ENTRIES = 2**21


def factor_rounding(bins: int) -> float:
    """Largest error of a factor of K, relative to the largest entry.

    For Cholesky, entries have errors of b + 1 roundings (Higham 2002, Theorem 10.3), and the product for the
    comparison adds b more; eigenvectors are allowed eight times that, and eight bins more for small
    constants.
    """
    return 16.0 * (bins + 8.0) * UNIT


def fft_rounding(size: int) -> float:
    """Largest error of a coefficient of a cyclic convolution by FFT, relative to both norms.

    Twice the value of `convolution_rounding` for powers of two: transforms of other lengths consist of
    shorter ones, or of three of at most four times the length.
    """
    return 2.0 * (36.0 * math.log2(4.0 * size) + 8.0) * UNIT


@dataclasses.dataclass(frozen=True, eq=False)
class DiagonalFactor:
    """A diagonal F with F F^T = K.

    Attributes:
        scales: its diagonal, shape (b,).
    """

    scales: FloatArray

    def whiten(self, values: FloatArray) -> FloatArray:
        """F^-1 y for rows y of shape (m, b); a copy."""
        return np.asarray(values / self.scales)


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
        """Prefix of the accounting method names for this matrix."""
        return "bins"

    @property
    def facts(self) -> dict[str, int]:
        """The facts that are reported with those names."""
        return {"bins": self.bins}

    @property
    def words(self) -> str:
        """Description of the coordinates of a draw, for messages."""
        return f"{self.bins} bins"

    @property
    def circulant(self) -> bool:
        """Whether K is known to be circulant, so that all bins are equivalent."""
        return False

    @property
    def cheap_columns(self) -> bool:
        """Whether reading all of K by columns costs no more than a few samples."""
        return True

    @property
    def independent(self) -> bool:
        """Whether K is known to be diagonal."""
        return False

    @property
    def product_size(self) -> int:
        """Largest number of terms per coordinate of a draw."""
        return self.bins

    @property
    def entry_seconds(self) -> float:
        """Bound on the seconds per coordinate of a draw, weights included; only for limits on the work."""
        return 3e-7

    @property
    def entry_rounding(self) -> float:
        """Largest error of the entries and diagonal, as read, relative to the largest entry of K."""
        return 2.0 * UNIT

    @abc.abstractmethod
    def product_rounding(self, total: float, norm: float) -> float:
        """Largest error of an entry of the computed K @ v.

        Args:
            total: upper bound on sum |v|.
            norm: upper bound on the Euclidean norm of v; at most `total`.
        """

    @property
    def row_factors(self) -> int:
        """Number of separately rounded means whose product is a mean of `log_row_means`."""
        return 1

    @property
    def factor(self) -> DiagonalFactor | None:
        """A lower-triangular F with F F^T = K; None if none is known."""
        return None

    @abc.abstractmethod
    def matmat(self, values: FloatArray) -> FloatArray:
        """K @ values, for values of shape (b, m)."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Independent draws of y ~ N(0, K), shape (count, b).

        The standard normals used do not depend on the scale of K.
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
        entries: maps rows and columns, two arrays of one shape, to the entries of K there.

    Returns:
        The sums, shape (m, q); each pair is evaluated once.
    """
    places = np.ascontiguousarray(indices.T)
    first, second, belongs = _pairs(len(places))
    out: FloatArray = (belongs @ entries(places[first], places[second])).T
    return out


@functools.lru_cache(maxsize=8)
def _pairs(size: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Both positions of every pair, including equal ones, and the incidence matrix of positions and pairs."""
    first, second = np.triu_indices(size)
    belongs = np.zeros((size, first.size))
    pairs = np.arange(first.size)
    belongs[first, pairs] = belongs[second, pairs] = 1.0
    return first, second, belongs


@final
class CirculantGram(BinGram):
    """A circulant Gram matrix, by FFT: O(b) memory, O(b log b) time per sample.

    Args:
        first_row: K[0, :], shape (b,), non-negative, with K[0, d] = K[0, b - d], a positive first entry,
            and a spectrum that is non-negative to 1e-9 of its largest value.

    Raises:
        InvalidParameterError: if the row does not satisfy this.
    """

    def __init__(self, first_row: npt.ArrayLike) -> None:
        row = check_vector("first_row", first_row)
        top = float(np.max(row))
        mirrored = np.roll(row[::-1], 1)
        if row[0] <= 0.0 or np.min(row) < -NEGATIVE_RTOL * top:
            raise InvalidParameterError("first_row", first_row, "non-negative with a positive first entry")
        if np.max(np.abs(row - mirrored)) > NEGATIVE_RTOL * top:
            raise InvalidParameterError("first_row", first_row, "symmetric: first_row[d] == first_row[b - d]")
        self._row = np.maximum(np.maximum(row, mirrored), 0.0)
        spectrum = np.fft.rfft(self._row).real
        if np.min(spectrum) < -FACTOR_RTOL * np.max(spectrum):
            raise InvalidParameterError(
                "first_row", first_row, "the first row of a positive semidefinite matrix"
            )
        self._spectrum = np.maximum(spectrum, 0.0)
        self._clipped = max(0.0, -float(np.min(spectrum)))
        self._scale = 1.0

    def __repr__(self) -> str:
        return f"CirculantGram(bins={self.bins}, largest={self._scale * float(self._row[0]):.6g})"

    @property
    def bins(self) -> int:
        """The number of bins b."""
        return int(self._row.size)

    @property
    def diagonal(self) -> FloatArray:
        """The diagonal of K, shape (b,), constant."""
        return np.full(self.bins, self._scale * self._row[0])

    @property
    def circulant(self) -> bool:
        """True."""
        return True

    @property
    def independent(self) -> bool:
        """Whether only the first entry of the row is not 0."""
        return not np.any(self._row[1:])

    @property
    def factor(self) -> DiagonalFactor | None:
        """The square root of K where bins are independent."""
        return DiagonalFactor(np.sqrt(self.diagonal)) if self.independent else None

    def product_rounding(self, total: float, norm: float) -> float:
        """Error of a convolution by FFT, and of negative eigenvalues that were set to 0."""
        del total
        row = float(np.linalg.norm(self._row)) * 1.01
        return self._scale * norm * (fft_rounding(self.bins) * row + self._clipped)

    def _apply(self, rows: FloatArray, spectrum: FloatArray) -> FloatArray:
        transformed = np.fft.rfft(rows, axis=1)
        transformed *= spectrum
        out: FloatArray = np.fft.irfft(transformed, n=self.bins, axis=1)
        return out

    def matmat(self, values: FloatArray) -> FloatArray:
        """K @ values, for values of shape (b, m)."""
        return self._apply(values.T, self._scale * self._spectrum).T

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draws of N(0, K), shape (count, b), through the symmetric square root."""
        normals = rng.standard_normal((count, self.bins))
        return self._apply(normals, np.sqrt(self._scale * self._spectrum))

    def scaled(self, factor: float) -> "CirculantGram":
        """`factor * K`, sharing the spectrum."""
        out = object.__new__(CirculantGram)
        out._row, out._spectrum, out._clipped = self._row, self._spectrum, self._clipped
        out._scale = self._scale * check_real("factor", factor, minimum=0.0, open_minimum=True)
        return out

    def columns(self, indices: IntArray) -> FloatArray:
        """Columns of K as rows, shape (len(indices), b)."""
        rows: FloatArray = self._scale * self._row[(np.arange(self.bins) - indices[:, None]) % self.bins]
        return rows

    def tuple_fields(self, indices: IntArray) -> FloatArray:
        """Sums of K over each tuple, shape (m, q)."""
        if indices.shape[1] ** 2 > 4 * self.bins:
            return super().tuple_fields(indices)
        row, bins = self._row, self.bins
        return self._scale * pair_sums(indices, lambda rows, columns: row.take((rows - columns) % bins))

    def log_row_means(self, slope: float, offsets: FloatArray, rows: IntArray) -> FloatArray:
        """Log means of exponentials along rows; one row is enough where the offsets are constant."""
        if np.ptp(offsets) > 0.0:
            return super().log_row_means(slope, offsets, rows)
        return np.full(rows.size, super().log_row_means(slope, offsets, np.zeros(1, dtype=np.int64))[0])


@final
class FactorGram(BinGram):
    """A Gram matrix `K = scale * M M^T` given only by products with M: O(dimension) memory.

    Samples are `sqrt(scale) * M x` with x standard normal of length `dimension`, so a strategy has to provide
    only its products, by FFT or by a recursion.

    Args:
        bins: b.
        dimension: the length n of x.
        correlate: maps x of shape (m, n) to M x of shape (m, b), by one cyclic convolution with a row of M by
            FFT, or at least as accurately; picklable if a process pool is used.
        expand: maps v of shape (m, b) to M^T v of shape (m, n), the exact transpose.
        diagonal: diagonal of M M^T, shape (b,); None computes it from `expand`.
        scale: `1 / sigma^2`, positive.

    Raises:
        InvalidParameterError: if an argument is out of range, or `expand` is not the transpose of
            `correlate` (checked on two random vectors, to 1e-9).
    """

    def __init__(
        self,
        bins: int,
        dimension: int,
        correlate: Callable[[FloatArray], FloatArray],
        expand: Callable[[FloatArray], FloatArray],
        *,
        diagonal: npt.ArrayLike | None = None,
        scale: float = 1.0,
    ) -> None:
        self._bins = check_integer("bins", bins, minimum=1)
        self._dimension = check_integer("dimension", dimension, minimum=1)
        self._correlate, self._expand = correlate, expand
        self._scale = check_real("scale", scale, minimum=0.0, open_minimum=True)
        probe = np.random.default_rng(0)
        left, right = probe.standard_normal((2, self._bins)), probe.standard_normal((2, self._dimension))
        one = np.sum(correlate(right) * left, axis=1)
        other = np.sum(expand(left) * right, axis=1)
        size = np.linalg.norm(expand(left), axis=1) * np.linalg.norm(right, axis=1)
        if np.any(np.abs(one - other) > FACTOR_RTOL * size):
            raise InvalidParameterError("expand", expand, "the transpose of correlate")
        self._diagonal = self._norms() if diagonal is None else check_vector("diagonal", diagonal)
        if self._diagonal.shape != (self._bins,) or np.min(self._diagonal) <= 0.0:
            raise InvalidParameterError("diagonal", diagonal, f"{self._bins} positive numbers")

    def __repr__(self) -> str:
        return f"FactorGram(bins={self._bins}, dimension={self._dimension}, scale={self._scale:.6g})"

    def _norms(self) -> FloatArray:
        out = np.empty(self._bins)
        step = max(1, BLOCK_ENTRIES // self._dimension)
        for start in range(0, self._bins, step):
            stop = min(start + step, self._bins)
            units = np.zeros((stop - start, self._bins))
            units[np.arange(stop - start), np.arange(start, stop)] = 1.0
            out[start:stop] = np.sum(self._expand(units) ** 2, axis=1)
        return out

    @property
    def bins(self) -> int:
        """The number of bins b."""
        return self._bins

    @property
    def diagonal(self) -> FloatArray:
        """The diagonal of K, shape (b,)."""
        return self._scale * self._diagonal

    @property
    def cheap_columns(self) -> bool:
        """False: a column costs as much as a sample."""
        return False

    @property
    def entry_rounding(self) -> float:
        """Rounding of the diagonal, a sum of squares in any order."""
        return 1.01 * (self._dimension + 4.0) * UNIT

    def product_rounding(self, total: float, norm: float) -> float:
        r"""Error of two convolutions by FFT; an error of the first in n coordinates enters the second.

        With D the largest diagonal entry of M M^T and f = `fft_rounding`, each product is a cyclic
        convolution with one row of M, whose norm is at most sqrt(D). The first has an error of f sqrt(D) |v|
        in each of n coordinates, so sqrt(n) times that in norm, which a row of M multiplies by sqrt(D) at
        most. The second adds f sqrt(D) |M^T v|, where |M^T v| <= sum_i |v_i| |m_i| <= sqrt(D) sum |v|, and
        sum |v| <= sqrt(b) |v|. The total is f D (sqrt(n) |v| + min(sum |v|, sqrt(b) |v|)). No factor of
        epochs enters: a row of M is folded over them before any convolution. 1.01 covers products of errors,
        the scale, and a coordinate that all bins have in common.
        """
        terms = math.sqrt(self._dimension) * norm + min(total, math.sqrt(self._bins) * norm)
        return 1.01 * fft_rounding(self._dimension + self._bins) * float(self.diagonal.max()) * terms

    def matmat(self, values: FloatArray) -> FloatArray:
        """K @ values, for values of shape (b, m)."""
        return self._scale * self._correlate(self._expand(values.T)).T

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draws of N(0, K), shape (count, b)."""
        drawn: FloatArray = np.sqrt(self._scale) * self._correlate(
            rng.standard_normal((count, self._dimension))
        )
        return drawn

    def scaled(self, factor: float) -> "FactorGram":
        """`factor * K`, sharing the products."""
        out = object.__new__(FactorGram)
        out.__dict__.update(self.__dict__)
        out._scale = self._scale * check_real("factor", factor, minimum=0.0, open_minimum=True)
        return out
