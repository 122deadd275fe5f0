"""The scatter of Adam's second moment, and whether correcting it for noise can help.

A moving average of squares of noise is not a constant: it scatters by sqrt(2 / n_eff) over coordinates, and
its median lies below its mean. A measured noise share must be corrected for that; and near rho = 1 the
signal is lost in it, so that a corrected second moment is mostly its floor.

Functions of (phi, second moment) take numbers or arrays and broadcast them.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.analysis._arguments import check_nonnegative, check_result
from dpmech.analysis.noise_share.share import step_change
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

__all__ = [
    "CorrectionOutlook",
    "clamp_fraction",
    "correction_outlook",
    "debiased_noise_share",
    "effective_samples",
    "median_factor",
    "second_moment_scatter",
]


def effective_samples(beta2: float, step: int) -> float:
    """How many independent squares the bias-corrected moving average is worth after `step` updates.

    (1 + beta2) / (1 - beta2) * (1 - beta2^t) / (1 + beta2^t): about t at first, then (1 + beta2) /
    (1 - beta2).

    Args:
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.

    Returns:
        n_eff >= 1. Exact for i.i.d. gradients: the variance of the average is that of one over n_eff.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm1.var.

    Examples:
        >>> from dpmech.analysis.noise_share.moment_scatter import effective_samples
        >>> round(effective_samples(0.999, 80), 1), round(effective_samples(0.999, 10**6))
        (80.0, 1999)
    """
    beta = check_real("beta2", beta2, minimum=0.0, maximum=1.0, open_maximum=True)
    t = check_integer("step", step, minimum=1)
    if beta == 0.0:
        return 1.0
    # 1 - beta^t over 1 + beta^t, without cancellation.
    return (1.0 + beta) / (1.0 - beta) * float(np.tanh(-0.5 * t * np.log(beta)))


def second_moment_scatter(beta2: float, step: int) -> float:
    """Relative standard deviation sqrt(2 / n_eff) of the second moment of pure noise.

    Args:
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.

    Returns:
        From sqrt 2 at the first step down to sqrt(2 (1 - beta2) / (1 + beta2)). Exact for Gaussian noise
        and no signal: the second moment is not the same constant in every coordinate.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm1.var, ov.thm6.iii.
    """
    return float(np.sqrt(2.0 / effective_samples(beta2, step)))


def median_factor(beta2: float, step: int) -> float:
    """Median over mean of the second moment over coordinates: below 1, so Phi / median exceeds rho.

    Args:
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.

    Returns:
        The median of a chi-square variable of n_eff degrees over n_eff. An estimate: the moving average is
        a weighted sum of squares, here replaced by the chi-square of the same mean and variance (measured
        within 0.005 from step 10 on).

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm1.var, ov.thm3.def.
    """
    samples = effective_samples(beta2, step)
    return float(scipy.stats.chi2.ppf(0.5, samples)) / samples


def debiased_noise_share(phi: npt.ArrayLike, median: npt.ArrayLike, *, beta2: float, step: int) -> FloatArray:
    """The noise share from a measured median of the second moment over coordinates.

    The logged Phi / median is too large by the factor that a chi-square median falls short of its mean.

    Args:
        phi: Phi > 0.
        median: the median over coordinates of the bias-corrected second moment, > 0.
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.

    Returns:
        The broadcast shape. An estimate; it can exceed 1 by sampling error where the signal is small.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm3.def, ov.thm1.var.
    """
    noise = check_nonnegative("phi", phi, open_minimum=True)
    measured = check_nonnegative("median", median, open_minimum=True)
    return check_result(noise * median_factor(beta2, step) / measured, "the noise share")


def clamp_fraction(
    phi: npt.ArrayLike, second_moment: npt.ArrayLike, floor: npt.ArrayLike, *, beta2: float, step: int
) -> FloatArray:
    """The share of coordinates where the corrected second moment falls below its floor.

    P(chi-square_n / n (v + Phi) < Phi + floor), n = n_eff.

    Args:
        phi: Phi > 0.
        second_moment: v >= 0.
        floor: what max(second moment - Phi, floor) clamps to, >= 0.
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.

    Returns:
        The broadcast shape, in [0, 1]. An estimate, as for `median_factor`.

    Raises:
        InvalidParameterError: on a bad argument.

    References:
        noise_share ov.thm3.ii, ov.thm3.rem.floor.
    """
    noise = check_nonnegative("phi", phi, open_minimum=True)
    signal = check_nonnegative("second_moment", second_moment)
    lowest = check_nonnegative("floor", floor)
    samples = effective_samples(beta2, step)
    threshold = samples * (noise + lowest) / (noise + signal)
    return check_result(scipy.stats.chi2.cdf(threshold, samples), "the clamp fraction")


@dataclasses.dataclass(frozen=True)
class CorrectionOutlook:
    """What correcting the second moment for its noise can do at one operating point.

    Attributes:
        share: the debiased noise share rho.
        change: relative change of a step, infinite where rho >= 1.
        clamped: the share of coordinates whose corrected second moment is below the floor.
        material: whether the change reaches the smallest one that matters.
        estimable: whether few enough coordinates are clamped for the correction to act as meant.
    """

    share: float
    change: float
    clamped: float
    material: bool
    estimable: bool

    @property
    def can_help(self) -> bool:
        """Whether the correction is both material and estimable; where not, it is a change of step size."""
        return self.material and self.estimable


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

    It changes a step noticeably only if rho is not near 0, and reaches single coordinates only if v is not
    lost in the scatter of the moving average: near rho = 1 most of what is left is clamped.

    Args:
        phi: Phi > 0.
        median: the median over coordinates of the bias-corrected second moment, > 0.
        beta2: decay, in [0, 1).
        step: updates so far, t >= 1.
        floor: what the corrected second moment is clamped to, >= 0.
        min_change: the smallest relative change of a step that matters, > 0.
        max_clamped: the largest share of clamped coordinates that is bearable, in [0, 1].

    Returns:
        A CorrectionOutlook: an estimate. The two thresholds are a choice, not a theorem.

    Raises:
        InvalidParameterError: on a bad argument.

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
