"""The squared error of a decoder B = A C^-1 and its gradient, for C^-1 = diag(row_scale) T^-1."""

import dataclasses
import enum

import numpy as np
import scipy

from dpmech.exceptions import InvalidParameterError
from dpmech.mechanism import Workload
from dpmech.numerics import FloatArray, cumulative_sum

__all__ = ["DecoderSquare", "Objective", "decoder_square"]

_BLOCK = 64


class Objective(enum.Enum):
    """What is made small: the RMSE over all steps, the worst step, or the last one."""

    RMSE = "rmse"
    MAX_SE = "max_se"
    LAST = "last"

    @classmethod
    def check(cls, value: object) -> "Objective":
        """Return the objective of this name, else raise InvalidParameterError."""
        try:
            return cls(value)
        except ValueError:
            accepted = "one of " + ", ".join(repr(member.value) for member in cls)
            raise InvalidParameterError("objective", value, accepted) from None


@dataclasses.dataclass(frozen=True, eq=False)
class DecoderSquare:
    """A squared error and its gradient.

    Attributes:
        value: ||B||_F^2 / n, or the squared norm of the row that the objective names.
        by_inverse: derivative by the first column of T^-1, shape (n,).
        by_scale: derivative by `row_scale`, shape (n,); None where that is None.
    """

    value: float
    by_inverse: FloatArray
    by_scale: FloatArray | None


def decoder_square(
    inverse: FloatArray, row_scale: FloatArray | None, workload: Workload, objective: Objective
) -> DecoderSquare:
    """The squared error of B = A diag(row_scale) LTT(inverse) and its gradient, by analytic adjoints.

    O(n log n) where B is Toeplitz, else O(n p) for p non-zero entries of `inverse` and the prefix sum with
    any rates, and O(n^2) otherwise.

    Args:
        inverse: first column of T^-1, shape (n,).
        row_scale: shape (n,); None for ones.
        workload: A.
        objective: which rows of B count.
    """
    if row_scale is None and workload.toeplitz:
        return _toeplitz(inverse, workload, objective)
    n = inverse.size
    scale = np.ones(n) if row_scale is None else row_scale
    squares = _row_squares(inverse, scale, workload)
    row = n - 1 if objective is Objective.LAST else int(squares.argmax())
    weights = np.full(n, 1.0 / n) if objective is Objective.RMSE else (np.arange(n) == row).astype(float)
    by_inverse, by_scale = _general_gradient(inverse, scale, workload, weights)
    return DecoderSquare(float(weights @ squares), by_inverse, None if row_scale is None else by_scale)


def _toeplitz(inverse: FloatArray, workload: Workload, objective: Objective) -> DecoderSquare:
    """B is Toeplitz with first column A d; every row's squares are a prefix of the last one's."""
    n = inverse.size
    column = workload.matmul(inverse)
    weights = (n - np.arange(n)) / n if objective is Objective.RMSE else np.ones(n)
    square = float(cumulative_sum(weights * column**2)[-1])
    return DecoderSquare(square, _adjoint(workload, 2.0 * weights * column), None)


def _adjoint(workload: Workload, x: FloatArray) -> FloatArray:
    """A^T x for x of shape (n,) or (n, m)."""
    sums = np.cumsum(x[::-1], axis=0)[::-1]
    if workload.rates is not None:
        sums = (sums.T * workload.rates).T
    if workload.beta == 0.0:
        return np.asarray(sums, dtype=np.float64)
    return np.asarray(scipy.signal.lfilter([1.0], [1.0, -workload.beta], sums[::-1], axis=0)[::-1])


def _columns(inverse: FloatArray, scale: FloatArray, start: int, width: int) -> FloatArray:
    """Columns [start, start + width) of diag(scale) LTT(inverse), shape (n, width)."""
    n = inverse.size
    lags = np.arange(n)[:, None] - np.arange(start, start + width)[None, :]
    return np.asarray(np.where(lags >= 0, inverse[np.maximum(lags, 0)], 0.0) * scale[:, None])


def _row_squares(inverse: FloatArray, scale: FloatArray, workload: Workload) -> FloatArray:
    n = inverse.size
    squares = np.zeros(n)
    for start in range(0, n, _BLOCK):
        columns = _columns(inverse, scale, start, min(_BLOCK, n - start))
        squares += np.sum(workload.matmul(columns) ** 2, axis=1)
    return squares


def _general_gradient(
    inverse: FloatArray, scale: FloatArray, workload: Workload, weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Gradient of sum_i weights_i ||B_i||^2 by the inverse and by the scales, in blocks of columns of B."""
    n = inverse.size
    by_inverse, by_scale = np.zeros(n), np.zeros(n)
    for start in range(0, n, _BLOCK):
        width = min(_BLOCK, n - start)
        columns = _columns(inverse, scale, start, width)
        back = _adjoint(workload, 2.0 * weights[:, None] * workload.matmul(columns))
        by_scale += np.sum(back * columns, axis=1) / scale
        scaled = back * scale[:, None]
        for offset in range(width):
            by_inverse[: n - start - offset] += scaled[start + offset :, offset]
    return by_inverse, by_scale
