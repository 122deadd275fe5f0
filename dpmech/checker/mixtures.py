"""Mixtures of Gaussians, where chance decides in which noise an example's gradients end up: own draws.

The pair is P = sum_s p_s N(m_s, sigma^2 I) against Q = N(0, sigma^2 I) with m_s >= 0. Only K matters, the
products of the m_s over sigma^2; and both directions rise with every entry of K, so that floats may be
rounded up.
Let `root` have root root^T = K, x be standard normal under Q, y = root x and
z_s = exp(y_s - K_ss / 2): then r = dP / dQ = sum_s p_s z_s, and with A = e^eps

    REMOVE = E_Q (r - A)_+        ADD = E_Q (1 - A r)_+ .

Both are means of weights under a mixture R of *parts* that the checker can draw from and whose density over
Q, rho, it knows; every weight is at most a proved bound, so that a bet (`confidence`) can prove or refute.
Which parts are taken decides how many draws that takes, and nothing else. docs/checker.md, section 6, has the
proofs.
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator

import numpy as np
from flint import arb

from .confidence import Bet
from .gaussian import gaussian_delta, rounded_up
from .strategies import NotChecked

__all__ = ["WIDEST", "Answer", "Mixture", "check_add", "check_remove"]

_LARGEST_K = 400.0
WIDEST = 20_000
_MOST_TUPLES = 400_000
_HIGHEST_POWER = 40  # of parts: `Mixture.slack` counts on it
_BATCH_NUMBERS = 4_000_000


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The pair, by its components.

    Attributes:
        root: shape (components, r).
        log_weights: logarithms of p, shape (components,).
    """

    root: np.ndarray
    log_weights: np.ndarray

    def __post_init__(self) -> None:
        if not (np.all(np.isfinite(self.root)) and self.diagonal.max() <= _LARGEST_K):
            raise NotChecked(f"a mixture whose means are more than {_LARGEST_K**0.5:g} noise scales long")
        if self.root.shape[1] > WIDEST:
            raise NotChecked(f"a mixture in more than {WIDEST} dimensions")

    @functools.cached_property
    def diagonal(self) -> np.ndarray:
        """K_ss."""
        return np.asarray(np.einsum("sr,sr->s", self.root, self.root))

    @functools.cached_property
    def gram(self) -> np.ndarray:
        """K."""
        return np.asarray(self.root @ self.root.T)

    @functools.cached_property
    def slack(self) -> float:
        """More than float64 may do to log r and to log rho at any x that is drawn: section 6.5."""
        width, size = int(self.root.shape[1]), math.sqrt(self.diagonal.max())
        reach = math.sqrt(width) + _HIGHEST_POWER * size + 90.0
        sums = 1e-10 + 2e-10 * size**2  # of logarithms, and of at most 780 products that scale a power
        return sums + 4.0 * _HIGHEST_POWER * (width + 8.0) * 2.0**-53 * size * reach

    def terms(self, x: np.ndarray) -> np.ndarray:
        """Terms log z_s at x, shape (draws, components)."""
        return np.asarray(x @ self.root.T - 0.5 * self.diagonal)


@dataclasses.dataclass(frozen=True)
class Answer:
    """Whether a direction's delta is at most the claimed one.

    Attributes:
        verdict: True (it is), False (it is not), None (not decided).
        number: what was found, in words.
        failure: probability, of the draws made here, that a verdict is wrong.
    """

    verdict: bool | None
    number: str
    failure: float = 0.0


def _log_sum(values: np.ndarray) -> np.ndarray:
    top = values.max(axis=1)
    return np.asarray(top + np.log(np.exp(values - top[:, None]).sum(axis=1)))


class _Power:
    """The law r^m dQ / E_Q r^m: m components at once, with probability over the product of p that K says.

    E_Q of a product of z over a tuple is exp(sum of K over its pairs), so that r^m dQ is a mixture of the
    Gaussians whose mean is the sum of a tuple's means.
    """

    def __init__(self, mixture: Mixture, power: int) -> None:
        count = len(mixture.root)
        self._root = mixture.root
        self._tuples = np.array(
            list(itertools.combinations_with_replacement(range(count), power)), dtype=np.int64
        )
        logs = np.full(len(self._tuples), math.lgamma(power + 1.0))
        same = np.ones(len(self._tuples))
        for j, column in enumerate(self._tuples.T):
            if j:
                same = np.where(column == self._tuples[:, j - 1], same + 1.0, 1.0)
            logs += mixture.log_weights[column] - np.log(
                same
            )  # orders: power! over the factorials of repeats
            for earlier in self._tuples.T[:j]:
                logs += mixture.gram[earlier, column]
        self.power = float(power)
        self.log_scale = -float(_log_sum(logs[None, :])[0])  # rho = r^m exp(log_scale), exactly
        self._chances = np.exp(logs + self.log_scale)
        self._chances /= self._chances.sum()

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draws of x."""
        chosen = rng.choice(len(self._chances), size, p=self._chances)
        x = rng.standard_normal((size, self._root.shape[1]))
        for column in self._tuples[chosen].T:
            x += self._root[column]
        return np.asarray(x)

    def log_density(self, terms: np.ndarray, log_r: np.ndarray) -> np.ndarray:
        """The density over Q, log rho."""
        del terms
        return np.asarray(self.power * log_r + self.log_scale)


class _Tilt:
    """Component s with its mean times a >= 1, chosen with probability over p_s exp(a (a - 1) K_ss / 2).

    Its density is sum_s p_s z_s^a / Z, which is at least r^a / Z by the convexity of the a-th power.
    """

    def __init__(self, mixture: Mixture, power: float) -> None:
        logs = mixture.log_weights + 0.5 * power * (power - 1.0) * mixture.diagonal
        self.power = power
        self.log_scale = -float(_log_sum(logs[None, :])[0])
        self._root, self._log_weights = mixture.root, mixture.log_weights
        self._chances = np.exp(logs + self.log_scale)
        self._chances /= self._chances.sum()

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draws of x."""
        chosen = rng.choice(len(self._chances), size, p=self._chances)
        return np.asarray(rng.standard_normal((size, self._root.shape[1])) + self.power * self._root[chosen])

    def log_density(self, terms: np.ndarray, log_r: np.ndarray) -> np.ndarray:
        """The density over Q, log rho."""
        del log_r
        return _log_sum(self._log_weights + self.power * terms) + self.log_scale


_Part = _Power | _Tilt


def _log_supremum(power: float, eps: float) -> float:
    """Log of the largest (r - A) / r^power over r > A: at r = A power / (power - 1)."""
    if power == 1.0:
        return 0.0
    return eps - math.log(power - 1.0) - power * (eps + math.log(power / (power - 1.0)))


def _parts(mixture: Mixture, eps: float) -> list[_Part]:
    """Parts with small proved bounds: powers as high as can be listed, tilts where that is not enough."""
    count = len(mixture.root)
    powers = [_Power(mixture, 1)]
    for power in range(2, _HIGHEST_POWER + 1):
        if math.comb(count + power - 1, power) > _MOST_TUPLES:
            break
        powers.append(_Power(mixture, power))
        bounds = [_log_supremum(one.power, eps) - one.log_scale for one in powers]
        if len(bounds) > 2 and bounds[-1] > bounds[-2] > bounds[-3]:
            break
    best = int(np.argmin([_log_supremum(one.power, eps) - one.log_scale for one in powers]))
    chosen: list[_Part] = [powers[0], *powers[max(1, best - 1) : best + 2]]
    if best == len(powers) - 1:  # higher powers would be better: one component alone, moved to where r is A
        heavy = int(np.argmax(mixture.diagonal))
        size = max(float(mixture.diagonal[heavy]), 1e-9)
        moved = max(1.0, (eps - float(mixture.log_weights[heavy])) / size + 0.5)
        chosen += [
            _Tilt(mixture, min(max(1.0, share * moved), float(_HIGHEST_POWER))) for share in (0.8, 0.9, 1.0)
        ]
    return chosen


def _log_bound(parts: list[_Part], shares: np.ndarray, eps: float) -> float:
    """Log of a bound on (r - A)_+ / rho, rho >= sum of share r^power exp(log_scale) over the parts.

    Where r is between two points 1 % apart, the numerator is taken at the upper and the denominator at the
    lower one; beyond the last point the bound of a single part, which falls there, serves.
    """
    single = min(
        _log_supremum(part.power, eps) - part.log_scale - math.log(share)
        for part, share in zip(parts, shares, strict=True)
    )
    steepest = max(range(len(parts)), key=lambda index: parts[index].power)
    part, share = parts[steepest], shares[steepest]
    points = eps + 0.01 * np.arange(2001)
    rho = _log_sum(
        np.stack(
            [one.power * points + one.log_scale + math.log(s) for one, s in zip(parts, shares, strict=True)],
            1,
        )
    )
    with np.errstate(divide="ignore"):
        inside = np.log(np.exp(points[1:] - eps) - 1.0) + eps - rho[:-1]
    peak = eps + math.log(part.power / (part.power - 1.0)) if part.power > 1.0 else math.inf
    if points[-1] <= peak:
        return float(single)
    end = (
        math.log(math.exp(points[-1] - eps) - 1.0)
        + eps
        - part.power * points[-1]
        - part.log_scale
        - math.log(share)
    )
    return float(min(single, max(inside.max(), end)))


def _drawn(
    mixture: Mixture, parts: list[_Part], shares: np.ndarray, rng: np.random.Generator, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws from the parts: log r, shape (size,), and log rho of every part, shape (size, parts)."""
    counts = rng.multinomial(size, shares)
    x = np.concatenate([part.draw(rng, int(k)) for part, k in zip(parts, counts, strict=True)])
    terms = mixture.terms(x)
    log_r = _log_sum(mixture.log_weights + terms)
    return log_r, np.stack([part.log_density(terms, log_r) for part in parts], axis=1)


def _batch(mixture: Mixture) -> int:
    return max(200, min(200_000, _BATCH_NUMBERS // (sum(mixture.root.shape) + 1)))


def _shares(mixture: Mixture, parts: list[_Part], eps: float, rng: np.random.Generator) -> np.ndarray:
    """Shares of the parts under which weights vary little, from draws that serve nothing else.

    The part with the best bound gets a quarter at least, because stakes are limited by the bound.
    """
    least = np.full(len(parts), 0.01)
    least[int(np.argmin([_log_supremum(part.power, eps) - part.log_scale for part in parts]))] = 0.25
    shares = np.full(len(parts), 1.0 / len(parts))
    log_r, logs = _drawn(mixture, parts, shares, rng, 2 * _batch(mixture))
    densities = np.exp(logs - log_r[:, None])  # over P, which keeps them in range
    payoff = np.maximum(0.0, -np.expm1(eps - log_r))
    squares = payoff**2 / (densities @ shares)
    for _ in range(40):
        gradient = (squares / (densities @ shares) ** 2) @ densities
        shares = shares * np.sqrt(gradient)
        shares = np.maximum(shares / max(shares.sum(), 1e-300), least)
        shares /= shares.sum()
    return np.asarray(shares)


def _remove_weights(
    mixture: Mixture, eps: float, rng: np.random.Generator, sign: float
) -> tuple[float, Iterator[np.ndarray]]:
    """A bound on weights, and batches of them; their mean is REMOVE or more (sign 1), or less (sign -1)."""
    parts = _parts(mixture, eps)
    shares = _shares(mixture, parts, eps, rng)
    bound = math.exp(_log_bound(parts, shares, eps)) * 1.001

    def batches() -> Iterator[np.ndarray]:
        while True:
            log_r, logs = _drawn(mixture, parts, shares, rng, _batch(mixture))
            log_rho = _log_sum(logs + np.log(shares))
            gain = np.maximum(0.0, -np.expm1(eps - log_r - sign * mixture.slack))
            yield np.exp(log_r - log_rho + 2.0 * sign * mixture.slack) * gain

    return bound, batches()


def _half_space(mixture: Mixture, eps: float) -> tuple[float, np.ndarray]:
    """(c, tau) so that log r <= -eps only where tau . x <= -c: by Jensen with the weights p themselves."""
    p = np.exp(mixture.log_weights)
    p /= p.sum()
    return eps - 0.5 * float(p @ mixture.diagonal) - 1e-9, p @ mixture.root


def _add_weights(
    mixture: Mixture, eps: float, rng: np.random.Generator, sign: float
) -> tuple[float, Iterator[np.ndarray]]:
    """The same for ADD: draws around the nearest point of the half-space, where weights are largest."""
    c, tau = _half_space(mixture, eps)
    square = float(tau @ tau)
    shift = max(0.0, c) / square * tau

    def batches() -> Iterator[np.ndarray]:
        while True:
            x = rng.standard_normal((_batch(mixture), tau.size)) - shift
            log_r = _log_sum(mixture.log_weights + mixture.terms(x))
            log_rho = -(x @ shift) - 0.5 * float(shift @ shift)
            gain = np.maximum(0.0, -np.expm1(eps + log_r - sign * mixture.slack))
            yield np.exp(np.minimum(-log_rho + sign * mixture.slack, 700.0)) * gain

    return math.exp(-0.5 * max(0.0, c) ** 2 / square) * 1.001, batches()


def check_remove(
    above: Mixture,
    below: Mixture | None,
    eps: float,
    delta: float,
    failure: float,
    seconds: float,
    rng: np.random.Generator,
) -> Answer:
    """Whether REMOVE is at most delta; `above` has a K that is nowhere smaller, `below` nowhere larger."""
    return _decide(_remove_weights, above, below, eps, delta, failure, seconds, rng)


def check_add(
    above: Mixture,
    below: Mixture | None,
    eps: float,
    delta: float,
    failure: float,
    seconds: float,
    rng: np.random.Generator,
) -> Answer:
    """Whether ADD is at most delta: in closed form where that is enough, else by draws."""
    c, tau = _half_space(above, eps)
    if c > above.slack:
        s = arb(float(np.sqrt(tau @ tau)) * (1.0 + 1e-9))
        closed = gaussian_delta(s, (arb(c - above.slack) + s * s / 2).exp())
        if closed <= arb(delta):
            return Answer(verdict=True, number=f"at most {rounded_up(closed)} in closed form")
    return _decide(_add_weights, above, below, eps, delta, failure, seconds, rng)


_Weights = Callable[[Mixture, float, np.random.Generator, float], tuple[float, Iterator[np.ndarray]]]


def _decide(
    weights: _Weights,
    above: Mixture,
    below: Mixture | None,
    eps: float,
    delta: float,
    failure: float,
    seconds: float,
    rng: np.random.Generator,
) -> Answer:
    start = time.process_time()
    bound, batches = weights(above, eps, rng, 1.0)
    bet = Bet(delta, bound, failure, upper=True)
    while True:
        batch = next(batches)
        if batch.max() > bound:
            raise ArithmeticError("a weight is above its proved bound")
        bet.add(batch)
        if bet.won:
            return Answer(verdict=True, number=f"at most the claimed one, by {bet}", failure=failure)
        used = time.process_time() - start
        far = bet.batches > 4 and bet.draws_needed * used > 2.0 * bet.draws * seconds
        if used > seconds or bet.hopeless or far:
            break
    if bet.mean > delta and below is not None:
        _, batches = weights(below, eps, rng, -1.0)
        bet = Bet(delta, math.inf, failure, upper=False)
        start = time.process_time()
        while True:
            bet.add(next(batches))
            if bet.won:
                return Answer(verdict=False, number=f"above the claimed one, by {bet}", failure=failure)
            if time.process_time() - start > seconds:
                break
    return Answer(verdict=None, number=f"not decided by {bet}")
