r"""Banded strategies whose participations are a Markov chain: columns, and the law of b-min-sep sampling.

A `ChainGram` has the columns of C, and a law of the set pi of steps that one example joins. `WaitingGram` is
b-min-sep sampling; `allocation_chain.AllocationGram` is a uniformly random set of k steps.

After joining a step, an example waits b - 1 steps; it joins every other step with probability p. With pi the
set of its steps, P = sum_pi P(pi) N(sum of c_t over pi, sigma^2 I) and Q = N(0, sigma^2 I). C has at most b
bands, so that the columns of one pi do not overlap, and for `w_t = <c_t, y> / sigma^2`

    dP/dQ = E_pi[exp(sum over t in pi of w_t - K_tt / 2)],    K = C^T C / sigma^2,

which the recursion over the cooldown counter in `chain_kernels` evaluates in O(n) per draw.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Self

import numpy as np

from dpmech.engines.gaussian import gaussian_log_delta
from dpmech.engines.gaussian_mixture.gram import BinGram, register_family
from dpmech.engines.gaussian_mixture.moments import rough_log_delta
from dpmech.engines.gaussian_mixture.proposal import LogError
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Strategy
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, spend

register_family("chains", "b-min-sep", "{steps} steps, b {min_sep}")

# Rounding of an entry, of its product with a scale, and of that scale: 2 each, doubled as a margin.
_ENTRY = 16.0 * UNIT


@dataclasses.dataclass(frozen=True, eq=False)
class Tilt(abc.ABC):
    """The law of the participations with each joined step weighted by `e^gains[t]`.

    Attributes:
        gains: logs, shape (n,).
        log_total: log E_P[product of e^gains over the steps joined].
    """

    gains: FloatArray
    log_total: float

    @abc.abstractmethod
    def marginals(self) -> FloatArray:
        """The probability of joining each step, shape (n,)."""

    @abc.abstractmethod
    def patterns(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw participations, 1.0 where a step is joined and else 0.0, shape (count, n)."""


@dataclasses.dataclass(frozen=True, eq=False)
class WaitingTilt(Tilt):
    """That of b-min-sep sampling.

    Attributes:
        joins: probability of joining a step when available, shape (n,).
        starts: law of the first step at which the example is available, shape (b,).
        tails: logs of the same expectations from every step on, shape (n + b,).
    """

    joins: FloatArray
    starts: FloatArray
    tails: FloatArray

    def marginals(self) -> FloatArray:
        """The probability of joining each step, shape (n,)."""
        from dpmech.engines.gaussian_mixture.chain_kernels import joined

        return joined(self.joins, self.starts)

    def patterns(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw participations, 1.0 where a step is joined and else 0.0, shape (count, n)."""
        from dpmech.engines.gaussian_mixture.chain_kernels import draw_patterns

        out = np.zeros((count, self.gains.size), dtype=np.bool_)
        draw_patterns(rng.random((count, self.gains.size + 1)), self.joins, np.cumsum(self.starts), out)
        return out.astype(np.float64)


class Copies(abc.ABC):
    """A law with the density r^m e^-A relative to Q, by the number of m copies that join each step.

    Attributes:
        power: m.
        log_total: A >= log E_Q r^m. If it is larger, the total is below 1, and some draws are rejected.
    """

    power: int
    log_total: float

    @property
    @abc.abstractmethod
    def error(self) -> float:
        """A bound on the absolute error of `log_total`."""

    @abc.abstractmethod
    def counts(self, rng: np.random.Generator, count: int) -> FloatArray:
        """How many copies join each step, for those of `count` draws that are kept; shape (kept, n)."""


@dataclasses.dataclass(frozen=True, eq=False)
class ChainGram(BinGram):
    """K of the steps, with the law of the participations.

    Attributes:
        banded: columns of C over sigma, c_t[t + k] = banded[t, k] >= 0, shape (n, bands).
    """

    banded: FloatArray

    @property
    @abc.abstractmethod
    def rate(self) -> float:
        """The probability of joining a step, the same for all steps."""

    @property
    @abc.abstractmethod
    def odds(self) -> float:
        """About the odds of joining a step that may be joined; they choose a part of a mixture."""

    @property
    def overlapping(self) -> bool:
        """Whether columns of two steps of one example may have a row in common."""
        return False

    @abc.abstractmethod
    def log_sums(self, values: FloatArray, scale: float, offsets: FloatArray, crossing: float) -> FloatArray:
        """Log E_pi[exp(sum over t in pi of scale w_t + offsets_t, + crossing times X)] of rows w, shape (m,).

        X is the sum of the products <c_s, c_t> / sigma^2 over the pairs s < t in pi.
        """

    @abc.abstractmethod
    def sum_rounding(self, largest: float, each: float, crossing: float) -> LogError:
        """Error of `log_sums` for exponents of at most that size, each with an error of at most `each`.

        Args:
            largest: largest absolute value of an exponent of one step.
            each: its largest error.
            crossing: absolute value of the factor of X.
        """

    @abc.abstractmethod
    def tilt(self, gains: FloatArray, crossing: float) -> Tilt:
        """The law of the participations weighted by e to their gains and to `crossing` times X."""

    @abc.abstractmethod
    def copies(self, eps: float) -> "Sequence[Copies]":
        """The law of several copies with the smallest weight bound on {r >= e^eps}, then others like it."""

    @property
    def bins(self) -> int:
        """The number of steps."""
        return len(self.banded)

    @property
    def words(self) -> str:
        """Description of the coordinates of a draw, for messages."""
        return f"{self.bins} steps"

    @functools.cached_property
    def diagonal(self) -> FloatArray:
        """Squared norms of the columns."""
        found: FloatArray = np.einsum("tk,tk->t", self.banded, self.banded)
        return found

    @functools.cached_property
    def by_lag(self) -> FloatArray:
        """The columns, shape (bands, n)."""
        return np.ascontiguousarray(self.banded.T)

    @functools.cached_property
    def by_distance(self) -> FloatArray:
        """K_(t, t - d) at [t, d - 1], 0 before the first step; shape (n, bands - 1)."""
        n, bands = self.banded.shape
        found = np.zeros((n, bands - 1))
        for d in range(1, bands):
            found[d:, d - 1] = np.einsum("tk,tk->t", self.banded[d:, : bands - d], self.banded[:-d, d:])
        return found

    @property
    def cheap_columns(self) -> bool:
        """False: columns are not read."""
        return False

    @property
    def entry_rounding(self) -> float:
        """Rounding of squared norms of columns."""
        return 1.01 * (float(self.banded.shape[1]) + 4.0) * UNIT

    def product_rounding(self, total: float, norm: float) -> float:
        """Error of products with the columns and their transpose, two sums with one term per band."""
        del norm
        return 1.01 * (4.0 * float(self.banded.shape[1]) + 8.0) * UNIT * float(self.diagonal.max()) * total

    def matmat(self, values: FloatArray) -> FloatArray:
        """K @ values."""
        from dpmech.engines.gaussian_mixture.chain_kernels import correlate, spread

        rows = np.ascontiguousarray(values.T, dtype=np.float64)
        means, out = np.zeros_like(rows), np.empty_like(rows)
        spread(self.banded, rows, means)
        correlate(self.by_lag, means, out)
        return out.T

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draws of w under Q, shape (count, n)."""
        return self.correlated(rng.standard_normal((count, self.bins)))

    def correlated(self, rows: FloatArray) -> FloatArray:
        """w_t = <c_t, y> / sigma^2 for rows y / sigma, shape (m, n)."""
        from dpmech.engines.gaussian_mixture.chain_kernels import correlate

        out = np.empty_like(rows)
        correlate(self.by_lag, rows, out)
        return out

    def means(self, weights: FloatArray) -> FloatArray:
        """sum_t weights[t] c_t / sigma for every row, shape (m, n)."""
        from dpmech.engines.gaussian_mixture.chain_kernels import spread

        out = np.zeros_like(weights)
        spread(self.banded, weights, out)
        return out

    def scaled(self, factor: float) -> Self:
        """K times a factor."""
        return dataclasses.replace(self, banded=self.banded * math.sqrt(factor))

    def losses(self, values: FloatArray) -> FloatArray:
        """Log dP/dQ of rows w, shape (m,)."""
        return self.log_sums(values, 1.0, -0.5 * self.diagonal, -1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class WaitingGram(ChainGram):
    """K with the law of b-min-sep sampling: columns of steps of one example do not overlap, so that X = 0.

    Attributes:
        min_sep: b, at least the number of bands.
        sampling_prob: p.
    """

    min_sep: int
    sampling_prob: float

    @property
    def family(self) -> str:
        """Prefix of the accounting method names for this matrix."""
        return "chains"

    @property
    def facts(self) -> dict[str, int]:
        """The facts that are reported with those names."""
        return {"steps": self.bins, "min_sep": self.min_sep}

    @property
    def odds(self) -> float:
        """Those of joining a step after the cooldown."""
        return self.sampling_prob / max(1.0 - self.sampling_prob, 1e-300)

    @property
    def log_prob(self) -> float:
        """Log p."""
        return math.log(self.sampling_prob)

    @property
    def log_rest(self) -> float:
        """log(1 - p)."""
        return math.log1p(-self.sampling_prob) if self.sampling_prob < 1.0 else -math.inf

    @property
    def rate(self) -> float:
        """The probability of joining a step, the same for all steps: p / (1 + p (b - 1))."""
        return self.sampling_prob / (1.0 + self.sampling_prob * (self.min_sep - 1))

    @functools.cached_property
    def log_starts(self) -> FloatArray:
        """Logs of the stationary law of the cooldown counter, shape (b,): 1 : p : ... : p."""
        law = np.full(self.min_sep, self.sampling_prob)
        law[0] = 1.0
        logs: FloatArray = np.log(law) - math.log1p(self.sampling_prob * (self.min_sep - 1))
        return logs

    def copies(self, eps: float) -> "Sequence[Copies]":
        """See the base class."""
        from dpmech.engines.gaussian_mixture.waiting_copies import WaitingCopies

        law = WaitingCopies.best(self, eps)
        return [] if law is None else [law]

    def log_sums(self, values: FloatArray, scale: float, offsets: FloatArray, crossing: float) -> FloatArray:
        """Log E_pi[exp(sum over t in pi of scale w_t + offsets_t)] of rows w, shape (m,)."""
        del crossing
        from dpmech.engines.gaussian_mixture.chain_kernels import log_sums

        out = np.empty(len(values))
        log_sums(values, scale, offsets, self.log_prob, self.log_rest, self.log_starts, out)
        return out

    def sum_rounding(self, largest: float, each: float, crossing: float) -> LogError:
        """Error of `log_sums` for exponents of at most that size, each with an error of at most `each`.

        In linear representation, a step takes a few multiplications and additions (4 u) and inherits the
        errors of p and 1 - p, which are exponentials of logarithms; a joined step adds the errors of an
        exponential and of its exponent. In log representation, a step rounds five numbers of at most the size
        of the result, and takes an exponential and a logarithm of numbers of size 1. At most n / b + 1 steps
        are joined. Underflow costs 1e-28 of a sum. Both representations may occur, so both errors are added.
        """
        del crossing
        n, joined = self.bins, self.bins / self.min_sep + 1.0
        rest = 0.0 if self.sampling_prob == 1.0 else abs(self.log_rest)
        start = math.log(self.min_sep) + 2.0 * abs(self.log_prob) + 1.0
        size = joined * (largest + abs(self.log_prob)) + n * rest + start
        steps = joined * (each + ELEMENTARY * (2.0 + abs(self.log_prob)) + 2.0 * UNIT * largest + 6.0 * UNIT)
        steps += n * (4.0 * UNIT + ELEMENTARY * (1.0 + rest)) + self.min_sep * (UNIT + ELEMENTARY)
        logs = (n + self.min_sep) * (5.0 * UNIT * size + 2.0 * ELEMENTARY)
        return LogError(1.05 * (steps + logs + ELEMENTARY * size + 4.0 * UNIT * size), size)

    def tilt(self, gains: FloatArray, crossing: float) -> Tilt:
        """The law of the participations with each joined step weighted by `e^gains[t]`, shape (n,)."""
        del crossing
        from dpmech.engines.gaussian_mixture.chain_kernels import tails

        found = tails(gains, self.log_prob, self.log_rest, self.min_sep)
        n, b = self.bins, self.min_sep
        logs = self.log_starts + found[:b]
        total = float(np.logaddexp.reduce(logs))
        joins = np.exp(np.minimum(self.log_prob + gains + found[b : n + b] - found[:n], 0.0))
        return WaitingTilt(gains, total, joins, np.exp(logs - total), found)


def loss_rounding(gram: ChainGram, farthest: float) -> LogError:
    """Error of the losses of rows w, if no |w| exceeds `farthest`."""
    top = float(gram.diagonal.max())
    size = farthest + 0.5 * top
    return gram.sum_rounding(size, 2.0 * UNIT * size + 0.5 * gram.entry_rounding * top, 1.0)


def chain_gram(strategy: Strategy, min_sep: int, sampling_prob: float, *, lower: bool = False) -> WaitingGram:
    """K at sigma 1, with every entry raised by the largest rounding error (lowered for `lower`).

    A delta of larger columns is no smaller (`docs/b_min_sep.md`).

    Args:
        strategy: C >= 0 with at most b bands.
        min_sep: b.
        sampling_prob: p in (0, 1].
        lower: whether K is for lower bounds.

    Raises:
        UnsupportedCombinationError: if C has negative entries, or more than b bands.
    """
    bands = strategy.n if strategy.bands is None else strategy.bands
    if bands > min_sep:
        raise UnsupportedCombinationError(
            f"b-min-sep sampling needs a strategy with at most min_sep={min_sep} bands, but {strategy!r} "
            f"has {bands}",
            supported=f"strategies with at most {min_sep} bands, such as SquareRoot(n, bands={min_sep})",
        )
    if not strategy.nonnegative:
        raise UnsupportedCombinationError(
            f"the dominating pair of b-min-sep sampling is proven for C >= 0, but {strategy!r} has "
            "negative entries",
            supported="strategies with non-negative entries; the others without amplification by sampling",
        )
    return WaitingGram(rounded_columns(strategy, bands, lower=lower), min_sep, sampling_prob)


def rounded_columns(strategy: Strategy, bands: int, *, lower: bool) -> FloatArray:
    """c_t[t + k], shape (n, bands), raised (lowered for `lower`) by the largest rounding error."""
    columns = _columns(strategy, bands)
    hidden = 1.01 * strategy.error * np.sqrt(np.einsum("tk,tk->t", columns, columns))[:, None]
    inside = np.arange(strategy.n)[:, None] + np.arange(bands) < strategy.n
    sign = -1.0 if lower else 1.0
    moved = np.maximum(columns * (1.0 + sign * _ENTRY) + sign * hidden, 0.0)
    return np.ascontiguousarray(np.where(inside, moved, 0.0))


@rough_log_delta.register
def _rough_log(gram: ChainGram, eps: float) -> float:
    """Log of a number within a few orders of magnitude of delta, from one Gaussian; a start value."""
    own = gram.diagonal
    others = gram.matvec(np.ones(gram.bins)) - own
    square = gram.rate**2 * float(np.sum(np.expm1(np.minimum(own, 50.0)) + others))
    return gaussian_log_delta(1.0 / math.sqrt(max(math.log1p(square), 1e-12)), eps)[0]


def _columns(strategy: Strategy, bands: int) -> FloatArray:
    """c_t[t + k], shape (n, bands); entries past the last step have no effect."""
    factors = strategy.factored
    spend(2e-8 * strategy.n * bands, 64.0 * strategy.n * bands, what=f"{strategy.n} columns of {bands} bands")
    if factors is not None:
        row = factors.coefs[:bands]
        scale = np.ones(strategy.n) if factors.scale is None else factors.scale
        return scale[:, None] * row
    spend(0.0, 16.0 * strategy.n**2, what=f"a dense matrix of {strategy.n} steps")
    dense = strategy.to_dense()
    out = np.zeros((strategy.n, bands))
    for k in range(bands):
        out[: strategy.n - k, k] = np.diagonal(dense, -k)
    return out
