r"""A sum of exponentials of one real part above the payoff v_+, at every real v.

e^(-tilt v) E(v + w N)_+ is made periodic; its Fourier series times e^(tilt v) is above v_+, as all copies of
the payoff are >= 0 (docs/balls_in_bins_proof.md, "Small delta: a tilt").
"""

import dataclasses
import math
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.numerics import ELEMENTARY, FloatArray

__all__ = ["TiltedSeries"]

ComplexArray = npt.NDArray[np.complex128]


@dataclasses.dataclass(frozen=True, eq=False)
class TiltedSeries:
    """Coefficients of exponentials above v_+: e^(tilt v) times the Fourier series of its smoothed copies.

    c_k = e^(s_k^2 w^2 / 2) / (P s_k^2), s_k = tilt + 2 pi i k / P; those of negative k are the conjugates.
    """

    tilt: float
    period: float
    width: float
    count: int

    @cached_property
    def frequencies(self) -> FloatArray:
        """2 pi k / P, shape (count,)."""
        return np.asarray(2.0 * math.pi * np.arange(self.count) / self.period)

    @cached_property
    def coefficients(self) -> ComplexArray:
        """c_k, twice those of k > 0."""
        s = self.tilt + 1j * self.frequencies
        values = np.exp(0.5 * (s * self.width) ** 2) / (s * s * self.period)
        values[1:] *= 2.0
        return np.asarray(values)

    @property
    def densities(self) -> ComplexArray:
        """Those of the smoothed density of v at 0, in place of the mean of v_+."""
        s = self.tilt + 1j * self.frequencies
        return np.asarray(self.coefficients * s * s)

    @cached_property
    def remainder(self) -> float:
        """At least the sum of |c_k| beyond, and what rounding does to those before."""
        omega = float(self.frequencies[-1])
        front = math.exp(0.5 * (self.tilt * self.width) ** 2)
        tail = math.sqrt(2.0 * math.pi) / self.width * float(scipy.special.ndtr(-omega * self.width))
        beyond = front * tail / (math.pi * omega * omega)
        sizes = 8.0 * ELEMENTARY * (1.0 + (np.abs(self.tilt + 1j * self.frequencies) * self.width) ** 2)
        return 1.01 * (beyond + float(np.abs(self.coefficients) @ sizes))
