"""ColumnNormalized: any strategy with its columns scaled to norm 1."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from dpmech.mechanism.strategies.base import Strategy, check_steps, check_strategy
from dpmech.mechanism.strategies.dense import Dense
from dpmech.mechanism.strategies.factored import check_operand
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.mechanism.strategies.shape import Shape
from dpmech.numerics import UNIT, FloatArray


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ColumnNormalized(Strategy):
    """C D^-1 with D the diagonal of the column norms of C, so that every column has norm 1.

    The noise is that of C, with row t scaled by D[t, t] (lambda_cgd Proposition 7). Since the norms depend on
    n, it must be the actual number of steps.

    Args:
        strategy: C, any strategy.

    Raises:
        InvalidParameterError: if `strategy` is not a Strategy.

    Example:
        >>> import dpmech as dm
        >>> dm.ColumnNormalized(dm.LambdaCGD(4, 0.5)).column_norms().round(6)
        array([1., 1., 1., 1.])
    """

    strategy: Strategy

    def __post_init__(self) -> None:
        check_strategy(self.strategy)

    @property
    def n(self) -> int:  # type: ignore[override]  # n of the strategy
        """Number of steps."""
        return self.strategy.n

    @functools.cached_property
    def _norms(self) -> FloatArray:
        return self.strategy.column_norms()

    @functools.cached_property
    def _form(self) -> ScaledToeplitz | None:
        inner = self.strategy.factored
        return None if inner is None else inner.rescaled(1.0 / self._norms)

    @property
    def shape(self) -> Shape:
        """The shape of C, scaled once more; leading blocks have no such form."""
        inner = self.strategy.shape
        return dataclasses.replace(inner, scaled=inner.scaled + 1, dense_prefix=True)

    def prefix(self, steps: int) -> Strategy:
        """The strategy itself for all n steps; else the leading block as a Dense matrix.

        The block is not a ColumnNormalized strategy: its columns were scaled by their norms over n steps.
        """
        count = check_steps(steps, self.n)
        return self if count == self.n else Dense(self.to_dense()[:count, :count])

    @property
    def error(self) -> float:
        """The error of C, and the rounding of the scales."""
        return self.strategy.error + 4.0 * UNIT

    @property
    def gram_rounding(self) -> float:
        """Twice that of C, because the norms, which are taken as 1, have the same error."""
        return 2.0 * self.strategy.gram_rounding + 4.0 * UNIT

    @property
    def factored(self) -> ScaledToeplitz | None:
        """The form of C with its scales divided by the norms."""
        return self._form

    @property
    def nonnegative(self) -> bool:
        """The same as for C."""
        return self.strategy.nonnegative

    @property
    def bands(self) -> int | None:
        """The same as for C."""
        return self.strategy.bands

    @property
    def inverse_bands(self) -> int | None:
        """The same as for C."""
        return self.strategy.inverse_bands

    def to_dense(self) -> FloatArray:
        """C D^-1, shape (n, n)."""
        return self.strategy.to_dense() / self._norms

    def matmul(self, x: FloatArray) -> FloatArray:
        """C (D^-1 x)."""
        return self.strategy.matmul((check_operand("x", x, self.n).T / self._norms).T)

    def solve(self, z: FloatArray) -> FloatArray:
        """D (C^-1 z)."""
        return (self.strategy.solve(z).T * self._norms).T

    def column_norms(self) -> FloatArray:
        """Ones."""
        return np.ones_like(self._norms)  # `_norms` refuses norms whose squares leave float64

    def noising_row_norms(self) -> FloatArray:
        """D times the row norms of C^-1."""
        return self.strategy.noising_row_norms() * self._norms

    def gram_diagonal(self, offset: int) -> FloatArray:
        """Entries (j, j + offset) of the Gram matrix."""
        return self.strategy.gram_diagonal(offset) / (self._norms[: self.n - offset] * self._norms[offset:])

    def gram_rows(self) -> Iterator[tuple[int, FloatArray]]:
        """Rows of the Gram matrix."""
        for i, row in self.strategy.gram_rows():
            yield i, row / (self._norms[i] * self._norms)
