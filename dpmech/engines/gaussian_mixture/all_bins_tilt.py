r"""Proposals under which all bins move together by different amounts, for nearly independent bins.

There the best proposal is close to Q tilted by `exp(theta sum_l a_l)`, `a_l = exp(y_l - K_ll / 2)`. That law
is not Gaussian, and a Gaussian with a shifted mean differs by a factor that grows with b. Write `y = F x`, F
the lower Cholesky factor of K, x standard normal under Q. The bins are drawn sequentially. With
`m_l = (F x)_l - F_ll x_l`, known from the earlier bins, x_l has a tilted law of the table in `tilted_normal`:

    log density of x_l against N(0, 1), given the past = log s(x_l - u_l; m_l - K_ll / 2 + F_ll u_l)
                                                         + u_l x_l - u_l^2 / 2,

s the density of the table at that level. The constants u account for the future: to first order, the effect
of x_l on later bins.

**Density.** Each factor integrates to 1 over x_l whatever the past is, hence so does the product over l, and
its value at any y needs only `x = F^-1 y`: the products are exact densities relative to Q. For a diagonal K
they are product laws.

**With one large bin.** With bin i uniform, x_l of the bins within w of i keeps its normal law, shifted by
`peak F_il` for l <= i. Given i the factors of the window are replaced, and the mean over i is

    prod_l s_l  (1/b) sum_i exp(peak c_i - peak^2 q_i / 2 - sum_{l in window} log s_l),

`c_i = sum_l F_il x_l`, `q_i = sum_l F_il^2` over the window: a density again, in closed form.

These parts give no weight bound. The mixtures keep the bounds of their other parts, because an additional
density only lowers a weight.
"""

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import Self

import numpy as np

from dpmech.engines.gaussian_mixture.dense_gram import TriangularFactor
from dpmech.engines.gaussian_mixture.gram import BinGram, DiagonalFactor
from dpmech.engines.gaussian_mixture.points import log_mean_exp
from dpmech.engines.gaussian_mixture.proposal import LogError, farthest_normal, mean_rounding
from dpmech.engines.gaussian_mixture.tilted_normal import SiteSampler, SiteTilt, solved_strength
from dpmech.numerics import UNIT, FloatArray, IntArray

SHARES = (0.0, 0.03, 0.1, 0.2, 0.35, 0.55)
LEAST_INNOVATION = 0.3
# Below this, rounding errors in F^-1 y would affect the density.
SMALLEST_INNOVATION = 1e-4
FARTHEST = 3.0
WIDEST = 12
NEAR = 0.1
SEARCH_ROWS = 64
LEVEL_DEVIATIONS = 6.0
WIDEST_LEVELS = 1000.0  # in log a; beyond, the shift of later bins is not a small change
COLUMN_BLOCK = 32
LEAST_BINS = 3
# Losses this large come from one bin.
LARGEST_EPS = 50.0
# Whitened coordinates, and sums over the sites of a draw, above which its density is not used.
LARGEST_NORMAL, LARGEST_SITES = 200.0, 1e4


@dataclasses.dataclass(frozen=True)
class CollectivePart:
    """One part: a tilt of every bin and, if `peak` > 0, one bin with a larger tilt.

    Attributes:
        name: purpose of the part.
        tilt: the table.
        ahead: u, shape (b,).
        peak: the additional tilt of the one bin; 0 for none.
    """

    name: str
    tilt: SiteTilt
    ahead: FloatArray
    peak: float


@dataclasses.dataclass(frozen=True)
class CollectiveParts:
    """Parts with common whitened coordinates.

    Attributes:
        gram: the Gram matrix, with a Cholesky factor.
        parts: the parts.
        factor: F.
        band: `F[l, l - d]` for d = 0, ..., w, shape (w + 1, b); 0 where l < d.
    """

    gram: BinGram
    parts: tuple[CollectivePart, ...]
    factor: DiagonalFactor
    band: FloatArray

    @classmethod
    def rising(cls, gram: BinGram, eps: float, names: Collection[str] | None = None) -> Self | None:
        """Parts for {mean a >= e^eps}, or only those of the given names.

        None if bins are correlated, or a single bin is far likelier.
        """
        if names is not None and not any(rising_name(share) in names for share in SHARES):
            return None
        factor = _usable_factor(gram, eps)
        if factor is None:
            return None
        variance, pull = _mean_field(gram)
        band = _band(gram, factor)
        parts = []
        for share in SHARES:
            level = (1.0 - share) * math.exp(eps)
            peak = (math.log(share * gram.bins) + eps) / variance + 0.5 if share else 0.0
            # The choice of parts affects only the variance.
            if level <= 1.0 + 1e-9 or peak < 0.0:
                continue
            name = rising_name(share)
            if names is not None and name not in names:
                continue
            part = _part(gram, factor, name, level, peak, variance, pull)
            parts += [] if part is None else [part]
        return cls(gram, tuple(parts), factor, band) if parts else None

    @classmethod
    def falling(cls, gram: BinGram, eps: float, names: Collection[str] | None = None) -> Self | None:
        """The part for {mean a <= e^-eps}; None if bins are correlated, or it is not named."""
        if names is not None and rising_name(0.0) not in names:
            return None
        factor = _usable_factor(gram, eps)
        if factor is None:
            return None
        variance, pull = _mean_field(gram)
        part = _part(gram, factor, rising_name(0.0), math.exp(-eps), 0.0, variance, pull)
        return None if part is None else cls(gram, (part,), factor, factor.scales[None])

    def __reduce__(self) -> tuple[type["CollectiveParts"], tuple[object, ...]]:
        # The sampler is as large as the tables and can be rebuilt quickly.
        return CollectiveParts, (self.gram, self.parts, self.factor, self.band)

    @functools.cached_property
    def sampler(self) -> SiteSampler:
        """Draws from the tables of the parts."""
        return SiteSampler.of(tuple(part.tilt for part in self.parts))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts, in order."""
        return tuple(part.name for part in self.parts)

    @functools.cached_property
    def _largest_ahead(self) -> float:
        return max(float(np.abs(part.ahead).max()) for part in self.parts)

    @functools.cached_property
    def reach(self) -> float:
        """Largest distance of a draw from 0: the largest |F x| for the x of its tables and shifts."""
        top = math.sqrt(float(self.gram.diagonal.max()))
        peak = max(part.peak for part in self.parts) * top
        return math.sqrt(self.gram.bins) * top * (farthest_normal + self._largest_ahead + peak)

    @functools.cached_property
    def _whitening(self) -> float:
        """Largest error of an entry of the computed F^-1 y, relative to the largest.

        A triangular solve solves (F + H) x = y exactly, |H| <= (b + 2) u |F|, so that the error of x is that
        times |F^-1| |F| |x|; and |F^-1| is at most the inverse of the matrix that has the diagonal of F and
        minus the absolute values of its other entries (Higham 2002, Theorems 8.5 and 8.12).
        """
        if not isinstance(self.factor, TriangularFactor):
            return 4.0 * UNIT
        return 1.01 * (self.gram.bins + 2.0) * UNIT * self.factor.condition

    @functools.cached_property
    def rounding(self) -> LogError:
        """Error of `log_densities` where they are finite.

        Entries of a table are exact up to the masses of cells, differences of two normal probabilities that
        are at most 25 times larger, with an error of 24 units; their sum adds the same. The shift of later
        sites enters with the error of x; sums over sites, with the number of bins.
        """
        bins, width, ahead = self.gram.bins, self.band.shape[0], self._largest_ahead
        off = self._whitening * LARGEST_NORMAL
        sites = 2e3 * UNIT + ahead * off + 4.0 * UNIT * ahead * (LARGEST_NORMAL + ahead)
        total = LogError(bins * sites + 1.01 * UNIT * (bins + 4.0) * LARGEST_SITES, LARGEST_SITES)
        peak = max(part.peak for part in self.parts)
        if peak == 0.0:
            return total
        band, top = float(np.abs(self.band).max()), float(self.gram.diagonal.max())
        along = width * band * (off + 1.01 * UNIT * (width + 2.0) * LARGEST_NORMAL)
        size = peak * width * band * LARGEST_NORMAL + 0.5 * peak**2 * top + 2.0 * LARGEST_SITES
        each = peak * along + 8.0 * UNIT * size + UNIT * width * peak**2 * top + 2.0 * total.error
        return mean_rounding(bins, size, each).plus(total.error, total.size)

    def restricted(self, names: Collection[str]) -> Self | None:
        """Only the parts of these names; None if there are none."""
        kept = tuple(part for part in self.parts if part.name in names)
        return dataclasses.replace(self, parts=kept) if kept else None

    def draw(self, chosen: IntArray, values: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Draws of the parts with index `chosen`, shape (m,), from draws of N(0, K), shape (m, b)."""
        count, bins = values.shape
        uniforms = rng.random((bins, 2, count))
        centres = rng.integers(bins, size=(count,))
        normals = np.ascontiguousarray(self.factor.whiten(values).T)
        peaks = np.array([part.peak for part in self.parts])[chosen]
        half, width = 0.5 * self.gram.diagonal, self.band.shape[0] - 1
        if not isinstance(self.factor, TriangularFactor):
            levels = np.broadcast_to(-half[:, None], (bins, count))
            every = np.broadcast_to(chosen, (bins, count))
            tilted = self.sampler.draw(every, levels, uniforms.transpose(1, 0, 2))
            raised = np.flatnonzero(peaks > 0.0)
            where = (centres[raised], raised)
            tilted[where] = normals[where] + peaks[raised] * self.factor.scales[centres[raised]]
            return (self.factor.scales[:, None] * tilted).T
        ahead = np.stack([part.ahead for part in self.parts], axis=1)
        out = np.empty((bins, count))
        for start in range(0, bins, COLUMN_BLOCK):
            rows = self.factor.rows(start, min(start + COLUMN_BLOCK, bins))
            past = rows[:, :start] @ normals[:start]
            for column, row in enumerate(rows, start=start):
                means = past[column - start] + row[start:column] @ normals[start:column]
                shift = ahead[column, chosen]
                levels = means - half[column] + self.factor.scales[column] * shift
                tilted = self.sampler.draw(chosen, levels, uniforms[column]) + shift
                distance = centres - column
                inside = np.flatnonzero((np.abs(distance) <= width) & (peaks > 0.0))
                pulls = self.band[np.maximum(distance[inside], 0), centres[inside]]
                pulls *= peaks[inside] * (distance[inside] >= 0)
                tilted[inside] = normals[column, inside] + pulls
                normals[column] = tilted
                out[column] = means + self.factor.scales[column] * tilted
        return out.T

    def log_densities(self, values: FloatArray) -> FloatArray:
        """Log densities of all parts relative to Q at y of shape (m, b), shape (m, J).

        -inf for a y so near an edge of a table that rounding may decide its side, or so far out that the sum
        over its sites is unreliable. A missing density only raises a weight; a lower bound omits these draws.
        """
        normals = self.factor.whiten(values)
        largest = np.abs(normals).max(axis=1)
        off = self._whitening * np.minimum(largest, LARGEST_NORMAL)[:, None]
        top = float(self.gram.diagonal.max())
        bins, width = self.gram.bins, self.band.shape[0] - 1
        means = values - normals * self.factor.scales - 0.5 * self.gram.diagonal
        along = np.zeros_like(values)
        for lag in range(width + 1):
            along[:, lag:] += self.band[lag, lag:] * normals[:, : bins - lag]
        squares = np.sum(self.band**2, axis=0)
        ends = np.minimum(np.arange(bins) + width + 1, bins), np.maximum(np.arange(bins) - width, 0)
        columns = []
        for part in self.parts:
            levels, eta = means + part.ahead * self.factor.scales, normals - part.ahead
            size = LARGEST_NORMAL + float(np.abs(part.ahead).max())
            rounded = 8.0 * UNIT * (size * math.sqrt(top) + self.reach + top)
            doubtful = part.tilt.near_edges(
                levels, eta, off * float(self.factor.scales.max()) + rounded, off + 4.0 * UNIT * size
            )
            sites = part.tilt.log_densities(levels, eta)
            sites += part.ahead * (normals - 0.5 * part.ahead)
            total = sites.sum(axis=1)
            # NaN, of values that are not finite, is doubtful too
            doubtful |= ~((largest <= LARGEST_NORMAL) & (np.abs(sites).sum(axis=1) <= LARGEST_SITES))
            if part.peak > 0.0:
                if width:
                    sums = np.concatenate([np.zeros((len(sites), 1)), np.cumsum(sites, axis=1)], axis=1)
                    sites = sums[:, ends[0]] - sums[:, ends[1]]
                total = total + log_mean_exp(part.peak * along - 0.5 * part.peak**2 * squares - sites)
            columns.append(np.where(doubtful, -np.inf, total))
        return np.stack(columns, axis=1)


def rising_name(share: float) -> str:
    """Name of the part in which one bin makes up this share of the mean."""
    return f"all bins, one {share:.0%}" if share else "all bins"


def _usable_factor(gram: BinGram, eps: float) -> DiagonalFactor | None:
    """F if a collective tilt may help; this rule affects only the cost.

    Bins must be close to independent given the earlier ones, and the Gaussian shift that raises all bins must
    not cost much more than the one that raises a single bin.
    """
    factor = gram.factor
    bins, diagonal = gram.bins, gram.diagonal
    if factor is None or bins < LEAST_BINS or eps > LARGEST_EPS:
        return None
    kept = factor.scales**2 / diagonal
    if float(kept.mean()) < LEAST_INNOVATION or float(kept.min()) < SMALLEST_INNOVATION:
        return None
    mean = float(gram.matvec(np.full(bins, 1.0 / bins)).mean())
    top = float(diagonal.max())
    single = (eps + math.log(bins) + 0.5 * top) ** 2 / top
    return factor if eps**2 / mean <= FARTHEST * single else None


def _mean_field(gram: BinGram) -> tuple[float, float]:
    """The mean of the diagonal, and the sum of exp(K) - 1 over the other bins, averaged over 64 rows."""
    rows = np.unique(np.linspace(0, gram.bins - 1, min(gram.bins, SEARCH_ROWS)).astype(np.int64))
    sums = gram.bins * np.expm1(gram.log_row_means(1.0, np.zeros(gram.bins), rows))
    return float(gram.diagonal.mean()), max(0.0, float(np.mean(sums - np.expm1(gram.diagonal[rows]))))


def _band(gram: BinGram, factor: DiagonalFactor) -> FloatArray:
    """The diagonals of F from the main one down to where K has decreased to a tenth of its diagonal."""
    bins = gram.bins
    if not isinstance(factor, TriangularFactor):
        return factor.scales[None]
    middle = bins // 2
    row = gram.columns(np.array([middle]))[0]
    far = np.flatnonzero(row >= NEAR * row[middle])
    width = int(min(np.max(np.abs(far - middle)), WIDEST, bins - 1))
    band = np.zeros((width + 1, bins))
    for start in range(0, bins, COLUMN_BLOCK):
        rows = factor.rows(start, min(start + COLUMN_BLOCK, bins))
        for column, row in enumerate(rows, start=start):
            reach = min(width, column)
            band[: reach + 1, column] = row[column - reach : column + 1][::-1]
    return band


def _part(
    gram: BinGram, factor: DiagonalFactor, name: str, level: float, peak: float, variance: float, pull: float
) -> CollectivePart | None:
    """One part; None if bins differ so much that a table over their levels would be useless."""
    theta, response = solved_strength(level, variance, gram.bins, pull)
    half, scales = 0.5 * gram.diagonal, factor.scales
    ahead, deviation = np.zeros(gram.bins), 0.0
    if isinstance(factor, TriangularFactor):
        sign = 1.0 if level > 1.0 else -1.0
        ahead = sign * theta * level * (factor.sums() - scales)
        deviation = LEVEL_DEVIATIONS * math.sqrt(max(float(np.max(gram.diagonal - scales**2)), 0.0))
    fields = ahead * scales - half
    if not float(np.ptp(fields)) + 2.0 * deviation <= WIDEST_LEVELS:
        return None
    tilt = SiteTilt.at(
        response,
        theta,
        float(scales.mean()),
        float(fields.min()) - deviation,
        float(fields.max()) + deviation,
    )
    return CollectivePart(name, tilt, ahead, peak)
