r"""The map of DP-Muon: Newton-Schulz orthogonalization, its bias under noise, and the correction.

**The map.** p_k is the Taylor polynomial of x^(-1/2) at 1 of degree k. Iterating Y <- p_k(Y Y^T) Y drives
every singular value in (0, 1] to 1, so the result tends to the polar factor U V^T of the start. The start is
the matrix divided by max(1, Frobenius norm). A matrix of norm below 1 is *not* rescaled, so the map is not
scale invariant (muon muon.scale), and the result for a small momentum is far from orthogonal.

Everything depends on the smallest non-zero singular value x of the start: after q steps the error in
operator norm is at most eps_q = 1 - sqrt(1 - (1 - x^2)^((k + 1)^q)).

The quintic that Muon implementations commonly use, with coefficients 3.4445, -4.7750 and 2.0315, is not a
p_k. Its singular values exceed 1, and no statement of this module covers it (muon.kappa_unstated).

**Bias and correction.** Write P_rho F(X) = E F(X + rho U), U standard normal, the heat operator. A map
applied to a matrix with noise rho per entry returns P_rho F on average, that is F + (rho^2 / 2) Laplace F +
... The direction of DP-Muon is therefore biased, although its momentum is not. Applying F once more to the
noisy matrix with fresh noise of the same size, and taking 2 F(M) - F(M + rho U), leaves 2 P_rho F - P_(sqrt 2
rho) F on average, that is F - (rho^4 / 4) Laplace^2 F + ... DP-MuonBC uses this with antithetic probes.

The statements apply to a momentum whose clipped gradients are fixed beforehand. In training, the gradients
depend on past noise, so the correction is a heuristic. It has no privacy cost (muon muon.c8).
"""

import itertools
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpmech.analysis._arguments import check_matrices, check_numbers, check_result
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

# Larger degrees and step counts do not change any digit of a result.
_MAX_DEGREE = 64
_MAX_STEPS = 64


def polynomial_coefficients(degree: int) -> FloatArray:
    """Coefficients of p_k in powers of (1 - x): binomial(2 s, s) / 4^s, s = 0..degree.

    Args:
        degree: k in [1, 64].

    Returns:
        Shape (k + 1,): 1, 1/2, 3/8, 5/16, ... Exact, up to rounding.

    Raises:
        InvalidParameterError: if an argument is invalid.

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
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.pkappa.
    """
    gap = 1.0 - check_numbers("values", values, maximum=1.0)
    result = np.zeros_like(gap)
    for coefficient in polynomial_coefficients(degree)[::-1]:
        result = result * gap + coefficient
    return check_result(result, "the Newton-Schulz polynomial")


def newton_schulz(
    matrix: npt.ArrayLike, *, degree: int = 2, steps: int = 5, scale_up: bool = False
) -> FloatArray:
    """Take q Newton-Schulz steps from the normalised matrix, in float64.

    Args:
        matrix: shape (m, n), or a stack of shape (..., m, n); the computation uses the shorter side.
        degree: k in [1, 64].
        steps: q in [0, 64].
        scale_up: divide by the Frobenius norm even if it is below 1. False is the paper's algorithm;
            True makes the map scale invariant.

    Returns:
        The shape of `matrix`; operator norm at most 1, up to rounding. Zero stays zero.

    Raises:
        InvalidParameterError: if an argument is invalid.

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
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.lem3_3.
    """
    array = check_matrices("matrix", matrix)
    left, values, right = np.linalg.svd(array, full_matrices=False)
    rank = _rank(values, array.shape)
    factor: FloatArray = left[:, :rank] @ right[:rank]
    return factor


def smallest_start_value(matrix: npt.ArrayLike, *, scale_up: bool = False) -> float:
    """x: the smallest non-zero singular value of the start of Newton-Schulz.

    delta_0 = 1 - x^2 is the distance of the start from its projector, always below 1 for a non-zero matrix
    (muon muon.lem3_3), though it can be arbitrarily close to 1 (muon.lem3_3_deterministic).

    Args:
        matrix: shape (m, n), not zero.
        scale_up: as for `newton_schulz`.

    Returns:
        In (0, 1]. Values up to max(m, n) machine epsilons of the largest count as zero.

    Raises:
        InvalidParameterError: if an argument is invalid or a zero matrix.
    """
    array = check_matrices("matrix", matrix)
    values = np.asarray(np.linalg.svd(_start(array, scale_up=scale_up), compute_uv=False), dtype=np.float64)
    rank = _rank(values, array.shape)
    if rank == 0:
        raise InvalidParameterError("matrix", matrix, "a matrix that is not zero")
    return min(float(values[rank - 1]), 1.0)


def spectral_error(start_value: npt.ArrayLike, degree: int, steps: int) -> FloatArray:
    """eps_q = 1 - sqrt(1 - (1 - x^2)^((k + 1)^q)): bound on the operator-norm distance to the polar factor.

    Args:
        start_value: x in (0, 1], see `smallest_start_value`; a number or an array.
        degree: k in [1, 64].
        steps: q in [0, 64].

    Returns:
        In [0, 1), of the shape of `start_value`. An upper bound; exact at q = 0. It rounds to 1 if x is
        so small that q steps have no effect.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.lem3_3.
    """
    log_residual = _log_residual(start_value, degree, steps)
    residual = np.exp(log_residual)
    # 1 - sqrt(1 - d) without the difference, so that a small error keeps its digits.
    return check_result(residual / (1.0 + np.sqrt(-np.expm1(log_residual))), "eps_q")


def quality_factor(start_value: npt.ArrayLike, degree: int, steps: int) -> FloatArray:
    """chi_q = 1 / (1 - eps_q), the factor in the stationarity bound from finitely many steps.

    For a fixed x, it tends to 1 doubly exponentially in q. For square layers under noise, x is so small that
    the factor is in the thousands at q = 5 (muon muon.lem3_3_practice).

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
    """1 - <M, O> / ||M||_*: the error weighted by singular values, a much smaller eps_q for the same proof.

    The proof of the stationarity bound uses the operator-norm error only through <M, O> >= (1 - eps) ||M||_*,
    which holds with equality for this error (muon muon.lemB4). On a square layer under noise, it is about
    0.27, whereas `spectral_error` is 0.999.

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
    x = check_numbers("start_value", start_value, maximum=1.0, open_minimum=True)
    degree = check_integer("degree", degree, minimum=1, maximum=_MAX_DEGREE)
    steps = check_integer("steps", steps, minimum=0, maximum=_MAX_STEPS)
    with np.errstate(divide="ignore"):
        log_start = np.log1p(-(x**2))
    return log_start * float((degree + 1) ** steps)


# Maps a stack of matrices of shape (..., m, n) to a stack of the same shape.
MatrixMap: TypeAlias = Callable[[FloatArray], FloatArray]

_MAX_NODES = 4_000_000
_CHUNK = 50_000
_MAX_ORDER = 80
_MAX_ENTRIES = 256
_MAX_ENTRIES_SQUARED = 32
# Weights of the second derivative at offsets 0, +-1, +-2, +-3: exact for polynomials of degree 7.
_STENCIL = (-49.0 / 18.0, 1.5, -0.15, 1.0 / 90.0)


def heat_coefficients(order: int) -> FloatArray:
    """Coefficients of rho^(2 j) Laplace^j in P_rho = exp(rho^2 Laplace / 2): 1 / (2^j j!).

    Args:
        order: the largest j, in [0, 80].

    Returns:
        Shape (order + 1,): 1, 1/2, 1/8, 1/48, ... Exact, up to rounding.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.heat.
    """
    order = check_integer("order", order, minimum=0, maximum=_MAX_ORDER)
    return np.array([1.0 / (2**j * math.factorial(j)) for j in range(order + 1)])


def corrected_coefficients(order: int) -> FloatArray:
    """Coefficients of rho^(2 j) Laplace^j in 2 P_rho - P_(sqrt 2 rho): (2 - 2^j) / (2^j j!).

    Arguments and errors are those of `heat_coefficients`.

    References:
        muon muon.thm4_1.

    Examples:
        >>> from dpmech.analysis.muon.newton_schulz import corrected_coefficients
        >>> corrected_coefficients(3)
        array([ 1.   ,  0.   , -0.25 , -0.125])
    """
    order = check_integer("order", order, minimum=0, maximum=_MAX_ORDER)
    return np.array([(2 - 2**j) / (2**j * math.factorial(j)) for j in range(order + 1)])


def laplacian(function: MatrixMap, point: npt.ArrayLike, *, step: float = 1e-2, power: int = 1) -> FloatArray:
    """Laplace^power F at a matrix: the sum of second derivatives by entry, by central differences.

    Args:
        function: F, of a stack of matrices.
        point: shape (m, n); F must be smooth within 3 power step of it.
        step: spacing of the differences, > 0.
        power: number of applications of the Laplacian, 1 or 2.

    Returns:
        Shape (m, n). An estimate with error O(step^6) plus rounding of the order of
        1e-15 (6 m n / step^2)^power. For polynomials of degree up to 7, only rounding remains.

    Raises:
        InvalidParameterError: if an argument is invalid, or a matrix of more than 256 entries (32 at power
            2).
        NumericalError: if F is not finite there.

    References:
        muon muon.heat.
    """
    center = check_matrices("point", point)
    step = check_real("step", step, minimum=0.0, open_minimum=True)
    power = check_integer("power", power, minimum=1, maximum=2)
    if center.size > (_MAX_ENTRIES if power == 1 else _MAX_ENTRIES_SQUARED):
        raise InvalidParameterError("point", center.shape, "a matrix of at most 256 entries, 32 at power 2")
    weights: dict[tuple[int, ...], float] = {(0,) * center.size: 1.0}
    for _ in range(power):
        weights = _spread(weights)
    offsets = np.array(list(weights), dtype=np.float64).reshape(-1, *center.shape)
    values = _evaluate(function, center + step * offsets)
    total = np.tensordot(np.array(list(weights.values())), values, axes=1)
    return check_result(total / step ** (2 * power), "the Laplacian")


def heat_average(function: MatrixMap, point: npt.ArrayLike, scale: float, *, nodes: int) -> FloatArray:
    """P_rho F(X) = E F(X + rho U) by Gauss-Hermite quadrature in every entry.

    Args:
        function: F, of a stack of matrices.
        point: X, shape (m, n).
        scale: rho >= 0.
        nodes: points per entry, in [1, 64]; nodes^(m n) evaluations, at most 4e6.

    Returns:
        Shape (m, n). Exact, up to rounding, for polynomials of degree at most 2 nodes - 1 in each entry;
        otherwise an estimate, whose error can be seen by increasing `nodes`.

    Raises:
        InvalidParameterError: if an argument is invalid, or if the number of evaluations is too large.
        NumericalError: if F is not finite somewhere.

    References:
        muon muon.heat.
    """
    center = check_matrices("point", point)
    scale = check_real("scale", scale, minimum=0.0)
    nodes = check_integer("nodes", nodes, minimum=1, maximum=64)
    if nodes**center.size > _MAX_NODES:
        accepted = f"few enough that nodes^{center.size} is at most {_MAX_NODES}"
        raise InvalidParameterError("nodes", nodes, accepted)
    abscissas, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    total = np.zeros(center.shape)
    for start in range(0, nodes**center.size, _CHUNK):
        remaining = np.arange(start, min(start + _CHUNK, nodes**center.size))
        digits = np.empty((remaining.size, center.size), dtype=np.intp)
        for entry in range(center.size):
            remaining, digits[:, entry] = np.divmod(remaining, nodes)
        values = _evaluate(function, center + scale * abscissas[digits].reshape(-1, *center.shape))
        total += np.tensordot(np.prod(weights[digits], axis=1), values, axes=1)
    return check_result(total, "the heat average")


def corrected_mean(function: MatrixMap, point: npt.ArrayLike, scale: float, *, nodes: int) -> FloatArray:
    """(2 P_rho - P_(sqrt 2 rho)) F(X): the mean of `corrected_direction` at a matrix with noise rho.

    Arguments, errors and exactness are those of `heat_average`.

    References:
        muon muon.thm4_1.
    """
    plain = heat_average(function, point, scale, nodes=nodes)
    return 2.0 * plain - heat_average(function, point, math.sqrt(2.0) * scale, nodes=nodes)


def corrected_direction(
    function: MatrixMap, noisy: npt.ArrayLike, scale: float, probes: npt.ArrayLike
) -> FloatArray:
    """2 F(M) - mean over probes of (F(M + rho U) + F(M - rho U)) / 2: DP-MuonBC's direction.

    Args:
        function: F, of a stack of matrices.
        noisy: M, the normalised private momentum, shape (m, n).
        scale: rho, the standard deviation of the noise in one entry of M, see `momentum_noise`, >= 0.
        probes: U, shape (J, m, n), standard normal, independent of each other and of everything else.

    Returns:
        Shape (m, n). Exact, given the probes. Its operator norm can reach 3 where F's is at most 1.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if F is not finite somewhere.

    References:
        muon muon.thm4_1, muon.obc_norm.
    """
    matrix, directions = check_matrices("noisy", noisy), check_matrices("probes", probes, stacked=True)
    scale = check_real("scale", scale, minimum=0.0)
    if directions.shape[1:] != matrix.shape:
        raise InvalidParameterError(
            "probes", directions.shape, f"a stack of matrices of shape {matrix.shape}"
        )
    smoothed = 0.5 * (
        _evaluate(function, matrix + scale * directions) + _evaluate(function, matrix - scale * directions)
    )
    return check_result(2.0 * _evaluate(function, matrix) - smoothed.mean(axis=0), "the direction")


def cubic_bias(matrix: npt.ArrayLike, scale: float) -> FloatArray:
    """Exact bias of one cubic Newton-Schulz step: -(rho^2 / 2) (m + n + 1) X.

    The map is F(X) = (3 X - X X^T X) / 2 without normalisation, for which Laplace (X X^T X) is
    2 (m + n + 1) X and Laplace^2 is 0. The corrected direction has no bias.

    Args:
        matrix: X, shape (m, n).
        scale: rho >= 0.

    Returns:
        P_rho F(X) - F(X), shape (m, n).

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.heat.
    """
    array = check_matrices("matrix", matrix)
    scale = check_real("scale", scale, minimum=0.0)
    return -0.5 * scale**2 * (sum(array.shape) + 1) * array


def probe_error_bound(rows: int, columns: int, probes: int) -> float:
    """Bound on E ||smoothed - its mean||_F^2 for J antithetic probes: K_Q^2 / J with K_Q^2 = min(m, n).

    Args:
        rows: m >= 1.
        columns: n >= 1.
        probes: J >= 1.

    Returns:
        An upper bound for maps of operator norm at most 1. Probes change the variance, never the mean.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon muon.probe.
    """
    shorter = min(check_integer("rows", rows, minimum=1), check_integer("columns", columns, minimum=1))
    return shorter / check_integer("probes", probes, minimum=1)


def _spread(weights: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """The difference scheme of one more Laplacian."""
    spread: dict[tuple[int, ...], float] = {}
    for offset, weight in weights.items():
        spread[offset] = spread.get(offset, 0.0) + len(offset) * _STENCIL[0] * weight
        for entry, (distance, sign) in itertools.product(
            range(len(offset)), itertools.product((1, 2, 3), (-1, 1))
        ):
            moved = (*offset[:entry], offset[entry] + sign * distance, *offset[entry + 1 :])
            spread[moved] = spread.get(moved, 0.0) + _STENCIL[distance] * weight
    return spread


def _evaluate(function: MatrixMap, matrices: FloatArray) -> FloatArray:
    return check_result(function(matrices), "the map")
