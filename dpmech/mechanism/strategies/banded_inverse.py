"""Toeplitz strategies given by C^-1: InverseSquareRoot (BISR) and BandedInverse (BandInvMF)."""

import dataclasses

import numpy as np

from dpmech.guards import MOST_STEPS, check_integer
from dpmech.mechanism.strategies.base import check_steps
from dpmech.mechanism.strategies.factored import FactoredStrategy
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.mechanism.strategies.shape import Shape
from dpmech.mechanism.strategies.toeplitz import (
    SQUARE_ROOT_ROUNDING,
    check_bands,
    check_coefs,
    inverse_square_root_coefs,
    square_root_coefs,
)
from dpmech.numerics import FloatArray, bounded_inverse, trimmed


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class InverseSquareRoot(FactoredStrategy):
    """The banded inverse square root (BISR): C^-1 has the first coefficients of (1 - x)^(1/2).

    Args:
        n: number of steps, >= 1.
        bands: p in [1, n], the number of bands of C^-1 (the attribute `inverse_bands`; C itself is not
            banded, so the attribute `bands` is None).

    Raises:
        InvalidParameterError: if n or bands is out of range.

    Example:
        >>> import dpmech as dm
        >>> dm.InverseSquareRoot(n=4, bands=2).inverse_coefs
        array([ 1. , -0.5,  0. ,  0. ])
    """

    n: int
    inverse_bands: int | None = None  # set in __init__; the default hides the inherited property

    def __init__(self, n: int, bands: int) -> None:
        object.__setattr__(self, "n", check_integer("n", n, minimum=1, maximum=MOST_STEPS))
        object.__setattr__(self, "inverse_bands", check_bands(bands, self.n))

    @property
    def shape(self) -> Shape:
        """The sizes that determine the cost of its vectors."""
        return Shape(self.n, bands=self.inverse_bands or self.n, inverse_bands=self.inverse_bands)

    def prefix(self, steps: int) -> "InverseSquareRoot":
        """The same strategy over fewer steps."""
        count = check_steps(steps, self.n)
        return InverseSquareRoot(
            count, count if self.inverse_bands is None else min(self.inverse_bands, count)
        )

    def _factors(self) -> ScaledToeplitz:
        inverse = inverse_square_root_coefs(self.n)
        if self.inverse_bands == self.n:
            return ScaledToeplitz(
                square_root_coefs(self.n),
                inverse,
                bands=_only_one(self.n),
                inverse_bands=self.n,
                error=SQUARE_ROOT_ROUNDING,
            )
        inverse[self.inverse_bands :] = 0.0
        # The first coefficient is exactly 1.
        rounding = 0.0 if self.inverse_bands == 1 else SQUARE_ROOT_ROUNDING
        coefs, error = bounded_inverse(inverse, self.n, rounding)
        return ScaledToeplitz(
            coefs,
            inverse,
            bands=_only_one(self.inverse_bands),
            inverse_bands=self.inverse_bands,
            error=error,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BandedInverse(FactoredStrategy):
    """C^-1 banded Toeplitz with the given coefficients (BandInvMF).

    Args:
        n: number of steps, >= 1.
        coefs: first entries of the first column of C^-1, shape (p,), p <= n; coefs[0] > 0, others any sign.

    Raises:
        InvalidParameterError: if n or coefs is out of range.
        NumericalError: when C overflows float64.

    Example:
        >>> import dpmech as dm
        >>> dm.BandedInverse(n=4, coefs=[1.0, -0.5]).toeplitz_coefs
        array([1.   , 0.5  , 0.25 , 0.125])
    """

    n: int
    coefs: FloatArray

    def __post_init__(self) -> None:
        n = check_integer("n", self.n, minimum=1, maximum=MOST_STEPS)
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "coefs", check_coefs(self.coefs, n))

    @property
    def shape(self) -> Shape:
        """The sizes that determine the cost of its vectors."""
        return Shape(self.n, bands=self.coefs.size, inverse_bands=self.coefs.size)

    def prefix(self, steps: int) -> "BandedInverse":
        """The same strategy over fewer steps."""
        count = check_steps(steps, self.n)
        return BandedInverse(count, self.coefs[:count])

    def _factors(self) -> ScaledToeplitz:
        p = trimmed(self.coefs).size
        inverse = np.pad(self.coefs, (0, self.n - self.coefs.size))
        coefs, error = bounded_inverse(self.coefs, self.n)
        return ScaledToeplitz(coefs, inverse, bands=_only_one(p), inverse_bands=p, error=error)


def _only_one(inverse_bands: int | None) -> int | None:
    """C is diagonal if and only if C^-1 has one band; otherwise it is full."""
    return 1 if inverse_bands == 1 else None
