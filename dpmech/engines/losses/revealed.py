r"""Bounds for very little noise: T sampled releases, as if it were revealed who takes part in which of them.

N is the sum of the squares of the numbers of examples of one unit in T releases, for one example the number
of its participations. Its law does not depend on the data. Let s be the noise over the sensitivity, g(k, eps)
delta of N(sqrt k, s^2) against N(0, s^2), w the probability of one sequence of participations with this N,
and c = 2 T Phi(-1 / (2 s)). For every eps >= 0

    E[g(N, eps + log(1 / w)) - c]  <=  delta(eps)  <=  E g(N, eps),

and under Poisson sampling, for eps >= -m T log(1 - q), delta(eps) <= E g(N, eps + log(1 / w)) + c; the proofs
are in docs/poisson.md. If one example is replaced by another one, with s in units of one gradient,

    E g(N, eps + log((1 - q)^T / (w (1 - t)))) - c  <=  delta(eps)  <=  E g(N, eps + log((1 - q)^T / w)) + c

with c = 2 T Phi(-3 / (8 s)) and a tiny t, by the same cells. Lattices and transforms have to resolve
losses of size 1 / (2 s^2).
"""

import abc
import dataclasses
import functools
import math
from fractions import Fraction

import numpy as np

from dpmech.engines.accountant import Accountant, Progress, Solution
from dpmech.engines.gaussian import gaussian_delta, gaussian_epsilon
from dpmech.numerics import (
    BOUND,
    UNIT,
    Bounds,
    FloatArray,
    Provenance,
    at_least,
    bisect_boundary,
    next_down,
    next_up,
    product_down,
    product_up,
    quotient_down,
    quotient_up,
    sum_down,
    sum_up,
)

# Not tried with more noise over sensitivity, or for smaller eps.
_LITTLE_NOISE, _LARGE_EPS = 0.1, 100.0
# g is computed where eps is within this many standard deviations of the loss, for so many N at most.
_REACH, _MOST_VALUES = 39.0, 4000
# Largest N of several examples, and more than what their law loses below the range of float64.
_LARGEST_SUM, _SUBNORMAL = 1 << 14, 1e-300
# Probability that is omitted from below, relative.
_OMITTED = 1e-9
# Ends that differ by no more than this change of sigma are used even if a smaller tolerance is asked for.
_CLOSE = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Revealed:
    """T releases that a unit joins independently.

    Args:
        steps: T >= 1.
        joined: lower and upper bound on q in (0, 1), the probability that one example joins a release.
        sensitivity: of one release, to one example.
        examples: m >= 1, the examples of the unit, which join independently.
        tight: whether all releases attain the sensitivity; if not, lower bounds are 0.
        poisson: whether examples join independently of each other, so that the closer upper bound holds.
    """

    steps: int
    joined: tuple[float, float]
    sensitivity: Bounds
    examples: int = 1
    tight: bool = True
    poisson: bool = True

    @property
    def largest(self) -> int:
        """The largest N."""
        return self.steps * self.examples**2

    @property
    def _most_apart(self) -> float:
        """The largest change of all releases together."""
        return self.sensitivity.times_root(self.largest).upper

    def delta(self, sigma: float, eps: float, tolerance: float) -> tuple[float, float] | None:
        """Lower and upper delta; None if they differ by more than a change of sigma by `tolerance`."""
        if not self._applies(sigma):
            return None
        upper = self._upper(sigma, eps)
        if self._lower(sigma / (1.0 + tolerance), eps) < upper * (1.0 - tolerance):
            return None
        return min(upper, self._lower(sigma, eps)) if self.tight else 0.0, upper

    def epsilon(self, sigma: float, delta: float, tolerance: float) -> tuple[float, float] | None:
        """Lower and upper eps at delta; None if they differ by more than `tolerance`, relative."""
        if not self._applies(sigma):
            return None
        noise = quotient_down(sigma, self._most_apart)
        high = gaussian_epsilon(noise, delta, safe=True) * (1.0 + 1e-9) + 1e-9
        if self._upper(sigma, high) > delta:
            return None  # delta is within rounding
        upper = bisect_boundary(lambda eps: self._upper(sigma, eps) > delta, 0.0, high, safe=True, rtol=1e-10)
        lower = bisect_boundary(
            lambda eps: self._lower(sigma, eps) > delta, 0.0, upper, safe=False, rtol=1e-10
        )
        if upper > lower * (1.0 + tolerance):
            return None
        return lower if self.tight else 0.0, upper

    def calibrate(self, eps: float, delta: float, rtol: float, by: Provenance) -> Solution | None:
        """The smallest sigma; None if it is not proved to be within rtol, or if these bounds do not apply."""
        if eps < _LARGE_EPS or delta >= 1.0 - 1e-9:
            return None
        low = 0.5 * self.sensitivity.lower / (_REACH + math.sqrt(_REACH**2 + 2.0 * eps))
        if not (self._applies(low) and self._upper(low, eps) > delta):
            return None
        high = 1.5 * low
        while self._upper(high, eps) > delta:
            low, high = high, 1.5 * high
            if not self._applies(low):
                return None
        sigma = bisect_boundary(lambda s: self._upper(s, eps) > delta, low, high, safe=True, rtol=1e-9)
        found = self.epsilon(sigma, delta, math.inf)
        if found is None or self._lower(sigma / (1.0 + rtol), eps) <= delta:
            return None
        # Delta at eps is at most the budget's, whatever the rounding of the search for eps.
        return Solution(sigma, Bounds(min(found[0], eps), min(found[1], eps), BOUND, by))

    def _applies(self, sigma: float) -> bool:
        small = self.examples == 1 or self.largest <= _LARGEST_SUM
        return small and sigma <= _LITTLE_NOISE * self.sensitivity.lower

    def _upper(self, sigma: float, eps: float) -> float:
        """Upper bound on delta in both directions."""
        noise = quotient_down(sigma, self.sensitivity.upper)
        found = self._mean(noise, eps, shifted=False)
        if self.poisson and eps >= self._log_odds(0)[1]:
            # Direction ADD has no loss above -m T log(1 - q).
            found = min(found, next_up(self._mean(noise, eps, shifted=True) + self._strays(noise)))
        return found

    def _strays(self, noise: float) -> float:
        """An upper bound on c, the probability that an output is closer to another set of participations."""
        tail = math.erfc(math.sqrt(0.125) / noise) * (1.0 + 1e-12 / noise**2) + _SUBNORMAL
        return product_up(tail, self.steps)

    def _window(self, noise: float, eps: float) -> tuple[int, int]:
        """N for which g is near 0 or less before, and near 1 after.

        The loss has mean k / (2 s^2) and standard deviation y = sqrt k / s: eps = y^2 / 2 - z y.
        """
        ends = [(noise * (z + math.sqrt(z * z + 2.0 * eps))) ** 2 for z in (-_REACH, _REACH)]
        first, last = (min(max(1.0, end), self.largest) for end in ends)
        return math.floor(first), math.ceil(last)

    def _mean(self, noise: float, eps: float, *, shifted: bool) -> float:
        """Upper bound on E g, as the sum of P(N >= k) times the growth at k of a function that is above."""
        first, last = self._window(noise, eps + self._log_odds(0)[1] if shifted else eps)
        if last - first > _MOST_VALUES:
            return 1.0
        before = 0.0
        terms: list[float] = []
        for k in range(first - 1, last + 2):
            if k < 1:
                continue
            # For fewer participations, the smallest shift of eps.
            odds = min(self._log_odds(0)[0], self._log_odds(k)[0]) if k < first else self._log_odds(k)[0]
            value = 1.0 if k > last else self._one(noise, k, eps + odds if shifted else eps, 1)
            value = max(value, before)
            # The function is constant up to the first k, and 1 after the last one.
            tail = 1.0 if not terms and k > 1 else self._tail(k)[1]
            terms.append(product_up(tail, next_up(value - before) if value > before else 0.0))
            before = value
        return min(1.0, sum_up(terms))

    def _lower(self, sigma: float, eps: float) -> float:
        """Lower bound on delta in direction REMOVE, as `_mean`, with N above some number omitted.

        Where not all releases attain the sensitivity, it is one for releases that do, which the upper bound
        is about: it then says only how close that bound is to a finer one.
        """
        attained = self.sensitivity.lower if self.tight else self.sensitivity.upper
        noise = quotient_up(sigma, attained)
        first, last = self._window(noise, eps + self._log_odds(0)[0])
        while last < self.largest and self._tail(last + 1)[1] > _OMITTED * self._tail(first)[0]:
            last += 1
            if last - first > _MOST_VALUES:
                return 0.0
        strays, after, values = self._strays(noise), 1.0, []
        for k in range(last, first - 1, -1):
            value = self._one(noise, k, eps + self._log_odds(k)[1], 0)
            after = min(after, max(0.0, next_down(value - strays)))
            values.append((k, after))
        before, terms, beyond = 0.0, [], self._tail(last + 1)[1]
        for k, value in reversed(values):
            tail = max(0.0, next_down(self._tail(k)[0] - beyond))
            terms.append(product_down(tail, max(0.0, next_down(value - before))))
            before = value
        return max(0.0, sum_down(terms))

    def _one(self, noise: float, k: int, eps: float, end: int) -> float:
        """A bound on g(k, eps) from below (end 0) or above (1)."""
        root = math.sqrt(k)
        if end and eps < 0.0:
            return 1.0
        if end:
            return gaussian_delta(quotient_down(noise, next_up(root)), max(0.0, next_down(eps)))[1]
        # Far below the losses, a larger eps keeps the bound on rounding small.
        near = 0.5 * (root / noise) ** 2 - _REACH * root / noise
        return gaussian_delta(quotient_up(noise, next_down(root)), max(next_up(eps), near))[0]

    def _log_odds(self, k: int) -> tuple[float, float]:
        """Bounds on log(1 / w) for sequences with N = k: T log(1 / p_0) + k (log p_0 / p_j) / j^2."""
        start, slopes = self._odds
        off = 16.0 * UNIT * (self.steps * abs(start) + k * max(map(abs, slopes)))
        ends = [self.steps * start + k * slope for slope in (min(slopes), max(slopes))]
        return max(0.0, ends[0] - off), ends[1] + off

    @functools.cached_property
    def _odds(self) -> tuple[float, tuple[float, ...]]:
        """Log(1 / p_0), and log(p_0 / p_j) / j^2 for every j."""
        m, q = self.examples, self.joined[0]
        none, one = math.log1p(-q), math.log(q)
        logs = [math.log(math.comb(m, j)) + j * one + (m - j) * none for j in range(1, m + 1)]
        return -m * none, tuple((m * none - log) / j**2 for j, log in enumerate(logs, start=1))

    def _tail(self, k: int) -> tuple[float, float]:
        """Lower and upper bound on P(N >= k)."""
        if self.examples > 1:
            return tuple(self._sums[:, min(k, self.largest + 1)])
        if k not in self._known:
            low, high = self.joined
            self._known[k] = at_least(self.steps, low, k)[0], at_least(self.steps, high, k)[1]
        return self._known[k]

    @functools.cached_property
    def _known(self) -> dict[int, tuple[float, float]]:
        return {}

    @property
    def _laws(self) -> list[tuple[FloatArray, int]]:
        """The law of the part of N that one release contributes, and the number of such releases, by kind."""
        q, m = Fraction(self.joined[0]), self.examples
        one = np.zeros(m * m + 1)
        for j in range(m + 1):
            one[j * j] = float(math.comb(m, j) * q**j * (1 - q) ** (m - j))
        return [(one, self.steps)]

    @functools.cached_property
    def _sums(self) -> FloatArray:
        """Lower and upper bounds on P(N >= k) for k from 0, by convolutions.

        All terms are positive: T factors with error u, and sums of at most L terms whose errors add up to at
        most L u for each of T factors, each of the log T squarings, and each further kind.
        """
        whole, laws = np.ones(1), self._laws
        for one, times in laws:
            found = one
            for digit in bin(times)[3:]:
                found = np.convolve(found, found)
                found = np.convolve(found, one) if digit == "1" else found
            whole = np.convolve(whole, found)
        tails = np.append(np.cumsum(whole[::-1])[::-1], 0.0)
        rounds = 2.0 + 2.0 * math.log2(self.steps + 1) + len(laws) - 1.0
        off = 8.0 * UNIT * (self.steps + tails.size * rounds * self.examples**2)
        ends = np.stack([tails * (1.0 - off) - _SUBNORMAL, tails * (1.0 + off) + _SUBNORMAL])
        return np.clip(ends, 0.0, 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class RevealedSchedule(Revealed):
    """The same for releases of equal noise with several probabilities, of one example.

    A sequence with N participations has log(1 / w) = sum log(1 / (1 - q)) over all releases, plus
    log((1 - q) / q) of each participation: between N times the smallest and N times the largest of these.

    Args:
        kinds: pairs of q and the number of releases with it, at least one; `steps` is their total, and
            `joined` has the smallest and the largest q.
    """

    kinds: tuple[tuple[float, int], ...] = ()

    def _applies(self, sigma: float) -> bool:
        return self.steps <= _LARGEST_SUM and super()._applies(sigma)

    def _log_odds(self, k: int) -> tuple[float, float]:
        start = math.fsum(-times * math.log1p(-q) for q, times in self.kinds)
        slopes = [math.log1p(-q) - math.log(q) for q, _ in self.kinds]
        # Logarithms have error 8 u of themselves, and there are few further operations.
        sizes = max(abs(math.log1p(-q)) + abs(math.log(q)) for q, _ in self.kinds)
        off = 16.0 * UNIT * (start + k * sizes)
        return max(0.0, start + k * min(slopes) - off), start + k * max(slopes) + off

    def _tail(self, k: int) -> tuple[float, float]:
        return tuple(self._sums[:, min(k, self.largest + 1)])

    @property
    def _laws(self) -> list[tuple[FloatArray, int]]:
        return [(np.array([float(1 - Fraction(q)), q]), times) for q, times in self.kinds]


# How far outputs have to stay from the opposite gradient's for a lower bound, of the distance to it.
_ASIDE = 0.125


class RevealedReplacement(Revealed):
    """The same for one example that is replaced by another one, with opposite gradients; only one direction.

    Where outputs show that the first example took part in a set of releases, the second one most likely took
    part in none: the loss is that of direction REMOVE, less T log(1 / (1 - q)). The sensitivity is that to
    one example.
    """

    @property
    def _most_apart(self) -> float:
        return 2.0 * super()._most_apart

    def _upper(self, sigma: float, eps: float) -> float:
        noise = quotient_down(sigma, self.sensitivity.upper)
        return min(1.0, next_up(self._mean(noise, eps, shifted=True) + self._strays(noise)))

    def _strays(self, noise: float) -> float:
        tail = math.erfc((0.5 - _ASIDE) * math.sqrt(0.5) / noise) * (1.0 + 1e-12 / noise**2) + _SUBNORMAL
        return product_up(tail, self.steps)

    def _lower(self, sigma: float, eps: float) -> float:
        noise = quotient_up(sigma, self.sensitivity.lower if self.tight else self.sensitivity.upper)
        q = self.joined[0]
        # By how much the second example raises the density of its own absence, for outputs that far aside.
        raised = self.steps * q / (1.0 - q) * math.exp(-_ASIDE / noise**2)
        return super()._lower(sigma, eps + raised * (1.0 + 1e-9 / noise**2) + _SUBNORMAL)

    def _log_odds(self, k: int) -> tuple[float, float]:
        """Bounds on log((1 - q)^T / w) for sequences with N = k."""
        q = self.joined[0]
        absent, present = math.log1p(-q), math.log(q)
        middle, off = k * (absent - present), 16.0 * UNIT * k * (abs(absent) + abs(present))
        return middle - off, middle + off


class ComposedAccountant(Accountant):
    """An accountant of T sampled releases, which resolves their losses unless there is very little noise.

    Attributes:
        revealed: the bounds for very little noise; None if they do not help.
    """

    revealed: Revealed | None = None

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        known = None if self.revealed is None else self.revealed.delta(sigma, eps, max(tolerance, _CLOSE))
        return self.resolved_delta(sigma, eps, tolerance=tolerance) if known is None else self._bounds(known)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        known = None
        if self.revealed is not None:
            known = self.revealed.epsilon(sigma, delta, 2.0 * max(tolerance, _CLOSE))
        if known is None:
            return self.resolved_epsilon(sigma, delta, tolerance=tolerance)
        return self._bounds(known)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma; see the base class."""
        found = None if self.revealed is None else self.revealed.calibrate(eps, delta, rtol, self.by)
        return self.resolved_sigma(eps, delta, rtol=rtol, progress=progress) if found is None else found

    def _bounds(self, ends: tuple[float, float]) -> Bounds:
        return Bounds(*ends, BOUND, self.by)

    @abc.abstractmethod
    def resolved_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """As `delta`, from losses on a lattice or their transform."""

    @abc.abstractmethod
    def resolved_epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """As `epsilon`, from losses on a lattice or their transform."""

    @abc.abstractmethod
    def resolved_sigma(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """As `calibrate`, from losses on a lattice or their transform."""
