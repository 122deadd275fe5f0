"""The noise multiplier, eps or batch size at which the noise share falls to a target.

The largest sigma follows from Phi = (sigma C / B)^2 and rho = Phi / (v + Phi), and the accountant computes
its eps. v is the mean square of clipped gradients without their noise, measured on public data or computed by
subtracting Phi from a released second moment. All functions are for Poisson sampling with independent noise
(DP-SGD, DP-Adam).
"""

import dataclasses
import math

from dpmech.analysis.noise_share.moments import noise_share, noise_variance
from dpmech.calibration import calibrate_sigma, epsilon
from dpmech.calibration import delta as delta_of
from dpmech.exceptions import InvalidParameterError, NumericalError
from dpmech.guards import check_integer, check_real
from dpmech.mechanism import Identity, PrivacyBudget
from dpmech.numerics import Bounds, up
from dpmech.schemes.poisson import Poisson


def noise_multiplier_for_share(
    rho: float, *, signal_second_moment: float, clip_norm: float, batch_size: float
) -> float:
    """The noise multiplier at which the noise share is rho: sigma = B / C sqrt(v rho / (1 - rho)).

    Args:
        rho: the noise share, in (0, 1).
        signal_second_moment: v > 0, per coordinate, without noise.
        clip_norm: C > 0.
        batch_size: B > 0, the public denominator of the mean.

    Returns:
        sigma at clip norm 1. Exact: the inverse of `noise_share` of `noise_variance`.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if sigma leaves the range of float64.

    References:
        noise_share ov.thm3.def, ov.def.phi.

    Examples:
        >>> from dpmech.analysis.noise_share.targets import noise_multiplier_for_share
        >>> noise_multiplier_for_share(0.5, signal_second_moment=1e-8, clip_norm=0.1, batch_size=512)
        0.512
    """
    share = check_real("rho", rho, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
    signal = check_real("signal_second_moment", signal_second_moment, minimum=0.0, open_minimum=True)
    clip = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
    size = check_real("batch_size", batch_size, minimum=0.0, open_minimum=True)
    sigma = size / clip * math.sqrt(signal) * math.sqrt(share / (1.0 - share))
    if not 0.0 < sigma < math.inf:
        raise NumericalError("the noise multiplier leaves the range of float64")
    return sigma


def epsilon_for_share(
    rho: float,
    *,
    signal_second_moment: float,
    clip_norm: float,
    batch_size: float,
    dataset_size: int,
    steps: int,
    delta: float,
) -> Bounds:
    """The eps of Poisson-sampled DP-SGD or DP-Adam with the noise at which the noise share is rho.

    Args:
        rho: the noise share, in (0, 1).
        signal_second_moment: v > 0, per coordinate, without noise.
        clip_norm: C > 0.
        batch_size: B in (0, dataset_size], the expected batch size.
        dataset_size: N >= 1, a public number.
        steps: T >= 1.
        delta: in (0, 1).

    Returns:
        Bounds on eps under Poisson sampling with probability B / N. A smaller eps has a larger noise share.

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: if the accountant has no bound at this noise.

    References:
        noise_share ov.thm3.def, ov.def.phi.

    Examples:
        >>> from dpmech.analysis.noise_share.targets import epsilon_for_share
        >>> found = epsilon_for_share(
        ...     0.5, signal_second_moment=1e-7, clip_norm=0.1, batch_size=512,
        ...     dataset_size=50_000, steps=1000, delta=1e-5,
        ... )
        >>> round(found.upper, 2)
        0.85
    """
    sampling = _sampled(batch_size, dataset_size)
    sigma = noise_multiplier_for_share(
        rho, signal_second_moment=signal_second_moment, clip_norm=clip_norm, batch_size=batch_size
    )
    return epsilon(Identity(steps), sigma, delta, participation=sampling)


@dataclasses.dataclass(frozen=True)
class BatchSizeForShare:
    """The expected batch size that reaches a noise share, and the calibration at this batch size.

    Attributes:
        batch_size: B.
        noise_multiplier: sigma at clip norm 1 that meets the budget.
        share: the noise share at this batch size, at most the requested one.
    """

    batch_size: int
    noise_multiplier: float
    share: float


def batch_size_for_share(
    rho: float,
    *,
    signal_second_moment: float,
    clip_norm: float,
    dataset_size: int,
    steps: int,
    eps: float,
    delta: float,
) -> BatchSizeForShare:
    """The batch size above which the noise share is at most rho, at the same budget and number of steps.

    Larger batches need a larger sigma, but sigma / B decreases.

    Args:
        rho: the largest noise share, in (0, 1).
        signal_second_moment: v > 0, per coordinate, without noise; assumed not to depend on the batch size,
            which holds if the noise of batches is small.
        clip_norm: C > 0.
        dataset_size: N >= 1, a public number.
        steps: T >= 1.
        eps: eps of the budget, > 0.
        delta: delta of the budget, in (0, 1).

    Returns:
        A batch size B in [1, N] at which the noise multiplier of the share rho meets the budget under Poisson
        sampling. At B - 1 (if B > 1), the proven bound on delta exceeds the budget. The search is a bisection
        with at most 2 log2(N) bounds and one calibration, each of which takes about a second.

    Raises:
        InvalidParameterError: if an argument is invalid, or if even B = N leaves a larger share.
        UnattainableBudgetError: if no sigma meets the budget.

    References:
        noise_share ov.thm3.def, ov.def.phi.

    Examples:
        >>> from dpmech.analysis.noise_share.targets import batch_size_for_share
        >>> found = batch_size_for_share(
        ...     0.5, signal_second_moment=3e-4, clip_norm=1, dataset_size=1000, steps=20, eps=1.0, delta=1e-5
        ... )
        >>> found.batch_size, round(found.noise_multiplier, 3), round(found.share, 3)
        (394, 6.824, 0.5)
    """
    largest = check_real("rho", rho, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
    signal = check_real("signal_second_moment", signal_second_moment, minimum=0.0, open_minimum=True)
    clip = check_real("clip_norm", clip_norm, minimum=0.0, open_minimum=True)
    examples = check_integer("dataset_size", dataset_size, minimum=1)
    budget = PrivacyBudget(eps, delta)

    def at(size: int) -> float:
        return noise_multiplier_for_share(
            largest, signal_second_moment=signal, clip_norm=clip, batch_size=size
        )

    def meets(size: int) -> bool:
        found = delta_of(Identity(steps), at(size), eps, participation=_sampled(size, examples))
        return found.upper <= budget.delta

    if not meets(examples):
        sigma = calibrate_sigma(Identity(steps), eps, delta, participation=_sampled(examples, examples)).sigma
        share = float(noise_share(noise_variance(sigma, clip, examples), signal))
        least = f"at least {up(share, 4)}" if share < 0.999 else "nearly 1"
        raise InvalidParameterError(
            "rho",
            rho,
            f"{least}, the noise share if every batch has all {examples} examples; a larger eps or more "
            "examples lower it",
        )
    found = examples
    while found > 1 and meets(found // 2):
        found //= 2
    below = found // 2
    while found - below > 1:
        middle = (found + below) // 2
        found, below = (middle, below) if meets(middle) else (found, middle)
    sigma = calibrate_sigma(Identity(steps), eps, delta, participation=_sampled(found, examples)).sigma
    sigma = min(sigma, at(found))
    return BatchSizeForShare(found, sigma, float(noise_share(noise_variance(sigma, clip, found), signal)))


def _sampled(batch_size: float, dataset_size: int) -> Poisson:
    examples = check_integer("dataset_size", dataset_size, minimum=1)
    size = check_real("batch_size", batch_size, minimum=0.0, maximum=float(examples), open_minimum=True)
    return Poisson(size / examples)
