"""Balls-in-Bins with a new allocation in every epoch, for independent bins: composition over the epochs.

Epochs whose releases share no noise and whose allocations are independent are adaptive releases with one pair
each, and the product of these pairs dominates and is attained (see the proof in the documentation). So both
bounds follow from the curve of one epoch: nodes from the law of a sum, their hull from above, and a bound on
the loss from below. Epochs may differ in length. An epoch of one step is a Gaussian release, in closed form.
"""

import dataclasses
import math

from dpmech.engines.accountant import Accountant, Progress, Solution, too_wide
from dpmech.engines.gaussian import gaussian_sigma
from dpmech.engines.independent_sum.accountant import IndependentAccountant, agreed
from dpmech.engines.profiles import LEAST_DELTA, Composition, Curve, PrivacyProfile
from dpmech.engines.sigma_search import gaussian_scale, secant_root, sigma_near, slope_at
from dpmech.mechanism import Adjacency
from dpmech.numerics import (
    BOUND,
    Bounds,
    Guarantee,
    Provenance,
    product_down,
    product_up,
    quotient_down,
    quotient_up,
    register_words,
    sum_down,
    sum_up,
)

register_words(
    {"bins.fresh": "Balls-in-Bins, {bins} independent bins, allocated anew in each of {epochs} epochs"}
)

# Wider bounds (relative in eps, as a change of sigma in delta) raise an error.
_WIDEST = 0.01
_SMALLEST_EPS = 1e-9
# Error of the hull of the first curve, and the smallest one.
_COARSE, _FINEST = 0.02, 1e-7
# Shares of the error that a tolerance allows, in log delta, for the hulls of all epochs and for the lattices
# of the composition.
_OF_HULLS, _OF_LATTICES = 0.9, 0.1
# Tolerance of the first lattices, largest number of refinements, and the factor on the error in each of them:
# the first one allows for hulls from below, which cost more than those from above.
_ROUGH, _LOOKS, _MORE = 0.02, 3, 0.3
# Contribution, relative to delta, of the omitted end of an epoch's curve, and largest delta at which it may
# end.
_FAR, _LEAST = 1e-3, 1e-6
_NOTHING = 1e-280
# Largest number of corrections of a first sigma, and the last of them in units of rtol and of `_ROUGH`; what
# it leaves is of second order.
_CORRECTIONS, _LAST, _LAST_ROUGH = 12, 5.0, 0.5
# Sigmas whose logs differ by less have estimates in common: tilts, and which deltas matter.
_NEAR = 0.02
_KEPT = 6


@dataclasses.dataclass(frozen=True)
class _Look:
    """Resolution of curves.

    Args:
        rel_error: relative error of the hull of one epoch.
        steepest: largest slope that matters.
        least: delta of one epoch at which its curve may end.
    """

    rel_error: float = _COARSE
    steepest: float = math.inf
    least: float = _LEAST

    def serves(self, other: "_Look") -> bool:
        """Whether it is at least as fine as another one; every resolution is for a first curve."""
        steep = math.isinf(other.steepest) or self.steepest >= other.steepest
        return self.rel_error <= other.rel_error and self.least <= other.least and steep

    def curve(self, one: IndependentAccountant, sigma: float) -> Curve:
        """The curve of one epoch."""
        return one.curve(sigma, rel_error=self.rel_error, steepest=self.steepest, least=self.least)


class FreshEpochsAccountant(Accountant):
    """Both directions of independent epochs, each with separate independent, identical bins.

    Args:
        epochs: the number of bins of one epoch, >= 1; its sensitivity, the largest column norm; and the
            number of epochs with both. At least one epoch has two bins or more.
        sensitivity: total sensitivity of all epochs.
        by: the provenance of the bounds.
    """

    def __init__(
        self, epochs: tuple[tuple[int, Bounds, int], ...], sensitivity: Bounds, by: Provenance
    ) -> None:
        self.sensitivity = sensitivity
        self.curve_counts = tuple(times for bins, _, times in epochs if bins > 1)
        self.count = sum(times for _, _, times in epochs)
        self.by = by
        self.guarantee = BOUND
        self._epochs = tuple(
            (IndependentAccountant(bins, bounds), times) for bins, bounds, times in epochs if bins > 1
        )
        self._plain = tuple((bounds, times) for bins, bounds, times in epochs if bins == 1)
        self._norm = max(one.upper for _, one, _ in epochs)
        # For first guesses, all epochs count as of this length.
        self._length = sum(bins * times for bins, _, times in epochs) / self.count
        self._found: dict[tuple[float, _Look], Composition] = {}

    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on delta; see the base class."""
        lower, upper = self._bracket(sigma, eps, tolerance)
        allowed = max(tolerance, _WIDEST) * slope_at(eps, upper)
        if upper > _NOTHING and not (lower > 0.0 and math.log(upper / lower) <= allowed):
            raise too_wide("delta", sigma, lower, upper, self.method)
        return Bounds(lower, upper, self.guarantee, self.by)

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper bound, at the resolution that bounds on both sides call for; computes no lower one."""
        here, near = self._nearby(sigma)
        rough = max(near.upper_delta(eps, add=add, tolerance=_ROUGH) for add in (False, True))
        if here and rough <= _NOTHING:
            return rough
        goal = tolerance * slope_at(eps, rough)
        theta = max(near.tilt(eps, add=add) for add in (False, True))
        # Half, so that the curves serve for bounds on both sides as well.
        far = 0.5 * _FAR * max(rough, _NOTHING) / self.count
        composed = self.composition(sigma, self._finer(theta, _MORE * goal, far))
        within = _OF_LATTICES * goal
        return max(composed.upper_delta(eps, add=add, tolerance=within) for add in (False, True))

    def upper_add(self, sigma: float, eps: float) -> float:
        """An upper bound on the ADD direction alone, from first curves."""
        composed = self.composition(sigma, _Look(least=LEAST_DELTA))
        return composed.upper_delta(eps, add=True, tolerance=_ROUGH)

    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on eps; see the base class."""
        far = _FAR * delta / self.count
        # Curves that a search left may suffice.
        caution = 1.0 if any(had == sigma for had, _ in self._found) else _MORE
        composed = self.composition(sigma, _Look(least=min(_LEAST, far)))
        ends = {add: composed.epsilon(delta, add=add, tolerance=_ROUGH) for add in (False, True)}
        for _ in range(_LOOKS):
            lower, upper = (max(one[side] for one in ends.values()) for side in (0, 1))
            if upper - lower <= tolerance * upper or upper <= _SMALLEST_EPS:
                break
            deciding = [add for add, one in ends.items() if one[1] > lower]
            theta = max(composed.tilt(upper, add=add) for add in deciding)
            goal = max(theta * tolerance * upper, _FINEST)
            composed = self.composition(sigma, self._finer(theta, caution * goal, far))
            for add in deciding:
                found = composed.epsilon(delta, add=add, tolerance=_OF_LATTICES * goal)
                ends[add] = max(ends[add][0], found[0]), min(ends[add][1], found[1])
            caution *= _MORE
        lower, upper = (max(one[side] for one in ends.values()) for side in (0, 1))

        def most(eps: float) -> float:
            return max(composed.upper_delta(eps, add=add, tolerance=tolerance) for add in (False, True))

        upper = agreed(most, upper, delta, tolerance)
        # Both bounds are valid: this checks only that they are close enough to be useful.
        if upper - lower > max(tolerance, _WIDEST) * upper + _SMALLEST_EPS:
            raise too_wide("eps", sigma, lower, upper, self.method)
        return Bounds(min(lower, upper), upper, self.guarantee, self.by)

    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """Secant steps on the upper bound, from estimates by first curves; see the base class."""
        start = self._close_sigma(eps, delta, _LAST * rtol)
        return sigma_near(self, eps, delta, rtol=rtol, start=start, progress=progress)

    def rough_sigma(self, eps: float, delta: float) -> float:
        """From first curves; see the base class."""
        return self._close_sigma(eps, delta, _LAST_ROUGH * _ROUGH)

    def start_for_mu(self, mu: float) -> float:
        """Uses that the mean of b lognormals of variance V has variance V / b; see the base class."""
        squared = min(mu**2 / self.count, 500.0)
        return self._norm / math.sqrt(math.log1p(self._length * math.expm1(squared)))

    def composition(self, sigma: float, look: _Look | None = None) -> Composition:
        """The composition of the epochs, given by nodes, at least at the requested resolution.

        Results are cached, because several evaluations use the same sigma.

        Args:
            sigma: > 0.
            look: the resolution; None for the first one.
        """
        asked = look or _Look()
        for (known, had), composed in self._found.items():
            if known == sigma and had.serves(asked):
                return composed
        if len(self._found) >= _KEPT:
            self._found.pop(next(reversed(self._found)))
        composed = self._composed(sigma, asked)
        # The finest one of a sigma is found first.
        self._found = {(sigma, asked): composed} | self._found
        return composed

    def profile(self, sigma: float, adjacency: Adjacency, *, rel_error: float) -> PrivacyProfile:
        """The epochs, with nodes so close that the total loss of all hulls is about `rel_error` of delta."""
        look = _Look(
            min(max(_OF_HULLS * rel_error / self.count, _FINEST), _COARSE),
            least=_FAR * LEAST_DELTA / self.count,
        )
        return PrivacyProfile(self._composed(sigma, look), *self.nodes_label(0), adjacency)

    def nodes_label(self, nodes: int) -> tuple[Guarantee, Provenance]:
        """Those of the accountant, which computes nodes for all results."""
        del nodes
        return self.guarantee, self.by

    def _composed(self, sigma: float, look: _Look) -> Composition:
        curves = tuple((look.curve(one, sigma), times) for one, times in self._epochs)
        least, most = [], []
        for bounds, times in self._plain:
            low, high = quotient_down(bounds.lower, sigma), quotient_up(bounds.upper, sigma)
            least.append(product_down(product_down(low, low), times))
            most.append(product_up(product_up(high, high), times))
        return Composition((sum_down(least), sum_up(most)), curves=curves)

    def _finer(self, theta: float, goal: float, far: float) -> _Look:
        """A resolution at which the hulls contribute about the goal, in log delta, under a tilt."""
        share = min(max(_OF_HULLS * goal / self.count, _FINEST), _COARSE)
        # In coarse steps, so that later evaluations can reuse it.
        return _Look(
            2.0 ** (0.5 * math.floor(2.0 * math.log2(share))),
            2.0 ** (0.5 * math.ceil(2.0 * math.log2(theta + 1.0))),
            min(10.0 ** math.floor(math.log10(far)), _LEAST),
        )

    def _nearby(self, sigma: float) -> tuple[bool, Composition]:
        """A composition known at this sigma or at a close one, or else a first one; whether at this one."""
        for (had, _), one in self._found.items():
            if had == sigma:
                return True, one
        for (had, _), one in self._found.items():
            if abs(math.log(had / sigma)) <= _NEAR:
                return False, one
        return True, self.composition(sigma, _Look(least=LEAST_DELTA))

    def _bracket(self, sigma: float, eps: float, tolerance: float) -> tuple[float, float]:
        """Lower and upper delta, as close as `tolerance`, a change of sigma, requires."""
        here, composed = self._nearby(sigma)
        ends = {add: composed.delta(eps, add=add, tolerance=_ROUGH) for add in (False, True)}
        caution = _MORE
        for _ in range(_LOOKS):
            lower, upper = (max(one[side] for one in ends.values()) for side in (0, 1))
            goal = tolerance * slope_at(eps, upper)
            if here and (upper <= _NOTHING or (lower > 0.0 and math.log(upper / lower) <= goal)):
                break
            deciding = [add for add, one in ends.items() if not here or one[1] > lower]
            theta = max(composed.tilt(eps, add=add) for add in deciding)
            far = _FAR * max(lower, _FAR * upper, _NOTHING) / self.count
            if not here:
                # Those of another sigma served as estimates.
                here, ends = True, dict.fromkeys((False, True), (0.0, 1.0))
            composed = self.composition(sigma, self._finer(theta, caution * goal, far))
            for add in deciding:
                found = composed.delta(eps, add=add, tolerance=_OF_LATTICES * goal)
                ends[add] = max(ends[add][0], found[0]), min(ends[add][1], found[1])
            caution *= _MORE
        lower, upper = (max(one[side] for one in ends.values()) for side in (0, 1))
        return min(lower, upper), upper

    def _close_sigma(self, eps: float, delta: float, last: float) -> float:
        """Approximate sigma, from the middle of first bounds; no guarantee depends on it.

        Args:
            eps: of the budget.
            delta: of the budget.
            last: change of log sigma with which corrections end.
        """
        squared = gaussian_sigma(eps, delta) ** -2.0 / self.count
        # For a mean of b lognormals with this variance.
        exponent = (
            squared + math.log(self._length)
            if squared > 500.0
            else math.log1p(self._length * math.expm1(squared))
        )
        target = gaussian_scale(eps, delta)
        look = _Look(least=min(_LEAST, _FAR * delta / self.count))

        def short(log_sigma: float) -> float:
            composed = self.composition(math.exp(log_sigma), look)
            ends = [composed.delta(eps, add=add, tolerance=_ROUGH) for add in (False, True)]
            lower, upper = (max(one[side] for one in ends) for side in (0, 1))
            # The excess of hulls from above is about a third of the deficit from below.
            middle = upper**0.75 * lower**0.25 if lower > 0.0 else upper
            return gaussian_scale(eps, middle) - target

        start = math.log(self._norm / math.sqrt(exponent))
        return math.exp(secant_root(short, start, widest=0.7, last=last, most=_CORRECTIONS))
