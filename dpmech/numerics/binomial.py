r"""Tails of the binomial law, as lower and upper bounds in float64.

One probability is computed from Stirling's series with 60 decimal digits: ln n! is between two consecutive
partial sums. The others follow by their ratios, moving away from the mode, where they decrease: all terms are
positive, so rounding stays relative.
"""

import decimal
import math

import numpy as np

from dpmech.numerics.metering import spend
from dpmech.numerics.rounding import UNIT, next_down, next_up, outward

_DIGITS = decimal.Context(prec=60, Emin=-(10**12), Emax=10**12)
_LOG_TWO_PI = decimal.Decimal("1.83787706640934548356065947281123527972279494727556682563430308")
# Up to here factorials are multiplied out; beyond, the series has error below 1 / (1260 n^5) < 1e-18.
_EXACT = 1000
# Error of three factorials, and of the two roundings of the conversion to float.
_OF_ONE = 1e-17 + 4.0 * UNIT
_CHUNK = 1 << 14
# Bound on the omitted terms, relative to the sum of the others.
_LEFT_OUT = 1e-18


def at_least(trials: int, prob: float, count: int) -> tuple[float, float]:
    """Lower and upper bound on the probability that `count` or more of the trials succeed.

    Args:
        trials: in [0, 2^53].
        prob: success probability of each trial, in (0, 1].
        count: any integer.
    """
    if count <= 0:
        return 1.0, 1.0
    if count > trials:
        return 0.0, 0.0
    if prob == 1.0:
        return 1.0, 1.0
    if count > (trials + 1) * prob:
        return _fallen(trials, prob, count, upwards=True)
    return _rest(_fallen(trials, prob, count - 1, upwards=False))


def at_most(trials: int, prob: float, count: int) -> tuple[float, float]:
    """Lower and upper bound on the probability that `count` or fewer trials succeed; as `at_least`."""
    if count < 0:
        return 0.0, 0.0
    if count >= trials:
        return 1.0, 1.0
    if prob == 1.0:
        return 0.0, 0.0
    if count > (trials + 1) * prob:
        return _rest(_fallen(trials, prob, count + 1, upwards=True))
    return _fallen(trials, prob, count, upwards=False)


def _rest(ends: tuple[float, float]) -> tuple[float, float]:
    return max(0.0, next_down(1.0 - ends[1])), min(1.0, next_up(1.0 - ends[0]))


def _fallen(trials: int, prob: float, count: int, *, upwards: bool) -> tuple[float, float]:
    """The sum of the probabilities from `count` on, in the direction in which they decrease."""
    left = trials - count if upwards else count
    total, last, done = 1.0, 1.0, 0
    while done < left:
        size = min(_CHUNK, left - done)
        spend(1e-8 * size, what=f"a tail of {trials} coins")
        at = count + (1.0 if upwards else -1.0) * np.arange(done, done + size)
        if upwards:
            ratios = (trials - at) * prob / ((at + 1.0) * (1.0 - prob))
        else:
            ratios = at * (1.0 - prob) / ((trials - at + 1.0) * prob)
        terms = last * np.cumprod(ratios)
        total += float(terms.sum())
        last, done, ratio = float(terms[-1]), done + size, float(ratios[-1])
        # Ratios decrease, so the remainder is below a geometric series.
        if ratio < 0.99 and last * ratio / (1.0 - ratio) <= 0.5 * _LEFT_OUT * total:
            break
    # A ratio has error 5 u, a product of k of them 6 k u, the sum of k terms at most k u.
    off = _OF_ONE + _LEFT_OUT + 8.0 * (done + 1) * UNIT
    first = _probability(trials, prob, count)
    lower, upper = outward(first, first, off)
    return max(0.0, next_down(lower * total * (1.0 - 1e-15))), min(
        1.0, next_up(upper * total * (1.0 + 1e-15))
    )


def _probability(trials: int, prob: float, count: int) -> float:
    """The probability of exactly `count`, with relative error `_OF_ONE` or up to the smallest float."""
    with decimal.localcontext(_DIGITS):
        q = decimal.Decimal(prob)
        log = _log_factorial(trials) - _log_factorial(count) - _log_factorial(trials - count)
        log += count * q.ln() + (trials - count) * (1 - q).ln()
        return float(log.exp()) if log > -800 else 0.0


def _log_factorial(n: int) -> decimal.Decimal:
    """Ln n!, in the decimal context of the caller."""
    if n <= _EXACT:
        return decimal.Decimal(math.factorial(n)).ln()
    number = decimal.Decimal(n)
    series = 1 / (12 * number) - 1 / (360 * number**3)
    return (number + decimal.Decimal("0.5")) * number.ln() - number + _LOG_TWO_PI / 2 + series
