"""The mixtures from which REMOVE and ADD are sampled."""

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dpmech.engines.gaussian_mixture.all_bins_tilt import CollectiveParts
from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.points import (
    AddPoint,
    LiftedGroup,
    PointGroup,
    add_point,
    lifted_name,
    log_mean_exp,
    remove_points,
    set_starts,
)
from dpmech.engines.gaussian_mixture.proposal import (
    LogError,
    Proposal,
    chosen_parts,
    farthest_normal,
    log_largest_weight,
    row_batches,
    sum_product_rounding,
)
from dpmech.engines.gaussian_mixture.streams import AddDraw, RemoveDraw, generator
from dpmech.engines.gaussian_mixture.tuples import (
    FreeTuples,
    TupleProposal,
    best_tuple_proposal,
    draw_rows,
    tuple_proposal,
)
from dpmech.numerics import UNIT, FloatArray, IntArray

ADD_PARTS = (0.0, 0.5, 1.0)


@dataclasses.dataclass(frozen=True)
class AddProposal(Proposal):
    """The ADD mixture: Gaussians N(-tau K w, K) along one direction w, with a proved weight bound.

    A collective tilt is added if bins are nearly independent; the bound does not use it.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level.
        point: the direction.
        tilts: tau of each Gaussian part, non-negative.
        collective: the tilt of all bins, or None.
        alphas: probabilities of the parts, shape (J,).
        below: as in `Proposal`.
    """

    gram: BinGram
    eps: float
    point: AddPoint
    tilts: FloatArray
    collective: CollectiveParts | None
    alphas: FloatArray
    below: bool = False

    @classmethod
    def at(cls, gram: BinGram, eps: float, names: Collection[str] | None = None) -> Self:
        """The mixture at eps, with equal probabilities; with the collective tilt if it is named.

        The first part reaches the hyperplane that bounds {L <= -eps}, or is Q if the half-space contains 0;
        the others reach further, up to where the mean of r is e^-eps, because L exceeds its value at the mean
        by up to K_ll / 2.
        """
        point = add_point(gram, eps)
        curvature = 0.5 * float(point.direction @ gram.diagonal)
        tilts = np.array([max(point.depth + part * curvature, 0.0) for part in ADD_PARTS]) / point.square
        collective = CollectiveParts.falling(gram, eps, names)
        parts = tilts.size + (collective is not None)
        return cls(gram, eps, point, tilts, collective, np.full(parts, 1.0 / parts))

    def losses(self, values: FloatArray) -> FloatArray:
        """Log dP/dQ of rows y, shape (m,)."""
        return log_mean_exp(values - 0.5 * self.gram.diagonal)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts."""
        together = self.collective.names if self.collective is not None else ()
        return (*(f"shift {part:.0%}" for part in ADD_PARTS), *together)

    def at_level(self, eps: float) -> Self:
        """The same parts for another payoff; the half-space that contains {L <= -eps} moves with it."""
        point = dataclasses.replace(self.point, depth=self.point.depth + (eps - self.eps))
        return dataclasses.replace(self, eps=eps, point=point)

    def payoffs_at(self, log_payoffs: FloatArray, eps: float) -> FloatArray:
        """Log (1 - e^(eps + L))_+ from log (1 - e^(eps' + L))_+, eps' <= eps."""
        ratios = math.exp(eps - self.eps) * -np.expm1(log_payoffs)
        out = np.full(ratios.shape, -np.inf)
        hits = (ratios < 1.0) & (log_payoffs > -np.inf)
        out[hits] = np.log1p(-ratios[hits])
        return out

    @property
    def log_weight_bound(self) -> float:
        """Log of a proved upper bound on every weight.

        A weight is positive only where L = -eps - x, x >= 0. There `f = 1 - e^-x`, and `u = -w . y >= c + x`
        (`add_point`, for any w and any eps), so that `D_j = exp(tau_j u - tau_j^2 w^T K w / 2)` is at least
        its value at u = c + x.
        """
        depths = self.tilts * self.point.depth - 0.5 * self.tilts**2 * self.point.square
        return log_largest_weight(self.tilts, depths, self.alphas[: depths.size])

    @property
    def bounding(self) -> Collection[str]:
        """Names of the Gaussians."""
        return self.names[: self.tilts.size]

    @functools.cached_property
    def farthest(self) -> float:
        """Bound on |y|: the largest mean of all parts plus 40 deviations."""
        together = 0.0 if self.collective is None else self.collective.reach
        beyond = farthest_normal * math.sqrt(float(self.gram.diagonal.max()))
        return max(float(self.tilts.max()) * self._mean + beyond, together)

    @functools.cached_property
    def _sizes(self) -> tuple[float, float]:
        """The sum of w, and its norm; rounded up."""
        return 1.001 * float(self.point.direction.sum()), 1.001 * float(np.linalg.norm(self.point.direction))

    @functools.cached_property
    def _mean(self) -> float:
        """Largest entry of K w."""
        return 1.001 * float(np.abs(self.point.image).max()) + self.gram.product_rounding(*self._sizes)

    @functools.cached_property
    def part_rounding(self) -> LogError:
        """The largest error over all parts and the depth of the half-space that bounds the weights."""
        tilt, (total, norm) = float(self.tilts.max()), self._sizes
        size = tilt * (total * self.farthest + abs(self.point.depth) + tilt * total * self._mean)
        off = tilt * (self.point.rounding + sum_product_rounding(self.gram.bins, total, self.farthest))
        off += tilt**2 * total * self.gram.product_rounding(total, norm)
        off += tilt**2 * sum_product_rounding(self.gram.bins, total, self._mean) + 8.0 * UNIT * size
        found = LogError(off, size)
        if self.collective is None:
            return found
        other = self.collective.rounding
        return LogError(max(off, other.error), max(size, other.size))

    def restricted(self, names: Collection[str]) -> "AddProposal":
        """Drop the collective tilt unless it is named."""
        if self.collective is None or set(names) & set(self.collective.names):
            return self
        alphas = self.alphas[: self.tilts.size]
        return dataclasses.replace(self, collective=None, alphas=alphas / alphas.sum())

    def block(self, seed: np.random.SeedSequence, count: int) -> tuple[FloatArray, FloatArray]:
        """Draw samples of the mixture."""
        values = self.gram.sample(generator(seed, AddDraw.NORMALS), count)
        parts = chosen_parts(self.alphas, generator(seed, AddDraw.CHOICES).random(count))
        for rows in row_batches(values):
            values[rows] -= np.append(self.tilts, 0.0)[parts[rows]][:, None] * self.point.image
        together = np.flatnonzero(parts == self.tilts.size)
        if self.collective is not None and together.size:
            only = np.zeros(together.size, dtype=np.int64)
            tilt = generator(seed, AddDraw.TILTS)
            values[together] = self.collective.draw(only, values[together], tilt)
        payoffs = np.full(count, -np.inf)
        densities = np.zeros((count, self.alphas.size))
        for rows in row_batches(values):
            self._weigh(values[rows], payoffs[rows], densities[rows])
        return payoffs, densities

    def _weigh(self, values: FloatArray, payoffs: FloatArray, densities: FloatArray) -> None:
        """Set log f and log D where f is not 0."""
        losses = self.losses(values) - self.payoff_side
        hits = np.flatnonzero(losses < -self.eps)
        self.check_reach(values[hits])
        payoffs[hits] = np.log(-np.expm1(self.eps + losses[hits]))
        along = -(values[hits] @ self.point.direction)
        gaussian = along[:, None] * self.tilts - 0.5 * self.tilts**2 * self.point.square
        densities[hits, : self.tilts.size] = gaussian
        if self.collective is not None and hits.size:
            densities[hits, self.tilts.size :] = self.collective.log_densities(values[hits])
            if self.below:
                payoffs[hits[np.isneginf(densities[hits]).any(axis=1)]] = -np.inf


LOCAL_BINS = 768
SET_SIZES = (2, 3, 6)
SETS_EACH = 20
PEAK_SHARES = (0.03, 0.1, 0.25, 0.5, 0.75)
SET_SEED = 20


class Slots(NamedTuple):
    """Positions of the parts: in `names`, among the probabilities, in the columns of densities.

    Attributes:
        nominal: P itself.
        scaled: the scaled component.
        tuples: parts whose samples come with tuples of bins.
        groups: Gaussians at design points.
        collective: tilts of all bins.
    """

    nominal: int
    scaled: int
    tuples: range
    groups: range
    collective: range


class TuplePart(NamedTuple):
    """A part whose samples come with tuples of bins, and the stream of its uniforms."""

    name: str
    law: TupleProposal | FreeTuples
    draw: RemoveDraw


@dataclasses.dataclass
class TuplesOfSamples:
    """The tuples of one tuple part, for samples of the whole mixture.

    Attributes:
        law: the part.
        own: which samples this part drew, shape (m,); their tuples are drawn, the others not yet.
        uniforms: shape (m, q).
        indices: shape (m, q).
    """

    law: TupleProposal | FreeTuples
    own: npt.NDArray[np.bool_]
    uniforms: FloatArray
    indices: IntArray

    def at(self, rows: IntArray) -> "TuplesOfSamples":
        """The same for a subset of the samples."""
        return TuplesOfSamples(self.law, self.own[rows], self.uniforms[rows], self.indices[rows])

    def complete(self, kernel: FloatArray) -> None:
        """Draw tuples for samples of other parts from the rows of an unnormalised kernel, shape (m, b)."""
        others = np.flatnonzero(~self.own)
        self.indices[others] = draw_rows(kernel[others], self.uniforms[others])


@dataclasses.dataclass(frozen=True)
class RemoveProposal(Proposal):
    """The REMOVE mixture: nominal P, tuples of bins, the scaled component, design points, collective tilts.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level.
        scaled: the tuple proposal of order 1.
        star: the tuple proposal that bounds the weights, or None if K is too large to be read.
        free: uniform tuples; None with `star`, and if they carry nothing.
        groups: Gaussians at design points.
        collective: tilts of all bins; None if bins are correlated, or one bin dominates.
        alphas: probabilities of the parts, in the order of `names`.
        below: as in `Proposal`.
    """

    gram: BinGram
    eps: float
    scaled: TupleProposal
    star: TupleProposal | None
    free: FreeTuples | None
    groups: tuple[PointGroup | LiftedGroup, ...]
    collective: CollectiveParts | None
    alphas: FloatArray
    below: bool = False

    @classmethod
    def at(cls, gram: BinGram, eps: float, names: Collection[str] | None = None) -> Self:
        """The mixture at eps, with equal probabilities.

        Args:
            gram: the Gram matrix.
            eps: the privacy loss level.
            names: parts to include in addition to the nominal, scaled and star parts; None for all.
        """
        bins, half = gram.bins, 0.5 * gram.diagonal

        def wanted(name: str) -> bool:
            return names is None or name in names

        heaviest = int(np.argmax(half))
        reach = (eps + float(half[heaviest]) + math.log(bins)) / (2.0 * float(half[heaviest]))
        scaled = tuple_proposal(gram, max(1.0, reach), 1)
        star = best_tuple_proposal(gram, eps) if gram.cheap_columns else None
        free = FreeTuples.at(gram, eps) if gram.cheap_columns and wanted("free tuples") else None
        groups: list[PointGroup | LiftedGroup] = []
        if bins > 1:
            if gram.circulant and wanted("local"):
                first = np.zeros((1, bins))
                first[0, 0] = 1.0
                groups.append(PointGroup.at(gram, "local", remove_points(gram, eps, first), orbit=True))
            elif bins <= LOCAL_BINS and wanted("local"):
                groups.append(PointGroup.at(gram, "local", remove_points(gram, eps, np.eye(bins))))
            if wanted("uniform"):
                uniform = np.full((1, bins), 1.0 / bins)
                groups.append(PointGroup.at(gram, "uniform", remove_points(gram, eps, uniform, steps=0)))
            lifted = (LiftedGroup.at(gram, eps, share) for share in PEAK_SHARES if wanted(lifted_name(share)))
            groups.extend(lifted)
            rng = np.random.default_rng(SET_SEED)
            for size in (size for size in SET_SIZES if size < bins):
                starts = set_starts(bins, size, SETS_EACH, rng)
                if wanted(f"sets of {size}"):
                    tilts = remove_points(gram, eps, starts, steps=2)
                    groups.append(PointGroup.at(gram, f"sets of {size}", tilts))
        collective = CollectiveParts.rising(gram, eps, names)
        parts = 2 + (star is not None) + (free is not None) + len(groups)
        parts += len(collective.parts) if collective is not None else 0
        return cls(gram, eps, scaled, star, free, tuple(groups), collective, np.full(parts, 1.0 / parts))

    @property
    def tuple_parts(self) -> tuple[TuplePart, ...]:
        """The star and the free tuples; empty if K is too large to be read."""
        parts = []
        if self.star is not None:
            parts.append(TuplePart("star", self.star, RemoveDraw.STAR))
        if self.free is not None:
            parts.append(TuplePart("free tuples", self.free, RemoveDraw.FREE))
        return tuple(parts)

    @property
    def slots(self) -> Slots:
        """Positions of the parts."""
        tuples = range(2, 2 + len(self.tuple_parts))
        groups = range(tuples.stop, tuples.stop + len(self.groups))
        together = 0 if self.collective is None else len(self.collective.parts)
        return Slots(0, 1, tuples, groups, range(groups.stop, groups.stop + together))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts."""
        tuples = (part.name for part in self.tuple_parts)
        together = self.collective.names if self.collective is not None else ()
        return ("nominal", "scaled", *tuples, *(group.name for group in self.groups), *together)

    @property
    def bounding(self) -> Collection[str]:
        """The star, or the scaled part if there is none."""
        return ("star",) if self.star is not None else ("scaled",)

    @functools.cached_property
    def farthest(self) -> float:
        """Bound on |y|: the largest mean of all parts plus 40 deviations."""
        top = float(self.gram.diagonal.max())
        laws = (self.scaled, *(part.law for part in self.tuple_parts), *self.groups)
        reach = max(top, *(law.reach(self.gram) for law in laws))
        together = 0.0 if self.collective is None else self.collective.reach
        return max(reach + farthest_normal * math.sqrt(top), together)

    @functools.cached_property
    def part_rounding(self) -> LogError:
        """The largest error over all parts."""
        gram, loss, farthest = self.gram, self.loss_rounding, self.farthest
        parts = [loss, self.scaled.rounding(gram, loss)]
        parts += [] if self.star is None else [self.star.rounding(gram, loss)]
        parts += [] if self.free is None else [self.free.rounding(gram, loss, farthest)]
        parts += [group.rounding(gram, farthest) for group in self.groups]
        parts += [] if self.collective is None else [self.collective.rounding]
        return LogError(max(one.error for one in parts), max(one.size for one in parts))

    def restricted(self, names: Collection[str]) -> "RemoveProposal":
        """Only the parts of these names, and the nominal, scaled and star parts."""
        kept = [name in names or name in ("nominal", "scaled", "star") for name in self.names]
        alphas = self.alphas[np.array(kept)]
        return dataclasses.replace(
            self,
            free=self.free if "free tuples" in names else None,
            groups=tuple(group for group in self.groups if group.name in names),
            collective=None if self.collective is None else self.collective.restricted(names),
            alphas=alphas / alphas.sum(),
        )

    def payoffs_at(self, log_payoffs: FloatArray, eps: float) -> FloatArray:
        """Log (r - e^eps)_+ from log (r - e^eps')_+, eps' <= eps."""
        losses = np.logaddexp(log_payoffs, self.eps)
        out = np.full(losses.shape, -np.inf)
        hits = (losses > eps) & (log_payoffs > -np.inf)
        out[hits] = losses[hits] + np.log(-np.expm1(eps - losses[hits]))
        return out

    @property
    def log_weight_bound(self) -> float:
        r"""Log of a proved upper bound on every weight.

        Nominal, scaled and star parts have `D >= r^p / B` (`tuples`; p = 1, B = 1 for the nominal part), so
        the weight is at most `(r - e^eps) / sum_j alpha_j r^p_j / B_j` on {r >= e^eps}. With r = e^(eps + x)
        this is the quotient that `log_largest_weight` bounds.
        """
        terms = [(1.0, 0.0), (self.scaled.power, self.scaled.log_bound)]
        if self.star is not None:
            terms.append((self.star.power, self.star.log_bound))
        powers, bounds = np.array(terms).T
        slopes = powers - 1.0
        return log_largest_weight(slopes, slopes * self.eps - bounds, self.alphas[: len(terms)])

    def block(self, seed: np.random.SeedSequence, count: int) -> tuple[FloatArray, FloatArray]:
        """Draw samples of the mixture."""
        streams = {draw: generator(seed, draw) for draw in RemoveDraw}
        values = self.gram.sample(streams[RemoveDraw.NORMALS], count)
        chosen, within = streams[RemoveDraw.CHOICES].random((2, count))
        parts = chosen_parts(self.alphas, chosen)
        # Every sample of the mixture gets uniforms for one tuple of each tuple part.
        uniforms = [streams[part.draw].random((count, part.law.order)) for part in self.tuple_parts]
        self._tilt(values, parts, streams[RemoveDraw.TILTS])
        payoffs, densities = np.full(count, -np.inf), np.zeros((count, self.alphas.size))
        for rows in row_batches(values):
            self._shift(values[rows], parts[rows], within[rows])
            tuples = [
                self._shift_by_tuples(values[rows], parts[rows] == slot, part.law, given[rows])
                for slot, part, given in zip(self.slots.tuples, self.tuple_parts, uniforms, strict=True)
            ]
            self._weigh(values[rows], tuples, payoffs[rows], densities[rows])
        return payoffs, densities

    def _weigh(
        self, values: FloatArray, tuples: list[TuplesOfSamples], payoffs: FloatArray, densities: FloatArray
    ) -> None:
        """Set log f and log D where f is not 0."""
        losses = log_mean_exp(values - 0.5 * self.gram.diagonal)
        sided = losses + self.payoff_side
        hits = np.flatnonzero(sided > self.eps)
        if hits.size:
            self.check_reach(values[hits])
            payoffs[hits] = sided[hits] + np.log(-np.expm1(self.eps - sided[hits]))
            densities[hits] = self._densities(values[hits], losses[hits], [one.at(hits) for one in tuples])
            if self.below:
                payoffs[hits[np.isneginf(densities[hits]).any(axis=1)]] = -np.inf

    def _shift(self, values: FloatArray, parts: IntArray, within: FloatArray) -> None:
        """Shift draws of Q to a Gaussian of the part of each sample, chosen by the uniforms `within`."""
        gram, slots = self.gram, self.slots
        rows = np.flatnonzero(parts == slots.nominal)
        bins = np.minimum((within[rows] * gram.bins).astype(np.int64), gram.bins - 1)
        values[rows] += gram.columns(bins)
        rows = np.flatnonzero(parts == slots.scaled)
        bins = self.scaled.draw(gram, within[rows][:, None])[:, 0]
        values[rows] += self.scaled.scale * gram.columns(bins)
        for slot, group in zip(slots.groups, self.groups, strict=True):
            rows = np.flatnonzero(parts == slot)
            if rows.size:
                values[rows] += group.shift(gram, within[rows])

    def _shift_by_tuples(
        self,
        values: FloatArray,
        own: npt.NDArray[np.bool_],
        law: TupleProposal | FreeTuples,
        uniforms: FloatArray,
    ) -> TuplesOfSamples:
        """Shift the draws of a tuple part; the uniforms, shape (m, q), are those of every sample."""
        indices = np.zeros(uniforms.shape, dtype=np.int64)
        rows = np.flatnonzero(own)
        indices[rows] = law.draw(self.gram, uniforms[rows])
        values[rows] += law.shift(self.gram, indices[rows])
        return TuplesOfSamples(law, own, uniforms, indices)

    def _tilt(self, values: FloatArray, parts: IntArray, stream: np.random.Generator) -> None:
        """Transform draws of Q into draws of the collective tilts."""
        first = self.slots.collective.start
        rows = np.flatnonzero(parts >= first)
        if self.collective is not None and rows.size:
            values[rows] = self.collective.draw(parts[rows] - first, values[rows], stream)

    def _densities(self, values: FloatArray, loss: FloatArray, tuples: list[TuplesOfSamples]) -> FloatArray:
        """Log D of every part, shape (m, J); samples of other parts get tuples from the kernels."""
        gram = self.gram
        exponents = values - 0.5 * gram.diagonal
        exponents -= exponents.max(axis=1, keepdims=True)
        density = np.exp(exponents)
        tops = loss - np.log(density.mean(axis=1))

        def powered(scale: float) -> tuple[FloatArray, FloatArray]:
            """The terms a^s up to a factor per row, and the log of their mean."""
            terms = density if scale == 1.0 else np.exp(scale * exponents)
            return terms, scale * tops + np.log(terms.mean(axis=1))

        columns = [loss, powered(self.scaled.scale)[1] - self.scaled.log_bound]
        for one in tuples:
            kernel, power = powered(one.law.scale)
            one.complete(kernel)
            columns.append(one.law.log_density(gram, values, power, one.indices))
        columns.extend(group.log_density(values) for group in self.groups)
        if self.collective is not None:
            columns.extend(self.collective.log_densities(values).T)
        return np.stack(columns, axis=1)


@functools.singledispatch
def remove_mixture(gram: BinGram, eps: float, names: Collection[str] | None = None) -> Proposal:
    """The REMOVE mixture at eps, with equal probabilities.

    Args:
        gram: the Gram matrix.
        eps: the privacy loss level.
        names: parts to include in addition to those that bound the weights; None for all.
    """
    return RemoveProposal.at(gram, eps, names)


@functools.singledispatch
def add_mixture(gram: BinGram, eps: float, names: Collection[str] | None = None) -> Proposal:
    """The ADD mixture at eps; arguments as for `remove_mixture`."""
    return AddProposal.at(gram, eps, names)
