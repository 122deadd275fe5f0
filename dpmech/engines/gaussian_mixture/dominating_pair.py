r"""Balls-in-Bins: the dominating pair of a strategy, as the Gram matrix of its bin means.

Each example is assigned once, uniformly, to one of b bins and takes part in that bin's step of every epoch.
With m_i = sum_j C[:, i + j b] the pair P = (1/b) sum_i N(m_i, sigma^2 I) and Q = N(0, sigma^2 I) dominates in
both directions, also for adaptively chosen gradients, for C >= 0 (balls-in-bins paper, Lemma 3.2). Strategies
with negative entries are rejected: no proof covers them.

Everything depends on K = M M^T / sigma^2, of shape (b, b). For a Toeplitz C the bin means are shifts of one
vector, the first column folded over the epochs, and K is computed from its b correlations; no array of size b
x n is formed.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy

from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.gram import BinGram, CirculantGram, FactorGram
from dpmech.exceptions import DpmechError, UnsupportedCombinationError
from dpmech.mechanism import Strategy
from dpmech.numerics import (
    UNIT,
    FloatArray,
    convolution_rounding,
    cumulative_sum,
    root_up,
    spend,
    sum_rounding,
    windowed_sums,
)

# Above this many bins a dense K and its factor would not fit in memory together.
_DENSE_BINS = 6000
# From this many bins on, a dominating circulant K is worth its excess: a draw costs O(b log b).
_CIRCULANT_BINS = 1536
# Limit on negative values of its spectrum, relative to its largest entry; they are raised to 0.
_LIFT = 1e-3
# Relative: bins with norms this close count as equal, all with the largest norm.
ALIKE = 1e-14


def bin_gram(strategy: Strategy, bins: int) -> BinGram:
    """The Gram matrix of the bin means at sigma 1.

    Args:
        strategy: C >= 0 over n steps.
        bins: b, in [1, n]; the last epoch may be cut short.

    Returns:
        A BinGram of `bins` bins; divide by sigma^2 with `scaled`. Every entry is raised by the largest
        rounding error, including that of `scaled`, and by the error of the columns of C; delta of a Gram
        matrix that is nowhere smaller is an upper bound (Kahane's inequality, see the proof in the
        documentation).

    Raises:
        UnsupportedCombinationError: if C has negative entries; for more than 6000 bins if C is not Toeplitz.
    """
    check_nonnegative(strategy)
    above = 1.0 + _rounding(strategy, bins)
    if strategy.bands == 1:
        # Every bin gets the largest entry, so that no guarantee depends on the tolerance for equality.
        weights = by_bin(strategy.column_norms() ** 2, bins)
        if np.all(np.abs(weights - weights[0]) <= ALIKE * weights[0]):
            first = np.zeros(bins)
            first[0] = weights.max() * above
            return CirculantGram(first + _hidden(strategy, bins) * first[0])
    coefs = strategy.toeplitz_coefs
    if coefs is not None and bins > _DENSE_BINS:
        return _structured(folded(coefs, bins), bins, _hidden(strategy, bins)).scaled(above)
    if bins > _DENSE_BINS:
        raise UnsupportedCombinationError(
            f"no Gram matrix of {bins} bins for {strategy!r}",
            supported=f"Toeplitz strategies with any number of bins, others with at most {_DENSE_BINS}",
        )
    gram = _toeplitz_gram(folded(coefs, bins), bins) if coefs is not None else _folded_gram(strategy, bins)
    return DenseGram(above * (gram + _hidden(strategy, bins) * float(np.diag(gram).max())))


def sampling_gram(strategy: Strategy, bins: int) -> BinGram:
    """A Gram matrix for upper bounds on delta: that of `bin_gram`, or a circulant one above it.

    For many bins of a Toeplitz strategy, draws with the one of `ring_profile` are cheaper. Its delta is
    higher by the effect of the ends of the run, which is small if n is many times b; in one epoch or two, and
    if the last epoch is cut short, delta may be several times higher. If that profile is not a Gram matrix,
    its diagonal is raised.

    Args:
        strategy: C >= 0 over n steps.
        bins: b, in [1, n]; the last epoch may be cut short.

    Raises:
        UnsupportedCombinationError: see `bin_gram`.
    """
    if bins < _CIRCULANT_BINS or strategy.toeplitz_coefs is None:
        return bin_gram(strategy, bins)
    distance = np.arange(bins)
    row = ring_profile(strategy, bins)[np.minimum(distance, bins - distance)]
    spectrum = scipy.fft.rfft(row).real
    # The transform has an error of a few roundings of the sum of the row.
    lift = max(0.0, -float(spectrum.min())) + 64.0 * math.log2(bins) * UNIT * float(row.sum())
    if lift > _LIFT * row[0]:
        return bin_gram(strategy, bins)
    row[0] += lift
    return CirculantGram(row)


def lower_gram(strategy: Strategy, bins: int) -> BinGram | None:
    """A Gram matrix that is nowhere above that of the bins, for lower bounds; None if it is too costly.

    Args:
        strategy: C >= 0 over n steps.
        bins: b, in [1, n]; the last epoch may be cut short.
    """
    below, coefs = 1.0 - _rounding(strategy, bins), strategy.toeplitz_coefs
    if bins >= _CIRCULANT_BINS:
        return None
    if coefs is not None:
        return DenseGram(below * _toeplitz_gram(_lowered_mean(strategy, coefs, bins), bins))
    try:
        return DenseGram(_lowered_gram(strategy, bins))
    except DpmechError:
        # Lowering may not leave a Gram matrix if bins are almost identical.
        return None


def lower_profiles(strategy: Strategy, bins: int, most: int, dropped: Sequence[int]) -> FloatArray:
    """Smallest Gram entry of the first bins at each distance |i - l| < most, at sigma 1, rounded down.

    The last bins of a run have smaller entries than the others, as no step follows them.

    Args:
        strategy: C >= 0 over n steps.
        bins: b, in [1, n]; the last epoch may be cut short.
        most: in [1, b].
        dropped: how many of the last bins are left out; each in [0, b - 1].

    Returns:
        Shape (len(dropped), most), >= 0; 0 where no bins have this distance.
    """
    check_nonnegative(strategy)
    coefs, n = strategy.toeplitz_coefs, strategy.n
    found = np.zeros((len(dropped), most))
    if coefs is not None:
        # Entries decrease along a diagonal, so that the last two bins have the smallest.
        mean = _lowered_mean(strategy, coefs, bins)
        spend(2e-8 * n * most, 64.0 * n, what=f"{most} entries of the Gram matrix")
        for d in range(most):
            diagonal = cumulative_sum(mean[: n - d] * mean[d:])
            for row, left in enumerate(dropped):
                if left + d < bins:
                    found[row, d] = diagonal[n - bins + left]
        return (1.0 - _rounding(strategy, bins)) * found
    gram = _lowered_gram(strategy, bins)
    for row, left in enumerate(dropped):
        for d in range(min(most, bins - left)):
            found[row, d] = np.diagonal(gram, d)[: bins - left - d].min()
    return found


def _lowered_mean(strategy: Strategy, coefs: FloatArray, bins: int) -> FloatArray:
    """Bin mean 0, nowhere above the exact one: it is >= 0, with an entrywise error relative to its norm."""
    mean = folded(coefs, bins)
    error = 1.01 * strategy.error * math.sqrt(_epochs(strategy, bins)) * float(np.linalg.norm(mean))
    return np.maximum(mean - error, 0.0)


def _lowered_gram(strategy: Strategy, bins: int) -> FloatArray:
    """Entries that are nowhere above the exact ones, and >= 0; they need not be those of a Gram matrix."""
    gram = _folded_gram(strategy, bins)
    hidden = _hidden(strategy, bins) * float(np.diag(gram).max())
    return np.maximum((1.0 - _rounding(strategy, bins)) * gram - hidden, 0.0)


def check_nonnegative(strategy: Strategy) -> None:
    """Raise an error for a strategy with negative entries."""
    if not strategy.nonnegative:
        raise UnsupportedCombinationError(
            f"the dominating pair of Balls-in-Bins is proven for C >= 0, but {strategy!r} has negative "
            "entries",
            supported="strategies with non-negative entries; the others without amplification by sampling",
        )


def by_bin(steps: FloatArray, bins: int) -> FloatArray:
    """Sums over the steps of each bin, shape (bins,), of values of shape (n,)."""
    found: FloatArray = np.pad(steps, (0, -steps.size % bins)).reshape(-1, bins).sum(axis=0)
    return found


def _epochs(strategy: Strategy, bins: int) -> int:
    """Largest number of steps of a bin."""
    return -(-strategy.n // bins)


def folded(coefs: FloatArray, bins: int) -> FloatArray:
    """Bin mean 0 of a Toeplitz C, shape (n,): f_t = sum_j c_(t - j b); bin mean i is f shifted by i."""
    return windowed_sums(coefs[::-1], bins, coefs.size)[::-1]


def ring_profile(strategy: Strategy, bins: int) -> FloatArray:
    """Largest Gram entry at every cyclic distance d = min(|i - l|, b - |i - l|), at sigma 1, rounded up.

    Returns:
        Shape (b // 2 + 1,).
    """
    check_nonnegative(strategy)
    coefs = strategy.toeplitz_coefs
    if coefs is not None:
        # Entries decrease along a diagonal, so that row 0 contains the largest.
        mean = folded(coefs, bins)
        row = _correlations(mean)[:bins]
        return _raised(np.maximum(row, np.roll(row[::-1], 1))[: bins // 2 + 1], strategy, bins)
    gram = _folded_gram(strategy, bins)
    index = np.arange(bins)
    profile = np.array([gram[index, (index + d) % bins].max() for d in range(bins // 2 + 1)])
    return _raised(profile, strategy, bins)


def _raised(profile: FloatArray, strategy: Strategy, bins: int) -> FloatArray:
    """Raise positive entries of the profile above the exact Gram entries of the strategy."""
    slack = _hidden(strategy, bins) * float(profile.max())
    return np.where(profile > 0.0, (profile + slack) * (1.0 + _rounding(strategy, bins)), 0.0)


def _rounding(strategy: Strategy, bins: int) -> float:
    """Largest relative rounding error of a Gram entry, all of whose terms are >= 0.

    Toeplitz: a bin mean, twice, and the sum of products, each to `sum_rounding`. Else the entries of C^T C to
    `gram_rounding` (twice that for squared norms), each with additions of twice the number of epochs. Eight
    more: products, the mean of both halves, the error of the columns, this factor, and K / sigma^2.
    """
    sums = 3.0 * sum_rounding(strategy.n)
    if strategy.toeplitz_coefs is None or strategy.bands == 1:
        sums = max(sums, 2.0 * strategy.gram_rounding + 2.0 * _epochs(strategy, bins) * UNIT)
    return 1.01 * (sums + 8.0 * UNIT)


def _hidden(strategy: Strategy, bins: int) -> float:
    """Largest excess of the exact Gram entries over those in float64, relative to the largest one.

    Sums of k columns >= 0, each with an error of `error` times its norm, have errors of at most e = error
    sqrt(k) of their own norm, and products of two have at most 2 e + e^2 of the largest entry.
    """
    moved = 1.01 * strategy.error * math.sqrt(_epochs(strategy, bins))
    return moved * (2.0 + moved)


def _correlations(x: FloatArray) -> FloatArray:
    """sum_u x_u x_(u + d) for d = 0, ..., n - 1, for x >= 0, rounded up."""
    size = 1 << (2 * x.size - 1).bit_length()
    spectrum = scipy.fft.rfft(x, size)
    values = np.asarray(scipy.fft.irfft(np.abs(spectrum) ** 2, size)[: x.size], dtype=np.float64)
    raised: FloatArray = np.maximum(values, 0.0) + convolution_rounding(x, x)
    return raised


def _toeplitz_gram(mean: FloatArray, bins: int) -> FloatArray:
    """K[i, i + d] = sum over the common rows of both shifts of `mean`."""
    n = mean.size
    spend(
        4e-8 * n * bins + 1e-9 * bins**3, 48.0 * bins**2 + 160.0 * n, what=f"the Gram matrix of {bins} bins"
    )
    gram = np.zeros((bins, bins))
    for d in range(bins):
        sums = cumulative_sum(mean[: n - d] * mean[d:])
        entries = sums[n - bins :][::-1] if d == 0 else sums[n - bins : n - d][::-1]
        index = np.arange(bins - d)
        gram[index, index + d] = gram[index + d, index] = entries
    return gram


def _folded_gram(strategy: Strategy, bins: int) -> FloatArray:
    """K from the rows of C^T C, summed over the epochs in both indices."""
    n = strategy.n
    spend(4e-8 * n * n + 1e-9 * bins**3, 48.0 * bins**2 + 160.0 * n, what=f"the Gram matrix of {bins} bins")
    gram = np.zeros((bins, bins))
    for i, row in strategy.gram_rows():
        gram[i % bins] += by_bin(row, bins)
    return 0.5 * (gram + gram.T)


@dataclasses.dataclass(frozen=True, eq=False)
class _Shifts:
    """Products with the bin means M[i, t] = mean[t - i] by FFT; picklable, for process pools.

    Args:
        mean: bin mean 0, shape (n,).
        bins: number of shifts.
        common: an additional coordinate, the same in all bin means; it raises every Gram entry by its square.
        transposed: M^T v instead of M x.
    """

    mean: FloatArray
    bins: int
    common: float
    transposed: bool

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Map rows of shape (m, n + 1) to (m, bins), or (m, bins) to (m, n + 1) if transposed."""
        n = self.mean.size
        size = scipy.fft.next_fast_len(n + self.bins, real=True)
        spectrum = scipy.fft.rfft(self.mean, size)
        kernel = spectrum if self.transposed else np.conj(spectrum)
        given = rows if self.transposed else rows[:, :n]
        products = np.asarray(
            scipy.fft.irfft(scipy.fft.rfft(given, size, axis=1) * kernel, size, axis=1), dtype=np.float64
        )
        if self.transposed:
            return np.append(products[:, :n], self.common * rows.sum(axis=1, keepdims=True), axis=1)
        return products[:, : self.bins] + self.common * rows[:, n:]


def _structured(mean: FloatArray, bins: int, hidden: float) -> FactorGram:
    """K through its products, O(n log n) per draw."""
    diagonal = cumulative_sum(mean**2)[mean.size - bins :][::-1]
    raised = hidden * float(diagonal.max())
    common = root_up(raised)
    return FactorGram(
        bins,
        mean.size + 1,
        _Shifts(mean, bins, common, transposed=False),
        _Shifts(mean, bins, common, transposed=True),
        diagonal=diagonal + common * common,
    )
