r"""Proposals that follow a power of the likelihood ratio, and thus bound every REMOVE weight.

Write `a_l = exp(y_l - K_ll / 2)`, `r = mean_l a_l = dP/dQ` and `A_s = mean_l a_l^s`. Under Q the law with
density `A_s^q / E[A_s^q]` is a mixture of Gaussians, one for every tuple i of q bins:

    A_s^q = b^-q sum_i exp(s^2 sum_{u<v} K[i_u, i_v] + sum_u f[i_u]) dN(s K n_i, K)/dQ(y),

with `n_i` the counts of the tuple and `f_l = (s^2 - s) K_ll / 2`. There are too many tuples to enumerate, and
their interaction prevents drawing them sequentially. A star does instead: a centre c with probability
proportional to `e^f_c C_c^(q-1)`, then q - 1 other bins, independent given c, with probability proportional
to `exp(f_l + theta K_cl)`, where `theta = s^2 q / 2` and `C_c = mean_l exp(f_l + theta K_cl)`.

**Lemma.** The ratio w(i) of the exact tuple weight `b^-q exp(s^2 sum_{u<v} K + sum f)` to the star's
probability pi(i) is at most `B(s, q) = mean_l e^f_l C_l^(q-1)`; in particular `E_Q A_s^q <= B(s, q)`.

*Proof.* pi does not depend on the order of a tuple once averaged over which entry was the centre:
`pi(i) = b^-q B^-1 (1/q) sum_u exp(sum_v f[i_v] + theta sum_{v != u} K[i_u, i_v])`. The arithmetic mean over
u is at least the geometric one, whose exponent is `sum_v f[i_v] + (theta / q) sum_u sum_{v != u} K[i_u, i_v]
= sum f + s^2 sum_{u<v} K`. Hence `pi(i) >= b^-q B^-1 exp(s^2 sum_{u<v} K + sum f)`. The sum of w(i) pi(i)
over i is `E_Q A_s^q`. No sign of K and no constant diagonal is used. QED

The tuple is a second variable. With the kernel `kappa(i|y) = prod_u softmax_l(s (y_l - K_ll/2))[i_u]`
the star's joint density against `Q(dy) kappa(i|y)` is `A_s(y)^q / w(i)`; a sample y from any other
component is completed by a draw from kappa. Since kappa sums to 1, expectations of functions of y are
unchanged. For s >= 1 the power mean inequality gives `A_s >= r^s`, so the density is at least `r^(s q) /
B(s, q)`.

With q = 1 this is the scaled component, `(1/b) sum_l N((s) m_l, sigma^2 I)` for a constant diagonal.
"""

import dataclasses
import math
from typing import Self

import numpy as np
import scipy

from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.moments import ORDERS, log_moment_bound, log_tail_factor
from dpmech.engines.gaussian_mixture.proposal import LogError, mean_rounding, sum_product_rounding
from dpmech.engines.gaussian_mixture.tilted_normal import inverted
from dpmech.numerics import UNIT, FloatArray, IntArray

SCALES = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0)
SEARCH_ROWS = 64
TUPLE_SHARE = 0.8
LARGEST_FREE = 64


@dataclasses.dataclass(frozen=True)
class TupleProposal:
    """One star: scale s >= 1, order q >= 1, and its tables.

    Attributes:
        scale: s.
        order: q.
        log_bound: log B(s, q), the largest log w(i).
        centre_cdf: cumulative probabilities of the centre, shape (b,).
        offsets: f, shape (b,).
    """

    scale: float
    order: int
    log_bound: float
    centre_cdf: FloatArray
    offsets: FloatArray

    @property
    def power(self) -> float:
        """The exponent p = s q: the density is at least r^p / B."""
        return self.scale * self.order

    @property
    def slope(self) -> float:
        """Theta, the coupling to the centre."""
        return 0.5 * self.scale**2 * self.order

    def draw(self, gram: BinGram, uniforms: FloatArray) -> IntArray:
        """Tuples of the star by inversion, shape (m, q), from uniforms of shape (m, q)."""
        centres = np.minimum(np.searchsorted(self.centre_cdf, uniforms[:, 0], side="right"), gram.bins - 1)
        if self.order == 1:
            return centres[:, None]
        fields = self.slope * gram.columns(centres) + self.offsets
        np.exp(fields - fields.max(axis=1, keepdims=True), out=fields)
        return np.concatenate([centres[:, None], draw_rows(fields, uniforms[:, 1:])], axis=1)

    def shift(self, gram: BinGram, indices: IntArray) -> FloatArray:
        """S K n_i for tuples of shape (m, q), shape (m, b)."""
        return self.scale * gram.column_sums(indices)

    def log_density(
        self, gram: BinGram, _values: FloatArray, log_power_mean: FloatArray, indices: IntArray
    ) -> FloatArray:
        """Log of the joint density, from log A_s of shape (m,) and tuples of shape (m, q)."""
        return self.order * log_power_mean - self.log_ratios(gram, indices)

    def reach(self, gram: BinGram) -> float:
        """Largest distance of the means from 0."""
        return self.power * float(gram.diagonal.max())

    def rounding(self, gram: BinGram, loss: LogError) -> LogError:
        """Error of `log_density`, from the error of the loss and the sizes of its exponents.

        log A_s is s times the log of the largest term, with at most twice the error of the loss, plus the log
        of a mean of powers whose exponents have s times the error of the loss. The table B and the ratios
        w(i) consist of sums of at most q entries of K, times s^2 q.
        """
        top, logs = float(gram.diagonal.max()), math.log(gram.bins)
        power = mean_rounding(gram.bins, self.scale * loss.size, 3.0 * self.scale * loss.error)
        power = power.plus(0.0, self.scale * loss.size).times(self.order)
        largest = self.slope * top + float(np.abs(self.offsets).max())
        entry = gram.entry_rounding * largest + 4.0 * UNIT * largest
        means = mean_rounding(gram.bins, largest, entry).times(self.order * gram.row_factors)
        table = means.plus(entry, largest)
        table = mean_rounding(gram.bins, table.size, table.error).plus(0.0, logs)
        pairs = self.power**2 * top
        off = (gram.entry_rounding + (self.order + 8.0) * UNIT) * pairs
        off += self.scale**2 * self.order * gram.product_rounding(self.order, self.order)
        ratio = mean_rounding(self.order, pairs, off).plus(off, pairs)
        return power.plus(table.error + ratio.error, table.size + ratio.size)

    def log_ratios(self, gram: BinGram, indices: IntArray) -> FloatArray:
        """Log w(i) for tuples of shape (m, q): at most `log_bound`, shape (m,)."""
        if self.order == 1:
            return np.full(indices.shape[0], self.log_bound)
        others = gram.tuple_fields(indices) - gram.diagonal[indices]
        pairs = 0.5 * self.scale**2 * others.sum(axis=1)
        terms = self.slope * others
        top = terms.max(axis=1)
        centred: FloatArray = top + np.log(np.exp(terms - top[:, None]).mean(axis=1))
        ratios: FloatArray = self.log_bound + np.minimum(pairs - centred, 0.0)
        return ratios


@dataclasses.dataclass(frozen=True)
class FreeTuples:
    """Gaussians N(K v, K), `v = lift / b + n_i`, the tuple i of q bins drawn uniformly and independently.

    Where many bins rise together each does so by a different amount, and these means vary equally: without
    them a few large weights dominate the sum at small eps. They do not contribute to the weight bound.

    Attributes:
        order: q.
        lift: the total tilt of the uniform part.
        uniform_mean: K times the uniform vector, shape (b,).
    """

    order: int
    lift: float
    uniform_mean: FloatArray

    @classmethod
    def at(cls, gram: BinGram, eps: float) -> Self:
        """The part at which the mean of r is about e^eps, most of it from the tuples."""
        bins = gram.bins
        image = gram.matvec(np.full(bins, 1.0 / bins))
        gain = float(np.mean(gram.log_row_means(1.0, np.zeros(bins), _search_rows(bins))))
        order = int(min(max(TUPLE_SHARE * eps / gain, 1.0), LARGEST_FREE))
        return cls(order, max(0.0, eps - order * gain) / float(image.mean()), image)

    @property
    def scale(self) -> float:
        """Scale of the kernel that completes samples of other parts."""
        return 1.0

    def draw(self, gram: BinGram, uniforms: FloatArray) -> IntArray:
        """Tuples, shape (m, q), from uniforms of that shape."""
        return np.minimum((uniforms * gram.bins).astype(np.int64), gram.bins - 1)

    def shift(self, gram: BinGram, indices: IntArray) -> FloatArray:
        """K v for tuples of shape (m, q), shape (m, b)."""
        return gram.column_sums(indices) + self.lift * self.uniform_mean

    def reach(self, gram: BinGram) -> float:
        """Largest distance of the means from 0."""
        uniform = self.lift * (float(self.uniform_mean.max()) + self._uniform_rounding(gram))
        return self.order * float(gram.diagonal.max()) + uniform

    @staticmethod
    def _uniform_rounding(gram: BinGram) -> float:
        return gram.product_rounding(1.0, 1.0 / math.sqrt(gram.bins))

    def rounding(self, gram: BinGram, loss: LogError, farthest: float) -> LogError:
        """Error of `log_density` if no |y| exceeds `farthest`, from the error of the loss."""
        top, order, lift = float(gram.diagonal.max()), float(self.order), self.lift
        pairs = order**2 * top
        off = (gram.entry_rounding + (order + 8.0) * UNIT) * pairs
        off += order * gram.product_rounding(order, order)
        along = farthest + self.reach(gram)
        means = (order + lift) * self._uniform_rounding(gram) + (order + 8.0) * UNIT * along
        means += sum_product_rounding(gram.bins, 1.0, along)
        return loss.times(order).plus(off, pairs).plus(lift * means + 4.0 * UNIT * lift * along, lift * along)

    def log_density(
        self, gram: BinGram, values: FloatArray, losses: FloatArray, indices: IntArray
    ) -> FloatArray:
        """Log of the joint density, from y of shape (m, b), L of shape (m,) and tuples of shape (m, q)."""
        pairs = 0.5 * (gram.tuple_fields(indices) - gram.diagonal[indices]).sum(axis=1)
        along = values.mean(axis=1) - self.uniform_mean[indices].sum(axis=1)
        along -= 0.5 * self.lift * self.uniform_mean.mean()
        density: FloatArray = self.order * losses - pairs + self.lift * along
        return density


def _search_rows(bins: int) -> IntArray:
    return np.unique(np.linspace(0, bins - 1, min(bins, SEARCH_ROWS)).astype(np.int64))


def draw_rows(weights: FloatArray, uniforms: FloatArray) -> IntArray:
    """Draw indices by inversion from each row of `weights`, shape (m, b), in the shape of `uniforms`."""
    cumulative = np.cumsum(weights, axis=1)
    cumulative /= cumulative[:, -1:]
    return inverted(cumulative, np.broadcast_to(np.arange(len(weights))[:, None], uniforms.shape), uniforms)


def tuple_proposal(gram: BinGram, scale: float, order: int) -> TupleProposal:
    """The star of scale s >= 1 and order q >= 1, with its exact bound B(s, q)."""
    offsets = 0.5 * (scale**2 - scale) * gram.diagonal
    log_weights = offsets.copy()
    if order > 1:
        rows = np.arange(gram.bins)
        log_weights += (order - 1) * gram.log_row_means(0.5 * scale**2 * order, offsets, rows)
    total = float(scipy.special.logsumexp(log_weights))
    cdf = np.cumsum(np.exp(log_weights - total))
    return TupleProposal(scale, order, total - math.log(gram.bins), cdf / cdf[-1], offsets)


def best_tuple_proposal(gram: BinGram, eps: float) -> TupleProposal:
    """The star with the smallest weight bound at eps, over q >= 2 and s >= 1 on a grid.

    The search uses at most 64 rows of K, which affects only how tight the bound is; the tables of the result
    are exact.
    """
    rows = _search_rows(gram.bins)

    def height(scale: float, order: int) -> float:
        return log_moment_bound(gram, scale, order, rows) + log_tail_factor(scale * order, eps)

    best = (math.inf, 1.0, 2)
    misses = 0
    for order in ORDERS:
        value = height(1.0, order)
        misses = 0 if value < best[0] else misses + 1
        best = min(best, (value, 1.0, order))
        if misses > 4:
            break
    for scale in SCALES[1:]:
        value = height(scale, best[2])
        if value >= best[0]:
            break
        best = (value, scale, best[2])
    return tuple_proposal(gram, best[1], best[2])
