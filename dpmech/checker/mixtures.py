"""Mixtures of Gaussians, where chance decides which noise an example's gradients get: own samples.

The pair is P = sum_s p_s N(m_s, sigma^2 I) against Q = N(0, sigma^2 I) with m_s >= 0, K the products of the
m_s over sigma^2. Let root root^T = K, x be standard normal under Q, y = root x, z_s = exp(y_s - K_ss / 2),
r = dP / dQ = sum_s p_s z_s and A = e^eps: docs/checker.md, section 6.
"""

import abc
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Iterator

import numpy as np
from flint import arb

from .confidence import DIRECTIONS, Answer, SequentialTest, Work
from .losses import gaussian_delta, rounded_up
from .strategies import NotChecked

_LARGEST_K = 400.0
WIDEST = 20_000
_BATCH_NUMBERS = 4_000_000
_HIGHEST_POWER = 40  # power of a part
_FARTHEST = 40.0  # of the common shift of all components
_MOST_PAIRS = (1000, 4000)  # components for which two, or one, are drawn in addition to a tilted one
_TILTS = (0.3, 0.5, 0.65, 0.8, 0.95)
_LIFTS = (0.0, 0.1, 0.25, 0.5)


class Part(abc.ABC):
    """A law of x. If `bounds`, its density is at least r^power exp(log_scale), or just that."""

    power: float
    log_scale: float
    bounds = True

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draws of x, shape (size, width); fewer if the density has a mass below 1: the others weigh 0."""

    def log_density(self, x: np.ndarray, terms: np.ndarray, log_r: np.ndarray) -> np.ndarray:
        """The density over Q, log rho, shape (draws,)."""
        del x, terms
        return np.asarray(self.power * log_r + self.log_scale)


def log_sum(values: np.ndarray) -> np.ndarray:
    """Log of the sum of exp over each row."""
    top = values.max(axis=1)
    return np.asarray(top + np.log(np.exp(values - top[:, None]).sum(axis=1)))


def log_supremum(power: float, eps: float) -> float:
    """Log of the largest (r - A) / r^power over r > A: at r = A power / (power - 1)."""
    if power == 1.0:
        return 0.0
    return eps - math.log(power - 1.0) - power * (eps + math.log(power / (power - 1.0)))


def picked(logs: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw indices in proportion to exp of each row of `logs`, by inversion; shape (rows, count)."""
    sums = np.cumsum(np.exp(logs - logs.max(axis=1, keepdims=True)), axis=1)
    aim = rng.random((len(sums), count)) * sums[:, -1:]
    rows, size = np.arange(len(sums))[:, None], sums.shape[1]
    found = np.zeros(aim.shape, dtype=np.int64)
    for step in 2 ** np.arange(size.bit_length())[::-1]:  # number of sums that are at most the aim
        ahead = found + step
        found = np.where((ahead < size) & (sums[rows, np.minimum(ahead, size) - 1] <= aim), ahead, found)
    return found


class Pair(abc.ABC):
    """The pair (P, Q)."""

    width: int  # length of x
    mean: np.ndarray  # mean of x under P
    slack: float  # bound on the float64 error of log r and log rho at any x that is drawn: section 6.5
    inexact: float  # bound on the distance of the law of any part's indices from the stated one: section 6.5
    batch: int  # number of draws per batch
    laws = np.array([[1.0], [0.0]])  # other laws: means in units of `mean`, and their relative entropies

    def __init__(
        self, mean: np.ndarray, squares: tuple[float, float], *, steps: int, inexact: float, cost: int,
        most: int = _HIGHEST_POWER,
    ) -> None:  # fmt: skip
        """Initialize from the mean and largest K_ss, steps of a recursion, and the largest power."""
        self.mean, self.width = mean, len(mean)
        self.mean_square, self.largest = squares
        if not squares[1] <= _LARGEST_K:
            raise NotChecked(f"a mixture whose means are more than {_LARGEST_K**0.5:g} noise scales long")
        if self.width > WIDEST:
            raise NotChecked(f"a mixture in more than {WIDEST} dimensions")
        far = most * math.sqrt(squares[1]) + _FARTHEST
        sums = 1e-10 + 2e-10 * squares[1]  # for logarithms, and at most 780 products that scale a power
        reach = math.sqrt(self.width) + far + 90.0
        self.slack = sums + 4.0 * (self.width + steps + 8.0) * 2.0**-53 * far * reach
        self.inexact = inexact * 2.0**-53
        self.batch = max(200, min(50_000, _BATCH_NUMBERS // (cost + 1)))

    @abc.abstractmethod
    def terms(self, x: np.ndarray) -> np.ndarray:
        """The input of `log_r` and of densities, from x of shape (draws, width)."""

    @abc.abstractmethod
    def log_r(self, terms: np.ndarray) -> np.ndarray:
        """Log r from the terms."""

    @abc.abstractmethod
    def parts(self, eps: float) -> "tuple[Star | None, list[Part]]":
        """Parts to sample from; at least one has a proved bound."""


class Mixture(Pair):
    """The pair by its components: `root` has shape (components, r), `log_weights` are logarithms of p."""

    def __init__(self, root: np.ndarray, log_weights: np.ndarray) -> None:
        self.root, self.log_weights = root, log_weights
        self.diagonal = np.asarray(np.einsum("sr,sr->s", root, root))  # K_ss
        p = np.exp(log_weights)
        p /= p.sum()
        squares = float(p @ self.diagonal), float(self.diagonal.max())
        inexact = 50.0 * (len(root) + 2.0) ** 2
        super().__init__(p @ root, squares, steps=0, inexact=inexact, cost=sum(root.shape))

    @functools.cached_property
    def gram(self) -> np.ndarray:
        """K."""
        return np.asarray(self.root @ self.root.T)

    @functools.cached_property
    def exponentials(self) -> np.ndarray:
        """Exp of K."""
        return np.asarray(np.exp(self.gram))

    def terms(self, x: np.ndarray) -> np.ndarray:
        """Terms log z_s at x, shape (draws, components)."""
        return np.asarray(x @ self.root.T - 0.5 * self.diagonal)

    def log_r(self, terms: np.ndarray) -> np.ndarray:
        """Log r from the terms."""
        return log_sum(self.log_weights + terms)

    def parts(self, eps: float) -> "tuple[Star | None, list[Part]]":
        """A part with a small proved bound, and others that cover the likely mass of REMOVE."""
        count = len(self.root)
        heavy = int(np.argmax(self.diagonal))
        size = max(float(self.diagonal[heavy]), 1e-9)
        moved = max(1.0, (eps - float(self.log_weights[heavy])) / size + 0.5)  # one component: to r = A
        most = _HIGHEST_POWER - 2.0
        more = 2 if count <= _MOST_PAIRS[0] else 1 if count <= _MOST_PAIRS[1] else 0
        length = max(math.sqrt(float(np.square(self.mean).sum())), 1e-9)
        tilts: list[Part] = [Tilt(self, 1.0, more, 0.0)]
        for tilt, lift in itertools.product(_TILTS, _LIFTS):
            shift = min(lift * eps / length, _FARTHEST) / length
            tilts.append(Tilt(self, min(tilt * moved, most), more, shift))
        return Star.best(self, eps), tilts


class Star:
    """Tuples t of m components around a centre; x around the sum of their means. Theorem 6.2, stars."""

    bounds = True

    def __init__(self, mixture: Mixture, power: int) -> None:
        self._mixture, self._order = mixture, power
        self._centres = mixture.log_weights + (power - 1) * _row_sums(mixture, power, mixture.root)
        self.power = float(power)
        self.log_scale = -float(log_sum(self._centres[None, :])[0])  # -log B

    @staticmethod
    def best(mixture: Mixture, eps: float) -> "Star":
        """Return the star with the least bound, judged by some rows of K."""
        some = np.unique(np.linspace(0, len(mixture.root) - 1, 64).astype(int))
        weights = mixture.log_weights[some] - log_sum(mixture.log_weights[None, some])
        bounds: list[float] = []
        for power in range(2, _HIGHEST_POWER + 1):
            means = weights + (power - 1) * _row_sums(mixture, power, mixture.root[some])
            bounds.append(log_supremum(power, eps) + float(log_sum(means[None, :])[0]))
            if bounds[-1] > min(bounds) + 1.0:
                break
        return Star(mixture, 2 + int(np.argmin(bounds)))

    def draw(self, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw x, and tuples of shape (size, m)."""
        mixture = self._mixture
        centres = picked(self._centres[None, :], rng, size).T
        pull = mixture.log_weights + 0.5 * self._order * (mixture.root[centres[:, 0]] @ mixture.root.T)
        tuples = np.concatenate([centres, picked(pull, rng, self._order - 1)], axis=1)
        return rng.standard_normal((size, mixture.root.shape[1])) + self._means(tuples), tuples

    def complete(self, terms: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw tuples for x of other parts."""
        return picked(self._mixture.log_weights + terms, rng, self._order)

    def log_density(self, tuples: np.ndarray, log_r: np.ndarray) -> np.ndarray:
        """The density relative to Q and tuples."""
        products = self._means(tuples) @ self._mixture.root.T
        others = np.take_along_axis(products, tuples, axis=1) - self._mixture.diagonal[tuples]
        centred = log_sum(0.5 * self._order * others) - math.log(self._order)
        ratio = np.minimum(0.5 * others.sum(axis=1) - centred, 0.0) - self.log_scale
        return np.asarray(self._order * log_r - ratio)

    def _means(self, tuples: np.ndarray) -> np.ndarray:
        means = np.zeros((len(tuples), self._mixture.root.shape[1]))
        for column in tuples.T:
            means += self._mixture.root[column]
        return means


def _row_sums(mixture: Mixture, power: int, rows: np.ndarray) -> np.ndarray:
    """Log sum_s p_s exp(power K_cs / 2) for components c with these rows of `root`."""
    step = max(1, _BATCH_NUMBERS // len(mixture.root))
    some = (rows[i : i + step] for i in range(0, len(rows), step))
    return np.concatenate([log_sum(mixture.log_weights + 0.5 * power * (r @ mixture.root.T)) for r in some])


class Tilt(Part):
    """Density proportional to r^k sum_s p_s z_s^a exp(h u), u = sum_s p_s y_s, k <= 2. Theorem 6.2, tilts."""

    def __init__(self, mixture: Mixture, power: float, more: int, lift: float) -> None:
        self._mixture, self._power, self._more = mixture, power, more
        p = np.exp(mixture.log_weights)
        self._shift = lift * (p @ mixture.root)
        along = mixture.root @ self._shift
        self._field = mixture.log_weights + along  # for each further component
        logs = self._field + (power - 1.0) * (0.5 * power * mixture.diagonal + along)
        if more:
            pull = self._field + power * mixture.gram
            top = pull.max(axis=1)
            weights = np.exp(pull - top[:, None])
            again = 1.0 if more == 1 else weights @ mixture.exponentials
            logs += more * top + np.log((weights * again).sum(axis=1))
        self._logs = logs
        self._log_total = float(log_sum(logs[None, :])[0]) + 0.5 * float(self._shift @ self._shift)
        self.power, self.log_scale = power + more, -self._log_total
        self.bounds = lift == 0.0 and power >= 1.0

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw x."""
        mixture, root = self._mixture, self._mixture.root
        first = picked(self._logs[None, :], rng, size)[0]
        x = rng.standard_normal((size, root.shape[1])) + self._power * root[first] + self._shift
        if self._more:
            pull = self._field + self._power * mixture.gram[first]
            top = pull.max(axis=1, keepdims=True)
            again = pull if self._more == 1 else pull + np.log(np.exp(pull - top) @ mixture.exponentials)
            second = picked(again, rng, 1)[:, 0]
            x += root[second]
            if self._more == 2:
                x += root[picked(pull + mixture.gram[second], rng, 1)[:, 0]]
        return np.asarray(x)

    def log_density(self, x: np.ndarray, terms: np.ndarray, log_r: np.ndarray) -> np.ndarray:
        """The density relative to Q, log rho."""
        tilted = log_sum(self._mixture.log_weights + self._power * terms)
        return np.asarray(tilted + self._more * log_r + x @ self._shift - self._log_total)


class _Removal:
    """The mixture R of parts for REMOVE, with their shares; the first is that of a star, if any."""

    def __init__(self, mixture: Pair, eps: float, rng: np.random.Generator) -> None:
        self._mixture, self._eps = mixture, eps
        self._star, self._tilts = mixture.parts(eps)
        self._share(rng)

    def _log_bounds(self) -> np.ndarray:
        """Logs of bounds on (r - A)_+ / rho for each part alone; infinite for parts without a bound."""
        parts: list[Star | Part] = [*([] if self._star is None else [self._star]), *self._tilts]
        log_most = functools.partial(log_supremum, eps=self._eps)
        return np.array([log_most(p.power) - p.log_scale if p.bounds else math.inf for p in parts])

    def log_bound(self) -> float:
        """Log of a bound on (r - A)_+ / rho: rho is at least a part's density times its share."""
        return float((self._log_bounds() - np.log(self._shares)).min())

    def drawn(self, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Log r of the draws where it is above eps, shape (m,), and log rho of every part, (m, parts)."""
        mixture, star = self._mixture, self._star
        counts = rng.multinomial(size, self._shares).tolist()
        drawn = [] if star is None else [star.draw(rng, counts.pop(0))]
        own = drawn[0][1] if drawn else np.zeros((0, 0))
        rest = [tilt.draw(rng, k) for tilt, k in zip(self._tilts, counts, strict=True)]
        x = np.concatenate([*(one for one, _ in drawn), *rest])
        terms = mixture.terms(x)
        log_r = mixture.log_r(terms)
        # NaN is kept: the test refuses it.
        paid = np.flatnonzero(~(log_r <= self._eps - 4.0 * mixture.slack))
        x, terms, log_r = x[paid], terms[paid], log_r[paid]
        logs = [tilt.log_density(x, terms, log_r) for tilt in self._tilts]
        if star is not None:
            own = own[paid[paid < len(own)]]
            tuples = np.concatenate([own, star.complete(terms[len(own) :], rng)])
            logs.insert(0, star.log_density(tuples, log_r))
        return log_r, np.stack(logs, axis=1)

    def _share(self, rng: np.random.Generator) -> None:
        """Set shares for even weights, from other draws; the best bound has a quarter at least."""
        first = 0 if self._star is None else 1
        count = first + len(self._tilts)
        self._shares = np.full(count, 1.0 / count)
        log_r, logs = self.drawn(rng, min(10_000, max(4000, 2 * self._mixture.batch)))
        densities = np.exp(np.minimum(logs - log_r[:, None], 300.0))  # relative to P, and in range
        payoff = np.maximum(0.0, -np.expm1(self._eps - log_r))
        squares = payoff**2 / (densities @ self._shares)
        least, shares = np.zeros(count), self._shares
        least[int(np.argmin(self._log_bounds()))] = 0.25
        for turn in range(80):
            gradient = (squares / (densities @ shares) ** 2) @ densities
            shares = shares * np.sqrt(gradient)
            shares = np.maximum(shares / max(shares.sum(), 1e-300), least)
            shares /= shares.sum()
            if turn == 40:
                shares = np.where(shares < min(0.05, shares.max()), least, shares)
        kept = shares > 0.0
        if first and not kept[0]:
            self._star = None
        self._tilts = [tilt for tilt, keep in zip(self._tilts, kept[first:], strict=True) if keep]
        self._shares = shares[kept]

    def weights(self, rng: np.random.Generator, sign: float) -> Iterator[np.ndarray]:
        """Batches of weights whose mean is at least REMOVE (sign 1), or at most REMOVE (sign -1)."""
        slack, size = sign * self._mixture.slack, self._mixture.batch
        while True:
            log_r, logs = self.drawn(rng, size)
            weights = np.zeros(size)
            if log_r.size:
                gain = np.maximum(0.0, -np.expm1(self._eps - log_r - slack))
                paid = np.exp(log_r - log_sum(logs + np.log(self._shares)) + 2.0 * slack) * gain
                weights[: log_r.size] = paid
            yield weights


class _Addition:
    """For ADD: draws around the nearest point of a half-space outside of which weights are 0: section 6.3."""

    def __init__(self, mixture: Pair, eps: float, _: np.random.Generator) -> None:
        self._mixture, self._eps = mixture, eps
        reaches = eps - 0.5 * mixture.laws[0] * mixture.mean_square - mixture.laws[1] - 1e-9
        best = int(np.argmax(reaches / mixture.laws[0]))
        self._reach, self._tau = float(reaches[best]), mixture.laws[0, best] * mixture.mean
        self._square = float(self._tau @ self._tau)

    def log_bound(self) -> float:
        """Log of a bound on weights: the density at the nearest point."""
        return -0.5 * max(0.0, self._reach) ** 2 / self._square

    def closed(self) -> arb:
        """An upper bound on ADD from the mass of the half-space alone; 1 where that is no information."""
        reach = self._reach - self._mixture.slack
        if not reach > 0.0:
            return arb(1)
        size = arb(float(np.sqrt(self._square)) * (1.0 + 1e-9))
        return gaussian_delta(size, (arb(reach) + size * size / 2).exp())

    def weights(self, rng: np.random.Generator, sign: float) -> Iterator[np.ndarray]:
        """Batches of weights whose mean is at least ADD (sign 1), or at most ADD (sign -1)."""
        mixture, slack = self._mixture, sign * self._mixture.slack
        shift = max(0.0, self._reach) / self._square * self._tau
        while True:
            x = rng.standard_normal((mixture.batch, shift.size)) - shift
            log_r = mixture.log_r(mixture.terms(x))
            log_rho = -(x @ shift) - 0.5 * float(shift @ shift)
            gain = np.maximum(0.0, -np.expm1(self._eps + log_r - slack))
            yield np.exp(np.minimum(-log_rho + slack, 700.0)) * gain


@dataclasses.dataclass(frozen=True)
class Mixed:
    """A random allocation: the mixture with K nowhere smaller, and the one with K nowhere larger if known."""

    above: Pair
    below: Pair | None
    names = DIRECTIONS

    def answer(self, name: str, eps: float, delta: float, work: Work) -> Answer:
        """Decide whether delta at eps is at most `delta`: in closed form if possible, else by sampling."""
        # No mixture is worse than its worst component alone.
        longest = arb(self.above.largest * (1.0 + 1e-9)).sqrt()
        kind: type[_Removal | _Addition] = _Removal if name == "REMOVE" else _Addition
        closed = gaussian_delta(longest, arb(eps).exp())
        if kind is _Addition:
            closed = closed.min(_Addition(self.above, eps, work.rng).closed())
        if closed <= arb(delta):
            return Answer(verdict=True, number=f"at most {rounded_up(closed)} in closed form")
        test, won = _played(kind(self.above, eps, work.rng), self.above.inexact, delta, work, upper=True)
        if won:
            return Answer(verdict=True, number=f"at most the claimed one, by {test}", failure=work.failure)
        if test.mean > delta and self.below is not None:
            draws = kind(self.below, eps, work.rng)
            test, won = _played(draws, self.below.inexact, delta, work, upper=False)
        if won:
            return Answer(verdict=False, number=f"above the claimed one, by {test}", failure=work.failure)
        return Answer(verdict=None, number=f"not decided by {test}", failure=work.failure)


def _played(
    draws: _Removal | _Addition, inexact: float, delta: float, work: Work, *, upper: bool
) -> tuple[SequentialTest, bool]:
    """Run a sequential test on draws from above (`upper`) or below until it decides or runs out of time."""
    sign, bound, start = 1.0 if upper else -1.0, math.exp(draws.log_bound()) * 1.001, time.process_time()
    test = SequentialTest(delta - sign * bound * inexact, bound, work.failure, upper=upper)
    batches = draws.weights(work.rng, sign)
    while not test.won:
        used = time.process_time() - start
        far = test.draws_needed * max(used, 1e-9) > 2.0 * test.draws * work.seconds
        if test.batches and (used > work.seconds or far):
            return test, False
        batch = next(batches)
        if batch.max() > bound:
            raise ArithmeticError("a weight is above its proved bound")
        test.add(batch)
    return test, True
