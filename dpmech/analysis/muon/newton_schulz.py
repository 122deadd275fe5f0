r"""Newton-Schulz orthogonalization as Muon uses it: the map, and how far it is from the polar factor.

p_k is the Taylor polynomial of x^(-1/2) at 1 of degree k. Iterating Y <- p_k(Y Y^T) Y drives every singular
value in (0, 1] to 1, so the result tends to the polar factor U V^T of what it started from. The start is the
matrix over max(1, Frobenius norm): a matrix of norm below 1 is *not* rescaled, so the map is not scale
invariant (muon muon.scale). A small momentum then comes out far from orthogonal.

Everything depends on the smallest non-zero singular value x of the start: after q steps the error in
operator norm is at most eps_q = 1 - sqrt(1 - (1 - x^2)^((k + 1)^q)).

The quintic that Muon implementations commonly use, with coefficients 3.4445, -4.7750 and 2.0315, is no p_k:
its singular values pass 1, and nothing here covers it (muon.kappa_unstated).
"""

import math

import numpy as np
import numpy.typing as npt

from dpmech.analysis._arguments import check_matrices, check_nonnegative, check_result
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer
from dpmech.numerics import FloatArray

__all__ = [
    "newton_schulz",
    "nuclear_error",
    "polar_factor",
    "polynomial",
    "polynomial_coefficients",
    "quality_factor",
    "smallest_start_value",
    "spectral_error",
]

# Degrees and step counts past these change no digit of any result.
_MAX_DEGREE = 64
_MAX_STEPS = 64


def polynomial_coefficients(degree: int) -> FloatArray:
    """Coefficients of p_k in powers of (1 - x): binomial(2 s, s) / 4^s, s = 0..degree.

    Args:
        degree: k in [1, 64].

    Returns:
        Shape (k + 1,): 1, 1/2, 3/8, 5/16, ... Exact, up to rounding.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        muon muon.pkappa.

    Examples:
        >>> from dpmech.analysis.muon.newton_schulz import polynomial_coefficients
        >>> polynomial_coefficients(3)
        array([1.    , 0.5   , 0.375 , 0.3125])
    """
    degree = check_integer("degree", degree, minimum=1, maximum=_MAX_DEGREE)
    return np.array([math.comb(2 * s, s) / 4**s for s in range(degree + 1)])


def polynomial(values: npt.ArrayLike, degree: int) -> FloatArray:
    """p_k at squared singular values in [0, 1]; 0 <= 1 - x p_k(x)^2 <= (1 - x)^(k + 1) there.

    Args:
        values: in [0, 1], a number or an array of any shape.
        degree: k in [1, 64].

    Returns:
        p_k, of the shape of `values`, from 1 at 1 up to p_k(0). Exact, up to rounding.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        muon muon.pkappa.
    """
    gap = 1.0 - check_nonnegative("values", values, maximum=1.0)
    result = np.zeros_like(gap)
    for coefficient in polynomial_coefficients(degree)[::-1]:
        result = result * gap + coefficient
    return check_result(result, "the Newton-Schulz polynomial")


def newton_schulz(
    matrix: npt.ArrayLike, *, degree: int = 2, steps: int = 5, scale_up: bool = False
) -> FloatArray:
    """Take q Newton-Schulz steps from the normalised matrix, in float64.

    Args:
        matrix: shape (m, n), or a stack of shape (..., m, n); the work is done on the shorter side.
        degree: k in [1, 64].
        steps: q in [0, 64].
        scale_up: divide by the Frobenius norm also where it is below 1. False is the paper's algorithm;
            True makes the map scale invariant.

    Returns:
        The shape of `matrix`; operator norm at most 1, up to rounding. Zero stays zero.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        muon muon.alg1, muon.scale.
    """
    array = check_matrices("matrix", matrix, stacked=True)
    steps = check_integer("steps", steps, minimum=0, maximum=_MAX_STEPS)
    coefficients = polynomial_coefficients(degree)
    tall = array.shape[-2] > array.shape[-1]
    current = _start(np.swapaxes(array, -1, -2) if tall else array, scale_up=scale_up)
    identity = np.eye(current.shape[-2])
    for _ in range(steps):
        gap = identity - current @ np.swapaxes(current, -1, -2)
        factor = coefficients[-1] * identity
        for coefficient in coefficients[-2::-1]:
            factor = factor @ gap + coefficient * identity
        current = factor @ current
    return np.swapaxes(current, -1, -2).copy() if tall else current


def polar_factor(matrix: npt.ArrayLike) -> FloatArray:
    """U_r V_r^T over the r non-zero singular values: the partial isometry nearest to the matrix.

    Singular values up to max(m, n) machine epsilons of the largest count as zero.

    Args:
        matrix: shape (m, n).

    Returns:
        Shape (m, n); zero for a zero matrix. <M, polar> is the nuclear norm of M.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        muon muon.lem3_3.
    """
    array = check_matrices("matrix", matrix)
    left, values, right = np.linalg.svd(array, full_matrices=False)
    rank = _rank(values, array.shape)
    factor: FloatArray = left[:, :rank] @ right[:rank]
    return factor


def smallest_start_value(matrix: npt.ArrayLike, *, scale_up: bool = False) -> float:
    """x: the smallest non-zero singular value of the matrix that Newton-Schulz starts from.

    delta_0 = 1 - x^2 is the distance of the start from its projector, always below 1 for a non-zero matrix
    (muon muon.lem3_3), though it can be as close to 1 as you like (muon.lem3_3_deterministic).

    Args:
        matrix: shape (m, n), not zero.
        scale_up: as for `newton_schulz`.

    Returns:
        In (0, 1]. Values up to max(m, n) machine epsilons of the largest count as zero.

    Raises:
        InvalidParameterError: on a bad argument or a zero matrix.
    """
    array = check_matrices("matrix", matrix)
    values = np.asarray(np.linalg.svd(_start(array, scale_up=scale_up), compute_uv=False), dtype=np.float64)
    rank = _rank(values, array.shape)
    if rank == 0:
        raise InvalidParameterError("matrix", matrix, "a matrix that is not zero")
    return min(float(values[rank - 1]), 1.0)


def spectral_error(start_value: npt.ArrayLike, degree: int, steps: int) -> FloatArray:
    """eps_q = 1 - sqrt(1 - (1 - x^2)^((k + 1)^q)): operator-norm distance to the polar factor, at most.

    Args:
        start_value: x in (0, 1], see `smallest_start_value`; a number or an array.
        degree: k in [1, 64].
        steps: q in [0, 64].

    Returns:
        In [0, 1), of the shape of `start_value`. An upper bound; exact at q = 0. It rounds to 1 where x is
        so small that q steps do nothing.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        muon muon.lem3_3.
    """
    log_residual = _log_residual(start_value, degree, steps)
    residual = np.exp(log_residual)
    # 1 - sqrt(1 - d) written without the difference, so that a small error keeps its digits.
    return check_result(residual / (1.0 + np.sqrt(-np.expm1(log_residual))), "eps_q")


def quality_factor(start_value: npt.ArrayLike, degree: int, steps: int) -> FloatArray:
    """chi_q = 1 / (1 - eps_q), the factor that finitely many steps cost in the stationarity bound.

    It tends to 1 doubly exponentially in q for a fixed x, but square layers under noise start from x so
    small that it is in the thousands at q = 5 (muon muon.lem3_3_practice).

    Arguments and errors are those of `spectral_error`. Exact in the given x; returns at least 1.

    Raises:
        NumericalError: if it overflows.

    References:
        muon muon.lem3_3, muon.thm3_4.

    Examples:
        >>> from dpmech.analysis.muon.newton_schulz import quality_factor
        >>> round(float(quality_factor(3.6e-5, 2, 5)))
        1782
    """
    log_residual = _log_residual(start_value, degree, steps)
    with np.errstate(divide="ignore"):
        return check_result(1.0 / np.sqrt(-np.expm1(log_residual)), "chi_q")


def nuclear_error(matrix: npt.ArrayLike, output: npt.ArrayLike) -> float:
    """1 - <M, O> / ||M||_*: the error weighted by singular values, a far smaller eps_q for the same proof.

    The proof of the stationarity bound uses the operator-norm error only through <M, O> >= (1 - eps) ||M||_*,
    which this satisfies with equality (muon muon.lemB4). On a square layer under noise it is about 0.27 where
    `spectral_error` is 0.999.

    Args:
        matrix: M, shape (m, n), not zero.
        output: O, shape (m, n).

    Returns:
        A number at most 1 + ||O||_op, in [0, 1] for a Newton-Schulz output. Exact, up to rounding.

    Raises:
        InvalidParameterError: on a zero matrix, or shapes that differ.
    """
    array, direction = check_matrices("matrix", matrix), check_matrices("output", output)
    if array.shape != direction.shape:
        raise InvalidParameterError("output", direction.shape, f"a matrix of shape {array.shape}")
    nuclear = float(np.linalg.svd(array, compute_uv=False).sum())
    if nuclear == 0.0:
        raise InvalidParameterError("matrix", matrix, "a matrix that is not zero")
    return 1.0 - float(np.sum(array * direction)) / nuclear


def _start(array: FloatArray, *, scale_up: bool) -> FloatArray:
    norms = np.linalg.norm(array, axis=(-2, -1), keepdims=True)
    if not np.all(np.isfinite(norms)):
        raise NumericalError("the Frobenius norm of the matrix left the range of float64")
    floor = np.where(norms > 0.0, norms, 1.0) if scale_up else np.maximum(norms, 1.0)
    start: FloatArray = array / floor
    return start


def _rank(values: FloatArray, shape: tuple[int, ...]) -> int:
    return int(np.count_nonzero(values > max(shape) * np.finfo(np.float64).eps * values[0]))


def _log_residual(start_value: npt.ArrayLike, degree: int, steps: int) -> FloatArray:
    """log((1 - x^2)^((k + 1)^q)), -inf at x = 1; log1p keeps the digits of a small x."""
    x = check_nonnegative("start_value", start_value, maximum=1.0, open_minimum=True)
    degree = check_integer("degree", degree, minimum=1, maximum=_MAX_DEGREE)
    steps = check_integer("steps", steps, minimum=0, maximum=_MAX_STEPS)
    with np.errstate(divide="ignore"):
        log_start = np.log1p(-(x**2))
    return log_start * float((degree + 1) ** steps)
