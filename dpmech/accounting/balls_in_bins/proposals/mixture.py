r"""Mixtures of proposals for the two directions of the Balls-in-Bins pair, and their samples.

A proposal draws (y, i), y the statistics of `gram` and i a tuple of bins, from a mixture whose parts all
have known densities D_j against `Q(dy) kappa(i|y)` (see `tuples.py`). The weight of a sample is
`f(y) / sum_j alpha_j D_j`, with `f = (e^L - e^eps)_+` for REMOVE and `(1 - e^(eps + L))_+` for ADD; its
mean is the delta of that direction, exactly, whatever the alpha_j.
"""

import abc
import dataclasses
import math
from typing import Self

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.proposals.all_bins_tilt import CollectiveParts
from dpmech.accounting.balls_in_bins.proposals.design_points import (
    AddPoint,
    add_point,
    remove_points,
    set_starts,
)
from dpmech.accounting.balls_in_bins.proposals.gaussian_groups import LiftedGroup, PointGroup, log_mean_exp
from dpmech.accounting.balls_in_bins.proposals.tuples import (
    FreeTuples,
    TupleProposal,
    best_tuple_proposal,
    draw_rows,
    tuple_proposal,
)
from dpmech.numerics import FloatArray, IntArray

__all__ = ["AddProposal", "Proposal", "RemoveProposal"]


LOCAL_BINS = 768
SET_SIZES = (2, 3, 6)
SETS_EACH = 20
PEAK_SHARES = (0.03, 0.1, 0.25, 0.5, 0.75)
SET_SEED = 20
BOUND_GRID = 4096
ADD_PARTS = (0.0, 0.5, 1.0)


class Proposal(abc.ABC):
    """A mixture with known part densities; immutable and picklable.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level, at least 0.
    """

    gram: BinGram
    eps: float

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

    @abc.abstractmethod
    def reweighted(self, weights: FloatArray) -> Self:
        """The same parts with other probabilities."""

    @abc.abstractmethod
    def block(self, seed: np.random.SeedSequence, count: int) -> tuple[FloatArray, FloatArray]:
        """`count` independent samples: log f, shape (count,), and log D, shape (count, J).

        Where f = 0, log f is -inf and log D is 0.
        """

    def log_weights(self, log_payoffs: FloatArray, log_densities: FloatArray) -> FloatArray:
        """Logs of the weights f / sum_j alpha_j D_j, shape (m,)."""
        return log_payoffs - scipy.special.logsumexp(log_densities, axis=1, b=self.weights)


@dataclasses.dataclass(frozen=True)
class RemoveProposal(Proposal):
    """The REMOVE mixture: nominal P, tuples of bins, the scaled component, design points, collective tilts.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level.
        scaled: the tuple proposal of order 1.
        star: the tuple proposal that bounds the weights, or None where K is too large to be read.
        free: uniform tuples; None with `star`.
        groups: Gaussians at design points.
        collective: tilts of all bins; None where bins are correlated, or one bin decides.
        alphas: probabilities of the parts, in the order of `names`.
    """

    gram: BinGram
    eps: float
    scaled: TupleProposal
    star: TupleProposal | None
    free: FreeTuples | None
    groups: tuple[PointGroup | LiftedGroup, ...]
    collective: CollectiveParts | None
    alphas: FloatArray

    @classmethod
    def at(cls, gram: BinGram, eps: float) -> Self:
        """The mixture at eps with all its parts, equally probable."""
        bins, half = gram.bins, 0.5 * gram.diagonal
        heaviest = int(np.argmax(half))
        reach = (eps + float(half[heaviest]) + math.log(bins)) / (2.0 * float(half[heaviest]))
        scaled = tuple_proposal(gram, max(1.0, reach), 1)
        star = best_tuple_proposal(gram, eps) if gram.cheap_columns else None
        free = FreeTuples.at(gram, eps) if gram.cheap_columns else None
        groups: list[PointGroup | LiftedGroup] = []
        if bins > 1:
            if gram.circulant:
                first = np.zeros((1, bins))
                first[0, 0] = 1.0
                groups.append(PointGroup.at(gram, "local", remove_points(gram, eps, first), orbit=True))
            elif bins <= LOCAL_BINS:
                groups.append(PointGroup.at(gram, "local", remove_points(gram, eps, np.eye(bins))))
            uniform = np.full((1, bins), 1.0 / bins)
            groups.append(PointGroup.at(gram, "uniform", remove_points(gram, eps, uniform, steps=0)))
            groups.extend(LiftedGroup.at(gram, eps, share) for share in PEAK_SHARES)
            rng = np.random.default_rng(SET_SEED)
            for size in (size for size in SET_SIZES if size < bins):
                tilts = remove_points(gram, eps, set_starts(bins, size, SETS_EACH, rng), steps=2)
                groups.append(PointGroup.at(gram, f"sets of {size}", tilts))
        collective = CollectiveParts.rising(gram, eps)
        parts = 2 + 2 * (star is not None) + len(groups)
        parts += len(collective.parts) if collective is not None else 0
        return cls(gram, eps, scaled, star, free, tuple(groups), collective, np.full(parts, 1.0 / parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The parts."""
        tuples = ("star", "free tuples") if self.star is not None else ()
        together = self.collective.names if self.collective is not None else ()
        return ("nominal", "scaled", *tuples, *(group.name for group in self.groups), *together)

    @property
    def weights(self) -> FloatArray:
        """Probabilities of the parts."""
        return self.alphas

    def reweighted(self, weights: FloatArray) -> "RemoveProposal":
        """The same parts with other probabilities."""
        return dataclasses.replace(self, alphas=weights)

    @property
    def log_weight_bound(self) -> float:
        r"""Log of an upper bound on every weight, proved.

        Nominal, scaled and star parts have `D >= r^p / B` (`tuples`; p = 1, B = 1 for the nominal
        one), so the weight is at most `(r - e^eps) / sum_j alpha_j r^p_j / B_j` on {r >= e^eps}. With r =
        e^(eps + x) this is `N(x) / D(x)`, `N = 1 - e^-x` and `D = sum_j alpha_j e^((p_j - 1)(eps + x)) /
        B_j` both non-decreasing, so its supremum over a cell [x, x'] is at most N(x') / D(x), and beyond
        the last node 1 / D.
        """
        terms = [(1.0, 0.0), (self.scaled.power, self.scaled.log_bound)]
        if self.star is not None:
            terms.append((self.star.power, self.star.log_bound))
        powers, bounds = np.array(terms).T[:, :, None]
        nodes = np.concatenate([[0.0], np.geomspace(1e-9, 1e3, BOUND_GRID)])
        logs = (powers - 1.0) * (self.eps + nodes) - bounds
        below = scipy.special.logsumexp(logs, axis=0, b=self.alphas[: len(terms), None])
        above = np.append(np.log(-np.expm1(-nodes[1:])), 0.0)
        return float(np.max(above - below))

    def block(self, seed: np.random.SeedSequence, count: int) -> tuple[FloatArray, FloatArray]:
        """Samples of the mixture."""
        gram = self.gram
        normals, choices, *tuple_seeds, tilts = (np.random.default_rng(child) for child in seed.spawn(5))
        values = gram.sample(normals, count)
        chosen, within = choices.random((2, count))
        bounds = np.cumsum(self.alphas)
        parts = np.minimum(np.searchsorted(bounds, chosen * bounds[-1], side="right"), bounds.size - 1)
        rows = [np.flatnonzero(parts == part) for part in range(bounds.size)]
        bins = np.minimum((within[rows[0]] * gram.bins).astype(np.int64), gram.bins - 1)
        values[rows[0]] += gram.columns(bins)
        bins = self.scaled.draw(gram, within[rows[1]][:, None])[:, 0]
        values[rows[1]] += self.scaled.scale * gram.columns(bins)
        uniforms = [np.empty((count, 0))] * 2
        tuples = [np.empty((count, 0), dtype=np.int64)] * 2
        first = 2
        if self.star is not None and self.free is not None:
            orders = (self.star.order, self.free.order)
            uniforms = [rng.random((count, order)) for rng, order in zip(tuple_seeds, orders, strict=True)]
            tuples = [np.zeros((count, order), dtype=np.int64) for order in orders]
            tuples[0][rows[2]] = self.star.draw(gram, uniforms[0][rows[2]])
            values[rows[2]] += self.star.scale * gram.column_sums(tuples[0][rows[2]])
            tuples[1][rows[3]] = self.free.draw(gram.bins, uniforms[1][rows[3]])
            values[rows[3]] += self.free.shift(gram, tuples[1][rows[3]])
            first = 4
        for part, group in enumerate(self.groups, start=first):
            if rows[part].size:
                values[rows[part]] += group.shift(gram, within[rows[part]])
        first += len(self.groups)
        together = np.flatnonzero(parts >= first)
        if self.collective is not None and together.size:
            values[together] = self.collective.draw(parts[together] - first, values[together], tilts)
        payoffs, densities = np.full(count, -np.inf), np.zeros((count, bounds.size))
        losses = log_mean_exp(values - 0.5 * gram.diagonal)
        hits = np.flatnonzero(losses > self.eps)
        if hits.size:
            loss = losses[hits]
            payoffs[hits] = loss + np.log(-np.expm1(self.eps - loss))
            drawn = [(one[hits], two[hits]) for one, two in zip(tuples, uniforms, strict=True)]
            densities[hits] = self._densities(values[hits], loss, parts[hits], drawn)
        return payoffs, densities

    def _densities(
        self, values: FloatArray, loss: FloatArray, parts: IntArray, drawn: list[tuple[IntArray, FloatArray]]
    ) -> FloatArray:
        """Log D of every part, shape (m, J), tuples of other parts' samples completed from their kernels."""
        gram = self.gram
        exponents = values - 0.5 * gram.diagonal
        exponents -= exponents.max(axis=1, keepdims=True)
        density = np.exp(exponents)
        tops = loss - np.log(density.mean(axis=1))

        def completed(part: int, scale: float) -> tuple[IntArray, FloatArray]:
            tuples, uniforms = drawn[part - 2]
            powered = density if scale == 1.0 else np.exp(scale * exponents)
            other = np.flatnonzero(parts != part)
            tuples[other] = draw_rows(powered[other], uniforms[other])
            return tuples, scale * tops + np.log(powered.mean(axis=1))

        power = self.scaled.scale * tops + np.log(np.exp(self.scaled.scale * exponents).mean(axis=1))
        columns = [loss, power - self.scaled.log_bound]
        if self.star is not None and self.free is not None:
            tuples, power = completed(2, self.star.scale)
            columns.append(self.star.order * power - self.star.log_ratios(gram, tuples))
            tuples, power = completed(3, 1.0)
            columns.append(self.free.log_density(gram, values, power, tuples))
        columns.extend(group.log_density(values) for group in self.groups)
        if self.collective is not None:
            columns.extend(self.collective.log_densities(values).T)
        return np.stack(columns, axis=1)


@dataclasses.dataclass(frozen=True)
class AddProposal(Proposal):
    """The ADD mixture: Gaussians N(-tau K w, K) along one direction w, with a proved weight bound.

    A collective tilt joins them where bins are nearly independent; the bound does not rest on it.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level.
        point: the direction.
        tilts: tau of each Gaussian part, non-negative.
        collective: the tilt of all bins, or None.
        alphas: probabilities of the parts, shape (J,).
    """

    gram: BinGram
    eps: float
    point: AddPoint
    tilts: FloatArray
    collective: CollectiveParts | None
    alphas: FloatArray

    @classmethod
    def at(cls, gram: BinGram, eps: float) -> Self:
        """The mixture at eps, with equal probabilities.

        The first part reaches the hyperplane that bounds {L <= -eps}, or is Q where that does not exclude
        0; the others reach further, up to where the mean of r is e^-eps, since L exceeds its value at the
        mean by up to K_ll / 2.
        """
        point = add_point(gram, eps)
        curvature = 0.5 * float(point.direction @ gram.diagonal)
        tilts = np.array([max(point.depth + part * curvature, 0.0) for part in ADD_PARTS]) / point.square
        collective = CollectiveParts.falling(gram, eps)
        parts = tilts.size + (collective is not None)
        return cls(gram, eps, point, tilts, collective, np.full(parts, 1.0 / parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The parts."""
        together = self.collective.names if self.collective is not None else ()
        return (*(f"shift {part:.0%}" for part in ADD_PARTS), *together)

    @property
    def weights(self) -> FloatArray:
        """Probabilities of the parts."""
        return self.alphas

    @property
    def log_weight_bound(self) -> float:
        """Log of an upper bound on every weight, proved.

        A weight is not 0 only where L <= -eps; there `u = -w . y >= c` (`add_point`, for any w), f <= 1, and
        `D_j = exp(tau_j u - tau_j^2 w^T K w / 2)` is at least its value at u = c.
        """
        depths = self.tilts * self.point.depth - 0.5 * self.tilts**2 * self.point.square
        return -float(scipy.special.logsumexp(depths, b=self.alphas[: depths.size]))

    def reweighted(self, weights: FloatArray) -> "AddProposal":
        """The same parts with other probabilities."""
        return dataclasses.replace(self, alphas=weights)

    def block(self, seed: np.random.SeedSequence, count: int) -> tuple[FloatArray, FloatArray]:
        """Samples of the mixture."""
        normal_seed, choice_seed, tilt_seed = seed.spawn(3)
        values = self.gram.sample(np.random.default_rng(normal_seed), count)
        bounds = np.cumsum(self.alphas)
        choices = np.random.default_rng(choice_seed).random(count) * bounds[-1]
        parts = np.minimum(np.searchsorted(bounds, choices, side="right"), bounds.size - 1)
        values -= np.append(self.tilts, 0.0)[parts][:, None] * self.point.image
        together = np.flatnonzero(parts == self.tilts.size)
        if self.collective is not None and together.size:
            only = np.zeros(together.size, dtype=np.int64)
            tilt = np.random.default_rng(tilt_seed)
            values[together] = self.collective.draw(only, values[together], tilt)
        payoffs = np.full(count, -np.inf)
        densities = np.zeros((count, self.alphas.size))
        losses = log_mean_exp(values - 0.5 * self.gram.diagonal)
        hits = np.flatnonzero(losses < -self.eps)
        payoffs[hits] = np.log(-np.expm1(self.eps + losses[hits]))
        along = -(values[hits] @ self.point.direction)
        gaussian = along[:, None] * self.tilts - 0.5 * self.tilts**2 * self.point.square
        densities[hits, : self.tilts.size] = gaussian
        if self.collective is not None and hits.size:
            densities[hits, self.tilts.size :] = self.collective.log_densities(values[hits])
        return payoffs, densities
