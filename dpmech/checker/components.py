"""The components of a random allocation: which sets of columns one unit may add up, and their probabilities.

Means are rounded up for a bound from above and down for one from below: docs/checker.md, section 6.4.
"""

import itertools
import math

import numpy as np
from flint import arb

from .chains import Chain, States, sets, waits
from .claims import Claim
from .mixtures import WIDEST, Mixture, Pair
from .strategies import NotChecked, Strategy

_MOST_NUMBERS = 20_000_000
_MOST_COMPONENTS = 20_000
_MOST_STEPS = 100_000  # adding their columns takes quadratic time
_ROUNDING = 1e-10  # relative; above the rounding of sums of that many columns


def pair_of(claim: Claim, *, grids: bool = True) -> tuple[Pair, Pair | None] | int | None:
    """The mixture with K rounded up, and down if it is small enough; None if there is only one component.

    If `grids`, bins with orthogonal columns return the number of bins instead.
    """
    if claim.participation["type"] != "BMinSep":
        return _bins(claim, grids=grids)
    claim.only("min_sep", "sampling_prob")
    n, bands = claim.strategy.n, claim.strategy.bands()
    apart, prob = claim.integer("min_sep", 1, n), claim.probability("sampling_prob")
    if apart == 1 and prob == 1.0:
        return None
    if bands > apart:
        raise NotChecked(f"steps that are {apart} apart, with {bands} bands")
    return _chains(claim, waits(n, bands, apart, prob))


def pair_of_sets(claim: Claim, count: int, squares: tuple[arb, arb] | None) -> tuple[Pair, Pair]:
    """The pair of a random set of `count` steps; or of a group's, with bounds on the squares of columns."""
    if squares is None:
        return _chains(claim, sets(claim.strategy.n, claim.strategy.bands(), count))
    n = claim.strategy.n // claim.integer("cycle", 1)
    ends = (squares[1].sqrt() * (1.0 + _ROUNDING)).upper(), (squares[0].sqrt() * (1.0 - _ROUNDING)).lower()
    above, below = (Chain(np.full((n, 1), float(end)), sets(n, 1, count)) for end in ends)
    return above, below


def _chains(claim: Claim, states: States) -> tuple[Pair, Pair]:
    bands = claim.strategy.bands()
    _check_size(claim.strategy.n, bands)
    above, below = (Chain(_diagonals(claim, bands, upper=upper), states) for upper in (True, False))
    return above, below


def bins_of(claim: Claim) -> int:
    """The number of bins of a participation that has the entries of Balls-in-Bins."""
    claim.only("bins", "fresh", "max_examples_per_user")
    return claim.integer("bins", 1, claim.strategy.n)


def _bins(claim: Claim, *, grids: bool) -> tuple[Mixture, Mixture | None] | int | None:
    bins, n, fresh, users = bins_of(claim), claim.strategy.n, claim.flag("fresh"), claim.examples()
    examples = users or 1
    if bins == 1 and not (fresh and users):
        return None
    if grids and users is None and claim.strategy.bands() == 1 and n % bins == 0:
        return bins
    if fresh:
        raise NotChecked("users with several examples, or correlated noise, in bins that are chosen anew")
    if math.comb(bins + examples - 1, examples) > _MOST_COMPONENTS:
        raise NotChecked(f"{examples} examples in {bins} bins: more than {_MOST_COMPONENTS} allocations")
    # Only the number of examples in each bin matters, not which ones: multinomial weights.
    together = list(itertools.combinations_with_replacement(range(bins), examples))
    _check_size(len(together), n)
    counts = np.array([np.bincount(one, minlength=bins) for one in together], dtype=np.float64)
    orders = [math.lgamma(examples + 1.0) - sum(math.lgamma(c + 1.0) for c in row) for row in counts]
    log_weights = np.array(orders) - examples * math.log(bins)
    above = _over_noise(claim, counts @ _columns(claim.strategy, bins, upper=True), upper=True) + 1e-200
    larger = Mixture(_narrowed(above), log_weights)
    if n > WIDEST:
        return larger, None
    below = _over_noise(claim, counts @ _columns(claim.strategy, bins, upper=False), upper=False)
    return larger, Mixture(below, log_weights)


def _check_size(components: int, n: int) -> None:
    if n > _MOST_STEPS or components * n > _MOST_NUMBERS:
        raise NotChecked(f"{components} sums of columns of length {n}")


def _diagonals(claim: Claim, bands: int, *, upper: bool) -> np.ndarray:
    """Columns of C over sigma from the diagonal downwards, rounded up or down, shape (n, bands)."""
    coefs, n, matrix = claim.strategy.coefs, claim.strategy.n, np.array(claim.strategy.matrix)
    found, scale = np.zeros((n, bands)), _ends(claim.strategy.scale or [arb(1)] * n, upper=upper)
    for k in range(bands):
        entries = np.diagonal(matrix, -k) if coefs is None else _ends([coefs[k]], upper=upper)
        found[: n - k, k] = entries * scale[: n - k]
    if not np.all((found == 0.0) | ((found > 1e-100) & (found < 1e100))):
        raise NotChecked("entries of C that are below 1e-100 or above 1e100")
    return _over_noise(claim, found, upper=upper)


def _columns(strategy: Strategy, bins: int, *, upper: bool) -> np.ndarray:
    """Row i: the sum of columns i, i + bins, ... of C, from the ends of the balls, shape (bins, n)."""
    n = strategy.n
    if strategy.coefs is None:
        columns = np.array(strategy.matrix).T
        return np.stack([columns[first::bins].sum(axis=0) for first in range(bins)])
    coefs, scale = (_ends(balls, upper=upper) for balls in (strategy.coefs, strategy.scale or [arb(1)] * n))
    # Far from the ends of the float64 range, where precision is lost.
    if not (1e-100 < coefs.max() < 1e100 and 1e-100 < scale.min() <= scale.max() < 1e100):
        raise NotChecked("entries of C that are below 1e-100 or above 1e100")
    sums = np.zeros((bins, n))
    for j in range(n):
        sums[j % bins, j:] += coefs[: n - j] * scale[j]
    return sums


def _ends(balls: list[arb], *, upper: bool) -> np.ndarray:
    return np.array([float(ball.upper() if upper else ball.lower()) for ball in balls])


def _over_noise(claim: Claim, sums: np.ndarray, *, upper: bool) -> np.ndarray:
    """Sums of columns over sigma, rounded up or down by more than all rounding errors."""
    rounding = 1.0 + _ROUNDING if upper else 1.0 - _ROUNDING
    return np.asarray(sums * rounding / _ends([claim.sigma], upper=not upper))


def _narrowed(root: np.ndarray) -> np.ndarray:
    """A root with fewer columns whose K is nowhere smaller, as is checked: a Cholesky factor of K, raised."""
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
