"""Where there are too many sets of steps to list: the steps of one example are a Markov chain.

A state says with which chance the example joins a step, and which of the last steps it joined. r is a
recursion over the states; samples come from its powers, whose law is a chain too: docs/checker.md, 6.2.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable

import numpy as np

from .mixtures import Pair, Part, log_sum, log_supremum
from .strategies import NotChecked

_COPIES = 7  # of a random set
_POWERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # of b-min-sep sampling
_MOST_EXPONENT = 300.0  # of one step
_MOST_STATES, _MOST_MOVES = 2_000_000, 40_000_000
_MOST_GROWTH, _MOST_IN_ALL = 60.0, 1200.0  # twice the largest exponent of one step, and of a set of steps
_LEAST = 1e-250  # of the numbers in the recursion, relative to the largest of a step


@dataclasses.dataclass(frozen=True)
class States:
    """The states of one example at n steps."""

    chances: np.ndarray  # probability of joining, shape (n, S)
    ends: np.ndarray  # the next state if the step is not joined, and if it is, shape (2, S)
    starts: np.ndarray  # law of the first state, shape (S,)
    last: np.ndarray  # the only states in which the run can end, shape (S,)
    joined: np.ndarray  # whether a state joined the step d before, d = 1, ..., D, shape (S, D)
    most: int  # largest number of steps that are joined
    rates: tuple[float, float]  # probability of joining a step, and of joining two near ones


def waits(n: int, bands: int, apart: int, prob: float) -> States:
    """b-min-sep sampling: states wait 0, ..., b - 1 steps; first with probabilities 1 : prob : ... : prob."""
    _check_size(n * apart)
    w, starts = np.arange(apart), np.full(apart, prob)
    starts[0] = 1.0
    ends = np.stack([np.maximum(w - 1, 0), np.where(w == 0, apart - 1, w - 1)])
    joined = (w[:, None] > 0) & (apart - w[:, None] == np.arange(1, bands))
    chances = np.broadcast_to(np.where(w == 0, prob, 0.0), (n, apart))
    starts /= starts.sum()
    return States(chances, ends, starts, w >= 0, joined, n // apart + 1, (prob * starts[0], 0.0))


def sets(n: int, bands: int, count: int) -> States:
    """A uniformly random set of `count` steps: how many are left, and which of the last steps were joined."""
    _check_size(n * (count + 1) * 2.0 ** (bands - 1))
    words = itertools.product(range(count + 1), itertools.product((0, 1), repeat=bands - 1))
    known = [(left, word) for left, word in words if left + sum(word) <= count]
    places = {state: place for place, state in enumerate(known)}
    ends = [
        [places[left - (join and left > 0), (join * (left > 0), *word)[: bands - 1]] for left, word in known]
        for join in (0, 1)
    ]
    left = np.array([left for left, _ in known])
    chances, starts = np.minimum(left / np.arange(n, 0, -1)[:, None], 1.0), np.zeros(len(known))
    starts[-1] = 1.0
    joined = np.array([word for _, word in known], dtype=bool).reshape(len(known), bands - 1)
    rates = count / n, count * (count - 1.0) / (n * (n - 1.0))
    return States(chances, np.array(ends), starts, left == 0, joined, count, rates)


def _check_size(numbers: float) -> None:
    if numbers > _MOST_STATES:
        raise NotChecked(f"a Markov chain with {numbers:g} states, over all steps")


class Chain(Pair):
    """The pair of an example whose steps are a Markov chain; columns of C over sigma from the diagonal on."""

    def __init__(self, columns: np.ndarray, states: States) -> None:
        self.columns, self.states = columns, states
        n, bands = columns.shape
        self._differ = bool(states.chances[:, 1:].any())
        # Row t: the square of column t, and its products with the columns d = 1, ..., bands - 1 before.
        self.squares, self.lags = np.square(columns).sum(axis=1), np.zeros((n, bands - 1))
        for d in range(1, bands):
            self.lags[d:, d - 1] = (columns[d:, : bands - d] * columns[:-d, d:]).sum(axis=1)
        self.near = self.lags @ states.joined.T  # products of a column with those that a state joined
        # Each step joined adds its square, and twice its products with those joined before.
        self.top = float((self.squares[:, None] + 2.0 * self.near)[states.chances > 0.0].max())
        mean = self.moved(np.full((n, 1), states.rates[0]))[:, 0]
        square = states.rates[0] * float(self.squares.sum()) + 2.0 * states.rates[1] * float(self.lags.sum())
        sizes, width = (square, self.top * states.most), n + bands
        inexact = 1024.0 * width + 4.0 * _MOST_STATES / n  # all steps, and the choice of the first state
        cost = 2 * width + 4 * len(states.starts)
        super().__init__(mean, sizes, steps=7 * width, inexact=inexact, cost=cost)

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
        found = np.repeat(-0.5 * self.squares[:, None], len(x), axis=1)
        for k in range(bands):
            found += self.columns[:, k, None] * across[k : k + n]
        return np.asarray(found.T)

    def log_r(self, terms: np.ndarray) -> np.ndarray:
        """Log r from the terms, by recursion over means from each step and state on; NaN if out of range."""
        states, (rest, join) = self.states, self.states.ends
        # A first column without gains shows from which states the run can end.
        gains = np.concatenate([np.zeros((terms.shape[1], 1)), terms.T], axis=1)
        tails, logs = np.tile(states.last[:, None] * 1.0, (1, gains.shape[1])), np.zeros(gains.shape[1])
        for t in range(len(gains) - 1, -1, -1):
            found, joins = tails[rest], np.flatnonzero(states.chances[t])
            chance = states.chances[t, joins, None]
            grown = np.exp(gains[t] - self.near[t, joins, None]) * tails[join[joins]]
            found[joins] = (1.0 - chance) * found[joins] + chance * grown
            top = found.max(axis=0)
            tails = found / top
            lost = ((tails < _LEAST) & (tails[:, :1] > 0.0)).any(axis=0)
            logs += np.where(lost, np.nan, np.log(top))
        return np.asarray(logs + np.log(states.starts @ tails))[1:]

    def parts(self, eps: float) -> tuple[None, list[Part]]:
        """Powers of r: all of random sets, or up to the one with the least bound at eps."""
        bounds = [log_supremum(part.power, eps) - part.log_scale for part in self._powers]
        most = len(bounds) if self._differ else 1 + int(np.argmin(bounds))
        return None, self._powers[:most]

    @functools.cached_property
    def _powers(self) -> list[Part]:
        if not self._differ:
            fits = itertools.takewhile(lambda part: part.exact, (_Accepted(self, m) for m in _POWERS))
            return list(fits)
        n, own = self.lags.shape[0], len(self.states.starts)
        room = [m for m in range(1, _COPIES + 1) if n * math.comb(own + m - 1, m) <= _MOST_MOVES / 2**m]
        most = min(_MOST_GROWTH, _MOST_IN_ALL / self.states.most) / self.top
        return [_Power(self, m) for m in room if m * (m - 1) <= most]


class _Accepted:
    """The density r^m e^-A of b-min-sep sampling: m examples are drawn, and accepted with some probability.

    A draw has the weight W <= e^A: its probability times exp(products of means), over that of drawing it.
    It is accepted with probability W e^-A, and left out otherwise. docs/checker.md, 6.2, copies that wait.
    """

    bounds = True

    def __init__(self, chain: Chain, power: int) -> None:
        self._chain, self._copies = chain, power
        (n, _), apart, prob = chain.lags.shape, len(chain.states.starts), float(chain.states.chances[0, 0])
        numbers = np.arange(power + 1)
        # Probabilities that j of F copies that do not wait join, shape (F, j).
        self._binomial = np.array(
            [[math.comb(f, j) * prob**j * (1.0 - prob) ** max(f - j, 0) for j in numbers] for f in numbers]
        )
        self._pairs = numbers * (numbers - 1) / 2.0
        later, high = np.zeros(n), chain.lags.max(axis=1, initial=0.0)
        for d in range(1, chain.lags.shape[1] + 1):
            later[:-d] += chain.lags[d:, d - 1]
        low = chain.lags.min(axis=1, initial=high.max()) * (chain.lags.shape[1] == apart - 1)
        ahead = np.minimum(apart - 1, np.arange(n)[::-1])  # later steps at which who joins has to wait
        steps = np.stack([chain.squares, low, high, ahead, later], axis=1)
        # Any alpha and beta will do; these make the bound small at a step in the middle.
        middle, growth = steps[n // 2], power * float(chain.squares[n // 2])
        far = -prob * math.exp(min(growth, 5.0)), 4.0 * power * prob * math.exp(min(growth / 4.0, 3.0))
        self._alpha = _least(lambda a: self._log_most(middle, a, self._beta_for(middle, a, far[1])), far[0], 0.0)
        self._beta = self._beta_for(middle, self._alpha, far[1])
        different, same = np.unique(steps, axis=0, return_inverse=True)
        self._most = np.array([self._log_most(row, self._alpha, self._beta) for row in different])[same]
        self._after = self._alpha * ahead + self._beta * later
        self._first = chain.states.starts * np.exp(self._alpha * np.minimum(np.arange(apart), n))
        self.power, total = float(power), float(self._first.sum())
        self.log_scale = -power * math.log(total) - float(self._most.sum())
        self._first /= total
        exponents = self._pairs[-1] * chain.squares + power * (np.abs(self._after) + power * high)
        self.exact = float(exponents.max()) <= _MOST_EXPONENT

    def _beta_for(self, step: np.ndarray, alpha: float, far: float) -> float:
        return _least(lambda beta: self._log_most(step, alpha, beta), 0.0, far)

    def _log_most(self, step: np.ndarray, alpha: float, beta: float) -> float:
        """The largest log N - alpha s - beta y over numbers s of copies that wait, and both ends of y."""
        square, low, high, ahead, later = step
        s = np.arange(self._copies + 1)
        y = np.concatenate([low * s, high * s])
        logs = np.log(np.maximum(self._binomial[::-1], 1e-300)) + square * self._pairs
        x = alpha * ahead + beta * later + y
        found = log_sum(np.tile(logs, (2, 1)) + x[:, None] * s)
        return float((found - alpha * np.tile(s, 2) - beta * y).max())

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw x; draws that are not accepted are left out."""
        chain, (n, near) = self._chain, self._chain.lags.shape
        # Row t + b - 1 has how many join step t. Who first waits w steps would have joined step w - b.
        apart = self._first.size
        joined = np.zeros((n + apart - 1, size))
        joined[: apart - 1] = rng.multinomial(self._copies, self._first, size).T[1:]
        waiting, left = joined[: apart - 1].sum(axis=0), rng.standard_exponential(size)
        numbers = np.arange(self._copies + 1)[:, None]
        for t in range(n):
            now = t + apart - 1
            y = chain.lags[t, ::-1] @ joined[now - near : now]
            growth = np.exp(self._pairs[:, None] * chain.squares[t] + numbers * (self._after[t] + y))
            sums = np.cumsum(self._binomial.T[:, self._copies - waiting.astype(int)] * growth, axis=0)
            joined[now] = (sums[:-1] <= rng.random(sums.shape[1]) * sums[-1]).sum(axis=0)
            left += np.log(sums[-1]) - self._alpha * waiting - self._beta * y - self._most[t]
            waiting += joined[now] - joined[t]
            if t == n - 1 or (left > 0.0).sum() < 0.8 * left.size:
                kept = left > 0.0
                joined, waiting, left = joined[:, kept], waiting[kept], left[kept]
        return np.asarray(rng.standard_normal((left.size, chain.width)) + chain.moved(joined[apart - 1 :]).T)

    def log_density(self, x: np.ndarray, terms: np.ndarray, log_r: np.ndarray) -> np.ndarray:
        """The density relative to Q."""
        del x, terms
        return np.asarray(self.power * log_r + self.log_scale)


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a convex function is about least, by golden sections."""
    for _ in range(20):
        left, right = high - 0.618 * (high - low), low + 0.618 * (high - low)
        if function(left) <= function(right):
            high = right
        else:
            low = left
    return (low + high) / 2.0


class _Power:
    """The law r^m dQ / E r^m: m sets of steps, with probability over exp(products of their means).

    Copies are interchangeable, so that states are sorted. Which ones join matters only if several states can.
    """

    bounds = True

    def __init__(self, chain: Chain, power: int, *, differ: bool) -> None:
        own, n = chain.states, len(chain.columns)
        self._chain, count = chain, len(own.starts)
        self._states = states = np.array(list(itertools.combinations_with_replacement(range(count), power)))
        masks = list(itertools.product((0, 1), repeat=power)) if differ else np.tri(power + 1, power, -1)
        self._masks = np.array(masks, dtype=bool)
        self._joining = self._masks.sum(axis=1)
        places = count ** np.arange(power)[::-1]
        codes = states @ places
        self._ends = np.empty((len(self._masks), len(states)), dtype=np.int64)
        for mask, ends in zip(self._masks, self._ends, strict=True):  # not at once: that takes a gigabyte
            after = np.where(mask, own.ends[1][states], own.ends[0][states])
            ends[:] = np.searchsorted(codes, np.sort(after, axis=1) @ places)
        free = (states == 0).sum(axis=1)
        ways = np.array([[math.comb(size, k) for size in range(power + 1)] for k in range(power + 1)])
        self._ways = 1.0 if differ else ways[:, free]
        self._row, total = np.empty(0), 0.0
        self._values = np.ones((n + 1, len(states)))  # scaled means of the exponential from step t on
        self._values[n] = own.last[states].all(axis=1)
        for t in range(n - 1, -1, -1):
            found = self._steps(t).sum(axis=0)
            self._values[t] = found / found.max()
            total += math.log(found.max())
        counts = (states[:, :, None] == np.arange(count)).sum(axis=1)
        orders = [math.lgamma(power + 1.0) - sum(math.lgamma(c + 1.0) for c in row) for row in counts]
        logs = counts @ np.log(np.maximum(own.starts, 1e-300))
        self._starts = np.exp(orders + logs) * self._values[0]
        self.power, self.log_scale = float(power), -total - math.log(self._starts.sum())

    def _steps(self, t: int) -> np.ndarray:
        """Probability times exponential at step t times the later mean, by copies that join, and by state."""
        chain, row = self._chain, self._chain.states.chances[t]
        if not np.array_equal(row, self._row):
            self._row, self._chances = row, self._ways * np.ones(self._ends.shape)
            for mask, state in zip(self._masks.T, self._states.T, strict=True):
                self._chances *= np.where(mask[:, None], row[state], 1.0 - row[state])
        near, pairs = chain.near[t][self._states], self._joining * (self._joining - 1) / 2.0
        pull = self._masks @ (near.sum(axis=1, keepdims=True) - near).T  # with the steps that others joined
        growth = np.exp(pull + pairs[:, None] * chain.squares[t])
        return np.asarray(self._chances * growth * self._values[t + 1, self._ends])

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw x."""
        sums = np.cumsum(self._starts)
        state = np.searchsorted(sums[:-1], rng.random(size) * sums[-1], side="right")
        joined = np.zeros((len(self._chain.columns), size))
        for t, join in enumerate(joined):
            sums = np.cumsum(self._steps(t), axis=0)
            taken = (sums[:-1, state] <= rng.random(size) * sums[-1, state]).sum(axis=0)
            join[:], state = self._joining[taken], self._ends[taken, state]
        return np.asarray(rng.standard_normal((size, self._chain.width)) + self._chain.moved(joined).T)

    def log_density(self, x: np.ndarray, terms: np.ndarray, log_r: np.ndarray) -> np.ndarray:
        """The density relative to Q."""
        del x, terms
        return np.asarray(self.power * log_r + self.log_scale)
