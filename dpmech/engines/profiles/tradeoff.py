"""Trade-off curves from a privacy profile: the power of membership tests at a given false-positive rate.

A test of Q against P has the power P(E) at the false-positive rate Q(E) = alpha, and h(a) = H_a(P || Q) >=
P(E) - a Q(E) for every a >= 0. So P(E) <= h(a) + a alpha: **every** a, with any upper bound on h there, is a
proof. The search for a good a need not be accurate.

Lower bounds, for one pair (P, Q): by Neyman and Pearson the best test attains inf_a h(a) + a alpha. A lower
bound on that infimum is thus one on the best power, if the lower bounds on h belong to one pair at every a.
This holds here: they are those of one worst-case pair of datasets, whose gradients are fixed in advance, or
of a post-processing of it. (If pairs differed from a to a, they would bound the curve only, not a single
test.) Between nodes h is above the lines through two nodes on one side, because it is convex.

References:
    Dong, Roth and Su 2022, Section 2; Kairouz, Oh and Viswanath 2015.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np
import scipy

from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, next_down, next_up

# Lower and upper bound on one direction of a hockey-stick curve at e^eps, any real eps.
Stick = Callable[[float], tuple[float, float]]

# The search for a better eps stops where the curve is below this, and at these values of eps.
_NEGLIGIBLE = 1e-12
_LEAST_EPS, _LARGEST_EPS = -60.0, 600.0
_SMALLEST_STEP = 1e-6
# Resolution of the search for the best eps, in addition to its bracket, and its number of probes.
_RESOLUTION = 2e-4
_LOOKS = 40
# Nodes closer than this, relative, define no line; the relative error of the slope of a line.
_APART, _SLOPE_ERROR = 1e-5, 1e-9
# Far above the rounding error of a sum of few terms.
_SLACK = 1e-12


def best_power(stick: Stick, fpr: float) -> tuple[float, float]:
    """Lower and upper bound on the largest P(E) among tests with Q(E) <= `fpr`.

    Args:
        stick: bounds on H(P || Q); its lower bounds are those of one pair.
        fpr: in [0, 1].
    """
    if fpr >= 1.0:
        return 1.0, 1.0
    seen: dict[float, tuple[float, float]] = {}

    def bound(point: float) -> float:
        eps = float(point)
        if eps not in seen:
            seen[eps] = stick(eps)
        return _tangent(seen[eps][1], eps, fpr)

    low, high = _bracket(bound, seen, fpr)
    if low < high:
        # Its result does not matter: every probe is a proof, and the best one is used.
        scipy.optimize.minimize_scalar(
            bound,
            bounds=(low, high),
            method="bounded",
            options={"xatol": _RESOLUTION * (high - low), "maxiter": _LOOKS},
        )
    upper = min(1.0, *(bound(eps) for eps in seen))
    return min(max(fpr, _least_power(seen, fpr)), upper), upper


def _tangent(value: float, eps: float, fpr: float) -> float:
    """Value + e^eps fpr, rounded up."""
    if fpr == 0.0:
        return value
    return next_up(value + next_up(math.exp(eps) * (1.0 + 2.0 * ELEMENTARY) * fpr))


def _bracket(
    bound: Callable[[float], float], seen: dict[float, tuple[float, float]], fpr: float
) -> tuple[float, float]:
    """An interval around the minimum of a falling, then rising function, from 0 in growing steps."""
    here = bound(0.0)
    # The curve varies on a scale like the distance of both laws.
    step = max(seen[0.0][1], _SMALLEST_STEP)
    sign = 1.0 if bound(step) < here else -1.0
    before, middle = (0.0, step) if sign > 0.0 else (step, 0.0)
    while True:
        step *= 2.0
        beyond = min(max(middle + sign * step, _LEAST_EPS), _LARGEST_EPS)
        done = beyond == middle or seen[middle][1] <= _NEGLIGIBLE
        # There e^eps fpr alone exceeds the best bound, and the curve need not be evaluated.
        if fpr > 0.0 and sign > 0.0 and beyond > (least := math.log(bound(middle) / fpr)):
            return before, max(middle, least)
        if done or bound(beyond) >= bound(middle):
            return min(before, beyond), max(before, beyond if not done else middle)
        before, middle = middle, beyond


def _least_power(seen: dict[float, tuple[float, float]], fpr: float) -> float:
    """A lower bound on inf_a h(a) + a fpr for a convex h between these bounds.

    On an interval h is above a line from the left and one from the right, and so above their mixtures. A
    mixture plus a fpr is linear and has its minimum at an end. The best of three is used.
    """
    eps = np.array(sorted(seen))
    a = np.append(0.0, np.exp(eps))
    lower, upper = (np.append(1.0, [seen[float(one)][end] for one in eps]) for end in (0, 1))
    falls, rises = _slopes(a, lower, upper)
    left, right = slice(None, -1), slice(1, None)
    width = a[right] - a[left]
    # Each line at both ends, and its slope.
    first = np.stack([lower[left], lower[left] + falls[left] * width])
    second = np.stack([lower[right] - rises[right] * width, lower[right]])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        balanced = (fpr + rises[right]) / (rises[right] - falls[left])
    balanced = np.clip(np.nan_to_num(balanced, nan=0.0), 0.0, 1.0)
    best: FloatArray = np.zeros(width.size)
    for share in (np.zeros(width.size), np.ones(width.size), balanced):
        parts = np.stack([share * first, (1.0 - share) * second, fpr * np.stack([a[left], a[right]])])
        ends = parts.sum(axis=0) - _SLACK * np.abs(parts).sum(axis=0)
        best = np.maximum(best, ends.min(axis=0))
    # Beyond the last node, between its line and 0.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        line = np.nan_to_num(fpr / -falls[-1] * (1.0 - _SLOPE_ERROR), nan=1.0)
    last = (min(1.0, float(line)) * lower[-1] + fpr * a[-1]) * (1.0 - _SLACK)
    return float(min(best.min(), last))


def _slopes(a: FloatArray, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds on the slopes of h: a lower bound right of each node, an upper bound left of it; all <= 0.

    Right of a_i no slope is below that of the chord from a_j < a_i, at least (lower_i - upper_j) / (a_i -
    a_j); left of it none is above that of the chord to a_k > a_i, at most (upper_k - lower_i) / (a_k - a_i).
    """
    distance = a[:, None] - a[None, :]
    apart = distance > _APART * np.maximum(a[:, None], a[None, :])
    safe = np.where(apart, distance, 1.0)
    before = np.where(apart, (lower[:, None] - upper[None, :]) / safe, -np.inf)
    after = np.where(apart.T, (upper[None, :] - lower[:, None]) / safe.T, 0.0)
    # h >= 1 - a, and h(0) = 1: no slope is below -1.
    falls = np.maximum(np.minimum(before, 0.0).max(axis=1) * (1.0 + _SLOPE_ERROR), -1.0)
    rises = np.minimum(after, 0.0).min(axis=1) * (1.0 - _SLOPE_ERROR)
    return falls, rises


def larger(ends: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Lower and upper bound on the largest of several numbers."""
    every = list(ends)
    return max(lower for lower, _ in every), max(upper for _, upper in every)


def mirrored(lower: float, upper: float) -> tuple[float, float]:
    """Lower and upper bound on 1 - x, for x in [0, 1]."""
    ends = (next_down(1.0 - upper) if upper < 1.0 else 0.0, next_up(1.0 - lower) if lower > 0.0 else 1.0)
    return max(0.0, ends[0]), min(1.0, ends[1])


def bayes_ends(stick: Stick, prior: float) -> tuple[float, float]:
    """Lower and upper bound on sup_E prior P(E) + (1 - prior) (1 - Q(E)).

    That is 1 - prior + prior h(a), a = (1 - prior) / prior. As h falls by at most as much as a rises, a
    relative error of a changes the sum by at most that error times prior a = 1 - prior.

    Args:
        stick: bounds on h(a) = H_a(P || Q).
        prior: in [0, 1].

    Returns:
        The lower bound rounded down, the upper one up: both at least max(prior, 1 - prior), up to one
        rounding of the lower one.
    """
    if prior in {0.0, 1.0}:
        return 1.0, 1.0
    own, other = math.log(prior), math.log1p(-prior)
    lower, upper = stick(other - own)
    # The logarithms have this relative error, their difference u; e^eps is read without error.
    relative = 2.0 * (ELEMENTARY + UNIT) * (abs(own) + abs(other))
    off = (1.0 - prior) * relative + 4.0 * UNIT
    # Success rate of the best guess without the release. 1 - prior is exact from 1 / 2 on (Sterbenz).
    least = prior if prior >= 0.5 else next_down(1.0 - prior)
    return (
        min(1.0, max(least, 1.0 - prior + prior * lower - off)),
        min(1.0, 1.0 - prior + prior * upper + off),
    )
