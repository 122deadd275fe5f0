"""Errors of a strategy on a workload: norms of B = A C^-1, with or without the sensitivity."""

import math

import numpy as np

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism.mechanism import Mechanism, mechanism_of
from dpmech.mechanism.participation import Participation
from dpmech.mechanism.strategies import Strategy, check_strategy
from dpmech.mechanism.workloads import Workload, check_workload
from dpmech.numerics import FloatArray, cumulative_sum

_BLOCK = 64


def per_step_error(strategy: Strategy | Mechanism, *, workload: Workload | None = None) -> FloatArray:
    """Row norms of B = A C^-1: the standard deviation of each output at sigma 1, without the sensitivity.

    Args:
        strategy: C; or a Mechanism, whose strategy is used.
        workload: A; None is the prefix sum.

    Returns:
        Shape (n,). Exact, up to rounding.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        lambda_cgd eq. 4-7.

    Example:
        >>> import dpmech as dm
        >>> dm.per_step_error(dm.Identity(3)).round(3)
        array([1.   , 1.414, 1.732])
    """
    own = strategy.strategy if isinstance(strategy, Mechanism) else check_strategy(strategy)
    return np.sqrt(_row_norms_squared(own, check_workload(workload, own.n)))


def rmse(
    strategy: Strategy | Mechanism,
    participation: Participation | None = None,
    *,
    workload: Workload | None = None,
) -> float:
    """Root mean squared error ||B||_F sens / sqrt(n) if sigma equals the sensitivity.

    Args:
        strategy: C; or a Mechanism, which also sets participation and adjacency.
        participation: which examples take part when; None is EveryStep.
        workload: A; None is the prefix sum.

    Returns:
        The error in units of the clip norm; an upper bound if the sensitivity is only known between bounds.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: for Poisson and CyclicPoisson, whose error depends on the calibrated
            sigma: use `calibrate_sigma(...).rmse()`.

    References:
        lambda_cgd eq. 6.

    Examples:
        >>> import dpmech as dm
        >>> round(dm.rmse(dm.LambdaCGD(3900, 0.9), dm.MinSep(390, 10)) * 0.60022907, 2)
        19.71
    """
    mechanism = mechanism_of(strategy, participation)
    return decoder_norm(mechanism.strategy, workload=workload) * _upper_sensitivity(mechanism)


def max_se(
    strategy: Strategy | Mechanism,
    participation: Participation | None = None,
    *,
    workload: Workload | None = None,
) -> float:
    """Largest standard error max_i ||B[i, :]|| sens if sigma equals the sensitivity.

    Arguments, units and errors are those of `rmse`. References: lambda_cgd eq. 7.

    Example:
        >>> import dpmech as dm
        >>> f"{dm.max_se(dm.LambdaCGD(12, 0.5), dm.MinSep(4)):.3f}"
        '4.033'
    """
    mechanism = mechanism_of(strategy, participation)
    return decoder_row_norm(mechanism.strategy, workload=workload) * _upper_sensitivity(mechanism)


def last_iterate_error(
    strategy: Strategy | Mechanism,
    participation: Participation | None = None,
    *,
    workload: Workload | None = None,
) -> float:
    """Standard error of the last output, ||B[n-1, :]|| sens, if sigma equals the sensitivity.

    Arguments, units and errors are those of `rmse`.

    Example:
        >>> import dpmech as dm
        >>> f"{dm.last_iterate_error(dm.LambdaCGD(12, 0.5), dm.MinSep(4)):.3f}"
        '4.033'
    """
    mechanism = mechanism_of(strategy, participation)
    return float(per_step_error(mechanism.strategy, workload=workload)[-1]) * _upper_sensitivity(mechanism)


def decoder_norm(strategy: Strategy, *, workload: Workload | None = None) -> float:
    """||B||_F / sqrt(n): the RMSE at sigma 1."""
    errors = per_step_error(strategy, workload=workload)
    return float(np.linalg.norm(errors)) / math.sqrt(strategy.n)


def decoder_row_norm(strategy: Strategy, *, workload: Workload | None = None) -> float:
    """max_i ||B[i, :]||: the MaxSE at sigma 1."""
    return float(per_step_error(strategy, workload=workload).max())


def _upper_sensitivity(mechanism: Mechanism) -> float:
    if mechanism.participation.per_release:
        raise UnsupportedCombinationError(
            f"the error under {mechanism.participation!r} depends on the calibrated sigma",
            supported="calibrate_sigma(strategy, eps, delta, participation=...).rmse() and .max_se()",
        )
    return mechanism.sensitivity.upper


def _row_norms_squared(strategy: Strategy, workload: Workload) -> FloatArray:
    factors = strategy.factored
    if factors is not None:
        if factors.scale is None and workload.toeplitz:
            # B is Toeplitz, and its first column is A applied to that of C^-1.
            return cumulative_sum(workload.matmul(factors.inverse_coefs) ** 2)
        rates = workload.weighted_sums
        if rates is not None:
            return _banded_decoder(factors.inverse_coefs[: factors.inverse_bands], rates / factors.scales())
    return _dense_decoder(strategy, workload)


def _banded_decoder(inverse: FloatArray, row_scale: FloatArray) -> FloatArray:
    """Row norms of P diag(row_scale) LTT(inverse), P the prefix sum, in O(n p).

    Column j of B holds the partial sums of row_scale[j + u] inverse[u], constant after p terms.
    """
    n, p = row_scale.size, inverse.size
    squared = np.zeros(n)
    partial = np.zeros(n)
    for lag in range(p - 1):
        partial[: n - lag] += row_scale[lag:] * inverse[lag]
        squared[lag:] += partial[: n - lag] ** 2
    settled = partial[: n - p + 1] + row_scale[p - 1 :] * inverse[p - 1]
    squared[p - 1 :] += cumulative_sum(settled**2)
    return squared


def _dense_decoder(strategy: Strategy, workload: Workload) -> FloatArray:
    """Row norms of B from blocks of its columns: O(n^2) time or more, O(n) memory."""
    n = strategy.n
    squared = np.zeros(n)
    for start in range(0, n, _BLOCK):
        width = min(_BLOCK, n - start)
        units = np.zeros((n, width))
        units[np.arange(start, start + width), np.arange(width)] = 1.0
        squared += np.sum(workload.matmul(strategy.solve(units)) ** 2, axis=1)
    return squared
