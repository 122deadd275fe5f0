r"""The Gaussian mechanism, exactly: one release of C G + sigma Z without sampling; and its curve.

At sensitivity 1, delta(sigma, eps) = Phi(a) - e^eps Phi(b) with a = 1/(2 sigma) - eps sigma and
b = -1/(2 sigma) - eps sigma (Balle and Wang 2018, Theorem 8). With Phi(x) = e^{-x^2/2} erfcx(-x/sqrt 2) / 2
the powers of e cancel and delta = Phi(a) (1 - erfcx(-b/sqrt 2) / erfcx(-a/sqrt 2)), which keeps its relative
accuracy for delta down to 1e-300 and eps up to 1e4.

`gaussian_curve` evaluates the hockey-stick curve at arrays of eps, negative values included. With mu =
sensitivity / sigma, a = mu / 2 - eps / mu and b = a - mu, it is h = Phi(a) - e^eps Phi(b) = Phi(a) (1 - r),
r = e^eps Phi(b) / Phi(a) = erfcx(-b / sqrt 2) / erfcx(-a / sqrt 2). Both directions have this curve, and
h(-eps) = 1 - e^-eps + e^-eps h(eps).

References:
    Balle and Wang 2018, Theorem 8.
"""

import math
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import scipy

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.exceptions import NumericalError, UnattainableBudgetError
from dpmech.mechanism import Adjacency
from dpmech.numerics import (
    UNIT,
    Bounds,
    FloatArray,
    Provenance,
    bisect_boundary,
    quotient_down,
    quotient_up,
    register_words,
    rounded_down,
    rounded_up,
)

if TYPE_CHECKING:
    import dp_accounting

    from dpmech.engines.profiles import PrivacyProfile

register_words({"gaussian.analytic": "analytic Gaussian"})


_ROOT_HALF = math.sqrt(0.5)
_ULP = 2.0**-52
_LARGEST = 1e15
# Far above the absolute error of results below the smallest normal number, 2^-1074 per operation.
_SUBNORMAL = 1e-320


def gaussian_log_delta(sigma: float, eps: float) -> tuple[float, float]:
    """Natural log of delta at sensitivity 1, and a bound on the relative rounding error of delta.

    Args:
        sigma: at sensitivity 1, > 0.
        eps: >= 0.
    """
    a = 0.5 / sigma - eps * sigma
    b = -0.5 / sigma - eps * sigma
    above, below = float(scipy.special.erfcx(-b * _ROOT_HALF)), float(scipy.special.erfcx(-a * _ROOT_HALF))
    if not above < below:
        return -math.inf, math.inf
    ratio = above / below
    # In units of u = 2^-53, with S = 1 / (2 sigma) + eps sigma >= |a|: a and b have errors up to 2 S, and log
    # Phi has slope at most |a| + 1. log_ndtr is log erfcx - a^2 / 2, with error 3 a^2 <= 3 (|a| + 1) S plus
    # that of erfcx, and sums add |log delta| <= (|a| + 1) S / 2 + 1 / (1 - ratio): less than 8 (|a| + 1) S.
    # erfcx has error 12 (a test measures 8 for scipy), which enters three times, and its arguments 2 S and
    # more; the slope of log erfcx times that is at most 10, times the ratio and for both; logarithms,
    # exponential and products add 8. All are divided by 1 - ratio, as delta is, at most: less than 64.
    error = UNIT * (64.0 / (1.0 - ratio) + 8.0 * (abs(a) + 1.0) * (0.5 / sigma + eps * sigma))
    return float(scipy.special.log_ndtr(a)) + math.log1p(-ratio), error


def gaussian_delta(sigma: float, eps: float) -> tuple[float, float]:
    """Lower and upper bounds on delta at sensitivity 1, rounding included."""
    log_delta, error = gaussian_log_delta(sigma, eps)
    if math.isinf(error):
        # Here float64 cannot tell delta from 0. With m = Phi / phi, delta is phi(a) (m(a) - m(b)), where
        # a - b = 1 / sigma and m' = 1 + x m <= 1 for x <= 0; a is below 1e-7 here.
        a = min(0.5 / sigma - eps * sigma, 0.0)
        return 0.0, min(1.0, 0.4 / sigma * math.exp(-0.5 * a * a) + _SUBNORMAL)  # phi(0) = 0.3989
    delta = math.exp(log_delta)
    return max(0.0, delta * (1.0 - error) - _SUBNORMAL), min(1.0, delta * (1.0 + error) + _SUBNORMAL)


def gaussian_sigma(eps: float, delta: float) -> float:
    """Smallest sigma at sensitivity 1 that meets (eps, delta), rounded up.

    The relative excess is about 1e-12, and below 1e-7 for eps down to 1e-6.

    Raises:
        UnattainableBudgetError: if it would exceed 1e15.

    Examples:
        >>> round(gaussian_sigma(8.0, 1e-5), 6)
        0.600229
    """
    sigma = math.exp(gaussian_log_sigma(eps, delta))
    step = _ULP
    while gaussian_delta(sigma, eps)[1] > delta:
        sigma *= 1.0 + step
        step *= 2.0
        if step > 1e-3:
            raise NumericalError(
                f"rounding errors hide delta={delta!r} at eps={eps!r} for the Gaussian mechanism"
            )
    return sigma


def gaussian_log_sigma(eps: float, delta: float) -> float:
    """Log of sigma / sensitivity at (eps, delta), rounded to nearest: for searches, not for guarantees."""
    target = math.log(delta)

    def excess(log_sigma: float) -> float:
        value = gaussian_log_delta(math.exp(log_sigma), eps)[0]
        return max(value, -1e6) - target

    low, high = -1.0, 1.0
    while excess(low) < 0.0:
        low -= 2.0
    while excess(high) > 0.0:
        high += 2.0
        if high > math.log(_LARGEST):
            raise UnattainableBudgetError(eps, delta, f"sigma / sensitivity would exceed {_LARGEST:g}")
    # The tolerances only affect a search; they enter no guarantee.
    return float(scipy.optimize.brentq(excess, low, high, xtol=1e-15, rtol=1e-15))


def gaussian_epsilon(sigma: float, delta: float, *, safe: bool) -> float:
    """Smallest eps >= 0 at delta for sigma at sensitivity 1, rounded up (`safe`) or down."""

    def value(eps: float) -> float:
        return gaussian_delta(sigma, eps)[1 if safe else 0]

    if value(0.0) <= delta:
        return 0.0
    high = 1.0
    while value(high) > delta:
        high *= 2.0
        if high > 1e300:
            raise NumericalError(f"eps overflows at sigma={sigma!r}, delta={delta!r}")
    return bisect_boundary(lambda eps: value(eps) > delta, 0.0, high, safe=safe)


class GaussianAccountant(Accountant):
    """Exact accountant of one Gaussian release with a sensitivity given as Bounds."""

    amplified: ClassVar[bool] = False
    immediate: ClassVar[bool] = True

    def __init__(self, sensitivity: Bounds) -> None:
        self.sensitivity = sensitivity
        self.by = Provenance("gaussian.analytic", rests_on=(sensitivity.by,))
        self.guarantee = sensitivity.guarantee

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Exact up to rounding and the width of the sensitivity bounds."""
        lower = gaussian_delta(quotient_up(sigma, self.sensitivity.lower), eps)[0]
        upper = gaussian_delta(quotient_down(sigma, self.sensitivity.upper), eps)[1]
        return Bounds.derived(lower, upper, self.guarantee, self.by)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Exact up to rounding and the width of the sensitivity bounds."""
        lower = gaussian_epsilon(quotient_up(sigma, self.sensitivity.lower), delta, safe=False)
        upper = gaussian_epsilon(quotient_down(sigma, self.sensitivity.upper), delta, safe=True)
        return Bounds.derived(lower, upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma, independent of rtol."""
        sigma = gaussian_sigma(eps, delta) * self.sensitivity.upper
        for _ in range(60):
            achieved = self.epsilon(sigma, delta, tolerance=rtol)
            if achieved.upper <= eps and self.delta(sigma, eps, tolerance=rtol).upper <= delta:
                return Solution(sigma, achieved)
            sigma *= 1.0 + 4.0 * _ULP
        raise NumericalError(
            f"rounding errors hide eps={eps!r} at delta={delta!r} for the Gaussian mechanism"
        )

    def start_for_mu(self, mu: float) -> float:
        """The exact sigma for this mu, up to rounding."""
        return self.sensitivity.upper / mu

    def renyi(self, sigma: float, order: int) -> float:
        """Half the order times mu^2, rounded up once."""
        return rounded_up((Fraction(self.sensitivity.upper) / Fraction(sigma)) ** 2 * order / 2)

    def dp_event(self, sigma: float) -> "dp_accounting.DpEvent":
        """One release, with its noise rounded down."""
        import dp_accounting

        return dp_accounting.GaussianDpEvent(quotient_down(sigma, self.sensitivity.upper))

    def profile(self, sigma: float, adjacency: Adjacency, *, rel_error: float) -> "PrivacyProfile":
        """Known in closed form, independent of rel_error."""
        from dpmech.engines.profiles import Composition, PrivacyProfile

        del rel_error
        bounds, scale = self.sensitivity, Fraction(sigma)
        least, most = ((Fraction(end) / scale) ** 2 for end in (bounds.lower, bounds.upper))
        parts = Composition((rounded_down(least), rounded_up(most)))
        return PrivacyProfile(parts, self.guarantee, self.by, adjacency)


# Beyond it erfcx of a negative argument overflows, while Phi(a) rounds to 1.
_FAR = 30.0
# Smallest 1 - r at which the relative error of r is still small compared with 1 - r.
_SMALLEST = 1e-12


def gaussian_curve(mu: float, eps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Log h, and a bound on the relative rounding error of h, where it is known.

    Args:
        mu: > 0.
        eps: any real numbers, shape (m,).

    Returns:
        Two arrays of shape (m,). Where float64 cannot distinguish r from 1, the logarithm is an upper bound
        instead and the error is infinite.
    """
    a = 0.5 * mu - eps / mu
    b = a - mu
    near = np.minimum(a, _FAR)
    below = scipy.special.erfcx(-near * _ROOT_HALF)
    with np.errstate(under="ignore"):
        ratio = np.where(
            a <= _FAR,
            scipy.special.erfcx(-np.minimum(b, _FAR) * _ROOT_HALF) / below,
            np.exp(eps + scipy.special.log_ndtr(b)),
        )
    left = 1.0 - ratio
    # In units of u: a and b have errors up to S = 4 (mu + |eps| / mu), the slope of log Phi is at most
    # |a| + 1 where it matters, log_ndtr itself has error 3 a^2. erfcx has error 12 and, for a negative
    # argument x, a further 4 x^2; the exponential of a sum has the error of that sum's parts. The error of r
    # is divided by 1 - r.
    size = 4.0 * (mu + np.abs(eps) / mu)
    phi = (np.maximum(-a, 0.0) + 1.0) * size + 3.0 * np.minimum(a, 0.0) ** 2 + 16.0
    inside = 64.0 + 4.0 * (near**2 + np.minimum(b, _FAR) ** 2) + 10.0 * size
    inside = np.where(a <= _FAR, inside, 32.0 + 4.0 * np.abs(eps) + (np.maximum(-b, 0.0) + 1.0) * size)
    known = left > _SMALLEST
    safe = np.where(known, left, 1.0)
    error = UNIT * (phi + inside * np.minimum(ratio, 1.0) / safe + 8.0 / safe)
    logs = scipy.special.log_ndtr(a) + np.log(safe)
    # With m = Phi / phi, h = phi(a) (m(a) - m(b)) where eps >= 0, and m' = 1 + x m <= 1 for x <= 0; otherwise
    # h <= Phi(a) - Phi(b) + 1 - e^eps <= mu + |eps|.
    bound = np.where(a <= 0.0, math.log(mu) - 0.5 * a**2, np.log(mu + np.maximum(-eps, 0.0))) + 1e-9
    return np.where(known, logs, np.minimum(bound, 0.0)), np.where(known, error, np.inf)
