"""Brute-force and high-precision oracles. This file never imports dpmech."""

import itertools
import math
from typing import Any

import numpy as np
from mpmath import mp


def lower_toeplitz(coefs: np.ndarray) -> np.ndarray:
    """The lower-triangular Toeplitz matrix with this first column."""
    n = len(coefs)
    matrix = np.zeros((n, n))
    for lag in range(n):
        matrix += coefs[lag] * np.eye(n, k=-lag)
    return matrix


def separated_sets(n: int, min_sep: int, count: int) -> list[tuple[int, ...]]:
    """All non-empty sets of at most `count` steps that are `min_sep` or more apart."""
    found = []
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(n), size):
            if all(later - earlier >= min_sep for earlier, later in itertools.pairwise(chosen)):
                found.append(chosen)
    return found


def brute_sensitivity(matrix: np.ndarray, min_sep: int, count: int) -> float:
    """The largest norm of a sum of columns over all separated sets (for Gram matrices >= 0)."""
    n = len(matrix)
    return max(
        float(np.linalg.norm(matrix[:, list(chosen)].sum(axis=1)))
        for chosen in separated_sets(n, min_sep, count)
    )


def gaussian_sigma(eps: float, delta: float) -> float:
    """The smallest noise multiplier of the Gaussian mechanism, by bisection in 40-digit arithmetic."""
    with mp.workdps(40):

        def excess(sigma: Any) -> Any:  # noqa: ANN401 - mpmath has no types
            a = 1 / (2 * sigma) - eps * sigma
            b = -1 / (2 * sigma) - eps * sigma
            return mp.ncdf(a) - mp.exp(eps) * mp.ncdf(b) - delta

        low, high = mp.mpf("1e-3"), mp.mpf("1e6")
        for _ in range(120):
            middle = mp.sqrt(low * high)
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(high)


def inverse_square_root(n: int) -> np.ndarray:
    """First n coefficients of (1 - x)^(1/2)."""
    coefs = [1.0]
    for k in range(1, n):
        coefs.append(coefs[-1] * (k - 1.5) / k)
    return np.array(coefs)


def square_root(n: int) -> np.ndarray:
    """First n coefficients of (1 - x)^(-1/2)."""
    coefs = [1.0]
    for k in range(1, n):
        coefs.append(coefs[-1] * (k - 0.5) / k)
    return np.array(coefs)


def series_inverse(coefs: np.ndarray) -> np.ndarray:
    """Power-series inverse by the textbook recursion."""
    n = len(coefs)
    inverse = np.zeros(n)
    inverse[0] = 1.0 / coefs[0]
    for k in range(1, n):
        inverse[k] = -float(coefs[1 : k + 1] @ inverse[k - 1 :: -1][:k]) / coefs[0]
    return inverse


def toeplitz_rmse(coefs: np.ndarray, inverse: np.ndarray, min_sep: int, count: int) -> float:
    """RMSE of the prefix sum, leftmost columns for the sensitivity."""
    n = len(coefs)
    total = np.zeros(n)
    for j in range(count):
        total[j * min_sep :] += coefs[: n - j * min_sep]
    decoder = np.cumsum(inverse)
    frobenius = float(np.sum((n - np.arange(n)) * decoder**2))
    return math.sqrt(frobenius / n) * float(np.linalg.norm(total))
