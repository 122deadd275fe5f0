"""Groups of Gaussian proposals N(K v, K) with equal probabilities, and their densities against N(0, K)."""

import dataclasses
import functools
import math
from typing import Self

import numpy as np

from dpmech.accounting.balls_in_bins.gram import BinGram, fft_rounding
from dpmech.accounting.balls_in_bins.proposals.rounding import (
    LogError,
    mean_rounding,
    sum_product_rounding,
)
from dpmech.numerics import UNIT, FloatArray, IntArray

__all__ = ["LiftedGroup", "PointGroup", "lifted_name", "log_mean_exp"]


# Smaller entries of a tilt, beside its largest, are left out: any tilt will do, and most bins are far away.
LEAST_ENTRY = 1e-4
# Rows of sparse tilts that are multiplied at once, and the part of all entries from which on all are.
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
        name: what the group is for.
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
        """The group with these rows v, shape (p, b), small entries left out."""
        least = LEAST_ENTRY * np.abs(tilts).max(axis=1, keepdims=True)
        tilts = np.where(np.abs(tilts) < least, 0.0, tilts)
        means = gram.matmat(tilts.T).T
        return cls(name, tilts, means, 0.5 * np.sum(means * tilts, axis=1), orbit)

    @functools.cached_property
    def panels(self) -> tuple[tuple[slice, IntArray, FloatArray], ...]:
        """Some rows, the columns where one is not 0, and the entries there, transposed; () to take all."""
        panels, used = [], 0
        for start in range(0, len(self.tilts), PANEL):
            part = self.tilts[start : start + PANEL]
            columns = np.flatnonzero(part.any(axis=0))
            panels.append((slice(start, start + PANEL), columns, np.ascontiguousarray(part[:, columns].T)))
            used += panels[-1][2].size
        return tuple(panels) if used <= FULL * self.tilts.size else ()

    def shift(self, gram: BinGram, uniforms: FloatArray) -> FloatArray:
        """Means of the Gaussians chosen by inversion, shape (m, b)."""
        size = self.means.shape[1] if self.orbit else self.means.shape[0]
        chosen = np.minimum((uniforms * size).astype(np.int64), size - 1)
        if self.orbit:
            shown: FloatArray = self.means[0][(np.arange(size) - chosen[:, None]) % size]
            return shown
        picked: FloatArray = self.means[chosen]
        return picked

    def reach(self, gram: BinGram) -> float:
        """How far the means are from 0 at most."""
        total, norm = self._sizes
        return float(np.abs(self.means).max()) + gram.product_rounding(total, norm)

    def rounding(self, gram: BinGram, farthest: float) -> LogError:
        """Of `log_density` where no |y| is above `farthest`: of products with v and with K v."""
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
        """The largest sum of the absolute values of a row v, and the largest norm; rounded up."""
        total = float(np.abs(self.tilts).sum(axis=1).max())
        return 1.001 * total, 1.001 * float(np.linalg.norm(self.tilts, axis=1).max())

    def log_density(self, values: FloatArray) -> FloatArray:
        """Log of the density of the group against Q at y of shape (m, b), shape (m,)."""
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
    """The name of the lifted group whose one bin makes up this share."""
    return f"one bin, {share:.0%}"


@dataclasses.dataclass(frozen=True)
class LiftedGroup:
    """Gaussians N(K v, K), equally probable: `v = lift / b + peak e_i`, one for every bin i.

    Attributes:
        name: what the group is for.
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
        """The group whose one bin makes up `share` of e^eps, in (0, 1), and the others the rest."""
        diagonal = gram.diagonal
        image = gram.matvec(np.full(gram.bins, 1.0 / gram.bins))
        square, top = float(image.mean()), float(diagonal.max())
        lift = max(0.0, (eps + math.log1p(-share)) / square)
        peak = max(0.0, (eps + math.log(share * gram.bins) - lift * square) / top + 0.5)
        norms = 0.5 * (lift**2 * square + 2.0 * lift * peak * image + peak**2 * diagonal)
        return cls(lifted_name(share), lift, peak, image, norms)

    def shift(self, gram: BinGram, uniforms: FloatArray) -> FloatArray:
        """Means of the Gaussians chosen by inversion, shape (m, b)."""
        chosen = np.minimum((uniforms * gram.bins).astype(np.int64), gram.bins - 1)
        return self.lift * self.uniform_mean + self.peak * gram.columns(chosen)

    def reach(self, gram: BinGram) -> float:
        """How far the means are from 0 at most."""
        top, off = float(gram.diagonal.max()), gram.product_rounding(1.0, 1.0 / math.sqrt(gram.bins))
        return self.lift * (float(self.uniform_mean.max()) + off) + self.peak * top

    def rounding(self, gram: BinGram, farthest: float) -> LogError:
        """Of `log_density` where no |y| is above `farthest`."""
        top, weight = float(gram.diagonal.max()), self.lift + self.peak
        size = self.peak * farthest + weight * self.reach(gram)
        each = weight * self.lift * gram.product_rounding(1.0, 1.0 / math.sqrt(gram.bins))
        each += self.peak**2 * top * gram.entry_rounding + 8.0 * UNIT * size
        each += sum_product_rounding(gram.bins, weight, self.reach(gram))
        peaks = mean_rounding(gram.bins, size, each)
        return peaks.plus(sum_product_rounding(gram.bins, self.lift, farthest), self.lift * farthest)

    def log_density(self, values: FloatArray) -> FloatArray:
        """Log of the density of the group against Q at y of shape (m, b), shape (m,)."""
        peaks = log_mean_exp(self.peak * values - self.half_norms)
        density: FloatArray = self.lift * values.mean(axis=1) + peaks
        return density
