r"""Composition of independent mechanisms of several kinds on the same people: bounds on both directions.

Gaussian releases combine to one Gaussian release, in closed form. Poisson-sampled releases of a single kind
are steps of one run, whose transform is inverted. All other losses go onto one lattice: each is replaced by a
dominating loss, and they are composed together by FFT under a tilt. The Gaussian loss is added afterwards,
exactly, by H_a(P x P' || Q x Q') = E_P H_(a e^-L)(P' || Q') for the loss L of (P, Q). The lattice thus only
has to resolve losses without a closed form. For lower bounds, curves known at nodes are replaced by a
dominated loss or omitted, which post-processing allows.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import scipy

from dpmech.engines.losses import (
    LOG_WRAP,
    MAX_LENGTH,
    Direction,
    FewLines,
    JointMoments,
    Loss,
    LossMoments,
    PoissonRelease,
    ReplacedLoss,
    compose_all,
    lower_lattice,
    upper_lattice,
)
from dpmech.engines.profiles.atoms import LossAtoms, LowerAtoms
from dpmech.engines.profiles.curves import Curve, SampledPart, grouped
from dpmech.engines.profiles.exact_losses import ExactLoss
from dpmech.engines.profiles.gaussian_envelope import gaussian_ends, gaussian_epsilon_ends
from dpmech.engines.profiles.tradeoff import Stick
from dpmech.exceptions import UnattainableBudgetError
from dpmech.numerics import (
    ELEMENTARY,
    Ladder,
    quotient_down,
    quotient_up,
    sum_down,
    sum_up,
    up,
)

_Kind = TypeVar("_Kind", Curve, ExactLoss)
# A bound on delta at any eps.
Bound = Callable[[float], float]

# Resolution of a search for eps, and its maximum number of probes.
_RESOLUTION, _PROBES = 1e-6, 60
_LARGEST_EPS = 1e6
_NOTHING = 1e-300


def crossing(bound: Bound, delta: float, near: float, *, safe: bool) -> float:
    """Where a bound passes delta: on the far side if `safe`, else on the near one; infinite if nowhere.

    Every returned eps > 0 was evaluated. A bound may be weak far from the eps for which it was built.
    """
    if safe and bound(0.0) <= delta:
        return 0.0
    low, high, step = 0.0, max(near, 1e-9), 0.01
    if bound(high) > delta:
        while bound(high) > delta:
            low, high, step = high, high * (1.0 + step) + 1e-9, 2.0 * step
            if high > _LARGEST_EPS:
                return math.inf if safe else low
    else:
        while high > 0.0:
            low, step = high * max(1.0 - step, 0.0), 2.0 * step
            if low == 0.0 or bound(low) > delta:
                break
            high = low
        if low == 0.0 and not safe and bound(low) <= delta:
            return 0.0
    return _narrowed(lambda eps: math.log(max(bound(eps), _NOTHING) / delta), low, high)[1 if safe else 0]


def _narrowed(excess: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Two points around a root of a decreasing function, > 0 at the first one and <= 0 at the second.

    Secant steps that aim slightly to either side in turn; every third probe halves the bracket.
    """
    above, below = excess(low), excess(high)
    for probe in range(_PROBES):
        width = high - low
        if width <= _RESOLUTION * high:
            break
        at = low + 0.5 * width
        if probe % 3 != 2 and math.isfinite(above - below) and above > below:
            aside = 0.4 * _RESOLUTION * high
            root = low + width * above / (above - below) + (aside if probe % 3 == 0 else -aside)
            at = min(max(root, low + 0.02 * aside), high - 0.02 * aside)
        value = excess(at)
        if value > 0.0:
            low, above = at, value
        else:
            high, below = at, value
    return low, high


# Share of the tolerance, in log delta, that the first lattice should use.
_OF_DELTA = 0.5
# Number of steps on one ladder, and the lattice length that only a first step may exceed.
_RUNGS = 4
_USUAL_LENGTH = 1 << 22
# Up to this number of kinds of sampled releases, each may have a lattice of the largest size.
_KINDS = 4
# Outputs of a sampled release with probability below this, in log, relative to delta, count as tails.
_TAIL = -21.0
_FARTHEST = 38.0
# Finite losses below e^-8 of the infinite one are negligible; the tilt at which reductions of a tilt stop;
# the smallest standard deviation of a sum for which a lattice is built.
_BESIDE, _SMALLEST_TILT, _LEAST_SPREAD = 8.0, 1e-3, 0.02
_LARGEST_TILT, _USUAL_TILT = 1e4, 60.0
# Share of delta for finite losses, at least, in an estimate of eps.
_LEAST_FINITE = 0.1
# From here on, in log, Chernoff's bound at a saddle point is that of a largest loss.
_AT_END = 10.0
# How often a lattice is rebuilt around an eps in a search, and which distance counts as near.
_LOOKS = 3
_NEAR = 0.05
# A tilt may be reduced until Chernoff's bound is above delta by this, in log; rounding stays negligible.
_UNTILTED = 7.0


@dataclasses.dataclass(frozen=True)
class Composition:
    """The mechanisms that are composed.

    Args:
        gaussian: (sensitivity / sigma)^2 summed over unsampled releases, lower and upper bound. The first may
            include a release that stands for `curves` whose lower bounds are 0.
        sampled: Poisson-sampled releases, each kind at most once.
        curves: curves that are known at nodes, each with its multiplicity.
        exact: losses that are known exactly or nearly so, each with its multiplicity.
    """

    gaussian: tuple[float, float] = (0.0, 0.0)
    sampled: tuple[SampledPart, ...] = ()
    curves: tuple[tuple[Curve, int], ...] = ()
    exact: tuple[tuple[ExactLoss, int], ...] = ()

    @classmethod
    def joined(cls, every: Sequence["Composition"]) -> "Composition":
        """Several compositions in one; multiplicities of a curve or loss that is one object are added."""
        return cls(
            (sum_down(one.gaussian[0] for one in every), sum_up(one.gaussian[1] for one in every)),
            grouped(part for one in every for part in one.sampled),
            _counted(pair for one in every for pair in one.curves),
            _counted(pair for one in every for pair in one.exact),
        )

    @property
    def known(self) -> tuple[tuple[Curve | ExactLoss, int], ...]:
        """Everything that enters as a loss on finitely many values, each with its multiplicity."""
        return (*self.curves, *self.exact)

    @property
    def symmetric(self) -> bool:
        """Whether both directions have the same curve."""
        return not self.curves and all(part.replaced for part in self.sampled)

    @property
    def only_gaussian(self) -> bool:
        """Whether there are unsampled Gaussian releases only, or none."""
        return not (self.sampled or self.known)

    @property
    def releases(self) -> int:
        """Number of losses that are added; all Gaussian releases together count as one."""
        steps = sum(part.steps for part in self.sampled) + sum(times for _, times in self.known)
        return steps + (self.gaussian[1] > 0.0)

    def tilt(self, eps: float, *, add: bool) -> float:
        """Approximate rate at which log delta falls with eps >= 0 in one direction: Chernoff's theta."""
        return _Side(self, add=add).tilt(eps)

    def rough_log_delta(self, eps: float, *, add: bool) -> float:
        """Approximate log of Chernoff's bound on one direction at eps >= 0: for starting points only."""
        return _Side(self, add=add).rough_log_delta(eps)

    def never(self, *, add: bool) -> float:
        """The limit of the upper bounds on one direction for large eps, rounded to nearest."""
        masses = [(curve.atoms(add=add).infinite, times) for curve, times in self.known]
        if any(mass >= 1.0 for mass, _ in masses):
            return 1.0
        return -math.expm1(sum(times * math.log1p(-mass) for mass, times in masses))

    def delta(self, eps: float, *, add: bool, tolerance: float) -> tuple[float, float]:
        """Lower and upper bound on one direction at any real eps.

        Args:
            eps: any real number.
            add: H(Q || P); else H(P || Q).
            tolerance: approximate change of either bound by a lattice, in log delta.

        Raises:
            NumericalError: if no affordable lattice bounds it.
        """
        if eps < 0.0:
            # H_{e^eps}(P || Q) = 1 - e^eps + e^eps H_{e^-eps}(Q || P)
            lower, upper = self.delta(-eps, add=not add, tolerance=tolerance)
            base, factor, off = -math.expm1(eps), math.exp(eps), 4.0 * ELEMENTARY
            return (base + factor * lower) * (1.0 - off), min(1.0, (base + factor * upper) * (1.0 + off))
        side = _Side(self, add=add)
        if (release := side.only_poisson) is not None:
            return side.poisson(eps, tolerance, release)
        upper = side.upper(eps, tolerance)(eps)
        return min(side.lower(eps, tolerance)(eps), upper), upper

    def follow(self, *, add: bool, tolerance: float) -> tuple[Bound, Stick]:
        """The upper bound and `delta`, as functions of eps >= 0, for many eps.

        What is computed at one of them serves others: the bounds are those of `delta` up to the tolerance,
        and depend on what was evaluated before.
        """
        side = _Side(self, add=add)
        if (release := side.only_poisson) is None:
            ends = functools.partial(self.delta, add=add, tolerance=tolerance)
            return functools.partial(self.upper_delta, add=add, tolerance=tolerance), ends
        lines = FewLines(Direction(release, 1.0, remove=not add), tolerance)
        return lines.upper, functools.partial(side.on_lines, lines, tight=release.tight)

    def upper_delta(self, eps: float, *, add: bool, tolerance: float) -> float:
        """The upper bound of `delta` at eps >= 0 alone, for much less computing."""
        return _Side(self, add=add).upper(eps, tolerance)(eps)

    def epsilon(self, delta: float, *, add: bool, tolerance: float) -> tuple[float, float]:
        """Lower and upper bound on the smallest eps >= 0 at which one direction is at most `delta`.

        Raises:
            UnattainableBudgetError: if the direction exceeds `delta` at every eps that was evaluated.
            NumericalError: as for `delta`.
        """
        if self.only_gaussian:
            return gaussian_epsilon_ends(self.gaussian, delta)
        side = _Side(self, add=add)
        if side.says_nothing:
            raise UnattainableBudgetError(math.inf, delta, "a curve that is composed bounds nothing")
        near = side.rough_epsilon(delta)
        for _ in range(_LOOKS):
            bound, before = side.upper(near, tolerance), near
            near = crossing(bound, delta, near, safe=True)
            if math.isinf(near):
                least = bound(_LARGEST_EPS)
                raise UnattainableBudgetError(
                    math.inf, delta, f"delta is bounded by {up(least)} however large eps is"
                )
            if abs(near - before) <= _NEAR * near:
                break
        lower, at = 0.0, near
        for _ in range(_LOOKS):
            lower = max(lower, crossing(side.lower(at, tolerance), delta, at, safe=False))
            if abs(at - lower) <= _NEAR * at:
                break
            # Near the largest loss the tilt is so steep that smaller losses are below rounding errors.
            at = lower
        return min(lower, near), near


class _Side:
    """One direction, at eps >= 0."""

    def __init__(self, whole: Composition, *, add: bool) -> None:
        self.whole, self.add = whole, add
        self.atoms: list[tuple[LossAtoms, int]] = [
            (curve.atoms(add=add), times) for curve, times in whole.known
        ]

    @functools.cached_property
    def _below(self) -> list[tuple[LowerAtoms, int]]:
        return [(curve.atoms_below(add=self.add), times) for curve, times in self.whole.known]

    @property
    def says_nothing(self) -> bool:
        """Whether the bounds of some curve are 1 everywhere, so that its loss may be infinite."""
        return any(one.losses.size == 0 for one, _ in self.atoms)

    def rough_epsilon(self, delta: float) -> float:
        """An estimate of eps at delta."""
        finite = delta - sum(times * one.infinite for one, times in self.atoms)
        log_finite, rough = math.log(max(finite, _LEAST_FINITE * delta)), self._rough
        near = rough.saddle_eps(log_finite)
        # At the largest loss, delta falls from its probability to 0: a lattice for it would be too coarse.
        end = rough.chernoff_log_delta(near) > log_finite + _AT_END
        return rough.chernoff_eps(log_finite) if end else near

    def rough_log_delta(self, eps: float) -> float:
        """Approximate log of Chernoff's bound at eps."""
        return self._rough.chernoff_log_delta(eps)

    def tilt(self, eps: float) -> float:
        """Approximate theta of Chernoff's bound at eps."""
        return self._rough.tilt_for_eps(eps)

    @property
    def _rough(self) -> JointMoments:
        losses = [self._loss(part, upper=True) for part in self.whole.sampled]
        return self._moments(losses, [part.steps for part in self.whole.sampled], self.whole.gaussian[1])

    @functools.cached_property
    def most(self) -> float:
        """What the sum of all losses never exceeds: in ADD, -log(1 - q) for each sampled release."""
        whole = self.whole
        if (
            not self.add
            or whole.known
            or whole.gaussian[1] > 0.0
            or any(part.replaced for part in whole.sampled)
        ):
            return math.inf
        return -sum(part.steps * math.log1p(-part.sampling_prob) for part in whole.sampled) * (1.0 + 1e-12)

    def upper(self, near: float, tolerance: float) -> Bound:
        """An upper bound at every eps >= 0, built for one of them."""
        whole = self.whole
        if self.says_nothing:
            return _known(upper=True)
        if near > self.most:
            # Lattices would take seconds to find 0; a search that goes below asks for one there.
            below = functools.cache(lambda: self.upper(self.most, tolerance))
            return lambda eps: 0.0 if eps > self.most else below()(eps)
        kinds = len(whole.sampled) + len(whole.known)
        if kinds == 0:
            return lambda eps: gaussian_ends(whole.gaussian[1], eps)[1]
        if kinds == 1 and whole.gaussian[1] == 0.0:
            if (release := self.only_poisson) is not None:
                return lambda eps: self.poisson(eps, tolerance, release)[1]
            if self.atoms and self.atoms[0][1] == 1:
                return self.atoms[0][0].delta
        return self._on_lattices(near, tolerance, upper=True)

    def lower(self, near: float, tolerance: float) -> Bound:
        """A lower bound at every eps >= 0, built for one of them."""
        if near > self.most:
            return _known(upper=False)
        known, curves = self._known_below(near, tolerance), self.whole.known
        return lambda eps: max([known(eps), *(curve.lower(eps, add=self.add) for curve, _ in curves)])

    def _known_below(self, near: float, tolerance: float) -> Bound:
        """A lower bound from all available lower bounds."""
        square = self.whole.gaussian[0]
        tight = tuple(part for part in self.whole.sampled if part.tight)
        below = dataclasses.replace(
            self.whole,
            sampled=tight,
            curves=tuple(one for one in self.whole.curves if self._tells(one[0])),
            exact=tuple(one for one in self.whole.exact if self._tells(one[0])),
        )
        if below.known:
            if len(below.known) == 1 and below.known[0][1] == 1 and not tight and square == 0.0:
                return _known(upper=False)
            return _Side(below, add=self.add)._on_lattices(near, tolerance, upper=False)
        if not tight:
            return lambda eps: gaussian_ends(square, eps)[0]
        if len(tight) == 1 and square == 0.0 and isinstance(release := tight[0].release, PoissonRelease):
            return lambda eps: self.poisson(eps, tolerance, release)[0]
        side = _Side(Composition(self.whole.gaussian, tight), add=self.add)
        return side._on_lattices(near, tolerance, upper=False)

    def _tells(self, curve: Curve | ExactLoss) -> bool:
        """Whether anything is known about a curve from below."""
        if curve.atoms(add=self.add).losses.size == 0:
            return False
        return not curve.atoms_below(add=self.add).says_nothing

    @property
    def only_poisson(self) -> PoissonRelease | None:
        """The releases, if they are steps of one run with Poisson sampling."""
        whole = self.whole
        if len(whole.sampled) != 1 or whole.known or whole.gaussian[1] > 0.0:
            return None
        release = whole.sampled[0].release
        return release if isinstance(release, PoissonRelease) else None

    def poisson(self, eps: float, tolerance: float, release: PoissonRelease) -> tuple[float, float]:
        """Lower and upper bound at eps of steps of one run."""
        lines = FewLines(Direction(release, 1.0, remove=not self.add), tolerance)
        return self.on_lines(lines, eps, tight=release.tight)

    @staticmethod
    def on_lines(lines: FewLines, eps: float, *, tight: bool) -> tuple[float, float]:
        """Lower and upper bound at eps by lines of the transform."""
        lower, upper = lines.delta(eps)
        return lower if tight else 0.0, upper

    def _on_lattices(self, near: float, tolerance: float, *, upper: bool) -> Bound:
        """A bound by lattices that are refined until it converges at one eps."""
        square = self.whole.gaussian[1] if upper else self.whole.gaussian[0]
        losses = [self._loss(part, upper=upper) for part in self.whole.sampled]
        steps = [part.steps for part in self.whole.sampled]
        rough = self._moments(losses, steps, square)
        infinite = sum(times * one.infinite for one, times in self.atoms) if upper else 0.0
        log_delta = max(rough.chernoff_log_delta(near), math.log(max(infinite, _NOTHING)))
        tail = max(min(log_delta, -1.0) + _TAIL - math.log(self.whole.releases), -725.0)
        reach = min(_FARTHEST, -float(scipy.special.ndtri_exp(tail)))
        losses = [loss.within(reach) for loss in losses]
        # Where finite losses are negligible compared with the infinite one, a smaller tilt resolves them as
        # well; where delta is large compared with rounding, it resolves more of the curve than its end.
        steep = theta = min(rough.tilt_for_eps(near), _LARGEST_TILT)
        least = max(math.log(max(infinite, _NOTHING)) - _BESIDE, min(log_delta + _UNTILTED, 0.0))
        while theta > _SMALLEST_TILT and rough.summed(theta)[0] - theta * near < least:
            theta *= 0.7

        def on(step: float) -> Bound:
            factors = [
                (upper_lattice(loss, step) if upper else lower_lattice(loss, step), times)
                for loss, times in zip(losses, steps, strict=True)
            ]
            factors.extend(
                (one.lattice(step), times) for one, times in (self.atoms if upper else self._below)
            )
            composed = compose_all(factors, theta, upper=upper)
            return (lambda eps: composed.delta_beside(eps, square)) if square > 0.0 else composed.delta

        sign = 1.0 if upper else -1.0
        best, last, found = math.inf, math.inf, _known(upper=upper)
        ladder = self._ladder(losses, steps, rough, (steep, theta), tolerance, floored=not upper)
        for step in ladder.rungs:
            bound = on(step)
            value = sign * bound(near)
            if value < best:
                best, found = value, bound
            if abs(last - value) <= 0.25 * tolerance * abs(value):
                break
            last = value
        return found

    def _loss(self, part: SampledPart, *, upper: bool) -> Loss | ReplacedLoss:
        bounds = part.release.sensitivity
        multiplier = quotient_down(1.0, bounds.upper) if upper else quotient_up(1.0, bounds.lower)
        return part.loss(multiplier, remove=not self.add)

    def _moments(
        self, losses: Sequence[Loss | ReplacedLoss], steps: list[int], square: float
    ) -> JointMoments:
        parts = [LossMoments(*loss.sampled(), times) for loss, times in zip(losses, steps, strict=True)]
        parts.extend(LossMoments(one.losses, one.log_masses, times) for one, times in self.atoms)
        return JointMoments(tuple(parts), square)

    def _ladder(
        self,
        losses: Sequence[Loss | ReplacedLoss],
        steps: list[int],
        rough: JointMoments,
        tilts: tuple[float, float],
        tolerance: float,
        *,
        floored: bool,
    ) -> Ladder:
        """Steps that change log delta by about the goal, and finer ones, as long as they are affordable.

        Splitting a mass over a step h adds at most h^2 / 4 to the variance, and h^2 / 6 on average: log delta
        rises by theta (theta + 1) / 2 times that for each loss. Where losses at nodes are moved down by r, on
        average h / 2, by mass from a distance d, the variance falls by r d.
        """
        low, high = JointMoments(rough.parts).window(min(tilts[1], _USUAL_TILT), LOG_WRAP)
        spans = [float(one.losses[-1] - one.losses[0]) for one, _ in self._below] if floored else []
        # All lattices are in memory at once: with many kinds, each gets a smaller part of it.
        share = max(1.0, len(losses) / _KINDS)
        least = max(
            [
                (high - low) / (0.8 * MAX_LENGTH),
                *(share * loss.finest_step() for loss in losses),
                *(span / _USUAL_LENGTH for span in spans),
            ]
        )
        # A step that divides a grid keeps the losses on it as they are: the widest grid gains the most.
        grid = max((one.grid for one, _ in self.whole.exact), default=0.0)
        grid = grid if grid >= least else 0.0
        if grid > 0.0 and not losses and len(self.whole.known) == 1:
            return Ladder((grid,))
        split = [(one, times) for one, times in self.atoms if one.grid == 0.0 or one.grid != grid]
        # Losses on few values may call for any tilt, where a lattice gains little.
        count, theta = sum(steps) + sum(times for _, times in split), min(tilts[0], _USUAL_TILT)
        spread = max(math.sqrt(rough.summed(theta)[2]), _LEAST_SPREAD)
        sensitive = count * (theta * (theta + 1.0) / 12.0 + 0.25 * spread**-2)
        wanted = math.sqrt(_OF_DELTA * tolerance / max(sensitive, 1e-300))
        if floored:
            below = [(one, times) for one, times in self._below if one.grid == 0.0 or one.grid != grid]
            apart = sum(times * one.distance(theta) for one, times in below)
            merged = apart * (theta * (theta + 1.0) / 4.0 + 0.25 * spread**-2)
            # No loss moves down by more than the step, by which log delta falls by at most theta each.
            moved = 0.5 * max(theta, 0.1) * sum(times for _, times in below)
            wanted = min(wanted, _OF_DELTA * tolerance / max(min(merged, moved), 1e-300))
        first = max(wanted, least)
        usual = max(least, (high - low) / _USUAL_LENGTH)
        ladder = Ladder.down(first, max(first * 0.5**_RUNGS, min(first, usual)))
        if grid == 0.0:
            return ladder
        parts = (min(math.ceil(grid / step), math.floor(grid / least)) for step in ladder.rungs)
        return Ladder(tuple(dict.fromkeys(grid / part for part in parts)))


def _counted(pairs: Iterable[tuple[_Kind, int]]) -> tuple[tuple[_Kind, int], ...]:
    """Pairs with the multiplicities of the same object added, in order of first occurrence."""
    found: dict[int, tuple[_Kind, int]] = {}
    for one, times in pairs:
        found[id(one)] = one, times + found.get(id(one), (one, 0))[1]
    return tuple(found.values())


def _known(*, upper: bool) -> Bound:
    """The bounds that hold without a lattice."""
    return (lambda _: 1.0) if upper else (lambda _: 0.0)
