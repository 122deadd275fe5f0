r"""The hockey-stick curve of the Gaussian mechanism at any eps, also below 0, for whole arrays.

With mu = sensitivity / sigma, a = mu / 2 - eps / mu and b = a - mu it is h = Phi(a) - e^eps Phi(b) = Phi(a)
(1 - r), r = e^eps Phi(b) / Phi(a) = erfcx(-b / sqrt 2) / erfcx(-a / sqrt 2). It is the same in both
directions, and h(-eps) = 1 - e^-eps + e^-eps h(eps).

References:
    Balle and Wang 2018, Theorem 8.
"""

import math

import numpy as np
import scipy

from dpmech.numerics import UNIT, FloatArray

__all__ = ["gaussian_curve"]

_ROOT_HALF = math.sqrt(0.5)
# Beyond it erfcx of a negative argument overflows; Phi(a) is 1 there to the last bit.
_FAR = 30.0
# Of r, up to how near 1 its relative error is still small beside 1 - r.
_SMALLEST = 1e-12


def gaussian_curve(mu: float, eps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Log h, and a bound on the relative rounding error of h, where it is known.

    Args:
        mu: > 0.
        eps: any real numbers, shape (m,).

    Returns:
        Two arrays of shape (m,). Where float64 cannot tell r from 1 the logarithm is an upper bound instead,
        and the error infinite.
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
    # In units of u: a and b are off by S = 4 (mu + |eps| / mu), the slope of log Phi is |a| + 1 at most where
    # it matters, log_ndtr itself is off by 3 a^2. Erfcx is off by 12 and, of a negative argument x, by 4 x^2;
    # the exponential of a sum by that sum's parts. What r is off by counts over 1 - r.
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
