r"""Renyi divergences at one order, rounded up, and what an (eps, delta) budget allows at that order.

With D(a) the divergence of order a in the worse direction, a mechanism meets (eps, delta) if
(a - 1) (D(a) - eps) - log a + (a - 1) log(1 - 1/a) <= log delta (Canonne, Kamath and Steinke 2020,
Proposition 12; Asoodeh et al. 2020): the best that follows from one order by E (r - e^eps)_+ <=
E r^a sup_r (r - e^eps) r^-a.
"""

import math

from dpmech.accounting.balls_in_bins import log_tail_factor
from dpmech.exceptions import NumericalError
from dpmech.guards import check_integer

__all__ = ["best_order", "budget_at", "delta_at", "epsilon_at", "sampled_divergence"]

_ULP = 2.0**-52
# Integers: the divergence of a sampled release is then a finite sum of positive terms.
ORDERS = (*range(2, 65), *(round(64.0 * 1.05**step) for step in range(1, 105)))


def sampled_divergence(sampling_prob: float, sigma_over_sensitivity: float, order: int) -> float:
    r"""Renyi divergence of one Poisson-sampled Gaussian release, the larger of both directions, rounded up.

    log(1 + sum_{k >= 2} C(a, k) q^k (1-q)^(a-k) (e^(k(k-1) / (2 s^2)) - 1)) / (a - 1): no term cancels, so
    that the error stays relative however small the divergence is.

    Args:
        sampling_prob: q in (0, 1).
        sigma_over_sensitivity: s > 0.
        order: a, an integer >= 2.

    Raises:
        InvalidParameterError: on a bad order.
        NumericalError: if it leaves the range of float64.

    References:
        Mironov, Talwar and Zhang 2019 (arXiv:1908.10530v1), Section 3.3; Theorem 5 for the direction.
    """
    log_q, log_rest = math.log(sampling_prob), math.log1p(-sampling_prob)
    precision = 0.5 / sigma_over_sensitivity / sigma_over_sensitivity
    terms, sizes = [], []
    order = check_integer("order", order, minimum=2)  # a Python int, as coefficients are of any size
    coefficient = order
    for k in range(2, order + 1):
        coefficient = coefficient * (order - k + 1) // k
        gain = k * (k - 1) * precision
        if gain == 0.0 or not math.isfinite(gain):
            raise NumericalError(
                f"sigma / sensitivity {sigma_over_sensitivity!r} leaves float64 at order {order}"
            )
        parts = (math.log(coefficient), k * log_q, (order - k) * log_rest, gain, math.log(-math.expm1(-gain)))
        terms.append(math.fsum(parts))
        sizes.append(math.fsum(map(abs, parts)))
    top = max(terms)
    total = top + math.log(math.fsum(math.exp(term - top) for term in terms))
    log_moment = max(total, 0.0) + math.log1p(math.exp(-abs(total)))
    # An absolute error in `total` is at most that relative error in log(1 + e^total); every logarithm is off
    # by an ulp of itself, and the argument of the inner one by two.
    error = 8.0 * _ULP * (max(sizes) + abs(total) + 8.0)
    value = log_moment / (order - 1) * (1.0 + error)
    if not (math.isfinite(value) and value > 0.0 and error < 1e-6):
        raise NumericalError(
            f"the Renyi divergence of order {order} leaves float64 at q={sampling_prob!r}, "
            f"sigma / sensitivity {sigma_over_sensitivity!r}"
        )
    return value


def budget_at(order: float, eps: float, delta: float) -> float:
    """The largest divergence of this order that meets (eps, delta), rounded down; negative if none does."""
    needed, slack = _needed(order, delta)
    return (eps - needed) - (slack + 4.0 * _ULP * eps)


def epsilon_at(order: float, divergence: float, delta: float) -> float:
    """The eps >= 0 at delta that follows from one order, rounded up."""
    needed, slack = _needed(order, delta)
    return max(0.0, (divergence + needed) + (slack + 4.0 * _ULP * divergence))


def _needed(order: float, delta: float) -> tuple[float, float]:
    """By how much eps lies above the divergence at most, and what rounding may do to sums with it."""
    tail, log_delta = log_tail_factor(order, 0.0), math.log(delta)
    slack = 16.0 * _ULP * (abs(log_delta) + abs(tail) + 1.0) / (order - 1.0)
    return (tail - log_delta) / (order - 1.0), slack


def delta_at(order: float, divergence: float, eps: float) -> float:
    """The delta at eps >= 0 that follows from one order, rounded up, at most 1."""
    exponent = (order - 1.0) * divergence + log_tail_factor(order, eps)
    slack = 16.0 * _ULP * ((order - 1.0) * (divergence + eps) + abs(log_tail_factor(order, 0.0)) + 1.0)
    value = math.exp(min(0.0, exponent + slack)) * (1.0 + 4.0 * _ULP)
    return min(1.0, math.nextafter(value, math.inf))  # never 0 where the exponential underflows


def best_order(eps: float, delta: float) -> int | None:
    """The order at which (eps, delta) leaves room for the most Gaussian releases; None if there is none."""
    room = {order: budget_at(order, eps, delta) / order for order in ORDERS}
    found = max(room, key=lambda order: room[order])
    return found if room[found] > 0.0 else None
