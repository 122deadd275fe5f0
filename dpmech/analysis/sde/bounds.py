r"""Bounds on the loss and on the gradient norm under the stochastic differential equations of DP training.

The loss f >= 0 (its minimum subtracted) is L-smooth. Ito's formula gives d E f <= -s E ||grad f||^2 dt +
(lr L / 2) Tr S dt, with s the slope of the drift and S the covariance of a step over lr. With mu-PL,
||grad f||^2 >= 2 mu f, the loss falls at rate 2 mu s to a floor; without, the mean of ||grad f||^2 over the
run is bounded. The constants are those of this derivation; the paper's printed ones differ in places.

Slopes fall as gradients grow: clipped gradients keep their length at most, and signs saturate. The bounds
hold for the equation as long as gradients stay within the stated limits (0: the linear limit of small
gradients, which is the paper's). DP-SGD is the paper's word: independent noise, whatever the sampling.
"""

import dataclasses
import math

from dpmech.analysis.sde.dynamics import GradientNoise, clipped_gain
from dpmech.analysis.sde.sign import sign_gain
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer, check_real

__all__ = ["LossBound", "sgd_gradient_bound", "sgd_loss_bound", "sign_gradient_bound", "sign_loss_bound"]


@dataclasses.dataclass(frozen=True)
class LossBound:
    """E f(X_t) <= f_0 e^(-rate t) + (1 - e^(-rate t)) floor, t = steps times learning rate.

    Attributes:
        rate: of decay, per unit of t.
        floor: the loss that is reached in the end, in the unit of f.
    """

    rate: float
    floor: float

    def at(self, initial_loss: float, time: float) -> float:
        """The bound at t = `time` >= 0 from f_0 = `initial_loss` >= 0.

        Raises:
            InvalidParameterError: on a bad argument.
        """
        start = check_real("initial_loss", initial_loss, minimum=0.0)
        decay = math.exp(-self.rate * check_real("time", time, minimum=0.0))
        return start * decay + (1.0 - decay) * self.floor


def sgd_loss_bound(
    noise: GradientNoise,
    *,
    learning_rate: float,
    pl_constant: float,
    smoothness: float,
    clipped: bool = False,
    gradient_norm: float = 0.0,
) -> LossBound:
    """DP-SGD's loss while no example is clipped, or while all are.

    Unclipped: rate 2 mu, floor lr d L V / (4 mu). Clipped: rate 2 mu a, floor
    lr L (C^2 / B + d Phi) / (4 mu a), a the gain of clipping.

    Args:
        noise: the noise of the gradient.
        learning_rate: lr > 0.
        pl_constant: mu > 0, with ||grad f||^2 >= 2 mu f.
        smoothness: L >= mu.
        clipped: whether all examples are clipped, or none.
        gradient_norm: the largest ||grad f|| on the path; used with `clipped` only.

    Returns:
        An upper bound for the equation, attained by f = h ||x||^2 / 2 where nothing is clipped. The iterates
        themselves differ by a factor 1 + O(lr L): exactly 1 / (1 - lr h / 2) in that case.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        sde sde.thm4.1/B6.1, sde.thm4.1/B6.2.

    Examples:
        >>> from dpmech.analysis.sde.dynamics import GradientNoise
        >>> from dpmech.analysis.sde.bounds import sgd_loss_bound
        >>> noise = GradientNoise(
        ...     dimension=64, clip_norm=1.0, batch_size=1, batch_noise=0.0, noise_multiplier=2.0
        ... )
        >>> round(sgd_loss_bound(noise, learning_rate=0.01, pl_constant=1.0, smoothness=1.0).floor, 3)
        0.64
    """
    rate, mu, smooth = _check_problem(learning_rate, pl_constant, smoothness)
    slope = clipped_gain(noise, gradient_norm=gradient_norm) if clipped else 1.0
    return LossBound(2.0 * mu * slope, 0.25 * rate * smooth * _trace(noise, clipped=clipped) / (mu * slope))


def sign_loss_bound(
    noise: GradientNoise,
    *,
    learning_rate: float,
    pl_constant: float,
    smoothness: float,
    clipped: bool = False,
    gradient_norm: float = 0.0,
    coordinate: float = 0.0,
) -> LossBound:
    """DP-SignSGD's loss while no example is clipped, or while all are.

    Rate 2 mu s, floor lr d L / (4 mu s), s the slope `sign_gain`.

    Args:
        noise: the noise of the gradient; it must not vanish.
        learning_rate: lr > 0.
        pl_constant: mu > 0, with ||grad f||^2 >= 2 mu f.
        smoothness: L >= mu.
        clipped: whether all examples are clipped, or none.
        gradient_norm: the largest ||grad f|| on the path; used with `clipped` only.
        coordinate: the largest abs(grad f)_i on the path. At 0 the bound is that of the linear drift, and
            fails for a start far away: there a sign moves by lr a step and no faster.

    Returns:
        An upper bound for the equation where nothing is clipped, within the limits; an estimate for large d
        or B otherwise, as `sign_gain` is.

    Raises:
        InvalidParameterError: on a bad argument, or where there is no noise at all.

    References:
        sde sde.thm4.3/B12.1, sde.thm4.3/B12.2.
    """
    rate, mu, smooth = _check_problem(learning_rate, pl_constant, smoothness)
    slope = sign_gain(noise, clipped=clipped, gradient_norm=gradient_norm, coordinate=coordinate)
    return LossBound(2.0 * mu * slope, 0.25 * rate * noise.dimension * smooth / (mu * slope))


def sgd_gradient_bound(
    noise: GradientNoise,
    *,
    learning_rate: float,
    steps: int,
    smoothness: float,
    initial_loss: float,
    mixed: bool = False,
    gradient_norm: float = 0.0,
) -> float:
    """Mean of ||grad f||^2 over a run of DP-SGD whose steps are clipped, unclipped, or both.

    K1 (f_0 / (lr T) + lr d L / 2 (K2 + Phi)), K1 = max(1, 1/a), K2 = max(sigma_gamma^2, C^2 / d) / B. The
    paper's K2 has C^2 / d without the average over the lot. Lots that mix clipped and unclipped examples
    add the variance between the two, at most (1 - a)^2 ||grad f||^2 / (4 B), which the paper leaves out; it
    is taken off the slope: 1 / K1 - lr L (1 - a)^2 / (8 B).

    Args:
        noise: the noise of the gradient, with batch_noise > 0.
        learning_rate: lr > 0.
        steps: T >= 1.
        smoothness: L > 0.
        initial_loss: f_0 >= 0.
        mixed: whether one lot may hold clipped and unclipped examples.
        gradient_norm: the largest ||grad f|| on the path, for the gain of clipping.

    Returns:
        An upper bound for the equation; in the unit of the gradient squared.

    Raises:
        InvalidParameterError: on a bad argument, or where the variance between leaves no slope.

    References:
        sde sde.thm4.2/B7, sde.thmB8.
    """
    rate, horizon, smooth, start = _check_run(learning_rate, steps, smoothness, initial_loss)
    gain = clipped_gain(noise, gradient_norm=gradient_norm)
    slope = min(1.0, gain)
    if mixed:
        slope -= rate * smooth * (1.0 - gain) ** 2 / (8.0 * noise.batch_size)
        if slope <= 0.0:
            raise InvalidParameterError("learning_rate", learning_rate, "smaller, for the bound to exist")
    trace = max(_trace(noise, clipped=True), _trace(noise, clipped=False))
    return (start / (rate * horizon) + 0.5 * rate * smooth * trace) / slope


def sign_gradient_bound(
    noise: GradientNoise,
    *,
    learning_rate: float,
    steps: int,
    smoothness: float,
    initial_loss: float,
    gradient_norm: float = 0.0,
    coordinate: float = 0.0,
) -> float:
    """Mean of ||grad f||^2 over a run of DP-SignSGD whose steps are clipped or unclipped.

    (f_0 / (lr T) + lr d L / 2) / s, s the smaller of the two slopes: the paper's K3 sqrt(T) / eps with the
    slope of its clipped phase corrected. Its tighter K4 for mixed lots leaves out the batch noise, and its
    bound fails where that is not small.

    Args:
        noise: the noise of the gradient, with batch_noise > 0.
        learning_rate: lr > 0.
        steps: T >= 1.
        smoothness: L > 0.
        initial_loss: f_0 >= 0.
        gradient_norm: the largest ||grad f|| on the path, for the gain of clipping.
        coordinate: the largest abs(grad f)_i on the path.

    Returns:
        An upper bound for the equation where nothing is clipped, an estimate for large d or B otherwise; in
        the unit of the gradient squared.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        sde sde.thm4.4/B13, sde.thmB14.
    """
    rate, horizon, smooth, start = _check_run(learning_rate, steps, smoothness, initial_loss)
    slope = min(
        sign_gain(noise, coordinate=coordinate),
        sign_gain(noise, clipped=True, gradient_norm=gradient_norm, coordinate=coordinate),
    )
    return (start / (rate * horizon) + 0.5 * rate * noise.dimension * smooth) / slope


def _trace(noise: GradientNoise, *, clipped: bool) -> float:
    """Largest trace of the covariance of the private mean gradient."""
    if clipped:
        return noise.clip_norm**2 / noise.batch_size + noise.dimension * noise.privacy_variance
    return noise.dimension * noise.total_variance


def _check_problem(learning_rate: float, pl_constant: float, smoothness: float) -> tuple[float, float, float]:
    mu = check_real("pl_constant", pl_constant, minimum=0.0, open_minimum=True)
    return (
        check_real("learning_rate", learning_rate, minimum=0.0, open_minimum=True),
        mu,
        check_real("smoothness", smoothness, minimum=mu),
    )


def _check_run(
    learning_rate: float, steps: int, smoothness: float, initial_loss: float
) -> tuple[float, int, float, float]:
    return (
        check_real("learning_rate", learning_rate, minimum=0.0, open_minimum=True),
        check_integer("steps", steps, minimum=1),
        check_real("smoothness", smoothness, minimum=0.0, open_minimum=True),
        check_real("initial_loss", initial_loss, minimum=0.0),
    )
