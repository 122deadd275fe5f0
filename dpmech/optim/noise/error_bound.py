r"""How much less noise than certified the roundings of float64 can leave: a bound for every recursion.

The certified mechanism releases C G + sigma Z, that is G + sigma C^-1 Z. A recursion in float64 applies
another matrix M instead of C^-1, which depends on what was rounded how. Each function here bounds the
spectral norm of F in C M = I + F (rows combined with weights from C^-1), or in M^-1 = (I + F) C (forward
substitution). Then C G + sigma (I + F) Z, or C G + sigma (I + F)^-1 Z, is what is released, and as

    (I + F)(I + F)^T >= (1 - |F|)^2 I,    ((I + F)^T (I + F))^-1 >= (1 + |F|)^-2 I,

it is the certified mechanism at sigma (1 - |F|) or more, with more independent Gaussian noise on top: no more
can be learned from it, for any participation and any sampling. Scaling all noise by 1 + 2 |F| therefore makes
the claim whole again.

Entry by entry |F| is at most k units of rounding of |C| |C^-1|, k the roundings of a row; for Toeplitz
matrices the spectral norm is at most the sum of absolute coefficients (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1, Theorems 8.5 and 24.2).
"""

import math
from typing import Any

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.mechanism import ScaledToeplitz, Strategy
from dpmech.numerics import LONGDOUBLE_UNIT, FloatArray, trimmed

__all__ = [
    "LARGEST",
    "checked_error",
    "combination_error",
    "exponentials_error",
    "substitution_error",
]

LARGEST = 1e-6  # relative; above it a stream is refused

_UNIT = 2.0**-53
_SLACK = 1.0 + 1e-6  # for the float64 sums of up to 1e9 terms that the bounds themselves are
_DIRECT_WORK = 50_000_000
# Roundings of a row beside those of its terms: the weight, its factor and its share of the row's scale.
_FACTORS = 8


def checked_error(error: float, strategy: Strategy, mode: str) -> float:
    """Return a bound on |F|, or raise NumericalError if it is above `LARGEST`."""
    if not error <= LARGEST:  # NaN too
        raise NumericalError(
            f"roundings of float64 may leave {error:.1e} less noise than certified, relative (at most "
            f"{LARGEST:g} is accepted), where NoiseMode.{mode} forms rows for {strategy!r}: C amplifies "
            "them; another NoiseMode, fewer steps or weaker correlation may do"
        )
    return error


def combination_error(strategy: Strategy, weights: FloatArray | None) -> float:
    """For rows sum_j w_j z_(t - j): how far the weights are from C^-1, and the roundings of the sum.

    Args:
        strategy: C.
        weights: the matrix of weights, shape (n, n), where C has no Toeplitz form; else None.
    """
    factors = strategy.factored
    if factors is None:
        matrix = strategy.to_dense()
        inverse = strategy.solve(np.eye(strategy.n)) if weights is None else weights
        terms = strategy.n + _FACTORS
        return (_dense_residual(matrix, inverse) + _gamma(terms) * _dense_product(matrix, inverse)) * _SLACK
    terms = trimmed(factors.inverse_coefs).size + _FACTORS
    return (_residual(factors) + _gamma(terms) * _condition(factors)) * _SLACK


def substitution_error(strategy: Strategy, width: int) -> float:
    """For forward substitution with `width` bands: (C + D) y = z with |D| <= k units of |C|."""
    factors = strategy.factored
    if factors is None:
        matrix = strategy.to_dense()
        inverse = strategy.solve(np.eye(strategy.n))
        residual, condition = _dense_residual(matrix, inverse), _dense_product(matrix, inverse)
    else:
        residual, condition = _residual(factors), _condition(factors)
    return _gamma(2 * (width + _FACTORS)) * condition * _over(residual)


def exponentials_error(factors: ScaledToeplitz) -> float:
    """For the buffers b_j of a BLT, which forget their own roundings slowly.

    b_j of the next step is d_j b_j + u rounded twice, so it carries a sum of roundings, each relative to a
    b_j and decaying with d_j: at most 2 units, times 1 / (1 - d_j) or n, times b_j. As b_j = B_j C^-1 z, what
    that puts into F is |s_j| times that sum times the absolute coefficients of B_j C^-1, however long d_j
    remembers.
    """
    if factors.exponentials is None:
        raise NumericalError("no exponentials to form buffers of")
    decays, weights = factors.exponentials
    inverse = factors.inverse_coefs
    row = _gamma(2 * (decays.size + _FACTORS))
    total = row * _sum(inverse) + _gamma(_FACTORS) * _condition(factors)
    for decay, weight in zip(decays.tolist(), weights.tolist(), strict=True):
        memory = min(float(inverse.size), 1.0 / (1.0 - decay))
        carried = 2.0 * _gamma(2) * memory
        response = scipy.signal.lfilter([0.0, 1.0], [1.0, -decay], inverse)
        total += abs(weight) * _sum(response) * (row + carried) / (1.0 - carried)
    return total * _over(_residual(factors))


# ---- parts of the bounds


def _gamma(count: int) -> float:
    """What `count` roundings in a row come to, relative."""
    return count * _UNIT / (1.0 - count * _UNIT)


def _sum(coefs: FloatArray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.abs(coefs).sum())


def _condition(factors: ScaledToeplitz) -> float:
    """At least the norm of |C| |C^-1|, in which the scale cancels."""
    return _sum(factors.coefs) * _sum(factors.inverse_coefs)


def _over(residual: float) -> float:
    """What makes a bound in terms of the computed inverse one in terms of the true one."""
    return math.inf if not residual <= LARGEST else _SLACK / (1.0 - residual)


def _residual(factors: ScaledToeplitz) -> float:
    """At least the norm of C M - I, M from the inverse coefficients; its own errors are included."""
    coefs, inverse, n = factors.coefs, factors.inverse_coefs, factors.n
    short, long = sorted((trimmed(coefs), trimmed(inverse)), key=np.size)
    with np.errstate(over="ignore", invalid="ignore"):
        product: np.ndarray[Any, Any]
        if short.size * n <= _DIRECT_WORK:
            wide = np.zeros(n, np.longdouble)
            wide[: long.size] = long
            product = scipy.signal.lfilter(short.astype(np.longdouble), np.ones(1, np.longdouble), wide)
            own = (short.size + 2) * LONGDOUBLE_UNIT * _condition(factors)
        elif factors.exponentials is not None:
            product, own = _exponentials_product(inverse, *factors.exponentials)
        else:
            product = scipy.signal.fftconvolve(coefs, inverse)[:n]
            # Three transforms, each with a relative error of at most 8 units a level in the 2-norm.
            size = math.log2(2 * n) * 24.0 * _UNIT
            own = size * math.sqrt(n) * (_norm(coefs) * _sum(inverse) + _sum(coefs) * _norm(inverse))
        product[0] -= 1.0
        return float(np.abs(product).sum()) + own


def _exponentials_product(
    inverse: FloatArray, decays: FloatArray, weights: FloatArray
) -> tuple[np.ndarray[Any, Any], float]:
    """C times the inverse coefficients through one filter a decay, and a bound on its errors."""
    product = inverse.astype(np.longdouble)
    own = 0.0
    for decay, weight in zip(decays.tolist(), weights.tolist(), strict=True):
        response = scipy.signal.lfilter(
            np.array([0.0, 1.0], np.longdouble), np.array([1.0, -decay], np.longdouble), inverse
        )
        product = product + weight * response
        memory = min(float(inverse.size), 1.0 / (1.0 - decay))
        own += abs(weight) * _sum(response) * (2.0 * memory + decays.size + 2.0)
    return np.asarray(product), 2.0 * LONGDOUBLE_UNIT * (own + _sum(inverse) * (decays.size + 2.0))


def _norm(coefs: FloatArray) -> float:
    return float(np.linalg.norm(coefs))


def _dense_residual(matrix: FloatArray, inverse: FloatArray) -> float:
    residual = matrix @ inverse - np.eye(len(matrix))
    return _spectral(np.abs(residual)) + _gamma(len(matrix) + 1) * _dense_product(matrix, inverse)


def _dense_product(matrix: FloatArray, inverse: FloatArray) -> float:
    """At least the norm of |C| |C^-1|, by its largest row and column sums."""
    a, b, ones = np.abs(matrix), np.abs(inverse), np.ones(len(matrix))
    return math.sqrt(float((a @ (b @ ones)).max()) * float(((ones @ a) @ b).max()))


def _spectral(absolute: FloatArray) -> float:
    return math.sqrt(float(absolute.sum(axis=0).max()) * float(absolute.sum(axis=1).max()))
