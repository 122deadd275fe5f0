r"""The bias that noise leaves after a non-linear map, and the correction that removes its leading term.

Write P_rho F(X) = E F(X + rho U), U standard normal, the heat operator. A map applied to a matrix with noise
rho per entry returns P_rho F on average, that is F + (rho^2 / 2) Laplace F + ...: DP-Muon's direction is
biased although its momentum is not. Applying F once more to the noisy matrix with fresh noise of the same
size, and taking 2 F(M) - F(M + rho U), leaves 2 P_rho F - P_(sqrt 2 rho) F on average, that is
F - (rho^4 / 4) Laplace^2 F + ... DP-MuonBC does so with antithetic probes.

The statements are about a momentum whose clipped gradients are fixed beforehand. In training they depend on
past noise, and the correction is then a heuristic. What it costs in privacy is nothing (muon muon.c8).
"""

import itertools
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpmech.analysis._arguments import check_matrices, check_result
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

__all__ = [
    "corrected_coefficients",
    "corrected_direction",
    "corrected_mean",
    "cubic_bias",
    "heat_average",
    "heat_coefficients",
    "laplacian",
    "probe_error_bound",
]

# Takes a stack of matrices of shape (..., m, n) to a stack of the same shape.
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
        InvalidParameterError: on a bad argument.

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
        >>> from dpmech.analysis.muon.heat import corrected_coefficients
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
        power: how often the Laplacian is applied, 1 or 2.

    Returns:
        Shape (m, n). An estimate with error O(step^6) plus rounding of the order of
        1e-15 (6 m n / step^2)^power; for polynomials of degree up to 7 only rounding remains.

    Raises:
        InvalidParameterError: on a bad argument, or a matrix of more than 256 entries (32 at power 2).
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
        nodes: points an entry, in [1, 64]; nodes^(m n) evaluations, at most 4e6.

    Returns:
        Shape (m, n). Exact, up to rounding, for polynomials of degree at most 2 nodes - 1 in each entry; an
        estimate otherwise, whose error a larger `nodes` shows.

    Raises:
        InvalidParameterError: on a bad argument, or where that many evaluations are too many.
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
        probes: U, shape (J, m, n), independent standard normal, drawn independently of everything else.

    Returns:
        Shape (m, n). Exact, given the probes. Its operator norm can reach 3 where F's is at most 1.

    Raises:
        InvalidParameterError: on a bad argument.
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
    2 (m + n + 1) X and Laplace^2 is 0. The corrected direction has no bias at all.

    Args:
        matrix: X, shape (m, n).
        scale: rho >= 0.

    Returns:
        P_rho F(X) - F(X), shape (m, n).

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        muon muon.heat.
    """
    array = check_matrices("matrix", matrix)
    scale = check_real("scale", scale, minimum=0.0)
    return -0.5 * scale**2 * (sum(array.shape) + 1) * array


def probe_error_bound(rows: int, columns: int, probes: int) -> float:
    """Bound of E ||smoothed - its mean||_F^2 of J antithetic probes: K_Q^2 / J with K_Q^2 = min(m, n).

    Args:
        rows: m >= 1.
        columns: n >= 1.
        probes: J >= 1.

    Returns:
        An upper bound for maps of operator norm at most 1. Probes change the variance, never the mean.

    Raises:
        InvalidParameterError: on a bad argument.

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
