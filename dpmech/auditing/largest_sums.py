r"""How far the largest noisy sum of every epoch tells two shuffled datasets apart: from below.

In an epoch of b noisy sums with noise sigma, M is the largest of

    "with":    one of the sums, at random, has mean `present`; the others have mean 0,
    "without": one of them has mean `absent` < `present`; the others have mean 0,

and with probability w nothing is raised in either. With tails Q(x) = P(N(0, 1) > x), for a threshold c,

    P(M > c) = beta + (1 - beta) (1 - (1 - Q(c / sigma))^(b - 1)),
    beta = (1 - w) Q((c - mean) / sigma) + w Q(c / sigma).

Every epoch gets a score that does not fall in M, an integer, and the scores of k independent epochs are added
up to S. For every m

    e^eps P_without(S >= m) + delta >= P_with(S >= m)

holds of an (eps, delta)-private mechanism, so that eps >= ln((P_with(S >= m) - delta) / P_without(S >= m)).

**Guarantee:** lower bound, rounding included. Tails under "with" are rounded down and tails under "without"
up before masses are made of them: sums of scores that do not fall in M are monotone in every tail.

References:
    Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024, arXiv:2403.17673 (one epoch, one threshold).
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.numerics import UNIT, FloatArray

__all__ = ["Epoch", "epsilon_below"]

_THRESHOLDS = 2048
# Thresholds reach this many sigma beyond the raised mean; beyond, there is less than 2e-33.
_REACH = 12.0
# Relative. Tails of scipy are off by less than 1e-13, and their arguments by 2 u, which moves a tail at x by
# about 2 u x^2 < 1e-12 where it is not 0 (x < 39); the operations after that by a few u.
_SLACK = 1e-11
# Absolute: far more than what underflows in any tail or product here, and far less than a delta.
_UNDERFLOW = 1e-290
# Scores of an epoch, and of all epochs together: more cost time and change the fourth digit.
_SCORES, _ALL_SCORES, _LEAST_SCORES = 256, 1 << 15, 4
_MOST_SIGMA = 1e15


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One epoch in the two worlds.

    Args:
        lots: b >= 1, noisy sums.
        sigma: of their noise, > 0.
        present: mean of the raised sum with the example, > absent.
        absent: mean of that sum without it, >= 0.
        left_out: probability w in [0, 1) that no sum is raised.
    """

    lots: int
    sigma: float
    present: float
    absent: float
    left_out: float = 0.0

    def tails(self, thresholds: FloatArray, mean: float) -> FloatArray:
        """P(M > c) for thresholds c >= 0, to a relative 1e-11 and an absolute 1e-290.

        A product of 1 - a_i is convex and 1 where all a_i are 0, so that a relative error of all a_i moves 1
        minus it by no more.
        """
        with np.errstate(over="ignore"):  # a tail at infinity is 0
            quiet = scipy.special.ndtr(-thresholds / self.sigma)
            raised = scipy.special.ndtr(-(thresholds - mean) / self.sigma)
        one = np.minimum(1.0, (1.0 - self.left_out) * raised + self.left_out * quiet)
        others = -np.expm1((self.lots - 1) * np.log1p(-quiet))
        return np.asarray(one + (1.0 - one) * others)


def epsilon_below(epoch: Epoch, epochs: int, delta: float) -> float:
    """A lower bound on eps at delta of `epochs` independent epochs.

    Args:
        epoch: each of them.
        epochs: k >= 1; of more than 8192 the others are not looked at.
        delta: in (0, 1).

    Returns:
        A number >= 0, at most about 600.
    """
    if epoch.sigma > _MOST_SIGMA:
        return 0.0
    count = min(epochs, _ALL_SCORES // _LEAST_SCORES)
    thresholds = np.linspace(0.0, epoch.present + _REACH * epoch.sigma, _THRESHOLDS)
    found = epoch.tails(thresholds, epoch.present) * (1.0 - _SLACK) - _UNDERFLOW
    # Running extremes: both stay on their side of tails that fall.
    tail_with = np.minimum.accumulate(np.maximum(found, 0.0))
    found = epoch.tails(thresholds, epoch.absent) * (1.0 + _SLACK) + _UNDERFLOW
    tail_without = np.minimum(1.0, np.maximum.accumulate(found[::-1])[::-1])
    mass_with = -np.diff(tail_with, prepend=1.0, append=0.0)
    mass_without = -np.diff(tail_without, prepend=1.0, append=0.0)
    scores = _scores(mass_with, mass_without, tail_with, delta, min(_SCORES, _ALL_SCORES // count))
    tops = []
    for masses in (mass_with, mass_without):
        sums, error = _added(np.asarray(np.bincount(scores, masses), dtype=np.float64), count)
        tops.append((np.cumsum(sums[::-1]), error + _of_terms(sums.size)))
    (seen, low), (feigned, high) = tops
    seen = np.maximum(seen * (1.0 - low) - _UNDERFLOW - delta, 0.0)
    feigned = feigned * (1.0 + high) + _UNDERFLOW
    ratio = float(np.max(seen / feigned)) * (1.0 - 8.0 * UNIT)
    return max(0.0, math.log(ratio) * (1.0 - 8.0 * UNIT)) if ratio > 1.0 else 0.0


def _scores(
    mass_with: FloatArray, mass_without: FloatArray, tail_with: FloatArray, delta: float, most: int
) -> npt.NDArray[np.int64]:
    """A score for each cell between thresholds, in [0, most), not falling: about the log of the ratio.

    Any such scores give a bound. The range is that of cells that matter: not those above which lies less than
    a part of delta, nor those below which lies next to nothing.
    """
    tiny = np.finfo(float).tiny
    logs = np.log(np.maximum(mass_with, tiny)) - np.log(np.maximum(mass_without, tiny))
    begin = int(np.count_nonzero(tail_with >= 1.0 - 1e-9))
    end = max(begin, int(np.count_nonzero(tail_with >= 0.1 * delta)))
    logs[:begin] = logs[begin]
    rising = np.maximum.accumulate(logs)
    rising = np.minimum(rising, rising[end])
    span = float(rising[-1] - rising[0])
    if span <= 0.0:
        return np.zeros(rising.size, dtype=np.int64)
    return np.asarray(np.rint((rising - rising[0]) * ((most - 1) / span)), dtype=np.int64)


def _added(masses: FloatArray, count: int) -> tuple[FloatArray, float]:
    """The masses of the sum of `count` independent scores, and a bound on their relative error."""
    total, error = np.ones(1), 0.0
    power, power_error = masses, 2.0 * UNIT + _of_terms(_THRESHOLDS + 1)
    while True:
        if count % 2:
            error += power_error + _of_terms(min(total.size, power.size) + 1)
            total = np.convolve(total, power)
        count //= 2
        if not count:
            return total, error * (1.0 + 1e-6)
        power_error = 2.0 * power_error + _of_terms(power.size + 1)
        power = np.convolve(power, power)


def _of_terms(count: int) -> float:
    """Relative rounding error of a sum of products >= 0, one by one, and of a few operations more."""
    return 1.01 * (count + 8) * UNIT
