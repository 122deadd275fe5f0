r"""DP-SignSGD as a stochastic differential equation: drift, diffusion and the slope at small gradients.

A coordinate of the private mean gradient with mean m_i and variance S_ii, if it is Gaussian, has expected
sign erf(m_i / sqrt(2 S_ii)), and a sign has variance one minus its squared mean.
DP-SGD and DP-SignSGD are the paper's words: independent noise, whatever the sampling.
"""

import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.analysis.sde.dynamics import (
    GradientNoise,
    check_gradient,
    check_normals,
    clipped_gain,
    private_gradient,
)
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.numerics import FloatArray

__all__ = ["sign_diffusion", "sign_drift", "sign_gain", "sign_variance"]


def sign_drift(noise: GradientNoise, gradient: npt.ArrayLike, *, clipped_share: float = 0.0) -> FloatArray:
    """Drift b of DP-SignSGD: minus the mean sign of the private gradient, -erf(m_i / sqrt(2 S_ii)).

    m and S are mean and covariance of the private mean gradient, those of DP-SGD.

    Args:
        noise: the noise of the gradient; S must not vanish.
        gradient: g, shape (..., d).
        clipped_share: p in [0, 1].

    Returns:
        Of the shape of the gradient, in [-1, 1]. Exact where nothing is clipped (p = 0). An estimate
        otherwise: a coordinate of the mean of clipped gradients is taken as Gaussian, which it is for large
        d or B. It stays finite as the privacy noise vanishes, unlike the paper's linear form.

    Raises:
        InvalidParameterError: on a bad argument, or where there is no noise at all.

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
        entries are 0 where nothing is clipped, and of order 1/d, not 0, where something is.

    Raises:
        InvalidParameterError: on a bad argument, or where there is no noise at all.

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
        InvalidParameterError: on a bad argument, or where there is no noise at all.

    References:
        sde sde.thmB10.1, sde.thmB10.2.
    """
    variance = sign_variance(noise, gradient, clipped_share=clipped_share)
    return np.sqrt(variance) * check_normals(normals, variance.shape)


def sign_gain(
    noise: GradientNoise, *, clipped: bool = False, gradient_norm: float = 0.0, coordinate: float = 0.0
) -> float:
    """Slope of DP-SignSGD's drift: mean sign over gradient, in one coordinate.

    sqrt(2/pi) / sqrt V at small gradients where nothing is clipped; sqrt(2/pi) a / sqrt(Phi + C^2 / (d B))
    where everything is.

    Args:
        noise: the noise of the gradient; it must not vanish.
        clipped: whether all examples are clipped, or none.
        gradient_norm: ||g|| >= 0 at which the gain of clipping is taken; used with `clipped` only.
        coordinate: abs(g_i) >= 0. The slope decreases in it, as erf saturates: taken at the largest
            coordinate of a path it bounds the slope from below.

    Returns:
        Exact where nothing is clipped, an estimate for large d or B otherwise. Unit: one over that of a
        gradient.

    Raises:
        InvalidParameterError: on a bad argument, or where there is no noise at all.

    References:
        sde sde.corB11.1, sde.corB11.2.
    """
    largest = check_real("coordinate", coordinate, minimum=0.0)
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
    squares = checked**2
    total = squares.sum(axis=-1, keepdims=True)
    aligned = np.divide(squares, total, out=np.zeros_like(squares), where=total > 0.0)
    variance = across + (along - across) * aligned
    _check_noisy(noise, float(variance.min()))
    mean: FloatArray = scipy.special.erf(gain * checked / np.sqrt(2.0 * variance))
    return mean


def _check_noisy(noise: GradientNoise, variance: float) -> None:
    if not variance > 0.0:
        raise InvalidParameterError("noise", noise, "noise that does not vanish")
