r"""The mixtures that samples come from: parts with known densities, and the weight of a sample.

A proposal draws (y, i), y the statistics of `gram` and i a tuple of bins, from a mixture whose parts all
have known densities D_j against `Q(dy) kappa(i|y)` (see `tuples.py`). The weight of a sample is
`f(y) / sum_j alpha_j D_j`, with `f = (e^L - e^eps)_+` for REMOVE and `(1 - e^(eps + L))_+` for ADD; its
mean is the delta of that direction, exactly, whatever the alpha_j.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Collection, Iterator
from typing import Self

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.proposals.rounding import LogError, mean_rounding, payoff_rounding
from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, FloatArray, IntArray

__all__ = ["Proposal", "chosen_parts", "log_largest_weight", "row_batches"]

# Of a block, so many numbers are worked on at once: they stay in the cache, and their memory is used again.
BATCH_ENTRIES = 2**17

# A bound on any nodes; these make it close.
_NODES = np.concatenate([[0.0], np.geomspace(1e-9, 1e3, 4096)])


class Proposal(abc.ABC):
    """A mixture with known part densities; immutable and picklable.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level, at least 0.
        below: whether weights are rounded for a lower bound on delta, else for an upper one.
    """

    gram: BinGram
    eps: float
    below: bool

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """The parts, in the order of the weights."""

    @property
    @abc.abstractmethod
    def weights(self) -> FloatArray:
        """The probabilities alpha of the parts, shape (J,)."""

    @property
    @abc.abstractmethod
    def log_weight_bound(self) -> float:
        """Log of a proved upper bound on every weight."""

    @functools.cached_property
    def loss_rounding(self) -> LogError:
        """Of the losses, and how large one is at most, where no |y| is above `farthest`.

        Here of the mean of `e^(y_l - K_ll / 2)`: its exponents are rounded once, and K_ll is.
        """
        top = float(self.gram.diagonal.max())
        size = self.farthest + 0.5 * top
        each = 2.0 * UNIT * size + 0.5 * self.gram.entry_rounding * top
        return mean_rounding(self.gram.bins, size, each)

    @property
    @abc.abstractmethod
    def part_rounding(self) -> LogError:
        """Of the log densities, and how large one is at most, where no |y| is above `farthest`."""

    @property
    @abc.abstractmethod
    def farthest(self) -> float:
        """No |y| of a draw is above this: means, and more deviations than a float can be drawn off."""

    def rounded_to(self, *, below: bool) -> Self:
        """The same mixture with its payoffs rounded for lower bounds on delta, or for upper ones."""
        return dataclasses.replace(self, below=below)  # type: ignore[type-var]  # all are dataclasses

    @functools.cached_property
    def payoff_side(self) -> float:
        """What is added to computed losses, so that payoffs are on the safe side (`rounding`)."""
        return -self.loss_rounding.error if self.below else self.loss_rounding.error

    @functools.cached_property
    def weight_rounding(self) -> float:
        """How far log weights as computed are off the safe side at most; the theorem of `rounding`.

        1e-10 to 1e-5 mostly, which moves sigma by a tenth of that or less.

        Raises:
            NumericalError: if it is not finite.
        """
        parts, loss = self.part_rounding, self.loss_rounding
        mixed = mean_rounding(len(self.weights), parts.size + 50.0, parts.error)
        off = mixed.error + loss.error + payoff_rounding(self.eps, loss.size)
        # And of the proved bound on the weights: the same tables, and exponents of up to 1e3 times a power.
        off += parts.error + UNIT * (2e3 * (1.0 + parts.size) + 2.0 * abs(self.log_weight_bound))
        if not math.isfinite(off):
            raise NumericalError(f"no bound on what rounding does to draws from {self.gram.words}")
        return off

    def check_reach(self, values: FloatArray) -> None:
        """Raise NumericalError for draws beyond `farthest`, where the bounds on rounding do not hold."""
        if values.size and not max(float(values.max()), -float(values.min())) <= self.farthest:
            raise NumericalError(f"a draw beyond {self.farthest:.6g}, which no normal number can make")

    @property
    @abc.abstractmethod
    def bounding(self) -> Collection[str]:
        """Names of the parts whose probabilities make the weight bound small."""

    @abc.abstractmethod
    def reweighted(self, weights: FloatArray) -> Self:
        """The same parts with other probabilities."""

    @abc.abstractmethod
    def restricted(self, names: Collection[str]) -> Self:
        """The parts of these names alone, and those on which the weight bound rests, in proportion as before.

        Names of parts that it has not do not matter.
        """

    @abc.abstractmethod
    def at_level(self, eps: float) -> Self:
        """The same parts and probabilities, for another eps: other weights of the same draws."""

    @abc.abstractmethod
    def payoffs_at(self, log_payoffs: FloatArray, eps: float) -> FloatArray:
        """Log f of the same samples at another eps, not below this one, from those here; shape (m,)."""

    @abc.abstractmethod
    def block(self, seed: np.random.SeedSequence, count: int) -> tuple[FloatArray, FloatArray]:
        """`count` independent samples: log f, shape (count,), and log D, shape (count, J).

        Where f = 0, log f is -inf and log D is 0.
        """

    def level_weights(
        self, log_payoffs: FloatArray, log_densities: FloatArray, levels: FloatArray
    ) -> FloatArray:
        """Logs of the weights of the same draws at several eps, none below this one, shape (m, k)."""
        mixed = log_mixture(log_densities, self.weights)
        return np.stack([self.payoffs_at(log_payoffs, float(eps)) - mixed for eps in levels], axis=1)

    def log_weights(self, log_payoffs: FloatArray, log_densities: FloatArray) -> FloatArray:
        """Logs of the weights f / sum_j alpha_j D_j, shape (m,)."""
        return log_payoffs - log_mixture(log_densities, self.weights)


def log_mixture(log_densities: FloatArray, weights: FloatArray) -> FloatArray:
    """Log sum_j weights_j D_j, shape (m,), from finite log D, shape (m, J), and weights >= 0."""
    if not np.all(weights > 0.0):
        log_densities, weights = log_densities[:, weights > 0.0], weights[weights > 0.0]
    top = log_densities.max(axis=1)
    out: FloatArray = top + np.log(np.exp(log_densities - top[:, None]) @ weights)
    return out


def row_batches(values: FloatArray) -> Iterator[slice]:
    """The rows of an array of shape (m, b), in order, a few at a time."""
    step = max(1, BATCH_ENTRIES // values.shape[1])
    for start in range(0, len(values), step):
        yield slice(start, start + step)


def chosen_parts(weights: FloatArray, uniforms: FloatArray) -> IntArray:
    """The part that draws each sample, by inversion, shape (m,), from uniforms of that shape."""
    bounds = np.cumsum(weights)
    # uniform * sum may round up to the sum
    parts: IntArray = np.minimum(
        np.searchsorted(bounds, uniforms * bounds[-1], side="right"), bounds.size - 1
    )
    return parts


def log_largest_weight(slopes: FloatArray, logs: FloatArray, weights: FloatArray) -> float:
    """Log of an upper bound on `(1 - e^-x) / sum_j weights_j exp(logs_j + slopes_j x)` over x >= 0.

    Both numerator and denominator are non-decreasing, so over a cell [x, x'] the quotient is at most the
    numerator at x' over the denominator at x, and beyond the last node one over that.

    Args:
        slopes: >= 0, shape (J,).
        logs: shape (J,).
        weights: >= 0, shape (J,).
    """
    below = scipy.special.logsumexp(logs[:, None] + slopes[:, None] * _NODES, axis=0, b=weights[:, None])
    above = np.append(np.log(-np.expm1(-_NODES[1:])), 0.0)
    return float(np.max(above - below))
