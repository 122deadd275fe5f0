"""The constants of the SDEs, estimated from gradients and losses of public data.

None of these estimates is private. If they are computed from the data to be protected, they are releases
without noise. Use public data of the same kind, or a model trained on such data.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.analysis._arguments import check_matrices, check_numbers, check_result
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.numerics import FloatArray

_MOST_DEGREES = 1e4  # above, the tails of a Student t cannot be told from Gaussian ones


@dataclasses.dataclass(frozen=True, eq=False)
class BatchNoiseEstimate:
    """Estimates of the noise of batches from the gradients of examples; arguments of `GradientNoise`.

    Attributes:
        batch_noise: sigma_gamma >= 0, scale of one example's gradient noise in one coordinate.
        degrees_of_freedom: nu of its Student t distribution; math.inf if the tails are not heavier than
            Gaussian.
        gradient: the mean gradient, shape (d,).
    """

    batch_noise: float
    degrees_of_freedom: float
    gradient: FloatArray


def estimate_batch_noise(gradients: npt.ArrayLike) -> BatchNoiseEstimate:
    """sigma_gamma and nu from the gradients of single examples of public data.

    The model is that of `GradientNoise`: deviations from the mean gradient have an isotropic multivariate
    Student t distribution. The logarithms of their squared norms then have variance psi'(d/2) + psi'(nu/2)
    and mean log(2 sigma_gamma^2) + psi(d/2) + log(nu/2) - psi(nu/2), and both moments are matched. These
    moments exist however heavy the tails are.

    Args:
        gradients: unclipped gradients of m >= 3 examples at one point, shape (m, d), not all equal.

    Returns:
        A BatchNoiseEstimate, which is consistent as m grows if nu > 2, because single examples then do not
        move the mean gradient. If the noise is not isotropic, sigma_gamma^2 d is still near the typical
        squared norm of the deviations, but nu is too small.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if squared norms leave the range of float64.

    References:
        sde sde.lemA2.

    Examples:
        >>> import numpy as np
        >>> from dpmech.analysis.sde.estimates import estimate_batch_noise
        >>> rng = np.random.default_rng(1)
        >>> found = estimate_batch_noise(0.3 * rng.standard_t(1e9, size=(2000, 400)))
        >>> round(found.batch_noise, 2), found.degrees_of_freedom > 500
        (0.3, True)
    """
    rows = check_matrices("gradients", gradients)
    count, size = rows.shape
    if count < 3:
        raise InvalidParameterError("gradients", rows.shape, "gradients of at least 3 examples, shape (m, d)")
    mean = rows.mean(axis=0)
    with np.errstate(over="ignore", under="ignore"):
        squares = np.square(rows - mean).sum(axis=1) * (count / (count - 1.0))
    check_result(squares.max(), "the squared norm of a gradient")
    if not np.all(squares > 0.0):
        raise InvalidParameterError("gradients", gradients, "gradients that all differ from their mean")
    logs = np.log(squares)
    heavy = float(logs.var(ddof=1)) - float(scipy.special.polygamma(1, 0.5 * size))
    nu = _degrees(heavy)
    centre = float(logs.mean()) - float(scipy.special.psi(0.5 * size)) - math.log(2.0)
    if nu < math.inf:
        centre -= math.log(0.5 * nu) - float(scipy.special.psi(0.5 * nu))
    return BatchNoiseEstimate(math.exp(0.5 * centre), nu, mean)


def _degrees(variance: float) -> float:
    """The nu with psi'(nu / 2) = variance."""

    def trigamma(half: float) -> float:
        return float(scipy.special.polygamma(1, half)) - variance

    if trigamma(0.5 * _MOST_DEGREES) >= 0.0:
        return math.inf
    return 2.0 * float(scipy.optimize.brentq(trigamma, 1e-8, 0.5 * _MOST_DEGREES, rtol=1e-12))


def smoothness_estimate(points: npt.ArrayLike, gradients: npt.ArrayLike) -> float:
    """A lower bound on the smoothness L: the steepest change of the gradient between visited points.

    Args:
        points: parameters along a path on public data, shape (k, d), k >= 2, no two neighbours equal.
        gradients: the full gradients there, shape (k, d).

    Returns:
        max ||g_i - g_(i-1)|| / ||x_i - x_(i-1)||, in units of the loss per squared parameter. L is at least
        this large; on a quadratic the bound is reached by steps along its steepest direction.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if a ratio leaves the range of float64.

    References:
        sde sde.thm4.2/B7.
    """
    where, slopes = check_matrices("points", points), check_matrices("gradients", gradients)
    if where.shape != slopes.shape or len(where) < 2:
        raise InvalidParameterError("gradients", slopes.shape, f"two or more rows, as points {where.shape}")
    lengths = np.linalg.norm(np.diff(where, axis=0), axis=1)
    if not np.all(lengths > 0.0):
        raise InvalidParameterError("points", points, "points of which no two neighbours are equal")
    return float(check_result((np.linalg.norm(np.diff(slopes, axis=0), axis=1) / lengths).max(), "the ratio"))


def pl_constant_estimate(
    losses: npt.ArrayLike, gradients: npt.ArrayLike, *, least_loss: float = 0.0
) -> float:
    """An upper bound on the PL constant mu: the smallest ||grad f||^2 / (2 (f - f*)) of visited points.

    Args:
        losses: f along a path on public data, shape (k,), above `least_loss`.
        gradients: the full gradients there, shape (k, d).
        least_loss: f*, the minimum of f, or a lower bound on it.

    Returns:
        In units of the loss per squared parameter. mu is at most this large if f* is exact; with a lower
        bound for f* it is an estimate.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if a ratio leaves the range of float64.

    References:
        sde sde.thm4.2/B7.
    """
    values, slopes = (
        check_numbers("losses", losses, minimum=-math.inf),
        check_matrices("gradients", gradients),
    )
    least = check_real("least_loss", least_loss)
    if values.shape != slopes.shape[:1]:
        raise InvalidParameterError("losses", values.shape, f"one loss for each of {len(slopes)} gradients")
    if not np.all(values > least):
        raise InvalidParameterError("losses", losses, f"losses above least_loss={least:g}")
    ratios = np.square(slopes).sum(axis=1) / (2.0 * (values - least))
    return float(check_result(ratios.min(), "the ratio"))
