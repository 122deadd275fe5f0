r"""Closed-form bounds for any Gram matrix: by moments of the likelihood ratio, and by a half-space.

REMOVE: E_Q r^a <= B(a) for integer a (the lemma of `tuples`, proved there for every K), so that
delta <= B(a) sup_r (r - e^eps) r^-a. ADD: r >= exp(mean_l (y_l - K_ll / 2)) by the inequality of means,
hence E_Q r^-(a-1) <= exp((a-1) tr K / (2 b) + (a-1)^2 1^T K 1 / (2 b^2)) for real a > 1. Both are Renyi
divergences, converted to delta optimally. Looser than the other methods at small eps.

ADD by a half-space, i.e. the Gaussian mechanism along one direction: for any probability vector w the
convexity of the logarithm gives `L >= w . y - w . diag(K) / 2 - KL(w || uniform)`, that is
`-eps - L <= u - c` with `u = -w . y` and `c = eps - w . diag(K) / 2 - KL(w || uniform)`. So
`H(Q || P) = E_Q (1 - e^(eps + L))_+ <= E (1 - e^(c - u))_+` with u of the law `N(0, s^2)` under Q,
`s^2 = w^T K w`. The right side is delta of one Gaussian release with sensitivity over noise s, at
`eps' = c + s^2 / 2`. With one bin it is ADD itself.
"""

import functools
import math

import numpy as np
import scipy

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.gaussian import gaussian_delta, gaussian_epsilon, gaussian_sigma
from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.points import add_point
from dpmech.engines.sigma_search import smallest_sigma
from dpmech.numerics import (
    BOUND,
    ELEMENTARY,
    UNIT,
    Bounds,
    IntArray,
    Provenance,
    bisect_boundary,
    quotient_down,
    total,
)

ORDERS = (*range(2, 17), 18, 20, 22, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256)
# Far above the rounding errors of sums over 10^6 bins, relative to the size of the terms.
_SLACK = 1e-9


def log_moment_bound(gram: BinGram, scale: float, order: int, rows: IntArray | None = None) -> float:
    """Log B(s, q) >= log E_Q r^(s q), s >= 1; with `rows` only an estimate from those bins."""
    chosen = np.arange(gram.bins) if rows is None else rows
    offsets = 0.5 * (scale**2 - scale) * gram.diagonal
    log_weights = offsets[chosen]
    if order > 1:
        log_weights = log_weights + (order - 1) * gram.log_row_means(0.5 * scale**2 * order, offsets, chosen)
    return float(scipy.special.logsumexp(log_weights) - math.log(chosen.size))


def product_rounding(gram: BinGram) -> float:
    """Largest error of K @ v relative to the largest entry of K, if K is not an array and sum |v| <= 1."""
    return 0.0 if gram.cheap_columns else gram.product_rounding(1.0, 1.0) / float(gram.diagonal.max())


def moment_rounding(gram: BinGram, order: int) -> float:
    """Bound on the absolute error of `log_moment_bound(gram, 1.0, order)`, for the matrix stored in `gram`.

    In units of u = 2^-53, with k the largest exponent q K / 2 of a row: its product and its distance from the
    largest have errors of k each, exponentials of 8, their mean (in pairs) of 64, its logarithm of 9 log b,
    the sum with the largest of k + log b; the sum over rows, of q - 1 times that quantity, the same. The
    total is less than q (8 k + 160 + 40 log b); where a mean is a product of f means, with exponents k / f
    each, exponentials and sums count f times: less than q (8 k + 160 f + 40 log b).
    """
    largest = 0.5 * order * float(gram.diagonal.max())
    sums = UNIT * order * (8.0 * largest + 160.0 * gram.row_factors + 40.0 * math.log(gram.bins))
    return sums + (order - 1) * largest * product_rounding(gram)


def tail_rounding(power: float, eps: float) -> float:
    """Bound on the absolute error of `log_tail_factor`, p > 1.

    The first term has a relative error of 2 u, and so have the sums; the logarithm has one of 4 u; the last
    term, at most 1, has one of 6 u, plus u for the quotient inside, whose error is multiplied by p - 1 and
    the slope of log1p.
    """
    return UNIT * (4.0 * (power - 1.0) * eps + 8.0 * math.log(power) + 16.0)


def log_tail_factor(power: float, eps: float) -> float:
    """Log sup_r (r - e^eps) r^-p over r >= e^eps, p >= 1."""
    if power <= 1.0:
        return 0.0
    return -(power - 1.0) * eps - math.log(power) + (power - 1.0) * math.log1p(-1.0 / power)


@functools.singledispatch
def rough_log_delta(gram: BinGram, eps: float) -> float:
    """Log of delta within a few orders of magnitude, from 64 rows of K for REMOVE; a start value."""
    rows = np.unique(np.linspace(0, gram.bins - 1, min(gram.bins, 64)).astype(np.int64))
    return min(log_moment_bound(gram, 1.0, order, rows) + log_tail_factor(order, eps) for order in ORDERS)


def half_space_add(gram: BinGram, eps: float) -> float:
    """A proved upper bound on H(Q || P) at e^eps, including rounding.

    Args:
        gram: the Gram matrix K.
        eps: >= 0.
    """
    point = add_point(gram, eps)
    # Both are shifted by far more than their largest error. With f(u) = (1 - e^(c - u))_+ and
    # D = E[e^(c - u); u > c] the bound falls by D per unit of c, and changes by (phi_s(c) - D) / 2 >= -D / 2
    # per unit of s^2: a larger s may lower it, for c < 0, by at most _SLACK s^2 D, which the s^2 in `off`
    # outweighs.
    spread = math.sqrt(point.square) * (1.0 + _SLACK)
    half = 0.5 * float(point.direction @ gram.diagonal)
    off = _SLACK * (1.0 + eps + half + math.log(gram.bins) + spread**2)
    level = point.depth - off + 0.5 * spread**2
    if not math.isfinite(level):
        return 1.0
    # Delta decreases by less than 1 per unit of eps.
    delta = gaussian_delta(quotient_down(1.0, spread), max(level, 0.0))[1] + max(-level, 0.0)
    return min(1.0, delta * (1.0 + _SLACK))


class AllocationRenyiAccountant(Accountant):
    """Bounds from moments in both directions; never worse than without amplification."""

    def __init__(self, gram: BinGram, sensitivity: Bounds) -> None:
        self.gram = gram
        self.sensitivity = sensitivity
        self.by = Provenance(f"{gram.family}.moments", gram.facts)
        self.guarantee = BOUND

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """An upper bound on delta; the lower end is 0."""
        del tolerance
        gram = self.gram.scaled(sigma**-2)
        log_remove = min(self._log_remove(gram, eps, order) for order in ORDERS)
        moments = math.exp(min(0.0, max(log_remove, self._log_add(gram, eps)))) * (1.0 + ELEMENTARY)
        unamplified = gaussian_delta(quotient_down(sigma, self.sensitivity.upper), eps)[1]
        return Bounds(0.0, min(1.0, moments, unamplified), self.guarantee, self.by)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """An upper bound on eps; the lower end is 0."""
        high = gaussian_epsilon(quotient_down(sigma, self.sensitivity.upper), delta, safe=True)
        if self.delta(sigma, 0.0, tolerance=tolerance).upper <= delta:
            return Bounds(0.0, 0.0, self.guarantee, self.by)
        upper = bisect_boundary(
            lambda eps: self.delta(sigma, eps, tolerance=tolerance).upper > delta,
            0.0,
            high,
            safe=True,
            rtol=1e-6,
        )
        return Bounds(0.0, upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that the moments certify, within rtol."""
        start = gaussian_sigma(eps, delta) * self.sensitivity.upper
        return smallest_sigma(self, eps, delta, rtol=rtol, start=start, step=0.05, progress=progress)

    def renyi(self, sigma: float, order: int) -> float:
        """The smaller of the moment bound and the bound without amplification."""
        gram = self.gram.scaled(sigma**-2)
        remove = (log_moment_bound(gram, 1.0, order) + moment_rounding(gram, order)) / (order - 1)
        trace, mean = self._averages(gram)
        moments = max(remove, 0.5 * (trace + (order - 1) * mean))
        unamplified = 0.5 * order * (self.sensitivity.upper / sigma) ** 2
        # At most four roundings in each of them.
        return min(moments, unamplified) * (1.0 + 8.0 * UNIT)

    @staticmethod
    def _averages(gram: BinGram) -> tuple[float, float]:
        """Averages of K, rounded up: tr K / b and 1^T K 1 / b^2."""
        bins, diagonal = gram.bins, gram.diagonal
        if gram.circulant:
            mean = total(gram.columns(np.zeros(1, dtype=np.int64))[0]) / bins
        else:
            mean = total(gram.matvec(np.full(bins, 1.0 / bins))) / bins
        # A product with an array adds b terms >= 0; the error of `total` is below 64 u, the others below 4 u.
        mean *= 1.0 + (bins + 80.0) * UNIT
        mean += product_rounding(gram) * float(diagonal.max())
        return total(diagonal) / bins * (1.0 + 80.0 * UNIT), mean

    @staticmethod
    def _log_remove(gram: BinGram, eps: float, order: int) -> float:
        """Log of the bound at one order, rounded up."""
        moment, tail = log_moment_bound(gram, 1.0, order), log_tail_factor(order, eps)
        off = moment_rounding(gram, order) + tail_rounding(order, eps)
        return moment + tail + (off + 4.0 * UNIT * (abs(moment) + abs(tail)))

    @classmethod
    def _log_add(cls, gram: BinGram, eps: float) -> float:
        return log_add_bound(*cls._averages(gram), eps)


def log_add_bound(trace: float, mean: float, eps: float) -> float:
    """Log of a bound on H_eps(Q || P) from tr K / b and 1^T K 1 / b^2, both rounded up."""

    def log_delta(log_excess: float) -> float:
        a = 1.0 + math.exp(log_excess)
        moment = (a - 1.0) * 0.5 * (trace + (a - 1.0) * mean)
        return moment + log_tail_factor(a, eps) + (tail_rounding(a, eps) + 8.0 * UNIT * moment)

    # Every a is valid: an inexact minimum only loosens the bound.
    return float(scipy.optimize.minimize_scalar(log_delta, bounds=(-12.0, 12.0), method="bounded").fun)
