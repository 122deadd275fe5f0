"""b-min-sep sampling, where there are too many sets of steps to list: the likelihood ratio is a recursion.

After an example takes part in a step, it waits b - 1 steps. C has at most b bands, so that the columns c_t of
the steps of one example have no row in common: log z of a set of steps is the sum of <c_t, x> - |c_t|^2 / 2
over it, and r is the mean of its exponential over a Markov chain. Samples come from powers of r, whose law is
also a Markov chain. `Chain` is a `Pair` of `mixtures`; docs/checker.md, section 6.2, has the proofs.
"""

import functools
import itertools
import math

import numpy as np

from .mixtures import Pair, Part, log_sum
from .strategies import NotChecked

_COPIES = 12
_MOST_STATES = 2_000_000
_MOST_GROWTH = 60.0  # twice the largest exponent of one step


class Chain(Pair):
    """The pair of b-min-sep sampling.

    Attributes:
        columns: columns of C over sigma, from the diagonal downwards, shape (n, bands).
        apart: b, at least the number of bands.
        prob: probability of joining a step after the wait.
        log_starts: logs of the probabilities of the first step that may be joined: 1 : prob : ... : prob.
    """

    def __init__(self, columns: np.ndarray, apart: int, prob: float) -> None:
        self.columns, self.apart, self.prob = columns, apart, prob
        self._squares = np.square(columns).sum(axis=1)
        weights = np.full(apart, prob)
        weights[0] = 1.0
        self.log_starts = np.log(weights / weights.sum())
        # Every step is joined with the same probability, and at most n // apart + 1 of them are joined.
        rate, n, width = prob / weights.sum(), len(columns), sum(columns.shape)
        squares = rate * float(self._squares.sum()), float(self._squares.max()) * (n // apart + 1)
        mean = self.moved(np.full((n, 1), rate))[:, 0]
        inexact = 1024.0 * width + 4.0 * _MOST_STATES / n  # all steps, and the choice of the first state
        super().__init__(mean, squares, steps=7 * width, inexact=inexact, cost=2 * width)

    def moved(self, joined: np.ndarray) -> np.ndarray:
        """Sums of columns weighted by the counts `joined`, shape (n, draws): shape (width, draws)."""
        n, bands = self.columns.shape
        sums = np.zeros((n + bands, joined.shape[1]))
        for k in range(bands):
            sums[k : k + n] += self.columns[:, k, None] * joined
        return sums

    def terms(self, x: np.ndarray) -> np.ndarray:
        """<c_t, x> - |c_t|^2 / 2, shape (draws, n)."""
        n, bands = self.columns.shape
        across = np.ascontiguousarray(x.T)
        found = np.repeat(-0.5 * self._squares[:, None], len(x), axis=1)
        for k in range(bands):
            found += self.columns[:, k, None] * across[k : k + n]
        return np.asarray(found.T)

    def log_r(self, terms: np.ndarray) -> np.ndarray:
        """Log r from the terms, by recursion over that of the steps from t on, where t may be joined."""
        n, b, p = len(self.columns), self.apart, self.prob
        tails, gains = np.zeros((n + b, len(terms))), np.ascontiguousarray(terms.T)
        for t in range(n - 1, -1, -1):
            join = np.exp(gains[t] + tails[t + b] - tails[t + 1])
            tails[t] = tails[t + 1] + np.log(1.0 - p + p * join)
        return log_sum(self.log_starts + tails[:b].T)

    def parts(self, eps: float) -> tuple[None, list[Part]]:
        """Powers of r up to the limit on the number of states, with exponents in float64."""
        del eps
        return None, list(self._powers)

    @functools.cached_property
    def _powers(self) -> list[Part]:
        n, b, square = len(self.columns), self.apart, self._squares.max()
        room = [m for m in range(1, _COPIES + 1) if n * math.comb(b + m - 1, m) <= _MOST_STATES]
        most = [m for m in room if m * (m - 1) * square <= _MOST_GROWTH]
        if not most:
            raise NotChecked(f"{n} steps {b} apart")
        return [_Power(self, m) for m in most]


class _Power:
    """The law r^m dQ / E r^m: m sets of steps at once, with probability over exp(products of their means).

    Columns of different sets have rows in common if their steps are less than b apart. A Markov chain over
    the waits of all m copies computes this sum: a copy that waits w more steps joined b - w steps ago. Copies
    are interchangeable, so that a state counts the copies at each wait, and the number that join is random.
    """

    bounds = True

    def __init__(self, chain: Chain, power: int) -> None:
        n, b, p = len(chain.columns), chain.apart, chain.prob
        self._chain, self._near, joining = chain, _near_products(chain), np.arange(power + 1)[:, None]
        waits = np.array(list(itertools.combinations_with_replacement(range(b), power)))
        places = b ** np.arange(power)[::-1]
        self._counts = (waits[:, :, None] == np.arange(b)).sum(axis=1)
        free = self._counts[:, 0]
        # Probability that a given number of the `free` copies (first in the state) join, and the next state.
        ways = np.array([[math.comb(count, k) for count in range(power + 1)] for k in range(power + 1)])
        self._chances = ways[:, free] * p**joining * (1.0 - p) ** np.maximum(free - joining, 0)
        codes, later = waits @ places, np.maximum(waits - 1, 0)
        self._ends = np.empty(self._chances.shape, dtype=np.int64)
        for join, ends in enumerate(self._ends):  # a loop, as all at once would take a gigabyte
            after = np.where(np.arange(power) < join, b - 1, later)
            ends[:] = np.searchsorted(codes, np.sort(after, axis=1) @ places)
        self._joining, self._pairs, total = joining, joining * (joining - 1) / 2.0, 0.0
        self._values = np.ones((n + 1, len(waits)))  # scaled means of the exponential from step t on
        for t in range(n - 1, -1, -1):
            found = self._steps(t).sum(axis=0)
            self._values[t] = found / found.max()
            total += math.log(found.max())
        orders = [math.lgamma(power + 1.0) - sum(math.lgamma(c + 1.0) for c in row) for row in self._counts]
        self._starts = np.exp(orders + self._counts @ chain.log_starts) * self._values[0]
        self.power, self.log_scale = float(power), -total - math.log(self._starts.sum())

    def _steps(self, t: int) -> np.ndarray:
        """Probability times exponential at step t times the later mean, by number that join, and by state."""
        pull = self._counts[:, 1:] @ self._near[t, 1:]
        growth = np.exp(self._joining * pull + self._pairs * self._near[t, 0])
        return np.asarray(self._chances * growth * self._values[t + 1, self._ends])

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw x."""
        sums = np.cumsum(self._starts)
        state = np.searchsorted(sums[:-1], rng.random(size) * sums[-1], side="right")
        joined = np.zeros((len(self._near), size))
        for t, join in enumerate(joined):
            sums = np.cumsum(self._steps(t), axis=0)
            taken = (sums[:-1, state] <= rng.random(size) * sums[-1, state]).sum(axis=0)
            join[:], state = taken, self._ends[taken, state]
        return np.asarray(rng.standard_normal((size, self._chain.width)) + self._chain.moved(joined).T)

    def log_density(self, x: np.ndarray, terms: np.ndarray, log_r: np.ndarray) -> np.ndarray:
        """The density relative to Q."""
        del x, terms
        return np.asarray(self.power * log_r + self.log_scale)


def _near_products(chain: Chain) -> np.ndarray:
    """Products of column t with itself (w = 0), and with column t - b + w for waits w, shape (n, b)."""
    n, bands = chain.columns.shape
    found = np.zeros((n, chain.apart))
    found[:, 0] = np.square(chain.columns).sum(axis=1)
    for d in range(1, bands):
        found[d:, chain.apart - d] = (chain.columns[d:, : bands - d] * chain.columns[:-d, d:]).sum(axis=1)
    return found
