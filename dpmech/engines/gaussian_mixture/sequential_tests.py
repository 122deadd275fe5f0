r"""Sequential tests of the mean of non-negative weights in blocks: bounds that hold at every sample size.

A sequential test bets that the mean weight mu is below (or above) some m, and stakes a part of its wealth on
every weight. **Theorem.** Let w_1, w_2, ... be independent with mean mu, and lam_1, lam_2, ... >= 0 stakes,
each chosen before its weight is drawn.

- *Upper.* Let 0 <= w_i <= W, x_i = w_i / W and lam_i < 1. `E_n(m) = prod_i (1 + lam_i (m - x_i))` is
  non-negative and non-decreasing in m in [0, 1], and at m = mu / W a martingale that starts at 1. By Ville's
  inequality it ever reaches 1 / beta with probability at most beta. Hence, with probability at least
  1 - beta, for all n at once, mu is at most W inf{m : E_n(m) >= 1 / beta}.
- *Lower.* Let w_i >= 0 (no bound is needed), x_i = w_i / c with c > 0 fixed before, and lam_i M < 1.
  `E_n(m) = prod_i (1 + lam_i (x_i - m))` is positive and non-increasing in m in [0, M], and at m = mu / c,
  if that is at most M, the same kind of martingale. Hence mu is at least c sup{m <= M : E_n(m) >= 1 / beta}.

Only the common mean is used, no common law, and no asymptotics. The stake changes from block to block, and is
the one that would have maximised the wealth on the earlier weights, including those of the pilot. The test
may stop as soon as a threshold is proved.

References:
    Ville 1939; Waudby-Smith and Ramdas 2024, arXiv:2010.09686v7.
"""

import abc
import contextlib
import dataclasses
import math
from collections.abc import Generator, Sequence
from typing import ClassVar

import numpy as np
import scipy

from dpmech.exceptions import ContradictionError, NumericalError
from dpmech.guards import check_real
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, next_down, next_up, sum_down, sum_rounding, total

LARGEST_STAKE = 0.999
# The lower test covers means up to this multiple of its unit; for larger means it returns this.
LARGEST_LOWER = 4.0
# A stake is updated when the number of weights has grown by this factor, from at most MEMORY of them.
GROWTH = 1.3
MEMORY = 2**16
# If the weights seen contradict the goal, the stake is that for a gap of this size.
LEAST_GAP = 0.01
# First correction of the root of a search that ended on the wrong side.
ROOT_STEP = 1e-11


@dataclasses.dataclass(frozen=True, eq=False)
class _Block:
    """Weights with a common stake.

    Attributes:
        positive: positive weights over the unit, rounded to the safe side.
        zeros: number of weights that are 0.
        stake: lam.
    """

    positive: FloatArray
    zeros: int
    stake: float


class SequentialTest(abc.ABC):
    """One sequential test, its stakes and its weights.

    Args:
        log_unit: log of the unit: the proved weight bound for an upper bound on the mean, any number fixed in
            advance for a lower one.
        beta: probability that the bound fails at any time, in (0, 1).
        goal: upper (lower) bound on the mean to be proved, > 0, in the unit of the weights.
        pilot: logs of weights of an independent sample, which set the first stake; -inf for zero.
        rounding: relative error of the computed weights (`Proposal.weight_rounding`); 0 for exact weights.

    Raises:
        InvalidParameterError: if beta is not in (0, 1).
    """

    _sign: ClassVar[float]
    _largest_mean: ClassVar[float]

    def __init__(
        self, log_unit: float, beta: float, goal: float, pilot: FloatArray, *, rounding: float = 0.0
    ) -> None:
        level = check_real("beta", beta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
        self.log_unit = log_unit
        self._rounding = rounding
        self._level = -math.log(level) * (1.0 + ELEMENTARY + UNIT)
        self.goal = goal
        self._goal = self._ratio(goal)
        self._blocks: list[_Block] = []
        self._seen = [np.exp(np.minimum(pilot[-MEMORY:] - log_unit, 0.0 if self._sign > 0.0 else 700.0))]
        self._count = self._chosen_at = pilot.size
        self._stake = self._best_stake()
        self._gain = 0.0
        self._won = False

    @property
    def samples(self) -> int:
        """Number of weights used."""
        return sum(block.positive.size + block.zeros for block in self._blocks)

    @property
    def proved(self) -> bool:
        """Whether the goal is proved to be a bound on the mean; later weights do not revoke it."""
        return self._won or self._trivial

    @property
    def bound(self) -> float:
        """The bound proved so far, rounding included; the goal if it is tighter and proved."""
        return self._sign * min(self._sign * self._found(), self._sign * self.goal if self._won else math.inf)

    @abc.abstractmethod
    def _found(self) -> float:
        """The bound proved by the current wealth."""

    def expected_samples(self) -> float:
        """Expected number of weights to prove the goal, from those seen; infinite if they contradict it."""
        seen = np.concatenate(self._seen)
        growth = float(np.mean(np.log1p(self._stake * self._sign * (self._goal - seen))))
        return self._level / growth if growth > 0.0 else math.inf

    def add(self, log_weights: FloatArray) -> None:
        """Add weights by their logs, shape (n,), -inf for zero, with the stake set by earlier weights.

        Raises:
            NumericalError: if a weight is not a number.
            ContradictionError: if one exceeds its proved bound by more than rounding.
        """
        self._check(log_weights)
        logs = log_weights[log_weights > -np.inf] - self.log_unit
        block = _Block(self._rounded(logs), int(log_weights.size - logs.size), self._stake)
        self._blocks.append(block)
        self._gain = sum_down((self._gain, self._least_gain(block, self._goal)))
        self._won |= self._gain >= self._level and self._speaks
        self._count += log_weights.size
        if sum(part.size for part in self._seen) < MEMORY:
            self._seen.append(np.append(block.positive, np.zeros(block.zeros)))
        if self._count > GROWTH * self._chosen_at:
            self._stake, self._chosen_at = self._best_stake(), self._count

    @property
    def _trivial(self) -> bool:
        """Whether the goal holds without weights."""
        return False

    @property
    def _speaks(self) -> bool:
        """Whether the wealth against the goal is valid evidence for it."""
        return True

    @abc.abstractmethod
    def _ratio(self, goal: float) -> float:
        """The goal over the unit, rounded to the side that is harder to prove."""

    @abc.abstractmethod
    def _check(self, log_weights: FloatArray) -> None:
        """Raise an error for weights that the theorem does not cover."""

    @abc.abstractmethod
    def _rounded(self, logs: FloatArray) -> FloatArray:
        """Exponentials, rounded to the safe side."""

    def _best_stake(self) -> float:
        """The stake with the largest gain on the weights seen; every stake in the range is valid."""
        seen = np.concatenate(self._seen)
        largest = LARGEST_STAKE / self._largest_mean
        gaps = self._sign * (self._goal - seen)
        least = LEAST_GAP * max(self._goal, float(seen.mean()))
        if float(gaps.mean()) <= least:
            gaps = gaps - float(gaps.mean()) + least

        def slope(stake: float) -> float:
            return float(np.mean(gaps / (1.0 + stake * gaps)))

        if slope(largest) >= 0.0:
            return largest
        return float(scipy.optimize.brentq(slope, 0.0, largest, xtol=1e-9 * largest, rtol=1e-6))

    def _least_gain(self, block: _Block, mean: float) -> float:
        """Lower bound on the log of the factor by which a block multiplies the wealth in exact arithmetic.

        An argument a = lam (m - x) has a relative error of two roundings, which changes log(1 + a) by at most
        their multiple |log(1 + a)| / (1 - edge), -edge the least a; the logarithm and the sums add their own.
        """
        stake, sign = block.stake, self._sign
        terms = np.log1p(stake * sign * (mean - block.positive))
        none = block.zeros * math.log1p(stake * sign * mean)
        edge = stake * self._largest_mean
        relative = 2.0 * UNIT / (1.0 - edge) + ELEMENTARY + sum_rounding(terms.size) + 8.0 * UNIT
        error = relative * (abs(none) + total(np.abs(terms)))
        return none + total(terms) - 1.01 * error

    def _least_log(self, mean: float) -> float:
        """Lower bound on the log of the wealth against `mean`."""
        return sum_down(self._least_gain(block, mean) for block in self._blocks)


class UpperTest(SequentialTest):
    """A sequential test that the mean weight is below a number; see the theorem of this module.

    Examples:
        >>> import numpy as np
        >>> weights = np.log(np.random.default_rng(1).random(4000))
        >>> test = UpperTest(0.0, 1e-9, 0.55, weights[:1000])
        >>> test.add(weights[1000:])
        >>> test.proved, 0.5 < test.bound < 0.55
        (True, True)
    """

    _sign = 1.0
    _largest_mean = 1.0

    def _found(self) -> float:
        # At most the proved bound of every weight, up to rounding.
        unit = rounded_bound(self.log_unit, self._rounding)

        def excess(mean: float) -> float:
            return self._least_log(mean) - self._level

        if not self._blocks or excess(1.0) < 0.0:
            return unit
        # No stake gains more per weight than this mean.
        low = min(0.5 * self._level / self.samples, 0.5)
        root = scipy.optimize.brentq(
            lambda x: excess(math.exp(x)), math.log(low), 0.0, xtol=1e-10, rtol=1e-12
        )
        # The search may end on either side: the returned value is evaluated itself.
        mean, step = math.exp(root), ROOT_STEP
        while excess(mean) < 0.0:
            mean, step = mean * (1.0 + step), 4.0 * step
            if mean >= 1.0:
                return unit
        return next_up(mean * unit)

    @property
    def _trivial(self) -> bool:
        return self._goal >= 1.0

    def _ratio(self, goal: float) -> float:
        return min(next_down(next_down(goal / rounded_bound(self.log_unit, self._rounding))), 1.0)

    def _check(self, log_weights: FloatArray) -> None:
        top = float(np.max(log_weights, initial=-np.inf))
        if math.isnan(top):
            raise NumericalError("a weight is not a number")
        if top > self.log_unit + self._rounding + _unit_rounding(self.log_unit):
            raise ContradictionError(
                f"a weight of e^{top:.12g} exceeds its proved bound e^{self.log_unit:.12g}: "
                "the bound or the sampler is wrong"
            )

    def _rounded(self, logs: FloatArray) -> FloatArray:
        logs = np.minimum(logs, 0.0)
        return np.minimum(np.exp(logs) * (1.0 + 2.0 * (ELEMENTARY + UNIT * (2.0 - logs))), 1.0)


class LowerTest(SequentialTest):
    """A sequential test that the mean weight is above a number; see the theorem of this module.

    Examples:
        >>> import numpy as np
        >>> weights = np.log(np.random.default_rng(1).random(4000))
        >>> test = LowerTest(-1.0, 1e-9, 0.45, weights[:1000])
        >>> test.add(weights[1000:])
        >>> test.proved, 0.45 < test.bound < 0.5
        (True, True)
    """

    _sign = -1.0
    _largest_mean = LARGEST_LOWER

    def _found(self) -> float:
        unit = _least_unit(self.log_unit, self._rounding)

        def excess(mean: float) -> float:
            return self._least_log(mean) - self._level

        if not self._blocks or excess(0.0) < 0.0:
            return 0.0
        if excess(LARGEST_LOWER) >= 0.0:
            return LARGEST_LOWER * unit
        mean = float(scipy.optimize.brentq(excess, 0.0, LARGEST_LOWER, xtol=1e-12, rtol=1e-12))
        step = ROOT_STEP
        while excess(mean) < 0.0:
            mean, step = mean * (1.0 - min(step, 1.0)), 4.0 * step
        return max(0.0, next_down(mean * unit))

    @property
    def _speaks(self) -> bool:
        return self._goal < LARGEST_LOWER

    def _ratio(self, goal: float) -> float:
        unit = _least_unit(self.log_unit, self._rounding)
        return min(goal / unit * (1.0 + 4.0 * UNIT), LARGEST_LOWER)

    def _check(self, log_weights: FloatArray) -> None:
        if np.any(np.isnan(log_weights)):
            raise NumericalError("a weight is not a number")

    def _rounded(self, logs: FloatArray) -> FloatArray:
        capped = np.minimum(logs, 700.0)
        return np.exp(capped) * (1.0 - 2.0 * (ELEMENTARY + UNIT * (2.0 + np.abs(capped))))


def tested(tests: Sequence[SequentialTest], stream: Generator[FloatArray, None, None], limit: int) -> int:
    """Add blocks of weights until all tests are proved, or so many weights were read; returns how many.

    Args:
        tests: at least one.
        stream: log weights, shape (m,), or of every test, shape (m, k); closed at the end.
        limit: number of weights of each test.
    """
    drawn = 0
    with contextlib.closing(stream):
        while drawn < limit and not all(one.proved for one in tests):
            weights = next(stream).reshape(-1, len(tests))
            for place, test in enumerate(tests):
                if not test.proved:
                    test.add(weights[:, place])
            drawn += len(weights)
    return drawn


def rounded_bound(log_bound: float, rounding: float) -> float:
    """A bound on the mean of computed weights that are at most e^log_bound in exact arithmetic.

    Args:
        log_bound: log of the weight bound.
        rounding: relative error of the weights and of that bound.
    """
    return next_up(math.exp(log_bound + 1.01 * rounding) * (1.0 + _unit_rounding(log_bound + rounding)))


def _least_unit(log_unit: float, rounding: float) -> float:
    """The unit, reduced by the largest relative error of weights."""
    return math.exp(log_unit - 1.01 * rounding) * (1.0 - _unit_rounding(log_unit - rounding))


def _unit_rounding(log_unit: float) -> float:
    """Relative error: of the exponential of the unit, whose argument is rounded twice, and of products."""
    return 2.0 * (ELEMENTARY + (4.0 + 2.0 * abs(log_unit)) * UNIT)
