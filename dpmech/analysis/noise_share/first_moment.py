r"""The first moment of Adam under privacy noise, independent or correlated.

m_t = beta m_(t-1) + (1 - beta) g_t from m_0 = 0, divided by 1 - beta^t. Where the second moment is all
noise, the learning is in m_t; these functions say how much noise is left in it.
"""

import numpy as np
import scipy

from dpmech.analysis.noise_share.moment_scatter import second_moment_scatter
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Mechanism, Participation, Strategy, check_strategy, mechanism_of
from dpmech.numerics import FloatArray, cumulative_sum
from dpmech.schemes.fixed_order import SingleParticipation

__all__ = [
    "average_autocovariance",
    "average_variance",
    "average_weights",
    "correlated_average_variances",
    "effective_learning_rate",
    "matched_step_variances",
    "preconditioner_deviation_bound",
    "preconditioner_spread",
]

_BLOCK = 64


def average_weights(beta: float, step: int) -> FloatArray:
    """Weights of the gradients 1, ..., t (oldest first) in the bias-corrected moving average.

    (1 - beta) beta^k / (1 - beta^t) for the gradient k steps back.

    Args:
        beta: decay, in [0, 1).
        step: t >= 1.

    Returns:
        Shape (t,), >= 0, summing to 1. Exact.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm6.i.
    """
    decay, t = _check_beta(beta), check_integer("step", step, minimum=1)
    weights = decay ** np.arange(t - 1, -1, -1, dtype=np.float64)
    return weights * ((1.0 - decay) / _one_minus_power(decay, t))


def average_variance(beta: float, step: int, phi: float = 1.0) -> float:
    """Variance of the bias-corrected average of independent noise after t updates.

    (1 - beta) / (1 + beta) * (1 + beta^t) / (1 - beta^t) * Phi, the sum of the squared weights times Phi.

    Args:
        beta: decay, in [0, 1).
        step: t >= 1.
        phi: variance of the noise of one step, >= 0.

    Returns:
        In the unit of phi. Exact for independent noise; falls from Phi to (1 - beta) / (1 + beta) Phi.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm6.ii.

    Examples:
        >>> from dpmech.analysis.noise_share.first_moment import average_variance
        >>> round(average_variance(0.9, 10**4), 5)
        0.05263
    """
    decay, t = _check_beta(beta), check_integer("step", step, minimum=1)
    noise = check_real("phi", phi, minimum=0.0)
    return noise * (1.0 - decay) / (1.0 + decay) * (1.0 + decay**t) / _one_minus_power(decay, t)


def average_autocovariance(beta: float, lag: int, phi: float = 1.0) -> float:
    """Covariance of two averages of independent noise `lag` steps apart, in the steady state.

    (1 - beta) / (1 + beta) * beta^lag * Phi.

    Args:
        beta: decay, in [0, 1).
        lag: >= 0.
        phi: variance of the noise of one step, >= 0.

    Returns:
        In the unit of phi. Exact in the limit of many steps.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm6.ii.
    """
    decay, steps = _check_beta(beta), check_integer("lag", lag, minimum=0)
    noise = check_real("phi", phi, minimum=0.0)
    return noise * (1.0 - decay) / (1.0 + decay) * decay**steps


def correlated_average_variances(strategy: Strategy, beta: float) -> FloatArray:
    """Variance of the bias-corrected average at every step when the noise is correlated by a strategy.

    ||w^T C^-1||^2 with w the weights of step t, in units of (sigma C_clip / B)^2.

    Args:
        strategy: C over n steps.
        beta: decay, in [0, 1).

    Returns:
        Shape (n,). Exact. O(n) for Toeplitz strategies, else O(n^2) time and O(n) memory.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm6.ii, ov.theta.weights.

    Examples:
        >>> import dpmech as dm
        >>> from dpmech.analysis.noise_share.first_moment import correlated_average_variances
        >>> f"{correlated_average_variances(dm.LambdaCGD(999, 0.9), 0.9)[-1]:.5f}"
        '0.01000'
    """
    check_strategy(strategy)
    decay = _check_beta(beta)
    inverse = strategy.inverse_coefs
    if inverse is not None:
        coefs = scipy.signal.lfilter([1.0 - decay], [1.0, -decay], inverse)
        squared = cumulative_sum(coefs**2)
    else:
        squared = np.zeros(strategy.n)
        for start in range(0, strategy.n, _BLOCK):
            width = min(_BLOCK, strategy.n - start)
            units = np.zeros((strategy.n, width))
            units[np.arange(start, start + width), np.arange(width)] = 1.0
            averaged = scipy.signal.lfilter([1.0 - decay], [1.0, -decay], strategy.solve(units), axis=0)
            squared += np.sum(averaged**2, axis=1)
    correction = np.array([_one_minus_power(decay, t) for t in range(1, strategy.n + 1)])
    variances: FloatArray = squared / correction**2
    return variances


def matched_step_variances(
    strategy: Strategy | Mechanism, participation: Participation | None = None
) -> FloatArray:
    """Variance of each step's noise relative to independent noise of the same privacy.

    sens^2 ||C^-1[t, :]||^2: what a second moment sees. For LambdaCGD it tends to (1 + lam^2) / (1 - lam^2),
    not to the squared sensitivity 1 / (1 - lam^2).

    Args:
        strategy: C over n steps; or a Mechanism, which says participation and adjacency as well.
        participation: who takes part when; None is SingleParticipation.

    Returns:
        Shape (n,). Exact where the sensitivity is, else an upper bound.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.vhat.corr.

    Examples:
        >>> import dpmech as dm
        >>> from dpmech.analysis.noise_share.first_moment import matched_step_variances
        >>> print(f"{matched_step_variances(dm.LambdaCGD(999, 0.9))[-1] ** 0.5:.2f}")
        3.09
    """
    if participation is None and not isinstance(strategy, Mechanism):
        participation = SingleParticipation()
    mechanism = mechanism_of(strategy, participation)
    return (mechanism.sensitivity.upper * mechanism.strategy.noising_row_norms()) ** 2


def effective_learning_rate(learning_rate: float, phi: float, adam_eps: float = 1e-8) -> float:
    """Adam's step size lr / (sqrt(Phi) + adam_eps) where the second moment is all noise.

    Args:
        learning_rate: > 0.
        phi: variance of the noise of one step, >= 0.
        adam_eps: what Adam adds to the denominator, > 0.

    Returns:
        In the unit of learning_rate over gradient. An estimate: the denominator scatters around it by
        `preconditioner_spread`.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm6.iv.
    """
    rate = check_real("learning_rate", learning_rate, minimum=0.0, open_minimum=True)
    noise = check_real("phi", phi, minimum=0.0)
    return rate / (float(np.sqrt(noise)) + _check_adam_eps(adam_eps))


def preconditioner_deviation_bound(phi: float, second_moment: float, adam_eps: float = 1e-8) -> float:
    """Bound on how far 1 / (sqrt(v + Phi) + eps) is from 1 / (sqrt(Phi) + eps).

    v / (2 sqrt(Phi) (sqrt(Phi) + eps)^2); the relative deviation is at most
    v / (2 Phi) = (1 - rho) / (2 rho).

    Args:
        phi: Phi > 0.
        second_moment: v >= 0.
        adam_eps: what Adam adds to the denominator, > 0.

    Returns:
        In units of one over gradient. An upper bound.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm6.iv.
    """
    noise = check_real("phi", phi, minimum=0.0, open_minimum=True)
    clean = check_real("second_moment", second_moment, minimum=0.0)
    root = float(np.sqrt(noise))
    return clean / (2.0 * root * (root + _check_adam_eps(adam_eps)) ** 2)


def preconditioner_spread(beta2: float, step: int, signal_to_noise: float) -> float:
    """Relative error of taking Adam's denominator for sqrt(Phi): scatter and signal together.

    sqrt(2 / n_eff) / 2 + v / (2 Phi), n_eff the effective number of squares in the average.

    Args:
        beta2: decay, in [0, 1).
        step: t >= 1.
        signal_to_noise: v / Phi >= 0.

    Returns:
        To first order in both terms: an estimate. At the first step the denominator is the gradient's own
        size, so the update is its sign and no constant step size.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm6.iii, ov.thm1.var.
    """
    ratio = check_real("signal_to_noise", signal_to_noise, minimum=0.0)
    return 0.5 * second_moment_scatter(beta2, step) + 0.5 * ratio


def _check_beta(beta: float) -> float:
    return check_real("beta", beta, minimum=0.0, maximum=1.0, open_maximum=True)


def _check_adam_eps(adam_eps: float) -> float:
    return check_real("adam_eps", adam_eps, minimum=0.0, open_minimum=True)


def _one_minus_power(beta: float, t: int) -> float:
    return 1.0 if beta == 0.0 else float(-np.expm1(t * np.log(beta)))
