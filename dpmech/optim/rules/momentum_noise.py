r"""How much noise a momentum buffer holds, in units of the current step's Phi_t. Pure numpy."""

import numpy as np
import scipy

from dpmech.guards import check_real
from dpmech.mechanism import Strategy, check_strategy
from dpmech.numerics import FloatArray
from dpmech.optim.rules.base import check_flag

__all__ = ["momentum_noise_ratios"]

# Columns of C^-1 at a time where C is not Toeplitz: memory O(n BLOCK).
BLOCK = 256


def momentum_noise_ratios(strategy: Strategy, momentum: float, *, nesterov: bool = False) -> FloatArray:
    r"""Variance of the noise in a momentum buffer over that in the gradient of the same step.

    The buffer M_t = sum over s <= t of momentum^(t - s) g_s carries per coordinate the variance
    (sigma clip_norm / batch_size)^2 ||w_t^T C^-1||^2, w_t[s] = momentum^(t - s), and the gradient Phi_t =
    (sigma clip_norm / batch_size)^2 ||C^-1[t, :]||^2. The ratio depends on neither sigma nor the clip norm.
    For Identity it is (1 - momentum^(2 (t + 1))) / (1 - momentum^2); with correlated noise it may be far
    less. Exact up to rounding; O(n) for Toeplitz strategies, O(n^2) otherwise.

    Args:
        strategy: C, over as many steps as will be run.
        momentum: in [0, 1).
        nesterov: the direction g_t + momentum M_t instead of M_t.

    Returns:
        Ratios of variances, shape (n,), for `Muon(noise_ratios=...)`.

    Raises:
        InvalidParameterError: on a bad argument.

    Examples:
        >>> import dpmech as dm
        >>> momentum_noise_ratios(dm.Identity(3), 0.5)
        array([1.    , 1.25  , 1.3125])

    References:
        muon muon.lemC1, for a general C^-1.
    """
    check_strategy(strategy)
    beta = check_real("momentum", momentum, minimum=0.0, maximum=1.0, open_maximum=True)
    lookahead = check_flag("nesterov", nesterov)
    coefs = strategy.inverse_coefs
    if coefs is not None:
        squares = np.cumsum(_direction(coefs, beta, nesterov=lookahead) ** 2)
    else:
        squares = np.zeros(strategy.n)
        for start in range(0, strategy.n, BLOCK):
            columns = np.eye(strategy.n)[:, start : start + BLOCK]
            squares += (_direction(strategy.solve(columns), beta, nesterov=lookahead) ** 2).sum(axis=1)
    ratios: FloatArray = squares / strategy.noising_row_norms() ** 2
    return ratios


def _direction(rows: FloatArray, beta: float, *, nesterov: bool) -> FloatArray:
    """The momentum buffer (or the look-ahead direction) of rows g_0, g_1, ..."""
    buffer: FloatArray = scipy.signal.lfilter([1.0], [1.0, -beta], rows, axis=0)
    return rows + beta * buffer if nesterov else buffer
