r"""Proposals of importance sampling: mixtures with known densities, weights, and their rounding errors.

A proposal draws (y, i), y the statistics of `gram` and i a tuple of bins, from a mixture whose parts all
have known densities D_j against `Q(dy) kappa(i|y)` (see `tuples`). The weight of a sample is
`f(y) / sum_j alpha_j D_j`, with `f = (e^L - e^eps)_+` for REMOVE and `(1 - e^(eps + L))_+` for ADD; its
mean is the delta of that direction, exactly, whatever the alpha_j.

The rounding error of such a weight has a proved bound, from the sizes of the numbers in it. The *draw* is
taken as given: floats y, a tuple, all with exactly the stated law of the mixture. That is assumed, and not
part of the bound. Normal numbers are floats; a choice among c (a part, a bin, a tuple, a cell of a site)
inverts a uniform number on a grid of 2^-53 against a rounded cumulative sum, whose law differs from the
stated one by at most 4 c 2^-53 in total variation, for the weights in float64: each end of a choice's
interval has an error of one rounding of the sum, one of its division by the total and one of the grid, and
the total has c roundings. The choice of who joins a step (`ChainGram.patterns`) adds one grid spacing and the
rounding of a probability for each of the n steps. Within a cell the normal quantile is rounded. None of this
is counted, neither here nor in beta.

The bound covers what is computed from them, the loss L(y) and the log densities log D_j(y), against the same
functions in exact arithmetic. u = 2^-53 is the unit roundoff, E = 8 u the relative error allowed for exp,
log, expm1 and log1p (`numerics.ELEMENTARY`).

**Lemma (mean of exponentials).** Let x_1, ..., x_b be computed with errors of at most h each, |x_k| <= M, and
let m = log((1/b) sum_k e^x_k) be computed as `top + log(mean(exp(x - top)))`. The error of the result is at
most h + 1.05 (u (2 log b + b + 2 M + 8) + E (1 + log b)).

*Proof.* Errors of the x_k change m by at most h, as m is 1-Lipschitz in the sup norm. A difference x_k - top
has a relative error of u, which multiplies its term by e^(+-u |x_k - top|). With p_k the share of a term in
the sum, sum_k p_k (top - x_k) <= log b: it is top - m - log b plus the entropy of p, and top <= m + log b. So
the sum changes by 1.01 u log b at most, except for terms that underflow (b e^-745 of it). The exponential
adds E, a sum of b positive terms in any order (b - 1) u, the division u. The mean lies in [1 / b, 1], so the
error of its logarithm is E log b, and that of the last addition u (M + log b). The factor 1.05 covers
products of these errors, all below 1e-3. QED

**Losses and payoffs.** If the error of every loss is at most l, then (e^L - e^eps)_+ <= e^l (e^(L' + l) -
e^eps)_+ e^-l for the computed L': a payoff evaluated at L' + l is not below the exact one, and at L' - l not
above it (for ADD with the signs exchanged). So the relative error of a difference close to zero never enters:
`Proposal.payoff_side` shifts the loss by l to the side that a bound needs, and only a relative error of the
computed payoff remains.

**Densities.** All D_j are e^(linear) or means of such terms. An error of at most a factor e^(+-r) in every
part gives at most the same factor in the mixture. `Proposal.weight_rounding` is the total r of all parts, of
the payoff, the mixture and the proved weight bound; the tests allow for it.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Collection, Iterator
from typing import NamedTuple, Self

import numpy as np
import scipy

from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, IntArray

# No normal number that can be drawn in float64 is farther from 0: P(|z| > 40) < 1e-349.
farthest_normal = 40.0


class LogError(NamedTuple):
    """Error and size of a computed log density.

    Attributes:
        error: largest absolute error.
        size: largest absolute value.
    """

    error: float
    size: float

    def plus(self, error: float, size: float) -> "LogError":
        """After adding a number of that error and size; the addition rounds, too."""
        return LogError(self.error + error + UNIT * (self.size + size), self.size + size)

    def times(self, factor: float) -> "LogError":
        """After multiplication by a float."""
        size = abs(factor) * self.size
        return LogError(abs(factor) * self.error + UNIT * size, size)


def mean_rounding(count: int, size: float, each: float) -> LogError:
    """Log mean exp of `count` exponents of at most that size, each with error of at most `each`: the lemma.

    It covers log sum exp, too: log(count) is included in the size.
    """
    logs = math.log(count)
    own = UNIT * (2.0 * logs + count + 2.0 * size + 8.0) + ELEMENTARY * (1.0 + logs)
    return LogError(each + 1.05 * own, size + logs)


def sum_product_rounding(terms: int, weight: float, size: float) -> float:
    """Error of an inner product in any order.

    Args:
        terms: number of terms.
        weight: sum of the absolute values of one factor.
        size: largest absolute value of the other.
    """
    return 1.01 * UNIT * (terms + 2.0) * weight * size


def payoff_rounding(eps: float, largest_loss: float) -> float:
    """Relative error of a payoff (e^L - e^eps)_+ or (1 - e^(eps + L))_+, from the float L.

    L -+ eps has a relative error of one rounding, so that the exponential minus 1 has one of E + 2 u; its
    logarithm, which is at least the log of the smallest distance of two floats (-45 for eps >= 1e-4) and has
    a relative error of E, and two additions of numbers of size L and eps follow.
    """
    return 1.05 * (ELEMENTARY * 50.0 + UNIT * (4.0 * (eps + largest_loss) + 100.0))


# Number of entries of a block that are processed at once: they stay in the cache, and memory is reused.
BATCH_ENTRIES = 2**17

# Any nodes give a valid bound; these make it tight.
_NODES = np.concatenate([[0.0], np.geomspace(1e-9, 1e3, 4096)])


class Proposal(abc.ABC):
    """A mixture with known part densities; immutable and picklable.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level, at least 0.
        alphas: probabilities of the parts, in the order of `names`, shape (J,).
        below: whether weights are rounded for a lower bound on delta; else for an upper one.
    """

    gram: BinGram
    eps: float
    alphas: FloatArray
    below: bool

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the parts."""

    @property
    def weights(self) -> FloatArray:
        """Probabilities alpha of the parts, shape (J,)."""
        return self.alphas

    @property
    @abc.abstractmethod
    def log_weight_bound(self) -> float:
        """Log of a proved upper bound on every weight."""

    @functools.cached_property
    def loss_rounding(self) -> LogError:
        """Error and size of the losses if no |y| exceeds `farthest`.

        Here for the mean of `e^(y_l - K_ll / 2)`: its exponents are rounded once, and K_ll is.
        """
        top = float(self.gram.diagonal.max())
        size = self.farthest + 0.5 * top
        each = 2.0 * UNIT * size + 0.5 * self.gram.entry_rounding * top
        return mean_rounding(self.gram.bins, size, each)

    @property
    @abc.abstractmethod
    def part_rounding(self) -> LogError:
        """Error and size of the log densities if no |y| exceeds `farthest`."""

    @property
    @abc.abstractmethod
    def farthest(self) -> float:
        """Bound on |y| of all draws: the means plus the largest deviation of a float64 normal."""

    def rounded_to(self, *, below: bool) -> Self:
        """The same mixture with payoffs rounded for lower bounds on delta, or for upper ones."""
        return dataclasses.replace(self, below=below)  # type: ignore[type-var]  # all are dataclasses

    @functools.cached_property
    def payoff_side(self) -> float:
        """Shift of computed losses that puts payoffs on the safe side (see the module)."""
        return -self.loss_rounding.error if self.below else self.loss_rounding.error

    @functools.cached_property
    def weight_rounding(self) -> float:
        """Largest error of computed log weights on the unsafe side; the theorem of the module.

        Mostly 1e-10 to 1e-5, which changes sigma by a tenth of that or less.

        Raises:
            NumericalError: if it is not finite.
        """
        parts, loss = self.part_rounding, self.loss_rounding
        mixed = mean_rounding(len(self.weights), parts.size + 50.0, parts.error)
        off = mixed.error + loss.error + payoff_rounding(self.eps, loss.size)
        # Plus that of the proved weight bound: the same tables, and exponents of up to 1e3 times a power.
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
        """Names of the parts whose probabilities reduce the weight bound."""

    def reweighted(self, weights: FloatArray) -> Self:
        """The same parts with other probabilities."""
        return dataclasses.replace(self, alphas=weights)  # type: ignore[type-var]  # as above

    @abc.abstractmethod
    def restricted(self, names: Collection[str]) -> Self:
        """Only the parts of these names and those that give the weight bound, in the same proportions.

        Unknown names are ignored.
        """

    def at_level(self, eps: float) -> Self:
        """The same parts and probabilities for another eps: other weights of the same draws."""
        return dataclasses.replace(self, eps=eps)  # type: ignore[type-var]  # as above

    @abc.abstractmethod
    def payoffs_at(self, log_payoffs: FloatArray, eps: float) -> FloatArray:
        """Log f of the same samples at another eps >= this one, from log f at this one; shape (m,)."""

    @abc.abstractmethod
    def block(self, seed: np.random.SeedSequence, count: int) -> tuple[FloatArray, FloatArray]:
        """`count` independent samples: log f, shape (count,), and log D, shape (count, J).

        Where f = 0, log f is -inf and log D is 0.
        """

    def level_weights(
        self, log_payoffs: FloatArray, log_densities: FloatArray, levels: FloatArray
    ) -> FloatArray:
        """Logs of the weights of the same draws at several eps >= this one, shape (m, k)."""
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
    """Yield slices of a few rows of an array of shape (m, b), in order."""
    step = max(1, BATCH_ENTRIES // values.shape[1])
    for start in range(0, len(values), step):
        yield slice(start, start + step)


def chosen_parts(weights: FloatArray, uniforms: FloatArray) -> IntArray:
    """The part of each sample, by inversion, shape (m,), from uniforms of that shape."""
    bounds = np.cumsum(weights)
    # uniform * sum may round up to the sum
    parts: IntArray = np.minimum(
        np.searchsorted(bounds, uniforms * bounds[-1], side="right"), bounds.size - 1
    )
    return parts


def log_largest_weight(slopes: FloatArray, logs: FloatArray, weights: FloatArray) -> float:
    """Log of an upper bound on `(1 - e^-x) / sum_j weights_j exp(logs_j + slopes_j x)` over x >= 0.

    Both numerator and denominator are non-decreasing, so over a cell [x, x'] the quotient is at most the
    numerator at x' over the denominator at x, and beyond the last node 1 over the denominator there.

    Args:
        slopes: >= 0, shape (J,).
        logs: shape (J,).
        weights: >= 0, shape (J,).
    """
    below = scipy.special.logsumexp(logs[:, None] + slopes[:, None] * _NODES, axis=0, b=weights[:, None])
    above = np.append(np.log(-np.expm1(-_NODES[1:])), 0.0)
    return float(np.max(above - below))
