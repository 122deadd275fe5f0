"""Sensitivity: the largest change of C G by one example, or by the examples of one user, at clip norm 1.

S(pi) and the bounds on it are those of docs/checker.md, section 2. The smallest upper one may be used.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from flint import arb, arb_poly

from .strategies import NotChecked, Strategy

_MOST_WORK, _AT_ONCE = 10_000_000_000, 256  # operations on a Gram matrix, and its rows in memory
_MOST_BLOCKS = 4096  # of columns
_MOST_SUMS, _LONGEST_PRODUCT = 4_000_000, 200_000
_FEW_COLUMNS = 10
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
    largest, leftmost = largest_of(norms), _together(strategy, pattern)
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
        envelope = list(rising)[::-1]  # the least non-increasing numbers above the upper ends of |coefs|
        first = _leftmost(sizes if pattern.evenly else envelope, pattern)
        uppers.append((scale * first, "first evenly spaced set" if pattern.evenly else "leftmost columns"))
    lower = max(lowers, key=lambda value: float(value.lower()))
    close = [upper for upper, _ in uppers if float(upper.upper()) <= float(lower.lower()) * (1.0 + 1e-12)]
    if not close and _work(n, pattern) <= _MOST_WORK:
        found = _evenly(strategy, pattern) if pattern.evenly else _best_rows(_gram_rows(strategy), n, pattern)
        uppers.append((arb(found), "rows of the Gram matrix"))
    elif not close and strategy.scale is not None and b >= -(-n // _MOST_BLOCKS):
        uppers.append((arb(_best_blocks(strategy, norms, envelope, pattern)), "blocks of columns"))
    uppers = [one for one in uppers if one[0].is_finite()]
    if not uppers:
        raise NotChecked(
            f"neither a closed form nor float64 gives the sensitivity of {pattern.most} in {n} steps"
        )
    upper, theorem = min(uppers, key=lambda pair: float(pair[0].upper()))
    return Sensitivity(lower.sqrt(), upper.sqrt(), theorem)


def largest_of(values: Sequence[arb]) -> arb:
    """A ball that contains the largest of the numbers in the balls."""
    return functools.reduce(lambda most, value: most if value <= most else most.max(value), values)


def _together(strategy: Strategy, pattern: Pattern) -> arb:
    """|C_0 + C_b + ... + C_((k-1) b)|^2 of equal gradients, or less; of given entries as `_signed` says."""
    n, b, k = strategy.n, pattern.apart, pattern.most
    if strategy.coefs is None:
        return _signed(strategy.matrix, b, k)
    columns, ratio, scale = range(0, n, b)[:k], strategy.ratio, strategy.scale or [arb(1)] * n
    factors = [scale[t] if t in columns else arb(0) for t in range(n)]
    if ratio is not None:  # a recursion is fast and keeps small entries exact
        return _squares(itertools.accumulate(factors, lambda entry, factor: entry * ratio + factor))
    if strategy.scale is None:
        return _leftmost(strategy.coefs, pattern)
    if n > _LONGEST_PRODUCT:
        return arb(0)  # a valid but loose lower bound
    return _squares((arb_poly(strategy.coefs) * arb_poly(factors)).coeffs()[:n])


def _signed(rows: list[list[float]], b: int, k: int) -> arb:
    """|C_s +- C_(s+b) +- ...|^2 of up to k columns and gradients +-g, for the s and the signs that look best.

    All signs are tried for few columns, else equal ones and those of the rows of G; only some s if many.
    """
    n, matrix, best = len(rows), np.array(rows) / np.abs(rows).max(), (-1.0, 0, np.ones(1))
    starts = [s for s in range(n) if s < b or s + (k - 1) * b < n]  # others give parts of these sets
    for s in starts[:: 1 + len(starts) * k * k * n // _MOST_WORK]:
        own = matrix[:, s::b][:, :k]
        count, gram = own.shape[1], own.T @ own
        signs = np.vstack([np.ones(count), np.where(gram < 0.0, -1.0, 1.0)])
        if gram.min() < 0.0 and count <= _FEW_COLUMNS:
            signs = np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=count - 1)])
        sizes = np.square(signs @ own.T).sum(axis=1)
        best = max(best, (float(sizes.max()), s, signs[sizes.argmax()]), key=lambda one: one[0])
    _, s, chosen = best
    return _squares(sum((arb(row[s + j * b]) * y for j, y in enumerate(chosen)), arb(0)) for row in rows)


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
    """For columns that share no row: the largest sum of squared norms; of `falling` ones 0, b, 2 b, ..."""
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


def _best_separated(weights: Any, b: int, most: int | None, larger: Callable[[Any, Any], Any]) -> Any:  # noqa: ANN401
    """The largest sum of weights >= 0 over at most `most` positions at least b apart; arrays elementwise."""
    best: list[Any] = [0] * len(weights)
    for _ in range(1 if most is None else most):
        before, best = best, []
        earlier = best if most is None else before
        for i, weight in enumerate(weights):
            with_it = weight + earlier[i - b] if i >= b else weight
            best.append(larger(with_it, best[-1]) if best else with_it)
    return best[-1]


def _gram_rows(strategy: Strategy) -> Iterator[np.ndarray]:
    """Upper bounds on |<C_i, C_j>|, row by row from the last one, each of shape (n,): section 2.6."""
    if strategy.coefs is None:
        yield from _dense_gram(strategy)[::-1]
        return
    coefs, scale, rest = _floats(strategy, strategy.coefs)
    signed = _toeplitz_rows(coefs) if np.any(coefs < 0.0) else itertools.repeat(None)
    for size, row, own in zip(_toeplitz_rows(np.abs(coefs)), signed, scale[::-1], strict=False):
        gram = (size if row is None else np.abs(row)) + 16 * _UNIT * size + rest
        yield gram * own * scale * (1.0 + 16 * _UNIT)


def _toeplitz_rows(coefs: np.ndarray) -> Iterator[np.ndarray]:
    row, rest = np.zeros((2, coefs.size))
    for c in coefs:
        shifted, added = np.append(row[1:], 0.0), c * coefs[::-1]
        row = shifted + added
        back = row - shifted
        rest = np.append(rest[1:], 0.0) + ((shifted - (row - back)) + (added - back))
        yield row + rest


def _dense_gram(strategy: Strategy) -> np.ndarray:
    matrix, gamma = np.array(strategy.matrix), 1.02 * (strategy.n + 8) * _UNIT
    size = np.abs(matrix).T @ np.abs(matrix)
    return np.asarray((np.abs(matrix.T @ matrix) + gamma * size + 1e-290) * (1.0 + 8 * _UNIT))


def _floats(strategy: Strategy, coefs: list[arb]) -> tuple[np.ndarray, np.ndarray, float]:
    """Coefficients and scales, and what covers in G the coefficients that are replaced by 0."""
    n, largest = strategy.n, max(float(c.abs_upper()) for c in coefs)
    scale = np.ones(n) if strategy.scale is None else _known(strategy.scale, 0.0)
    return _known(coefs, largest * _NOTHING), scale, 2.2 * n * _NOTHING * largest**2 + 1e-290


def _known(balls: list[arb], floor: float) -> np.ndarray:
    """The numbers as floats with relative error of at most 2 units; 0 for those that are at most `floor`."""
    found = [arb(0) if ball.abs_upper() <= arb(floor) else ball for ball in balls]
    if not all(ball.rad() <= ball.abs_lower() * arb(2) ** -60 for ball in found):
        raise NotChecked("coefficients of C that are not known well enough")
    return np.array([float(ball) for ball in found])


def _evenly(strategy: Strategy, pattern: Pattern) -> float:
    """The largest sum of G over a set {s, s + b, ...}, by its diagonals at multiples of b; rounded up."""
    b, reach = pattern.apart, min(strategy.n, pattern.most * pattern.apart)
    total, aways = np.zeros(b), range(0, reach, b)
    for away, entries in zip(aways, _diagonals(strategy, aways), strict=True):
        padded = np.append(entries[: reach - away], np.zeros(-reach % b))
        total += (2.0 if away else 1.0) * padded.reshape(-1, b).sum(axis=0)
    return float(total.max()) * (1.0 + 2.02 * (pattern.most + 16) * _UNIT)


def _diagonals(strategy: Strategy, aways: Iterable[int]) -> Iterator[np.ndarray]:
    """Upper bounds on |<C_i, C_(i + away)>|, shape (n - away,)."""
    if strategy.coefs is None:
        gram = _dense_gram(strategy)
        yield from (np.diagonal(gram, away) for away in aways)
        return
    (coefs, scale, rest), n = _floats(strategy, strategy.coefs), strategy.n
    for away in aways:
        products = coefs[: n - away] * coefs[away:]
        sums = np.abs(_prefix_sums(products)) + 32 * _UNIT * _prefix_sums(np.abs(products)) + rest
        yield sums[::-1] * scale[: n - away] * scale[away:] * (1.0 + 16 * _UNIT)


def _prefix_sums(values: np.ndarray) -> np.ndarray:
    """Sums of the first 1, 2, ... values, in which a term passes at most 21 additions."""
    for power in range(values.size.bit_length()):
        away = 2**power
        values = np.append(values[:away], values[away:] + values[:-away])
    return values


def _best_blocks(strategy: Strategy, norms: list[arb], envelope: list[arb], pattern: Pattern) -> float:
    """The best set of blocks of consecutive columns, from bounds on their products: section 2.7."""
    n, b = strategy.n, pattern.apart
    size = b // (b // -(-n // _MOST_BLOCKS))
    starts, coefs = np.arange(0, n, size), np.array([float(c) for c in envelope])
    blocks, gram = starts.size, np.zeros((starts.size, starts.size))

    def most(balls: list[arb]) -> np.ndarray:
        return np.maximum.reduceat([float(x.abs_upper()) for x in balls], starts)

    for away in range(b // size, blocks):
        distance = max((away - 1) * size + 1, b)
        sums = np.cumsum(coefs[: n - distance] * coefs[distance:])
        np.fill_diagonal(gram[:, away:], sums[np.minimum(n - starts[away:], n - distance) - 1])
    scale = np.maximum(most(strategy.scale or []), 1e-100)  # so that no product below is lost
    gram = (gram + gram.T + 1e-290) * (scale[:, None] * scale) + 1e-290
    np.fill_diagonal(gram, most(norms) + 1e-290)
    apart = Pattern(b // size, pattern.most)
    if _work(blocks, apart) > _MOST_WORK:
        apart = Pattern(apart.apart, blocks)
    return _best_rows(iter(gram[::-1]), blocks, apart) * (1.0 + 1.01 * (n + 16) * _UNIT)


def _work(n: int, pattern: Pattern) -> int:
    """Operations on entries of G, by `_evenly` or by rows."""
    k, b = pattern.most, pattern.apart
    return 20 * n * k if pattern.evenly else n * n * (10 + (k if k < -(-n // b) else 2))


def _best_rows(rows: Iterator[np.ndarray], n: int, pattern: Pattern) -> float:
    """The best set in every row of G, given from the last one, then the best set of rows; rounded up."""
    b, k = pattern.apart, pattern.most
    most, steps, best = k if k < -(-n // b) else None, np.arange(n), [0.0] * n
    for end in range(n, 0, -_AT_ONCE):
        own = steps[max(0, end - _AT_ONCE) : end][::-1]
        gram = np.stack(list(itertools.islice(rows, own.size)))
        others = np.where(np.abs(own[:, None] - steps) < b, 0.0, gram).T.copy()
        found = _best_separated(others, b, most and most - 1, np.maximum) + gram[np.arange(own.size), own]
        best[own[-1] : end] = found[::-1].tolist()
    return float(_best_separated(best, b, most, np.maximum)) * (1.0 + 2.02 * (2 * k + 4) * _UNIT)
