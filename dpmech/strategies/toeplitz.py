"""Toeplitz strategies given by C: LambdaCGD, SquareRoot, BandedToeplitz."""

import dataclasses

import numpy as np

from dpmech.exceptions import InvalidParameterError, check_integer, check_real, check_vector
from dpmech.linalg import FloatArray, series_inverse, trimmed
from dpmech.strategies.base import check_steps
from dpmech.strategies.factored import FactoredStrategy
from dpmech.strategies.scaled_toeplitz import ScaledToeplitz

__all__ = ["BandedToeplitz", "LambdaCGD", "SquareRoot"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LambdaCGD(FactoredStrategy):
    """DP-lambda-CGD: C[i, j] = lam^(i - j), C^-1 bidiagonal (1, -lam) (lambda_cgd eq. 8, 9).

    Args:
        n: number of steps, >= 1.
        lam: in [0, 1); 0 gives the Identity.

    Raises:
        InvalidParameterError: if n or lam is out of range.
    """

    n: int
    lam: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_integer("n", self.n, minimum=1))
        object.__setattr__(
            self, "lam", check_real("lam", self.lam, minimum=0.0, maximum=1.0, open_maximum=True)
        )

    def prefix(self, steps: int) -> "LambdaCGD":
        """The same strategy over fewer steps."""
        return LambdaCGD(check_steps(steps, self.n), self.lam)

    def _factors(self) -> ScaledToeplitz:
        inverse = np.zeros(self.n)
        inverse[0] = 1.0
        inverse[1:2] = -self.lam
        diagonal = self.lam == 0.0 or self.n == 1
        return ScaledToeplitz(
            np.power(self.lam, np.arange(self.n), dtype=np.float64),
            inverse,
            bands=1 if diagonal else None,
            inverse_bands=1 if diagonal else 2,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SquareRoot(FactoredStrategy):
    """The banded square root of the prefix sum (BSR): first coefficients of (1 - x)^(-1/2).

    Args:
        n: number of steps, >= 1.
        bands: p in [1, n], or None for all n coefficients.

    Raises:
        InvalidParameterError: if n or bands is out of range.
    """

    n: int
    bands: int | None = None  # the default hides the inherited property, of the same meaning

    def __post_init__(self) -> None:
        n = check_integer("n", self.n, minimum=1)
        object.__setattr__(self, "n", n)
        if self.bands is not None:
            object.__setattr__(self, "bands", check_integer("bands", self.bands, minimum=1, maximum=n))

    def prefix(self, steps: int) -> "SquareRoot":
        """The same strategy over fewer steps."""
        count = check_steps(steps, self.n)
        return SquareRoot(count, None if self.bands is None else min(self.bands, count))

    def _factors(self) -> ScaledToeplitz:
        coefs = square_root_coefs(self.n)
        if self.bands is None:
            return ScaledToeplitz(coefs, inverse_square_root_coefs(self.n))
        coefs[self.bands :] = 0.0
        return ScaledToeplitz(
            coefs,
            series_inverse(coefs, self.n),
            bands=self.bands,
            inverse_bands=1 if self.bands == 1 else None,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BandedToeplitz(FactoredStrategy):
    """C banded Toeplitz with the given coefficients (BandMF with Toeplitz C).

    Args:
        n: number of steps, >= 1.
        coefs: first entries of the first column of C, shape (p,), p <= n; coefs[0] > 0, signs free.

    Raises:
        InvalidParameterError: if n or coefs is out of range.
        NumericalError: when C^-1 overflows float64.
    """

    n: int
    coefs: FloatArray

    def __post_init__(self) -> None:
        n = check_integer("n", self.n, minimum=1)
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "coefs", check_coefs(self.coefs, n))

    def prefix(self, steps: int) -> "BandedToeplitz":
        """The same strategy over fewer steps."""
        count = check_steps(steps, self.n)
        return BandedToeplitz(count, self.coefs[:count])

    def _factors(self) -> ScaledToeplitz:
        coefs = np.pad(self.coefs, (0, self.n - self.coefs.size))
        p = trimmed(self.coefs).size
        inverse = series_inverse(self.coefs, self.n)
        return ScaledToeplitz(coefs, inverse, bands=p, inverse_bands=1 if p == 1 else None)


def check_coefs(value: FloatArray, n: int) -> FloatArray:
    """Return at most n finite coefficients, the first one positive, as a read-only float64 array."""
    coefs = check_vector("coefs", value, maximum_length=n)
    if coefs[0] <= 0.0:
        raise InvalidParameterError("coefs[0]", float(coefs[0]), "a finite number > 0")
    return coefs


def square_root_coefs(n: int) -> FloatArray:
    """First n coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, ..."""
    steps = np.arange(1, n)
    ratios = ((2 * steps - 1) / (2 * steps)).astype(np.longdouble)
    return np.concatenate([[1.0], np.cumprod(ratios)]).astype(np.float64)


def inverse_square_root_coefs(n: int) -> FloatArray:
    """First n coefficients of (1 - x)^(1/2): 1, -1/2, -1/8, ..."""
    return square_root_coefs(n) / (1.0 - 2.0 * np.arange(n))
