r"""The effect of correlated noise on an averaged gradient, and the possible gain from removing variance.

Anti-correlated noise n_t = z_t - lam z_(t-1), scaled to the same single-participation privacy, multiplies the
noise variance of a weighted sum of gradients by a factor theta. Two conventions for z_0 exist, and the paper
mixes them: z_0 = 0 (or public), and z_0 random and secret. If the error of the average is bias, removing
variance has no effect, which limits the possible gain (the ceiling).
"""

import math

import numpy as np
import numpy.typing as npt

from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real, check_vector

_MOST_STEPS = 1 << 53  # every float counts to it


def column_norm(lam: float, steps: int | None = None) -> float:
    """Single-participation sensitivity kappa = sqrt((1 - lam^(2T)) / (1 - lam^2)) with z_0 = 0.

    Args:
        lam: correlation, in [0, 1).
        steps: T >= 1, fixed in advance; None for the limit, which is valid for every T.

    Returns:
        The largest column norm of L^-1, L bidiagonal (1, -lam). Exact.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.kappa, ov.thm7.i.

    Examples:
        >>> from dpmech.analysis.noise_share.signal_ceiling import column_norm
        >>> round(column_norm(0.9, 8), 4), round(column_norm(0.9), 4)
        (2.0707, 2.2942)
    """
    decay = _check_lam(lam)
    if steps is None:
        return 1.0 / math.sqrt((1.0 - decay) * (1.0 + decay))
    return math.sqrt(_power_sum(decay, check_integer("steps", steps, minimum=1, maximum=_MOST_STEPS)))


def secret_start_norm(lam: float, steps: int) -> float:
    """The sensitivity if z_0 is sampled like the others and never published: at most `column_norm`.

    max over t of (1 - lam^(2t)) (1 - lam^(2(T-t+1))) / ((1 - lam^2) (1 - lam^(2(T+1)))), under a root; the
    maximum is in the middle.

    Args:
        lam: correlation, in [0, 1).
        steps: T >= 1.

    Returns:
        The Mahalanobis norm of a unit change at the worst step. Exact.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.theta.
    """
    decay, horizon = _check_lam(lam), check_integer("steps", steps, minimum=1, maximum=_MOST_STEPS)
    middle = (horizon + 1) // 2
    return math.sqrt(
        _power_sum(decay, middle) * (_power_sum(decay, horizon + 1 - middle) / _power_sum(decay, horizon + 1))
    )


def integrated_variance(lam: float, steps: int, *, secret_start: bool = False) -> float:
    """Variance of the sum of n_1, ..., n_T in units of the variance of one z.

    1 + (1 - lam)^2 (T - 1), plus lam^2 if z_0 is random.

    Args:
        lam: correlation, in [0, 1).
        steps: T >= 1.
        secret_start: whether z_0 is random.

    Returns:
        Exact.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm9.a.
    """
    decay, horizon = _check_lam(lam), check_integer("steps", steps, minimum=1, maximum=_MOST_STEPS)
    return 1.0 + (1.0 - decay) ** 2 * (horizon - 1) + (decay**2 if secret_start else 0.0)


def prefix_variance_ratio(
    lam: float, steps: int, *, prefix: int | None = None, secret_start: bool = False
) -> float:
    """The ratio theta: variance of a sum's noise, correlated over independent, at equal privacy.

    z_0 = 0: (1 - lam^(2T)) / (1 - lam^2) * (1 + (1 - lam)^2 (n - 1)) / n. In either convention it is between
    (1 - lam) / (1 + lam) and 1 at n = T; early prefixes can be worse than independent noise.

    Args:
        lam: correlation, in [0, 1).
        steps: T >= 1, the horizon for which the noise is calibrated.
        prefix: n in [1, T], number of summed gradients; None is T.
        secret_start: whether z_0 is random and secret (sensitivity `secret_start_norm`).

    Returns:
        Exact.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.theta, ov.thm9.b, ov.thm9.c.

    Examples:
        >>> from dpmech.analysis.noise_share.signal_ceiling import prefix_variance_ratio
        >>> round(prefix_variance_ratio(0.9, 120), 4), round(prefix_variance_ratio(0.95, 120), 4)
        (0.0961, 0.1109)
    """
    horizon = check_integer("steps", steps, minimum=1, maximum=_MOST_STEPS)
    summed = horizon if prefix is None else check_integer("prefix", prefix, minimum=1, maximum=horizon)
    norm = secret_start_norm(lam, horizon) if secret_start else column_norm(lam, horizon)
    return norm**2 * integrated_variance(lam, summed, secret_start=secret_start) / summed


def weighted_variance_ratio(lam: float, weights: npt.ArrayLike) -> float:
    """The ratio theta for any weights: kappa_T^2 sum (w_s - lam w_(s+1))^2 / sum w_s^2.

    With w_(T+1) = 0 and z_0 = 0. The ratio of a plain sum does not hold for other averages.

    Args:
        lam: correlation, in [0, 1).
        weights: of the steps 1, ..., T, shape (T,), not all 0.

    Returns:
        Exact. It multiplies the noise part of the variance only.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.theta.weights.
    """
    decay = _check_lam(lam)
    w = check_vector("weights", weights)
    size = float(np.max(np.abs(w)))
    if size == 0.0:
        raise InvalidParameterError("weights", weights, "not all 0")
    w = w / size  # no overflow in the squares
    left = w - decay * np.append(w[1:], 0.0)
    return column_norm(decay, w.size) ** 2 * float(left @ left) / float(w @ w)


def average_variance_ratio(lam: float, beta: float) -> float:
    """The ratio theta of a stationary exponential moving average: (1 - 2 beta lam + lam^2) / (1 - lam^2).

    At beta = 0.9, it is 1.000 for lam = 0.9 and 1.974 for lam = 0.95. With these values, Adam's first moment
    is not denoised, although a plain sum is.

    Args:
        lam: correlation, in [0, 1).
        beta: decay of the average, in [0, 1).

    Returns:
        Exact in the limit of many steps.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.theta.weights.
    """
    decay = _check_lam(lam)
    smoothing = check_real("beta", beta, minimum=0.0, maximum=1.0, open_maximum=True)
    return (1.0 - 2.0 * smoothing * decay + decay**2) / ((1.0 - decay) * (1.0 + decay))


def best_correlation(beta: float) -> tuple[float, float]:
    """The optimal lam for an exponential moving average, and its ratio theta.

    lam = (1 - sqrt(1 - beta^2)) / beta, theta = sqrt(1 - beta^2).

    Args:
        beta: decay of the average, in [0, 1).

    Returns:
        (lam, theta). Exact in the limit of many steps.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.theta.weights.
    """
    smoothing = check_real("beta", beta, minimum=0.0, maximum=1.0, open_maximum=True)
    root = math.sqrt((1.0 - smoothing) * (1.0 + smoothing))
    return smoothing / (1.0 + root), root


def loss_bound(slope: float, curvature: float, *, bias_squared: float, variance: float) -> float:
    """kappa_U u + L u^2 / 2, u = b^2 + V: excess loss of a model whose loss is a function of the error.

    Args:
        slope: kappa_U >= 0, derivative of the loss at error 0.
        curvature: L >= 0, bound on its second derivative.
        bias_squared: b^2 >= 0.
        variance: V >= 0.

    Returns:
        An upper bound on the excess loss.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if the bound is beyond the range of float64.

    References:
        noise_share ov.thm10.1.
    """
    kappa, curve, bias, spread = _check_ceiling(slope, curvature, bias_squared, variance)
    error = bias + spread
    return _in_range(kappa * error + 0.5 * curve * error * error)


def gain_bound(
    slope: float, curvature: float, *, bias_squared: float, variance: float, theta: float
) -> float:
    """(1 - theta) V (kappa_U + L (b^2 + (1 + theta) V / 2)): largest gain from scaling the variance by theta.

    The bound is attained by kappa_U u + L u^2 / 2. The term 2 L beta^4 of the paper for the part of L holds
    up to b^2 = 1.5 beta^2, for V <= beta^2.

    Args:
        slope: kappa_U >= 0.
        curvature: L >= 0.
        bias_squared: b^2 >= 0.
        variance: V >= 0.
        theta: in [0, 1].

    Returns:
        An upper bound on the decrease of the loss.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if the bound is beyond the range of float64.

    References:
        noise_share ov.thm10.2.
    """
    kappa, curve, bias, spread = _check_ceiling(slope, curvature, bias_squared, variance)
    factor = check_real("theta", theta, minimum=0.0, maximum=1.0)
    return _in_range((1.0 - factor) * spread * (kappa + curve * (bias + 0.5 * (1.0 + factor) * spread)))


def relative_gain_bound(
    slope: float,
    curvature: float,
    *,
    bias_floor: float,
    bias_squared: float,
    variance: float,
    theta: float,
) -> float:
    """(1 - theta) (V / beta^2) (1 + (L / kappa_U) (b^2 + V)): the gain relative to the loss from bias alone.

    It vanishes with V / beta^2: if the error is bias, denoising does not help. The loss must be convex in the
    error (Assumption 7), in addition to nondecreasing and 0 at 0.

    Args:
        slope: kappa_U > 0; at 0 no such bound exists.
        curvature: L >= 0.
        bias_floor: beta^2 in (0, b^2], the part of the bias that averaging cannot remove.
        bias_squared: b^2.
        variance: V >= 0.
        theta: in [0, 1].

    Returns:
        An upper bound on the gain divided by the loss at variance 0.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if the bound is beyond the range of float64.

    References:
        noise_share ov.thm10.2.42.
    """
    kappa, curve, bias, spread = _check_ceiling(slope, curvature, bias_squared, variance)
    check_real("slope", slope, minimum=0.0, open_minimum=True)
    floor = check_real("bias_floor", bias_floor, minimum=0.0, open_minimum=True, maximum=bias)
    factor = check_real("theta", theta, minimum=0.0, maximum=1.0)
    return _in_range((1.0 - factor) * (spread / floor) * (1.0 + (curve / kappa) * (bias + spread)))


def descent_bound(step_size: float, smoothness: float, *, gradient_squared: float, error: float) -> float:
    """-(eta / 2) ||grad F||^2 + (eta / 2) E ||m - grad F||^2: bound on the change of F in a step x - eta m.

    Args:
        step_size: eta in (0, 1 / L].
        smoothness: L > 0.
        gradient_squared: ||grad F(x)||^2 >= 0.
        error: E ||m - grad F(x)||^2 >= 0, bias and variance together.

    Returns:
        An upper bound on E F(x - eta m) - F(x), for any distribution of m. It holds for one step; over
        several steps the terms add.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.lem11.
    """
    smooth = check_real("smoothness", smoothness, minimum=0.0, open_minimum=True)
    eta = check_real("step_size", step_size, minimum=0.0, open_minimum=True, maximum=1.0 / smooth)
    slope = check_real("gradient_squared", gradient_squared, minimum=0.0)
    return 0.5 * eta * (check_real("error", error, minimum=0.0) - slope)


def _check_lam(lam: float) -> float:
    return check_real("lam", lam, minimum=0.0, maximum=1.0, open_maximum=True)


def _power_sum(lam: float, steps: int) -> float:
    """1 + lam^2 + ... + lam^(2 (steps - 1)), without cancellation near lam = 1."""
    if lam == 0.0:
        return 1.0
    return math.expm1(2.0 * steps * math.log(lam)) / math.expm1(2.0 * math.log(lam))


def _in_range(bound: float) -> float:
    if not math.isfinite(bound):
        raise NumericalError("the bound is beyond the range of float64")
    return bound


def _check_ceiling(
    slope: float, curvature: float, bias_squared: float, variance: float
) -> tuple[float, float, float, float]:
    return (
        check_real("slope", slope, minimum=0.0),
        check_real("curvature", curvature, minimum=0.0),
        check_real("bias_squared", bias_squared, minimum=0.0),
        check_real("variance", variance, minimum=0.0),
    )
