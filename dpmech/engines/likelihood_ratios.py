"""Log-likelihood ratios of a mechanism's outputs along one example's direction, present against absent."""

import abc
import dataclasses
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Adjacency, Mechanism, Strategy
from dpmech.numerics import FloatArray

_DENSE = 1024
_MOST_ENTRIES = 40_000_000  # total size of the gradient sequences of all starts that are compared
_STEPS_AT_ONCE = 32


class Algebra:
    """C and C^-1 applied to the rows of a matrix; through dense C if it is small, which is faster."""

    def __init__(self, strategy: Strategy) -> None:
        self.n = strategy.n
        self.strategy = strategy
        self._diagonal = strategy.matmul(np.ones((self.n, 1)))[:, 0] if strategy.bands == 1 else None
        self.dense = strategy.to_dense() if self._diagonal is None and strategy.n <= _DENSE else None

    def matmul(self, rows: FloatArray) -> FloatArray:
        """C applied to every row; shape (m, n)."""
        if self._diagonal is not None:
            return np.asarray(rows * self._diagonal)
        return self.strategy.matmul(rows.T).T if self.dense is None else rows @ self.dense.T

    def solve(self, rows: FloatArray) -> FloatArray:
        """C^-1 applied to every row; shape (m, n)."""
        if self._diagonal is not None:
            return np.asarray(rows / self._diagonal)
        if self.dense is None:
            return self.strategy.solve(rows.T).T
        return np.asarray(scipy.linalg.solve_triangular(self.dense, rows.T, lower=True).T)


class Canary(abc.ABC):
    """One example (or user) with gradients at the clip norm, all in one direction; present or absent."""

    @abc.abstractmethod
    def draw(self, runs: int, generator: np.random.Generator, *, present: bool) -> FloatArray:
        """Sample gradients along the direction, shape (runs, n)."""

    @abc.abstractmethod
    def log_ratio(self, outputs: FloatArray, sigma: float) -> FloatArray:
        """Log-likelihood ratio, present over absent, of outputs of shape (m, n)."""


@dataclasses.dataclass(frozen=True)
class Mixture(Canary):
    """A uniform mixture of gradient sequences; a fixed example is a mixture of one.

    Args:
        gradients: shape (b, n).
        images: C applied to each sequence, shape (b, n).
        replaced: whether the alternative has the opposite gradients instead of none.
    """

    gradients: FloatArray
    images: FloatArray
    replaced: bool

    def draw(self, runs: int, generator: np.random.Generator, *, present: bool) -> FloatArray:
        """Sample gradients, shape (runs, n)."""
        if present:
            return self.gradients[generator.integers(len(self.gradients), size=runs)]
        return np.repeat(-self.gradients[:1] if self.replaced else 0.0 * self.gradients[:1], runs, axis=0)

    def log_ratio(self, outputs: FloatArray, sigma: float) -> FloatArray:
        """Log-likelihood ratio of outputs = C gradients + sigma Z, shape (m, n)."""
        inner = outputs @ self.images.T / sigma**2
        if self.replaced:
            return np.asarray(2.0 * inner[:, 0])
        energies = np.sum(self.images**2, axis=1) / (2.0 * sigma**2)
        return np.asarray(scipy.special.logsumexp(inner - energies, axis=1) - math.log(len(self.images)))


@dataclasses.dataclass(frozen=True)
class SeveralExamples(Canary):
    """A user whose examples share one gradient and join steps independently, with orthogonal columns of C.

    Args:
        steps: indices of the steps, shape (s,).
        sampling_prob: q in (0, 1), for each example.
        examples: m >= 1.
        columns: columns of C for these steps, shape (s, n).
    """

    steps: npt.NDArray[np.intp]
    sampling_prob: float
    examples: int
    columns: FloatArray

    def draw(self, runs: int, generator: np.random.Generator, *, present: bool) -> FloatArray:
        """Sample gradients, shape (runs, n)."""
        gradients = np.zeros((runs, self.columns.shape[1]))
        if present:
            shape = (runs, len(self.steps))
            gradients[:, self.steps] = generator.binomial(self.examples, self.sampling_prob, shape)
        return gradients

    def log_ratio(self, outputs: FloatArray, sigma: float) -> FloatArray:
        """Log-likelihood ratio of outputs = C gradients + sigma Z, shape (m, n)."""
        inner, energies = outputs @ self.columns.T, np.sum(self.columns**2, axis=1)
        total = np.full(inner.shape, -np.inf)
        for count in range(self.examples + 1):
            weight = scipy.stats.binom.logpmf(count, self.examples, self.sampling_prob)
            total = np.logaddexp(total, weight + count * (inner - 0.5 * count * energies) / sigma**2)
        return np.asarray(total.sum(axis=1))


@dataclasses.dataclass(frozen=True)
class Independent(Canary):
    """Steps that are joined independently, with orthogonal columns of C.

    Args:
        steps: indices of the steps, shape (s,).
        sampling_prob: q in (0, 1]; or one in (0, 1) for each of these steps, shape (s,).
        columns: their columns of C, shape (s, n).
        replaced: whether the alternative has the opposite gradients instead of none.
    """

    steps: npt.NDArray[np.intp]
    sampling_prob: float | FloatArray
    columns: FloatArray
    replaced: bool = False

    def draw(self, runs: int, generator: np.random.Generator, *, present: bool) -> FloatArray:
        """Sample gradients, shape (runs, n)."""
        gradients = np.zeros((runs, self.columns.shape[1]))
        if present or self.replaced:
            joined = generator.random((runs, len(self.steps))) < self.sampling_prob
            gradients[:, self.steps] = joined if present else -1.0 * joined
        return gradients

    def log_ratio(self, outputs: FloatArray, sigma: float) -> FloatArray:
        """Log-likelihood ratio of outputs = C gradients + sigma Z, shape (m, n)."""
        found = self._against_none(outputs, sigma)
        return found - self._against_none(-outputs, sigma) if self.replaced else found

    def _against_none(self, outputs: FloatArray, sigma: float) -> FloatArray:
        losses = (outputs @ self.columns.T - np.sum(self.columns**2, axis=1) / 2.0) / sigma**2
        q = np.asarray(self.sampling_prob)
        if np.all(q == 1.0):
            return np.asarray(losses.sum(axis=1))
        return np.asarray(np.logaddexp(np.log1p(-q), np.log(q) + losses).sum(axis=1))


@dataclasses.dataclass(frozen=True)
class Epochs(Canary):
    """One uniformly random step per epoch, sampled anew, with independent noise at every step.

    Args:
        bins: number of steps of an epoch.
        gradients: of an example in each step that it joins, shape (n,); the last epoch may be incomplete.
        norms: column norms of C, which is diagonal, shape (n,).
    """

    bins: int
    gradients: FloatArray
    norms: FloatArray

    @classmethod
    def of(cls, strategy: Strategy, bins: int, gradients: FloatArray) -> "Epochs":
        """The canary for a strategy with independent noise.

        Raises:
            UnsupportedCombinationError: for correlated noise, which no theorem covers.
        """
        if strategy.bands != 1:
            raise UnsupportedCombinationError(
                f"{strategy!r} correlates the noise of steps, and every epoch has an allocation of its own",
                supported="strategies whose noise is independent from step to step",
            )
        return cls(bins, gradients, strategy.column_norms())

    def draw(self, runs: int, generator: np.random.Generator, *, present: bool) -> FloatArray:
        """Sample gradients, shape (runs, n)."""
        steps = np.arange(self.gradients.size)
        epochs = -(-steps.size // self.bins)
        joined = (
            generator.integers(self.bins, size=(runs, epochs))[:, steps // self.bins] == steps % self.bins
        )
        return np.asarray(joined * self.gradients * float(present))

    def log_ratio(self, outputs: FloatArray, sigma: float) -> FloatArray:
        """Log-likelihood ratio of outputs = C gradients + sigma Z, shape (m, n)."""
        images = self.norms * self.gradients
        losses = (outputs * images - 0.5 * images**2) / sigma**2
        # Steps that were not executed released nothing: a canary that joins one of them has ratio 1.
        cut = -losses.shape[1] % self.bins
        padded = np.pad(losses, ((0, 0), (0, cut))).reshape(len(losses), -1, self.bins)
        each = scipy.special.logsumexp(padded, axis=2) - math.log(self.bins)
        return np.asarray(each.sum(axis=1))


def of_pattern(mechanism: Mechanism, *, all_starts: bool) -> Mixture:
    """A canary that participates as often and as close together as its participation pattern allows.

    Args:
        mechanism: the mechanism under test.
        all_starts: whether to mix uniformly over all starts of the pattern; if not, it uses the one with the
            largest sum.
    """
    strategy, pattern, n = mechanism.strategy, mechanism.pattern, mechanism.steps
    starts = pattern.min_sep
    if not pattern.evenly_spaced:
        starts = n - (pattern.max_participations - 1) * pattern.min_sep
    if not all_starts:
        # Any start gives a valid test, and the first one is usually the worst.
        starts = min(starts, max(1, _MOST_ENTRIES // n))
    gradients = np.zeros((starts, n))
    for start, row in enumerate(gradients):
        row[start :: pattern.min_sep][: pattern.max_participations] = 1.0
    gradients *= mechanism.participation.examples  # of a user, all in the same batches
    images = strategy.matmul(gradients.T).T
    if all_starts:
        return Mixture(gradients, images, replaced=False)
    worst = int(np.argmax(np.sum(images**2, axis=1)))
    replaced = mechanism.adjacency is Adjacency.REPLACE_ONE
    return Mixture(gradients[worst : worst + 1], images[worst : worst + 1], replaced)


def group_score(
    strategy: Strategy, outputs: FloatArray, sigma: float, prob: float, cycle: int, weights: FloatArray
) -> FloatArray:
    """Log-likelihood ratios if every step of a group is joined with one probability.

    The group is unknown and uniformly distributed.

    Args:
        strategy: C of the steps that were executed.
        outputs: C applied to what was released along the canary, shape (m, n).
        sigma: > 0.
        prob: probability of joining a step, in (0, 1].
        cycle: number of groups that alternate; 1 if every step may be joined.
        weights: of the canary's gradient in each step, shape (n,).

    Raises:
        UnsupportedCombinationError: if steps of one group share noise.
    """
    bands = strategy.bands
    if bands is None or bands > cycle:
        raise UnsupportedCombinationError(
            f"C has {'no' if bands is None else bands} bands and one example's steps may be {cycle} apart",
            supported=f"strategies with at most {cycle} bands",
        )
    n = strategy.n
    ratios = np.zeros((min(cycle, n), len(outputs)))
    for group in range(len(ratios)):
        steps = np.arange(group, n, cycle)
        for start in range(0, steps.size, _STEPS_AT_ONCE):
            part = steps[start : start + _STEPS_AT_ONCE]
            gradients = np.zeros((n, part.size))
            gradients[part, np.arange(part.size)] = weights[part]
            reached = slice(part[0], part[-1] + bands)  # elsewhere these columns of C are 0
            law = Independent(part, prob, strategy.matmul(gradients).T[:, reached])
            ratios[group] += law.log_ratio(outputs[:, reached], sigma)
    # Groups without an executed step released nothing: their ratio is 1.
    logs = scipy.special.logsumexp(ratios, axis=0)
    if cycle > n:
        logs = np.logaddexp(logs, math.log(cycle - n))
    return np.asarray(logs - math.log(cycle))
