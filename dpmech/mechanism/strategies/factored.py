"""FactoredStrategy: a Strategy whose whole interface follows from its ScaledToeplitz form."""

import abc
import functools
from collections.abc import Iterator

import numpy as np

from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism.strategies.base import Strategy
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.numerics import FloatArray


class FactoredStrategy(Strategy):
    """A strategy of the form T diag(scale); a final subclass only defines its factors."""

    @abc.abstractmethod
    def _factors(self) -> ScaledToeplitz:
        """The form of C; called once."""

    @functools.cached_property
    def _form(self) -> ScaledToeplitz:
        return self._factors()

    @property
    def factored(self) -> ScaledToeplitz:
        """C as a Toeplitz matrix times a diagonal one."""
        return self._form

    @property
    def nonnegative(self) -> bool:
        """Whether every coefficient is >= 0 (scales are positive)."""
        return bool(np.all(self._form.coefs >= 0.0))

    @property
    def bands(self) -> int | None:
        """Number of bands of C, or None."""
        return self._form.bands

    @property
    def inverse_bands(self) -> int | None:
        """Number of bands of C^-1, or None."""
        return self._form.inverse_bands

    def to_dense(self) -> FloatArray:
        """C, shape (n, n)."""
        return self._form.to_dense()

    def matmul(self, x: FloatArray) -> FloatArray:
        """C @ x in O(n log n) or O(n p)."""
        return self._form.matmul(check_operand("x", x, self.n))

    def solve(self, z: FloatArray) -> FloatArray:
        """C^-1 @ z in O(n log n) or O(n p)."""
        return self._form.solve(check_operand("z", z, self.n))

    def column_norms(self) -> FloatArray:
        """Norms of the columns of C."""
        return self._form.column_norms()

    def noising_row_norms(self) -> FloatArray:
        """Norms of the rows of C^-1."""
        return self._form.noising_row_norms()

    def gram_diagonal(self, offset: int) -> FloatArray:
        """Entries (j, j + offset) of C^T C."""
        return self._form.gram_diagonal(offset)

    def gram_rows(self) -> Iterator[tuple[int, FloatArray]]:
        """Rows of C^T C, from the last to the first."""
        return self._form.gram_rows()


def check_operand(name: str, x: FloatArray, n: int) -> FloatArray:
    """Return x as float64 of shape (n,) or (n, d), else raise InvalidParameterError."""
    array = np.asarray(x, dtype=np.float64)
    if array.ndim not in {1, 2} or array.shape[0] != n:
        raise InvalidParameterError(f"shape of {name}", array.shape, f"({n},) or ({n}, d)")
    return array
