"""Strategies without correlation: Identity and Diagonal."""

import dataclasses

import numpy as np

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import MOST_STEPS, check_integer, check_vector
from dpmech.mechanism.strategies.base import check_steps
from dpmech.mechanism.strategies.factored import FactoredStrategy
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.mechanism.strategies.shape import Shape
from dpmech.numerics import FloatArray


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Identity(FactoredStrategy):
    """C = I: independent noise at every step; under `Poisson` it is DP-SGD.

    Args:
        n: number of steps, >= 1.

    Raises:
        InvalidParameterError: if n is not an integer >= 1.

    Example:
        >>> import dpmech as dm
        >>> dm.Identity(3).to_dense()
        array([[1., 0., 0.],
               [0., 1., 0.],
               [0., 0., 1.]])
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_integer("n", self.n, minimum=1, maximum=MOST_STEPS))

    @property
    def gram_rounding(self) -> float:
        """0: every column has a single entry 1."""
        return 0.0

    @property
    def shape(self) -> Shape:
        """The sizes that determine the cost of its vectors."""
        return Shape(self.n, inverse_bands=1)

    def prefix(self, steps: int) -> "Identity":
        """The same strategy over fewer steps."""
        return Identity(check_steps(steps, self.n))

    def _factors(self) -> ScaledToeplitz:
        impulse = _impulse(self.n)
        return ScaledToeplitz(impulse, impulse, bands=1, inverse_bands=1)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Diagonal(FactoredStrategy):
    """C = diag(entries): independent noise whose scale varies with the step.

    For EveryStep and the prefix sum, entries (n - j)^(1/4), j = 0, 1, ..., are optimal among all
    strategies (lambda_cgd Theorem 4 and the conjecture after it).

    Args:
        entries: positive, shape (n,).

    Raises:
        InvalidParameterError: if an entry is not a finite positive number.

    Example:
        >>> import dpmech as dm
        >>> dm.Diagonal([2.0, 1.0]).to_dense()
        array([[2., 0.],
               [0., 1.]])
    """

    entries: FloatArray

    def __post_init__(self) -> None:
        entries = check_vector("entries", self.entries)
        if np.any(entries <= 0.0):
            raise InvalidParameterError("entries", self.entries, "positive numbers")
        object.__setattr__(self, "entries", entries)

    @property
    def n(self) -> int:  # type: ignore[override]  # the number of steps is the number of entries
        """Number of steps."""
        return self.entries.size

    @property
    def shape(self) -> Shape:
        """The sizes that determine the cost of its vectors."""
        return Shape(self.n, inverse_bands=1, scaled=1)

    def prefix(self, steps: int) -> "Diagonal":
        """The same strategy over fewer steps."""
        return Diagonal(self.entries[: check_steps(steps, self.n)])

    def _factors(self) -> ScaledToeplitz:
        impulse = _impulse(self.n)
        return ScaledToeplitz(impulse, impulse, self.entries, bands=1, inverse_bands=1)


def _impulse(n: int) -> FloatArray:
    impulse = np.zeros(n)
    impulse[0] = 1.0
    return impulse
