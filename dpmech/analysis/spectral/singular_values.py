"""A low-rank gradient under Gaussian noise: what its singular values and vectors become.

A matrix of `rows` x `columns` = m x n with few large singular values is released as X + sigma Z, Z with
i.i.d. standard normal entries. For large matrices a singular value above the detection threshold
sigma (m n)^(1/4) is seen inflated to F(value), its singular vectors tilted by a known angle; one below it
drowns in the noise, whose own largest singular value is the noise edge sigma (sqrt m + sqrt n). Knowing
both, the singular values of the release can be shrunk to the ones that estimate X best: `denoising` does.

`sigma` is the standard deviation of one entry of the matrix that is looked at: for a private mean gradient
that is sigma C / B with the public normaliser B that was really used (spectral rmt.sigma_rel), the square
root of `Calibration.noise_variance`. All formulas are limits for large m and n, hence estimates at finite
size: a pure-noise matrix passes its edge about one time in seven (rmt.eq10_edge).
"""

import math

import numpy as np
import numpy.typing as npt

from dpmech.analysis._arguments import check_nonnegative, check_result
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

__all__ = [
    "detection_threshold",
    "inflated_singular_value",
    "left_cosine_squared",
    "noise_edge",
    "observed_singular_value",
    "right_cosine_squared",
    "shrunk_singular_value",
    "signal_singular_value",
]

# A value this close below the edge is the edge, up to rounding.
_EDGE_RTOL = 1e-12


def detection_threshold(sigma: float, rows: int, columns: int) -> float:
    """The singular value sigma (m n)^(1/4) above which a signal shows in the noise.

    Args:
        sigma: standard deviation of one entry's noise, >= 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        The threshold, in the unit of sigma. Exact in the limit of large m and n.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        spectral rmt.eq3_F.

    Examples:
        >>> from dpmech.analysis.spectral.singular_values import detection_threshold
        >>> round(detection_threshold(0.1, 16, 768), 4)
        1.0529
    """
    sigma, m, n = _shape(sigma, rows, columns)
    return sigma * math.sqrt(math.sqrt(m) * math.sqrt(n))


def noise_edge(sigma: float, rows: int, columns: int) -> float:
    """Where the singular values of pure noise end: sigma (sqrt m + sqrt n).

    Arguments and errors are those of `detection_threshold`. Exact in the limit only: at finite size the
    largest singular value of pure noise exceeds it with a probability of 13 to 17 % (rmt.eq10_edge).

    References:
        spectral rmt.eq3_F, rmt.eq10_edge.
    """
    sigma, m, n = _shape(sigma, rows, columns)
    return sigma * (math.sqrt(m) + math.sqrt(n))


def inflated_singular_value(
    singular_value: npt.ArrayLike, sigma: float, rows: int, columns: int
) -> FloatArray:
    r"""F(x) = sqrt((x + sigma^2 n / x)(x + sigma^2 m / x)): what a singular value x > 0 is inflated to.

    F falls up to the detection threshold, where it meets the noise edge, and rises from there. Only the
    rising branch is what one observes: see `observed_singular_value`.

    Args:
        singular_value: x > 0, a number or an array of any shape.
        sigma: standard deviation of one entry's noise, >= 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        F, of the shape of `singular_value`, always above it where sigma > 0. It is the limit of the
        observed value, not a lower bound of it (rmt.eq3_at_least).

    Raises:
        InvalidParameterError: on a bad argument.
        NumericalError: if F overflows.

    References:
        spectral rmt.eq3_F, rmt.eq7.
    """
    sigma, m, n = _shape(sigma, rows, columns)
    x = check_nonnegative("singular_value", singular_value, open_minimum=True)
    with np.errstate(over="ignore"):
        inflated = np.hypot(x, sigma * math.sqrt(n)) * (np.hypot(x, sigma * math.sqrt(m)) / x)
    return check_result(inflated, "the inflated singular value")


def observed_singular_value(
    singular_value: npt.ArrayLike, sigma: float, rows: int, columns: int
) -> FloatArray:
    """The limit of the noisy singular value: F above the detection threshold, the noise edge below.

    Arguments and errors are those of `inflated_singular_value`, but zero is accepted.

    References:
        spectral rmt.eq3_F.
    """
    edge, threshold = noise_edge(sigma, rows, columns), detection_threshold(sigma, rows, columns)
    x = check_nonnegative("singular_value", singular_value)
    seen = x > threshold
    inflated = inflated_singular_value(np.where(seen, x, 1.0), sigma, rows, columns)
    return check_result(np.where(seen, inflated, edge), "the observed singular value")


def signal_singular_value(observed: npt.ArrayLike, sigma: float, rows: int, columns: int) -> FloatArray:
    """The inverse of F on its rising branch: the singular value behind an observed one.

    With a = y^2 - sigma^2 (m + n) it is the larger root, x^2 = (a + sqrt(a^2 - 4 m n sigma^4)) / 2, that is
    x = (sqrt(y^2 - sigma^2 (sqrt m - sqrt n)^2) + sqrt(y^2 - edge^2)) / 2, which loses no digits.

    Args:
        observed: y, not below `noise_edge`; a number or an array of any shape.
        sigma: standard deviation of one entry's noise, >= 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        x, of the shape of `observed`, in [`detection_threshold`, y].

    Raises:
        InvalidParameterError: on a bad argument, or a value below the noise edge: it has no preimage.

    References:
        spectral rmt.Finv.
    """
    edge = noise_edge(sigma, rows, columns)
    y = check_nonnegative("observed", observed)
    if np.any(y < edge * (1.0 - _EDGE_RTOL)):
        raise InvalidParameterError("observed", observed, f"singular values at or above the edge {edge:g}")
    below_gap, below_edge = _excesses(y, sigma, rows, columns)
    return check_result(0.5 * (below_gap + below_edge), "the singular value of the signal")


def left_cosine_squared(singular_value: npt.ArrayLike, sigma: float, rows: int, columns: int) -> FloatArray:
    """Squared cosine between a left singular vector (in R^m) of the signal and its noisy counterpart.

    (x^4 - m n sigma^4) / (x^4 + m x^2 sigma^2) above the detection threshold, 0 at and below it. Singular
    values of the signal must be distinct. The cosine with the other noisy vectors tends to 0.

    Args:
        singular_value: x >= 0 of the signal, a number or an array of any shape.
        sigma: standard deviation of one entry's noise, >= 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        In [0, 1], of the shape of `singular_value`. Exact in the limit of large m and n.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        spectral rmt.eq4, rmt.eq6.
    """
    return _cosine_squared(singular_value, sigma, rows, columns, own=rows)


def right_cosine_squared(singular_value: npt.ArrayLike, sigma: float, rows: int, columns: int) -> FloatArray:
    """Squared cosine of a right singular vector (in R^n): `left_cosine_squared` of the transpose.

    References:
        spectral rmt.eq5, rmt.eq6.
    """
    return _cosine_squared(singular_value, sigma, rows, columns, own=columns)


def shrunk_singular_value(observed: npt.ArrayLike, sigma: float, rows: int, columns: int) -> FloatArray:
    """The singular value that estimates the signal best in mean squared error, 0 up to the noise edge.

    eta(y) = sqrt((y^2 - sigma^2 (m + n))^2 - 4 m n sigma^4) / y, which is identically the product of the
    inverted value F^-1(y) and the two cosines at it.

    Args:
        observed: y >= 0, singular values of the noisy matrix; a number or an array of any shape.
        sigma: standard deviation of one entry's noise, >= 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        eta, in [0, y], of the shape of `observed`; equal to y where sigma is 0.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        spectral rmt.eq8_9.
    """
    y = check_nonnegative("observed", observed)
    edge = noise_edge(sigma, rows, columns)
    kept = y > edge
    safe = np.where(kept, y, max(edge, 1.0))
    below_gap, below_edge = _excesses(safe, sigma, rows, columns)
    return check_result(np.where(kept, below_gap * (below_edge / safe), 0.0), "the shrunk singular value")


def _shape(sigma: float, rows: int, columns: int) -> tuple[float, int, int]:
    checked = check_real("sigma", sigma, minimum=0.0)
    return checked, check_integer("rows", rows, minimum=1), check_integer("columns", columns, minimum=1)


def _excesses(y: FloatArray, sigma: float, m: int, n: int) -> tuple[FloatArray, FloatArray]:
    """sqrt(y^2 - sigma^2 (sqrt m - sqrt n)^2) and sqrt(y^2 - edge^2), 0 where rounding makes it negative."""
    gap = sigma * abs(math.sqrt(m) - math.sqrt(n))
    edge = sigma * (math.sqrt(m) + math.sqrt(n))
    roots = [np.sqrt(np.maximum(y - end, 0.0)) * np.sqrt(y + end) for end in (gap, edge)]
    return roots[0], roots[1]


def _cosine_squared(
    singular_value: npt.ArrayLike, sigma: float, rows: int, columns: int, *, own: int
) -> FloatArray:
    threshold = detection_threshold(sigma, rows, columns)
    x = check_nonnegative("singular_value", singular_value)
    seen = x > threshold
    safe = np.where(seen, x, max(threshold, 1.0))
    ratio = (threshold / safe) ** 2
    tilted = (1.0 - ratio) * (1.0 + ratio) / (1.0 + own * (sigma / safe) ** 2)
    return check_result(np.where(seen, tilted, 0.0), "the squared cosine")
