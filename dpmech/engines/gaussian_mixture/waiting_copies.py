r"""Several copies of an example under b-min-sep sampling: draws of r^m dQ, r = dP/dQ, and a bound on E_Q r^m.

With K = C^T C / sigma^2, `E_Q r^m` is the mean over m independent sets of steps of the exponential of their
inner products. If n_t of the copies join step t, this is the mean of

    prod over t of exp(K_tt n_t (n_t - 1) / 2 + n_t sum over 0 < d < b of K_(t, t-d) n_(t-d)),

and n_t is binomial, with probability p, among the F_t copies that do not wait. The chain of the n_t has too
many states to sum over. Its draws look ahead linearly instead: with numbers alpha and beta, let

    after_t = sum over 0 < d < b of (alpha + beta K_(t+d, t)),    0 beyond the last step,
    x_t = after_t + sum over 0 < d < b of K_(t, t-d) n_(t-d),
    N(F, k, x) = sum over j <= F of binomial(F, j) p^j (1 - p)^(F - j) e^(k j (j - 1) / 2 + j x).

Step t draws n_t from the terms of N_t = N(F_t, K_tt, x_t). A copy that waits w steps at first has its
probability multiplied by e^(alpha w), and V denotes the sum of these products over w. The weight of a draw
relative to the exact law is then

    W = V^m e^(-alpha sum of first waits) prod over t of N_t e^(-after_t n_t).

**The bound.** A copy adds alpha or alpha + beta K to the exponent at every step at which it waits, and these
numbers add up to its after_t (or to alpha w). With s = m - F_t copies waiting and y_t = x_t - after_t,

    log W = m log V + sum over t of (log N(m - s, K_tt, after_t + y_t) - alpha s - beta y_t).

y_t lies between s times the smallest and s times the largest K_(t, t-d) (0 for copies that wait from the
start), and log N is convex in x. So a term is at most lambda_t, the largest value at both ends over s = 0,
..., m, and W <= e^A with A = m log V + sum of lambda_t. Hence E_Q r^m <= e^A. A draw is kept with probability
W e^-A. Relative to Q, what is kept has exactly the density r^m e^-A, whose total may be less than 1.

alpha and beta are those with the smallest lambda at a step in the middle; if all K_(t, t-d) are equal there,
one of them is 0. Any alpha and beta give a valid bound.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.engines.gaussian_mixture.chains import Copies, WaitingGram
from dpmech.engines.gaussian_mixture.moments import log_tail_factor
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray

# Limits on m, on the terms of all sums of one bound, on exponents, and on p, so that (1 - p)^m is a number.
_COPIES, _TERMS, _GROWTH, _PROB = 128, 1e8, 300.0, 0.99
# Steps of each search for alpha and beta.
_NARROWINGS = 26
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class WaitingCopies(Copies):
    """The law of m copies; its `log_total` is the bound A.

    Attributes:
        gram: K of the steps.
        alpha: gain of a copy for every step of waiting.
        beta: multiple of K_(t, t-d) that it gains in addition.
        after: gains of joining each step, shape (n,).
    """

    gram: WaitingGram
    power: int
    alpha: float
    beta: float
    after: FloatArray
    log_total: float

    @classmethod
    def of(cls, gram: WaitingGram, power: int) -> "WaitingCopies | None":
        """The law of so many copies; None if its numbers are too large."""
        from dpmech.engines.gaussian_mixture.chain_kernels import largest_steps

        n, top = gram.bins, float(gram.diagonal.max())
        if power > _COPIES or gram.sampling_prob > _PROB or n * power**2 > _TERMS:
            return None
        if power * power * top > _GROWTH:
            return None
        alpha, beta = _slopes(gram, power)
        after = np.full(n, alpha) * np.minimum(gram.min_sep - 1, np.arange(n)[::-1])
        for d, products in enumerate(gram.by_distance.T, 1):
            after[: n - d] += beta * products[d:]
        largest = np.zeros(n)
        least, most = _ends(gram)
        largest_steps(
            power, gram.log_prob, gram.log_rest, gram.diagonal, after, alpha, beta, least, most, largest
        )
        if not np.all(np.isfinite(largest)):
            return None
        return cls(
            gram, power, alpha, beta, after, power * _log_starts(gram, alpha)[1] + float(largest.sum())
        )

    @classmethod
    def best(cls, gram: WaitingGram, eps: float) -> "WaitingCopies | None":
        """The law whose weights have about the smallest bound on {r >= e^eps}."""
        found: dict[int, tuple[float, WaitingCopies | None]] = {}

        def bound(power: int) -> float:
            if power not in found:
                law = cls.of(gram, power)
                log_bound = math.inf if law is None else law.log_total + log_tail_factor(power, eps)
                found[power] = log_bound, law
            return found[power][0]

        high = 4
        while bound(high) < bound(high // 2):
            high *= 2
        low = max(high // 4, 1)
        while high - low > 2:
            left, right = low + (high - low) // 3, high - (high - low) // 3
            low, high = (low, right) if bound(left) <= bound(right) else (left, high)
        return found[min(range(max(low, 2), high + 1), key=bound)][1]

    @functools.cached_property
    def error(self) -> float:
        """Rounding of `log_total`: a step sums at most m + 1 terms, each a product of m + 1 factors."""
        gram, m = self.gram, self.power
        size = float(np.abs(self.after).max()) + m * float(gram.diagonal.max())
        each = (8.0 * m + 40.0 + 2.0 * gram.min_sep) * UNIT + 4.0 * ELEMENTARY
        each += m * size * (gram.entry_rounding + (m + 2.0 * gram.min_sep + 8.0) * UNIT + 2.0 * ELEMENTARY)
        return float(1.05 * (gram.bins + m + 1.0) * (each + 4.0 * UNIT * abs(self.log_total)))

    def counts(self, rng: np.random.Generator, count: int) -> FloatArray:
        """How many copies join each step, for those of `count` draws that are kept; shape (kept, n)."""
        from dpmech.engines.gaussian_mixture.chain_kernels import draw_counts

        gram = self.gram
        log_starts, log_mean = _log_starts(gram, self.alpha)
        out, logs = np.zeros((count, gram.bins)), np.empty(count)
        draw_counts(
            rng.random((count, self.power + gram.bins)),
            np.cumsum(np.exp(log_starts)),
            gram.log_prob,
            gram.log_rest,
            gram.diagonal,
            gram.by_distance,
            self.alpha,
            self.after,
            out,
            logs,
        )
        logs += self.power * log_mean
        if not np.all(logs <= self.log_total + 2.0 * self.error):
            raise NumericalError("a draw of several copies exceeds its proved weight bound")
        return out[rng.random(count) < np.exp(np.minimum(logs - self.log_total, 0.0))]


def _log_starts(gram: WaitingGram, alpha: float) -> tuple[FloatArray, float]:
    """Logs of the weighted law of the first waits, shape (b,), and log V."""
    waits = np.minimum(np.arange(gram.min_sep), gram.bins)
    logs = gram.log_starts + alpha * waits
    mean = float(scipy.special.logsumexp(logs))
    return logs - mean, mean


def _ends(gram: WaitingGram) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest K_(t, t-d) over 0 < d < b, 0 for copies that wait from the start; shape (n,)."""
    n, b = gram.bins, gram.min_sep
    if gram.by_distance.shape[1] == 0:
        return np.zeros(n), np.zeros(n)
    least = gram.by_distance.min(axis=1) if gram.by_distance.shape[1] == b - 1 else np.zeros(n)
    return least, gram.by_distance.max(axis=1)


def _slopes(gram: WaitingGram, power: int) -> tuple[float, float]:
    """The alpha and beta with about the smallest lambda at a step in the middle."""
    from dpmech.engines.gaussian_mixture.chain_kernels import largest_step

    middle = min(gram.bins // 2 + gram.min_sep, gram.bins - 1)
    products = gram.by_distance[middle]
    least, most = (float(ends[middle]) for ends in _ends(gram))
    total, square = float(products.sum()), float(gram.diagonal[middle])

    def term(alpha: float, beta: float) -> float:
        after = alpha * (gram.min_sep - 1) + beta * total
        return largest_step(power, gram.log_prob, gram.log_rest, square, after, alpha, beta, least, most)

    def smallest(beta: float) -> tuple[float, float]:
        low = -gram.sampling_prob * math.exp(min(power * square, 5.0))
        return _minimum(lambda alpha: term(alpha, beta), low, 0.0)

    top = 4.0 * power * gram.sampling_prob * math.exp(min(0.25 * power * square, 3.0))
    if least == most:
        # Only alpha + beta K has an effect there. Large ones that cancel would raise lambda at both ends.
        alpha, loss = smallest(0.0)
        beta, gain = _minimum(lambda beta: term(0.0, beta), 0.0, top)
        return (alpha, 0.0) if loss < gain else (0.0, beta)
    beta, _ = _minimum(lambda beta: smallest(beta)[1], 0.0, top)
    return smallest(beta)[0], beta


def _minimum(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Where a convex function is about smallest in an interval, and its value there."""
    places = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [function(place) for place in places]
    for _ in range(_NARROWINGS):
        if values[0] <= values[1]:
            high = places[1]
            places = [high - _GOLDEN * (high - low), places[0]]
            values = [function(places[0]), values[0]]
        else:
            low = places[0]
            places = [places[1], low + _GOLDEN * (high - low)]
            values = [values[1], function(places[1])]
    return min(zip(places, values, strict=True), key=lambda pair: pair[1])
