r"""Where the line of a contour integral runs: what it costs depends on it, no bound does.

All is read off a sketch of the law of one loss, on a few thousand points. The line crosses the real axis
where the integrand is least there, between the pole at 0 and where the moment grows. Losses that are far from
eps are cut off where this shortens the line, as far down as their overlap with eps, `FarLosses`, allows.
"""

import dataclasses
import functools
import math

import numpy as np
import scipy

from dpmech.accounting.poisson.convolution import LossMoments
from dpmech.accounting.poisson.lattice import Loss
from dpmech.numerics import FloatArray

__all__ = ["Line", "Sketch"]

_POINTS = (4001, 10_001)
_REACH = 38.0
# What comes off the lower end is below e^-this of the answer.
_NEGLIGIBLE = 16.0
_CUTS = 24
# A saddle point may be off by so much in log delta.
_DOUBT = 12.0
# The first width of the smoothing, in units of what one over theta is.
_WIDTH = 0.125
_SMALLEST = 1e-280


@dataclasses.dataclass(frozen=True)
class Line:
    """A line in the complex plane, and what is known of the answer there.

    Attributes:
        theta: where it crosses the real axis, > 0.
        spacing: between its points, > 0.
        left: in [0, theta), where Chernoff's bound is taken for what lies below eps.
        right: above theta, for what lies above it.
        cut: losses from here on are taken apart; infinite if none are.
        opposed: the v >= 1 of the bound on what those lack.
        log_delta: roughly the log of the answer.
        above_answer: how far the log of the integrand at theta exceeds it.
        width: a first width of the smoothing, coarse.
    """

    theta: float
    spacing: float
    left: float
    right: float
    cut: float
    opposed: float
    log_delta: float
    above_answer: float
    width: float


@dataclasses.dataclass(frozen=True)
class _Crossing:
    """Where a line crosses the real axis: theta, the exponent there, the standard deviation of the sum."""

    theta: float
    exponent: float
    spread: float
    log_delta: float


class Sketch:
    """The law of one loss on a few thousand points, the losses rising."""

    def __init__(self, loss: Loss, steps: int) -> None:
        self.steps = steps
        s = loss.sigma_over_sensitivity
        points = min(max(math.ceil(900.0 / s), _POINTS[0]), _POINTS[1])
        x = np.linspace(-_REACH * s, _REACH * s + 1.0, points)
        if not loss.remove:
            x = x[::-1]
        ratio = loss.log_ratio(x)
        self.losses = ratio if loss.remove else -ratio
        self.log_masses = loss.log_density(x) + math.log(abs(float(x[1] - x[0])))
        # Beyond this order a moment below 0 of REMOVE has its mass where no output is looked at.
        share = math.exp(
            math.log(loss.sampling_prob)
            + (-2.0 * _REACH * s - 0.5) / s**2
            - float(loss.log_ratio(np.array([-2.0 * _REACH * s]))[0])
        )
        self._most_opposed = 0.9 * _REACH * s / max(share, 1e-200) if loss.remove else math.inf
        self.whole = LossMoments(self.losses, self.log_masses, steps)

    @functools.cached_property
    def _far(self) -> tuple[FloatArray, FloatArray]:
        """The mass at and above each point, under P and under Q."""
        masses = np.exp(self.log_masses)
        return tuple(  # type: ignore[return-value] # two of them
            np.cumsum(part[::-1])[::-1] for part in (masses, masses * np.exp(-self.losses))
        )

    def line(self, eps: float, known: float | None = None) -> Line:
        """A line for delta at eps, whose log is known to be about so much, or not known."""
        found, moments, cut, opposed = self._crossing(self.whole, eps), self.whole, math.inf, 1.0
        apart = 0.0
        orders = np.geomspace(1.0, max(min(1e3 / max(eps, self._usual), self._most_opposed), 1.0), 40)
        opposing = np.array([(self.steps - 1) * self.whole.cumulants(-v)[0] for v in orders])
        for least_level in self._levels(eps):
            place = int(np.searchsorted(self.losses, least_level))
            if place >= self.losses.size - 1:
                break
            # A point of the sketch, so that the moments of what is below are those of the interval.
            level = float(self.losses[place])
            p, q = (float(part[place]) for part in self._far)
            if p < _SMALLEST:
                break
            overlaps = math.log(self.steps * p) - orders * (level - eps) + opposing
            least = int(overlaps.argmin())
            any_p, any_q = (-math.expm1(self.steps * math.log1p(-min(part, 0.9))) for part in (p, q))
            chance = max(any_p - math.exp(min(eps, 700.0)) * any_q, 0.0)
            below = LossMoments(self.losses[: place + 1], self.log_masses[: place + 1], self.steps)
            most = math.log(max(chance, _SMALLEST))
            if known is not None and overlaps[least] > known - _NEGLIGIBLE:
                continue
            if overlaps[least] > max(found.log_delta, most) - _NEGLIGIBLE + _DOUBT:
                continue
            rest = self._crossing(below, eps)
            if known is None and overlaps[least] > max(rest.log_delta, most) - _NEGLIGIBLE:
                continue
            found, moments, cut, opposed, apart = rest, below, level, float(orders[least]), chance
            break
        answer = math.log(max(apart + math.exp(min(found.log_delta, 0.0)), _SMALLEST))
        answer = answer if known is None else known
        return self._line(found, moments, eps, cut, opposed, answer)

    @functools.cached_property
    def _usual(self) -> float:
        """How large a sum of losses usually is: from the deciles of one."""
        share = np.cumsum(np.exp(self.log_masses))
        low, high = (
            float(self.losses[min(int(np.searchsorted(share, at)), share.size - 1)]) for at in (0.1, 0.9)
        )
        return max((high - low) * math.sqrt(self.steps), 1e-200)

    def _levels(self, eps: float) -> FloatArray:
        """From where losses might be far."""
        top = float(self.losses[-1])
        least = max(1.2 * eps, 0.1 * self._usual)
        return np.geomspace(least, top, _CUTS) if least < top else np.zeros(0)

    def _crossing(self, moments: LossMoments, eps: float) -> _Crossing:
        """Where T log M(theta) - theta eps - log theta (theta + 1) is least."""
        steps = self.steps

        def slope(log_theta: float) -> float:
            theta = math.exp(log_theta)
            return steps * moments.cumulants(theta)[1] - eps - 1.0 / theta - 1.0 / (theta + 1.0)

        low, high = 0.0, 0.0
        while slope(low) > 0.0 and low > -40.0:
            low -= 2.0
        while slope(high) < 0.0 and high < 40.0:
            high += 2.0
        bracketed = low < high and slope(low) < 0.0 < slope(high)
        theta = math.exp(
            float(scipy.optimize.brentq(slope, low, high, xtol=1e-2)) if bracketed else high or low
        )
        log_m, _, variance = moments.cumulants(theta)
        curvature = steps * variance + theta**-2 + (theta + 1.0) ** -2
        exponent = steps * log_m - theta * eps
        log_delta = exponent - math.log(theta * (theta + 1.0)) - 0.5 * math.log(2.0 * math.pi * curvature)
        return _Crossing(theta, exponent, math.sqrt(steps * variance + theta**-2), log_delta)

    def _line(
        self, at: _Crossing, moments: LossMoments, eps: float, cut: float, opposed: float, answer: float
    ) -> Line:
        """As dense as Chernoff's bound on both sides asks for."""
        goal = answer - _NEGLIGIBLE

        def wave(u: float) -> float:
            return (self.steps * moments.cumulants(u)[0] - u * eps - goal) / abs(u - at.theta)

        away = np.geomspace(0.1, 100.0, 16) / at.spread
        right = min((at.theta + float(u) for u in away), key=wave)
        lefts = [at.theta - float(u) for u in away if u < at.theta]
        left = min([0.0, *lefts], key=lambda u: wave(u) if u > 0.0 else -goal / at.theta)
        longest = max(wave(right), wave(left) if left > 0.0 else -goal / at.theta, 1.0 / at.theta)
        return Line(
            theta=at.theta,
            spacing=2.0 * math.pi / longest,
            left=left,
            right=right,
            cut=cut,
            opposed=opposed,
            log_delta=answer,
            above_answer=at.exponent - answer,
            width=_WIDTH / math.sqrt(at.theta * (at.theta + 1.0)),
        )
