r"""Forms that are smooth in the coefficients: sensitivity by cuts, sigma by the Gram matrix of bins.

**Sensitivity.** The squared sensitivity is a maximum over cuts, each smooth in the coefficients. A cut is a
set of columns with weights W >= 0; its value at C is `sum_uv W_uv |<C_u, C_v>|`. The squared sensitivity of
a participation set pi is the cut with W = 1 on pi x pi, if the inner products are >= 0, and at most that
otherwise. The row-wise bound of `dpmech.mechanism.sensitivities` is also a maximum over cuts: one for
every choice of a best set for each row of a best set.

**Sigma.** Its derivative in the Gram matrix of the bins is a quadratic form in the coefficients. Let r =
(1/b) sum_l exp(y_l - K_ll / 2), y ~ N(0, K), K = G / sigma^2. For smooth F the derivative of E F(r) along a
change of K is `(1/2) sum_ij dK_ij E[F''(r) g_i g_j]`, `g_i = exp(y_i - K_ii / 2) / b`, the formula from which
Gram monotonicity follows. For REMOVE F'' is a point mass at r = e^eps, for ADD at r = e^-eps, so that
with the responsibilities w_i = g_i / r and `W = E[w w^T | r at that point]` delta is unchanged if

    d log sigma = (1/2) <W, dG> / <W, G>.

At fixed W the squared sigma is therefore proportional to <W, G>, to first order, and exactly along scalings:
a quadratic form in C that replaces the squared sensitivity.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.engines import (
    AddPoint,
    AddProposal,
    BinGram,
    CollectiveParts,
    LiftedGroup,
    PointGroup,
    RemoveProposal,
    RoughSigma,
    Stage,
    bin_gram,
    check_nonnegative,
    draw_entropy,
    folded,
    log_mean_exp,
    pilot_size,
    stage_seed,
)
from dpmech.exceptions import NumericalError, UnsupportedCombinationError
from dpmech.mechanism import Pattern, Strategy
from dpmech.numerics import FloatArray, IntArray, best_separated_sum, cumulative_sum, windowed_sums


@dataclasses.dataclass(frozen=True, eq=False)
class CutValue:
    """The value of a cut and its gradient.

    Attributes:
        value: an upper bound on the squared norm that the cut represents.
        by_coefs: derivative with respect to the first column of T, shape (n,).
        by_scale: derivative with respect to the column scales, shape (n,); None without scales.
    """

    value: float
    by_coefs: FloatArray
    by_scale: FloatArray | None


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """Columns and the weights of their inner products.

    Attributes:
        columns: distinct steps, shape (u,).
        weights: W >= 0, shape (u, u).
    """

    columns: IntArray
    weights: FloatArray

    def at(self, coefs: FloatArray, scale: FloatArray | None) -> CutValue:
        """Value and gradient at C = LTT(coefs) diag(scale), in O(u^2 n)."""
        n = coefs.size
        chosen = self.columns
        rows = np.zeros((chosen.size, n))
        for row, column in zip(rows, chosen, strict=True):
            row[column:] = coefs[: n - column]
        factors = np.ones(chosen.size) if scale is None else scale[chosen]
        scaled = rows * factors[:, None]
        gram = scaled @ scaled.T
        signed = self.weights * np.where(gram >= 0.0, 1.0, -1.0)
        back = (signed + signed.T) @ scaled
        by_coefs = np.zeros(n)
        for row, column, factor in zip(back, chosen, factors, strict=True):
            by_coefs[: n - column] += factor * row[column:]
        by_scale = None
        if scale is not None:
            by_scale = np.zeros(n)
            by_scale[chosen] = np.sum(back * rows, axis=1)
        return CutValue(float(np.sum(signed * gram)), by_coefs, by_scale)


def leftmost_cut(n: int, pattern: Pattern) -> Cut:
    """The columns 0, b, 2 b, ..."""
    return _spaced(0, n, pattern)


def _spaced(start: int, n: int, pattern: Pattern) -> Cut:
    columns = np.arange(start, n, pattern.min_sep)[: pattern.max_participations]
    return Cut(columns, np.ones((columns.size, columns.size)))


def column_squares(coefs: FloatArray) -> FloatArray:
    """Squared column norms of LTT(coefs), shape (n,)."""
    return cumulative_sum(coefs**2)[::-1]


def worst_cut(strategy: Strategy, pattern: Pattern) -> Cut:
    """The cut that attains the certified row-wise bound of `sensitivity`, or the worst evenly spaced set.

    O(n^2) for a pattern that is not evenly spaced, like the bound.
    """
    n, b, k = strategy.n, pattern.min_sep, pattern.max_participations
    if pattern.evenly_spaced:
        totals = np.zeros(n)
        for m in range(k):
            entries = np.pad(np.abs(strategy.gram_diagonal(m * b)), (0, m * b)) * (2.0 if m else 1.0)
            totals += windowed_sums(entries, b, k - m)
        return _spaced(int(totals[:b].argmax()), n, pattern)
    rows = np.empty(n)
    for i, row in strategy.gram_rows():
        weights = _others(row, i, b)
        rows[i] = abs(row[i]) + best_separated_sum(weights, b, k - 1)
    outer = set(best_separated_set(rows, b, k))
    partners: dict[int, list[int]] = {}
    for i, row in strategy.gram_rows():
        if i in outer:
            partners[i] = [i, *best_separated_set(_others(row, i, b), b, k - 1)]
    columns = np.array(sorted({step for steps in partners.values() for step in steps}))
    place = {int(step): index for index, step in enumerate(columns)}
    weights = np.zeros((columns.size, columns.size))
    for i, steps in partners.items():
        weights[place[i], [place[step] for step in steps]] = 1.0
    return Cut(columns, weights)


def _others(row: FloatArray, i: int, b: int) -> FloatArray:
    weights = np.abs(row)
    weights[max(0, i - b + 1) : i + b] = 0.0
    return weights


def best_separated_set(weights: FloatArray, min_sep: int, count: int) -> list[int]:
    """The steps that attain `best_separated_sum`, without those of weight 0.

    Args:
        weights: non-negative, shape (n,).
        min_sep: b >= 1.
        count: k >= 0.
    """
    n = weights.size
    levels = min(count, -(-n // min_sep))
    if levels <= 0:
        return []
    # best[m][i]: largest sum of m + 1 steps among 0, ..., i
    tables: list[tuple[FloatArray, FloatArray]] = []
    candidate = weights.astype(np.float64)
    for level in range(levels):
        if level:
            candidate = weights.copy()
            candidate[min_sep:] += tables[-1][1][:-min_sep]
        tables.append((candidate, np.maximum.accumulate(candidate)))
    chosen: list[int] = []
    end = n
    for level in range(levels - 1, -1, -1):
        if end <= 0:
            break
        step = int(np.argmax(tables[level][0][:end]))
        if weights[step] > 0.0:
            chosen.append(step)
        end = step - min_sep + 1
    return chosen[::-1]


# The same random numbers for all strategies that are compared.
ENTROPY = draw_entropy(np.random.default_rng(20260101))
_SIZE = 4
# Share of the samples, those next to the boundary, that represent it.
_NEAR = 0.1


def responsibilities(rough: RoughSigma, eps: float) -> FloatArray:
    """V >= 0 of shape (m, b) with W = V^T V for the dominant direction; an estimate.

    Samples come from a balanced mixture of the Gaussian and collective proposals of the estimator, weighted
    to Q; those next to the boundary represent it.

    Args:
        rough: the Gram matrix at its sigma.
        eps: > 0.

    Raises:
        NumericalError: if no sample is near the boundary.
    """
    gram, level = rough.gram, -eps if rough.add else eps
    half = 0.5 * gram.diagonal
    parts = _falling(gram, eps) if rough.add else _rising(gram, eps)
    rng = np.random.default_rng(stage_seed(ENTROPY, Stage.RESPONSIBILITIES))
    draws = [draw for part in parts for draw in part.draws]
    each = -(-_SIZE * pilot_size(gram.bins) // len(draws))
    values = np.concatenate([draw(gram.sample(rng, each), rng) for draw in draws])
    losses = log_mean_exp(values - half)
    near = np.argsort(np.abs(losses - level))[: max(int(_NEAR * losses.size), 2)]
    values, losses = values[near], losses[near]
    densities = np.concatenate([part.log_densities(values, losses) for part in parts])
    logs = -scipy.special.logsumexp(densities, axis=0)
    if not np.all(np.isfinite(logs)):
        raise NumericalError("no sample came near the boundary of the privacy loss")
    # Within the window the density of the loss falls steeply: both sides of the boundary get equal weight.
    for side in (losses > level, losses <= level):
        if np.any(side):
            logs[side] -= scipy.special.logsumexp(logs[side])
    shares = scipy.special.softmax(values - half, axis=1)
    weights = np.exp(0.5 * (logs - scipy.special.logsumexp(logs)))
    return np.asarray(shares * weights[:, None], dtype=np.float64)


_Draw = Callable[[FloatArray, np.random.Generator], FloatArray]


@dataclasses.dataclass(frozen=True)
class _Part:
    """Proposals that share the work of their densities.

    Attributes:
        draws: each transforms samples of Q.
        log_densities: their log densities against Q at y with privacy loss L, shape (draws, m).
    """

    draws: tuple[_Draw, ...]
    log_densities: Callable[[FloatArray, FloatArray], FloatArray]


def _rising(gram: BinGram, eps: float) -> list[_Part]:
    """P itself, the design points, the collective tilts."""
    proposal = RemoveProposal.at(gram, eps)

    def nominal(values: FloatArray, rng: np.random.Generator) -> FloatArray:
        moved: FloatArray = values + gram.columns(rng.integers(gram.bins, size=len(values), dtype=np.int64))
        return moved

    groups = [_points(gram, group) for group in proposal.groups]
    itself = _Part((nominal,), lambda _values, losses: losses[None])
    return [itself, *groups, *_together(proposal.collective)]


def _falling(gram: BinGram, eps: float) -> list[_Part]:
    """The shifts along one direction, and the collective tilt."""
    proposal = AddProposal.at(gram, eps)
    shifts = [_shift(proposal.point, float(tilt)) for tilt in proposal.tilts]
    return [*shifts, *_together(proposal.collective)]


def _points(gram: BinGram, group: PointGroup | LiftedGroup) -> _Part:
    def moved(values: FloatArray, rng: np.random.Generator) -> FloatArray:
        out: FloatArray = values + group.shift(gram, rng.random(len(values)))
        return out

    return _Part((moved,), lambda values, _losses: group.log_density(values)[None])


def _shift(point: AddPoint, tilt: float) -> _Part:
    def log_density(values: FloatArray, _losses: FloatArray) -> FloatArray:
        return np.asarray(-tilt * (values @ point.direction) - 0.5 * tilt**2 * point.square)[None]

    return _Part((lambda values, _rng: values - tilt * point.image,), log_density)


def _together(collective: CollectiveParts | None) -> list[_Part]:
    if collective is None:
        return []
    known = collective

    def tilted(index: int) -> _Draw:
        return lambda values, rng: known.draw(np.full(len(values), index, dtype=np.int64), values, rng)

    draws = tuple(tilted(index) for index in range(len(known.names)))
    return [_Part(draws, lambda values, _losses: known.log_densities(values).T)]


@dataclasses.dataclass(frozen=True, eq=False)
class BinForm:
    """<W, G>, and for a Toeplitz C as a quadratic form in its coefficients, used in place of a cut.

    With f the coefficients folded over the epochs it is f^T Omega f, where Omega is Toeplitz, with the sums
    of the diagonals of W, except for its last b - 1 rows and columns: bins near the end of the last epoch
    have fewer rows. O(n log n + b^2), without forming G.

    Args:
        responsible: V, shape (m, b), with W = V^T V.
    """

    responsible: FloatArray

    @functools.cached_property
    def weights(self) -> FloatArray:
        """W, shape (b, b)."""
        return self.responsible.T @ self.responsible

    def value(self, strategy: Strategy) -> float:
        """<W, G> of a strategy.

        Raises:
            UnsupportedCombinationError: if it has negative entries.
        """
        if strategy.toeplitz_coefs is None:
            gram = bin_gram(strategy, self.responsible.shape[1])
            return float(np.vdot(self.responsible, gram.matmat(self.responsible.T).T))
        check_nonnegative(strategy)
        return self.at(strategy.toeplitz_coefs, None).value

    def at(self, coefs: FloatArray, scale: FloatArray | None) -> CutValue:
        """Value and gradient at C = LTT(coefs); `scale` must be None."""
        if scale is not None:
            raise UnsupportedCombinationError(
                "the form of the bins with column scales", supported="Toeplitz strategies"
            )
        bins = self.weights.shape[0]
        mean = folded(coefs, bins)
        image = self._toeplitz(mean)
        tail = mean[: -bins - 1 : -1]
        image[: -bins - 1 : -1] += self._correction @ tail
        by_mean = 2.0 * image
        return CutValue(float(mean @ image), windowed_sums(by_mean, bins, mean.size), None)

    @functools.cached_property
    def _diagonals(self) -> FloatArray:
        return np.array([np.trace(self.weights, d) for d in range(self.weights.shape[0])])

    def _toeplitz(self, x: FloatArray) -> FloatArray:
        size = scipy.fft.next_fast_len(x.size + self._diagonals.size, real=True)
        kernel = np.zeros(size)
        lags = np.arange(self._diagonals.size)
        kernel[lags] = kernel[-lags] = self._diagonals
        return np.asarray(
            scipy.fft.irfft(scipy.fft.rfft(kernel) * scipy.fft.rfft(x, size), size)[: x.size],
            dtype=np.float64,
        )

    @functools.cached_property
    def _correction(self) -> FloatArray:
        """The deviation of Omega from Toeplitz in its last b rows and columns, from the end, shape (b, b)."""
        partial = self.weights.copy()
        for p in range(1, partial.shape[0]):
            partial[p, 1:] += partial[p - 1, :-1]
        return partial - scipy.linalg.toeplitz(self._diagonals)
