r"""Renyi divergences of a lot of B of n examples without replacement, one of which is replaced.

With q = B / n and E(j) = j / (2 s^2) the divergence of the Gaussian mechanism at the distance of what
replaces each other, D(a) at an integer order a >= 2 is at most

log(1 + q^2 C(a, 2) min(4 (e^E(2) - 1), 2 e^E(2)) + sum_{j >= 3} q^j C(a, j) min(2 e^((j-1) E(j)), 4 m(j)))

over a - 1. There m(j) for even j is the j-th moment of r - 1 under N(0, s^2), r the density of N(1, s^2) over
it, and for odd j the geometric mean of its neighbours. And D(a) is never more than E(a), as the divergence is
quasi-convex in pairs of laws. Between two integers (a - 1) D(a) lies below the chord of its bounds there,
being convex and 0 at a = 1.

References:
    Wang, Balle and Kasiviswanathan 2019 (arXiv:1808.00087), Theorems 9 and 27, for mechanisms without a
    divergence of infinite order; van Erven and Harremoes 2014 (arXiv:1206.2459), Theorem 13, for the cap.
    Shown in docs/fixed_size_lots.md.
"""

import decimal
import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.numerics import UNIT, FloatArray, next_up

__all__ = ["replaced_divergence"]

# Beyond this order the sum is not formed: there the cap answers.
_MOST_TERMS = 20_000
# Moments are taken up to this order, and while their differences need no more digits than that.
_MOMENTS, _DIGITS = 128, 600
# What rounding moves an exponent by, of the sizes of its parts: 16 u for a logarithm of the gamma function,
# twice that for what else enters, and sums.
_ROUNDING = 64.0 * UNIT


def replaced_divergence(sampling_prob: float, sigma_over_sensitivity: float) -> Callable[[float], float]:
    """An upper bound on the Renyi divergence of one step, rounded up, as a function of the order > 1.

    Args:
        sampling_prob: B / n, not below it, in (0, 1).
        sigma_over_sensitivity: s > 0, the noise over the distance of two examples that replace each other.
    """
    known: dict[int, float] = {1: 0.0}
    moments = functools.cache(lambda: log_even_moments(sigma_over_sensitivity))

    def log_moment(order: int) -> float:
        if order not in known:
            known[order] = _log_moment(sampling_prob, sigma_over_sensitivity, order, moments())
        return known[order]

    def divergence(order: float) -> float:
        # Rounded up before it is divided; the cap by three operations.
        whole = next_up(order / sigma_over_sensitivity * (0.5 / sigma_over_sensitivity) * (1.0 + 8.0 * UNIT))
        below = math.floor(order)
        if below + 1 > _MOST_TERMS:
            return whole
        part = order - below
        least, most = log_moment(below), log_moment(below + 1)
        value = ((1.0 - part) * least + part * most) / (order - 1.0)
        # A chord that starts at a = 1 is a line through 0; 1 - part and order - 1 are exact to a rounding.
        return min(whole, next_up(value * (1.0 + 16.0 * UNIT)))

    return divergence


def log_even_moments(sigma_over_sensitivity: float) -> FloatArray:
    """Logarithms, rounded up, of E (r - 1)^l for l = 2, 4, ..., under N(0, s^2): its l-th differences at 0.

    E r^i is e^(i (i - 1) / (2 s^2)). Differences cancel, so that they are taken in as many decimal digits as
    it takes: E (r - 1)^l >= (E (r - 1)^2)^(l / 2) >= s^-l, terms are at most e^(l (l - 1) / (2 s^2)) of which
    2^l are added up, and 30 more are kept.

    Returns:
        Shape (m,), m <= 64; fewer where the digits are too many.
    """
    square = sigma_over_sensitivity * sigma_over_sensitivity

    def digits(order: int) -> float:
        lost = 2.0 * order * math.log(2.0) + order * order / (2.0 * square)
        return (lost + 0.5 * order * max(0.0, math.log(square))) / math.log(10.0) + 30.0

    most = max((order for order in range(2, _MOMENTS + 1, 2) if digits(order) <= _DIGITS), default=0)
    if most == 0:
        return np.zeros(0)
    with decimal.localcontext(prec=math.ceil(digits(most)), Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        multiplier = decimal.Decimal(sigma_over_sensitivity)
        growth = (1 / (multiplier * multiplier)).exp()
        row, factor = [decimal.Decimal(1), decimal.Decimal(1)], decimal.Decimal(1)
        for _ in range(most - 1):
            factor *= growth
            row.append(row[-1] * factor)
        found = []
        for order in range(1, most + 1):
            row = [after - before for before, after in itertools.pairwise(row)]
            if order % 2 == 0:
                found.append(row[0])
    with decimal.localcontext(prec=40):
        logs = np.array([float((+one).ln()) for one in found])
    return np.asarray(logs + 4.0 * UNIT * (np.abs(logs) + 1.0))


def _log_moment(q: float, s: float, order: int, moments: FloatArray) -> float:
    """A bound on (a - 1) D(a) at an integer a >= 2, rounded up."""
    j = np.arange(2.0, order + 1.0)
    gammas = [scipy.special.gammaln(at) for at in (np.float64(order + 1.0), j + 1.0, order - j + 1.0)]
    gain = j * (j - 1.0) * (0.5 / s / s)
    chosen = gammas[0] - gammas[1] - gammas[2] + j * math.log(q)
    sizes = gammas[0] + gammas[1] + gammas[2] + j * abs(math.log(q))
    factors = math.log(2.0) + gain
    # For j = 2 the even moment is e^E(2) - 1 itself. Those of 3 and 4 need that of 4, and so on.
    held = max(0, min(2 * moments.size, order) - 1)
    below, above = ((np.arange(2, held + 2) + up) // 2 - 1 for up in (0, 1))
    by_moments = math.log(4.0) + 0.5 * (moments[below] + moments[above])
    factors[:held] = np.minimum(factors[:held], by_moments)
    terms = chosen + factors
    sizes += np.abs(factors) + gain + 1.0
    top = float(terms.max())
    total = top + math.log(float(np.exp(terms - top).sum()))
    total += _ROUNDING * (float(sizes.max()) + abs(total) + math.log(order) + 1.0) + order * UNIT
    return next_up(float(np.logaddexp(0.0, total)) * (1.0 + 16.0 * UNIT))
