r"""L2 sensitivity of C G for clip norm 1, over all participation sets of one example.

For a set pi of steps, the worst gradients give sum_{i,j in pi} <C_i, C_j><u_i, u_j> with unit vectors
u_i, which is at most sum_{i,j in pi} |<C_i, C_j>|, with equality where these inner products are >= 0.
Each function below covers one case, checks its hypotheses, and names itself in the result. It bounds the
sensitivity of the matrix of float64 numbers, including the rounding of its own sums; `_widened` adds the
possible error of these numbers.
"""

import functools
import itertools
import math

import numpy as np

from dpmech.exceptions import NumericalError, UnsupportedCombinationError
from dpmech.mechanism.participation import Pattern
from dpmech.mechanism.strategies import Strategy
from dpmech.numerics import (
    UNIT,
    Bounds,
    FloatArray,
    Provenance,
    best_separated_sum,
    best_separated_sums,
    convolution_rounding,
    norm,
    series_product,
    spend,
    sum_rounding,
    windowed_sums,
)

# Column norms that differ by less, relative, are treated as equal; the upper end allows for the difference.
_EQUAL_NORMS = 1e-14
# A sensitivity whose relative error is larger is refused.
_MOST_MOVED = 1e-3
# Up to this many elementary operations the bracket is computed; above, only the cheap bound.
_BRACKET_WORK = 60_000_000_000
_LOWER_WORK = 3_000_000_000
# Above so many seconds, columns are taken in blocks where that is known to bound their inner products.
_EXACT_SECONDS = 60.0
_BLOCKS = 4096


def pattern_sensitivity(strategy: Strategy, pattern: Pattern) -> Bounds:
    """L2 sensitivity of C G at clip norm 1 over the participation sets of a pattern; see `sensitivity`."""
    return _widened(_over_pattern(strategy, pattern), strategy, pattern.max_participations)


def _widened(bounds: Bounds, strategy: Strategy, k: int) -> Bounds:
    """The bounds for the exact strategy, whose columns are within `error` of those in float64.

    Random signs give a set of columns a sum of at least the root of their squared norms, so that an error
    e ||C_j|| in each of k columns moves a sensitivity by at most e sqrt(k), relative.
    """
    moved = 1.01 * strategy.error * math.sqrt(min(k, strategy.n))
    if not moved < _MOST_MOVED:
        raise NumericalError(
            f"{strategy!r} over {k} participations: rounding moves its sensitivity by up to {moved:.1e}"
        )
    return bounds.widened(moved)


def _over_pattern(strategy: Strategy, pattern: Pattern) -> Bounds:
    n, b, k = strategy.n, pattern.min_sep, pattern.max_participations
    norms = strategy.column_norms()  # also refuses norms whose squares leave float64
    if k == 1:
        return _exact(float(norms.max()), strategy.gram_rounding, "sensitivity.largest_column")
    if strategy.bands is not None and strategy.bands <= b:
        return _orthogonal_columns(strategy, pattern)
    if strategy.nonnegative and b == 1 and k == n:
        value, off = _together(strategy, 1, n)
        return _between(value, value, off, "sensitivity.all_columns")
    leftmost = _leftmost(strategy, b, k)
    if leftmost is not None and leftmost.exact:
        return leftmost
    bracket = _evenly_spaced(strategy, pattern) if pattern.evenly_spaced else _bracket(strategy, pattern)
    known = [bounds for bounds in (leftmost, bracket) if bounds is not None]
    if not known:
        raise UnsupportedCombinationError(
            f"no sensitivity bound for {strategy!r} with min_sep={b}, max_participations={k} at n={n}",
            supported="n up to about 50,000 / sqrt(max_participations), FixedEpochs, or a Toeplitz strategy",
        )
    return functools.reduce(Bounds.meet, known)


def _orthogonal_columns(strategy: Strategy, pattern: Pattern) -> Bounds:
    """Columns b or more apart share no row, so their squared norms add, for any signs."""
    norms = strategy.column_norms()
    weights = norms**2
    if pattern.evenly_spaced:
        total = float(windowed_sums(weights, pattern.min_sep, pattern.max_participations).max())
    else:
        total = best_separated_sum(weights, pattern.min_sep, pattern.max_participations)
    rounding = 2.0 * strategy.gram_rounding + _chain(pattern.max_participations) + sum_rounding(strategy.n)
    if not strategy.gram_rounding and total < 2.0**53 and np.array_equal(norms, np.rint(norms)):
        # Sums of integers are exact, and so is the root of a square: Identity over 4 steps has exactly 2.
        rounding *= math.isqrt(int(total)) ** 2 != total
    return _exact(np.sqrt(total), rounding, "sensitivity.orthogonal_columns")


def _leftmost(strategy: Strategy, b: int, k: int) -> Bounds | None:
    """The columns 0, b, 2 b, ... together, and a monotone Toeplitz matrix above |C|.

    lambda_cgd Theorem 1: they are the worst set for non-increasing coefficients >= 0, also among evenly
    spaced sets. For other Toeplitz C, |<C_i, C_j>| is at most the inner product for the smallest
    non-increasing sequence above |c|: an upper bound, which equals the lower one if the hypotheses hold.
    Column-normalised lambda-CGD is exact by Lemma 8.
    """
    factors = strategy.factored
    if factors is None:
        return None
    lower, off = _together(strategy, b, k)
    if factors.scale is not None and _normalised_geometric(strategy):
        # The columns are within d of those of equal norm; for these, with entries >= 0, this set is the
        # worst, and both it and the worst set move by a factor in [1 - d, 1 + d] at most. (1 + d) / (1 - d) <
        # 1 + 2.02 d.
        norms = strategy.column_norms()
        apart = float((norms.max() - norms.min()) / norms.min()) + 2.02 * strategy.gram_rounding
        return _between(lower, lower * (1.0 + 2.02 * apart), off, "cgd.lem8")
    envelope = np.maximum.accumulate(np.abs(factors.coefs)[::-1])[::-1]
    upper = norm(_spaced_sum(envelope, b, k))
    if factors.scale is None:
        route = "cgd.thm1"
    else:
        upper, route = upper * factors.scale.max(), "sensitivity.scaled_envelope"
    return _between(lower, upper, off + 2.0 * sum_rounding(strategy.n) * upper, route)


def _together(strategy: Strategy, b: int, k: int) -> tuple[float, float]:
    """|| C_0 + C_b + ... + C_((k-1) b) ||, and a bound on its rounding error."""
    n, factors = strategy.n, strategy.factored
    chosen = np.zeros(n)
    chosen[: k * b : b] = 1.0
    relative = 2.0 * sum_rounding(n)
    if factors is None:
        value = norm(strategy.matmul(chosen))
        norms = strategy.column_norms()[chosen > 0.0]
        # For one row at most gamma sum_j |C_ij|, and the norms of columns add.
        size = value if strategy.nonnegative else float(norms.sum())
        return value, relative * value + strategy.gram_rounding * (value + size)
    if factors.scale is None:
        terms = _spaced_sum(factors.coefs, b, k)
        size = norm(_spaced_sum(np.abs(factors.coefs), b, k))
        value = norm(terms)
        return value, relative * (value + size)
    scaled = factors.scale * chosen
    value = norm(series_product(factors.coefs, scaled, n))
    off = math.sqrt(n) * convolution_rounding(factors.coefs, scaled)
    return value, relative * value + off


def _spaced_sum(coefs: FloatArray, b: int, k: int) -> FloatArray:
    """Sum of the Toeplitz columns 0, b, ..., (k-1) b: entry t is sum_{j < k} c[t - j b]."""
    return windowed_sums(coefs[::-1], b, k)[::-1]


def _normalised_geometric(strategy: Strategy) -> bool:
    """Whether C = C_lam D^-1 with geometric columns of norm 1 and 0 <= lam < 1."""
    factors = strategy.factored
    if factors is None or strategy.inverse_bands is None or strategy.inverse_bands > 2 or strategy.n == 1:
        return False
    ratio = -factors.inverse_coefs[1] / factors.inverse_coefs[0]
    norms = strategy.column_norms()
    return bool(0.0 <= ratio < 1.0 and np.all(np.abs(norms - norms[0]) <= _EQUAL_NORMS * norms[0]))


def _evenly_spaced(strategy: Strategy, pattern: Pattern) -> Bounds | None:
    """The b sets {s, s + b, ...}: each ceiling is a sum of k (k + 1) / 2 Gram entries."""
    if strategy.n * pattern.max_participations > _LOWER_WORK:
        return None
    _spend_on_windows(strategy.n, pattern.max_participations)
    ceiling, floor = _window_quadratics(strategy, pattern.min_sep, pattern.max_participations)
    ceiling, floor = ceiling[: pattern.min_sep], floor[: pattern.min_sep]
    lower = max(float(floor.max()), _best_signs(strategy, pattern, int(ceiling.argmax())))
    return _of_squares(strategy, pattern, lower, float(ceiling.max()), "sensitivity.evenly_spaced")


def _bracket(strategy: Strategy, pattern: Pattern) -> Bounds | None:
    """Upper: per row of |C^T C| the best b-separated k-set that contains it, then the best set of rows."""
    n, b, k = strategy.n, pattern.min_sep, pattern.max_participations
    capped = b > 1 and k < -(-n // b)
    seconds = n * n * (6e-8 + 6e-9 * (k if capped else 2))
    upper = None if seconds <= _EXACT_SECONDS else _of_blocks(strategy, pattern)
    if upper is None:
        if n * n * (k if capped else 2) > _BRACKET_WORK:
            return None
        spend(seconds, 200.0 * n, what=f"row-wise best sets over {n} steps")
        rows = np.empty(n)
        for i, row in strategy.gram_rows():
            weights = np.abs(row)
            own = weights[i]
            weights[max(0, i - b + 1) : i + b] = 0.0
            rows[i] = own + best_separated_sum(weights, b, k - 1)
        upper = best_separated_sum(rows, b, k)
    together, off = _together(strategy, b, k)
    lower = max(0.0, together - off) ** 2
    if n * k <= _LOWER_WORK // 50:
        _spend_on_windows(n, k)
        ceiling, floor = _window_quadratics(strategy, b, k)
        lower = max(lower, float(floor.max()), _best_signs(strategy, pattern, int(ceiling.argmax())))
    return _of_squares(strategy, pattern, lower, upper, "sensitivity.best_rows")


def _of_blocks(strategy: Strategy, pattern: Pattern) -> float | None:
    """As the upper end of `_bracket`, of blocks of consecutive columns; None where no bound is known.

    For T D with T Toeplitz and c_0 >= c_1 >= ... >= 0, <T_i, T_j> with i <= j sums c_u c_(u + j - i) over
    u < n - j: it falls as j - i grows for a fixed j, and as j grows for a fixed j - i. So two blocks [i0, i1]
    and [j0, j1] to its right have no larger inner product than with j = j0 at the distance j0 - i1. Sets of
    columns that are b apart lie in blocks whose first and last columns are.
    """
    n, b, k, factors = strategy.n, pattern.min_sep, pattern.max_participations, strategy.factored
    if factors is None or factors.coefs[-1] < 0.0 or np.any(np.diff(factors.coefs) > 0.0):
        return None
    size = -(-n // _BLOCKS)
    if b < size:
        return None
    size = b // (b // size)
    blocks, apart = -(-n // size), b // size
    work = blocks**2 * (k if k < -(-blocks // apart) else 2)
    if work > _LOWER_WORK:
        return None
    spend(blocks * n * 5e-9 + work * 6e-9, 40.0 * blocks**2, what=f"best sets of {blocks} blocks of columns")
    starts = size * np.arange(blocks)
    gram = np.zeros((blocks, blocks))
    for away in range(apart, blocks):
        distance = (away - 1) * size + 1
        sums = np.cumsum(factors.coefs[: n - distance] * factors.coefs[distance:])
        gram[np.arange(blocks - away), np.arange(away, blocks)] = sums[n - 1 - starts[away:]]
    gram += gram.T
    scales = np.maximum.reduceat(factors.scales(), starts)
    gram *= scales[:, None] * scales
    rows = np.maximum.reduceat(strategy.column_norms() ** 2, starts)
    rows += best_separated_sums(gram, apart, k - 1)
    return best_separated_sum(rows, apart, k) * (1.0 + 4.0 * sum_rounding(n) + 4.0 * n * UNIT)


def _spend_on_windows(n: int, k: int) -> None:
    spend(3e-7 * n * (k + 512.0), 200.0 * n, what=f"evenly spaced sets of {k} of {n} steps")


def _window_quadratics(strategy: Strategy, b: int, k: int) -> tuple[FloatArray, FloatArray]:
    """For every start s and the set {s, s + b, ...} of k columns: upper and best simple-sign lower bound.

    Returns:
        sum |G| over the set, and the larger of the sums with equal and with alternating signs; both
        of shape (n,).
    """
    n = strategy.n
    ceiling, equal, alternating = np.zeros(n), np.zeros(n), np.zeros(n)
    for m in range(k):
        entries = np.pad(strategy.gram_diagonal(m * b), (0, m * b)) * (2.0 if m else 1.0)
        total = windowed_sums(entries, b, k - m)
        ceiling += windowed_sums(np.abs(entries), b, k - m)
        equal += total
        alternating += total if m % 2 == 0 else -total
    return ceiling, np.maximum(equal, alternating)


def _best_signs(strategy: Strategy, pattern: Pattern, start: int) -> float:
    """Largest quadratic form over sign vectors on one evenly spaced set: all of them up to k = 12."""
    n, b = strategy.n, pattern.min_sep
    chosen = np.arange(start, n, b)[: pattern.max_participations]
    if chosen.size > 512:
        return 0.0
    gram = np.zeros((chosen.size, chosen.size))
    for m in range(chosen.size):
        entries = strategy.gram_diagonal(m * b)[chosen[: chosen.size - m]]
        gram[np.arange(chosen.size - m), np.arange(m, chosen.size)] = entries
    gram = gram + np.triu(gram, 1).T
    if chosen.size <= 12:
        signs = np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=chosen.size - 1)])
    else:
        signs = np.stack([np.where(row >= 0.0, 1.0, -1.0) for row in gram])
    return float(np.einsum("si,ij,sj->s", signs, gram, signs, optimize=True).max())


def _of_squares(strategy: Strategy, pattern: Pattern, lower: float, upper: float, route: str) -> Bounds:
    """Bounds from sums of at most k^2 entries of C^T C, each with the error `gram_rounding`.

    Relative to the norms of two columns: over the columns of a set these errors sum to at most k times
    the sum of squared norms, which is at most the upper end. For C >= 0 they are relative to the sum.
    """
    k = pattern.max_participations
    entries = strategy.gram_rounding * (1.0 if strategy.nonnegative else k)
    off = 1.01 * (entries + 2.0 * _chain(k) + 2.0 * sum_rounding(strategy.n)) * upper
    return Bounds.bracket(
        math.sqrt(max(0.0, min(lower, upper) - off)) * (1.0 - 4.0 * UNIT),
        math.sqrt(upper + off) * (1.0 + 4.0 * UNIT),
        Provenance(route),
    )


def _chain(k: int) -> float:
    """Relative rounding of a sequential sum of k terms >= 0."""
    return 1.01 * k * UNIT


def _exact(value: float, rounding: float, route: str) -> Bounds:
    if rounding == 0.0:
        return Bounds.rounded(value, 0.0, Provenance(route))
    return _between(value, value, rounding * value, route)


def _between(lower: float, upper: float, off: float, route: str) -> Bounds:
    return Bounds.bracket(
        max(0.0, (min(lower, upper) - off) * (1.0 - 4.0 * UNIT)),
        (upper + off) * (1.0 + 4.0 * UNIT),
        Provenance(route),
    )
