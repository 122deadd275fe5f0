r"""Bounds on loss and gradient norm under the SDEs of DP training, and the learning rates that minimise them.

**Bounds.** The loss f >= 0 (its minimum subtracted) is L-smooth. By Ito's formula, d E f <= -s E ||grad f||^2
dt + (lr L / 2) Tr S dt, where s is the slope of the drift and S is the covariance of a step over lr. With
mu-PL, ||grad f||^2 >= 2 mu f, the loss decays at rate 2 mu s to a floor; without it, the mean of ||grad f||^2
over the run is bounded. The constants are those of this derivation; some of the paper's printed constants
differ.

Slopes decrease as gradients grow, because clipping bounds the norm of gradients and signs saturate. The
bounds hold for the equation if gradients are within the stated limits. (A limit of 0 is the linear limit of
small gradients, as in the paper.)

**Tuning.** Two protocols compare DP-SGD with DP-SignSGD. Protocol A keeps the learning rate that was tuned
for one noise multiplier while the noise changes. Protocol B tunes it for each multiplier.

The paper states the noise multiplier as an eps, by the rule sigma = q sqrt(T ln(1/delta)) / eps of
`scaling_law_epsilon`. This rule is not a privacy guarantee: use `dpmech.epsilon` for the eps of a multiplier.
DP-SGD and DP-SignSGD have the meaning of the paper: independent noise, for any sampling.
"""

import dataclasses
import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpmech.analysis._arguments import check_numbers
from dpmech.analysis.sde.dynamics import GradientNoise, clipped_gain, sign_gain
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray


@dataclasses.dataclass(frozen=True)
class LossBound:
    """E f(X_t) <= f_0 e^(-rate t) + (1 - e^(-rate t)) floor, t = steps times learning rate.

    Attributes:
        rate: of decay, per unit of t.
        floor: the limit of the loss, in the unit of f.
    """

    rate: float
    floor: float

    def at(self, initial_loss: float, time: float) -> float:
        """The bound at t = `time` >= 0 from f_0 = `initial_loss` >= 0.

        Raises:
            InvalidParameterError: if an argument is invalid.
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
    """Bound on the loss of DP-SGD if no example is clipped, or if all are.

    Unclipped: rate 2 mu, floor lr d L V / (4 mu). Clipped: rate 2 mu a, floor
    lr L (C^2 / B + d Phi) / (4 mu a), a the gain of clipping.

    Args:
        noise: the noise of the gradient.
        learning_rate: lr > 0.
        pl_constant: mu > 0, with ||grad f||^2 >= 2 mu f.
        smoothness: L >= mu.
        clipped: whether all examples are clipped, or none.
        gradient_norm: the largest ||grad f|| on the path; used only with `clipped`.

    Returns:
        An upper bound for the equation, attained by f = h ||x||^2 / 2 without clipping. The iterates differ
        from it by a factor of 1 + O(lr L), which is exactly 1 / (1 - lr h / 2) in that case.

    Raises:
        InvalidParameterError: if an argument is invalid.

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
    """Bound on the loss of DP-SignSGD if no example is clipped, or if all are.

    Rate 2 mu s, floor lr d L / (4 mu s), s the slope `sign_gain`.

    Args:
        noise: the noise of the gradient; it must not vanish.
        learning_rate: lr > 0.
        pl_constant: mu > 0, with ||grad f||^2 >= 2 mu f.
        smoothness: L >= mu.
        clipped: whether all examples are clipped, or none.
        gradient_norm: the largest ||grad f|| on the path; used only with `clipped`.
        coordinate: the largest abs(grad f)_i on the path. At 0, the bound is that of the linear drift. It
            does not hold for a distant start, because each step moves a coordinate by at most lr.

    Returns:
        An upper bound for the equation without clipping, within the limits; otherwise an estimate for large d
        or B, like `sign_gain`.

    Raises:
        InvalidParameterError: if an argument is invalid, or if there is no noise at all.

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
    """Bound on the mean of ||grad f||^2 over a run of DP-SGD whose steps are clipped, unclipped, or both.

    K1 (f_0 / (lr T) + lr d L / 2 (K2 + Phi)), K1 = max(1, 1/a), K2 = max(sigma_gamma^2, C^2 / d) / B. The
    paper's K2 has C^2 / d without the average over the batch. Batches that mix clipped and unclipped examples
    add the variance between the two, at most (1 - a)^2 ||grad f||^2 / (4 B), which the paper omits; it is
    subtracted from the slope: 1 / K1 - lr L (1 - a)^2 / (8 B).

    Args:
        noise: the noise of the gradient, with batch_noise > 0.
        learning_rate: lr > 0.
        steps: T >= 1.
        smoothness: L > 0.
        initial_loss: f_0 >= 0.
        mixed: whether one batch may contain clipped and unclipped examples.
        gradient_norm: the largest ||grad f|| on the path, for the gain of clipping.

    Returns:
        An upper bound for the equation; in the unit of the gradient squared.

    Raises:
        InvalidParameterError: if an argument is invalid, or if subtracting that variance leaves no positive
            slope.

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
    """Bound on the mean of ||grad f||^2 over a run of DP-SignSGD whose steps are clipped or unclipped.

    (f_0 / (lr T) + lr d L / 2) / s, s the smaller of the two slopes: the paper's K3 sqrt(T) / eps with the
    slope of its clipped phase corrected. The tighter K4 of the paper for mixed batches omits the batch noise,
    so its bound holds only if that noise is small.

    Args:
        noise: the noise of the gradient, with batch_noise > 0.
        learning_rate: lr > 0.
        steps: T >= 1.
        smoothness: L > 0.
        initial_loss: f_0 >= 0.
        gradient_norm: the largest ||grad f|| on the path, for the gain of clipping.
        coordinate: the largest abs(grad f)_i on the path.

    Returns:
        An upper bound for the equation without clipping, otherwise an estimate for large d or B; in the unit
        of the gradient squared.

    Raises:
        InvalidParameterError: if an argument is invalid.

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


def scaling_law_epsilon(noise_multiplier: float, delta: float, *, sampling_prob: float, steps: int) -> float:
    """The paper's label q sqrt(T ln(1/delta)) / sigma for a noise multiplier. NOT a privacy guarantee.

    The true eps of Poisson sampling is 6.4 times this label at sigma = 0.5 in the paper's IMDB setting, and
    859 times at sigma = 0.1 on StackOverflow. Use the label only to read the plots of the paper.

    Args:
        noise_multiplier: sigma > 0.
        delta: in (0, 1).
        sampling_prob: q = B / n in (0, 1].
        steps: T >= 1.

    Returns:
        The label. Neither an upper nor a lower bound on eps.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        sde sde.thm3.1, sde.eps.formula, sde.eps.certified.

    Examples:
        >>> from dpmech.analysis.sde.bounds import scaling_law_epsilon
        >>> round(scaling_law_epsilon(1.0, 1e-5, sampling_prob=64 / 10_000, steps=15_600), 3)
        2.712
    """
    sigma = check_real("noise_multiplier", noise_multiplier, minimum=0.0, open_minimum=True)
    chance, share, total = _check_schedule(delta, sampling_prob, steps)
    return share * math.sqrt(-total * math.log(chance)) / sigma


def critical_noise_multiplier(
    *,
    batch_size: float,
    batch_noise: float,
    sgd_rate: float,
    sign_rate: float,
    sgd_clip: float,
    sign_clip: float,
) -> float:
    """The noise multiplier above which DP-SignSGD has the lower loss floor, without clipping.

    With V = sigma_gamma^2 / B + (sigma C / B)^2 for each optimizer, the floors have the ratio lr_sgd V_sgd :
    lr_sign sqrt(pi/2) sqrt(V_sign). At equal rates and clip norms, they are equal at V = pi/2, and not at V =
    1 as in the paper, which omits the constants. V is in units of the gradient squared, so the result depends
    on the unit of the loss.

    Args:
        batch_size: B >= 1.
        batch_noise: sigma_gamma >= 0.
        sgd_rate: learning rate of DP-SGD, > 0.
        sign_rate: learning rate of DP-SignSGD, > 0.
        sgd_clip: clip norm of DP-SGD, > 0.
        sign_clip: clip norm of DP-SignSGD, > 0.

    Returns:
        sigma*: the floor of DP-SignSGD is lower for every sigma above it. It is 0 if the floor is lower for
        every sigma. Exact for the floors of the two equations at small gradients. With different clip norms
        and large batch noise, the floor of DP-SignSGD can also be lower for small sigma.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if the ratio of the floors leaves the range of float64.

    References:
        sde sde.thm4.5/corB16.

    Examples:
        >>> from dpmech.analysis.sde.bounds import critical_noise_multiplier
        >>> round(critical_noise_multiplier(
        ...     batch_size=64, batch_noise=0.0, sgd_rate=3.0, sign_rate=0.01, sgd_clip=0.25, sign_clip=0.5
        ... ), 3)
        2.139
    """
    size = check_real("batch_size", batch_size, minimum=1.0)
    scale = check_real("batch_noise", batch_noise, minimum=0.0)
    positive = {"sgd_rate": sgd_rate, "sign_rate": sign_rate, "sgd_clip": sgd_clip, "sign_clip": sign_clip}
    for name, value in positive.items():
        check_real(name, value, minimum=0.0, open_minimum=True)
    # With y = (sigma C_sgd / B)^2: (batch + y)^2 > limit (batch + clips y), beyond the larger root.
    batch = scale * scale / size
    rates = sign_rate / sgd_rate
    clips = sign_clip / sgd_clip
    limit = 0.5 * math.pi * rates * rates
    half_linear = batch - 0.5 * limit * clips * clips
    constant = batch * (batch - limit)
    discriminant = half_linear * half_linear - constant
    if not math.isfinite(discriminant):
        raise NumericalError("the ratio of the two loss floors leaves the range of float64")
    if discriminant <= 0.0:
        return 0.0
    root = math.sqrt(discriminant)
    # This form has no subtraction, hence no cancellation.
    y = root - half_linear if half_linear <= 0.0 else -constant / (root + half_linear)
    return size * math.sqrt(y) / sgd_clip if y > 0.0 else 0.0


def critical_epsilon(
    delta: float,
    *,
    dataset_size: float,
    steps: int,
    batch_size: float,
    batch_noise: float,
    sgd_rate: float,
    sign_rate: float,
    sgd_clip: float,
    sign_clip: float,
) -> float:
    """eps*: the label of the paper for `critical_noise_multiplier`; DP-SignSGD has the lower floor below it.

    At equal rates and clip norms, it is sqrt(C^2 T ln(1/delta) / (n^2 (pi/2 - sigma_gamma^2 / B))). The paper
    has 1 instead of pi/2.

    Args:
        delta: in (0, 1).
        dataset_size: n >= B.
        steps: T >= 1.
        batch_size: B >= 1.
        batch_noise: sigma_gamma >= 0.
        sgd_rate: learning rate of DP-SGD, > 0.
        sign_rate: learning rate of DP-SignSGD, > 0.
        sgd_clip: clip norm of DP-SGD, > 0.
        sign_clip: clip norm of DP-SignSGD, > 0.

    Returns:
        The label, computed by `scaling_law_epsilon`; math.inf if the floor of DP-SignSGD is always lower. It
        is not a certified eps; for that, pass the multiplier to `dpmech.epsilon`.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        sde sde.thm4.5/corB16.
    """
    size = check_real("dataset_size", dataset_size, minimum=1.0)
    batch = check_real("batch_size", batch_size, minimum=1.0, maximum=size)
    sigma = critical_noise_multiplier(
        batch_size=batch,
        batch_noise=batch_noise,
        sgd_rate=sgd_rate,
        sign_rate=sign_rate,
        sgd_clip=sgd_clip,
        sign_clip=sign_clip,
    )
    _check_schedule(delta, batch / size, steps)
    if sigma == 0.0:
        return math.inf
    return scaling_law_epsilon(sigma, delta, sampling_prob=batch / size, steps=steps)


def optimal_sgd_rate(noise: GradientNoise, *, steps: int, smoothness: float, initial_loss: float) -> float:
    """The learning rate that minimises `sgd_gradient_bound`: sqrt(2 f_0 / (d L T (K2 + Phi))).

    The rate is inversely proportional to the noise multiplier if the privacy noise dominates.

    Args:
        noise: the noise of the gradient.
        steps: T >= 1.
        smoothness: L > 0.
        initial_loss: f_0 > 0.

    Returns:
        The exact minimiser of the bound (batches that do not mix clipped and unclipped examples).

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        sde sde.thm4.6.
    """
    total, smooth, start = _check_training(steps, smoothness, initial_loss)
    largest = max(noise.batch_noise**2, noise.clip_norm**2 / noise.dimension) / noise.batch_size
    variance = largest + noise.privacy_variance
    return math.sqrt(2.0 * start / (noise.dimension * smooth * total * variance))


def optimal_sign_rate(*, dimension: int, steps: int, smoothness: float, initial_loss: float) -> float:
    """The learning rate that minimises `sign_gradient_bound`: sqrt(2 f_0 / (d L T)), for any noise.

    Args:
        dimension: d >= 1.
        steps: T >= 1.
        smoothness: L > 0.
        initial_loss: f_0 > 0.

    Returns:
        The exact minimiser of the bound.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        sde sde.thm4.7.

    Examples:
        >>> from dpmech.analysis.sde.bounds import optimal_sign_rate
        >>> rate = optimal_sign_rate(dimension=10_000, steps=10**9, smoothness=1.0, initial_loss=1.0)
        >>> f"{rate:.4g}"
        '4.472e-07'
    """
    size = check_integer("dimension", dimension, minimum=1)
    total, smooth, start = _check_training(steps, smoothness, initial_loss)
    return math.sqrt(2.0 * start / (size * smooth * total))


def rescale_rate(
    rate: float, old: GradientNoise, new: GradientNoise, *, optimizer: Literal["sgd", "sign", "adam"]
) -> float:
    """Transfer a learning rate that was tuned for one noise to a new eps, batch size or clip norm.

    The best rate of SGD is inversely proportional to the standard deviation of the mean gradient, with
    privacy noise and batch noise together. It is proportional to 1 / sigma if the privacy noise dominates.
    The updates of SignSGD have the size of the rate for any noise, as have those of Adam if its second moment
    is mostly noise. In these cases, the rate does not change.

    Args:
        rate: the learning rate tuned for `old`, > 0.
        old: the noise that it was tuned for.
        new: the noise of the new run, with the same number of steps and the same dimension.
        optimizer: "sgd", "sign" or "adam".

    Returns:
        The rate for `new`. For "sgd" and "sign", it follows from the ratio of the exact minimisers of
        `sgd_gradient_bound` and `sign_gradient_bound`, which is an estimate for training itself. For "adam",
        it is a rule of thumb.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if the rate leaves the range of float64.

    References:
        sde sde.thm4.6, sde.thm4.7.

    Examples:
        >>> import dataclasses
        >>> from dpmech.analysis.sde.bounds import rescale_rate
        >>> from dpmech.analysis.sde.dynamics import GradientNoise
        >>> old = GradientNoise(
        ...     dimension=9000, clip_norm=1.0, batch_size=64, batch_noise=0.0, noise_multiplier=2.0
        ... )
        >>> new = dataclasses.replace(old, noise_multiplier=8.0)
        >>> round(rescale_rate(0.5, old, new, optimizer="sgd"), 3)
        0.125
        >>> rescale_rate(0.5, old, new, optimizer="sign")
        0.5
    """
    tuned = check_real("rate", rate, minimum=0.0, open_minimum=True)
    if optimizer not in ("sgd", "sign", "adam"):
        raise InvalidParameterError("optimizer", optimizer, '"sgd", "sign" or "adam"')
    if old.dimension != new.dimension:
        raise InvalidParameterError("new", new, f"a GradientNoise of dimension {old.dimension}, as `old`")
    if optimizer != "sgd":
        return tuned
    before, after = (
        optimal_sgd_rate(noise, steps=1, smoothness=1.0, initial_loss=1.0) for noise in (old, new)
    )
    found = tuned * (after / before)
    if not 0.0 < found < math.inf:
        raise NumericalError("the learning rate leaves the range of float64")
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class TunedBounds:
    """Learning rates and gradient bounds over a range of noise multipliers.

    Attributes:
        noise_multipliers: shape (m,).
        sgd_rates: the learning rates of DP-SGD, shape (m,).
        sgd_bounds: its bounds on the mean of ||grad f||^2, shape (m,).
        sign_rates: the learning rates of DP-SignSGD, shape (m,).
        sign_bounds: its bounds, shape (m,).
    """

    noise_multipliers: FloatArray
    sgd_rates: FloatArray
    sgd_bounds: FloatArray
    sign_rates: FloatArray
    sign_bounds: FloatArray


def tuned_bounds(
    noise: GradientNoise,
    noise_multipliers: npt.ArrayLike,
    *,
    steps: int,
    smoothness: float,
    initial_loss: float,
    retuned: bool,
) -> TunedBounds:
    """Gradient bounds of both optimizers over noise multipliers, under protocol A or B.

    Args:
        noise: the noise of the gradient; under protocol A the rates are optimal for it.
        noise_multipliers: the multipliers to compare, shape (m,), > 0.
        steps: T >= 1.
        smoothness: L > 0.
        initial_loss: f_0 > 0.
        retuned: True is protocol B, the optimal rate for each multiplier; False is protocol A.

    Returns:
        Rates and bounds. The rates minimise the bounds exactly; the bounds are those of `bounds`.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        sde sde.thm4.6, sde.thm4.7, sde.thm4.2/B7, sde.thm4.4/B13.
    """
    multipliers = check_numbers("noise_multipliers", noise_multipliers, open_minimum=True)
    if multipliers.ndim != 1:
        raise InvalidParameterError("noise_multipliers", noise_multipliers, "a one-dimensional sequence")
    sign_rate = optimal_sign_rate(
        dimension=noise.dimension, steps=steps, smoothness=smoothness, initial_loss=initial_loss
    )
    rows = []
    for sigma in multipliers:
        here = dataclasses.replace(noise, noise_multiplier=float(sigma))
        rate = optimal_sgd_rate(
            here if retuned else noise, steps=steps, smoothness=smoothness, initial_loss=initial_loss
        )
        sgd = sgd_gradient_bound(
            here, learning_rate=rate, steps=steps, smoothness=smoothness, initial_loss=initial_loss
        )
        sign = sign_gradient_bound(
            here, learning_rate=sign_rate, steps=steps, smoothness=smoothness, initial_loss=initial_loss
        )
        rows.append((rate, sgd, sign_rate, sign))
    return TunedBounds(multipliers, *np.array(rows).T)


def _check_schedule(delta: float, sampling_prob: float, steps: int) -> tuple[float, float, int]:
    return (
        check_real("delta", delta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True),
        check_real("sampling_prob", sampling_prob, minimum=0.0, maximum=1.0, open_minimum=True),
        check_integer("steps", steps, minimum=1),
    )


def _check_training(steps: int, smoothness: float, initial_loss: float) -> tuple[int, float, float]:
    return (
        check_integer("steps", steps, minimum=1),
        check_real("smoothness", smoothness, minimum=0.0, open_minimum=True),
        check_real("initial_loss", initial_loss, minimum=0.0, open_minimum=True),
    )
