r"""Adam's moments under privacy noise: noise share and scatter of the second moment, and the first moment.

**Noise share.** Every coordinate of a private mean gradient carries noise of variance Phi = (sigma C / B)^2,
so Adam's bias-corrected second moment has mean v + Phi, where v is that of the clipped gradients. The noise
share is rho = Phi / (v + Phi). Correcting for the noise enlarges a step by (1 - rho)^(-1/2).

**Scatter.** A moving average of squares of noise is not constant: over coordinates it scatters by
sqrt(2 / n_eff), and its median is below its mean. A measured noise share must be corrected for this effect.
Near rho = 1, the scatter hides the signal, so a corrected second moment is mostly its floor.

**First moment.** m_t = beta m_(t-1) + (1 - beta) g_t from m_0 = 0, divided by 1 - beta^t. If the second
moment is only noise, the signal is in m_t. The functions for m_t return how much noise it retains, for
independent and for correlated noise.

Functions of (phi, second moment) take numbers or arrays and broadcast them.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.analysis._arguments import check_numbers, check_result
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Mechanism, Participation, Strategy, check_strategy, mechanism_of
from dpmech.numerics import FloatArray, cumulative_sum, up
from dpmech.schemes.fixed_order import SingleParticipation


def noise_variance(noise_multiplier: float, clip_norm: float, batch_size: float) -> float:
    """Phi = (sigma C / B)^2: variance per coordinate of the noise in the averaged gradient.

    This is for independent noise (`Identity`). `Calibration.noise_variance` computes Phi for any strategy and
    step.

    Args:
        noise_multiplier: sigma at clip norm 1, >= 0.
        clip_norm: C > 0.
        batch_size: B > 0, the public denominator: expected batch size times accumulation steps times world
            size if noise is added once.

    Returns:
        Phi, in units of the gradient squared. Exact.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.def.phi.

    Examples:
        >>> from dpmech.analysis.noise_share.moments import noise_variance
        >>> f"{noise_variance(0.7589, 0.1, 512):.3e}"
        '2.197e-08'
    """
    sigma = check_real("noise_multiplier", noise_multiplier, minimum=0.0)
    clip = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
    size = check_real("batch_size", batch_size, minimum=0.0, open_minimum=True)
    return float(check_result(np.float64(sigma * clip / size) ** 2, "the noise variance"))


def noise_share(phi: npt.ArrayLike, signal_second_moment: npt.ArrayLike) -> FloatArray:
    """The noise share rho = Phi / (v + Phi), in (0, 1]; 1 if the gradients vanish.

    An optimizer stores v + Phi, not v. For its value, use `share_of_measured`.

    Args:
        phi: Phi > 0.
        signal_second_moment: v >= 0, mean square of the clipped gradient, without its noise.

    Returns:
        The broadcast shape. Exact.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm1, ov.thm3.def, ov.thm3.v.

    Examples:
        >>> from dpmech.analysis.noise_share.moments import noise_share
        >>> float(noise_share(2.0, 6.0))
        0.25
    """
    noise = check_numbers("phi", phi, open_minimum=True)
    signal = check_numbers("signal_second_moment", signal_second_moment)
    return check_result(1.0 / (1.0 + signal / noise), "the noise share")


def share_of_measured(phi: npt.ArrayLike, measured_second_moment: npt.ArrayLike) -> FloatArray:
    """The noise share rho = Phi / v_hat from the second moment that an optimizer stores, including noise.

    Args:
        phi: Phi > 0.
        measured_second_moment: v_hat > 0, bias-corrected, of one coordinate or averaged over coordinates. For
            a median over coordinates, use `debiased_noise_share`.

    Returns:
        The broadcast shape. An estimate, unbiased in 1 / rho. It exceeds 1 if v_hat is below Phi because of
        its scatter (`second_moment_scatter`).

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm3.def.

    Examples:
        >>> from dpmech.analysis.noise_share.moments import noise_share, share_of_measured
        >>> float(share_of_measured(2.0, 6.0 + 2.0)), float(noise_share(2.0, 6.0))
        (0.25, 0.25)
    """
    noise = check_numbers("phi", phi, open_minimum=True)
    measured = check_numbers("measured_second_moment", measured_second_moment, open_minimum=True)
    return check_result(noise / measured, "the noise share")


def noise_to_signal(rho: npt.ArrayLike) -> FloatArray:
    """The ratio r = Phi / v = rho / (1 - rho).

    Args:
        rho: the noise share, in [0, 1).

    Returns:
        r >= 0, of the shape of rho. Exact.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm3.def.
    """
    share = _check_share(rho)
    return check_result(share / (1.0 - share), "the noise-to-signal ratio")


def step_correction(rho: npt.ArrayLike) -> FloatArray:
    """kappa_BC = (1 - rho)^(-1/2): the factor by which the correction multiplies a step.

    A ratio of expected denominators: the expectation of the ratio does not exist without a clamp, and with a
    clamp it can be larger or smaller.

    Args:
        rho: the noise share, in [0, 1).

    Returns:
        Of the shape of rho, >= 1. Exact for the plug-in ratio.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm3.ii.

    Examples:
        >>> from dpmech.analysis.noise_share.moments import step_correction
        >>> round(float(step_correction(0.955)), 3)
        4.714
    """
    return check_result((1.0 - _check_share(rho)) ** -0.5, "the step correction")


def step_change(ratio: npt.ArrayLike) -> FloatArray:
    """The relative change g = sqrt(1 + r) - 1 of a step, r = Phi / v.

    Args:
        ratio: r >= 0.

    Returns:
        Of the shape of ratio, accurate for small r. Exact; it exceeds 1 for r > 3 (rho > 3/4).

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm3.iii.
    """
    r = check_numbers("ratio", ratio)
    return check_result(r / (np.sqrt(1.0 + r) + 1.0), "the change of the step")


def materiality_bounds(ratio: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Bounds r/2 - r^2/8 <= g <= r/2 on the relative change of a step.

    The lower bound is tighter than r/2 - r^2/2 in the paper.

    Args:
        ratio: r = Phi / v >= 0.

    Returns:
        (lower, upper), of the shape of ratio. Bounds for every r >= 0; useful for r below about 2.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm3.iii.
    """
    r = check_numbers("ratio", ratio)
    return check_result(r / 2.0 - r**2 / 8.0, "the bound"), check_result(r / 2.0, "the bound")


def noise_share_slope(rho: npt.ArrayLike) -> FloatArray:
    """The slope d rho / d ln r = rho (1 - rho): largest, 1/4, if noise and signal are equal (rho = 1/2).

    Args:
        rho: the noise share, in [0, 1].

    Returns:
        Of the shape of rho. Exact.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm3.iv.
    """
    share = check_numbers("rho", rho, maximum=1.0)
    return check_result(share * (1.0 - share), "the slope")


def _check_share(rho: npt.ArrayLike) -> FloatArray:
    share = check_numbers("rho", rho, maximum=1.0)
    if np.any(share == 1.0):
        raise InvalidParameterError("rho", rho, "below 1, where nothing but noise is left")
    return share


def effective_samples(beta2: float, step: int) -> float:
    """Effective number of independent squares in the bias-corrected moving average after `step` updates.

    (1 + beta2) / (1 - beta2) * (1 - beta2^t) / (1 + beta2^t): initially about t, finally (1 + beta2) /
    (1 - beta2).

    Args:
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.

    Returns:
        n_eff >= 1. Exact for i.i.d. gradients: the variance of the average is that of one square over n_eff.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm1.var.

    Examples:
        >>> from dpmech.analysis.noise_share.moments import effective_samples
        >>> round(effective_samples(0.999, 80), 1), round(effective_samples(0.999, 10**6))
        (80.0, 1999)
    """
    beta = check_real("beta2", beta2, minimum=0.0, maximum=1.0, open_maximum=True)
    t = check_integer("step", step, minimum=1)
    if beta == 0.0:
        return 1.0
    # (1 - beta^t) / (1 + beta^t), without cancellation.
    return (1.0 + beta) / (1.0 - beta) * float(np.tanh(-0.5 * t * np.log(beta)))


def second_moment_scatter(beta2: float, step: int) -> float:
    """Relative standard deviation sqrt(2 / n_eff) of the second moment of pure noise.

    Args:
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.

    Returns:
        From sqrt 2 at the first step down to sqrt(2 (1 - beta2) / (1 + beta2)). Exact for Gaussian noise
        without signal: the second moment differs between coordinates.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm1.var, ov.thm6.iii.
    """
    return float(np.sqrt(2.0 / effective_samples(beta2, step)))


def median_factor(beta2: float, step: int) -> float:
    """Median over mean of the second moment across coordinates: below 1, so Phi / median exceeds rho.

    Args:
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.

    Returns:
        The median of a chi-square variable of n_eff degrees over n_eff. An estimate: the moving average is
        a weighted sum of squares, here replaced by the chi-square of the same mean and variance (measured
        within 0.005 from step 10 on).

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm1.var, ov.thm3.def.
    """
    samples = effective_samples(beta2, step)
    return float(scipy.stats.chi2.ppf(0.5, samples)) / samples


def debiased_noise_share(phi: npt.ArrayLike, median: npt.ArrayLike, *, beta2: float, step: int) -> FloatArray:
    """The noise share from a measured median of the second moment over coordinates.

    The logged Phi / median is too large by the ratio of a chi-square mean to its median.

    Args:
        phi: Phi > 0.
        median: the median over coordinates of the bias-corrected second moment, > 0.
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.

    Returns:
        The broadcast shape. An estimate; it can exceed 1 by sampling error if the signal is small.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm3.def, ov.thm1.var.
    """
    noise = check_numbers("phi", phi, open_minimum=True)
    measured = check_numbers("median", median, open_minimum=True)
    return check_result(noise * median_factor(beta2, step) / measured, "the noise share")


def clamp_fraction(
    phi: npt.ArrayLike, signal_second_moment: npt.ArrayLike, floor: npt.ArrayLike, *, beta2: float, step: int
) -> FloatArray:
    """The share of coordinates whose corrected second moment is below its floor.

    P(chi-square_n / n (v + Phi) < Phi + floor), n = n_eff.

    Args:
        phi: Phi > 0.
        signal_second_moment: v >= 0, without the noise.
        floor: lower limit in max(second moment - Phi, floor), >= 0.
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.

    Returns:
        The broadcast shape, in [0, 1]. An estimate, as for `median_factor`.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm3.ii, ov.thm3.rem.floor.
    """
    noise = check_numbers("phi", phi, open_minimum=True)
    signal = check_numbers("signal_second_moment", signal_second_moment)
    lowest = check_numbers("floor", floor)
    samples = effective_samples(beta2, step)
    threshold = samples * (noise + lowest) / (noise + signal)
    return check_result(scipy.stats.chi2.cdf(threshold, samples), "the clamp fraction")


@dataclasses.dataclass(frozen=True)
class CorrectionOutlook:
    """The possible effect of correcting the second moment for its noise at one operating point.

    Attributes:
        share: the debiased noise share rho.
        change: relative change of a step, infinite if rho >= 1.
        clamped: the share of coordinates whose corrected second moment is below the floor.
        material: whether the change reaches the smallest one that matters.
        estimable: whether few enough coordinates are clamped for the correction to work as intended.
    """

    share: float
    change: float
    clamped: float
    material: bool
    estimable: bool

    @property
    def can_help(self) -> bool:
        """Whether the correction is material and estimable; otherwise it only changes the step size."""
        return self.material and self.estimable

    @property
    def verdict(self) -> str:
        """The outlook in one sentence."""
        change = f"{up(100.0 * self.change, 2)} %" if math.isfinite(self.change) else "an unbounded factor"
        if not self.material:
            return f"little noise: correction would change a step by {change} only"
        if not self.estimable:
            return (
                f"the second moment is noise: {up(100.0 * self.clamped, 2)} % of its corrected values are "
                "below the floor, so that correction only changes the step size; a larger batch or eps helps"
            )
        return (
            f"correction can help: it enlarges a step by {change}, in the coordinates where noise dominates"
        )


def correction_outlook(
    phi: float,
    median: float,
    *,
    beta2: float,
    step: int,
    floor: float,
    min_change: float = 0.1,
    max_clamped: float = 0.1,
) -> CorrectionOutlook:
    """Whether bias correction can help, from a measured median of the second moment.

    The correction changes a step noticeably only if rho is not near 0. It affects individual coordinates only
    if the scatter of the moving average does not hide v: near rho = 1, most corrected values are clamped.

    Args:
        phi: Phi > 0.
        median: the median over coordinates of the bias-corrected second moment, > 0.
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.
        floor: lower limit of the corrected second moment, >= 0.
        min_change: the smallest relative change of a step that matters, > 0.
        max_clamped: the largest acceptable share of clamped coordinates, in [0, 1].

    Returns:
        A CorrectionOutlook: an estimate. The two thresholds are a choice, not a theorem.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm3.iii, ov.thm3.ii, ov.thm3.rem.floor.
    """
    noise = check_real("phi", phi, minimum=0.0, open_minimum=True)
    smallest = check_real("min_change", min_change, minimum=0.0, open_minimum=True)
    bearable = check_real("max_clamped", max_clamped, minimum=0.0, maximum=1.0)
    share = float(debiased_noise_share(noise, median, beta2=beta2, step=step))
    signal = noise * max(1.0 / share - 1.0, 0.0)
    change = float(step_change(noise / signal)) if signal > 0.0 else float("inf")
    clamped = float(clamp_fraction(noise, signal, floor, beta2=beta2, step=step))
    return CorrectionOutlook(share, change, clamped, change >= smallest, clamped <= bearable)


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
        InvalidParameterError: if an argument is invalid.

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
        In the unit of phi. Exact for independent noise; decreases from Phi to (1 - beta) / (1 + beta) Phi.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm6.ii.

    Examples:
        >>> from dpmech.analysis.noise_share.moments import average_variance
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
        InvalidParameterError: if an argument is invalid.

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
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm6.ii, ov.theta.weights.

    Examples:
        >>> import dpmech as dm
        >>> from dpmech.analysis.noise_share.moments import correlated_average_variances
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

    It is sens^2 ||C^-1[t, :]||^2, as in a second moment. For LambdaCGD, it tends to (1 + lam^2) / (1 -
    lam^2), not to the squared sensitivity 1 / (1 - lam^2).

    Args:
        strategy: C over n steps; or a Mechanism, which also sets participation and adjacency.
        participation: which examples take part when; None is SingleParticipation.

    Returns:
        Shape (n,). Exact if the sensitivity is exact, else an upper bound.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.vhat.corr.

    Examples:
        >>> import dpmech as dm
        >>> from dpmech.analysis.noise_share.moments import matched_step_variances
        >>> print(f"{matched_step_variances(dm.LambdaCGD(999, 0.9))[-1] ** 0.5:.2f}")
        3.09
    """
    if participation is None and not isinstance(strategy, Mechanism):
        participation = SingleParticipation()
    mechanism = mechanism_of(strategy, participation)
    return (mechanism.sensitivity.upper * mechanism.strategy.noising_row_norms()) ** 2


def effective_learning_rate(learning_rate: float, phi: float, adam_eps: float = 1e-8) -> float:
    """Adam's step size lr / (sqrt(Phi) + adam_eps) if the second moment is only noise.

    Args:
        learning_rate: > 0.
        phi: variance of the noise of one step, >= 0.
        adam_eps: the constant that Adam adds to the denominator, > 0.

    Returns:
        In the unit of learning_rate over gradient. An estimate: the denominator scatters around it by
        `preconditioner_spread`.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm6.iv.
    """
    rate = check_real("learning_rate", learning_rate, minimum=0.0, open_minimum=True)
    noise = check_real("phi", phi, minimum=0.0)
    return rate / (float(np.sqrt(noise)) + _check_adam_eps(adam_eps))


def preconditioner_deviation_bound(phi: float, signal_second_moment: float, adam_eps: float = 1e-8) -> float:
    """Bound on the deviation of 1 / (sqrt(v + Phi) + eps) from 1 / (sqrt(Phi) + eps).

    v / (2 sqrt(Phi) (sqrt(Phi) + eps)^2); the relative deviation is at most
    v / (2 Phi) = (1 - rho) / (2 rho).

    Args:
        phi: Phi > 0.
        signal_second_moment: v >= 0, without the noise.
        adam_eps: the constant that Adam adds to the denominator, > 0.

    Returns:
        In the inverse unit of a gradient. An upper bound.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        noise_share ov.thm6.iv.
    """
    noise = check_real("phi", phi, minimum=0.0, open_minimum=True)
    clean = check_real("signal_second_moment", signal_second_moment, minimum=0.0)
    root = float(np.sqrt(noise))
    return clean / (2.0 * root * (root + _check_adam_eps(adam_eps)) ** 2)


def preconditioner_spread(beta2: float, step: int, signal_to_noise: float) -> float:
    """Relative error of replacing Adam's denominator by sqrt(Phi): scatter and signal together.

    sqrt(2 / n_eff) / 2 + v / (2 Phi), n_eff the effective number of squares in the average.

    Args:
        beta2: decay, in [0, 1).
        step: t >= 1.
        signal_to_noise: v / Phi >= 0.

    Returns:
        To first order in both terms: an estimate. At the first step, the denominator is the magnitude of the
        gradient, so the update is its sign, not a constant multiple of it.

    Raises:
        InvalidParameterError: if an argument is invalid.

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
