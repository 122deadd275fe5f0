"""Workloads: the sums of noisy gradients on which the error is measured."""

import dataclasses

import numpy as np
import scipy

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import MOST_STEPS, check_integer, check_matrix, check_real, check_vector
from dpmech.numerics import FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """A, lower triangular: the cumulative sums of momentum SGD over n steps, or any other sums of gradients.

    By default, A[t, j] = sum_{s=j}^{t} rates[s] beta^(s - j), which is the prefix sum if `rates` is None
    (ones) and beta is 0. With `coefs`, A is the Toeplitz matrix with these coefficients; with `matrix`, A is
    that matrix.

    Args:
        n: number of steps, >= 1.
        beta: momentum, in [0, 1).
        rates: learning rate of each step, finite, >= 0, shape (n,); None for ones.
        coefs: first entries of the first column, finite, not all 0, shape (p,), p <= n.
        matrix: finite, lower triangular, not all 0, shape (n, n).

    Raises:
        InvalidParameterError: if a value is out of range, or for more than one of these forms of A.
    """

    n: int
    beta: float = 0.0
    rates: FloatArray | None = None
    coefs: FloatArray | None = dataclasses.field(default=None, kw_only=True)
    matrix: FloatArray | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        n = check_integer("n", self.n, minimum=1, maximum=MOST_STEPS)
        object.__setattr__(self, "n", n)
        object.__setattr__(
            self, "beta", check_real("beta", self.beta, minimum=0.0, maximum=1.0, open_maximum=True)
        )
        if self.rates is not None:
            rates = check_vector("rates", self.rates)
            if rates.size != n or np.any(rates < 0.0):
                raise InvalidParameterError("rates", self.rates, f"{n} numbers >= 0")
            object.__setattr__(self, "rates", rates)
        alone = self.beta == 0.0 and self.rates is None
        if self.coefs is not None:
            if not alone or self.matrix is not None:
                raise InvalidParameterError("coefs", self.coefs, "None with beta, rates or matrix")
            coefs = check_vector("coefs", self.coefs)
            if coefs.size > n or not np.any(coefs):
                raise InvalidParameterError("coefs", self.coefs, f"at most {n} numbers, not all 0")
            object.__setattr__(self, "coefs", coefs)
        if self.matrix is not None:
            if not alone:
                raise InvalidParameterError("matrix", self.matrix, "None with beta or rates")
            matrix = check_matrix("matrix", self.matrix)
            if len(matrix) != n or np.any(np.triu(matrix, 1)) or not np.any(matrix):
                accepted = f"lower triangular, of shape ({n}, {n}), not all 0"
                raise InvalidParameterError("matrix", self.matrix, accepted)
            object.__setattr__(self, "matrix", matrix)

    @property
    def toeplitz(self) -> bool:
        """Whether A is known to be Toeplitz."""
        return self.rates is None and self.matrix is None

    @property
    def weighted_sums(self) -> FloatArray | None:
        """The weight of each step if A is the prefix sum of weighted steps; None for other forms of A."""
        if self.beta != 0.0 or self.coefs is not None or self.matrix is not None:
            return None
        return np.ones(self.n) if self.rates is None else self.rates

    def matmul(self, x: FloatArray) -> FloatArray:
        """A @ x for x of shape (n,) or (n, d), in O(n d); O(n p d) with p coefs, O(n^2 d) with a matrix."""
        if self.matrix is not None:
            return np.asarray(self.matrix @ x)
        if self.coefs is not None:
            return np.asarray(scipy.signal.lfilter(self.coefs, [1.0], x, axis=0))
        steps = (
            x if self.beta == 0.0 else np.asarray(scipy.signal.lfilter([1.0], [1.0, -self.beta], x, axis=0))
        )
        if self.rates is not None:
            steps = (steps.T * self.rates).T
        return np.cumsum(steps, axis=0)

    def adjoint(self, x: FloatArray) -> FloatArray:
        """A^T @ x for x of shape (n,) or (n, d), as fast as `matmul`."""
        if self.matrix is not None:
            return np.asarray(self.matrix.T @ x)
        if self.coefs is not None:
            return np.asarray(scipy.signal.lfilter(self.coefs, [1.0], x[::-1], axis=0)[::-1])
        sums = np.cumsum(x[::-1], axis=0)[::-1]
        if self.rates is not None:
            sums = (sums.T * self.rates).T
        if self.beta == 0.0:
            return np.asarray(sums, dtype=np.float64)
        return np.asarray(scipy.signal.lfilter([1.0], [1.0, -self.beta], sums[::-1], axis=0)[::-1])

    def to_dense(self) -> FloatArray:
        """A, shape (n, n)."""
        return self.matmul(np.eye(self.n))


def prefix_sum(n: int) -> Workload:
    """All partial sums: A[t, j] = 1 for j <= t."""
    return Workload(n)


def identity(n: int) -> Workload:
    """The gradients themselves: A is the identity."""
    return Workload(n, coefs=np.ones(1))


def banded(n: int, coefs: FloatArray) -> Workload:
    """Weighted sums of the last p steps: the Toeplitz matrix of p `coefs`; ones for sliding windows."""
    return Workload(n, coefs=coefs)


def lower_triangular(matrix: FloatArray) -> Workload:
    """Any sums of past steps: A is the given matrix, of shape (n, n)."""
    checked = check_matrix("matrix", matrix)
    return Workload(len(checked), matrix=checked)


def momentum(n: int, beta: float) -> Workload:
    """The iterates of SGD with momentum `beta` in [0, 1) at learning rate 1."""
    return Workload(n, beta=beta)


def learning_rate_weighted(rates: FloatArray, *, beta: float = 0.0) -> Workload:
    """The iterates of SGD with a learning rate for each step (shape (n,)), and momentum `beta`."""
    checked = check_vector("rates", rates)
    return Workload(checked.size, beta=beta, rates=checked)


def check_workload(value: object, n: int) -> Workload:
    """Return the workload for n steps; None is the prefix sum, and a matrix of shape (n, n) is A."""
    if value is None:
        return prefix_sum(n)
    if isinstance(value, np.ndarray):
        value = Workload(n, matrix=value)
    if not isinstance(value, Workload) or value.n != n:
        accepted = f"None, a Workload over n={n} steps, or a lower triangular matrix of shape ({n}, {n})"
        raise InvalidParameterError("workload", value, accepted)
    return value
