r"""Design points, the means at which rare events of the pair are sampled, and Gaussian proposals around them.

With `L(y) = log mean_l exp(y_l - K_ll / 2)`, REMOVE needs the set {L >= eps} and ADD the convex set
{L <= -eps}. For any probability vector w the variational formula gives
`L(y) >= w . y - w . diag(K) / 2 - KL(w || uniform)`, with equality at `w = softmax(y - diag(K) / 2)`. A
point of least norm has the form `y = K v`, `v = tau w`, and w is a fixed point of `w = softmax(tau K w -
diag(K) / 2)`. Design points affect only the variance; the proved statements here hold for any w. Groups of
Gaussians N(K v, K) with equal probabilities are centred at such points.
"""

import dataclasses
import functools
import math
from typing import Self

import numpy as np
import scipy

from dpmech.engines.gaussian_mixture.gram import BinGram, fft_rounding
from dpmech.engines.gaussian_mixture.proposal import LogError, mean_rounding, sum_product_rounding
from dpmech.numerics import UNIT, FloatArray, IntArray

# Entries of a tilt below this fraction of the largest are dropped: any tilt is valid, and most bins are far
# away.
LEAST_ENTRY = 1e-4
# Number of rows of sparse tilts per product, and the fraction of all entries from which rows are dense.
PANEL = 48
FULL = 0.6


def log_mean_exp(values: FloatArray) -> FloatArray:
    """Log mean exp along rows; overwrites `values`."""
    top = values.max(axis=1)
    values -= top[:, None]
    np.exp(values, out=values)
    out: FloatArray = top + np.log(values.mean(axis=1))
    return out


@dataclasses.dataclass(frozen=True)
class PointGroup:
    """Gaussians N(K v, K) with equal probabilities, one for each row v.

    Attributes:
        name: purpose of the group.
        tilts: the rows v, shape (p, b); one row where `orbit` is set.
        means: the rows K v.
        half_norms: v^T K v / 2, shape (p,).
        orbit: whether the group holds all b rotations of its one row (circulant K only).
    """

    name: str
    tilts: FloatArray
    means: FloatArray
    half_norms: FloatArray
    orbit: bool = False

    @classmethod
    def at(cls, gram: BinGram, name: str, tilts: FloatArray, *, orbit: bool = False) -> Self:
        """The group with these rows v, shape (p, b), after dropping small entries."""
        least = LEAST_ENTRY * np.abs(tilts).max(axis=1, keepdims=True)
        tilts = np.where(np.abs(tilts) < least, 0.0, tilts)
        means = gram.matmat(tilts.T).T
        return cls(name, tilts, means, 0.5 * np.sum(means * tilts, axis=1), orbit)

    @functools.cached_property
    def panels(self) -> tuple[tuple[slice, IntArray, FloatArray], ...]:
        """Slices of rows, the columns with non-zero entries, and the entries, transposed; () to use all."""
        panels, used = [], 0
        for start in range(0, len(self.tilts), PANEL):
            part = self.tilts[start : start + PANEL]
            columns = np.flatnonzero(part.any(axis=0))
            panels.append((slice(start, start + PANEL), columns, np.ascontiguousarray(part[:, columns].T)))
            used += panels[-1][2].size
        return tuple(panels) if used <= FULL * self.tilts.size else ()

    def shift(self, gram: BinGram, uniforms: FloatArray) -> FloatArray:
        """Means of the Gaussians that are chosen by inversion, shape (m, b)."""
        size = self.means.shape[1] if self.orbit else self.means.shape[0]
        chosen = np.minimum((uniforms * size).astype(np.int64), size - 1)
        if self.orbit:
            shown: FloatArray = self.means[0][(np.arange(size) - chosen[:, None]) % size]
            return shown
        picked: FloatArray = self.means[chosen]
        return picked

    def reach(self, gram: BinGram) -> float:
        """Largest distance of the means from 0."""
        total, norm = self._sizes
        return float(np.abs(self.means).max()) + gram.product_rounding(total, norm)

    def rounding(self, gram: BinGram, farthest: float) -> LogError:
        """Error of `log_density` if no |y| exceeds `farthest`: of products with v and with K v."""
        bins, (total, norm) = gram.bins, self._sizes
        mean = self.reach(gram)
        size = total * (farthest + mean)
        # A rotation is a convolution by FFT, of the norms of v and y.
        each = fft_rounding(bins) * norm * math.sqrt(bins) * farthest if self.orbit else 0.0
        each += sum_product_rounding(bins, total, farthest + mean)
        each += total * gram.product_rounding(total, norm) + 2.0 * UNIT * size
        return mean_rounding(bins if self.orbit else len(self.tilts), size, each)

    @property
    def _sizes(self) -> tuple[float, float]:
        """Largest sum of absolute values of a row v, and largest norm; rounded up."""
        total = float(np.abs(self.tilts).sum(axis=1).max())
        return 1.001 * total, 1.001 * float(np.linalg.norm(self.tilts, axis=1).max())

    def log_density(self, values: FloatArray) -> FloatArray:
        """Log density of the group relative to Q at y of shape (m, b), shape (m,)."""
        if self.orbit:
            spectrum = np.conj(np.fft.rfft(self.tilts[0]))
            exponents = np.fft.irfft(np.fft.rfft(values, axis=1) * spectrum, n=values.shape[1], axis=1)
            exponents -= self.half_norms[0]
        elif self.panels:
            exponents = np.empty((len(values), len(self.tilts)))
            for rows, columns, entries in self.panels:
                exponents[:, rows] = values.take(columns, axis=1) @ entries
            exponents -= self.half_norms
        else:
            exponents = values @ self.tilts.T - self.half_norms
        return log_mean_exp(exponents)


def lifted_name(share: float) -> str:
    """Name of the lifted group in which one bin makes up this share."""
    return f"one bin, {share:.0%}"


@dataclasses.dataclass(frozen=True)
class LiftedGroup:
    """Gaussians N(K v, K) with equal probabilities: `v = lift / b + peak e_i`, one for every bin i.

    Attributes:
        name: purpose of the group.
        lift: the total tilt of the uniform part.
        peak: the tilt of one bin.
        uniform_mean: K times the uniform vector, shape (b,).
        half_norms: v^T K v / 2, shape (b,).
    """

    name: str
    lift: float
    peak: float
    uniform_mean: FloatArray
    half_norms: FloatArray

    @classmethod
    def at(cls, gram: BinGram, eps: float, share: float) -> Self:
        """The group in which one bin makes up `share` of e^eps, in (0, 1), and the others the remainder."""
        diagonal = gram.diagonal
        image = gram.matvec(np.full(gram.bins, 1.0 / gram.bins))
        square, top = float(image.mean()), float(diagonal.max())
        lift = max(0.0, (eps + math.log1p(-share)) / square)
        peak = max(0.0, (eps + math.log(share * gram.bins) - lift * square) / top + 0.5)
        norms = 0.5 * (lift**2 * square + 2.0 * lift * peak * image + peak**2 * diagonal)
        return cls(lifted_name(share), lift, peak, image, norms)

    def shift(self, gram: BinGram, uniforms: FloatArray) -> FloatArray:
        """Means of the Gaussians that are chosen by inversion, shape (m, b)."""
        chosen = np.minimum((uniforms * gram.bins).astype(np.int64), gram.bins - 1)
        return self.lift * self.uniform_mean + self.peak * gram.columns(chosen)

    def reach(self, gram: BinGram) -> float:
        """Largest distance of the means from 0."""
        top, off = float(gram.diagonal.max()), gram.product_rounding(1.0, 1.0 / math.sqrt(gram.bins))
        return self.lift * (float(self.uniform_mean.max()) + off) + self.peak * top

    def rounding(self, gram: BinGram, farthest: float) -> LogError:
        """Error of `log_density` if no |y| exceeds `farthest`."""
        top, weight = float(gram.diagonal.max()), self.lift + self.peak
        size = self.peak * farthest + weight * self.reach(gram)
        each = weight * self.lift * gram.product_rounding(1.0, 1.0 / math.sqrt(gram.bins))
        each += self.peak**2 * top * gram.entry_rounding + 8.0 * UNIT * size
        each += sum_product_rounding(gram.bins, weight, self.reach(gram))
        peaks = mean_rounding(gram.bins, size, each)
        return peaks.plus(sum_product_rounding(gram.bins, self.lift, farthest), self.lift * farthest)

    def log_density(self, values: FloatArray) -> FloatArray:
        """Log density of the group relative to Q at y of shape (m, b), shape (m,)."""
        peaks = log_mean_exp(self.peak * values - self.half_norms)
        density: FloatArray = self.lift * values.mean(axis=1) + peaks
        return density


REMOVE_STEPS = 12
ADD_STEPS = 60


@dataclasses.dataclass(frozen=True)
class AddPoint:
    """The direction of the ADD proposals N(-tau K w, K), tau >= 0.

    Attributes:
        direction: the probability vector w, shape (b,).
        image: K w, shape (b,).
        square: w^T K w.
        depth: c with `w . y <= -c` wherever L(y) <= -eps; it may be negative.
        rounding: largest error of the computed c.
    """

    direction: FloatArray
    image: FloatArray
    square: float
    depth: float
    rounding: float


def _divergence(points: FloatArray) -> FloatArray:
    """KL(w || uniform) for every row of `points`, shape (p,)."""
    out: FloatArray = scipy.special.xlogy(points, points * points.shape[1]).sum(axis=1)
    return out


def remove_points(gram: BinGram, eps: float, starts: FloatArray, steps: int = REMOVE_STEPS) -> FloatArray:
    """Tilts v of REMOVE proposals N(K v, K), shape (p, b), from starting vectors w of the same shape.

    Each is scaled so that the variational lower bound on L reaches eps at `K v`.

    Args:
        gram: the Gram matrix.
        eps: the privacy loss level.
        starts: probability vectors w, shape (p, b).
        steps: damped fixed-point steps; few, so that different starts stay different.

    Returns:
        The rows v = tau w.
    """
    half = 0.5 * gram.diagonal
    points = starts

    def lengths(points: FloatArray, images: FloatArray) -> FloatArray:
        reach = eps + points @ half + _divergence(points)
        out: FloatArray = reach / np.sum(images * points, axis=1)
        return out

    images = gram.matmat(points.T).T
    for _ in range(steps):
        target = scipy.special.softmax(lengths(points, images)[:, None] * images - half, axis=1)
        points = 0.5 * points + 0.5 * target
        images = gram.matmat(points.T).T
    tilts: FloatArray = lengths(points, images)[:, None] * points
    return tilts


def set_starts(bins: int, size: int, count: int, rng: np.random.Generator) -> FloatArray:
    """`count` probability vectors, each uniform on a random set of `size` bins, shape (count, b)."""
    starts = np.zeros((count, bins))
    for row in starts:
        row[rng.choice(bins, size, replace=False)] = 1.0 / size
    return starts


def add_point(gram: BinGram, eps: float) -> AddPoint:
    r"""The direction of the ADD design point, with the depth of the set {L <= -eps} along it.

    For any probability vector w the variational formula gives, wherever L <= -eps,
    `w . y <= L + w . diag(K) / 2 + KL(w || uniform) <= -c` with `c = eps - w . diag(K) / 2 - KL(w ||
    uniform)`. If c > 0 the set lies beyond a hyperplane at distance `c / sqrt(w^T K w)`, and w is chosen
    to make that distance large.

    Args:
        gram: the Gram matrix.
        eps: at least 0.

    Returns:
        The w with the largest distance during the iteration; uniform if c <= 0 there.
    """
    bins = gram.bins
    half = 0.5 * gram.diagonal
    point = np.full((1, bins), 1.0 / bins)
    # c sums eps, b numbers of at most K_ll / 2 and log b, each times a probability, and b logarithms.
    top = float(gram.diagonal.max())
    off = (2.0 * bins + 40.0) * UNIT * (eps + top + 2.0 * math.log(bins) + 1.0) + gram.entry_rounding * top
    best = AddPoint(point[0], gram.matvec(point[0]), 1.0, 0.0, off)
    height = -math.inf
    for _ in range(ADD_STEPS):
        image = gram.matvec(point[0])
        square = float(image @ point[0])
        depth = eps - float(point[0] @ half) - float(_divergence(point)[0])
        found = math.copysign(depth**2, depth) / square
        if found > height:
            best = AddPoint(point[0], image, square, depth, off)
        # Any probability vector is valid.
        if depth <= 0.0 or found - height < 1e-9 * abs(found):
            break
        height = max(height, found)
        target = scipy.special.softmax(-(depth / square) * image - half)
        point = 0.5 * point + 0.5 * target[None]
    return best
