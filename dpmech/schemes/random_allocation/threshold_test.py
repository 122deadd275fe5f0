r"""The privacy loss of random allocation from below: one test of the releases, with proved error rates.

An event E of the releases has delta(eps) >= P(E) - e^eps Q(E). Here E is {v(y_1) + ... + v(y_t) >= tau} with
v(y) close to log(1 + z x), x = exp((y - 1/2) / s^2), where s is sigma over the norm of a column. It is the
test of Neyman and Pearson for Poisson sampling with odds z; the likelihood ratio of random allocation,
e_k(x) / C(t, k), is the coefficient of z^k in prod (1 + z x_i) over a constant, and z near k / t, less where
large x decide, comes close to it. Any z, tau and steps of v give a bound: how they are chosen, from estimates
of the error rates, enters no guarantee.

v takes multiples of a step h, between edges that are the given float64 numbers. Under Q the sum is that of
t independent values, each with a law on a lattice; under P, for every set of k steps and therefore for a
random one, of k shifted values and t - k others. Both laws are convolutions, with their rounding errors
included.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

from dpmech.engines import ComposedLoss, JointMoments, LatticeLoss, LossMoments, compose_all
from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, FloatArray, product_up, quotient_up

# Odds that are tried, over k / (t - k), and tilts under P, over the standard deviation of the sum.
_ODDS = (0.02, 0.15, 0.4, 0.55, 0.75, 1.0)
_TILTS = (0.0, *np.geomspace(0.05, 40.0, 14).tolist())
# Outputs beyond this many standard deviations have the value at the end.
_REACH = 12.0
# Below this scale masses leave float64; above it there is nothing to tell.
_LEAST_SCALE, _LARGEST_SCALE = 0.05, 1e6
# The step of v, over the standard deviation of one value; most lattice points of one value, and of a sum.
_STEP, _MOST_VALUES, _MOST_SUMS = 0.1, 1 << 15, 1 << 17
# Thresholds that are evaluated, in standard deviations of the sum around the mean of the tilted law.
_THRESHOLDS = np.linspace(-4.0, 4.0, 65)
# Far above the rounding of the few operations that follow the error rates.
_ROUNDING = 1e-13
_LARGEST_EPS = 700.0

# What a good test makes large: a function of log P(E) and log Q(E).
_Gain = Callable[[float, float], float]


@dataclasses.dataclass(frozen=True)
class ThresholdTest:
    """Lower bounds on delta and eps of random allocation with independent noise.

    Args:
        participations: k, in [1, t - 1].
        steps: t.
        column: norm of a column of C, > 0, rounded down.
    """

    participations: int
    steps: int
    column: float

    def delta(self, sigma: float, eps: float) -> float:
        """A lower bound on delta, in [0, 1]; 0 where eps or sigma is beyond what float64 can tell."""
        if eps > _LARGEST_EPS:
            return 0.0

        def gain(present: float, absent: float) -> float:
            return (
                present + math.log(-math.expm1(eps + absent - present))
                if eps + absent < present
                else -math.inf
            )

        cost = math.exp(eps) * (1.0 + _ROUNDING)
        found = [present - product_up(cost, absent) for present, absent in self._rates(sigma, gain)]
        return max(0.0, max(found, default=0.0) * (1.0 - _ROUNDING))

    def epsilon(self, sigma: float, delta: float) -> float:
        """A lower bound on eps, >= 0; 0 where sigma is beyond what float64 can tell."""

        def gain(present: float, absent: float) -> float:
            left = math.exp(present) - delta
            return math.log(left) - absent if left > 0.0 else -math.inf

        best = 0.0
        for present, absent in self._rates(sigma, gain):
            if present > delta and absent > 0.0:
                logs = math.log(present - delta), math.log(absent)
                best = max(best, logs[0] - logs[1] - _ROUNDING * (1.0 + abs(logs[0]) + abs(logs[1])))
        return best

    def _rates(self, sigma: float, gain: _Gain) -> list[tuple[float, float]]:
        """P(E) rounded down and Q(E) rounded up, at several thresholds; none beyond float64."""
        scale = quotient_up(sigma, self.column)  # more noise is a post-processing
        if not _LEAST_SCALE <= scale <= _LARGEST_SCALE:
            return []
        fair = self.participations / (self.steps - self.participations)
        plans = [self._planned(scale, share * fair, gain) for share in _ODDS]
        found = []
        for plan in plans:
            if plan.gain > -math.inf:
                # Without one test, the others are a bound all the same.
                with contextlib.suppress(NumericalError):
                    found += plan.rates()
        return found

    def _planned(self, scale: float, odds: float, gain: _Gain) -> "_Plan":
        """The tilts with the largest gain, by estimates of the error rates."""
        y = np.linspace(-_REACH * scale, 1.0 + _REACH * scale, 4001)
        exponents = (y - 0.5) / scale**2
        values = _log_one_plus(odds, exponents)
        pure = -0.5 * (y / scale) ** 2 - math.log(scale * math.sqrt(2.0 * math.pi)) + math.log(y[1] - y[0])
        counts = (self.participations, self.steps - self.participations)
        present = JointMoments(
            (LossMoments(values, pure + exponents, counts[0]), LossMoments(values, pure, counts[1]))
        )
        absent = JointMoments((LossMoments(values, pure, self.steps),))

        def at(tilt: float) -> _Plan:
            log_moment, mean, variance = present.summed(tilt)
            other = absent.tilt_for_eps(mean)
            own = absent.summed(other)
            rates = _log_tail(log_moment, mean, variance, tilt), _log_tail(own[0], mean, own[2], other)
            return _Plan(
                counts, Statistic(scale, odds), (tilt, other), variance, gain(*rates), (present, absent)
            )

        tilts = [tilt / math.sqrt(present.summed(0.0)[2]) for tilt in _TILTS]
        plans = [at(tilt) for tilt in tilts]
        place = max(range(len(plans)), key=lambda one: plans[one].gain)
        if plans[place].gain == -math.inf:
            return plans[place]
        ends = tilts[max(place - 1, 0)], tilts[min(place + 1, len(plans) - 1)]
        finer = scipy.optimize.minimize_scalar(
            lambda tilt: -max(at(tilt).gain, -1e9),
            bounds=ends,
            method="bounded",
            options={"xatol": 1e-2 * ends[1]},
        )
        return max(plans[place], at(float(finer.x)), key=lambda one: one.gain)


@dataclasses.dataclass(frozen=True)
class Statistic:
    """v of one release: a multiple of a step that is close to log(1 + z x).

    Args:
        scale: standard deviation s of the noise, in units of the shift.
        odds: z.
    """

    scale: float
    odds: float

    def largest(self) -> float:
        """The largest value, about."""
        top = np.array([(0.5 + _REACH * self.scale) / self.scale**2])
        return float(_log_one_plus(self.odds, top)[0])

    def masses(self, step: float, *, shift: float) -> tuple[FloatArray, FloatArray]:
        """Probabilities of the values 0, h, 2 h, ... of v where y has mean `shift`, and their errors.

        v = j h between the edges with log(1 + z x) = (j - 1/2) h and (j + 1/2) h, as they were computed. The
        argument (y - shift) / s has relative error 2 u, which changes Phi(-a) by at most 2 u a (a + 1) of
        itself, and ndtr has error u (2 a^2 + 32); an interval on one side of the mean is a difference of
        tails, any other one is at least as accurate.
        """
        ends = (np.arange(math.ceil(self.largest() / step)) + 0.5) * step
        edges = 0.5 + self.scale**2 * (ends + np.log(-np.expm1(-ends)) - math.log(self.odds))
        a = (np.concatenate([[-np.inf], edges, [np.inf]]) - shift) / self.scale
        below, above = scipy.special.ndtr(a), scipy.special.ndtr(-a)
        left = a[1:] <= 0.0
        near = np.where(left, below[1:], above[:-1])
        far = np.where(left, below[:-1], above[1:])
        reach = np.where(np.isfinite(a), np.abs(a), 0.0)
        relative = UNIT * (6.0 * np.maximum(reach[1:], reach[:-1]) ** 2 + 48.0)
        # ndtr may be 0 where the truth is not, but below the smallest normal number.
        return near - far, (near + far) * relative + np.finfo(np.float64).tiny


@dataclasses.dataclass(frozen=True)
class _Plan:
    """A test, but for its threshold.

    Args:
        counts: steps with the example and without it.
        statistic: v.
        tilts: under P and under Q.
        variance: of the sum, under the first tilt.
        gain: what the tilts are estimated to give.
        moments: of the sum under P and under Q, approximately.
    """

    counts: tuple[int, int]
    statistic: Statistic
    tilts: tuple[float, float]
    variance: float
    gain: float
    moments: tuple[JointMoments, JointMoments]

    def rates(self) -> list[tuple[float, float]]:
        """P(E) rounded down and Q(E) rounded up, at several thresholds."""
        step = self._step()
        masses, errors = self.statistic.masses(step, shift=0.0)
        shifted, shifted_errors = self.statistic.masses(step, shift=1.0)
        few, many = self.counts
        low = [
            (LatticeLoss(step, 0, np.maximum(shifted - shifted_errors, 0.0), 0.0), few),
            (LatticeLoss(step, 0, np.maximum(masses - errors, 0.0), 0.0), many),
        ]
        high = [(LatticeLoss(step, 0, masses + errors, 0.0), few + many)]
        present = compose_all(low, self.tilts[0], upper=False)
        absent = compose_all(high, self.tilts[1], upper=True)
        mean, deviation = _centre(present), math.sqrt(self.variance)
        found = []
        for place in _THRESHOLDS:
            # Both laws are on multiples of the step; their windows differ.
            index = round((mean + float(place) * deviation) / step)
            ends = [index - round(float(one.losses[0]) / step) for one in (present, absent)]
            if all(0 <= end < one.losses.size for end, one in zip(ends, (present, absent), strict=True)):
                found.append((present.tail(ends[0]), absent.tail(ends[1])))
        return found

    def _step(self) -> float:
        """The step of v: a part of a value's deviation, but so many lattice points at most."""
        step = _STEP * math.sqrt(self.variance / sum(self.counts))
        for moments, tilt in zip(self.moments, self.tilts, strict=True):
            low, high = moments.window(tilt, -40.0)
            step = max(step, (high - low) / _MOST_SUMS)
        return max(step, self.statistic.largest() / _MOST_VALUES)


def _log_one_plus(odds: float, exponents: FloatArray) -> FloatArray:
    """log(1 + z x) at log x."""
    return np.logaddexp(0.0, math.log(odds) + exponents)


def _log_tail(log_moment: float, mean: float, variance: float, tilt: float) -> float:
    """Approximate log probability of a sum beyond the mean of its tilted law."""
    spread = tilt * math.sqrt(variance)
    return min(0.0, log_moment - tilt * mean + 0.5 * spread**2 + float(scipy.special.log_ndtr(-spread)))


def _centre(composed: ComposedLoss) -> float:
    """The mean of a tilted law, approximately."""
    weights = np.maximum(composed.masses, 0.0)
    return float(weights @ composed.losses) / float(weights.sum())
