r"""Delta again, by numerical integration of its definition: no closed form, no lattice.

- One Gaussian release: the integral of (p - e^eps q)_+ over the outputs, from the point where it starts.
- One Poisson-sampled release: the same for the mixture, in either direction.
- T of them: with M(z) = E_P[e^{z L}] the moment generating function of one loss,
  delta(eps) = (1 / 2 pi i) int e^{T log M(z) - z eps} / (z (z + 1)) dz along any line Re z = theta > 0,
  because the Laplace transform of (1 - e^-s)_+ is 1 / (z (z + 1)). On the line through the saddle point
  the integrand decays fast, and the relative accuracy does not depend on how small delta is.

Every integrand is positive or smooth. The first two are accurate to 1e-12 relative; the third usually to
1e-7, and to about 1e-6 where a step hardly ever loses anything. It is taken twice, on two lines, and refused
where they differ by 1e-5, or where it leaves what Chernoff's bound allows. They are no bounds, which is why
`verify` sets them beside one.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.exceptions import NumericalError
from dpmech.numerics import FloatArray, spend

ComplexArray: TypeAlias = npt.NDArray[np.complex128]

__all__ = [
    "ComposedLaw",
    "composed_delta",
    "composed_integral",
    "directions",
    "gaussian_integral",
    "one_step_delta",
]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_PANELS = 192
_REACH = 38.0
_GRID = 20_001
_CHUNK = 256
_MOST_NODES = 2**14
# When a sum over more nodes has settled: it stops a search, whose result is then held to _LINES_AGREE.
_AGREEMENT = 1e-9
# Two lines agree to this, relative to the larger of both directions.
_LINES_AGREE = 1e-5
# On the line the integrand is at most e^2 times that at the saddle point: cancellation costs no more digits.
_ABOVE_SADDLE = 2.0
# Aliases of the mesh are below e to the minus this.
_ALIAS = 40.0
# Beyond so many steps T log M(z) carries a rounding error that shows.
_MOST_STEPS = 10**8


def gaussian_integral(multiplier: float, eps: float) -> float:
    """Delta of N(1, s^2) against N(0, s^2) at eps >= 0, s = sigma / sensitivity > 0."""
    mu = 1.0 / multiplier
    # In standard deviations from where the loss passes eps, on the side of the shifted law.
    start = eps / mu - 0.5 * mu

    if start >= 0.0:
        scale = math.exp(-0.5 * start * start)
        width = 160.0 / (start + math.sqrt(start * start + 160.0))

        def integrand(u: FloatArray) -> FloatArray:
            return np.asarray(np.exp(-u * (start + 0.5 * u)) * -np.expm1(-mu * u))

    else:
        # Nothing of the normal law lies further down.
        low = max(start, -_REACH)
        scale, width = 1.0, 13.0 - low

        def integrand(u: FloatArray) -> FloatArray:
            return np.asarray(np.exp(-0.5 * (low + u) ** 2) * -np.expm1(-mu * (low - start + u)))

    return scale * _graded(integrand, width, mu) / math.sqrt(2.0 * math.pi)


def one_step_delta(sampling_prob: float, multiplier: float, eps: float) -> float:
    """Delta of one Poisson-sampled release, the larger of both directions.

    Args:
        sampling_prob: q in (0, 1).
        multiplier: s = sigma / sensitivity > 0.
        eps: >= 0.
    """
    return max(_one_direction(sampling_prob, multiplier, eps, sign) for sign in (1.0, -1.0))


def _one_direction(q: float, s: float, eps: float, sign: float) -> float:
    """Delta of one step; REMOVE for sign 1, ADD for sign -1.

    REMOVE: p (1 - e^(eps - L)) to the right of where L = eps, p the density of the mixture; ADD:
    p0 (1 - e^(L + eps)) to the left of where L = -eps, L the log ratio of p over p0. With little noise that
    is far from where the laws are, and what lies between holds nothing.
    """
    level = sign * eps
    if level <= math.log1p(-q):
        return 0.0  # the mixture is nowhere that unlikely
    # How far beyond its mean, 1 or 0, in the direction of the loss, the law loses more than eps.
    start = sign * s**2 * (math.log(math.expm1(level) + q) - math.log(q)) - 0.5
    start = max(start, -_REACH * s)

    def integrand(u: FloatArray) -> FloatArray:
        y = start + u
        loss = np.logaddexp(math.log1p(-q), math.log(q) + sign * (y + 0.5) / s**2)
        density = np.exp(-0.5 * (y / s) ** 2)
        if sign > 0.0:
            density = q * density + (1.0 - q) * np.exp(-0.5 * ((y + 1.0) / s) ** 2)
        return np.asarray(density * -np.expm1(-sign * (loss - level)) / (s * math.sqrt(2.0 * math.pi)))

    return _graded(integrand, max(_REACH * s - start, s), 1.0 / s**2)


def _graded(integrand: Callable[[FloatArray], FloatArray], width: float, rate: float) -> float:
    """Integral over [0, width] on panels that grow from a small first one, in ratio."""
    first = min(width, 1.0 / rate) * 1e-3
    edges = np.concatenate([[0.0], np.geomspace(first, width, _PANELS)])
    half = 0.5 * np.diff(edges)
    nodes = edges[:-1, None] + half[:, None] * (1.0 + _NODES)
    return float(np.sum(integrand(nodes) * (half[:, None] * _WEIGHTS)))


def composed_delta(sampling_prob: float, multiplier: float, steps: int, eps: float) -> float:
    """Delta of T Poisson-sampled releases, the larger of both directions.

    Args:
        sampling_prob: q in (0, 1).
        multiplier: s = sigma / sensitivity > 0.
        steps: T >= 1.
        eps: >= 0.

    Raises:
        NumericalError: where the integral does not settle, or two contours disagree (a few steps of an almost
            constant loss), and beyond 1e8 steps.
    """
    if steps == 1:
        return one_step_delta(sampling_prob, multiplier, eps)
    return composed_integral(directions(sampling_prob, multiplier, steps, eps))


def composed_integral(laws: "list[ComposedLaw]") -> float:
    """Delta of T steps, the larger of the directions given; errors as for `composed_delta`."""
    steps, eps = laws[0].steps, laws[0].eps
    if steps > _MOST_STEPS:
        raise NumericalError(f"the contour integral of {steps} sampled steps would round visibly")
    lines: list[tuple[float, float]] = []
    found = 0.0
    for one in laws:
        # A direction whose Chernoff bound is below half of another one's delta decides nothing. Close to the
        # largest loss of ADD, which is near T q, its integral would be rounding and nothing else.
        if one.chernoff <= 0.5 * found:
            continue
        lines.append((one.on_line(1.0), one.on_line(0.7)))
        found = max(found, lines[-1][0])
    if any(abs(first - second) > _LINES_AGREE * found for first, second in lines):
        raise NumericalError(
            f"the contour integral of {steps} sampled steps at eps={eps!r} depends on its contour: {lines}"
        )
    return found


def directions(q: float, s: float, steps: int, eps: float, *, finer: int = 1) -> "list[ComposedLaw]":
    """REMOVE, and ADD where its loss may exceed eps, on a grid so many times as fine."""
    x = np.linspace(-_REACH * s, _REACH * s + 1.0, finer * (_GRID - 1) + 1)
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + (x - 0.5) / s**2)
    pure = -0.5 * (x / s) ** 2 + math.log((x[1] - x[0]) / (s * math.sqrt(2.0 * math.pi)))
    found = [ComposedLaw(ratio, pure + ratio, steps, eps)]
    if eps < -steps * math.log1p(-q):  # where the loss of ADD ends
        found.append(ComposedLaw(-ratio, pure, steps, eps))
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class ComposedLaw:
    """The contour integral of T steps in one direction at one eps.

    Args:
        losses: of one step, shape (m,).
        log_masses: their log probabilities, shape (m,).
        steps: T.
        eps: the privacy loss level.
        most_nodes: on a line; where more are needed, it does not settle.
    """

    losses: FloatArray
    log_masses: FloatArray
    steps: int
    eps: float
    most_nodes: int = _MOST_NODES

    def on_line(self, shift: float) -> float:
        """The integral of the module docstring along one line; `shift` in (0, 1] moves it to the left."""
        saddle = self.saddle
        if saddle is None:
            return 0.0
        theta = shift * self.real_part
        mesh = self._mesh(theta)
        total = self._trapezoidal_sum(theta, mesh)
        found = float(math.exp(self._rise(theta, saddle)) * total * mesh / math.pi)
        if not 0.0 < found <= 1.0 + 1e-6:
            raise NumericalError(
                f"the contour integral of {self.steps} sampled steps at eps={self.eps!r} is {found:.3g} "
                "times Chernoff's bound"
            )
        return found * math.exp(min(self._exponent(saddle), 0.0))

    @property
    def chernoff(self) -> float:
        """An upper bound on the delta of this direction."""
        saddle = self.saddle
        return 0.0 if saddle is None else math.exp(min(self._exponent(saddle), 0.0))

    @functools.cached_property
    def saddle(self) -> float | None:
        """The theta >= 0 where the mean of T tilted losses is eps; None where no loss lies above it."""

        def gap(theta: float) -> float:
            return self.steps * self._cumulants(theta)[1] - self.eps

        high = 1.0
        while gap(high) < 0.0:
            high *= 2.0
            if high > 1e8:
                return None
        return 0.0 if gap(0.0) >= 0.0 else float(scipy.optimize.brentq(gap, 0.0, high, rtol=1e-8))

    def _cumulants(self, theta: float) -> tuple[float, float, float]:
        """Log M(theta), and mean and variance of the tilted loss of one step."""
        exponents = self.log_masses + theta * self.losses
        top = float(exponents.max())
        masses = np.exp(exponents - top)
        total = float(masses.sum())
        mean = float(masses @ self.losses) / total
        return top + math.log(total), mean, float(masses @ (self.losses - mean) ** 2) / total

    def _exponent(self, theta: float) -> float:
        """T log M(theta) - theta eps: Chernoff's bound on log delta, least at the saddle point."""
        return self.steps * self._cumulants(theta)[0] - theta * self.eps

    def _rise(self, theta: float, saddle: float) -> float:
        """How far the exponent at theta is above that at the saddle point."""
        return self._exponent(theta) - self._exponent(saddle)

    def log_moment(self, theta: float) -> float:
        """Log M(theta) of one step."""
        return self._cumulants(theta)[0]

    @functools.cached_property
    def real_part(self) -> float:
        """Where the line crosses the real axis: at the saddle point, but not close to the pole at 0.

        Of a law that has a saddle point.
        """
        saddle = 0.0 if self.saddle is None else self.saddle
        theta = max(saddle, 0.5 / math.sqrt(self.steps * self._cumulants(saddle)[2]))
        while theta > saddle + 1e-300 and self._rise(theta, saddle) > _ABOVE_SADDLE:
            theta = 0.5 * (theta + saddle) if saddle > 0.25 * theta else 0.5 * theta
        return theta

    def _mesh(self, theta: float) -> float:
        """A distance of nodes on the line whose aliases are below e^-40.

        The sum over a mesh h adds e^(theta e) delta(e) at e = eps + 2 pi k / h: far above, Chernoff's bound
        makes that small, far below the factor e^(theta e) does.
        """
        low, high = self.window(theta)
        return float(2.0 * math.pi / max(high - self.eps, self.eps - low + _ALIAS / theta))

    def window(self, theta: float) -> tuple[float, float]:
        """Ends beyond which the sum of T tilted losses is with a chance of e^-40, by Chernoff's bound."""
        log_moment, _, variance = self._cumulants(theta)
        rises = np.geomspace(0.1, 100.0, 16) / math.sqrt(self.steps * variance)

        def grown(t: float) -> float:
            return self.steps * (self._cumulants(theta + t)[0] - log_moment)

        high = min((grown(t) + _ALIAS) / t for t in rises)
        return float(max((-grown(-t) - _ALIAS) / t for t in rises)), float(high)

    def _trapezoidal_sum(self, theta: float, mesh: float) -> float:
        """Half the sum of the real part of the integrand over the line, with as many nodes as it takes.

        All nodes so far are faded out smoothly: the integrand oscillates ever faster against its modulus, so
        that what is beyond the end cancels.

        Raises:
            NumericalError: if it does not settle.
        """
        tilted = np.exp(self.log_masses + theta * self.losses - self._cumulants(theta)[0])
        # What is left out is 2e-14 of the sum at most, far below what the integral is held to.
        keep = tilted > 1e-18 * tilted.max()
        masses, losses = tilted[keep], self.losses[keep]
        values = np.zeros(0, dtype=np.complex128)
        last = math.inf
        while values.size < self.most_nodes:
            count = max(2 * values.size, _CHUNK)
            y = mesh * np.arange(values.size, count)
            spend(
                1e-7 * y.size * losses.size,
                80.0 * _CHUNK * losses.size,
                what=f"a contour integral of {self.steps} steps",
            )
            parts = np.array_split(y, -(-y.size // _CHUNK))
            more = [_integrand(losses, masses, self.steps, self.eps, theta + 1j * part) for part in parts]
            values = np.concatenate([values, *more])
            total = float(np.sum(values.real * _fading(count))) - 0.5 * float(values[0].real)
            if abs(total - last) <= _AGREEMENT * abs(total):
                return total
            last = total
        raise NumericalError(
            f"the contour integral of {self.steps} sampled steps at eps={self.eps!r} did not settle in "
            f"{self.most_nodes} nodes"
        )


def _integrand(
    losses: FloatArray, masses: FloatArray, steps: int, eps: float, z: ComplexArray
) -> ComplexArray:
    """e^{T log M(z) - i Im(z) eps} / (z (z + 1)), M in units of M(Re z)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        moments = np.exp(1j * np.outer(z.imag, losses)) @ masses
        return np.asarray(np.exp(steps * np.log(moments) - 1j * z.imag * eps) / (z * (z + 1.0)))


def _fading(count: int) -> FloatArray:
    """Ones, then a smooth descent to 0 over the second half."""
    place = np.clip((np.arange(count) - 0.5 * count) / (0.5 * count), 1e-9, 1.0 - 1e-9)
    return np.where(place <= 1e-9, 1.0, scipy.special.expit(1.0 / place - 1.0 / (1.0 - place)))
