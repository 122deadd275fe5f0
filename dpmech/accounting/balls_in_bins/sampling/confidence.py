r"""Estimates of the mean of non-negative weights, and what a sample of them says about itself.

`likelihood_interval` is asymptotic: an interval for an estimate, to be used only where the diagnostics say
that the sample shows the tail. What is proved of a mean stands in `bets`.
"""

import dataclasses
import math

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.guards import check_real
from dpmech.numerics import FloatArray

__all__ = [
    "WeightSummary",
    "likelihood_interval",
    "pareto_shape",
    "summarise",
]


TAIL_MINIMUM = 50


@dataclasses.dataclass(frozen=True)
class WeightSummary:
    """What a sample of weights says about itself.

    Attributes:
        log_mean: log of the mean weight; -inf where all are 0.
        relative_error: standard error of the mean over the mean.
        effective_samples: (sum w)^2 / sum w^2.
        largest_share: the largest weight over the sum.
        tail_shape: the Pareto shape fitted to the largest weights (NaN where there are too few).
        samples: the number of weights, zeros included.
    """

    log_mean: float
    relative_error: float
    effective_samples: float
    largest_share: float
    tail_shape: float
    samples: int


def summarise(log_weights: FloatArray) -> WeightSummary:
    """The summary of weights given by their logs, shape (n,), -inf for zero."""
    count = log_weights.size
    top = float(np.max(log_weights, initial=-np.inf))
    if not top > -np.inf:
        return WeightSummary(-math.inf, math.inf, 0.0, 1.0, math.nan, count)
    scaled = np.exp(log_weights - top)
    mean = float(scaled.mean())
    deviation = float(scaled.std(ddof=1)) if count > 1 else math.inf
    return WeightSummary(
        log_mean=top + math.log(mean),
        relative_error=deviation / (mean * math.sqrt(count)),
        effective_samples=float(scaled.sum() ** 2 / np.sum(scaled**2)),
        largest_share=1.0 / float(scaled.sum()),
        tail_shape=pareto_shape(scaled),
        samples=count,
    )


def pareto_shape(weights: FloatArray) -> float:
    r"""The shape k of a generalised Pareto law fitted to the largest weights; NaN below 50 of them.

    Moments of order below 1/k exist, so a variance needs k < 1/2. The fit is the quasi-Bayesian one of
    Zhang and Stephens (2009), with the tail length `min(n / 5, 3 sqrt(n))` of Vehtari et al.'s Pareto
    smoothed importance sampling (arXiv:1507.02646v9), here on non-zero weights.

    Args:
        weights: non-negative weights, shape (n,), any scale.
    """
    positive = weights[weights > 0.0]
    length = int(min(0.2 * positive.size, 3.0 * math.sqrt(positive.size)))
    if length < TAIL_MINIMUM:
        return math.nan
    ordered = np.sort(np.partition(positive, positive.size - length - 1)[-length - 1 :])
    excess = ordered[1:] - ordered[0]
    if excess[-1] <= 0.0:
        return -math.inf
    excess = excess[excess > 0.0]
    count = excess.size
    grid = 30 + int(math.sqrt(count))
    quartile = excess[max(0, int(count / 4 + 0.5) - 1)]
    slopes = 1.0 / excess[-1] + (1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3.0 * quartile)
    slopes = slopes[slopes != 0.0]
    shapes = np.mean(np.log1p(-slopes[:, None] * excess), axis=1)
    profile = count * (np.log(-slopes / shapes) - shapes - 1.0)
    weights_of = scipy.special.softmax(profile)
    slope = float(slopes @ weights_of)
    shape = float(np.mean(np.log1p(-slope * excess)))
    steadied: float = (shape * count + 5.0) / (count + 10.0)
    return steadied


def likelihood_interval(log_weights: FloatArray, confidence: float) -> tuple[float, float]:
    r"""The empirical likelihood interval for the mean weight (asymptotic; an estimate).

    The set of means m at which the likelihood ratio `max prod_i n p_i` over probabilities p with `sum p_i
    w_i = m` is at least `exp(-chi^2_1(confidence) / 2)` (Owen 1988). Unlike the normal interval it follows
    the skewness of the
    weights: at 99.99 % a normal interval of skewed weights misses several times too often above. The
        maximisers are
    `p_i = 1 / (n a (1 + t w_i))` with `a = mean 1 / (1 + t w)`, one curve in t, on which the log ratio is
    `-n log a - sum log(1 + t w_i)`: each end is one root in t.

    Args:
        log_weights: logs of independent, identically distributed weights, shape (n,), -inf for zero.
        confidence: in (0, 1).

    Returns:
        The two ends.

    Raises:
        InvalidParameterError: if `confidence` is not in (0, 1).
        NumericalError: if all weights are equal.
    """
    level = check_real(
        "confidence", confidence, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True
    )
    top = float(np.max(log_weights, initial=-np.inf))
    scaled = np.exp(log_weights - top) if top > -np.inf else np.zeros(log_weights.size)
    floor = float(np.min(scaled, initial=np.inf))
    width = 1.0 - floor
    if not top > -np.inf or not width > 0.0:
        raise NumericalError(f"no interval from {log_weights.size} equal weights")
    shifted = (scaled - floor) / width
    positive = shifted[shifted > 0.0]
    count, zeros = shifted.size, shifted.size - positive.size
    target = 0.5 * float(scipy.special.chdtri(1.0, 1.0 - level))

    def gain(bet: float) -> float:
        factors = 1.0 + bet * positive
        anchor = (float(np.sum(1.0 / factors)) + zeros) / count
        return count * math.log(anchor) + float(np.sum(np.log(factors))) - target

    def mean(bet: float) -> float:
        odds = 1.0 / (1.0 + bet * positive)
        return float(positive @ odds) / (float(np.sum(odds)) + zeros)

    far = 1.0
    while gain(far) < 0.0:
        far *= 4.0
    down = scipy.optimize.brentq(gain, 0.0, far, rtol=1e-9)
    near = 0.5
    while gain(near - 1.0) < 0.0:
        near *= 0.25
    up = scipy.optimize.brentq(gain, near - 1.0, 0.0, rtol=1e-9)
    ends = [math.exp(top) * (floor + width * mean(bet)) for bet in (down, up)]
    return ends[0], ends[1]
