r"""Delta of T composed losses, from the transform of one on a vertical line, with proved errors.

With S the sum of T losses, delta(eps) = E w(S - eps), w(x) = (1 - e^-x)_+. For eta from N(tau^2/2, tau^2),
E e^-eta = 1; w is convex in e^-x, so that E w(S + eta - eps) is nowhere below delta: it is delta of the
mechanism with one more Gaussian release. Its Laplace transform falls like a normal density, whatever the law
of S: with theta > 0, M the moment generating function of one loss and g(z) = e^{tau^2 z (z+1) / 2},

  delta_tau(eps) = (1 / 2 pi i) int M(z)^T e^{-z eps} g(z) / (z (z + 1)) dz   along Re z = theta,

and with g alone as the kernel the integral is the density f_tau of S + eta at eps.

How far it is above: E w(x + eta) grows with tau^2 = v by half the density of N(v/2, v) at -x, and up to
v = tau^2 these densities are at most tau / sqrt(v) e^{tau^2/8} times the last one; so delta_tau - delta is at
most tau^2 e^{tau^2/8} f_tau. The lower end is the difference. Both ends are the closer the smaller tau is.

The integral becomes a sum with spacing h. By Poisson's summation formula the sum is that of the values at
S + k lambda, lambda = 2 pi / h, each times e^{-theta k lambda}: all of them positive, so that the upper end
needs nothing more. They come off the lower end, by Chernoff's bound: since E w(x + eta) is at most
e^{u x + tau^2 u (u+1) / 2} for u >= 0, those for k < 0 sum to at most
M(u)^T e^{-u eps + tau^2 u (u+1) / 2} / (e^{(u - theta) lambda} - 1), u > theta, and those for k > 0 likewise
with theta - u, 0 <= u < theta. Beyond the last node the kernel is integrated in closed form, with |M(z)| at
most M(theta).
"""

import dataclasses
import functools
import math

import numpy as np

from dpmech.accounting.poisson.far_losses import FarLosses
from dpmech.accounting.poisson.lattice import Loss
from dpmech.accounting.poisson.line import Line
from dpmech.accounting.poisson.transform import ComplexArray, exponent_of, transform
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, next_up

__all__ = ["Contour"]

# What a quadrature may miss of one step's moment, and of T of them.
_SHARE, _COMPOSED_SHARE = 1e-12, 1e-9
# The kernel is integrated until it is below e^-cut of what the line is worth.
_CUT = 18.0
# More nodes times points than this would take a minute.
_MOST_POINTS, _MOST_WORK = 1 << 21, 2e10
_MARGIN = 0.01


class Contour:
    """One direction of T steps, on one line.

    Args:
        loss: of one step.
        steps: T >= 1.
        line: where the line runs, how long and how dense it is.
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
        # A value is off by what its moment is, T times; beside that a power is off by T times what the
        # logarithm of its base is (2 and 9 pi u, and 4 of what underflows beyond 745), the kernel by 8 of
        # its exponent, and products by 16.
        error = one.error(frequency)
        raised = np.exp((self.steps - 1) * np.log(np.minimum(modulus + error, 1.0 + error)))
        relative = UNIT * (32.0 * self.steps + 3000.0 + 8.0 * np.abs(exponents) + 16.0)
        off = np.abs(kernel) * raised * (self.steps * error + (modulus + error) * relative)
        # With the exponents at eps = 0; u^2 tau^2 / 2 is that of the kernel on the real line.
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
        """What the sums have too much at eps, at most."""
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
        """Lower and upper end of what outcomes with a far loss add to delta at eps."""
        return (0.0, 0.0) if self._far is None else self._far.ends(eps)


@dataclasses.dataclass(frozen=True, eq=False)
class _Sum:
    """The terms of a sum at eps = 0, and what it may be off by.

    Args:
        terms: shape (m,).
        off: what it is off by at any eps.
        turning: what is added for each unit of eps.
    """

    terms: ComplexArray
    off: float
    turning: float

    @classmethod
    def of(cls, terms: ComplexArray, off: FloatArray, frequency: FloatArray, rest: float) -> "_Sum":
        """With the errors of the terms, and what lies beyond the last; sums in pairs add less than 100 u."""
        sizes = np.abs(terms)
        return cls(
            terms,
            1.01 * (float(off.sum()) + rest + 100.0 * UNIT * float(sizes.sum())),
            1.01 * 4.0 * UNIT * float(sizes @ frequency),
        )

    def ends(self, turned: ComplexArray, eps: float) -> tuple[float, float]:
        """Lower and upper end at eps; `turned` is e^{-i t eps}."""
        value = float(np.sum((self.terms * turned).real))
        off = self.off + self.turning * eps
        return value - off, value + off


@dataclasses.dataclass(frozen=True, eq=False)
class Smoothed:
    """Ends of delta at one width of the smoothing."""

    contour: Contour
    tau: float
    frequency: FloatArray
    density: _Sum
    delta: _Sum
    log_scale: float
    scale_error: float

    def ends(self, eps: float) -> tuple[float, float]:
        """Lower and upper end of delta at eps >= 0; far from the eps of the line they are far apart."""
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
