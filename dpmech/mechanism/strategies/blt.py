"""Buffered linear Toeplitz strategies (BLT): coefficients that are sums of exponentials."""

import dataclasses
import math

import numpy as np

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import MOST_STEPS, check_integer, check_vector
from dpmech.mechanism.strategies.base import check_steps
from dpmech.mechanism.strategies.factored import FactoredStrategy
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.mechanism.strategies.shape import Shape
from dpmech.mechanism.strategies.toeplitz import powers
from dpmech.numerics import UNIT, FloatArray, error_of_terms, sum_rounding


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BLT(FactoredStrategy):
    """Buffered linear Toeplitz: c_0 = 1, c_t = sum_j scales[j] decays[j]^(t - 1).

    The noise requires one buffer per decay. If scales >= 0 and sum(scales) <= 1, the coefficients are
    non-increasing, and sensitivities have a closed form.

    Args:
        n: number of steps, >= 1.
        decays: each in [0, 1], shape (d,); a buffer with decay 1 is the sum over all earlier steps.
        scales: finite, of any sign, shape (d,).

    Raises:
        InvalidParameterError: if n, decays or scales is out of range.
        NumericalError: when C^-1 overflows float64.

    Example:
        >>> import dpmech as dm
        >>> dm.BLT(n=1000, decays=[0.9, 0.99], scales=[0.2, 0.1]).toeplitz_coefs[:3].round(3)
        array([1.   , 0.3  , 0.279])
    """

    n: int
    decays: FloatArray
    scales: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_integer("n", self.n, minimum=1, maximum=MOST_STEPS))
        if np.ndim(self.decays) == 1 and len(self.decays) == 0:
            accepted = "a non-empty sequence of numbers in [0, 1]"
            raise InvalidParameterError("decays", self.decays, accepted, "; without buffers C is Identity(n)")
        decays = check_vector("decays", self.decays)
        if np.any(decays < 0.0) or np.any(decays > 1.0):
            raise InvalidParameterError("decays", self.decays, "numbers in [0, 1]")
        scales = check_vector("scales", self.scales)
        if scales.size != decays.size:
            raise InvalidParameterError("scales", self.scales, f"of the same length as decays, {decays.size}")
        object.__setattr__(self, "decays", decays)
        object.__setattr__(self, "scales", scales)

    @property
    def shape(self) -> Shape:
        """The sizes that determine the cost of its vectors."""
        return Shape(self.n, buffers=self.decays.size)

    def prefix(self, steps: int) -> "BLT":
        """The same strategy over fewer steps."""
        return BLT(check_steps(steps, self.n), self.decays, self.scales)

    def _factors(self) -> ScaledToeplitz:
        coefs, majorant = np.zeros(self.n), np.zeros(self.n)
        coefs[0] = 1.0
        for decay, scale in zip(self.decays, self.scales, strict=True):
            # Powers below 1e-300 are omitted, because subnormal numbers are slow.
            count = self.n - 1 if decay in {0.0, 1.0} else min(self.n - 1, 1 + int(-691.0 / math.log(decay)))
            if count > 0:
                terms = scale * powers(decay, count)
                coefs[1 : count + 1] += terms
                majorant[1 : count + 1] += np.abs(terms)
        # With state x_(t+1) = diag(decays) x_t + u_t and output u_t + scales . x_t, the inverse feeds the
        # output back: c^-1_t = -scales . M^(t-1) 1, M = diag(decays) - 1 scales^T. Powers of M keep the
        # accuracy that polynomials with these roots lose when decays are close together.
        inverse = np.zeros(self.n)
        inverse[0] = 1.0
        power = np.diag(self.decays) - self.scales
        states = np.ones((self.decays.size, 1))
        with np.errstate(over="ignore", invalid="ignore"):
            while states.shape[1] < self.n - 1:
                states = np.concatenate([states, power @ states], axis=1)
                power = power @ power
            inverse[1:] = -self.scales @ states[:, : self.n - 1]
        # Rounding of the powers, their products with the scales, and their sums.
        rounding = sum_rounding(self.n) + 1.01 * (self.decays.size + 1) * UNIT
        majorant += 1e-280 * float(np.abs(self.scales).sum())
        diagonal = self.n == 1 or not np.any(self.scales)
        bands = 1 if diagonal else None
        return ScaledToeplitz(
            coefs,
            inverse,
            bands=bands,
            inverse_bands=bands,
            exponentials=(self.decays, self.scales),
            error=error_of_terms(coefs, majorant, rounding),
        )
