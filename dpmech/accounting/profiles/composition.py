r"""Independent mechanisms of several kinds on the same people, composed: bounds on both directions.

Gaussian releases are one Gaussian release, in closed form. Poisson-sampled ones of a single kind are more steps
of one run, whose transform is inverted. Everything else goes onto one lattice: each loss by what bounds it from
above, the lot composed by FFT under a tilt; the Gaussian one joins afterwards, exactly, as
H_a(P x P' || Q x Q') = E_P H_(a e^-L)(P' || Q') for the loss L of (P, Q). So the lattice only has to resolve what
has no closed form. From below the curves at nodes are left out, which post-processing allows.
"""

import dataclasses
import functools
import math

import numpy as np
import scipy

from dpmech.accounting.gaussian_curve import gaussian_curve
from dpmech.accounting.poisson import (
    LOG_WRAP,
    MAX_LENGTH,
    Direction,
    JointMoments,
    LatticeLoss,
    Loss,
    LossMoments,
    compose_all,
    lower_lattice,
    upper_lattice,
)
from dpmech.accounting.profiles.loss_atoms import LossAtoms
from dpmech.accounting.profiles.parts import Curve, SampledPart
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, Ladder, next_down, next_up, quotient_down, quotient_up

__all__ = ["Composition"]

# How much of delta, in log, a lattice may use up, at the default tolerance.
_OF_DELTA = 0.5
# Steps on one ladder, the first this share of what should do.
_FIRST, _RUNGS = 1.0, 4
# Outputs of a sampled release that are this rare, in log, beside delta count as tails.
_TAIL = -21.0
_FARTHEST = 38.0
# Fewer points are worth no coarser lattice; more than the first number are a coarser one's business.
_USUAL_LENGTH = 1 << 22
_NOTHING = 1e-300


@dataclasses.dataclass(frozen=True)
class Composition:
    """What is composed.

    Args:
        gaussian: (sensitivity / sigma)^2 summed over unsampled releases, lower and upper value.
        sampled: Poisson-sampled releases, no two of one kind.
        curves: curves that are known at nodes, with how often each is composed.
    """

    gaussian: tuple[float, float] = (0.0, 0.0)
    sampled: tuple[SampledPart, ...] = ()
    curves: tuple[tuple[Curve, int], ...] = ()

    @property
    def releases(self) -> int:
        """How many losses are added up, those of the Gaussian releases counting as one."""
        steps = sum(part.steps for part in self.sampled) + sum(times for _, times in self.curves)
        return steps + (self.gaussian[1] > 0.0)

    def delta(self, eps: float, *, add: bool, tolerance: float) -> tuple[float, float]:
        """Lower and upper value of one direction at any real eps.

        Args:
            eps: any real number.
            add: H(Q || P); else H(P || Q).
            tolerance: how far, in log delta, the upper end may be raised by a lattice.

        Raises:
            NumericalError: where no lattice that can be afforded bounds it.
        """
        if eps < 0.0:
            # H_{e^eps}(P || Q) = 1 - e^eps + e^eps H_{e^-eps}(Q || P)
            lower, upper = self.delta(-eps, add=not add, tolerance=tolerance)
            base, factor = -math.expm1(eps), math.exp(eps)
            off = 4.0 * ELEMENTARY
            return (base + factor * lower) * (1.0 - off), min(1.0, (base + factor * upper) * (1.0 + off))
        side = _Side(self, add=add)
        upper = side.upper(eps, tolerance)
        return min(side.lower(eps, tolerance), upper), upper


class _Side:
    """One direction."""

    def __init__(self, whole: Composition, *, add: bool) -> None:
        self.whole, self.add = whole, add
        self.atoms: list[tuple[LossAtoms, int]] = [
            (curve.atoms(add=add), times) for curve, times in whole.curves
        ]

    def upper(self, eps: float, tolerance: float) -> float:
        whole = self.whole
        kinds = len(whole.sampled) + len(whole.curves)
        if kinds == 0:
            return gaussian_ends(whole.gaussian[1], eps)[1]
        if kinds == 1 and whole.gaussian[1] == 0.0:
            if whole.sampled:
                return self._poisson(eps, tolerance)[1]
            if self.atoms[0][1] == 1:
                return self.atoms[0][0].delta(eps)
        return self._on_lattices(eps, tolerance, upper=True)

    def lower(self, eps: float, tolerance: float) -> float:
        whole = self.whole
        single = [curve.lower(eps, add=self.add) for curve, _ in whole.curves]
        tight = tuple(part for part in whole.sampled if part.tight)
        if not tight:
            rest = gaussian_ends(whole.gaussian[0], eps)[0]
        elif len(tight) == 1 and whole.gaussian[0] == 0.0:
            rest = self._poisson(eps, tolerance, tight[0])[0]
        else:
            rest = _Side(Composition(whole.gaussian, tight), add=self.add)._on_lattices(
                eps, tolerance, upper=False
            )
        return max([rest, *single])

    def _poisson(
        self, eps: float, tolerance: float, part: SampledPart | None = None
    ) -> tuple[float, float]:
        one = self.whole.sampled[0] if part is None else part
        lower, upper, _ = Direction(one.release, 1.0, remove=not self.add).delta(eps, tolerance)
        return lower if one.tight else 0.0, upper

    def _on_lattices(self, eps: float, tolerance: float, *, upper: bool) -> float:
        """A bound by lattices that are refined until the bound stands still."""
        square = self.whole.gaussian[1] if upper else self.whole.gaussian[0]
        losses = [self._loss(part, upper=upper) for part in self.whole.sampled]
        sampled = [part.steps for part in self.whole.sampled]
        rough = self._moments(losses, sampled, square)
        log_delta = rough.chernoff_log_delta(eps)
        infinite = sum(times * one.infinite for one, times in self.atoms) if upper else 0.0
        if upper and math.exp(log_delta) <= _NOTHING:
            # Chernoff's bound, on points that were rounded up or by quadrature: half of what it says is slack.
            return min(1.0, 2.0 * _NOTHING + next_up(infinite * (1.0 + 1e-9)))
        log_delta = max(log_delta, math.log(max(infinite, _NOTHING)))
        tail = max(min(log_delta, -1.0) + _TAIL - math.log(self.whole.releases), -725.0)
        reach = min(_FARTHEST, -float(scipy.special.ndtri_exp(tail)))
        losses = [dataclasses.replace(loss, reach=reach) for loss in losses]
        theta = rough.tilt_for_eps(eps)
        ladder = self._ladder(losses, sampled, rough, theta, tolerance)

        def bound(step: float) -> float:
            factors = [
                (upper_lattice(loss, step) if upper else lower_lattice(loss, step), steps)
                for loss, steps in zip(losses, sampled, strict=True)
            ]
            if upper:
                factors.extend((one.lattice(step), times) for one, times in self.atoms)
            composed = compose_all(factors, theta, upper=upper)
            return composed.delta_beside(eps, square) if square > 0.0 else composed.delta(eps)

        if upper:
            return ladder.settle(bound, goal=0.25 * tolerance).upper
        best = 0.0
        for step in ladder.rungs:
            found = bound(step)
            if found <= best * (1.0 + 0.25 * tolerance):
                break
            best = found
        return best

    def _loss(self, part: SampledPart, *, upper: bool) -> Loss:
        bounds = part.release.sensitivity
        multiplier = quotient_down(1.0, bounds.upper) if upper else quotient_up(1.0, bounds.lower)
        return Loss(part.sampling_prob, multiplier, remove=not self.add)

    def _moments(self, losses: list[Loss], steps: list[int], square: float) -> JointMoments:
        parts = [LossMoments(*loss.sampled(), times) for loss, times in zip(losses, steps, strict=True)]
        parts.extend(LossMoments(one.losses, one.log_masses, times) for one, times in self.atoms)
        return JointMoments(tuple(parts), square)

    def _ladder(
        self, losses: list[Loss], steps: list[int], rough: JointMoments, theta: float, tolerance: float
    ) -> Ladder:
        """Steps that raise log delta by about the goal, and finer ones, as long as they can be afforded.

        A mass that is split over a step h adds at most h^2 / 4 to the variance, and h^2 / 6 in the mean: log
        delta rises by theta (theta + 1) / 2 times that, a loss.
        """
        count = sum(steps) + sum(times for _, times in self.atoms)
        spread = math.sqrt(rough.cumulants(theta)[2])
        sensitive = count * (theta * (theta + 1.0) / 12.0 + 0.25 * spread**-2)
        wanted = math.sqrt(_OF_DELTA * tolerance / sensitive)
        joint = JointMoments(rough.parts)
        low, high = joint.window(theta, LOG_WRAP)
        least = max((high - low) / (0.8 * MAX_LENGTH), *(loss.finest_step() for loss in losses), 0.0)
        usual = max(least, (high - low) / _USUAL_LENGTH)
        first = max(_FIRST * wanted, least)
        return Ladder.down(first, max(first * 0.5**_RUNGS, min(first, usual)))


def gaussian_ends(square: float, eps: float) -> tuple[float, float]:
    """Lower and upper value of H at e^eps, eps >= 0, for a Gaussian loss of mean square / 2; rounded outward."""
    if square == 0.0:
        return 0.0, 0.0
    logs, errors = gaussian_curve(math.sqrt(square), np.array([eps]))
    log_delta, error = float(logs[0]), float(errors[0])
    # The root is off by u, and log h moves by at most (1 + |eps| / mu^2 + mu^2) times that, relative.
    own = ELEMENTARY + UNIT * (4.0 * abs(log_delta) + 4.0 * (1.0 + abs(eps) / square + square))
    if math.isinf(error):
        return 0.0, min(1.0, math.exp(log_delta) * (1.0 + own) + 1e-320)
    value = math.exp(log_delta)
    return (
        max(0.0, next_down(value * (1.0 - error - own) - 1e-320)),
        min(1.0, value * (1.0 + error + own) + 1e-320),
    )
