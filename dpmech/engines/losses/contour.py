r"""Delta of T composed losses by a contour integral: the choice of its line, and the part of far losses.

**The line.** The position of the line affects the cost of the integral, but not the validity of any bound. It
is chosen from a sketch of the law of one loss, on a few thousand points. The line crosses the real axis where
the integrand is smallest there, between the pole at 0 and the growth of the moment. Losses far from eps are
cut off where this shortens the line, as far down as their overlap with eps, `FarLosses`, allows.

**Far losses.** The contribution to delta of the few steps whose loss is far above eps needs no integral over
their sum. Call a loss far if it is at least l > eps, and let H be the event that one of T is. On H the sum S
is below eps only if the others compensate for it, so that with w(x) = (1 - e^-x)_+

  E[w(S - eps); H] = P^T(H) - e^eps Q^T(H) + E[(e^{eps - S} - 1)_+; H],

where P^T(H) = 1 - (1 - p)^T with p the probability of a far loss of one step, Q^T(H) likewise, and the last
term lies between 0 and T p e^{-v (l - eps)} M(-v)^{T-1} for every v >= 1, as (e^y - 1)_+ <= e^{v y}. The
remainder is a law without its far tail, whose transform oscillates slowly. A tail up to 1000 times eps, as
little sampling and little noise give, would need as many nodes and keep the line near 0.

**The integral.** With S the sum of T losses, delta(eps) = E w(S - eps), w(x) = (1 - e^-x)_+. For eta from
N(tau^2/2, tau^2), E e^-eta = 1; w is convex in e^-x, so that E w(S + eta - eps) is nowhere below delta: it is
delta of the mechanism with one more Gaussian release. Its Laplace transform falls like a normal density,
whatever the law of S: with theta > 0, M the moment generating function of one loss and
g(z) = e^{tau^2 z (z+1) / 2},

  delta_tau(eps) = (1 / 2 pi i) int M(z)^T e^{-z eps} g(z) / (z (z + 1)) dz   along Re z = theta,

and with g alone as the kernel the integral is the density f_tau of S + eta at eps.

Bound on the excess of delta_tau: E w(x + eta) grows with tau^2 = v by half the density of N(v/2, v) at -x,
and up to v = tau^2 these densities are at most tau / sqrt(v) e^{tau^2/8} times the last one; so delta_tau -
delta is at most tau^2 e^{tau^2/8} f_tau. The lower bound is the difference; the gap falls with tau.

The integral becomes a sum with spacing h. By Poisson's summation formula the sum is that of the values at
S + k lambda, lambda = 2 pi / h, each times e^{-theta k lambda}: all of them positive, so that the upper bound
needs no correction. They are subtracted from the lower bound, by Chernoff's bound: since E w(x + eta) is at
most e^{u x + tau^2 u (u+1) / 2} for u >= 0, those for k < 0 sum to at most
M(u)^T e^{-u eps + tau^2 u (u+1) / 2} / (e^{(u - theta) lambda} - 1), u > theta, and those for k > 0 likewise
with theta - u, 0 <= u < theta. Beyond the last node the kernel is integrated in closed form, with |M(z)| at
most M(theta).
"""

import dataclasses
import functools
import math

import numpy as np
import scipy

from dpmech.engines.losses.convolution import LossMoments
from dpmech.engines.losses.lattice import Loss
from dpmech.engines.losses.transform import ComplexArray, exponent_of, transform
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, next_up

_POINTS = (4001, 10_001)
_REACH = 38.0
# Corrections of the lower bound are below e^-this of the answer.
_NEGLIGIBLE = 16.0
_CUTS = 24
# Allowed error of a saddle-point approximation, in log delta.
_DOUBT = 12.0
# The first width of the smoothing, in units of 1 / sqrt(theta (theta + 1)).
_WIDTH = 0.125
_SMALLEST = 1e-280


@dataclasses.dataclass(frozen=True)
class Line:
    """A line in the complex plane, with approximate values of the answer there.

    Attributes:
        theta: where it crosses the real axis, > 0.
        spacing: distance of its points, > 0.
        left: in [0, theta), the u of Chernoff's bound for terms below eps.
        right: above theta, the u of Chernoff's bound for terms above eps.
        cut: losses from here on are treated separately; infinite if there are none.
        opposed: the v >= 1 of the bound on the overlap of these losses.
        log_delta: approximate log of the answer.
        above_answer: excess of the log of the integrand at theta over `log_delta`.
        width: a first, coarse width of the smoothing.
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
    """The law of one loss on a few thousand points, with increasing losses."""

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
        # Beyond this order, the mass of a negative moment of REMOVE is outside the sketched outputs.
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
        return tuple(  # type: ignore[return-value] # a pair
            np.cumsum(part[::-1])[::-1] for part in (masses, masses * np.exp(-self.losses))
        )

    def line(self, eps: float, known: float | None = None) -> Line:
        """A line for delta at eps; `known` is the approximate log of delta, if available."""
        found, moments, cut, opposed = self._crossing(self.whole, eps), self.whole, math.inf, 1.0
        apart = 0.0
        orders = np.geomspace(1.0, max(min(1e3 / max(eps, self._usual), self._most_opposed), 1.0), 40)
        opposing = np.array([(self.steps - 1) * self.whole.cumulants(-v)[0] for v in orders])
        for least_level in self._levels(eps):
            place = int(np.searchsorted(self.losses, least_level))
            if place >= self.losses.size - 1:
                break
            # A point of the sketch, so that the moments below it are those of the interval.
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
        """The typical size of a sum of losses, from the deciles of one."""
        share = np.cumsum(np.exp(self.log_masses))
        low, high = (
            float(self.losses[min(int(np.searchsorted(share, at)), share.size - 1)]) for at in (0.1, 0.9)
        )
        return max((high - low) * math.sqrt(self.steps), 1e-200)

    def _levels(self, eps: float) -> FloatArray:
        """Candidate levels from which losses count as far."""
        top = float(self.losses[-1])
        least = max(1.2 * eps, 0.1 * self._usual)
        return np.geomspace(least, top, _CUTS) if least < top else np.zeros(0)

    def _crossing(self, moments: LossMoments, eps: float) -> _Crossing:
        """Where T log M(theta) - theta eps - log theta (theta + 1) is smallest."""
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
        """A line with the spacing that Chernoff's bound on both sides requires."""
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


_FAR_SHARE = 1e-14
_MARGIN = 0.01


class FarLosses:
    """The outcomes of T steps in which at least one step has a far loss.

    Args:
        loss: of one step.
        steps: T >= 1.
        line: its `cut` defines which losses are far.
    """

    def __init__(self, loss: Loss, steps: int, line: Line) -> None:
        self.loss = loss
        self.steps = steps
        sign = 1.0 if loss.remove else -1.0
        # Any output may separate the two: nearby outputs on the other side count as not far.
        edge = np.array([float(loss.output_at(np.array([sign * line.cut]))[0])])
        self.edge = float(edge[0])
        self.level = sign * float(loss.log_ratio(edge)[0]) - float(loss.rounding(edge)[0][0])
        self._opposed = line.opposed

    @property
    def others(self) -> tuple[float, float]:
        """The outputs whose losses are not far."""
        return (-math.inf, self.edge) if self.loss.remove else (self.edge, math.inf)

    @functools.cached_property
    def _once(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Lower and upper bound on the probability of a far loss, under P and under Q."""
        interval = (self.edge, math.inf) if self.loss.remove else (-math.inf, self.edge)
        found = []
        for theta in (0.0, -1.0):
            one = transform(
                self.loss, exponent_of(self.loss, theta), interval, frequency=0.0, share=_FAR_SHARE
            )
            low, high = one.log_ends
            slack = 2.0 * ELEMENTARY
            found.append((math.exp(low) * (1.0 - slack), math.exp(high) * (1.0 + slack)))
        return found[0], found[1]

    @functools.cached_property
    def _log_overlap(self) -> float:
        """Log of the bound on the last term, without its factor e^{v eps}."""
        share = min(1e-6, 1e-3 / self.steps)
        kappa = exponent_of(self.loss, -self._opposed)
        whole = transform(self.loss, kappa, (-math.inf, math.inf), frequency=0.0, share=share)
        chance = math.log(self._once[0][1])
        return (
            math.log(self.steps)
            + chance
            - self._opposed * self.level
            + (self.steps - 1) * whole.log_ends[1]
            + _MARGIN
        )

    def ends(self, eps: float) -> tuple[float, float]:
        """Lower and upper bound on their part of delta at eps."""
        (p_low, p_high), (q_low, q_high) = self._once
        growth = math.exp(min(eps, 700.0))
        slack = 4.0 * ELEMENTARY
        low = self._any(p_low) * (1.0 - slack) - growth * self._any(q_high) * (1.0 + slack)
        high = self._any(p_high) * (1.0 + slack) - growth * self._any(q_low) * (1.0 - slack)
        overlap = math.exp(min(self._log_overlap + self._opposed * eps, 700.0))
        return max(low, 0.0) if low > 0.0 else low, high + overlap

    def _any(self, chance: float) -> float:
        """1 - (1 - p)^T."""
        return -math.expm1(self.steps * math.log1p(-min(chance, 1.0 - 1e-16)))


# Quadrature error of one step's moment, and of T steps together.
_SHARE, _COMPOSED_SHARE = 1e-12, 1e-9
# The kernel is integrated until it is below e^-cut of the answer.
_CUT = 18.0
# Limits on points, and on nodes times points: beyond them a sum takes about a minute.
_MOST_POINTS, _MOST_WORK = 1 << 21, 2e10


class Contour:
    """One direction of T steps, on one line.

    Args:
        loss: of one step.
        steps: T >= 1.
        line: the position and spacing of the line.
    """

    def __init__(self, loss: Loss, steps: int, line: Line) -> None:
        self.loss = loss
        self.steps = steps
        self.line = line

    @functools.cached_property
    def _far(self) -> FarLosses | None:
        return None if math.isinf(self.line.cut) else FarLosses(self.loss, self.steps, self.line)

    @functools.cached_property
    def _interval(self) -> tuple[float, float]:
        """The outputs whose losses are not far."""
        return (-math.inf, math.inf) if self._far is None else self._far.others

    def smoothed(self, tau: float) -> "Smoothed":
        """The sums at one width tau.

        Raises:
            NumericalError: if they need too many nodes.
        """
        line = self.line
        reach = math.sqrt(2.0 * (_CUT + max(0.0, line.above_answer))) / tau
        count = math.ceil(reach / line.spacing) + 1
        if count > _MOST_POINTS:
            raise NumericalError(f"a line of {count} points: tolerance too small")
        one = transform(
            self.loss,
            exponent_of(self.loss, line.theta),
            self._interval,
            frequency=count * line.spacing,
            share=min(_SHARE, _COMPOSED_SHARE / self.steps),
        )
        if one.losses.size * count > _MOST_WORK:
            raise NumericalError(f"a line of {count} points and {one.losses.size} nodes: tolerance too small")
        frequency = np.arange(count, dtype=np.float64) * line.spacing
        moments = one.along(line.spacing, count)
        z = line.theta + 1j * frequency
        modulus, angle = np.abs(moments), np.angle(moments)
        with np.errstate(divide="ignore"):
            powers = np.exp(self.steps * np.log(modulus) + 1j * (self.steps * angle))
        exponents = 0.5 * tau**2 * z * (z + 1.0)
        kernel = np.exp(exponents) * (line.spacing / math.pi)
        kernel[0] *= 0.5
        # The error of a value is that of its moment, T times; in addition a power has T times the error of
        # the logarithm of its base (2 and 9 pi u, and 4 for underflow beyond 745), the kernel 8 of its
        # exponent, and products 16.
        error = one.error(frequency)
        raised = np.exp((self.steps - 1) * np.log(np.minimum(modulus + error, 1.0 + error)))
        relative = UNIT * (32.0 * self.steps + 3000.0 + 8.0 * np.abs(exponents) + 16.0)
        off = np.abs(kernel) * raised * (self.steps * error + (modulus + error) * relative)
        # The exponents at eps = 0; u^2 tau^2 / 2 is that of the kernel on the real line.
        log_scale = self.steps * one.log_moment
        growth = math.exp(0.5 * tau**2 * line.theta * (line.theta + 1.0))
        end = float(frequency[-1])
        rest = growth * math.exp(-0.5 * (tau * end) ** 2) / (math.pi * tau**2 * end)
        return Smoothed(
            contour=self,
            tau=tau,
            frequency=frequency,
            density=_Sum.of(powers * kernel, off, frequency, rest),
            delta=_Sum.of(
                powers * kernel / (z * (z + 1.0)), off / np.abs(z * (z + 1.0)), frequency, rest / end**2
            ),
            log_scale=log_scale,
            scale_error=self.steps * one.log_error + UNIT * (4.0 * abs(log_scale) + 8.0),
        )

    def aliases(self, eps: float, tau: float) -> float:
        """Upper bound on the aliasing error of the sums at eps."""
        line, total = self.line, 0.0
        wave = 2.0 * math.pi / line.spacing
        for u, log_moment in self._sides:
            away = abs(u - line.theta) * wave
            exponent = self.steps * log_moment - u * eps + 0.5 * tau**2 * u * (u + 1.0) - away
            total += math.exp(min(exponent + _MARGIN, 700.0)) / -math.expm1(-away)
        return total

    @functools.cached_property
    def _sides(self) -> list[tuple[float, float]]:
        """The u on either side of theta, with log M(u) rounded up."""
        found = []
        for u in (self.line.left, self.line.right):
            if u == 0.0:
                found.append((u, 0.0))
                continue
            share = min(1e-6, 1e-3 / self.steps)
            one = transform(self.loss, exponent_of(self.loss, u), self._interval, frequency=0.0, share=share)
            found.append((u, one.log_ends[1]))
        return found

    def far_ends(self, eps: float) -> tuple[float, float]:
        """Lower and upper bound on the contribution of outcomes with a far loss to delta at eps."""
        return (0.0, 0.0) if self._far is None else self._far.ends(eps)


@dataclasses.dataclass(frozen=True, eq=False)
class _Sum:
    """The terms of a sum at eps = 0, with bounds on its error.

    Args:
        terms: shape (m,).
        off: bound on the error at any eps.
        turning: additional error per unit of eps.
    """

    terms: ComplexArray
    off: float
    turning: float

    @classmethod
    def of(cls, terms: ComplexArray, off: FloatArray, frequency: FloatArray, rest: float) -> "_Sum":
        """A sum with the errors of its terms and its remainder; pairwise summation adds less than 100 u."""
        sizes = np.abs(terms)
        return cls(
            terms,
            1.01 * (float(off.sum()) + rest + 100.0 * UNIT * float(sizes.sum())),
            1.01 * 4.0 * UNIT * float(sizes @ frequency),
        )

    def ends(self, turned: ComplexArray, eps: float) -> tuple[float, float]:
        """Lower and upper bound at eps; `turned` is e^{-i t eps}."""
        value = float(np.sum((self.terms * turned).real))
        off = self.off + self.turning * eps
        return value - off, value + off


@dataclasses.dataclass(frozen=True, eq=False)
class Smoothed:
    """Bounds on delta at one width of the smoothing."""

    contour: Contour
    tau: float
    frequency: FloatArray
    density: _Sum
    delta: _Sum
    log_scale: float
    scale_error: float

    def ends(self, eps: float) -> tuple[float, float]:
        """Lower and upper bound on delta at eps >= 0; the gap grows with the distance from the line's eps."""
        turned = np.exp(-1j * (self.frequency * eps))
        theta = self.contour.line.theta
        exponent = self.log_scale - theta * eps
        if exponent > 700.0:
            return 0.0, 1.0
        scale = math.exp(exponent)
        relative = 2.0 * (
            self.scale_error + UNIT * (4.0 * theta * eps + 2.0 * abs(exponent)) + 4.0 * ELEMENTARY
        )
        _, density = self.density.ends(turned, eps)
        low, high = self.delta.ends(turned, eps)
        low -= self.tau**2 * math.exp(self.tau**2 / 8.0) * max(density, 0.0) * (1.0 + relative)
        far_low, far_high = self.contour.far_ends(eps)
        upper = max(high, 0.0) * scale * (1.0 + relative) + far_high
        lower = max(low, 0.0) * scale * (1.0 - relative) - self.contour.aliases(eps, self.tau) + far_low
        return max(0.0, lower * (1.0 - ELEMENTARY)), min(1.0, next_up(upper * (1.0 + ELEMENTARY)))
