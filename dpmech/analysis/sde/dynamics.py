r"""DP-SGD and DP-SignSGD as stochastic differential equations: dX = b(X) dt + sqrt(lr) S(X)^(1/2) dW.

One step of length lr moves by -lr times the private mean gradient (DP-SGD) or its sign (DP-SignSGD). b and S
are mean and covariance of that step over lr, so the equation follows the iterates weakly to first order in
lr. Each of B examples has gradient g + noise; a share of them is clipped to norm C (the paper's Phase 1 is
share 1, Phase 2 is share 0); Gaussian noise of standard deviation sigma C / B is added to the mean.

The paper writes Phase 1 for one clipped vector, without the average over the lot. That is the case
batch_size = 1 with noise multiplier sigma / B.

DP-SGD and DP-SignSGD are the paper's words: independent noise, whatever the sampling.

In functions of a gradient, its last axis are the d coordinates and any axes before it are replicas.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmech.analysis._arguments import check_nonnegative
from dpmech.analysis.sde.directions import DirectionMoments, check_degrees_of_freedom, direction_moments
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

__all__ = [
    "GradientNoise",
    "PrivateGradient",
    "check_gradient",
    "check_normals",
    "clipped_gain",
    "private_gradient",
    "sgd_covariance",
    "sgd_diffusion",
    "sgd_drift",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientNoise:
    """The noise of one private mean gradient: that of the lot, and the one added for privacy.

    Args:
        dimension: d >= 1, coordinates.
        clip_norm: C > 0.
        batch_size: B >= 1, examples in the mean.
        batch_noise: sigma_gamma >= 0, scale of one example's gradient noise in one coordinate.
        noise_multiplier: sigma >= 0, in units of the clip norm, on the sum over the lot.
        degrees_of_freedom: of the Student t law of one example's noise where it is clipped; math.inf is
            Gaussian. Where nothing is clipped the mean over the lot is taken as Gaussian.

    Raises:
        InvalidParameterError: on a bad argument.
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

    @property
    def privacy_variance(self) -> float:
        """Phi = (sigma C / B)^2, per coordinate of the mean gradient. Exact."""
        deviation = self.noise_multiplier * (self.clip_norm / self.batch_size)
        return deviation * deviation

    @property
    def total_variance(self) -> float:
        """V = sigma_gamma^2 / B + Phi, per coordinate where nothing is clipped. Exact (sde sde.thmB5.2)."""
        return self.batch_noise * self.batch_noise / self.batch_size + self.privacy_variance


def clipped_gain(noise: GradientNoise, *, gradient_norm: float = 0.0) -> float:
    """a: the mean clipped gradient of an example is a times its expected gradient.

    Args:
        noise: the noise of the gradient, with batch_noise > 0.
        gradient_norm: ||g|| >= 0. The gain decreases in it: taken at the largest one of a path it bounds the
            gain from below.

    Returns:
        a > 0, about C K(nu) / (sigma_gamma sqrt d) for ||g||^2 much below sigma_gamma^2 d. Exact for this
        noise where every example is clipped.

    Raises:
        InvalidParameterError: on a bad argument.
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
    """Moments of the private mean gradient, shape (..., 1): one value a replica.

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
    """Mean and covariance of the private mean gradient, which is isotropic but for the direction of g.

    Args:
        noise: the noise of the gradient; batch_noise > 0 where clipped_share > 0.
        gradient: g, shape (..., d).
        clipped_share: p in [0, 1], the chance that an example is clipped, independently of the others.

    Returns:
        The moments. Exact for p = 0 and p = 1; between, under the paper's assumption that clipped and
        unclipped examples both have expected gradient g.

    Raises:
        InvalidParameterError: on a bad argument.
        NumericalError: if a result leaves the range of float64.

    References:
        sde sde.thmB5.1, sde.thmB5.2, sde.thmB8.
    """
    checked = check_gradient(noise, gradient)
    share = check_real("clipped_share", clipped_share, minimum=0.0, maximum=1.0)
    norm = np.linalg.norm(checked, axis=-1, keepdims=True)
    if share == 0.0:
        variance = np.full_like(norm, noise.total_variance)
        return PrivateGradient(np.ones_like(norm), variance, variance)
    gain, spread, second = _directions(noise, norm)
    squared = noise.clip_norm**2
    unclipped = (1.0 - share) * noise.batch_noise**2
    # Rounding may take a variance near 0 below it.
    clipped_along = np.maximum(squared * (second - (gain * norm) ** 2), 0.0)
    between = share * (1.0 - share) * ((1.0 - noise.clip_norm * gain) * norm) ** 2
    across = (share * squared * spread + unclipped) / noise.batch_size + noise.privacy_variance
    along = (share * clipped_along + unclipped + between) / noise.batch_size + noise.privacy_variance
    return PrivateGradient(share * noise.clip_norm * gain + (1.0 - share), across, along)


def sgd_drift(noise: GradientNoise, gradient: npt.ArrayLike, *, clipped_share: float = 0.0) -> FloatArray:
    """Drift b of DP-SGD: minus the mean private gradient.

    -(p a + 1 - p) g for a clipped share p, a the gain of clipping at ||g||.

    Args:
        noise: the noise of the gradient.
        gradient: g, shape (..., d).
        clipped_share: p in [0, 1], the chance that an example is clipped.

    Returns:
        Of the shape of the gradient. Exact for p = 0 and p = 1; between, under the paper's assumption that
        clipped and unclipped examples both have expected gradient g.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        sde sde.thmB5.1, sde.thmB5.2, sde.thmB8.
    """
    moments = private_gradient(noise, gradient, clipped_share=clipped_share)
    return -moments.gain * check_gradient(noise, gradient)


def sgd_covariance(
    noise: GradientNoise, gradient: npt.ArrayLike, *, clipped_share: float = 0.0
) -> FloatArray:
    """S of DP-SGD: covariance of the private mean gradient.

    An example's covariance is the mixture of the clipped and the unclipped one, plus
    p (1 - p) (1 - a)^2 g g^T between the two, which the paper leaves out; all of it over B, plus Phi I.

    Args:
        noise: the noise of the gradient.
        gradient: g, shape (..., d).
        clipped_share: p in [0, 1], the chance that an example is clipped, independently of the others.

    Returns:
        Shape (..., d, d). Exact under the assumptions of `sgd_drift`. The trace is at most C^2 / B + d Phi
        for p = 1 and d V for p = 0.

    Raises:
        InvalidParameterError: on a bad argument.

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
        InvalidParameterError: on a bad argument.

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
    checked = check_nonnegative("gradient", gradient, minimum=-np.inf)
    if checked.ndim == 0 or checked.shape[-1] != noise.dimension:
        raise InvalidParameterError("gradient", gradient, f"an array of shape (..., {noise.dimension})")
    return checked


def check_normals(normals: npt.ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Return a float64 copy of an array of this shape."""
    draws = check_nonnegative("normals", normals, minimum=-np.inf)
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
