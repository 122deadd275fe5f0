r"""The mixtures from which b-min-sep sampling is sampled: ADD and REMOVE.

**ADD**: Gaussians along one direction, with a proved weight bound. For any other law rho of the
participations the variational formula gives, wherever L <= -eps,

    sum_t rho_t w_t <= L + sum_t rho_t K_tt / 2 + KL(rho || P) <= -c,    rho_t = rho(step t is joined),

c = eps - sum_t rho_t K_tt / 2 - KL(rho || P): the set lies beyond a hyperplane. rho is a tilt, whose
marginals and divergence come from the recursion, chosen to make the distance c / sqrt(rho^T K rho) large.

**REMOVE**: P itself, and chains with other participations and means. A part draws pi from the law of the
participations with each joined step weighted by `e^g_t`, and then y ~ N(C(v + a pi), sigma^2 I). Its density
relative to Q is, with w = C^T y / sigma^2,

    D = e^(v.w - v^T K v / 2) E_pi[exp(sum over t in pi of g_t + a w_t - a (K v)_t - a^2 K_tt / 2)] / M,

M = E_pi[exp(sum of g_t)]: both expectations by the recursion. For any g, a and v the weight f / sum alpha D
has mean delta.

**The bound on the weights.** Let a >= 1, v = 0 and g_t = (a - 1) K_tt / 2. By Hölder's inequality with the
exponents a and a / (a - 1),

    r = E_pi[e^s] <= E_pi[e^(a s - (a - 1)^2 kappa / 2)]^(1/a) E_pi[e^((a - 1) kappa / 2)]^((a - 1)/a)

with s the exponent of pi and kappa = |C pi|^2 / sigma^2. The first expectation is D M, the second one is M:
D >= r^a / M^a, hence on {r >= e^eps} the weight of this part alone is at most e^(-(a - 1) eps) M^a. No other
g gives a smaller bound for this a.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection
from typing import Self

import numpy as np
import scipy

from dpmech.engines.gaussian_mixture.chains import ChainGram, Copies, Tilt, loss_rounding
from dpmech.engines.gaussian_mixture.mixtures import ADD_PARTS, AddProposal, add_mixture, remove_mixture
from dpmech.engines.gaussian_mixture.moments import log_tail_factor
from dpmech.engines.gaussian_mixture.points import AddPoint
from dpmech.engines.gaussian_mixture.proposal import (
    LogError,
    Proposal,
    chosen_parts,
    farthest_normal,
    log_largest_weight,
    sum_product_rounding,
)
from dpmech.engines.gaussian_mixture.streams import RemoveDraw, generator
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray

_STEPS, _SETTLED, _FAR = 40, 1e-9, 1e4


@dataclasses.dataclass(frozen=True)
class ChainAdd(AddProposal):
    """The ADD mixture: as `AddProposal`, with the likelihood ratio of the chain."""

    gram: ChainGram

    @classmethod
    def at(cls, gram: ChainGram, eps: float, names: Collection[str] | None = None) -> Self:  # type: ignore[override]  # of its own Gram matrix
        """The mixture at eps, with equal probabilities."""
        del names
        point = _point(gram, eps)
        curvature = 0.5 * float(point.direction @ gram.diagonal)
        tilts = np.array([max(point.depth + part * curvature, 0.0) for part in ADD_PARTS]) / point.square
        return cls(gram, eps, point, tilts, None, np.full(tilts.size, 1.0 / tilts.size))

    @functools.cached_property
    def loss_rounding(self) -> LogError:
        """Error of the losses by the recursion."""
        return loss_rounding(self.gram, self.farthest)

    def losses(self, values: FloatArray) -> FloatArray:
        """Log dP/dQ of rows w."""
        return self.gram.losses(values)


def _point(gram: ChainGram, eps: float) -> AddPoint:
    half = 0.5 * gram.diagonal
    gains, height = np.zeros(gram.bins), -math.inf
    best = AddPoint(gains, gains, 1.0, 0.0, 0.0)
    for _ in range(_STEPS):
        law = gram.tilt(gains, -1.0)
        direction = law.marginals()
        image = gram.matvec(direction)
        square = float(image @ direction)
        depth = eps - float(direction @ half) - (float(direction @ gains) - law.log_total)
        found = math.copysign(depth**2, depth) / square
        if found > height:
            best = AddPoint(direction, image, square, depth, _rounding(gram, law, eps))
        # If nobody joins with probability above e^-eps the set is empty, and the distance has no limit.
        if depth <= 0.0 or found > _FAR or found - height < _SETTLED * abs(found):
            break
        height = max(height, found)
        gains = 0.5 * gains + 0.5 * (-(depth / square) * image - half)
    return best


def _rounding(gram: ChainGram, law: Tilt, eps: float) -> float:
    """Largest error of the depth: of the recursion, and of two sums with n terms each."""
    gains = float(np.abs(law.gains).max())
    largest = gains + float(gram.diagonal.max())
    total = 1.001 * float(law.marginals().sum())
    recursion = gram.sum_rounding(gains, 8.0 * UNIT * gains, 1.0)
    terms = total * largest * (gram.entry_rounding + (2.0 * gram.bins + 40.0) * UNIT)
    return recursion.error + terms + 8.0 * UNIT * (eps + recursion.size)


add_mixture.register(ChainGram, ChainAdd.at)


# Number of draws to find where a part reaches eps, limit on their entries, and their fixed seed.
_TRIALS, _ENTRIES, _SEED = 64, 2**16, 20
_SCALES = 1.0 + np.geomspace(1e-3, 300.0, 160)
_HALVINGS, _FARTHEST = 12, 2.0**20
# Fraction of the increase that larger means alone would need; a shift of all steps adds the remainder.
_PARTLY = 0.4
# Largest power, and limit on the odds of joining that it uses.
_POWERS, _ODDS = 12.0, 1e3


@dataclasses.dataclass(frozen=True, eq=False)
class ChainPart:
    """One part of the mixture.

    Attributes:
        name: name of the part.
        scale: a; 0 if the shift of means does not depend on participations.
        tilt: the law of the participations, with g and h.
        crossing: h.
        shift: v, shape (n,).
        image: K v, shape (n,).
    """

    name: str
    scale: float
    tilt: Tilt
    crossing: float
    shift: FloatArray
    image: FloatArray

    @classmethod
    def at(
        cls,
        gram: ChainGram,
        name: str,
        scale: float,
        gains: FloatArray,
        shift: FloatArray,
        crossing: float = 0.0,
    ) -> "ChainPart":
        """The part with the given g, a, v and h."""
        return cls(name, scale, gram.tilt(gains, crossing), crossing, shift, gram.matvec(shift))

    @property
    def sizes(self) -> tuple[FloatArray, FloatArray]:
        """Multiples of the mean of a joined step, shape (J,), and the gains of each, shape (J, n)."""
        return np.array([self.scale]), self.tilt.gains[None]

    @property
    def bound(self) -> tuple[float, float]:
        """(a, log s) for which D >= s r^a: of the nominal part, and of those by `scaled_part` without v."""
        return self.scale, -self.scale * self.tilt.log_total

    def reach(self, gram: ChainGram) -> float:
        """Largest distance of the means from 0: few columns of joined steps have rows in common with one."""
        largest = float(self.sizes[0].max())
        near = 2.0 * gram.banded.shape[1] - 1.0 if gram.overlapping else 2.0
        return (float(np.abs(self.shift).sum()) + near * largest) * float(gram.diagonal.max())

    def rounding(self, gram: ChainGram, farthest: float) -> LogError:
        """Error of `log_density`, if no |w| exceeds `farthest`."""
        top, weight = float(gram.diagonal.max()), float(np.abs(self.shift).sum())
        sizes, _ = self.sizes
        count, largest = len(sizes), float(sizes.max())
        image = weight * top
        straight = LogError(
            sum_product_rounding(gram.bins, weight, farthest)
            + weight * gram.product_rounding(weight, weight)
            + sum_product_rounding(gram.bins, weight, image),
            weight * farthest + 0.5 * weight * image,
        )
        if largest == 0.0:
            return straight
        gains = float(np.abs(self.tilt.gains).max()) + self._logs
        size = gains + largest * (farthest + image) + 0.5 * largest**2 * top
        each = largest * gram.product_rounding(weight, weight) + largest**2 * top * gram.entry_rounding
        each += 8.0 * UNIT * size
        if count > 1:
            # Horner's rule for a polynomial of that degree, or the same number of log-additions.
            each += count * (2.0 * ELEMENTARY + 6.0 * UNIT * size) + ELEMENTARY * size
        sums = gram.sum_rounding(size, each, abs(self.crossing) + largest**2)
        total = gram.sum_rounding(gains, 8.0 * UNIT * gains, abs(self.crossing))
        found = straight.plus(sums.error, sums.size)
        return found.plus(total.error, total.size)

    @property
    def _logs(self) -> float:
        """Largest absolute value of the gains of multiples."""
        return 0.0

    def weights(self, gram: ChainGram, rng: np.random.Generator, count: int) -> FloatArray:
        """V + a pi, shape (count, n)."""
        if self.scale == 0.0:
            return np.tile(self.shift, (count, 1))
        return self.shift + self.scale * self.tilt.patterns(rng, count)

    def log_density(self, gram: ChainGram, values: FloatArray, losses: FloatArray) -> FloatArray:
        """Log D of rows w, shape (m,), from their losses."""
        del losses
        straight = values @ self.shift - 0.5 * float(self.shift @ self.image)
        if self.scale == 0.0:
            return straight
        offsets = self.tilt.gains - self.scale * self.image - 0.5 * self.scale**2 * gram.diagonal
        crossing = self.crossing - self.scale**2
        return straight + gram.log_sums(values, self.scale, offsets, crossing) - self.tilt.log_total


@dataclasses.dataclass(frozen=True, eq=False)
class PowerPart(ChainPart):
    r"""A part that also draws a multiple j = 1, 2, ... for the mean of each joined step.

    For independent steps and an integer power a it is `(dP/dQ)^a dQ`, up to a factor: j of a copies of the
    example join, with binomial odds. Each j has separate gains, and the weight of a joined step is their
    total.

    Attributes:
        logs: gains of each j, shape (J, n).
    """

    logs: FloatArray

    @classmethod
    def made(cls, gram: ChainGram, power: float, shift: FloatArray) -> "PowerPart":
        """The part of a power, with a common shift of all steps."""
        odds = math.log(min(gram.odds, _ODDS))
        count = np.arange(1, math.ceil(power) + 1)
        # For a non-integer power, the binomial coefficients up to there are positive.
        ways = np.cumsum(np.log((power - count + 1.0) / count))
        most = (ways + (count - 1) * odds)[:, None]
        logs = most + 0.5 * (count * (count - 1))[:, None] * gram.diagonal
        gains: FloatArray = scipy.special.logsumexp(logs, axis=0)
        return cls("powers", 1.0, gram.tilt(gains, 0.0), 0.0, shift, gram.matvec(shift), logs)

    @property
    def _logs(self) -> float:
        return float(np.abs(self.logs).max())

    @property
    def sizes(self) -> tuple[FloatArray, FloatArray]:
        """J and its gains."""
        return np.arange(1.0, len(self.logs) + 1.0), self.logs

    def weights(self, gram: ChainGram, rng: np.random.Generator, count: int) -> FloatArray:
        """V + j pi, shape (count, n)."""
        joined = self.tilt.patterns(rng, count)
        rows, steps = np.nonzero(joined)
        bounds = np.cumsum(np.exp(self.logs - self.tilt.gains), axis=0)[:, steps]
        drawn = rng.random(rows.size) * bounds[-1]
        joined[rows, steps] = 1.0 + np.minimum((drawn >= bounds).sum(axis=0), len(bounds) - 1)
        return self.shift + joined

    def log_density(self, gram: ChainGram, values: FloatArray, losses: FloatArray) -> FloatArray:
        """Log D of rows w, shape (m,), from their losses."""
        del losses
        from dpmech.engines.gaussian_mixture.chain_kernels import log_powers

        sizes, terms = np.arange(1.0, len(self.logs) + 1.0), np.empty_like(values)
        log_powers(values - self.image, self.logs - 0.5 * (sizes**2)[:, None] * gram.diagonal, terms)
        sums = gram.log_sums(terms, 1.0, np.zeros(gram.bins), 0.0)
        found: FloatArray = values @ self.shift - 0.5 * float(self.shift @ self.image) + sums
        return found - self.tilt.log_total


@dataclasses.dataclass(frozen=True, eq=False)
class CopiesPart:
    """The part with the density r^m e^-A relative to Q.

    Attributes:
        name: name of the part.
        law: the law of the copies.
    """

    name: str
    law: Copies

    @property
    def bound(self) -> tuple[float, float]:
        """As in `ChainPart`; the density is equal to it."""
        return float(self.law.power), -self.law.log_total

    def reach(self, gram: ChainGram) -> float:
        """Largest distance of the means from 0: few columns have rows in common with one."""
        near = 2.0 * gram.banded.shape[1] - 1.0
        return float(self.law.power * near * float(gram.diagonal.max()))

    def rounding(self, gram: ChainGram, farthest: float) -> LogError:
        """Error of `log_density`, if no |w| exceeds `farthest`."""
        found = loss_rounding(gram, farthest).times(float(self.law.power))
        return found.plus(self.law.error, abs(self.law.log_total))

    def weights(self, gram: ChainGram, rng: np.random.Generator, count: int) -> FloatArray:
        """How many copies join each step, for the draws that are kept."""
        del gram
        return self.law.counts(rng, count)

    def log_density(self, gram: ChainGram, values: FloatArray, losses: FloatArray) -> FloatArray:
        """Log D of rows w, shape (m,), from their losses."""
        del gram, values
        return self.law.power * losses - self.law.log_total


@dataclasses.dataclass(frozen=True, eq=False)
class ChainRemove(Proposal):
    """The REMOVE mixture.

    Attributes:
        gram: K of the steps.
        eps: the privacy loss level.
        parts: the nominal part, the star, and others.
        alphas: their probabilities.
        below: as in `Proposal`.
    """

    gram: ChainGram
    eps: float
    parts: tuple[ChainPart | CopiesPart, ...]
    alphas: FloatArray
    below: bool = False

    @classmethod
    def at(cls, gram: ChainGram, eps: float, names: Collection[str] | None = None) -> "ChainRemove":
        """The mixture at eps, with equal probabilities: the first two parts and those that are named."""
        none = np.zeros(gram.bins)
        nominal = ChainPart.at(gram, "nominal", 1.0, none, none)
        star, copies = _bounding(gram, eps)
        wanted = [part for part in copies if names is None or part.name in names]
        parts = [nominal, star, *wanted, *_aimed(gram, eps, names)]
        return cls(gram, eps, tuple(parts), np.full(len(parts), 1.0 / len(parts)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts."""
        return tuple(part.name for part in self.parts)

    @property
    def bounding(self) -> Collection[str]:
        """Name of the star."""
        return ("star",)

    @property
    def log_weight_bound(self) -> float:
        """Log of a proved upper bound on every weight, from the nominal part and the star."""
        power, log_scale = self.parts[1].bound
        slopes = np.array([0.0, power - 1.0])
        logs = np.array([0.0, -log_scale])
        return log_largest_weight(slopes, slopes * self.eps - logs, self.alphas[:2])

    @functools.cached_property
    def farthest(self) -> float:
        """Bound on |w|: the largest mean of all parts plus 40 deviations."""
        top = float(self.gram.diagonal.max())
        return max(part.reach(self.gram) for part in self.parts) + farthest_normal * math.sqrt(top)

    @functools.cached_property
    def loss_rounding(self) -> LogError:
        """Error of the losses by the recursion."""
        return loss_rounding(self.gram, self.farthest)

    @functools.cached_property
    def part_rounding(self) -> LogError:
        """The largest error over all parts."""
        parts = [self.loss_rounding, *(part.rounding(self.gram, self.farthest) for part in self.parts[1:])]
        return LogError(max(one.error for one in parts), max(one.size for one in parts))

    def restricted(self, names: Collection[str]) -> "ChainRemove":
        """Only the parts of these names, the nominal part and the star."""
        kept = [place < 2 or part.name in names for place, part in enumerate(self.parts)]
        alphas = self.alphas[np.array(kept)]
        parts = tuple(part for part, keep in zip(self.parts, kept, strict=True) if keep)
        return dataclasses.replace(self, parts=parts, alphas=alphas / alphas.sum())

    def payoffs_at(self, log_payoffs: FloatArray, eps: float) -> FloatArray:
        """Log (r - e^eps)_+ from log (r - e^eps')_+, eps' <= eps."""
        return _payoffs(np.where(log_payoffs > -np.inf, np.logaddexp(log_payoffs, self.eps), -np.inf), eps)

    def block(self, seed: np.random.SeedSequence, count: int) -> tuple[FloatArray, FloatArray]:
        """Draw samples of the mixture."""
        gram = self.gram
        rows = generator(seed, RemoveDraw.NORMALS).standard_normal((count, gram.bins))
        chosen = chosen_parts(self.alphas, generator(seed, RemoveDraw.CHOICES).random(count))
        joining = generator(seed, RemoveDraw.TILTS)
        kept = np.ones(count, dtype=np.bool_)
        for place, part in enumerate(self.parts):
            own = np.flatnonzero(chosen == place)
            if own.size:
                weights = part.weights(gram, joining, own.size)
                # Normal numbers of a part's rows are alike, so that the last ones may be the rejected ones.
                rows[own[: len(weights)]] += gram.means(weights)
                kept[own[len(weights) :]] = False
        values = gram.correlated(rows[kept])
        losses = np.full(count, -np.inf)
        losses[kept] = gram.losses(values)
        payoffs = _payoffs(losses + self.payoff_side, self.eps)
        densities = np.zeros((count, self.alphas.size))
        hits = np.flatnonzero(payoffs > -np.inf)
        reached = values[(payoffs > -np.inf)[kept]]
        self.check_reach(reached)
        densities[hits, 0] = losses[hits]
        for place, part in enumerate(self.parts[1:], 1):
            densities[hits, place] = part.log_density(gram, reached, losses[hits])
        return payoffs, densities


def _payoffs(losses: FloatArray, eps: float) -> FloatArray:
    out = np.full(losses.shape, -np.inf)
    hits = losses > eps
    out[hits] = losses[hits] + np.log(-np.expm1(eps - losses[hits]))
    return out


def scaled_part(gram: ChainGram, name: str, scale: float, shift: FloatArray | None = None) -> ChainPart:
    """The part with means a times as large, and the best participations for that."""
    still = np.zeros(gram.bins) if shift is None else shift
    return ChainPart.at(gram, name, scale, 0.5 * (scale - 1.0) * gram.diagonal, still, scale - 1.0)


def _bounding(gram: ChainGram, eps: float) -> tuple[ChainPart | CopiesPart, list[CopiesPart]]:
    """The part with the smallest weight bound, and those like it."""
    scaled = scaled_part(gram, "star", _best_scale(gram, eps))
    parts = [CopiesPart("star", law) for law in gram.copies(eps)]

    def log_bound(part: ChainPart | CopiesPart) -> float:
        power, log_scale = part.bound
        return log_tail_factor(power, eps) - log_scale

    if not parts or not log_bound(parts[0]) < log_bound(scaled):
        return scaled, []
    star = parts[0]
    return star, [
        dataclasses.replace(part, name="a copy less" if part.law.power < star.law.power else "a copy more")
        for part in parts[1:]
    ]


def _best_scale(gram: ChainGram, eps: float) -> float:
    """The a with the smallest weight bound."""

    def bound(scale: float) -> float:
        total = gram.tilt(0.5 * (scale - 1.0) * gram.diagonal, scale - 1.0).log_total
        return scale * total - (scale - 1.0) * eps

    best, last = 1.0, 0.0
    for scale in _SCALES.tolist():
        found = bound(scale)
        if not found < last:
            break
        best, last = scale, found
    return best


def _aimed(gram: ChainGram, eps: float, names: Collection[str] | None) -> list[ChainPart]:
    """Parts with losses of about eps, each reached in a different way."""
    rng = np.random.default_rng(_SEED)
    trials = max(8, min(_TRIALS, _ENTRIES // gram.bins))
    normals, seed = rng.standard_normal((trials, gram.bins)), rng.integers(2**63)
    none, level = np.zeros(gram.bins), np.full(gram.bins, gram.rate)

    def loss(part: ChainPart) -> float:
        drawn = part.weights(gram, np.random.default_rng(seed), trials)
        return float(np.median(gram.losses(gram.correlated(normals + gram.means(drawn)))))

    def solved(make: Callable[[float], ChainPart]) -> ChainPart:
        low, high = 0.0, 1.0
        while loss(make(high)) < eps and high < _FARTHEST:
            low, high = high, 2.0 * high
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if loss(make(middle)) >= eps else (middle, high)
        return make(high)

    def wanted(name: str) -> bool:
        return names is None or name in names

    parts: list[ChainPart] = []
    if wanted("all steps"):
        parts.append(solved(lambda h: ChainPart.at(gram, "all steps", 0.0, none, h * level)))
    if wanted("joined, all steps"):
        parts.append(solved(lambda h: ChainPart.at(gram, "joined, all steps", 1.0, none, h * level)))
    if wanted("powers") and not gram.overlapping:
        if loss(PowerPart.made(gram, _POWERS, none)) >= eps:
            parts.append(solved(lambda a: PowerPart.made(gram, min(1.0 + a, _POWERS), none)))
        else:
            parts.append(solved(lambda h: PowerPart.made(gram, _POWERS, h * level)))
    if wanted("scaled") or wanted("scaled, all steps"):
        scaled = solved(lambda a: scaled_part(gram, "scaled", 1.0 + a))
        if wanted("scaled"):
            parts.append(scaled)
        if wanted("scaled, all steps"):
            partly = 1.0 + _PARTLY * (scaled.scale - 1.0)
            parts.append(solved(lambda h: scaled_part(gram, "scaled, all steps", partly, h * level)))
    return parts


remove_mixture.register(ChainGram, ChainRemove.at)
