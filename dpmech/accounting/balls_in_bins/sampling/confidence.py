r"""Confidence statements about the mean of non-negative weights.

Two kinds, never mixed. `betting_upper_bound` is a theorem for independent weights with a proved bound, at
any sample size. `likelihood_interval` is asymptotic: an interval for an estimate, to be used only where the
diagnostics below say that the sample shows the tail.
"""

import dataclasses
import math

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.guards import check_real
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, sum_rounding, total

__all__ = [
    "WeightSummary",
    "betting_growth",
    "betting_upper_bound",
    "likelihood_interval",
    "pareto_shape",
    "summarise",
]


BETS = 8
LARGEST_BET = 0.999
# What rounding may do to the mean of the weights: a hundred times what was measured against 50 digits, for
# variances up to 80 and eps up to 60 (tests/unit/accounting/balls_in_bins/sampling/test_weight_rounding.py).
# Exponents are sums of a few terms of some hundreds, off by about 1e-13; near the boundary of the loss, where
# weights vanish, that counts as often as the share of samples there exceeds the mean weight.
WEIGHT_ROUNDING = 1e-9
# By how much the root of a search is raised at first where it ended below; no guarantee rests on it.
ROOT_STEP = 1e-11
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


def betting_growth(log_ratios: FloatArray, mean: float) -> tuple[float, float]:
    """The best constant bet against "the mean of these ratios in [0, 1] is at least `mean`", and its growth.

    For planning only: it looks at the sample.

    Args:
        log_ratios: logs of weights over their bound, shape (n,), -inf for zero.
        mean: the mean bet against, in (0, 1].

    Returns:
        The bet lam in (0, 1), and the mean of `log(1 + lam (mean - x))`, at least 0.
    """
    ratios = np.exp(log_ratios)
    bets = np.geomspace(1e-7, 0.999, 64)
    growth = np.array([float(np.mean(np.log1p(bet * (mean - ratios)))) for bet in bets])
    best = int(np.argmax(growth))
    return float(bets[best]), max(0.0, float(growth[best]))


def betting_upper_bound(log_weights: FloatArray, log_bound: float, beta: float, bet: float) -> float:
    r"""An upper bound on the mean of bounded weights, true with probability at least 1 - beta.

    **Theorem.** Let w_1..w_n be independent with mean mu and values in [0, W], x_i = w_i / W, and
    lam_1..lam_J in (0, 1) chosen before them. `E(m) = (1/J) sum_j prod_i (1 + lam_j (m - x_i))` is
    non-negative and increasing in m >= 0, and `E[E(mu / W)] = 1`, since the factors are independent with
    mean 1. By Markov's inequality `E(mu / W) < 1 / beta` with probability at least 1 - beta, and then mu is
    below `W inf{m : E(m) >= 1 / beta}`. QED This is the fixed-sample form of Waudby-Smith and Ramdas (2024,
    arXiv:2010.09686v7, section 4); it needs no common law, only the common mean. No asymptotics are involved.

    Args:
        log_weights: logs of the weights, shape (n,), -inf for zero.
        log_bound: log of W, a proved bound.
        beta: the error probability, in (0, 1).
        bet: the centre of the bets lam, in (0, 1), chosen from an independent sample.

    Returns:
        The bound, at most W but for rounding: its own, and WEIGHT_ROUNDING for that of the weights.

    Raises:
        InvalidParameterError: if beta or bet is not in (0, 1).
        NumericalError: if a weight exceeds its bound by more than rounding, or is not a number.
    """
    level = check_real("beta", beta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
    centre = check_real("bet", bet, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
    top = float(np.max(log_weights, initial=-np.inf))
    if math.isnan(top) or top > log_bound + WEIGHT_ROUNDING:
        raise NumericalError(
            f"a weight of e^{top:.12g} exceeds its proved bound e^{log_bound:.12g}: "
            "the bound or the sampler is wrong"
        )
    wealth = _Wealth.of(log_weights - log_bound, centre)
    target = math.log(BETS) - math.log(level)  # the quotient overflows for the smallest levels
    target += (ELEMENTARY + UNIT) * (math.log(BETS) - math.log(level))

    def excess(mean: float) -> float:
        return wealth.least_log(mean) - target

    # The bound back in units of the weights: an exponential, whose argument is off by roundings of its own,
    # and three products.
    unit = math.exp(log_bound) * (1.0 + WEIGHT_ROUNDING + 2.0 * (ELEMENTARY + (4.0 + abs(log_bound)) * UNIT))
    if excess(1.0) < 0.0:
        return unit
    low = max(wealth.mean, 1e-300)
    root = scipy.optimize.brentq(lambda x: excess(math.exp(x)), math.log(low), 0.0, xtol=1e-10, rtol=1e-12)
    # The search ends on either side: what is returned has been looked at itself.
    mean, step = math.exp(root), ROOT_STEP
    while excess(mean) < 0.0:
        mean, step = mean * (1.0 + step), 4.0 * step
        if mean >= 1.0:
            return unit
    return mean * unit


@dataclasses.dataclass(frozen=True, eq=False)
class _Wealth:
    """The wealth of `betting_upper_bound` from below, rounding included.

    Attributes:
        positive: ratios of weights to their bound, rounded up, without zeros.
        zeros: how many are 0.
        bets: shape (BETS,).
    """

    positive: FloatArray
    zeros: int
    bets: FloatArray

    @classmethod
    def of(cls, log_ratios: FloatArray, centre: float) -> "_Wealth":
        """From logs of the ratios. The difference that they are is off by a rounding of its own size."""
        logs = np.minimum(log_ratios[log_ratios > -np.inf], 0.0)
        raised = np.exp(logs) * (1.0 + 2.0 * (ELEMENTARY + UNIT * (2.0 - logs)))
        bets = np.minimum(centre * 2.0 ** np.linspace(-1.5, 1.5, BETS), LARGEST_BET)
        return cls(np.minimum(raised, 1.0), int(log_ratios.size - logs.size), bets)

    @property
    def mean(self) -> float:
        """The mean ratio, about."""
        return float(self.positive.sum()) / (self.positive.size + self.zeros)

    def least_log(self, mean: float) -> float:
        """Log of the sum over bets, not above that of exact arithmetic.

        An argument a = lam (m - x) is off by two roundings of itself, which moves log(1 + a) by at most their
        multiple |log(1 + a)| / (1 - lam); the logarithm and the sums add theirs. The last line is the rest:
        BETS exponentials, their sum and its logarithm.
        """
        gains, error = [], 0.0
        for bet in self.bets.tolist():
            terms = np.log1p(bet * (mean - self.positive))
            none = self.zeros * math.log1p(bet * mean)
            gains.append(none + total(terms))
            relative = 2.0 * UNIT / (1.0 - bet) + ELEMENTARY + sum_rounding(terms.size) + 4.0 * UNIT
            error = max(error, relative * (none + total(np.abs(terms))))
        largest = max(abs(gain) for gain in gains)
        found = float(scipy.special.logsumexp(gains))
        return found - 1.01 * error - 2.0 * (2.0 * ELEMENTARY + (BETS + largest) * UNIT)
