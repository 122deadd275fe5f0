"""Toeplitz strategies given by C: LambdaCGD, SquareRoot, BandedToeplitz."""

import dataclasses
import math
import numbers

import numpy as np

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import MOST_STEPS, check_integer, check_real, check_vector
from dpmech.mechanism.strategies.base import check_steps
from dpmech.mechanism.strategies.factored import FactoredStrategy
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.mechanism.strategies.shape import Shape
from dpmech.numerics import UNIT, FloatArray, bounded_inverse, sum_rounding, trimmed

# From here on Stirling's series is exact in float64.
_STIRLING = 32
# Relative error of the coefficients of (1 - x)^(+-1/2): at most ten operations and the remainder.
SQUARE_ROOT_ROUNDING = 12.0 * UNIT


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LambdaCGD(FactoredStrategy):
    """DP-lambda-CGD: C[i, j] = lam^(i - j), C^-1 bidiagonal (1, -lam) (lambda_cgd eq. 8, 9).

    Args:
        n: number of steps, >= 1.
        lam: in [0, 1); 0 gives the Identity.

    Raises:
        InvalidParameterError: if n or lam is out of range.

    Example:
        >>> import dpmech as dm
        >>> dm.LambdaCGD(n=3, lam=0.5).to_dense()
        array([[1.  , 0.  , 0.  ],
               [0.5 , 1.  , 0.  ],
               [0.25, 0.5 , 1.  ]])
    """

    n: int
    lam: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_integer("n", self.n, minimum=1, maximum=MOST_STEPS))
        object.__setattr__(
            self, "lam", check_real("lam", self.lam, minimum=0.0, maximum=1.0, open_maximum=True)
        )

    @property
    def shape(self) -> Shape:
        """The sizes that determine the cost of its vectors."""
        return Shape(self.n, inverse_bands=2)

    def prefix(self, steps: int) -> "LambdaCGD":
        """The same strategy over fewer steps."""
        return LambdaCGD(check_steps(steps, self.n), self.lam)

    def _factors(self) -> ScaledToeplitz:
        inverse = np.zeros(self.n)
        inverse[0] = 1.0
        inverse[1:2] = -self.lam
        diagonal = self.lam == 0.0 or self.n == 1
        return ScaledToeplitz(
            powers(self.lam, self.n),
            inverse,
            bands=1 if diagonal else None,
            inverse_bands=1 if diagonal else 2,
            error=0.0 if diagonal else sum_rounding(self.n),
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SquareRoot(FactoredStrategy):
    """The banded square root of the prefix sum (BSR): first coefficients of (1 - x)^(-1/2).

    Args:
        n: number of steps, >= 1.
        bands: p in [1, n], or None for all n coefficients.

    Raises:
        InvalidParameterError: if n or bands is out of range.

    Example:
        >>> import dpmech as dm
        >>> dm.SquareRoot(n=4, bands=3).toeplitz_coefs
        array([1.   , 0.5  , 0.375, 0.   ])
    """

    n: int
    bands: int | None = None  # the default hides the inherited property, which has the same meaning

    def __post_init__(self) -> None:
        n = check_integer("n", self.n, minimum=1, maximum=MOST_STEPS)
        object.__setattr__(self, "n", n)
        if self.bands is not None:
            object.__setattr__(self, "bands", check_bands(self.bands, n))

    @property
    def shape(self) -> Shape:
        """The sizes that determine the cost of its vectors."""
        return Shape(self.n, bands=self.bands or 0, inverse_bands=1 if self.bands == 1 else None)

    def prefix(self, steps: int) -> "SquareRoot":
        """The same strategy over fewer steps."""
        count = check_steps(steps, self.n)
        return SquareRoot(count, None if self.bands is None else min(self.bands, count))

    def _factors(self) -> ScaledToeplitz:
        coefs = square_root_coefs(self.n)
        error = SQUARE_ROOT_ROUNDING
        if self.bands is None:
            return ScaledToeplitz(coefs, inverse_square_root_coefs(self.n), error=error)
        coefs[self.bands :] = 0.0
        return ScaledToeplitz(
            coefs,
            bounded_inverse(coefs, self.n)[0],
            bands=self.bands,
            inverse_bands=1 if self.bands == 1 else None,
            error=error,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BandedToeplitz(FactoredStrategy):
    """C banded Toeplitz with the given coefficients (BandMF with Toeplitz C).

    Args:
        n: number of steps, >= 1.
        coefs: first entries of the first column of C, shape (p,), p <= n; coefs[0] > 0, others any sign.

    Raises:
        InvalidParameterError: if n or coefs is out of range.
        NumericalError: when C^-1 overflows float64.

    Example:
        >>> import dpmech as dm
        >>> dm.BandedToeplitz(n=4, coefs=[1.0, 0.5]).to_dense()
        array([[1. , 0. , 0. , 0. ],
               [0.5, 1. , 0. , 0. ],
               [0. , 0.5, 1. , 0. ],
               [0. , 0. , 0.5, 1. ]])
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
        return Shape(self.n, bands=self.coefs.size)

    def prefix(self, steps: int) -> "BandedToeplitz":
        """The same strategy over fewer steps."""
        count = check_steps(steps, self.n)
        return BandedToeplitz(count, self.coefs[:count])

    def _factors(self) -> ScaledToeplitz:
        coefs = np.pad(self.coefs, (0, self.n - self.coefs.size))
        p = trimmed(self.coefs).size
        inverse, _ = bounded_inverse(self.coefs, self.n)
        return ScaledToeplitz(coefs, inverse, bands=p, inverse_bands=1 if p == 1 else None)


def check_coefs(value: FloatArray, n: int) -> FloatArray:
    """Return at most n finite coefficients, the first one positive, as a read-only float64 array."""
    if np.ndim(value) == 1 and len(value) > n:
        raise InvalidParameterError(
            "coefs",
            value,
            f"at most {n} numbers",
            f"; there are n={n} steps, later ones have no effect: coefs[:{n}]",
        )
    coefs = check_vector("coefs", value)
    if coefs[0] <= 0.0:
        hint = (
            "; negate all coefs: C and -C are the same mechanism, because Z is symmetric" if coefs[0] else ""
        )
        raise InvalidParameterError("coefs[0]", float(coefs[0]), "a finite number > 0", hint)
    return coefs


def check_bands(value: object, n: int) -> int:
    """Return a number of bands in [1, n] as an int."""
    if not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) > n:
        hint = f"; with n={n} steps there are at most {n} bands: bands={n}"
        raise InvalidParameterError("bands", value, f"an integer in [1, {n}]", hint)
    return check_integer("bands", value, minimum=1, maximum=n)


def powers(base: float, n: int) -> FloatArray:
    """1, base, base^2, ... for base in [0, 1], shape (n,), to `sum_rounding(n)` relative above 1e-290.

    By doubling: every entry is a product of at most log2 n powers base^(2^i), each rounded once.
    """
    out = np.ones(n)
    length = 1
    # base^length as mantissa 2^exponent; 128 bits are enough for the 53 of float64.
    fraction, exponent = math.frexp(base)
    mantissa, exponent = int(math.ldexp(fraction, 53)), exponent - 53
    with np.errstate(under="ignore"):
        while length < n:
            count = min(length, n - length)
            out[length : length + count] = out[:count] * math.ldexp(float(mantissa), exponent)
            mantissa, exponent = mantissa * mantissa, 2 * exponent
            excess = max(0, mantissa.bit_length() - 128)
            mantissa, exponent = mantissa >> excess, exponent + excess
            length *= 2
    return out


def square_root_coefs(n: int) -> FloatArray:
    """First n coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, ..., to `SQUARE_ROOT_ROUNDING` relative.

    c_t = binom(2 t, t) / 4^t is exp(-1/(8 t) + 1/(192 t^3) - 1/(640 t^5) + 17/(14336 t^7)) / sqrt(pi t), by
    Stirling's series: its remainder is at most the first omitted terms, together below 2e-3 / t^9.
    """
    first = np.array([math.comb(2 * t, t) / 4**t for t in range(min(n, _STIRLING))])
    if n <= _STIRLING:
        return first
    t = np.arange(_STIRLING, n, dtype=np.float64)
    u = 1.0 / (t * t)
    s = (-1.0 / 8.0 + u * (1.0 / 192.0 + u * (-1.0 / 640.0 + u * (17.0 / 14336.0)))) / t
    # exp(s) for -1/256 <= s <= 0; the omitted terms are below 5e-18.
    exponential = 1.0 + s * (1.0 + s * (1.0 / 2.0 + s * (1.0 / 6.0 + s * (1.0 / 24.0 + s / 120.0))))
    return np.concatenate([first, exponential / np.sqrt(math.pi * t)])


def inverse_square_root_coefs(n: int) -> FloatArray:
    """First n coefficients of (1 - x)^(1/2): 1, -1/2, -1/8, ..., to `SQUARE_ROOT_ROUNDING` relative."""
    return square_root_coefs(n) / (1.0 - 2.0 * np.arange(n))
