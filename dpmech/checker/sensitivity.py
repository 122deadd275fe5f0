"""Sensitivity: the largest change of C G by one example, or by the examples of one user, at clip norm 1.

If an example takes part in the steps of a set pi, with gradients of norm at most 1, it changes C G by at most
S(pi) with S(pi)^2 = sum_{i, j in pi} |<C_i, C_j>|, C_i the columns of C; if all these products are >= 0,
equal gradients attain it. The sensitivity is the largest S(pi) over the sets that the participation allows,
its *pattern*. docs/checker.md, section 2, proves the statements of the functions here. Every upper bound is
proved, so that the smallest may be used; lower bounds serve only to refute.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flint import arb, arb_poly

from .strategies import NotChecked, Strategy

_LARGEST_GRAM = 4096  # steps; a matrix of 4096^2 floats takes 134 MB
_MOST_SUMS = 4_000_000
_LONGEST_PRODUCT = 20_000
_MOST_ROWS = 5_000_000_000
_UNIT = 2.0**-53
_NOTHING = 1e-40  # relative


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Which sets of steps one example may take part in."""

    apart: int  # least distance of any two of its steps, >= 1
    most: int  # largest number of its steps, >= 1
    evenly: bool = False  # whether only {s, s + apart, ...} with s < apart, and subsets of it, are possible


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """lower <= sensitivity <= upper (balls), and the theorem that gave the upper end."""

    lower: arb
    upper: arb
    theorem: str


def sensitivity(strategy: Strategy, pattern: Pattern) -> Sensitivity:
    """Return the best proved bounds on the largest S(pi)."""
    n, b = strategy.n, pattern.apart
    pattern = dataclasses.replace(pattern, most=min(pattern.most, -(-n // b)))
    norms = strategy.squared_norms()
    largest = largest_of(norms)
    leftmost = _together(strategy, pattern)
    if pattern.most == 1:
        return Sensitivity(largest.sqrt(), largest.sqrt(), "largest column")
    uppers: list[tuple[arb, str]] = []
    lowers = [largest, leftmost]
    if strategy.bands() <= b:
        total = _orthogonal(norms, pattern, falling=strategy.coefs is not None and strategy.scale is None)
        uppers, lowers = [(total, "orthogonal columns")], [total]
    elif strategy.coefs is not None:
        if strategy.unit_columns and strategy.ratio is not None:
            uppers.append((leftmost, "leftmost columns, normalised geometric"))
        scale = arb(1) if strategy.scale is None else largest_of([s * s for s in strategy.scale])
        sizes = [abs(c) for c in strategy.coefs]
        rising = itertools.accumulate((arb(size.abs_upper()) for size in reversed(sizes)), max)
        # Reversed, these are the least non-increasing numbers above the upper ends of |coefs|.
        uppers.append((scale * _leftmost(list(rising)[::-1], pattern), "leftmost columns"))
        if pattern.evenly:
            uppers.append((scale * _leftmost(sizes, pattern), "first evenly spaced set"))
    lower = max(lowers, key=lambda value: float(value.lower()))
    close = [upper for upper, _ in uppers if float(upper.upper()) <= float(lower.lower()) * (1.0 + 1e-12)]
    if not close and n <= _LARGEST_GRAM:
        uppers.append((arb(_best_rows(_absolute_gram(strategy), pattern)), "rows of the Gram matrix"))
    if not uppers:
        raise NotChecked(f"no closed form gives the sensitivity, and n = {n} is above {_LARGEST_GRAM}")
    upper, theorem = min(uppers, key=lambda pair: float(pair[0].upper()))
    return Sensitivity(lower.sqrt(), upper.sqrt(), theorem)


def largest_of(values: Sequence[arb]) -> arb:
    """A ball that contains the largest of the numbers in the balls."""
    return functools.reduce(lambda most, value: most if value <= most else most.max(value), values)


def _together(strategy: Strategy, pattern: Pattern) -> arb:
    """|C_0 + C_b + ... + C_((k-1) b)|^2, attained by equal gradients, or a lower bound on it."""
    n, columns = strategy.n, range(0, strategy.n, pattern.apart)[: pattern.most]
    if strategy.coefs is None:
        return _squares(sum((arb(row[j]) for j in columns), arb(0)) for row in strategy.matrix)
    ratio, scale = strategy.ratio, strategy.scale or [arb(1)] * n
    factors = [scale[t] if t in columns else arb(0) for t in range(n)]
    if ratio is not None:  # a recursion is fast and keeps small entries exact
        return _squares(itertools.accumulate(factors, lambda entry, factor: entry * ratio + factor))
    if strategy.scale is None:
        return _leftmost(strategy.coefs, pattern)
    if n > _LONGEST_PRODUCT:
        return arb(0)  # a valid but loose lower bound
    return _squares((arb_poly(strategy.coefs) * arb_poly(factors)).coeffs()[:n])


def _leftmost(coefs: list[arb], pattern: Pattern) -> arb:
    """|C_0 + C_b + ... + C_((k-1) b)|^2 for the Toeplitz matrix with these coefficients >= 0."""
    b, k = pattern.apart, pattern.most
    entries: list[arb] = []
    for t, c in enumerate(coefs):
        entry = c if t < b else entries[t - b] + c
        entries.append(entry if t < k * b else entry - coefs[t - k * b])
    return _squares(entries)


def _squares(entries: Iterable[arb]) -> arb:
    return sum((entry * entry for entry in entries), arb(0))


def _orthogonal(norms: list[arb], pattern: Pattern, *, falling: bool) -> arb:
    """For columns that share no row: the largest sum of squared norms over the allowed sets.

    For `falling` norms, as in a Toeplitz matrix, the columns 0, b, 2 b, ... attain it.
    """
    n, b, k = len(norms), pattern.apart, pattern.most
    if falling:
        return sum(norms[: k * b : b], arb(0))
    if pattern.evenly:
        return largest_of([sum(norms[s::b][:k], arb(0)) for s in range(b)])
    capped = k < -(-n // b)
    if capped and n * k > _MOST_SUMS:
        raise NotChecked(f"{k} participations in {n} steps of unequal columns")
    best: arb = _best_separated(norms, b, k if capped else None, arb.max)
    return best


def _best_separated(
    weights: Sequence[Any], b: int, most: int | None, larger: Callable[[Any, Any], Any]
) -> Any:  # noqa: ANN401
    """The largest sum of weights >= 0 over positions at least b apart, at most `most` of them.

    Weights are balls, or arrays of floats that are treated elementwise; `larger` is their maximum.
    """
    best: list[Any] = [0] * len(weights)
    for _ in range(1 if most is None else most):
        before, best = best, []
        earlier = best if most is None else before
        for i, weight in enumerate(weights):
            with_it = weight + earlier[i - b] if i >= b else weight
            best.append(larger(with_it, best[-1]) if best else with_it)
    return best[-1]


def _absolute_gram(strategy: Strategy) -> np.ndarray:
    """Floats that are upper bounds on |<C_i, C_j>|, shape (n, n).

    Toeplitz: G[i, j] = G[i + 1, j + 1] + c[n - 1 - i] c[n - 1 - j], n additions whose rounding errors are
    accumulated separately (two-sum), so that the error of an entry is below 8 units of the same sum with |c|.
    """
    n = strategy.n
    if strategy.coefs is None:
        matrix = np.array(strategy.matrix)
        size = np.abs(matrix).T @ np.abs(matrix)
        gamma = 1.01 * (n + 8) * _UNIT
        gram = np.abs(matrix.T @ matrix) + gamma * (1.0 + gamma) * size + 1e-290
        return np.asarray(gram * (1.0 + 8 * _UNIT))
    largest = max(float(c.abs_upper()) for c in strategy.coefs)
    coefs = _known(strategy.coefs, largest * _NOTHING)
    size = _toeplitz_gram(np.abs(coefs))
    gram = size if np.all(coefs >= 0.0) else np.abs(_toeplitz_gram(coefs))
    # The last term but one covers the coefficients that are replaced by 0.
    gram = gram + 16 * _UNIT * size + 2.2 * n * _NOTHING * largest**2 + 1e-290
    if strategy.scale is not None:
        scale = _known(strategy.scale, 0.0)
        gram = gram * scale[:, None] * scale[None, :]
    return np.asarray(gram * (1.0 + 16 * _UNIT))


def _known(balls: list[arb], floor: float) -> np.ndarray:
    """The numbers as floats with relative error of at most 2 units; 0 for those that are at most `floor`."""
    found = []
    for ball in balls:
        small = ball.abs_upper() <= arb(floor)
        if not small and not ball.rad() <= ball.abs_lower() * arb(2) ** -60:
            raise NotChecked("coefficients of C that are not known well enough")
        found.append(0.0 if small else float(ball))
    return np.array(found)


def _toeplitz_gram(coefs: np.ndarray) -> np.ndarray:
    n = coefs.size
    gram, row, rest = np.empty((n, n)), np.zeros(n), np.zeros(n)
    for i in range(n - 1, -1, -1):
        shifted, added = np.append(row[1:], 0.0), coefs[n - 1 - i] * coefs[::-1]
        row = shifted + added
        back = row - shifted
        rest = np.append(rest[1:], 0.0) + ((shifted - (row - back)) + (added - back))
        gram[i] = row + rest
    return gram


def _best_rows(gram: np.ndarray, pattern: Pattern) -> float:
    """The best set in every row, then the best set of rows; rounded up."""
    n, b, k = len(gram), pattern.apart, pattern.most
    if not np.all(np.isfinite(gram)):
        raise NotChecked("entries of C whose products leave float64")
    if pattern.evenly:
        return max(math.fsum(gram[s::b, s::b][:k, :k].ravel()) for s in range(b)) * (1.0 + 4 * _UNIT)
    capped = k < -(-n // b)
    if capped and n * n * k > _MOST_ROWS:
        raise NotChecked(f"{k} participations of {n} steps, row by row")
    steps = np.arange(n)
    others = np.where(np.abs(steps[:, None] - steps[None, :]) < b, 0.0, gram)
    rows = np.diagonal(gram) + _best_separated(list(others.T), b, k - 1 if capped else None, np.maximum)
    best = _best_separated(list(rows), b, k if capped else None, max)
    return float(best) * (1.0 + 2.02 * (2 * k + 4) * _UNIT)
