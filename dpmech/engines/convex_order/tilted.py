r"""Upper bounds on a small delta of a cyclic dominating pair with at most one exponential, by a tilt.

(r - tau)_+ is below a sum of exponentials sum_k c_k e^(s_k (r - tau)) whose exponents have the real part
theta > 0, and (tau - r)_+ below the same sum in tau - r. At a suitable theta, a saddle point, all terms are
of the order of delta, so that absolute errors of the traces are relative to it. Nearby kinks tau share a
theta. E e^(theta r) is infinite for lognormal increments: paths on which some bin adds more than the kink are
summed separately, and there the payoff is linear (`tilted_law`). The proofs are in
docs/balls_in_bins_proof.md, "Small delta: a tilt".
"""

import dataclasses
import math
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines.convex_order.exponentials import (
    LOOSE,
    Common,
    Lattice,
    Parts,
    WhiteLaw,
    build_lattice,
    groups_of,
)
from dpmech.engines.convex_order.mixture_ring import MixtureGram
from dpmech.engines.convex_order.tilted_law import (
    LargeBins,
    TiltedLaw,
    TiltedSeries,
    TiltedTraces,
    large_bins,
    tilted_step,
)
from dpmech.engines.gaussian_mixture import log_add_bound
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, IntArray, spend

ComplexArray = npt.NDArray[np.complex128]

# Shares of the relative error. They control the effort; any choice gives a bound.
SMOOTHING = 0.4
COPIES = 0.05
SKIPPED = 0.02
# Deviations of the smoothing law after which the series is truncated; what is cut off is bounded and added.
CUT = 7.0
MOST_EXPONENTS = 4000
ROUNDS = 4
FAILURES = 3
# Relative distance of the threshold for large bins above the largest kink.
MARGIN = 1e-9
# Tilts to choose from, in units of the saddle point; further tilts that bound copies; and the logs of the
# largest ratios of terms to the result, and to those at the saddle point.
CANDIDATES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
OTHERS = (
    0.01,
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.85,
    0.9,
    0.95,
    1.0,
    1.02,
    1.05,
    1.1,
    1.2,
    1.5,
    2.0,
)
SLACK, LITTLE = 28.0, 2.0


@dataclasses.dataclass(frozen=True)
class Size:
    """Approximate size of a contribution, and how steeply it decreases with the kink."""

    size: float
    order: float


class TiltedGroup:
    """Kinks that share a tilt.

    Args:
        lattice: lattice with at most one exponential.
        law: law of the white factor.
        common: all kinks.
        members: indices of the kinks of the group.
        remove: whether the payoff increases with r.
    """

    def __init__(
        self,
        lattice: Lattice,
        law: WhiteLaw,
        common: Common,
        members: IntArray,
        remove: bool,  # noqa: FBT001 - one caller
    ) -> None:
        self.lattice, self.law, self.members = lattice, law, members
        self.sign = 1.0 if remove else -1.0
        self.kinks = common.kinks[members]
        # ADD: p (1 - r / kink)_+ = (p / kink) (kink - r)_+
        self.weights = common.weights[members] / (1.0 if remove else self.kinks)
        self.cut = float(self.kinks.max()) * (1.0 + MARGIN) if remove else math.inf
        self.increments = np.exp(lattice.sums()) / lattice.gram.bins
        self._known: dict[float, float] = {}

    def law_at(self, tilt: float) -> TiltedLaw:
        """The law of a bin under a tilt."""
        return TiltedLaw(self.increments, self.law, tilt, self.sign, self.cut)

    def log_mass(self, tilt: float) -> float:
        """Approximate log E[e^(sign tilt r); no large bin]."""
        if tilt not in self._known:
            scaled = tilted_step(self.lattice.steps[0], self.law_at(tilt))
            values = np.linalg.eigvalsh(scaled.values)
            bins = self.lattice.gram.bins
            powers = (np.maximum(values, 0.0) / values[-1]) ** bins
            log_powers = math.log(float(np.sum(powers)) * self.lattice.norm)
            self._known[tilt] = log_powers + bins * (scaled.shift + math.log(values[-1]))
        return self._known[tilt]

    def log_payoff(self, tilt: float, kink: float) -> float:
        """Approximate log E[e^(sign tilt (r - kink)); no large bin]."""
        return self.log_mass(tilt) - self.sign * tilt * kink

    @cached_property
    def kink(self) -> float:
        """The kink with about the largest share."""
        logs = np.log(np.maximum(self.weights, 1e-300))
        tilt = self._best(float(np.median(self.kinks)))
        return float(self.kinks[int(np.argmax(logs - self.sign * tilt * self.kinks))])

    @cached_property
    def tilt(self) -> float:
        """The saddle point of that kink."""
        return self._best(self.kink)

    def _best(self, kink: float) -> float:
        def height(log_tilt: float) -> float:
            return self.log_payoff(math.exp(log_tilt), kink) - 2.0 * log_tilt

        # convex in the tilt: steps by factors of two locate the minimum
        low = 0.0
        step = math.log(2.0)
        here = height(low)
        direction = 1.0 if height(low + step) < here else -1.0
        while abs(low) < 30.0:
            there = height(low + direction * step)
            if there >= here:
                break
            low, here = low + direction * step, there
        found = scipy.optimize.minimize_scalar(
            height, bounds=(low - step, low + step), method="bounded", options={"xatol": 0.02}
        )
        return math.exp(float(found.x))

    @cached_property
    def deviation(self) -> float:
        """Approximate standard deviation of r under the tilt."""
        h = 0.05 * self.tilt
        second = self.log_mass(self.tilt + h) - 2.0 * self.log_mass(self.tilt) + self.log_mass(self.tilt - h)
        return max(math.sqrt(max(second, 0.0)) / h, 0.2 / self.tilt)

    @cached_property
    def large(self) -> LargeBins:
        """Contribution of the paths with a large bin."""
        if math.isinf(self.cut):
            return LargeBins(0.0, 0.0, 0.0)
        return large_bins(self.lattice, self.law_at(0.0))

    @cached_property
    def size(self) -> Size:
        """Approximate contribution of the group."""
        tilt, deviation = self.tilt, self.deviation
        logs = np.log(np.maximum(self.weights, 1e-300)) - self.sign * tilt * (self.kinks - self.kink)
        height = float(scipy.special.logsumexp(logs)) + self.log_payoff(tilt, self.kink)
        spread = tilt * deviation
        # E e^(-tilt v) v_+ for a normal v of this deviation, times tilt
        front = 1.0 / (math.sqrt(2.0 * math.pi) * spread + math.e) / tilt
        beyond = float(self.weights @ [self.large.beyond(kink) for kink in self.kinks.tolist()])
        return Size(math.exp(min(height, 600.0)) * front + beyond, tilt * self.kink)

    @cached_property
    def chernoff(self) -> float:
        """Bound on the contribution of the group, by E v_+ <= E e^(tilt v) / (e tilt)."""
        step = TiltedTraces(self.lattice, self.law_at(self.tilt))
        mass = step.ceiling(np.zeros(self.increments.size))
        total = 0.0
        for kink, weight in zip(self.kinks.tolist(), self.weights.tolist(), strict=True):
            exponent = step.log_scale - self.sign * self.tilt * kink
            rounding = 8.0 * UNIT * (abs(step.log_scale) + self.tilt * kink + 1.0)
            below = _exp(exponent + rounding) * mass / (math.e * self.tilt)
            beyond = self.large.beyond(kink) if self.sign > 0.0 else 0.0
            total += weight * (below * (1.0 + 1e-12) + beyond)
        return total * step.factor

    def line(self, goal: float) -> tuple[float, float]:
        """A tilt and the shortest period for which copies of the payoff add less than about e^goal.

        Where a single bin may reach the kink, the saddle point is a cusp between two modes, and nearby tilts
        are better. They increase the size of the terms, which is harmless as long as their errors are small
        compared with the result.
        """
        ceiling = goal + SLACK + math.log(self.tilt) - self._log_weights[self.kink]
        # terms at the saddle point are no smaller than those with a tilt that adds little to them
        ceiling = max(ceiling, self.log_payoff(self.tilt, self.kink) + LITTLE)
        found = []
        for factor in CANDIDATES:
            tilt = factor * self.tilt
            if factor < 1.0 and self.log_payoff(tilt, self.kink) > ceiling:
                continue
            period = 2.0 / self.tilt
            while self._copies(tilt, period) > goal and period < 1e4 / self.tilt:
                period *= 1.1
            found.append((period, tilt))
        period, tilt = min(found)
        return tilt, period

    @cached_property
    def _log_weights(self) -> dict[float, float]:
        return dict(zip(self.kinks.tolist(), np.log(np.maximum(self.weights, 1e-300)).tolist(), strict=True))

    def _copies(self, tilt: float, period: float) -> float:
        """Approximate log of a bound on the nearest copies, by separate tilts."""
        ends = {float(self.kinks.min()), float(self.kinks.max()), self.kink}
        sides: list[float] = []
        for kink in ends:
            for above in (True, False):
                others = [one * self.tilt for one in OTHERS if (one * self.tilt > tilt) == above]
                logs = [
                    self.log_payoff(other, kink) - abs(other - tilt) * period - math.log(math.e * other)
                    for other in others
                    if other != tilt
                ]
                sides.append(min(logs) + self._log_weights[kink])
        return max(sides)

    def share(self, rel_error: float, ease: float, size: float) -> tuple[float, float]:
        """Bound on the contribution, to rel_error * ease or rel_error * size; and its part for errors."""
        width = min(math.sqrt(2.0 * SMOOTHING * rel_error) * ease, 0.5) / self.tilt
        tilt, period = self.line(math.log(COPIES * rel_error * size))
        step = TiltedTraces(self.lattice, self.law_at(tilt))
        fronts = self.weights * np.exp(np.minimum(step.log_scale - self.sign * tilt * self.kinks, 600.0))
        if not width > 0.0:
            raise NumericalError(f"a payoff at the tilt {self.tilt:.3g} has no width")
        unit = size / max(float(fronts.sum()), 1e-300)
        known: dict[int, tuple[complex, float]] = {}
        total = slack = math.inf
        for _ in range(ROUNDS):
            count = math.ceil(CUT / width * period / (2.0 * math.pi)) + 1
            if count > MOST_EXPONENTS:
                raise NumericalError(f"{count} exponents are too many")
            series = TiltedSeries(tilt, period, width, count)
            found = self._transforms(step, series, SKIPPED * rel_error * unit, NEAR * unit, known)
            if found is None:
                break
            values, errors = found
            whole, part = self._summed(step, series, values, errors)
            total, slack = min(total, whole), min(slack, part)
            # the density at the kinks times w^2 / 2: the increase by smoothing
            turned = np.exp(-1j * self.sign * np.multiply.outer(self.kinks, series.frequencies))
            dense = (turned @ (series.densities * values)).real
            excess = 0.5 * width**2 * float(fronts @ np.maximum(dense, 0.0)) * step.factor
            goal = SMOOTHING * rel_error * max(ease * ease * total, size)
            if excess <= 1.5 * goal:
                break
            width *= max(math.sqrt(goal / excess), 0.2)
        if math.isinf(total):
            raise NumericalError(f"errors at the tilt {tilt:.3g} are too large for any bound")
        return total, slack

    def _summed(
        self, step: TiltedTraces, series: TiltedSeries, values: ComplexArray, errors: FloatArray
    ) -> tuple[float, float]:
        """The weighted bound on the payoffs of all kinks, and its part for errors."""
        total, slack, tilt, sizes = 0.0, 0.0, series.tilt, np.abs(series.coefficients)
        for kink, weight in zip(self.kinks.tolist(), self.weights.tolist(), strict=True):
            turned = series.coefficients * np.exp(-1j * self.sign * series.frequencies * kink)
            turning = 8.0 * ELEMENTARY * (1.0 + series.frequencies * kink)
            error = float(sizes @ errors) + float(sizes @ (turning * (np.abs(values) + errors)))
            error += series.remainder * (abs(values[0]) + float(errors[0]))
            bound = float(np.sum((turned * values).real)) + error
            exponent = step.log_scale - self.sign * tilt * kink
            rounding = 8.0 * UNIT * (abs(step.log_scale) + tilt * kink + 1.0)
            front = _exp(exponent + rounding)
            below = front * max(bound, 0.0)
            slack += weight * front * error
            beyond = self.large.beyond(kink) if self.sign > 0.0 else 0.0
            total += weight * (below * (1.0 + 1e-12) + beyond)
        return total * step.factor, slack * step.factor

    def _transforms(
        self,
        step: TiltedTraces,
        series: TiltedSeries,
        left: float,
        most: float,
        known: dict[int, tuple[complex, float]],
    ) -> tuple[ComplexArray, FloatArray] | None:
        """Transforms and bounds on their errors: 0 and a ceiling if `left` allows it.

        None if the errors of computed transforms add up to more than `most`.
        """
        sizes = np.abs(series.coefficients)
        values = np.zeros(sizes.size, dtype=np.complex128)
        errors = np.zeros(sizes.size)
        whole = step.ceiling(np.zeros(self.increments.size))
        failures, lost = 0, 0.0
        # high frequencies first: many need no transform, and lower ones succeed if these did
        for index in range(sizes.size - 1, -1, -1):
            frequency = float(series.frequencies[index])
            if index not in known:
                ceiling = step.ceiling_at(frequency) if failures < FAILURES else whole
                if sizes[index] * ceiling <= left / float(index + 1):
                    errors[index] = ceiling
                    left -= float(sizes[index]) * ceiling
                    continue
                failures += 1
                spend(step.seconds, 3e8, what="a Laplace transform")
                known[index] = step.transform(frequency, ceiling)
            values[index], errors[index] = known[index]
            lost += float(sizes[index] * errors[index])
            if lost > most:
                return None
        return values, errors


def _exp(exponent: float) -> float:
    """e^exponent, infinite if it exceeds float64."""
    return math.exp(exponent) if exponent < 700.0 else math.inf


# Shares of the relative error. They control the effort; any choice gives a bound.
RIPPLE = 0.1
WINDOW = 0.02
LEFT_OUT = 0.1
GROUP_RATIO = 1.5
MOST_STATES = 500
PASSES = 5
# Relative error for which an estimate is set up.
ROUGH_ERROR = 0.4
# A lattice that was built for a delta above the result by up to this factor is sufficient.
NEAR = 4.0
# Largest fraction of the bound that errors may contribute.
MOST_SLACK = 0.25
# Underflow loses less than this; a bound is never 0.
LEAST = 1e-300
# Smallest target for delta.
SMALLEST = 1e-290


def tilted_delta(
    gram: MixtureGram,
    eps: float,
    *,
    rel_error: float,
    remove: bool,
    floor: float = 0.0,
    guess: float = 1.0,
) -> float:
    """Upper bound on delta(eps) of the Balls-in-Bins pair with Gram matrix `gram`, in one direction.

    Args:
        gram: the Gram matrix, or one that dominates it; at most one exponential.
        eps: in [0, 500].
        rel_error: approximate target for the relative error of the bound; it controls the effort.
        remove: REMOVE, H_eps(P || Q), or else ADD, H_eps(Q || P).
        floor: a delta below which this direction is not resolved, >= 0.
        guess: approximate delta, if known; it controls the effort.

    Returns:
        The bound. **Guarantee:** an upper bound, rounding included. Its relative error does not grow as
        delta decreases.

    Raises:
        NumericalError: if the lattice would be too large, or errors would dominate the bound: where clusters
            of bins may reach the kink, at a large eps, the terms are many orders of magnitude above delta.
    """
    return max(_Direction(gram, eps, rel_error, floor, remove=remove).bound(guess), LEAST)


def saddle_point_delta(gram: MixtureGram, eps: float) -> float:
    """Estimate of delta(eps) in direction REMOVE, by a saddle point; at most that of the moments.

    It takes a fraction of the time of a bound, and is too large where clusters of bins may dominate.

    Args:
        gram: the Gram matrix; at most one exponential.
        eps: in [0, 500].

    Raises:
        NumericalError: if the lattice would be too large.
    """
    return _Direction(gram, eps, ROUGH_ERROR, 0.0, remove=True).estimate()


class _Direction(Parts):
    def estimate(self) -> float:
        """The size that a lattice for it confirms."""
        for _ in range(PASSES):
            guess = self._setting().guess()
            if NEAR * guess.size >= self.scale:
                break
            self.order, self.scale = max(guess.order, 2.0), max(guess.size, SMALLEST)
        return min(guess.size, LOOSE * self.scale)

    def bound(self, known: float) -> float:
        """The bound, on a lattice for a delta that is known, or from a saddle point approximation."""
        self.scale = min(self.scale, max(known, self.floor))
        if not self.remove:
            closed = log_add_bound(self.gram.diagonal * (1.0 + 1e-12), self.gram.mean, self.eps)
            if math.exp(min(closed, 0.0)) <= self.floor:
                return self.floor
        best = 1.0
        for left in range(PASSES, 0, -1):
            setting = self._setting()
            if setting.ceiling() <= self.floor:
                return self.floor
            guess = setting.guess()
            self.order = max(guess.order, 2.0)
            if left > 1 and best == 1.0 == known and self.scale > NEAR * guess.size > NEAR * self.floor:
                self.scale = max(guess.size, SMALLEST)
                continue
            found = setting.bound(self.rel_error, self.scale)
            best = min(best, found)
            # charges and copies were sized for a scale that turned out to be too large
            if NEAR * found >= self.scale or found <= self.floor:
                break
            self.scale = max(found, self.floor, SMALLEST)
        return best

    def _setting(self) -> "_Setting":
        if not isinstance(self.own, MixtureGram):
            raise NumericalError("transforms with a tilt need exponentials")
        wanted = WINDOW * self.rel_error * self.scale
        lattice = build_lattice(self.own, remove=self.remove, ripple=RIPPLE * self.rel_error, outside=wanted)
        if len(lattice.steps) > 1 or lattice.size > MOST_STATES:
            raise NumericalError(f"{lattice.size} states are too many for a tilt")
        law, top, weights_factor = self.white_law(wanted)
        common = self.common(wanted)
        groups = [
            TiltedGroup(lattice, law, common, members, self.remove)
            for members in groups_of(common.kinks, GROUP_RATIO)
        ]
        factor = math.exp(lattice.log_factor) * weights_factor * common.factor * (1.0 + 2.0 * self.shift)
        caps = [self.cap(common, group.members) for group in groups]
        spend(0.1 + 1e-8 * len(groups) * lattice.size**3, what="a tilt")
        charges = common.beyond * factor + lattice.outside + top * lattice.twice
        return _Setting(groups, caps, factor, charges)


@dataclasses.dataclass(frozen=True, eq=False)
class _Setting:
    """Nodes for one scale of delta.

    Attributes:
        groups: kinks that share a tilt.
        caps: upper bound on each.
        factor: factor on their sum.
        charges: added to it.
    """

    groups: list[TiltedGroup]
    caps: list[float]
    factor: float
    charges: float

    def ceiling(self) -> float:
        """A bound without transforms."""
        parts = [
            min(cap, group.chernoff) if cap > 0.0 else 0.0
            for group, cap in zip(self.groups, self.caps, strict=True)
        ]
        return sum(parts) * self.factor + self.charges

    def guess(self) -> Size:
        """Approximate total of all groups, and the order of the heaviest one."""
        sizes = []
        heaviest = 0.0
        for index in sorted(range(len(self.groups)), key=lambda index: -self.caps[index]):
            if self.caps[index] <= 1e-3 * heaviest:
                break
            sizes.append(self.groups[index].size)
            heaviest = max(heaviest, sizes[-1].size)
        most = max(sizes, key=lambda size: size.size, default=Size(0.0, 0.0))
        return Size(sum(size.size for size in sizes), most.order)

    def bound(self, rel_error: float, scale: float) -> float:
        """Sum over the groups, with caps for the smallest ones, good to rel_error * scale."""
        total, slack, left = 0.0, 0.0, LEFT_OUT * rel_error * scale
        counted = [group for group, cap in zip(self.groups, self.caps, strict=True) if cap > left]
        largest = max((group.size.size for group in counted), default=0.0)
        for index in sorted(range(len(self.groups)), key=lambda index: self.caps[index]):
            group, cap = self.groups[index], self.caps[index]
            if cap > left:
                cap = min(cap, group.chernoff)
            if cap <= left:
                total, left = total + cap, left - cap
                continue
            ease = min((largest / max(group.size.size, 1e-300)) ** (1.0 / 3.0), 8.0)
            found, error = group.share(rel_error, ease, scale)
            total, slack = total + min(found, cap), slack + error
        bound = max(total, LEAST) * self.factor + self.charges
        if not math.isfinite(bound) or bound < 0.0:
            raise NumericalError(f"the transform gave {bound!r}")
        if slack > MOST_SLACK * max(total, scale / NEAR):
            raise NumericalError(f"errors of {slack:.3g} are too large compared with a delta of {total:.3g}")
        return min(1.0, bound)
