"""b-min-sep sampling, where the sets of steps are too many to list: the likelihood ratio is a recursion.

Who took part in a step waits for b - 1 steps. C has at most b bands, so that the columns c_t of the steps
that one example joins have no row in common: log z of a set of steps is the sum of <c_t, x> - |c_t|^2 / 2
over it, and r is the mean of its exponential over a Markov chain. Draws come from powers of r, whose law is a
Markov chain too. `Chain` has what `mixtures` asks of a `Pair`; docs/checker.md, section 6.2, has the proofs.
"""

import functools
import itertools
import math

import numpy as np

from .mixtures import Pair, Part, log_sum
from .strategies import NotChecked

__all__ = ["Chain"]

_COPIES = 6
_MOST_STATES = 10_000_000


class Chain(Pair):
    """b-min-sep sampling.

    Attributes:
        columns: of C over sigma, from the diagonal downwards, shape (n, bands).
        apart: b, at least the number of bands.
        prob: of joining a step after the wait.
        log_starts: logs of the probabilities of the first step at which it is free: 1 : prob : ... : prob.
    """

    def __init__(self, columns: np.ndarray, apart: int, prob: float) -> None:
        self.columns, self.apart, self.prob = columns, apart, prob
        self._squares = np.square(columns).sum(axis=1)
        weights = np.full(apart, prob)
        weights[0] = 1.0
        self.log_starts = np.log(weights / weights.sum())
        # Every step is joined with the same probability; and at most so many are.
        rate, n, width = prob / weights.sum(), len(columns), sum(columns.shape)
        squares = rate * float(self._squares.sum()), float(self._squares.max()) * (n // apart + 1)
        mean = self.moved(np.full((n, 1), rate))[:, 0]
        inexact = 1024.0 * width + 4.0 * _MOST_STATES / n  # steps, and the first state, one of so many
        super().__init__(mean, squares, steps=7 * width, inexact=inexact, cost=2 * width)

    def moved(self, joined: np.ndarray) -> np.ndarray:
        """Sums of columns, as often as `joined` says, shape (n, draws): shape (width, draws)."""
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
        """Log r from the terms: that of the steps from each one on, if free to join it, by recursion."""
        n, b, p = len(self.columns), self.apart, self.prob
        tails, gains = np.zeros((n + b, len(terms))), np.ascontiguousarray(terms.T)
        for t in range(n - 1, -1, -1):
            join = np.exp(gains[t] + tails[t + b] - tails[t + 1])
            tails[t] = tails[t + 1] + np.log(1.0 - p + p * join)
        return log_sum(self.log_starts + tails[:b].T)

    def parts(self, eps: float) -> tuple[None, list[Part]]:
        """Powers of r, of as many copies as there is room for their states."""
        del eps
        most = [m for m in range(1, _COPIES + 1) if len(self.columns) * self.apart**m <= _MOST_STATES]
        if not most:
            raise NotChecked(f"{len(self.columns)} steps {self.apart} apart")
        return None, [_Power(self, m) for m in most]


class _Power:
    """The law r^m dQ / E r^m: m sets of steps at once, with probability over exp(products of their means).

    Columns of different sets have rows in common if their steps are less than b apart. So a Markov chain over
    the waits of all m copies sums that up: after a wait of w more steps, the copy joined b - w steps ago.
    """

    bounds = True

    def __init__(self, chain: Chain, power: int) -> None:
        self._chain, self._copies = chain, power
        n, b, p = len(chain.columns), chain.apart, chain.prob
        self._near = _near_products(chain)
        down = np.maximum(np.arange(b) - 1, 0)
        waits = np.indices((b,) * power).reshape(power, -1)
        self._down = np.ravel_multi_index(tuple(down[waits]), (b,) * power)
        self._values = np.ones((n + 1, b**power))  # means of the exponential from step t on, over a scale
        self._stays = np.zeros((n, b**power))  # probability that no copy joins step t
        total = 0.0
        for t in range(n - 1, -1, -1):
            after, found = self._values[t + 1].reshape((b,) * power), np.zeros((b,) * power)
            for together in range(power + 1):
                # From the states that the others are in: their waits shorten, or they stay free.
                block = after[(b - 1,) * together][np.ix_(*[down] * (power - together))]
                factors = np.exp(together * self._near[t])
                factors[0] = 1.0 - p
                for axis in range(power - together):
                    block = block * factors.reshape((-1,) + (1,) * (power - together - 1 - axis))
                block = block * p**together * math.exp(math.comb(together, 2) * self._near[t, 0])
                for joining in itertools.combinations(range(power), together):
                    found[tuple(0 if u in joining else slice(None) for u in range(power))] += block
                if not together:
                    stays = block.ravel()
            scale = found.max()
            self._stays[t] = stays / found.ravel()
            self._values[t] = found.ravel() / scale
            total += math.log(scale)
        starts = functools.reduce(np.multiply.outer, [np.exp(chain.log_starts)] * power).ravel()
        self._starts = starts * self._values[0]
        self.power, self.log_scale = float(power), -total - math.log(self._starts.sum())

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draws of x."""
        chain, m, b = self._chain, self._copies, self._chain.apart
        n, p = len(chain.columns), self._chain.prob
        joined = np.zeros((n, size))
        sums = np.cumsum(self._starts)
        state = np.searchsorted(sums[:-1], rng.random(size) * sums[-1], side="right")
        for t in range(n):
            leaves = np.flatnonzero(rng.random(size) >= self._stays[t, state])
            before, state = state[leaves], self._down[state]
            if not leaves.size:
                continue
            waits = np.array(np.unravel_index(before, (b,) * m))
            options, ends = [], []
            for joining in itertools.product((False, True), repeat=m):
                who = np.array(joining)[:, None]
                count = int(who.sum())
                if count:
                    pull = np.where(waits > 0, self._near[t, waits], 0.0).sum(axis=0) * count
                    pull += math.comb(count, 2) * self._near[t, 0]
                    free = ((waits == 0) & ~who).sum(axis=0)
                    chance = p**count * (1.0 - p) ** free * np.exp(pull)
                    end = np.ravel_multi_index(
                        tuple(np.where(who, b - 1, np.maximum(waits - 1, 0))), (b,) * m
                    )
                    allowed = np.all((waits == 0) | ~who, axis=0)
                    options.append(np.where(allowed, chance * self._values[t + 1, end], 0.0))
                    ends.append(np.stack([end, np.full(end.size, count)]))
            sums_here = np.cumsum(options, axis=0)
            taken = (sums_here <= rng.random(leaves.size) * sums_here[-1]).sum(axis=0)
            found = np.stack(ends)[taken, :, np.arange(leaves.size)]
            state[leaves], joined[t, leaves] = found[:, 0], found[:, 1]
        return np.asarray(rng.standard_normal((size, chain.width)) + chain.moved(joined).T)

    def log_density(self, x: np.ndarray, terms: np.ndarray, log_r: np.ndarray) -> np.ndarray:
        """The density over Q."""
        del x, terms
        return np.asarray(self.power * log_r + self.log_scale)


def _near_products(chain: Chain) -> np.ndarray:
    """Products of column t with itself (at w = 0), and with that of step t - b + w, for waits w, (n, b)."""
    n, bands = chain.columns.shape
    found = np.zeros((n, chain.apart))
    found[:, 0] = np.square(chain.columns).sum(axis=1)
    for d in range(1, bands):
        found[d:, chain.apart - d] = (chain.columns[d:, : bands - d] * chain.columns[:-d, d:]).sum(axis=1)
    return found
