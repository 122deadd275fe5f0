"""Buffered linear Toeplitz strategies (BLT): coefficients that are sums of exponentials."""

import dataclasses

import numpy as np
from scipy import signal

from dpmech.exceptions import InvalidParameterError, check_integer, check_vector
from dpmech.linalg import FloatArray
from dpmech.strategies.factored import FactoredStrategy
from dpmech.strategies.scaled_toeplitz import ScaledToeplitz

__all__ = ["BLT"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BLT(FactoredStrategy):
    """Buffered linear Toeplitz: c_0 = 1, c_t = sum_j scales[j] decays[j]^(t - 1).

    Noise needs one buffer a decay. With scales >= 0 and sum(scales) <= 1 the coefficients are
    non-increasing, so that sensitivities have a closed form.

    Args:
        n: number of steps, >= 1.
        decays: each in [0, 1), shape (d,).
        scales: finite, signs free, shape (d,).

    Raises:
        InvalidParameterError: if n, decays or scales is out of range.
        NumericalError: when C^-1 overflows float64.
    """

    n: int
    decays: FloatArray
    scales: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_integer("n", self.n, minimum=1))
        decays = check_vector("decays", self.decays)
        if np.any(decays < 0.0) or np.any(decays >= 1.0):
            raise InvalidParameterError("decays", self.decays, "numbers in [0, 1)")
        scales = check_vector("scales", self.scales)
        if scales.size != decays.size:
            raise InvalidParameterError("scales", self.scales, f"as many numbers as decays, {decays.size}")
        object.__setattr__(self, "decays", decays)
        object.__setattr__(self, "scales", scales)

    def _factors(self) -> ScaledToeplitz:
        coefs = np.zeros(self.n)
        coefs[0] = 1.0
        lags = np.arange(self.n - 1)
        for decay, scale in zip(self.decays, self.scales, strict=True):
            coefs[1:] += scale * decay**lags
        # c(x) = P(x) / D(x) with D = prod (1 - decay x) and P = D + sum scale x prod over the others,
        # so C^-1 has the coefficients of D / P: a recursion over d terms.
        denominator = _product(self.decays)
        numerator = denominator.copy()
        for j, scale in enumerate(self.scales):
            numerator[1:] += scale * _product(np.delete(self.decays, j))
        impulse = np.zeros(self.n)
        impulse[0] = 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            inverse = np.asarray(signal.lfilter(denominator, numerator, impulse), dtype=np.float64)
        diagonal = self.n == 1 or not np.any(self.scales)
        return ScaledToeplitz(
            coefs, inverse, bands=1 if diagonal else None, inverse_bands=1 if diagonal else None
        )


def _product(decays: FloatArray) -> FloatArray:
    polynomial = np.ones(1)
    for decay in decays:
        polynomial = np.convolve(polynomial, [1.0, -decay])
    return polynomial
