"""Spectral denoising: which singular values are detectable in noise, and the effect of better alignment.

**A low-rank gradient under Gaussian noise.** A matrix X of shape `rows` x `columns` = m x n with few large
singular values is released as X + sigma Z, where Z has i.i.d. standard normal entries. For large matrices, a
singular value above the detection threshold sigma (m n)^(1/4) is observed inflated to F(value), and its
singular vectors are rotated by a known angle. A singular value below the threshold is undetectable in the
noise, whose largest singular value is the noise edge sigma (sqrt m + sqrt n). Since inflation and angle are
known, `denoise` can shrink the singular values of the release to those that estimate X best.

`sigma` is the standard deviation of the noise in one entry of the given matrix. For a private mean gradient,
this is sigma C / B with the public denominator B that was actually used (spectral rmt.sigma_rel), which is
the square root of `Calibration.noise_variance`. All formulas are limits for large m and n, and are estimates
at finite size. For example, a pure-noise matrix exceeds its edge with a probability of about one in seven
(rmt.eq10_edge).

**Denoising** shrinks singular values and keeps the norm. The result depends only on the released matrix, so
it has no privacy cost. With the realised batch size in place of the public B, it would use private data
(rmt.eq2).

**Effect of better alignment.** Two statements hold. First, if no block's cosine with the target decreases, at
equal norm, the cosine of the whole does not decrease; without equal norms, it can. Second, one preconditioned
step on a quadratic makes at least the progress that `progress_bound` returns, which increases with the
cosine. The bound with p_min times the cosine does not hold in general (spectral rmt.propI1_bound), and a
larger cosine does not alone imply more progress if coordinates are scaled differently (rmt.corI2).
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpmech.analysis._arguments import check_matrices, check_numbers, check_result
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real, check_vector
from dpmech.numerics import FloatArray

# A value this close below the edge counts as the edge, up to rounding.
_EDGE_RTOL = 1e-12


def detection_threshold(sigma: float, rows: int, columns: int) -> float:
    """The singular value sigma (m n)^(1/4) above which a signal is detectable in the noise.

    Args:
        sigma: standard deviation of one entry's noise, >= 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        The threshold, in the unit of sigma. Exact in the limit of large m and n.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        spectral rmt.eq3_F.

    Examples:
        >>> from dpmech.analysis.spectral import detection_threshold
        >>> round(detection_threshold(0.1, 16, 768), 4)
        1.0529
    """
    sigma, m, n = _shape(sigma, rows, columns)
    return sigma * math.sqrt(math.sqrt(m) * math.sqrt(n))


def noise_edge(sigma: float, rows: int, columns: int) -> float:
    """The largest singular value of pure noise: sigma (sqrt m + sqrt n).

    Arguments and errors are those of `detection_threshold`. Exact only in the limit: at finite size, the
    largest singular value of pure noise exceeds it with a probability of 13 to 17 % (rmt.eq10_edge).

    References:
        spectral rmt.eq3_F, rmt.eq10_edge.
    """
    sigma, m, n = _shape(sigma, rows, columns)
    return sigma * (math.sqrt(m) + math.sqrt(n))


def inflated_singular_value(
    singular_value: npt.ArrayLike, sigma: float, rows: int, columns: int
) -> FloatArray:
    r"""F(x) = sqrt((x + sigma^2 n / x)(x + sigma^2 m / x)): the inflated value of a singular value x > 0.

    F decreases up to the detection threshold, where it equals the noise edge, and increases from there. Only
    the increasing branch is observable: see `observed_singular_value`.

    Args:
        singular_value: x > 0, a number or an array of any shape.
        sigma: standard deviation of one entry's noise, >= 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        F, of the shape of `singular_value`, always above it if sigma > 0. It is the limit of the observed
        value, not a lower bound on it (rmt.eq3_at_least).

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if F overflows.

    References:
        spectral rmt.eq3_F, rmt.eq7.
    """
    sigma, m, n = _shape(sigma, rows, columns)
    x = check_numbers("singular_value", singular_value, open_minimum=True)
    with np.errstate(over="ignore"):
        inflated = np.hypot(x, sigma * math.sqrt(n)) * (np.hypot(x, sigma * math.sqrt(m)) / x)
    return check_result(inflated, "the inflated singular value")


def observed_singular_value(
    singular_value: npt.ArrayLike, sigma: float, rows: int, columns: int
) -> FloatArray:
    """The limit of the noisy singular value: F above the detection threshold, otherwise the noise edge.

    Arguments and errors are those of `inflated_singular_value`, but zero is accepted.

    References:
        spectral rmt.eq3_F.
    """
    edge, threshold = noise_edge(sigma, rows, columns), detection_threshold(sigma, rows, columns)
    x = check_numbers("singular_value", singular_value)
    seen = x > threshold
    inflated = inflated_singular_value(np.where(seen, x, 1.0), sigma, rows, columns)
    return check_result(np.where(seen, inflated, edge), "the observed singular value")


def signal_singular_value(observed: npt.ArrayLike, sigma: float, rows: int, columns: int) -> FloatArray:
    """The inverse of F on its increasing branch: the signal's singular value for an observed one.

    With a = y^2 - sigma^2 (m + n) it is the larger root, x^2 = (a + sqrt(a^2 - 4 m n sigma^4)) / 2, that is
    x = (sqrt(y^2 - sigma^2 (sqrt m - sqrt n)^2) + sqrt(y^2 - edge^2)) / 2, which has no cancellation.

    Args:
        observed: y, not below `noise_edge`; a number or an array of any shape.
        sigma: standard deviation of one entry's noise, >= 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        x, of the shape of `observed`, in [`detection_threshold`, y].

    Raises:
        InvalidParameterError: if an argument is invalid, or a value below the noise edge: it has no preimage.

    References:
        spectral rmt.Finv.
    """
    edge = noise_edge(sigma, rows, columns)
    y = check_numbers("observed", observed)
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
        InvalidParameterError: if an argument is invalid.

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

    eta(y) = sqrt((y^2 - sigma^2 (m + n))^2 - 4 m n sigma^4) / y, which equals the product of the inverse
    F^-1(y) and the two cosines at it.

    Args:
        observed: y >= 0, singular values of the noisy matrix; a number or an array of any shape.
        sigma: standard deviation of one entry's noise, >= 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        eta, in [0, y], of the shape of `observed`; equal to y if sigma is 0.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        spectral rmt.eq8_9.
    """
    y = check_numbers("observed", observed)
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
    x = check_numbers("singular_value", singular_value)
    seen = x > threshold
    safe = np.where(seen, x, max(threshold, 1.0))
    ratio = (threshold / safe) ** 2
    tilted = (1.0 - ratio) * (1.0 + ratio) / (1.0 + own * (sigma / safe) ** 2)
    return check_result(np.where(seen, tilted, 0.0), "the squared cosine")


def optimal_estimate(matrix: npt.ArrayLike, sigma: float) -> FloatArray:
    """The estimate of the signal: singular values above the noise edge are shrunk, the others dropped.

    Args:
        matrix: the noisy matrix, shape (m, n).
        sigma: standard deviation of one entry's noise, >= 0.

    Returns:
        Shape (m, n); zero if nothing exceeds the edge. It has the smallest mean squared error in the limit.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        spectral rmt.eq8_9. The sum is over all values above the edge, not over the rank of the signal,
        which is unknown (rmt.eq8_rank).
    """
    noisy = check_matrices("matrix", matrix)
    left, values, right = np.linalg.svd(noisy, full_matrices=False)
    shrunk = shrunk_singular_value(values, sigma, *noisy.shape)
    estimate: FloatArray = (left * shrunk) @ right
    return estimate


@dataclasses.dataclass(frozen=True, eq=False)
class Denoised:
    """The result of `denoise`.

    Attributes:
        matrix: the result, of the shape and the Frobenius norm of the input.
        applied: False if the input was returned unchanged.
        rank: number of singular values kept; 0 if the input was returned unchanged.
        top_ratio: the largest singular value over the noise edge; infinite if sigma is 0.
    """

    matrix: FloatArray
    applied: bool
    rank: int
    top_ratio: float


def denoise(matrix: npt.ArrayLike, sigma: float, *, threshold: float = 1.02) -> Denoised:
    """The optimal estimate at the norm of the input, or the input if no signal is detected.

    A matrix whose largest singular value is below `threshold` times the noise edge is returned bit for bit.
    Any other matrix is replaced by its `optimal_estimate`, rescaled to the original norm, because blocks
    whose cosine increases at equal norm increase the cosine of the whole gradient (rmt.thmE1).

    It uses only the released matrix, so it has no privacy cost. It helps if a signal is clearly above the
    edge, and can hurt just above it: on a 16 x 768 matrix with four signal values near 1.1 times the
    detection threshold, the mean change of the cosine is -0.017 (rmt.eq10_positive).

    Args:
        matrix: the noisy matrix, shape (m, n).
        sigma: standard deviation of one entry's noise, >= 0.
        threshold: kappa >= 1. At 1.02, the false-positive rate on pure noise of shape 16 x 768 is 0.8 %.

    Returns:
        A `Denoised`.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        spectral rmt.eq10.

    Examples:
        >>> import numpy as np
        >>> from dpmech.analysis.spectral import denoise
        >>> result = denoise(np.diag([3.0, 0.1]), 0.5)
        >>> result.applied, result.rank, round(float(np.linalg.norm(result.matrix)), 6)
        (True, 1, 3.001666)
    """
    noisy = check_matrices("matrix", matrix)
    threshold = check_real("threshold", threshold, minimum=1.0)
    edge = noise_edge(sigma, *noisy.shape)
    left, values, right = np.linalg.svd(noisy, full_matrices=False)
    top = float(values[0])
    ratio = top / edge if edge > 0.0 else math.inf
    shrunk = shrunk_singular_value(values, sigma, *noisy.shape)
    size = float(np.linalg.norm(shrunk))
    # At threshold 1 the largest value can be the edge: no value is kept, and nothing can be rescaled.
    if top < threshold * edge or size == 0.0 or edge == 0.0:
        return Denoised(noisy, applied=False, rank=0, top_ratio=ratio)
    scaled = shrunk * (float(np.linalg.norm(values)) / size)
    kept = int(np.count_nonzero(shrunk))
    return Denoised((left * scaled) @ right, applied=True, rank=kept, top_ratio=ratio)


def predicted_alignment(
    singular_values: npt.ArrayLike, sigma: float, rows: int, columns: int
) -> tuple[float, float]:
    """Expected cosine with the signal, of the noisy matrix and of its optimal estimate.

    For the noisy matrix it is ||X|| / sqrt(||X||^2 + sigma^2 m n). For the estimate it is ||eta|| / ||X||,
    eta the shrunk observed values, because shrinking multiplies each value by its two cosines.

    Args:
        singular_values: those of the signal, shape (r,), r <= min(m, n), distinct, not all zero.
        sigma: standard deviation of one entry's noise, >= 0.
        rows: m >= 1.
        columns: n >= 1.

    Returns:
        (noisy, denoised), each in [0, 1]. Estimates, which are exact in the limit of large m and n.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        spectral rmt.eq4, rmt.eq5, rmt.eq8_9.
    """
    sigma = check_real("sigma", sigma, minimum=0.0)
    m, n = check_integer("rows", rows, minimum=1), check_integer("columns", columns, minimum=1)
    values = np.atleast_1d(check_numbers("singular_values", singular_values))
    if values.ndim != 1 or values.size > min(m, n) or not np.any(values):
        accepted = f"a vector of at most {min(m, n)} values that are not all zero"
        raise InvalidParameterError("singular_values", singular_values, accepted)
    size = float(np.linalg.norm(values))
    left = left_cosine_squared(values, sigma, m, n)
    right = right_cosine_squared(values, sigma, m, n)
    kept = float(np.linalg.norm(values * np.sqrt(left * right)))
    return size / math.hypot(size, sigma * math.sqrt(m * n)), kept / size


_NORM_RTOL = 1e-9


def cosine(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Cosine of the angle between two arrays of the same shape, read as vectors.

    Args:
        x: any shape, not all zero.
        y: the same shape, not all zero.

    Returns:
        In [-1, 1]. Exact, up to rounding.

    Raises:
        InvalidParameterError: if a vector is zero, or the shapes differ.

    Examples:
        >>> from dpmech.analysis.spectral import cosine
        >>> cosine([3.0, 4.0], [4.0, 3.0])
        0.96
    """
    first = _unit("x", _vector("x", x))
    second = _unit("y", _vector("y", y))
    _check_sizes(first, second)
    return float(np.clip(first @ second, -1.0, 1.0))


def block_cosines(blocks: Sequence[npt.ArrayLike], target: Sequence[npt.ArrayLike]) -> FloatArray:
    """Cosine of each block, shape (c,); never NaN: a block that is zero in either argument counts as 0.

    Args:
        blocks: c arrays.
        target: c arrays of the same shapes.

    Raises:
        InvalidParameterError: if the blocks do not match.

    References:
        spectral rmt.thmE1.
    """
    pairs = _pairs(blocks, target)
    return np.array([cosine(x, y) if np.any(x) and np.any(y) else 0.0 for x, y in pairs])


def raises_alignment(
    before: Sequence[npt.ArrayLike], after: Sequence[npt.ArrayLike], target: Sequence[npt.ArrayLike]
) -> bool:
    """Whether the theorem applies that implies cos(after, target) >= cos(before, target).

    Its hypotheses: no block's cosine with the target decreases, and each block keeps its norm, up to a common
    positive factor. Zero blocks of the target or of `before` are exempt from the first. The conclusion also
    holds for negative cosines. False does not mean that the alignment decreases, only that nothing is proved.

    Args:
        before: c arrays.
        after: c arrays of the same shapes.
        target: c arrays of the same shapes.

    Returns:
        True if the hypotheses hold: the first exactly, the norms to 1e-9 relative.

    Raises:
        InvalidParameterError: if the blocks do not match, or one of the three is all zero.

    References:
        spectral rmt.thmE1.
    """
    pairs, targets = _pairs(before, after), [goal for _, goal in _pairs(after, target)]
    norms = np.array([[np.linalg.norm(old), np.linalg.norm(new)] for old, new in pairs])
    for name, parts in (("before", norms[:, 0]), ("after", norms[:, 1]), ("target", targets)):
        if not any(np.any(part) for part in parts):
            raise InvalidParameterError(name, "zeros in every block", "blocks of which one is not zero")
    factor = np.linalg.norm(norms[:, 1]) / np.linalg.norm(norms[:, 0])
    if not np.allclose(norms[:, 1], factor * norms[:, 0], rtol=_NORM_RTOL, atol=0.0):
        return False
    for (old, new), goal in zip(pairs, targets, strict=True):
        if np.any(old) and np.any(goal) and cosine(new, goal) < cosine(old, goal):
            return False
    return True


def quadratic_progress(
    gradient: npt.ArrayLike,
    direction: npt.ArrayLike,
    hessian: npt.ArrayLike,
    preconditioner: npt.ArrayLike,
    learning_rate: float,
) -> float:
    """The decrease of a quadratic in one step of -lr P s: lr g^T P s - (lr^2 / 2) s^T P H P s.

    Args:
        gradient: g at the start of the step, shape (d,).
        direction: s, shape (d,).
        hessian: H, shape (d, d); only its symmetric part counts.
        preconditioner: the diagonal of P, shape (d,), all > 0.
        learning_rate: lr > 0.

    Returns:
        f(x) - f(x - lr P s), in the unit of f. Exact, up to rounding.

    Raises:
        InvalidParameterError: if an argument is invalid, or shapes that differ.

    References:
        spectral rmt.propI1_identity; rmt.sec3_1_descent is its limit at a small learning rate.
    """
    g, s = check_vector("gradient", gradient), check_vector("direction", direction)
    scale, curvature = check_vector("preconditioner", preconditioner), check_matrices("hessian", hessian)
    rate = check_real("learning_rate", learning_rate, minimum=0.0, open_minimum=True)
    if np.any(scale <= 0.0):
        raise InvalidParameterError("preconditioner", preconditioner, "positive numbers")
    for array in (s, scale):
        _check_sizes(g, array)
    if curvature.shape != (g.size, g.size):
        raise InvalidParameterError("hessian", curvature.shape, f"a matrix of shape {(g.size, g.size)}")
    step = scale * s
    return float(rate * (g @ step) - 0.5 * rate**2 * (step @ curvature @ step))


def progress_bound(
    alignment: float,
    gradient_norm: float,
    direction_norm: float,
    *,
    learning_rate: float,
    scale_min: float,
    scale_max: float,
    curvature_max: float,
) -> float:
    """A lower bound on `quadratic_progress` from the cosine alone, for any P between two scales.

    lr ||g|| ||s|| [(p_min + p_max) / 2 cos - (p_max - p_min) / 2] - (lr^2 / 2) lambda_max p_max^2 ||s||^2.
    At p_min = p_max, this is the textbook bound; otherwise it is smaller, which is necessary.

    Args:
        alignment: cos(g, s), in [-1, 1].
        gradient_norm: ||g|| >= 0.
        direction_norm: ||s|| >= 0.
        learning_rate: lr > 0.
        scale_min: p_min > 0, the smallest entry of P.
        scale_max: p_max >= p_min, the largest.
        curvature_max: the largest eigenvalue of H, >= 0.

    Returns:
        A lower bound, attained if the entries of g and s have proportional sizes. It increases with the
        cosine at the rate lr ||g|| ||s|| (p_min + p_max) / 2.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        spectral rmt.propI1_bound (corrected), rmt.corI2 (with that bound).
    """
    aligned = check_real("alignment", alignment, minimum=-1.0, maximum=1.0)
    steepness = check_real("gradient_norm", gradient_norm, minimum=0.0)
    size = check_real("direction_norm", direction_norm, minimum=0.0)
    rate = check_real("learning_rate", learning_rate, minimum=0.0, open_minimum=True)
    low = check_real("scale_min", scale_min, minimum=0.0, open_minimum=True)
    high = check_real("scale_max", scale_max, minimum=low)
    curvature = check_real("curvature_max", curvature_max, minimum=0.0)
    first = steepness * size * (0.5 * (low + high) * aligned - 0.5 * (high - low))
    return rate * first - 0.5 * rate**2 * curvature * high**2 * size**2


def steps_to_match(curve: npt.ArrayLike, target: float, *, steps: npt.ArrayLike | None = None) -> float:
    """The number of steps after which a curve first reaches a value, linear between its points.

    The speed-up in Table 1 of the paper is 1 - steps_to_match(ours, value of theirs at step T) / T.
    `dpmech.ledgers.epsilon_saved` computes the eps that it saves at the same noise.

    Args:
        curve: a metric for which larger values are better (for a loss, its negative), shape (k,).
        target: the value to reach.
        steps: at which the curve was measured, increasing, shape (k,); None for 1, 2, ..., k.

    Returns:
        The number of steps, in units of `steps`, or math.inf if the curve remains below the target. If the
        first value is not below the target, this is the first step. Exact for the line through the points.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        spectral rmt.tab1_speedup.

    Examples:
        >>> from dpmech.analysis.spectral import steps_to_match
        >>> steps_to_match([50.0, 70.0, 80.0], 75.0, steps=[100, 200, 300])
        250.0
    """
    values, goal = check_numbers("curve", curve, minimum=-np.inf), check_real("target", target)
    if values.ndim != 1:
        raise InvalidParameterError("curve", curve, "a one-dimensional sequence")
    places = np.arange(1.0, len(values) + 1.0) if steps is None else check_numbers("steps", steps)
    if places.shape != values.shape or not np.all(np.diff(places) > 0.0):
        raise InvalidParameterError("steps", steps, f"{len(values)} increasing numbers of steps")
    reached = np.flatnonzero(values >= goal)
    if reached.size == 0:
        return math.inf
    first = int(reached[0])
    if first == 0:
        return float(places[0])
    low, high = values[first - 1 : first + 1]
    return float(places[first - 1] + (places[first] - places[first - 1]) * ((goal - low) / (high - low)))


def _vector(name: str, value: npt.ArrayLike) -> FloatArray:
    return check_vector(name, np.ravel(np.asarray(value)))


def _unit(name: str, x: FloatArray) -> FloatArray:
    # Dividing by the largest entry first prevents overflow and underflow of the square.
    largest = np.max(np.abs(x))
    if largest == 0.0:
        raise InvalidParameterError(name, "zeros", "a vector that is not zero")
    scaled = x / largest
    unit: FloatArray = scaled / np.linalg.norm(scaled)
    return unit


def _check_sizes(x: FloatArray, y: FloatArray) -> None:
    if x.size != y.size:
        raise InvalidParameterError("sizes", (x.size, y.size), "equal")


def _pairs(
    first: Sequence[npt.ArrayLike], second: Sequence[npt.ArrayLike]
) -> list[tuple[FloatArray, FloatArray]]:
    if len(first) != len(second) or len(first) == 0:
        raise InvalidParameterError("numbers of blocks", (len(first), len(second)), "equal and positive")
    pairs = [(_vector("block", x), _vector("block", y)) for x, y in zip(first, second, strict=True)]
    for x, y in pairs:
        _check_sizes(x, y)
    return pairs
