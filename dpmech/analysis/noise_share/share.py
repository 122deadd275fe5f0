r"""The noise share of Adam's second moment, and what subtracting the noise does to a step.

Every coordinate of a private mean gradient carries noise of variance Phi = (sigma C / B)^2, so Adam's
bias-corrected second moment has mean v + Phi, with v that of the clipped gradients. The noise share is
rho = Phi / (v + Phi). Correcting for the noise enlarges a step by (1 - rho)^(-1/2).

Functions of (phi, second moment) take numbers or arrays and broadcast them.
"""

import numpy as np
import numpy.typing as npt

from dpmech.analysis._arguments import check_nonnegative, check_result
from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_real
from dpmech.numerics import FloatArray

__all__ = [
    "materiality_bounds",
    "noise_share",
    "noise_share_slope",
    "noise_to_signal",
    "noise_variance",
    "step_change",
    "step_correction",
]


def noise_variance(noise_multiplier: float, clip_norm: float, batch_size: float) -> float:
    """Phi = (sigma C / B)^2: variance per coordinate of the noise in the averaged gradient.

    For independent noise (`Identity`). `Calibration.noise_variance` has it for any strategy and step.

    Args:
        noise_multiplier: sigma at clip norm 1, >= 0.
        clip_norm: C > 0.
        batch_size: B > 0, the public normaliser: expected batch size times accumulation steps times world
            size where noise is added once.

    Returns:
        Phi, in units of the gradient squared. Exact.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.def.phi.

    Examples:
        >>> from dpmech.analysis.noise_share.share import noise_variance
        >>> f"{noise_variance(0.7589, 0.1, 512):.3e}"
        '2.197e-08'
    """
    sigma = check_real("noise_multiplier", noise_multiplier, minimum=0.0)
    clip = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
    size = check_real("batch_size", batch_size, minimum=0.0, open_minimum=True)
    return float(check_result(np.float64(sigma * clip / size) ** 2, "the noise variance"))


def noise_share(phi: npt.ArrayLike, second_moment: npt.ArrayLike) -> FloatArray:
    """The noise share rho = Phi / (v + Phi), in (0, 1]; 1 where the gradients vanish.

    Args:
        phi: Phi > 0.
        second_moment: v >= 0, mean square of the clipped gradient, without its noise.

    Returns:
        The broadcast shape. Exact.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm1, ov.thm3.def, ov.thm3.v.

    Examples:
        >>> from dpmech.analysis.noise_share.share import noise_share
        >>> float(noise_share(2.0, 6.0))
        0.25
    """
    noise = check_nonnegative("phi", phi, open_minimum=True)
    signal = check_nonnegative("second_moment", second_moment)
    return check_result(1.0 / (1.0 + signal / noise), "the noise share")


def noise_to_signal(rho: npt.ArrayLike) -> FloatArray:
    """The ratio r = Phi / v = rho / (1 - rho).

    Args:
        rho: the noise share, in [0, 1).

    Returns:
        r >= 0, of the shape of rho. Exact.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm3.def.
    """
    share = _check_share(rho)
    return check_result(share / (1.0 - share), "the noise-to-signal ratio")


def step_correction(rho: npt.ArrayLike) -> FloatArray:
    """kappa_BC = (1 - rho)^(-1/2): by what the correction multiplies a step.

    A ratio of expected denominators: the expectation of the ratio itself does not exist without a clamp,
    and with one it lies on either side.

    Args:
        rho: the noise share, in [0, 1).

    Returns:
        Of the shape of rho, >= 1. Exact for the plug-in ratio.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm3.ii.

    Examples:
        >>> from dpmech.analysis.noise_share.share import step_correction
        >>> round(float(step_correction(0.955)), 3)
        4.714
    """
    return check_result((1.0 - _check_share(rho)) ** -0.5, "the step correction")


def step_change(ratio: npt.ArrayLike) -> FloatArray:
    """The relative change g = sqrt(1 + r) - 1 of a step, r = Phi / v.

    Args:
        ratio: r >= 0.

    Returns:
        Of the shape of ratio; no digits are lost at small r. Exact; it passes 1 at r = 3 (rho = 3/4).

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm3.iii.
    """
    r = check_nonnegative("ratio", ratio)
    return check_result(r / (np.sqrt(1.0 + r) + 1.0), "the change of the step")


def materiality_bounds(ratio: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Bounds r/2 - r^2/8 <= g <= r/2 on the relative change of a step.

    The lower one is sharper than the paper's r/2 - r^2/2.

    Args:
        ratio: r = Phi / v >= 0.

    Returns:
        (lower, upper), of the shape of ratio. Bounds for every r >= 0; useful for r below about 2.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm3.iii.
    """
    r = check_nonnegative("ratio", ratio)
    return check_result(r / 2.0 - r**2 / 8.0, "the bound"), check_result(r / 2.0, "the bound")


def noise_share_slope(rho: npt.ArrayLike) -> FloatArray:
    """The slope d rho / d ln r = rho (1 - rho): largest, 1/4, where noise and signal are equal (rho = 1/2).

    Args:
        rho: the noise share, in [0, 1].

    Returns:
        Of the shape of rho. Exact.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm3.iv.
    """
    share = check_nonnegative("rho", rho, maximum=1.0)
    return check_result(share * (1.0 - share), "the slope")


def _check_share(rho: npt.ArrayLike) -> FloatArray:
    share = check_nonnegative("rho", rho, maximum=1.0)
    if np.any(share == 1.0):
        raise InvalidParameterError("rho", rho, "below 1, where nothing but noise is left")
    return share
