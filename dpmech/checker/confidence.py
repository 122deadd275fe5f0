"""Budgets, answers, and a sequential test that the mean of bounded draws is below a level, or above it.

docs/checker.md, section 6.6, states and proves it. Stakes are set for every batch from the mean and variance
of the batches before it, so that the first batch is only observed.
"""

import dataclasses
import math

import numpy as np

DIRECTIONS = ("REMOVE", "ADD")


@dataclasses.dataclass(frozen=True)
class Work:
    """Budget of an answer."""

    failure: float  # probability that the samples mislead
    seconds: float  # CPU time
    rng: np.random.Generator  # random generator for sampling


@dataclasses.dataclass(frozen=True)
class Answer:
    """Whether delta is at most a given number."""

    verdict: bool | None  # True (it is), False (it is not), None (undecided)
    number: str = ""  # what was found, in words
    failure: float = 0.0  # probability, over the draws made here, that a verdict is wrong, or would have been


class SequentialTest:
    """A sequential test that the mean of draws of at most `bound` is below a level (`upper`), or above it."""

    def __init__(self, level: float, bound: float, failure: float, *, upper: bool) -> None:
        if not (level > 0.0 and bound >= 0.0):  # written so that NaN fails
            raise ArithmeticError(f"a test at {level!r} with draws of at most {bound!r}")
        self.level, self.goal = level, -math.log(failure)
        self._sign = 1.0 if upper else -1.0
        self._most = 1.0 / level if not upper else 1.0 / (bound - level) if bound > level else math.inf
        self._capital = 0.0  # its logarithm
        self.draws = self.batches = 0
        self._sum = self._squares = 0.0
        self._always = upper and bound < level

    def __str__(self) -> str:
        return "a bound on all draws" if self._always else f"{self.draws} draws with mean {self.mean:.4e}"

    @property
    def won(self) -> bool:
        """Whether it is proved; at once where the bound on all draws is below the level."""
        return self._always or self._capital >= self.goal

    @property
    def mean(self) -> float:
        """Mean of all draws."""
        return self._sum / max(self.draws, 1)

    @property
    def draws_needed(self) -> float:
        """Draws until the test succeeds if the mean is better by three standard errors than it looks."""
        gap = self._sign * (self.level - self.mean) + 3.0 * math.sqrt(self._variance() / max(self.draws, 1))
        return 2.0 * self.goal * self._variance() / gap**2 if gap > 0.0 else math.inf

    def add(self, draws: np.ndarray) -> None:
        """Update the capital with a batch of draws, then observe them for the next stake."""
        if not np.all(draws >= 0.0):
            raise ArithmeticError("a draw is negative or not a number")
        stake = self._stake()
        if stake > 0.0:
            # The rounding error of some thousand logarithms is far below 1e-6 of their total size.
            gain = np.log1p(stake * self._sign * (self.level - draws))
            self._capital += float(gain.sum()) - 1e-9 * float(np.abs(gain).sum())
        self.draws += draws.size
        self.batches += 1
        self._sum += float(draws.sum())
        self._squares += float((draws**2).sum())

    def _variance(self) -> float:
        return max(self._squares / max(self.draws, 1) - self.mean**2, 0.0)

    def _stake(self) -> float:
        """The stake with the fastest growth for this mean and variance, at most half of what is allowed."""
        gap = self._sign * (self.level - self.mean)
        if not self.draws or gap <= 0.0:
            return 0.0
        return min(gap / (self._variance() + gap**2), 0.5 * self._most)
