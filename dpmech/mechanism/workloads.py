"""Workloads: the sums of noisy gradients on which the error is measured."""

import dataclasses

import numpy as np
import scipy

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import MOST_STEPS, check_integer, check_real, check_vector
from dpmech.numerics import FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """A[t, j] = sum_{s=j}^{t} rates[s] beta^(s - j): the cumulative sums of momentum SGD over n steps.

    With `rates` None (ones) and beta 0 it is the prefix sum.

    Args:
        n: number of steps, >= 1.
        beta: momentum, in [0, 1).
        rates: learning rate of each step, finite, >= 0, shape (n,); None for ones.

    Raises:
        InvalidParameterError: outside those ranges.
    """

    n: int
    beta: float = 0.0
    rates: FloatArray | None = None

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

    @property
    def toeplitz(self) -> bool:
        """Whether A is Toeplitz."""
        return self.rates is None

    def matmul(self, x: FloatArray) -> FloatArray:
        """A @ x for x of shape (n,) or (n, d), in O(n d)."""
        steps = (
            x if self.beta == 0.0 else np.asarray(scipy.signal.lfilter([1.0], [1.0, -self.beta], x, axis=0))
        )
        if self.rates is not None:
            steps = (steps.T * self.rates).T
        return np.cumsum(steps, axis=0)

    def to_dense(self) -> FloatArray:
        """A, shape (n, n)."""
        return self.matmul(np.eye(self.n))


def prefix_sum(n: int) -> Workload:
    """All partial sums: A[t, j] = 1 for j <= t."""
    return Workload(n)


def momentum(n: int, beta: float) -> Workload:
    """The iterates of SGD with momentum `beta` in [0, 1) at learning rate 1."""
    return Workload(n, beta=beta)


def learning_rate_weighted(rates: FloatArray, *, beta: float = 0.0) -> Workload:
    """The iterates of SGD with a learning rate for each step (shape (n,)), and momentum `beta`."""
    checked = check_vector("rates", rates)
    return Workload(checked.size, beta=beta, rates=checked)


def check_workload(value: Workload | None, n: int) -> Workload:
    """Return the workload for n steps; None is the prefix sum."""
    if value is None:
        return prefix_sum(n)
    if not isinstance(value, Workload) or value.n != n:
        raise InvalidParameterError("workload", value, f"None or a Workload over n={n} steps")
    return value
