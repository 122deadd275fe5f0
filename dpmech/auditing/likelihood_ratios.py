"""Log-likelihood ratios of what a mechanism releases along one example's direction, there or not."""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Strategy
from dpmech.numerics import FloatArray

__all__ = ["Algebra", "Epochs", "Independent", "Mixture", "SeveralExamples"]

_DENSE = 1024


class Algebra:
    """C and C^-1 applied to the rows of a matrix; through dense C where that is small, which is faster."""

    def __init__(self, strategy: Strategy) -> None:
        self.n = strategy.n
        self.strategy = strategy
        self.dense = strategy.to_dense() if strategy.n <= _DENSE else None

    def matmul(self, rows: FloatArray) -> FloatArray:
        """C row, for every row; shape (m, n)."""
        return self.strategy.matmul(rows.T).T if self.dense is None else rows @ self.dense.T

    def solve(self, rows: FloatArray) -> FloatArray:
        """C^-1 row, for every row; shape (m, n)."""
        if self.dense is None:
            return self.strategy.solve(rows.T).T
        return np.asarray(scipy.linalg.solve_triangular(self.dense, rows.T, lower=True).T)


@dataclasses.dataclass(frozen=True)
class Mixture:
    """One of several gradient sequences, each as likely: a fixed example is a mixture of one.

    Args:
        gradients: shape (b, n).
        images: C applied to each, shape (b, n).
        replaced: whether the other world has the opposite gradients, and not none.
    """

    gradients: FloatArray
    images: FloatArray
    replaced: bool

    def draw(self, runs: int, generator: np.random.Generator, *, present: bool) -> FloatArray:
        """Gradients of that many runs, shape (runs, n)."""
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
class SeveralExamples:
    """A user whose examples, all with one gradient, join steps independently; their columns are orthogonal.

    Args:
        steps: which, shape (s,).
        sampling_prob: q in (0, 1), of each example.
        examples: m >= 1.
        columns: of C, for these steps, shape (s, n).
    """

    steps: npt.NDArray[np.intp]
    sampling_prob: float
    examples: int
    columns: FloatArray

    def draw(self, runs: int, generator: np.random.Generator, *, present: bool) -> FloatArray:
        """Gradients of that many runs, shape (runs, n)."""
        gradients = np.zeros((runs, self.columns.shape[1]))
        if present:
            shape = (runs, len(self.steps))
            gradients[:, self.steps] = generator.binomial(self.examples, self.sampling_prob, shape)
        return gradients

    def log_ratio(self, outputs: FloatArray, sigma: float) -> FloatArray:
        """As for a mixture."""
        inner, energies = outputs @ self.columns.T, np.sum(self.columns**2, axis=1)
        total = np.full(inner.shape, -np.inf)
        for count in range(self.examples + 1):
            weight = scipy.stats.binom.logpmf(count, self.examples, self.sampling_prob)
            total = np.logaddexp(total, weight + count * (inner - 0.5 * count * energies) / sigma**2)
        return np.asarray(total.sum(axis=1))


@dataclasses.dataclass(frozen=True)
class Independent:
    """Steps joined independently with one probability, whose columns of C are orthogonal.

    Args:
        steps: which, shape (s,).
        sampling_prob: q in (0, 1].
        columns: their columns of C, shape (s, n).
    """

    steps: npt.NDArray[np.intp]
    sampling_prob: float
    columns: FloatArray

    def draw(self, runs: int, generator: np.random.Generator, *, present: bool) -> FloatArray:
        """Gradients of that many runs, shape (runs, n)."""
        gradients = np.zeros((runs, self.columns.shape[1]))
        if present:
            joined = generator.random((runs, len(self.steps))) < self.sampling_prob
            gradients[:, self.steps] = joined
        return gradients

    def log_ratio(self, outputs: FloatArray, sigma: float) -> FloatArray:
        """As for a mixture."""
        losses = (outputs @ self.columns.T - np.sum(self.columns**2, axis=1) / 2.0) / sigma**2
        q = self.sampling_prob
        if q == 1.0:
            return np.asarray(losses.sum(axis=1))
        return np.asarray(np.logaddexp(math.log1p(-q), math.log(q) + losses).sum(axis=1))


@dataclasses.dataclass(frozen=True)
class Epochs:
    """One step of every epoch, each as likely and drawn anew, with noise that is independent at every step.

    Args:
        bins: steps of an epoch.
        gradients: of an example in each step that it joins, shape (n,); the last epoch may be cut short.
        norms: of the columns of C, which is diagonal, shape (n,).
    """

    bins: int
    gradients: FloatArray
    norms: FloatArray

    @classmethod
    def of(cls, strategy: Strategy, bins: int, gradients: FloatArray) -> "Epochs":
        """For a strategy that correlates no noise.

        Raises:
            UnsupportedCombinationError: for another one: no theorem covers it.
        """
        if strategy.bands != 1:
            raise UnsupportedCombinationError(
                f"{strategy!r} correlates the noise of steps, and every epoch has an allocation of its own",
                supported="Identity and Diagonal under BallsInBins(bins, fresh=True)",
            )
        return cls(bins, gradients, strategy.column_norms())

    def draw(self, runs: int, generator: np.random.Generator, *, present: bool) -> FloatArray:
        """Gradients of that many runs, shape (runs, n)."""
        steps = np.arange(self.gradients.size)
        epochs = -(-steps.size // self.bins)
        joined = (
            generator.integers(self.bins, size=(runs, epochs))[:, steps // self.bins] == steps % self.bins
        )
        return np.asarray(joined * self.gradients * float(present))

    def log_ratio(self, outputs: FloatArray, sigma: float) -> FloatArray:
        """As for a mixture."""
        images = self.norms * self.gradients
        losses = (outputs * images - 0.5 * images**2) / sigma**2
        # Who joins in a step that was not executed released nothing: the ratio is 1.
        cut = -losses.shape[1] % self.bins
        padded = np.pad(losses, ((0, 0), (0, cut))).reshape(len(losses), -1, self.bins)
        each = scipy.special.logsumexp(padded, axis=2) - math.log(self.bins)
        return np.asarray(each.sum(axis=1))
