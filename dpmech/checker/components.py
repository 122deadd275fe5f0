"""The components of a random allocation: which sets of columns one unit may add up, and how likely each is.

Means are sums of columns of C >= 0. They are rounded up for a bound from above and down for one from below,
entry by entry, so that K is nowhere smaller, or nowhere larger, than it is (docs/checker.md, section 6.4).
"""

import itertools
import math

import numpy as np
from flint import arb

from .claims import Claim
from .documents import BadDocument
from .mixtures import WIDEST, Mixture
from .strategies import NotChecked, Strategy

__all__ = ["pair_of"]

_MOST_NUMBERS = 20_000_000
_MOST_COMPONENTS = 20_000
_MOST_WORK = 3_000_000
_MOST_STEPS = 100_000  # whose columns are added up in time that grows with their square
_ROUNDING = 1e-10  # above all rounding of sums of up to so many columns, relative


def pair_of(claim: Claim) -> tuple[Mixture, Mixture | None] | None:
    """The mixture with K rounded up, and down if it is small enough; None where chance leaves no choice."""
    kind, n = claim.participation["type"], claim.strategy.n
    if kind == "MinSepSampling":
        claim.only("min_sep", "sampling_prob")
        apart, prob = claim.integer("min_sep", 1, n), claim.probability("sampling_prob")
        if apart == 1 and prob == 1.0:
            return None
        _check_size(n, n)
        sets = _sets_apart(n, apart, prob)
        _check_size(len(sets), n)
        indicators = np.zeros((len(sets), n))
        for row, steps in zip(indicators, sets, strict=True):
            row[list(steps)] = 1.0
        return _rounded(claim, indicators, n, np.log(np.array(list(sets.values()))))
    users = kind == "UserBallsInBins"
    claim.only("bins", *["max_examples_per_user"] * users)
    bins = claim.integer("bins", 1, n)
    if n % bins:
        raise BadDocument(f"{bins} bins do not divide n = {n}")
    examples = claim.integer("max_examples_per_user", 1, 1000) if users else 1
    if bins == 1:
        return None
    if kind == "FreshBallsInBins":
        epochs = n // bins
        if epochs > 64 or bins**epochs > _MOST_COMPONENTS:
            raise NotChecked(
                f"{bins} bins anew in each of {epochs} epochs: more than {_MOST_COMPONENTS} allocations"
            )
        chosen = list(itertools.product(range(bins), repeat=epochs))
        _check_size(len(chosen), n)
        indicators = np.zeros((len(chosen), n))
        for epoch in range(epochs):
            indicators[np.arange(len(chosen)), [one[epoch] + epoch * bins for one in chosen]] = 1.0
        return _rounded(claim, indicators, n, np.full(len(chosen), -math.log(len(chosen))))
    if math.comb(bins + examples - 1, examples) > _MOST_COMPONENTS:
        raise NotChecked(f"{examples} examples in {bins} bins: more than {_MOST_COMPONENTS} allocations")
    # Which examples are where does not matter, only how many of them: multinomial weights.
    together = list(itertools.combinations_with_replacement(range(bins), examples))
    _check_size(len(together), n)
    counts = np.array([np.bincount(one, minlength=bins) for one in together], dtype=np.float64)
    orders = [math.lgamma(examples + 1.0) - sum(math.lgamma(c + 1.0) for c in row) for row in counts]
    return _rounded(claim, counts, bins, np.array(orders) - examples * math.log(bins))


def _check_size(components: int, n: int) -> None:
    if n > _MOST_STEPS or components * n > _MOST_NUMBERS:
        raise NotChecked(f"{components} sums of columns of length {n}")


def _columns(strategy: Strategy, bins: int, *, upper: bool) -> np.ndarray:
    """Row i: the sum of columns i, i + bins, ... of C, shape (bins, n), from the ends of the balls."""
    n = strategy.n
    sums = np.zeros((bins, n))
    if strategy.coefs is None:
        matrix = np.array(strategy.matrix)
        for start in range(0, n, bins):
            sums += matrix[:, start : start + bins].T
        return sums
    coefs = np.array([_end(c, upper=upper) for c in strategy.coefs])
    scale = np.ones(n) if strategy.scale is None else np.array([_end(s, upper=upper) for s in strategy.scale])
    # Away from the ends of the range of float64, where numbers lose digits.
    if not (1e-100 < coefs.max() < 1e100 and 1e-100 < scale.min() <= scale.max() < 1e100):
        raise NotChecked("entries of C that are below 1e-100 or above 1e100")
    for j in range(n):
        sums[j % bins, j:] += coefs[: n - j] * scale[j]
    return sums


def _end(ball: arb, *, upper: bool) -> float:
    return float(ball.upper() if upper else ball.lower())


def _rounded(
    claim: Claim, counts: np.ndarray, bins: int, log_weights: np.ndarray
) -> tuple[Mixture, Mixture | None]:
    """Components that take the sums of columns of `bins` bins so often as `counts` says."""
    smaller, larger = _end(claim.sigma, upper=False), _end(claim.sigma, upper=True)
    above = counts @ _columns(claim.strategy, bins, upper=True) * (1.0 + _ROUNDING) / smaller + 1e-200
    if above.shape[1] > WIDEST:
        return Mixture(_narrowed(above), log_weights), None
    below = counts @ _columns(claim.strategy, bins, upper=False) * (1.0 - _ROUNDING) / larger
    return Mixture(_narrowed(above), log_weights), Mixture(below, log_weights)


def _narrowed(root: np.ndarray) -> np.ndarray:
    """A root of fewer columns whose K is nowhere smaller: Cholesky's factor of K and a little more.

    The factor is taken only after its own product, less what float64 may hide, was found to be large enough.
    """
    count, width = root.shape
    if width <= 2 * count:
        return root
    gram = root @ root.T
    largest = float(gram.max())
    raised = gram * (1.0 + 1e-9) + largest * (1e-10 + 1e-9 * np.eye(count))
    factor = np.linalg.cholesky(raised)
    slack = 1.01 * (width + count + 16) * 2.0**-53 * largest * 1.01
    if np.all(factor @ factor.T - 2.0 * slack >= gram):
        return np.asarray(factor)
    raise ArithmeticError("the products of the means could not be rounded up")


def _sets_apart(n: int, apart: int, prob: float) -> dict[tuple[int, ...], float]:
    """Which steps an example joins, with probabilities.

    After each it waits apart - 1 steps, and joins every other step with probability prob. Before step 0 it
    waits for 0 steps with probability 1 / (1 + prob (apart - 1)), and for each of 1, ..., apart - 1 with prob
    times that.
    """
    first = 1.0 / (1.0 + prob * (apart - 1))
    # State: (steps joined, first step at which it is free).
    states: dict[tuple[tuple[int, ...], int], float] = {
        ((), wait): first * (prob if wait else 1.0) for wait in range(apart)
    }
    work = 0
    for step in range(n):
        work += len(states)
        after: dict[tuple[tuple[int, ...], int], float] = {}
        for (joined, free), weight in states.items():
            moves = {(joined, free): 1.0}
            if free <= step:
                moves = {((*joined, step), step + apart): prob, (joined, free): 1.0 - prob}
            for state, chance in moves.items():
                if chance > 0.0:
                    after[state] = after.get(state, 0.0) + weight * chance
        states = after
        # Steps joined tell when it is free, but for none joined; and there are never fewer of them later.
        if len(states) > _MOST_COMPONENTS + apart or work > _MOST_WORK:
            raise NotChecked(f"{n} steps at least {apart} apart: more than {_MOST_COMPONENTS} sets")
    sets: dict[tuple[int, ...], float] = {}
    for (joined, _), weight in states.items():
        sets[joined] = sets.get(joined, 0.0) + weight
    return sets
