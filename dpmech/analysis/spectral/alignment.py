"""Why a better aligned gradient helps: cosines of blocks and of the whole, and the progress of one step.

Two statements hold. Blocks whose cosine with the target does not fall, at equal norm, make a whole whose
cosine does not fall; without equal norms it can. And one preconditioned step on a quadratic makes at least
the progress that `progress_bound` gives, which grows with the cosine. The bound with p_min times the
cosine does not hold in general (spectral rmt.propI1_bound), and a larger cosine does not by itself
mean more progress once coordinates are scaled differently (rmt.corI2).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpmech.analysis._arguments import check_matrices
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real, check_vector
from dpmech.numerics import FloatArray

__all__ = ["block_cosines", "cosine", "progress_bound", "quadratic_progress", "raises_alignment"]

_NORM_RTOL = 1e-9


def cosine(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Cosine of the angle between two arrays of one shape, read as vectors.

    Args:
        x: any shape, not all zero.
        y: the same shape, not all zero.

    Returns:
        In [-1, 1]. Exact, up to rounding.

    Raises:
        InvalidParameterError: on a zero vector, or shapes that differ.

    Examples:
        >>> from dpmech.analysis.spectral.alignment import cosine
        >>> cosine([3.0, 4.0], [4.0, 3.0])
        0.96
    """
    first = _unit("x", _vector("x", x))
    second = _unit("y", _vector("y", y))
    _check_sizes(first, second)
    return float(np.clip(first @ second, -1.0, 1.0))


def block_cosines(blocks: Sequence[npt.ArrayLike], target: Sequence[npt.ArrayLike]) -> FloatArray:
    """Cosine block by block, shape (c,); NaN-free: a block that is zero on either side counts as 0.

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
    """Whether the theorem applies that makes cos(after, target) >= cos(before, target).

    Its hypotheses: no block's cosine with the target falls, and each block keeps its norm, up to one common
    positive factor. Zero blocks of the target or of `before` are exempt from the first. The conclusion holds
    for negative cosines too. False does not mean that the alignment falls, only that nothing is promised.

    Args:
        before: c arrays.
        after: c arrays of the same shapes.
        target: c arrays of the same shapes.

    Returns:
        True where the hypotheses hold: the first exactly, the norms to 1e-9 relative.

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
    """What a quadratic falls by in one step of -lr P s: lr g^T P s - (lr^2 / 2) s^T P H P s.

    Args:
        gradient: g at the start of the step, shape (d,).
        direction: s, shape (d,).
        hessian: H, shape (d, d); only its symmetric part counts.
        preconditioner: the diagonal of P, shape (d,), all > 0.
        learning_rate: lr > 0.

    Returns:
        f(x) - f(x - lr P s), in the unit of f. Exact, up to rounding.

    Raises:
        InvalidParameterError: on a bad argument, or shapes that differ.

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
    """A lower bound of `quadratic_progress` from the cosine alone, for any P between two scales.

    lr ||g|| ||s|| [(p_min + p_max) / 2 cos - (p_max - p_min) / 2] - (lr^2 / 2) lambda_max p_max^2 ||s||^2.
    At p_min = p_max it is the textbook bound. In between it falls short of it, as it must.

    Args:
        alignment: cos(g, s), in [-1, 1].
        gradient_norm: ||g|| >= 0.
        direction_norm: ||s|| >= 0.
        learning_rate: lr > 0.
        scale_min: p_min > 0, the smallest entry of P.
        scale_max: p_max >= p_min, the largest.
        curvature_max: the largest eigenvalue of H, >= 0.

    Returns:
        A lower bound, met where the entries of g and s have proportional sizes. It grows with the cosine at
        the rate lr ||g|| ||s|| (p_min + p_max) / 2.

    Raises:
        InvalidParameterError: on a bad argument.

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


def _vector(name: str, value: npt.ArrayLike) -> FloatArray:
    return check_vector(name, np.ravel(np.asarray(value)))


def _unit(name: str, x: FloatArray) -> FloatArray:
    # Dividing by the largest entry first keeps the square from overflowing or vanishing.
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
