"""DP-lambda-CGD in closed form: sensitivity, errors, and the optimal lambda, without amplification.

The strategy C has the entries lambda^(t - s) on and below its diagonal, so C^-1 subtracts lambda times the
noise of the previous step. The workload is the prefix sum A. An example takes part at most k times, at least
b steps apart (`dm.MinSep(b, max_participations=k)`). Errors are for clip norm 1 and noise multiplier 1. To
obtain the errors of a calibration, multiply them by its noise multiplier, sigma / sensitivity.
`dm.optimize(dm.LambdaCGD, ...)` also finds lambda under amplification.
"""

import math
from typing import Literal

import numpy as np
import scipy

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real

# Points of the first search in log(1 - lambda), and the width at which the second ends.
_GRID = 200
_TOLERANCE = 1e-10


def sensitivity(lam: float, steps: int, min_sep: int, participations: int) -> float:
    """Largest change of C G that one example can cause, if its gradients have norm at most 1.

    The leftmost columns 0, b, 2b, ... attain it. In block i of b steps, their sum is lambda^s (1 - lambda^(b
    (i + 1))) / (1 - lambda^b), s = 0, ..., b - 1. The squared norms of the blocks are geometric series.

    Args:
        lam: lambda in [0, 1).
        steps: n >= 1; it need not be k b.
        min_sep: b >= 1.
        participations: k >= 1; participations that do not fit into n steps are ignored.

    Returns:
        The sensitivity. Exact up to rounding, in O(k).

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        lambda_cgd cgd.thm1, cgd.eq15_16 (printed for n = k b).

    Examples:
        >>> from dpmech.analysis import lambda_cgd
        >>> round(lambda_cgd.sensitivity(0.9, 3900, 390, 10), 5)
        7.25476
    """
    lam = check_real("lam", lam, minimum=0.0, maximum=1.0, open_maximum=True)
    n, b, k = _plan(steps, min_sep, participations)
    if lam == 0.0:
        return math.sqrt(k)
    log = math.log(lam)
    starts = np.arange(1, k + 1) * float(b)
    heights = np.expm1(starts * log) / math.expm1(b * log)
    lengths = np.full(k, float(b))
    lengths[-1] = n - (k - 1) * b
    squares = np.expm1(2.0 * lengths * log) / math.expm1(2.0 * log)
    return math.sqrt(float(heights**2 @ squares))


def sum_variance(lam: float, step: int) -> float:
    """Variance of the noise in the sum of the first t gradients: squared norm of row t of A C^-1.

    Args:
        lam: lambda in [0, 1).
        step: t >= 1.

    Returns:
        1 + (1 - lambda)^2 (t - 1), in units of sigma^2. Exact.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        lambda_cgd cgd.eq17, cgd.eq52.

    Examples:
        >>> from dpmech.analysis import lambda_cgd
        >>> round(lambda_cgd.sum_variance(0.9, 101), 9)
        2.0
    """
    lam = check_real("lam", lam, minimum=0.0, maximum=1.0, open_maximum=True)
    return 1.0 + (1.0 - lam) ** 2 * (check_integer("step", step, minimum=1) - 1)


def rmse(lam: float, steps: int, min_sep: int, participations: int) -> float:
    """Root of the mean over steps of the variance of the sums, times the sensitivity.

    Args:
        lam: lambda in [0, 1).
        steps: n >= 1.
        min_sep: b >= 1.
        participations: k >= 1.

    Returns:
        The RMSE at noise multiplier 1 and clip norm 1, of prefix sums. Exact up to rounding.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        lambda_cgd cgd.eq4_7, cgd.eq52.

    Examples:
        >>> from dpmech.analysis import lambda_cgd
        >>> round(lambda_cgd.rmse(0.9, 3900, 390, 10), 4)
        32.8433
    """
    largest = sensitivity(lam, steps, min_sep, participations)
    return largest * math.sqrt(0.5 * (1.0 + sum_variance(lam, steps)))


def max_se(lam: float, steps: int, min_sep: int, participations: int) -> float:
    """Root of the largest variance of the sums (that of the last step) times the sensitivity.

    Args:
        lam: lambda in [0, 1).
        steps: n >= 1.
        min_sep: b >= 1.
        participations: k >= 1.

    Returns:
        MaxSE at noise multiplier 1 and clip norm 1, of prefix sums. Exact up to rounding.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        lambda_cgd cgd.eq4_7, cgd.eq17.
    """
    largest = sensitivity(lam, steps, min_sep, participations)
    return largest * math.sqrt(sum_variance(lam, steps))


def best_lambda(
    steps: int, min_sep: int, participations: int, *, objective: Literal["rmse", "max_se"] = "rmse"
) -> float:
    """The lambda with the smallest error without amplification.

    Args:
        steps: n >= 1.
        min_sep: b >= 1.
        participations: k >= 1.
        objective: the error to minimise. A minimiser of MaxSE is not smaller than a minimiser of RMSE.

    Returns:
        lambda in [0, 1), from a grid in 1 - lambda and a search around the best point of the grid. It is an
        estimate, whose error is computed by `rmse` or `max_se`. If examples take part in every step (b = 1,
        k = n), it is 0, which is independent noise.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        lambda_cgd cgd.lem3, cgd.cor6.

    Examples:
        >>> from dpmech.analysis import lambda_cgd
        >>> round(lambda_cgd.best_lambda(3900, 390, 10), 4)
        0.9776
    """
    if objective not in ("rmse", "max_se"):
        raise InvalidParameterError("objective", objective, "'rmse' or 'max_se'")
    error = rmse if objective == "rmse" else max_se
    n, b, k = _plan(steps, min_sep, participations)
    gaps = np.geomspace(1.0, 0.01 / n, _GRID)
    errors = [error(1.0 - gap, n, b, k) for gap in gaps]
    place = int(np.argmin(errors))
    if place == 0 and errors[0] <= error(1e-6, n, b, k):
        return 0.0
    found = scipy.optimize.minimize_scalar(
        lambda log: error(1.0 - math.exp(log), n, b, k),
        bounds=(math.log(gaps[min(place + 1, _GRID - 1)]), math.log(gaps[max(place - 1, 0)])),
        method="bounded",
        options={"xatol": _TOLERANCE},
    )
    return 1.0 - math.exp(float(found.x))


def max_se_bound(steps: int, participations: int) -> tuple[float, float]:
    """A bound on MaxSE that the lambda of the proof attains: k + sqrt(k) n^(1/4), for n = k b.

    Args:
        steps: n >= 1, a multiple of the participations.
        participations: k >= 1.

    Returns:
        k + sqrt(k) n^(1/4), and the lambda whose `max_se` at noise multiplier 1 is below it: exp(-1 / b) if k
        >= sqrt(n), else exp(-1 / sqrt(n)). The paper proves the order. The constant 1 is an estimate, checked
        for all n below 600. It is tight for k = 1 and many steps.

    Raises:
        InvalidParameterError: if an argument is invalid, or if k does not divide n.

    References:
        lambda_cgd cgd.lem2.

    Examples:
        >>> from dpmech.analysis import lambda_cgd
        >>> bound, lam = lambda_cgd.max_se_bound(3900, 10)
        >>> round(bound, 3), round(lam, 4), lambda_cgd.max_se(lam, 3900, 390, 10) < bound
        (34.99, 0.9841, True)
    """
    n = check_integer("steps", steps, minimum=1)
    k = check_integer("participations", participations, minimum=1, maximum=n)
    if n % k:
        raise InvalidParameterError("steps", steps, f"a multiple of participations = {k}")
    lam = math.exp(-k / n) if k >= math.sqrt(n) else math.exp(-1.0 / math.sqrt(n))
    return k + math.sqrt(k) * n**0.25, lam


def _plan(steps: int, min_sep: int, participations: int) -> tuple[int, int, int]:
    n = check_integer("steps", steps, minimum=1)
    b = check_integer("min_sep", min_sep, minimum=1)
    k = check_integer("participations", participations, minimum=1)
    return n, b, min(k, -(-n // b))
