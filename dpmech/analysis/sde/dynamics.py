r"""DP-SGD and DP-SignSGD as stochastic differential equations: drifts, diffusions, simulated paths.

The equation is dX = b(X) dt + sqrt(lr) S(X)^(1/2) dW. One step of length lr moves by -lr times the private
mean gradient (DP-SGD) or its sign (DP-SignSGD). b and S are mean and covariance of that step over lr, so the
equation follows the iterates weakly to first order in lr. Each of B examples has gradient g + noise; a share
of them is clipped to norm C (the paper's Phase 1 is share 1, Phase 2 is share 0); Gaussian noise of standard
deviation sigma C / B is added to the mean. The paper states Phase 1 for one clipped vector, without the
average over the batch. This is the case batch_size = 1 with noise multiplier sigma / B.

**Effect of clipping on a gradient.** X is the gradient of one example, g plus noise of scale s in each of d
coordinates: Gaussian, or multivariate Student t with nu degrees of freedom (all coordinates share one
chi-square variable, so s is a scale and not a standard deviation). Clipping maps X to C u, u = X / ||X||. By
rotation E[u] = c g and E[u u^T] = p I + r g g^T. With z = ||g||^2 / (2 s^2) and K the factor below,

    c = K(nu) K(d) / (s sqrt d) 2F1(1/2, (nu + 1)/2; d/2 + 1; -2 z / nu),
    p = 2F1(1, nu/2; d/2 + 1; -2 z / nu) / d,

which follow from the Gaussian forms c = K(d) / (s sqrt d) 1F1(1/2; d/2 + 1; -z) and
p = 1F1(1; d/2 + 1; -z) / d by averaging over the chi-square variable.

**Signs.** A coordinate of the private mean gradient with mean m_i and variance S_ii, if it is Gaussian, has
expected sign erf(m_i / sqrt(2 S_ii)), and a sign has variance one minus its squared mean.

DP-SGD and DP-SignSGD have the meaning of the paper: independent noise, for any sampling. In functions of a
gradient, the last axis is the d coordinates and any axes before it are replicas.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.analysis._arguments import check_numbers, check_result
from dpmech.certificates import Claim
from dpmech.exceptions import InvalidParameterError, NumericalError, UnsupportedCombinationError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

_SERIES_FROM = 300.0
# Trapezoid rule on the logit scale: it converges exponentially, and 0.25 is accurate to rounding.
_SPACING = 0.25
_LOG_TAIL = 37.0
_CHUNK = 512


class DirectionMoments(NamedTuple):
    """Moments of u = X / ||X||, each of the shape of the norms.

    Attributes:
        gain: c, with E[u] = c g; decreases in ||g||. Unit: the inverse of that of a gradient.
        spread: p, the second moment of u along any direction orthogonal to g.
        along: the second moment of u along g, in [p, 1].
    """

    gain: FloatArray
    spread: FloatArray
    along: FloatArray


def direction_factor(degrees_of_freedom: float) -> float:
    """K(nu) = sqrt(2/nu) Gamma((nu + 1)/2) / Gamma(nu/2): mean of a chi variable over its root mean square.

    Args:
        degrees_of_freedom: nu > 0; math.inf (Gaussian) returns 1.

    Returns:
        K in (0, 1], about 1 - 1 / (4 nu). Exact, to 1e-12.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        sde sde.lemA2.

    Examples:
        >>> from dpmech.analysis.sde.dynamics import direction_factor
        >>> round(direction_factor(1), 4), round(direction_factor(3), 4)
        (0.7979, 0.9213)
    """
    nu = check_degrees_of_freedom(degrees_of_freedom)
    if nu > _SERIES_FROM:
        # The difference of log Gamma values loses digits here; the asymptotic series does not.
        inverse = 1.0 / nu
        return 1.0 + inverse * (-0.25 + inverse * (1 / 32 + inverse * (5 / 128 - inverse * 21 / 2048)))
    return math.sqrt(2.0 / nu) * math.exp(math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu))


def direction_moments(
    gradient_norm: npt.ArrayLike, scale: float, dimension: int, *, degrees_of_freedom: float = math.inf
) -> DirectionMoments:
    """Mean and second moments of a noisy gradient divided by its norm.

    Args:
        gradient_norm: ||g|| >= 0, any shape.
        scale: s > 0, of the noise of one coordinate.
        dimension: d >= 1.
        degrees_of_freedom: nu > 0 of a multivariate Student t; math.inf is Gaussian.

    Returns:
        The moments, of the shape of the norms. Exact for this noise, to about 1e-11; the usual
        approximation c = K(nu) / (s sqrt d) has relative error 1 / (4 d) + z / (d + 2), Gaussian case.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if a result leaves the range of float64.

    References:
        sde sde.lemA1, sde.lemA2.

    Examples:
        >>> from dpmech.analysis.sde.dynamics import direction_moments
        >>> round(float(direction_moments(3.0, 1.0, 100).gain) * 3.0, 6)
        0.286849
    """
    norms = check_numbers("gradient_norm", gradient_norm)
    width = check_real("scale", scale, minimum=0.0, open_minimum=True)
    size = check_integer("dimension", dimension, minimum=1)
    nu = check_degrees_of_freedom(degrees_of_freedom)
    with np.errstate(over="ignore"):
        ratio = 0.5 * (norms / width) ** 2
    if not np.all(np.isfinite(ratio)):
        raise NumericalError("gradient_norm / scale leaves the range of float64")
    peak = direction_factor(nu) * direction_factor(float(size)) / (width * math.sqrt(size))
    if not math.isfinite(peak):
        raise NumericalError("1 / scale leaves the range of float64")
    gain = peak * _shrinkage(0.5, size, ratio, 0.5 * (nu + 1.0), nu)
    # Rounding may move p slightly outside its range [0, 1/d].
    spread = np.clip(_shrinkage(1.0, size, ratio, 0.5 * nu, nu) / size, 0.0, 1.0 / size)
    along = np.maximum(1.0 - (size - 1) * spread, spread) if size > 1 else np.ones_like(spread)
    return DirectionMoments(gain[()], spread[()], along[()])


def check_degrees_of_freedom(value: float) -> float:
    """Return nu > 0 as a float; math.inf is accepted."""
    if isinstance(value, float) and value == math.inf:
        return value
    try:
        return check_real("degrees_of_freedom", value, minimum=0.0, open_minimum=True)
    except InvalidParameterError:
        raise InvalidParameterError("degrees_of_freedom", value, "a positive number or math.inf") from None


def _shrinkage(first: float, dimension: int, ratio: FloatArray, exponent: float, nu: float) -> FloatArray:
    """E[(1 + 2 z s / nu)^-exponent], or E[e^(-z s)] for nu infinite, over s with a beta distribution.

    Euler's integral of 2F1 and 1F1 at c = dimension/2 + 1. Library routines lose digits, or do not terminate,
    at the large c and z of training.
    """
    rest = 0.5 * dimension + 1.0 - first
    flat = ratio.ravel()
    result = np.empty(flat.size)
    for start in range(0, flat.size, _CHUNK):
        z = flat[start : start + _CHUNK]
        largest = float(z.max(initial=0.0))
        # The factor is initially about e^(-z s), so the mass is near 1 / (rest + z) or above.
        low = -math.log(rest + first + largest * (1.0 + (1.0 / nu))) - _LOG_TAIL / first
        high = math.log(math.expm1(_LOG_TAIL / rest))
        logit = np.arange(low, high + _SPACING, _SPACING)
        log_weight = -first * np.logaddexp(0.0, -logit) - rest * np.logaddexp(0.0, logit)
        weight = np.exp(log_weight - log_weight.max())
        share = scipy.special.expit(logit)
        values = (
            np.exp(-z[:, None] * share)
            if math.isinf(nu)
            else np.exp(-exponent * np.log1p((2.0 / nu) * z[:, None] * share))
        )
        result[start : start + _CHUNK] = values @ weight / weight.sum()
    return result.reshape(ratio.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientNoise:
    """The noise of a private mean gradient: the noise of the batch and the noise that is added for privacy.

    Args:
        dimension: d >= 1, coordinates.
        clip_norm: C > 0.
        batch_size: B >= 1, examples in the mean.
        batch_noise: sigma_gamma >= 0, scale of one example's gradient noise in one coordinate; for an
            unclipped example, its standard deviation.
        noise_multiplier: sigma >= 0, in units of the clip norm, on the sum over the batch.
        degrees_of_freedom: of the Student t distribution of one example's noise if it is clipped; math.inf is
            Gaussian. Without clipping, the mean over the batch is assumed to be Gaussian.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if a variance leaves the range of float64.
    """

    dimension: int
    clip_norm: float
    batch_size: float
    batch_noise: float
    noise_multiplier: float
    degrees_of_freedom: float = math.inf

    def __post_init__(self) -> None:
        values = {
            "dimension": check_integer("dimension", self.dimension, minimum=1),
            "clip_norm": check_real("clip_norm", self.clip_norm, minimum=0.0, open_minimum=True),
            "batch_size": check_real("batch_size", self.batch_size, minimum=1.0),
            "batch_noise": check_real("batch_noise", self.batch_noise, minimum=0.0),
            "noise_multiplier": check_real("noise_multiplier", self.noise_multiplier, minimum=0.0),
            "degrees_of_freedom": check_degrees_of_freedom(self.degrees_of_freedom),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if not math.isfinite(self.total_variance):
            raise NumericalError(f"the variance of {self!r} leaves the range of float64")

    @classmethod
    def of(
        cls,
        claim: Claim,
        *,
        dimension: int,
        clip_norm: float,
        batch_size: float,
        batch_noise: float,
        degrees_of_freedom: float = math.inf,
    ) -> Self:
        """The noise of a run under a calibration or certificate with independent noise.

        Args:
            claim: a Calibration or a Certificate.
            dimension: d >= 1, coordinates.
            clip_norm: C > 0.
            batch_size: B >= 1, the public denominator of the mean.
            batch_noise: sigma_gamma >= 0, as of `estimates.estimate_batch_noise`.
            degrees_of_freedom: nu > 0, likewise.

        Raises:
            InvalidParameterError: if an argument is invalid.
            UnsupportedCombinationError: if the noise is correlated over steps or differs between steps: the
                equations need independent noise.

        Examples:
            >>> import dpmech as dm
            >>> from dpmech.analysis.sde.dynamics import GradientNoise
            >>> cal = dm.calibrate_sigma(dm.Identity(100), 2.0, 1e-5, participation=dm.Poisson(0.01))
            >>> noise = GradientNoise.of(cal, dimension=10, clip_norm=0.5, batch_size=64, batch_noise=1.0)
            >>> noise.noise_multiplier == cal.sigma
            True
        """
        if not isinstance(claim, Claim):
            raise InvalidParameterError("claim", claim, "a Calibration or a Certificate")
        multiplier = claim.noise_multiplier
        if multiplier is None:
            raise UnsupportedCombinationError(
                f"the equations need independent noise of one size for a fixed clip norm; {claim.sigma_use}",
                supported="Identity(n) with a fixed clip norm; `noise_variance(step, ...)` of any claim",
            )
        return cls(
            dimension=dimension,
            clip_norm=clip_norm,
            batch_size=batch_size,
            batch_noise=batch_noise,
            noise_multiplier=multiplier,
            degrees_of_freedom=degrees_of_freedom,
        )

    @property
    def privacy_variance(self) -> float:
        """Phi = (sigma C / B)^2, per coordinate of the mean gradient. Exact."""
        deviation = self.noise_multiplier * (self.clip_norm / self.batch_size)
        return deviation * deviation

    @property
    def total_variance(self) -> float:
        """V = sigma_gamma^2 / B + Phi, per coordinate without clipping. Exact (sde sde.thmB5.2)."""
        return self.batch_noise * self.batch_noise / self.batch_size + self.privacy_variance


def clipped_gain(noise: GradientNoise, *, gradient_norm: float = 0.0) -> float:
    """a: the mean clipped gradient of an example is a times its expected gradient.

    Args:
        noise: the noise of the gradient, with batch_noise > 0.
        gradient_norm: ||g|| >= 0. The gain decreases in it, so the largest norm of a path yields a lower
            bound on the gain.

    Returns:
        a > 0, about C K(nu) / (sigma_gamma sqrt d) for ||g||^2 much below sigma_gamma^2 d. Exact for this
        noise if every example is clipped.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if a result leaves the range of float64.

    References:
        sde sde.lemA2, sde.thmB5.1.

    Examples:
        >>> from dpmech.analysis.sde.dynamics import GradientNoise, clipped_gain
        >>> noise = GradientNoise(
        ...     dimension=10_000, clip_norm=1.0, batch_size=64, batch_noise=0.01, noise_multiplier=1.0
        ... )
        >>> round(clipped_gain(noise), 4), round(clipped_gain(noise, gradient_norm=1.0), 4)
        (1.0, 0.7071)
    """
    norm = check_real("gradient_norm", gradient_norm, minimum=0.0)
    return noise.clip_norm * float(_directions(noise, np.asarray(norm)).gain)


class PrivateGradient(NamedTuple):
    """Moments of the private mean gradient, shape (..., 1): one value per replica.

    Attributes:
        gain: its mean is gain times g.
        across: its variance in a direction orthogonal to g.
        along: its variance along g.
    """

    gain: FloatArray
    across: FloatArray
    along: FloatArray


def private_gradient(
    noise: GradientNoise, gradient: npt.ArrayLike, *, clipped_share: float = 0.0
) -> PrivateGradient:
    """Mean and covariance of the private mean gradient, which is isotropic except in the direction of g.

    Args:
        noise: the noise of the gradient; batch_noise > 0 if clipped_share > 0.
        gradient: g, shape (..., d).
        clipped_share: p in [0, 1], the probability that an example is clipped, independently of the others.

    Returns:
        The moments. Exact for p = 0 and p = 1; in between, under the paper's assumption that clipped and
        unclipped examples both have expected gradient g. The variance along g cancels if g is large compared
        with the noise: its absolute error is then about 1e-13 of C^2 / B.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if a result leaves the range of float64.

    References:
        sde sde.thmB5.1, sde.thmB5.2, sde.thmB8.
    """
    checked = check_gradient(noise, gradient)
    share = check_real("clipped_share", clipped_share, minimum=0.0, maximum=1.0)
    direction, largest = _scaled(checked)
    norm = largest * np.linalg.norm(direction, axis=-1, keepdims=True)
    if share == 0.0:
        variance = np.full_like(norm, noise.total_variance)
        return PrivateGradient(np.ones_like(norm), variance, variance)
    gain, spread, second = _directions(noise, norm)
    squared = noise.clip_norm * noise.clip_norm
    unclipped = (1.0 - share) * noise.batch_noise * noise.batch_noise
    with np.errstate(over="ignore", invalid="ignore"):
        # Rounding may make a variance near 0 negative.
        clipped_along = np.maximum(squared * (second - (gain * norm) ** 2), 0.0)
        between = share * (1.0 - share) * ((1.0 - noise.clip_norm * gain) * norm) ** 2
        across = (share * squared * spread + unclipped) / noise.batch_size + noise.privacy_variance
        along = (share * clipped_along + unclipped + between) / noise.batch_size + noise.privacy_variance
    variances = (check_result(one, "a variance of the private gradient") for one in (across, along))
    return PrivateGradient(share * noise.clip_norm * gain + (1.0 - share), *variances)


def sgd_drift(noise: GradientNoise, gradient: npt.ArrayLike, *, clipped_share: float = 0.0) -> FloatArray:
    """Drift b of DP-SGD: minus the mean private gradient.

    -(p a + 1 - p) g for a clipped share p, a the gain of clipping at ||g||.

    Args:
        noise: the noise of the gradient.
        gradient: g, shape (..., d).
        clipped_share: p in [0, 1], the probability that an example is clipped.

    Returns:
        Of the shape of the gradient. Exact for p = 0 and p = 1; in between, under the paper's assumption that
        clipped and unclipped examples both have expected gradient g.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        sde sde.thmB5.1, sde.thmB5.2, sde.thmB8.
    """
    moments = private_gradient(noise, gradient, clipped_share=clipped_share)
    return -moments.gain * check_gradient(noise, gradient)


def sgd_covariance(
    noise: GradientNoise, gradient: npt.ArrayLike, *, clipped_share: float = 0.0
) -> FloatArray:
    """S of DP-SGD: covariance of the private mean gradient.

    The covariance of an example is the mixture of the clipped and the unclipped covariance, plus p (1 - p) (1
    - a)^2 g g^T between the two, which the paper omits. S is this covariance divided by B, plus Phi I.

    Args:
        noise: the noise of the gradient.
        gradient: g, shape (..., d).
        clipped_share: p in [0, 1], the probability that an example is clipped, independently of the others.

    Returns:
        Shape (..., d, d). Exact under the assumptions of `sgd_drift`. The trace is at most C^2 / B + d Phi
        for p = 1 and d V for p = 0.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        sde sde.thmB5.1, sde.thmB5.2, sde.thmB8.
    """
    _, across, along = private_gradient(noise, gradient, clipped_share=clipped_share)
    unit = _unit(check_gradient(noise, gradient))
    rank_one = unit[..., :, None] * unit[..., None, :]
    return across[..., None] * np.eye(noise.dimension) + (along - across)[..., None] * rank_one


def sgd_diffusion(
    noise: GradientNoise, gradient: npt.ArrayLike, normals: npt.ArrayLike, *, clipped_share: float = 0.0
) -> FloatArray:
    """S^(1/2) z of DP-SGD, S as in `sgd_covariance`, in O(d).

    Args:
        noise: the noise of the gradient.
        gradient: g, shape (..., d).
        normals: z, of the same shape.
        clipped_share: p in [0, 1].

    Returns:
        Of the shape of the gradient: S^(1/2), the symmetric root, times z. Exact under the assumptions of
        `sgd_drift`.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        sde sde.thmB5.1, sde.thmB5.2, sde.thmB8.
    """
    _, across, along = private_gradient(noise, gradient, clipped_share=clipped_share)
    checked = check_gradient(noise, gradient)
    draws = check_normals(normals, checked.shape)
    unit = _unit(checked)
    projection = np.sum(unit * draws, axis=-1, keepdims=True)
    tilt: FloatArray = (np.sqrt(along) - np.sqrt(across)) * projection * unit
    return np.sqrt(across) * draws + tilt


def check_gradient(noise: GradientNoise, gradient: npt.ArrayLike) -> FloatArray:
    """Return a float64 copy of a gradient of shape (..., d)."""
    checked = check_numbers("gradient", gradient, minimum=-np.inf)
    if checked.ndim == 0 or checked.shape[-1] != noise.dimension:
        raise InvalidParameterError("gradient", gradient, f"an array of shape (..., {noise.dimension})")
    return checked


def check_normals(normals: npt.ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Return a float64 copy of an array of this shape."""
    draws = check_numbers("normals", normals, minimum=-np.inf)
    if draws.shape != shape:
        raise InvalidParameterError("normals", normals, f"an array of shape {shape}")
    return draws


def _directions(noise: GradientNoise, norm: FloatArray) -> DirectionMoments:
    if noise.batch_noise == 0.0:
        raise InvalidParameterError("batch_noise", 0.0, "positive where examples are clipped")
    return direction_moments(
        norm, noise.batch_noise, noise.dimension, degrees_of_freedom=noise.degrees_of_freedom
    )


def _unit(gradient: FloatArray) -> FloatArray:
    norm = np.linalg.norm(gradient, axis=-1, keepdims=True)
    unit: FloatArray = np.divide(gradient, norm, out=np.zeros_like(gradient), where=norm > 0.0)
    return unit


def sign_drift(noise: GradientNoise, gradient: npt.ArrayLike, *, clipped_share: float = 0.0) -> FloatArray:
    """Drift b of DP-SignSGD: minus the mean sign of the private gradient, -erf(m_i / sqrt(2 S_ii)).

    m and S are mean and covariance of the private mean gradient, those of DP-SGD.

    Args:
        noise: the noise of the gradient; S must not vanish.
        gradient: g, shape (..., d).
        clipped_share: p in [0, 1].

    Returns:
        Of the shape of the gradient, in [-1, 1]. Exact without clipping (p = 0). Otherwise an estimate: a
        coordinate of the mean of clipped gradients is taken as Gaussian, which holds for large d or B. It
        remains finite as the privacy noise vanishes, unlike the paper's linear form.

    Raises:
        InvalidParameterError: if an argument is invalid, or if there is no noise at all.

    References:
        sde sde.thmB10.1, sde.thmB10.2, sde.corB11.1.
    """
    return -_mean_sign(noise, gradient, clipped_share)


def sign_variance(noise: GradientNoise, gradient: npt.ArrayLike, *, clipped_share: float = 0.0) -> FloatArray:
    """Diagonal of S of DP-SignSGD: 1 - (mean sign)^2.

    Args:
        noise: the noise of the gradient; it must not vanish.
        gradient: g, shape (..., d).
        clipped_share: p in [0, 1].

    Returns:
        Of the shape of the gradient, in [0, 1]. The diagonal is as exact as `sign_drift`. The off-diagonal
        entries are 0 without clipping, and of order 1/d, not 0, with clipping.

    Raises:
        InvalidParameterError: if an argument is invalid, or if there is no noise at all.

    References:
        sde sde.thmB10.1, sde.thmB10.2.
    """
    return 1.0 - _mean_sign(noise, gradient, clipped_share) ** 2


def sign_diffusion(
    noise: GradientNoise, gradient: npt.ArrayLike, normals: npt.ArrayLike, *, clipped_share: float = 0.0
) -> FloatArray:
    """S^(1/2) z of DP-SignSGD with the diagonal S of `sign_variance`.

    Args:
        noise: the noise of the gradient; it must not vanish.
        gradient: g, shape (..., d).
        normals: z, of the same shape.
        clipped_share: p in [0, 1].

    Returns:
        Of the shape of the gradient. As exact as `sign_variance`.

    Raises:
        InvalidParameterError: if an argument is invalid, or if there is no noise at all.

    References:
        sde sde.thmB10.1, sde.thmB10.2.
    """
    variance = sign_variance(noise, gradient, clipped_share=clipped_share)
    return np.sqrt(variance) * check_normals(normals, variance.shape)


def sign_gain(
    noise: GradientNoise, *, clipped: bool = False, gradient_norm: float = 0.0, coordinate: float = 0.0
) -> float:
    """Slope of DP-SignSGD's drift: mean sign over gradient, in one coordinate.

    sqrt(2/pi) / sqrt V at small gradients without clipping; sqrt(2/pi) a / sqrt(Phi + C^2 / (d B)) if every
    example is clipped.

    Args:
        noise: the noise of the gradient; it must not vanish.
        clipped: whether all examples are clipped, or none.
        gradient_norm: ||g|| >= 0 at which the gain of clipping is evaluated; used only with `clipped`.
        coordinate: abs(g_i) >= 0. The slope decreases in it, because erf saturates. The largest coordinate of
            a path therefore gives a lower bound on the slope.

    Returns:
        Exact without clipping, otherwise an estimate for large d or B. Unit: the inverse of that of a
        gradient.

    Raises:
        InvalidParameterError: if an argument is invalid, or if there is no noise at all.

    References:
        sde sde.corB11.1, sde.corB11.2.
    """
    largest = check_real("coordinate", coordinate, minimum=0.0)
    check_real("gradient_norm", gradient_norm, minimum=0.0)
    gain, variance = 1.0, noise.total_variance
    if clipped:
        gain = clipped_gain(noise, gradient_norm=gradient_norm)
        variance = noise.privacy_variance + noise.clip_norm**2 / (noise.dimension * noise.batch_size)
    _check_noisy(noise, variance)
    ratio = gain * largest / math.sqrt(2.0 * variance)
    slope = float(scipy.special.erf(ratio)) / ratio if ratio > 1e-8 else 2.0 / math.sqrt(math.pi)
    return gain * slope / math.sqrt(2.0 * variance)


def _mean_sign(noise: GradientNoise, gradient: npt.ArrayLike, share: float) -> FloatArray:
    checked = check_gradient(noise, gradient)
    gain, across, along = private_gradient(noise, checked, clipped_share=share)
    squares = _scaled(checked)[0] ** 2
    total = squares.sum(axis=-1, keepdims=True)
    aligned = np.divide(squares, total, out=np.zeros_like(squares), where=total > 0.0)
    variance = across + (along - across) * aligned
    _check_noisy(noise, float(variance.min()))
    mean: FloatArray = scipy.special.erf(gain * checked / np.sqrt(2.0 * variance))
    return mean


def _scaled(vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Vectors over their largest absolute coordinate, whose squares stay in range, and that coordinate."""
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    return np.divide(vectors, largest, out=np.zeros_like(vectors), where=largest > 0.0), largest


def _check_noisy(noise: GradientNoise, variance: float) -> None:
    if not variance > 0.0:
        raise InvalidParameterError("noise", noise, "noise that does not vanish")


def euler_maruyama(
    drift: Callable[[FloatArray], FloatArray],
    diffusion: Callable[[FloatArray, FloatArray], FloatArray],
    start: npt.ArrayLike,
    *,
    learning_rate: float,
    steps: int,
    rng: np.random.Generator,
    substeps: int = 1,
    observe: Callable[[FloatArray], FloatArray] | None = None,
) -> FloatArray:
    """Paths of dX = b(X) dt + sqrt(lr) s(X) dW over `steps` units of lr.

    Each unit of lr is divided into `substeps` intervals of length h = lr / substeps, on which
    X += h b(X) + sqrt(lr h) s(X) z. With one interval, an update has the mean and covariance of one optimizer
    step.

    Args:
        drift: b, from an array of states of shape (..., d) to one of the same shape.
        diffusion: (x, z) -> s(x) z for standard normal z, all of that shape.
        start: the states at time 0, shape (..., d): one row per replica.
        learning_rate: lr > 0.
        steps: T >= 1; the final time is lr T.
        rng: the source of the normal numbers.
        substeps: intervals per step, >= 1.
        observe: function of the states whose result is stored after every step; None stores the final states.

    Returns:
        The final states, or with `observe` its results at steps 0..T, stacked. The paths have an error of
        weak order 1 in h.

    Raises:
        InvalidParameterError: if an argument is invalid, or if drift or diffusion changes the shape.
        NumericalError: if a path leaves the range of float64.

    References:
        sde sde.lemB3, sde.thmB4.

    Examples:
        >>> import numpy as np
        >>> from dpmech.analysis.sde.dynamics import euler_maruyama
        >>> rng = np.random.default_rng(1)
        >>> ends = euler_maruyama(
        ...     lambda x: -x, lambda x, z: z, np.zeros((20_000, 1)), learning_rate=0.1, steps=80, rng=rng
        ... )
        >>> round(float(ends.var()), 2)
        0.05
    """
    state = check_numbers("start", start, minimum=-np.inf)
    if state.ndim == 0:
        raise InvalidParameterError("start", start, "an array of shape (..., d)")
    rate = check_real("learning_rate", learning_rate, minimum=0.0, open_minimum=True)
    total = check_integer("steps", steps, minimum=1)
    pieces = check_integer("substeps", substeps, minimum=1)
    if not isinstance(rng, np.random.Generator):
        raise InvalidParameterError("rng", rng, "a numpy.random.Generator")
    length = rate / pieces
    scale = float(np.sqrt(rate) * np.sqrt(length))
    kept = [] if observe is None else [np.array(observe(state), dtype=np.float64)]
    for step in range(total):
        for _ in range(pieces):
            # Overflow is caught by the check below, whatever the settings of numpy.
            with np.errstate(over="ignore", invalid="ignore"):
                pull = drift(state)
                push = diffusion(state, rng.standard_normal(state.shape))
                if np.shape(pull) != state.shape or np.shape(push) != state.shape:
                    raise InvalidParameterError(
                        "drift and diffusion",
                        (np.shape(pull), np.shape(push)),
                        f"functions to arrays of shape {state.shape}",
                    )
                state = state + length * pull + scale * push
            if not np.all(np.isfinite(state)):
                raise NumericalError(f"a path leaves the range of float64 at step {step}")
        if observe is not None:
            kept.append(np.array(observe(state), dtype=np.float64))
    return state if observe is None else np.stack(kept)
