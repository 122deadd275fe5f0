r"""Mean and second moment of a noisy vector divided by its own length: what clipping leaves of a gradient.

X is the gradient of one example, g plus noise of scale s in each of d coordinates: Gaussian, or multivariate
Student t of nu degrees of freedom (one chi-square variable shared by all coordinates, so s is a scale and no
standard deviation). Clipping takes X to C u, u = X / ||X||. By rotation E[u] = c g and
E[u u^T] = p I + r g g^T. With z = ||g||^2 / (2 s^2) and K the factor below,

    c = K(nu) K(d) / (s sqrt d) 2F1(1/2, (nu + 1)/2; d/2 + 1; -2 z / nu),
    p = 2F1(1, nu/2; d/2 + 1; -2 z / nu) / d,

which follow from the Gaussian forms c = K(d) / (s sqrt d) 1F1(1/2; d/2 + 1; -z) and
p = 1F1(1; d/2 + 1; -z) / d by averaging over the chi-square variable.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.analysis._arguments import check_nonnegative
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

__all__ = ["DirectionMoments", "check_degrees_of_freedom", "direction_factor", "direction_moments"]

_SERIES_FROM = 300.0
# Trapezoid rule on the logit scale: it converges exponentially, and 0.25 is past the last digit.
_SPACING = 0.25
_LOG_TAIL = 37.0
_CHUNK = 512


class DirectionMoments(NamedTuple):
    """Moments of u = X / ||X||, each of the shape of the norms.

    Attributes:
        gain: c, with E[u] = c g; decreases in ||g||. Unit: one over that of a gradient.
        spread: p, the second moment of u along any direction orthogonal to g.
        along: the second moment of u along g, in [p, 1].
    """

    gain: FloatArray
    spread: FloatArray
    along: FloatArray


def direction_factor(degrees_of_freedom: float) -> float:
    """K(nu) = sqrt(2/nu) Gamma((nu + 1)/2) / Gamma(nu/2): mean of a chi variable over its root mean square.

    Args:
        degrees_of_freedom: nu > 0; math.inf (Gaussian) gives 1.

    Returns:
        K in (0, 1], about 1 - 1 / (4 nu). Exact, to 1e-12.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        sde sde.lemA2.

    Examples:
        >>> from dpmech.analysis.sde.directions import direction_factor
        >>> round(direction_factor(1), 4), round(direction_factor(3), 4)
        (0.7979, 0.9213)
    """
    nu = check_degrees_of_freedom(degrees_of_freedom)
    if nu > _SERIES_FROM:
        # log Gamma would lose digits here; the asymptotic series has none to lose.
        inverse = 1.0 / nu
        return 1.0 + inverse * (-0.25 + inverse * (1 / 32 + inverse * (5 / 128 - inverse * 21 / 2048)))
    return math.sqrt(2.0 / nu) * math.exp(math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu))


def direction_moments(
    gradient_norm: npt.ArrayLike, scale: float, dimension: int, *, degrees_of_freedom: float = math.inf
) -> DirectionMoments:
    """Mean and second moments of a noisy gradient divided by its length.

    Args:
        gradient_norm: ||g|| >= 0, any shape.
        scale: s > 0, of the noise of one coordinate.
        dimension: d >= 1.
        degrees_of_freedom: nu > 0 of a multivariate Student t; math.inf is Gaussian.

    Returns:
        The moments, of the shape of the norms. Exact for this noise, to about 1e-11; the usual
        approximation c = K(nu) / (s sqrt d) has relative error 1 / (4 d) + z / (d + 2), Gaussian case.

    Raises:
        InvalidParameterError: on a bad argument.
        NumericalError: if a result leaves the range of float64.

    References:
        sde sde.lemA1, sde.lemA2.

    Examples:
        >>> from dpmech.analysis.sde.directions import direction_moments
        >>> round(float(direction_moments(3.0, 1.0, 100).gain) * 3.0, 6)
        0.286849
    """
    norms = check_nonnegative("gradient_norm", gradient_norm)
    width = check_real("scale", scale, minimum=0.0, open_minimum=True)
    size = check_integer("dimension", dimension, minimum=1)
    nu = check_degrees_of_freedom(degrees_of_freedom)
    with np.errstate(over="ignore"):
        ratio = 0.5 * (norms / width) ** 2
    if not np.all(np.isfinite(ratio)):
        raise NumericalError("gradient_norm / scale leaves the range of float64")
    peak = direction_factor(nu) * direction_factor(float(size)) / (width * math.sqrt(size))
    if not math.isfinite(peak):
        raise NumericalError("1 / scale leaves the range of float64")
    gain = peak * _shrinkage(0.5, size, ratio, 0.5 * (nu + 1.0), nu)
    # Rounding may leave p a hair off the range [0, 1/d] that it has.
    spread = np.clip(_shrinkage(1.0, size, ratio, 0.5 * nu, nu) / size, 0.0, 1.0 / size)
    along = np.maximum(1.0 - (size - 1) * spread, spread) if size > 1 else np.ones_like(spread)
    return DirectionMoments(gain[()], spread[()], along[()])


def check_degrees_of_freedom(value: float) -> float:
    """Return nu > 0 as a float; math.inf is accepted."""
    if isinstance(value, float) and value == math.inf:
        return value
    try:
        return check_real("degrees_of_freedom", value, minimum=0.0, open_minimum=True)
    except InvalidParameterError:
        raise InvalidParameterError("degrees_of_freedom", value, "a positive number or math.inf") from None


def _shrinkage(first: float, dimension: int, ratio: FloatArray, exponent: float, nu: float) -> FloatArray:
    """E[(1 + 2 z s / nu)^-exponent], or E[e^(-z s)] for nu infinite, over s of a beta law.

    Euler's integral of 2F1 and 1F1 at c = dimension/2 + 1. Library routines lose digits, or do not end, at
    the large c and z of training.
    """
    rest = 0.5 * dimension + 1.0 - first
    flat = ratio.ravel()
    result = np.empty(flat.size)
    for start in range(0, flat.size, _CHUNK):
        z = flat[start : start + _CHUNK]
        largest = float(z.max(initial=0.0))
        # The factor is about e^(-z s) at first, so the mass lies near 1 / (rest + z) or above.
        low = -math.log(rest + first + largest * (1.0 + (1.0 / nu))) - _LOG_TAIL / first
        high = math.log(math.expm1(_LOG_TAIL / rest))
        logit = np.arange(low, high + _SPACING, _SPACING)
        log_weight = -first * np.logaddexp(0.0, -logit) - rest * np.logaddexp(0.0, logit)
        weight = np.exp(log_weight - log_weight.max())
        share = scipy.special.expit(logit)
        values = (
            np.exp(-z[:, None] * share)
            if math.isinf(nu)
            else np.exp(-exponent * np.log1p((2.0 / nu) * z[:, None] * share))
        )
        result[start : start + _CHUNK] = values @ weight / weight.sum()
    return result.reshape(ratio.shape)
