r"""Sums of exponentials above the payoff (1 - r / t)_+, for all r >= 0 at once.

The payoff is smoothed by a normal law of standard deviation w t, which raises a convex function, and the
smoothed one M, times e^(kappa u), is made periodic in u: its Fourier series is a sum of exponentials
e^(-s_k u) with s_k = kappa - 2 pi i k / P. By Poisson's formula that sum is
sum_n e^(kappa n P) M(u + n P). All its terms are >= 0; those with n < 0 are at least
e^(kappa n P) (1 - (u + n P) / theta), so that these may be taken off again (docs/balls_in_bins_proof.md).
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.numerics import ELEMENTARY

__all__ = ["Majorant"]

Complex = npt.NDArray[np.complex128]

# Deviations of the smoothing law after which the series is cut: what is cut off is bounded and added.
CUT = 7.0


@dataclasses.dataclass(frozen=True)
class Majorant:
    """Exponents for payoffs whose kink lies at theta in (0, 1], in units of the largest one.

    Attributes:
        width: w, the standard deviation of the smoothing law over the kink, > 0.
        period: P > 1.
        damping: kappa P, > 0.
        least: the smallest theta that is to be served.
    """

    width: float
    period: float
    damping: float
    least: float = 1.0

    @property
    def count(self) -> int:
        """The number of exponents k = 0, ..., count - 1; those of negative k are their conjugates."""
        return math.ceil(CUT / (self.width * self.least) * self.period / (2.0 * math.pi)) + 1

    def exponents(self) -> Complex:
        """s_k, shape (count,), real parts > 0."""
        k = np.arange(self.count)
        return np.asarray(self.damping / self.period - 2j * math.pi * k / self.period)

    def coefficients(self, theta: float) -> Complex:
        """c_k, shape (count,), twice those of k > 0: Re sum_k c_k e^(-s_k u) is the sum over all integers."""
        s = self.exponents()
        width = self.width * theta
        factor = np.exp(0.5 * (s * width) ** 2 + s * theta) / (s * s * theta * self.period)
        factor[1:] *= 2.0
        return np.asarray(factor)

    def remainder(self, theta: float) -> float:
        """At least what the exponents beyond `count` add up to, at any u >= 0, and rounding of those before.

        |c_k| <= e^(kappa theta) e^((kappa^2 - omega_k^2) w^2 / 2) / (P theta omega_k^2), summed by an
        integral. Exponents s w and s theta are known to 16 roundings of their size.
        """
        kappa = self.damping / self.period
        width = self.width * theta
        omega = 2.0 * math.pi * (self.count - 1) / self.period
        front = math.exp(kappa * theta + 0.5 * (kappa * width) ** 2)
        tail = math.sqrt(2.0 * math.pi) / width * float(scipy.special.ndtr(-omega * width)) / math.pi
        sizes = 8.0 * (abs(self.exponents()) * (theta + width) + 1.0) ** 2 * ELEMENTARY
        rounding = float(np.sum(np.abs(self.coefficients(theta)) * sizes))
        return 1.01 * (front / (theta * omega * omega) * tail + rounding)

    def line(self, theta: float) -> tuple[float, float]:
        """(p, q) with p - q u what may be taken off: the copies n < 0 are at least that."""
        ratio = math.exp(-self.damping)
        copies = ratio / -math.expm1(-self.damping)
        moved = self.period * ratio / math.expm1(-self.damping) ** 2
        return copies + moved / theta, copies / theta
