"""Where there are too many sets of steps to list: the steps of one example are a Markov chain.

r is a recursion over the states; samples come from its powers: docs/checker.md, section 6.2.
"""

import dataclasses
import functools
import itertools
import math

import numpy as np

from .mixtures import Pair, Part, log_sum, log_supremum
from .strategies import NotChecked

_COPIES = 7  # of a random set
_POWERS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # of b-min-sep sampling
_LIMIT = 300.0  # on exponents of one step
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
    laws: np.ndarray  # as in `Pair`


def waits(n: int, bands: int, apart: int, prob: float) -> States:
    """b-min-sep sampling: states wait 0, ..., b - 1 steps; first with probabilities 1 : prob : ... : prob."""
    _check_size(n * apart)
    w, starts = np.arange(apart), np.full(apart, prob)
    starts[0] = 1.0
    ends = np.stack([np.maximum(w - 1, 0), np.where(w == 0, apart - 1, w - 1)])
    joined = (w[:, None] > 0) & (apart - w[:, None] == np.arange(1, bands))
    chances = np.broadcast_to(np.where(w == 0, prob, 0.0), (n, apart))
    starts /= starts.sum()
    q = prob * np.arange(1, 33) / 32.0 if prob < 1.0 else np.ones(1)  # laws that wait as long, and join less
    free, rest = 1.0 / (1.0 + q * (apart - 1)), np.maximum(1.0 - q, 1e-300)
    apiece = (n + apart - 1) * q * np.log(q / prob) + n * rest * np.log(rest / rest[-1])
    laws = np.array([free * q / (free[-1] * prob), np.log(free / free[-1]) + free * apiece])
    return States(chances, ends, starts, w >= 0, joined, n // apart + 1, (float(prob * starts[0]), 0.0), laws)


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
    return States(chances, np.array(ends), starts, left == 0, joined, count, rates, Pair.laws)


def _check_size(numbers: float) -> None:
    if numbers > _MOST_STATES:
        raise NotChecked(f"a Markov chain with {numbers:g} states, over all steps")


class Chain(Pair):
    """The pair of an example whose steps are a Markov chain; columns of C over sigma from the diagonal on."""

    def __init__(self, columns: np.ndarray, states: States) -> None:
        self.columns, self.states, self.laws = columns, states, states.laws
        n, bands = columns.shape
        self._made = functools.cache(lambda kind, power: kind(self, power))  # for all nodes of a profile
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
        inexact = 4096.0 * width + 1024.0 * len(states.starts)  # all steps, and the choice of the first state
        cost, longest = 2 * width + 4 * len(states.starts), float(self.squares.max())
        most = min(_POWERS[-1], 1 + int(math.sqrt(2.0 * _LIMIT / longest)))  # exponents are limited
        super().__init__(mean, sizes, steps=8 * width, inexact=inexact, cost=cost, most=most)

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
        """Powers of r: all that there is room for, or up to the one with the least bound at eps."""
        n, own = self.lags.shape[0], len(self.states.starts)
        if self.states.chances[:, 1:].any():
            room = [m for m in range(1, _COPIES + 1) if n * math.comb(own + m - 1, m) <= _MOST_MOVES / 2**m]
            most = min(_MOST_GROWTH, _MOST_IN_ALL / self.states.most) / self.top
            return None, [self._made(_Power, m) for m in room if m * (m - 1) <= most]
        parts, bounds = list[Part](), list[float]()
        for power in _POWERS:
            parts.append(self._made(_Accepted, power))
            bounds.append(log_supremum(power, eps) - parts[-1].log_scale)
            if not bounds[-1] < min(bounds) + 3.0:
                break
        return None, parts[: int(np.argmin(bounds)) + 1]


class _Accepted(Part):
    """The density r^m e^-Lambda of b-min-sep sampling: m examples are drawn, and then accepted or not.

    docs/checker.md, 6.2, copies that wait: W <= e^Lambda, and acceptance has probability W e^-Lambda.
    """

    def __init__(self, chain: Chain, power: int) -> None:
        self._chain, self._copies, self._apart = chain, power, len(chain.states.starts)
        (n, near), apart, prob = chain.lags.shape, self._apart, float(chain.states.chances[0, 0])
        numbers = np.arange(power + 1)
        # Probabilities that j of F copies that do not wait join, shape (F, j).
        ways = np.array([[math.comb(f, j) for j in numbers] for f in numbers.tolist()], dtype=np.float64)
        self._binomial = ways * prob**numbers * (1.0 - prob) ** abs(numbers[:, None] - numbers)
        self._pairs = numbers * (numbers - 1) / 2.0
        # At each step the largest log N, less what is paid; the prices of joining; and the prices of waiting,
        # for a copy that has no product with the step, and for those that joined d = 1, 2, ... before.
        self._most, self._after, self._prices = np.zeros(n), np.zeros(n), np.zeros((n, near + 1))
        products = np.concatenate([np.zeros((n, 1)), chain.lags], axis=1)
        logs = np.log(np.maximum(self._binomial, 1e-300))
        slow = prob - chain.states.rates[0]  # any number above 0 will do; this one makes Lambda small
        for t in range(n - 1, -1, -1):
            here = logs + chain.squares[t] * self._pairs + self._after[t] * numbers
            self._most[t] = log_sum(here[-1:])[0] + 4.0 * power * (power - 1) * prob * slow * chain.squares[t]
            grown = here[-2::-1, None] + numbers[1:, None, None] * products[t][:, None] * numbers
            excess = log_sum(grown.reshape(-1, power + 1)).reshape(power, -1) - self._most[t]
            prices = self._prices[t] = (excess / numbers[1:, None]).max(axis=0)
            self._after[max(0, t - apart + 1) : t] += prices[0]
            self._after[max(0, t - near) : t] += (prices[1:] - prices[0])[: min(t, near)][::-1]
        waits = np.concatenate([[0.0], np.cumsum(self._prices[:, 0])])[np.minimum(np.arange(apart), n)]
        first = chain.states.starts * np.exp(waits)
        self.power, self._first = float(power), first / first.sum()
        largest, pairs = np.abs(self._prices).max(axis=0), self._pairs[-1] * chain.squares.max()
        fits = pairs + power * (apart * largest[0] + largest[1:].sum() + power * products.max()) <= _LIMIT
        self.log_scale = -power * math.log(first.sum()) - float(self._most.sum()) if fits else -math.inf

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw x; draws that are not accepted are left out."""
        chain, (n, near), prices = self._chain, self._chain.lags.shape, self._prices
        # Row t + b - 1 has how many join step t. Who first waits w steps would have joined step w - b.
        apart, numbers = self._apart, np.arange(self._copies + 1)[:, None]
        joined = np.zeros((n + apart - 1, size))
        joined[: apart - 1] = rng.multinomial(self._copies, self._first, size).T[1:]
        waiting, left = joined[: apart - 1].sum(axis=0), rng.standard_exponential(size)
        for t in range(n):
            now = t + apart - 1
            known = joined[now - near : now]
            x = self._after[t] + chain.lags[t, ::-1] @ known
            growth = np.exp(self._pairs[:, None] * chain.squares[t] + numbers * x)
            sums = np.cumsum(self._binomial.T[:, self._copies - waiting.astype(int)] * growth, axis=0)
            joined[now] = (sums[:-1] <= rng.random(x.size) * sums[-1]).sum(axis=0)
            paid = prices[t, 0] * waiting + (prices[t, :0:-1] - prices[t, 0]) @ known
            left += np.log(sums[-1]) - paid - self._most[t]
            waiting += joined[now] - joined[t]
            if t == n - 1 or (left > 0.0).sum() < 0.8 * left.size:
                kept = left > 0.0
                joined, waiting, left = joined[:, kept], waiting[kept], left[kept]
        return np.asarray(rng.standard_normal((left.size, chain.width)) + chain.moved(joined[apart - 1 :]).T)


class _Power(Part):
    """The law r^m dQ / E r^m: m sets of steps, with probability over exp(products of their means)."""

    def __init__(self, chain: Chain, power: int) -> None:
        own, n = chain.states, len(chain.columns)
        self._chain, count = chain, len(own.starts)
        self._states = states = np.array(list(itertools.combinations_with_replacement(range(count), power)))
        self._masks = np.array(list(itertools.product((0, 1), repeat=power)), dtype=bool)
        self._joining = self._masks.sum(axis=1)
        places = count ** np.arange(power)[::-1]
        codes = states @ places
        ends = (np.sort(np.where(mask, own.ends[1][states], own.ends[0][states])) for mask in self._masks)
        # One by one, to save memory.
        self._ends = np.array([np.searchsorted(codes, after @ places) for after in ends])
        total = 0.0
        self._values = np.ones((n + 1, len(states)))  # scaled means of the exponential from step t on
        self._values[n] = own.last[states].all(axis=1)
        for t in range(n - 1, -1, -1):
            found = self._steps(t).sum(axis=0)
            self._values[t] = found / found.max()
            total += math.log(found.max())
        self.power, self.log_scale = float(power), -total - math.log(self._values[0, -1])

    def _steps(self, t: int) -> np.ndarray:
        """Probability times exponential at step t times the later mean, by copies that join, and by state."""
        chain, row = self._chain, self._chain.states.chances[t]
        chances = np.ones(self._ends.shape)
        for mask, state in zip(self._masks.T, self._states.T, strict=True):
            chances *= np.where(mask[:, None], row[state], 1.0 - row[state])
        near, pairs = chain.near[t][self._states], self._joining * (self._joining - 1) / 2.0
        pull = self._masks @ (near.sum(axis=1, keepdims=True) - near).T  # with the steps that others joined
        growth = np.exp(pull + pairs[:, None] * chain.squares[t])
        return np.asarray(chances * growth * self._values[t + 1, self._ends])

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw x."""
        state = np.full(size, len(self._states) - 1)  # all steps are left, and none was joined
        joined = np.zeros((len(self._chain.columns), size))
        for t, join in enumerate(joined):
            sums = np.cumsum(self._steps(t), axis=0)
            taken = (sums[:-1, state] <= rng.random(size) * sums[-1, state]).sum(axis=0)
            join[:], state = self._joining[taken], self._ends[taken, state]
        return np.asarray(rng.standard_normal((size, self._chain.width)) + self._chain.moved(joined).T)
