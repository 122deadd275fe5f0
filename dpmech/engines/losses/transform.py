r"""Moments of one step's privacy loss at complex arguments, with proved errors.

With r(x) the density of the mixture (1-q) N(0, s^2) + q N(1, s^2) over that of N(0, s^2), everything here is
an integral of f(x) = N(0, s^2)(x) r(x)^kappa e^{i t log r(x)} over an interval: the moment generating
function M(z) of the loss at z = theta + i t has kappa = 1 + theta in the direction REMOVE, where the loss is
log r under the mixture, and kappa = -theta in ADD, where it is -log r under N(0, s^2).

f is analytic where r has no zero. Gauss-Legendre rules on panels have an error of at most
64/15 sup |f| rho^(2 - 2n) / (1 - rho^-2) times half the panel's width, with the supremum over the Bernstein
ellipse rho of the panel (Trefethen, Approximation Theory and Approximation Practice, Theorem 19.3, for n
nodes). Panels are halved until these bounds sum to the target, however fast e^{i t log r} oscillates.

On the ellipse, at x + i y with phi = |y| / s^2, |r| is at most r(x) and at least r(x) cos(phi / 2), and its
argument is that of 1 - q + q e^{(x - 1/2) / s^2 + i phi}, which increases with x and with phi < pi. Where
zeta = q e^{(x - 1/2) / s^2} / (1-q) is below 1, the argument is at most asin(zeta), and |r| at least
(1-q) (1 - zeta), at any phi. The derivative of log r is the share q e^{...} / r of the shifted component over
s^2, which increases with x: it bounds how much f changes over a panel.
"""

import dataclasses
import functools
import itertools
import math

import numpy as np
import numpy.typing as npt

from dpmech.engines.losses.lattice import Loss
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, gauss_legendre, spend

ComplexArray = npt.NDArray[np.complex128]

_NODES, _WEIGHTS = gauss_legendre(20)
_RHOS = (1.6, 2.2, 3.0, 4.5, 7.0)
# Maximum number of halvings of panels.
_MAX_HALVINGS = 60
# Maximum number of panels of one rule; more would take minutes.
_MOST_PANELS = 1 << 18
# Nodes are summed in blocks: large ones up to this total weight (nodes by increasing mass), then small ones.
_LIGHT, _LARGE_BLOCK = 1e-3, 512
# Half of a standard normal's mass beyond this is below e^-760.
_FAR = 39.0
# Intervals of up to this many standard deviations are sampled densely.
_CLOSELY = 400.0
# Bounds on logarithms of sizes are raised by this: far above their own rounding.
_MARGIN = 0.01


def exponent_of(loss: Loss, theta: float) -> float:
    """Kappa of the moment at theta."""
    return 1.0 + theta if loss.remove else -theta


@dataclasses.dataclass(frozen=True, eq=False)
class Transform:
    """A moment generating function along a vertical line, from nodes: e^log_moment times `along`.

    Args:
        losses: at the nodes, shape (m,).
        masses: of the nodes, tilted and divided by their sum, shape (m,), increasing.
        blocks: boundaries of the blocks of nodes that are summed separately.
        log_moment: log of that sum, the moment on the real line.
        offset: bound on the absolute error of a value, relative to the real moment, at any frequency.
        slope: bound on the additional error per unit of frequency.
        log_error: bound on the rounding of `log_moment` as the logarithm of the sum.
    """

    losses: FloatArray
    masses: FloatArray
    blocks: tuple[int, ...]
    log_moment: float
    offset: float
    slope: float
    log_error: float

    def along(self, spacing: float, count: int) -> ComplexArray:
        """Values at theta + i k h for k = 0, ..., count - 1, relative to the real moment, shape (count,)."""
        inner = math.isqrt(max(count - 1, 0)) + 1
        outer = -(-count // inner)
        spend(
            3e-9 * self.losses.size * (count + 40.0 * (inner + outer)),
            32.0 * count + 64.0 * _LARGE_BLOCK * (inner + outer),
            what=f"a transform at {count} points from {self.losses.size} nodes",
        )
        fine, coarse = np.arange(inner) * spacing, np.arange(outer) * (inner * spacing)
        total = np.zeros((outer, inner), dtype=np.complex128)
        for start, end in itertools.pairwise(self.blocks):
            losses, masses = self.losses[start:end], self.masses[start:end]
            total += (np.exp(1j * np.outer(coarse, losses)) * masses) @ np.exp(1j * np.outer(losses, fine))
        return total.reshape(-1)[:count]

    def error(self, frequency: FloatArray) -> FloatArray:
        """Bounds on the errors of `along` at frequencies t >= 0, of the same shape."""
        return self.offset + self.slope * frequency

    @functools.cached_property
    def log_ends(self) -> tuple[float, float]:
        """Logs of a lower and an upper bound on the real moment; the lower one may be -infinity."""
        slack = self.log_error + 2.0 * ELEMENTARY
        low = math.log1p(-self.offset) if self.offset < 1.0 else -math.inf
        return self.log_moment + low * (1.0 + slack) - slack, self.log_moment + math.log1p(
            self.offset
        ) + slack


def transform(
    loss: Loss, kappa: float, interval: tuple[float, float], *, frequency: float, share: float
) -> Transform:
    """The integral of f over outputs in an interval, for all frequencies up to a maximum.

    Args:
        loss: of the step.
        kappa: the real exponent of r.
        interval: of outputs; the ends may be infinite.
        frequency: the largest t >= 0.
        share: allowed error relative to the real moment; it is included in the bounds, as is rounding.

    Raises:
        NumericalError: if float64 cannot distinguish the integral from 0, or there are too many panels.
    """
    shape = _Shape(loss, kappa)
    low, high, log_size, missed = shape.extent(interval, math.log(share))
    goal = log_size + math.log(share)
    edges = np.linspace(low, high, 9)
    a, b = edges[:-1], edges[1:]
    kept: list[tuple[FloatArray, FloatArray]] = []
    panels = 0
    for _ in range(_MAX_HALVINGS):
        error, mass = shape.panel_bounds(a, b, frequency)
        dropped = mass < goal - 7.0
        good = ~dropped & (error < goal - 7.0)
        missed += float(np.exp(mass[dropped] - log_size).sum() + np.exp(error[good] - log_size).sum())
        kept.append((a[good], b[good]))
        panels += int(good.sum())
        left = ~(dropped | good)
        a, b = a[left], b[left]
        if a.size == 0 or panels + a.size > _MOST_PANELS:
            break
        middle = 0.5 * (a + b)
        a, b = np.concatenate([a, middle]), np.concatenate([middle, b])
    if a.size or not panels:
        raise NumericalError(f"the moment of order {kappa!r} of {loss!r} needs too fine a quadrature")
    a, b = (np.concatenate(ends) for ends in zip(*kept, strict=True))
    return shape.nodes(a, b, log_size, missed)


def _grid(low: float, high: float, s: float) -> FloatArray:
    """Outputs to sample: densely if the interval is short, otherwise densely at both ends, near the peaks."""
    width = 0.5 * _CLOSELY * s
    if high - low <= 2.0 * width:
        return np.linspace(low, high, max(1001, math.ceil(12.0 * (high - low) / s)))
    count = math.ceil(12.0 * width / s)
    ends = np.linspace(low, low + width, count), np.linspace(high - width, high, count)
    return np.concatenate([ends[0], np.linspace(low + width, high - width, 2001)[1:-1], ends[1]])


@dataclasses.dataclass(frozen=True)
class _Shape:
    """|f| on the real line and near it."""

    loss: Loss
    kappa: float

    def share_of_shifted(self, x: FloatArray, log_ratio: FloatArray) -> FloatArray:
        """Q e^z / r: the derivative of log r times s^2."""
        z = (x - 0.5) / self.loss.sigma_over_sensitivity**2
        return np.exp(np.minimum(math.log(self.loss.sampling_prob) + z - log_ratio, 0.0))

    def log_size(self, x: FloatArray, log_ratio: FloatArray) -> FloatArray:
        """Log |f|."""
        s = self.loss.sigma_over_sensitivity
        return -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2.0 * math.pi)) + self.kappa * log_ratio

    def extent(self, interval: tuple[float, float], log_share: float) -> tuple[float, float, float, float]:
        """An interval with all of the moment except about a share, the log of the moment, and the remainder.

        Outwards log |f| falls at least like x^2 / (2 s^2), less the growth of kappa log r. To the right its
        slope is at most kappa / s^2, for kappa > 0, and to the left |kappa| / s^2 times the share of the
        shifted component at the end, for kappa < 0; otherwise r^kappa falls as well.

        Returns:
            Both ends, the log, and a bound on the moment beyond them relative to its exponential.
        """
        s, kappa = self.loss.sigma_over_sensitivity, self.kappa
        low = max(interval[0], -_FAR * s + min(0.0, max(kappa, -_FAR * s)))
        high = min(interval[1], _FAR * s + 1.0 + max(0.0, kappa))
        if not low < high:
            raise NumericalError(f"no output of {self.loss!r} in {interval!r} counts")
        x = _grid(low, high, s)
        ratio = self.loss.log_ratio(x)
        sizes = self.log_size(x, ratio)
        top = float(sizes.max())
        total = top + math.log(float(np.trapezoid(np.exp(sizes - top), x)))
        near = np.flatnonzero(sizes > total + log_share - 10.0 - math.log(s))
        if not (near.size and math.isfinite(total)):
            raise NumericalError(f"the moment of order {kappa!r} of {self.loss!r} leaves float64")
        left = -x - max(0.0, -kappa) * self.share_of_shifted(x, ratio)
        right = x - max(0.0, kappa)
        places = np.arange(x.size)
        before = np.flatnonzero((left > 0.1 * s) & (places < near[0]))
        after = np.flatnonzero((right > 0.1 * s) & (places > near[-1]))
        ends, beyond = [float(low), float(high)], 0.0
        for side, found, pull in ((0, before[-1:], left), (1, after[:1], right)):
            if found.size:
                end = int(found[0])
                ends[side] = float(x[end])
                beyond += math.exp(sizes[end] - total + math.log(s * s / pull[end]) + _MARGIN)
            elif ends[side] != interval[side]:
                raise NumericalError(
                    f"the tail of the moment of order {kappa!r} of {self.loss!r} is unbounded"
                )
        return ends[0], ends[1], total, beyond

    def panel_bounds(self, a: FloatArray, b: FloatArray, frequency: float) -> tuple[FloatArray, FloatArray]:
        """Logs of bounds on the error of the rule on panels [a, b], and on |f| integrated over them."""
        centre, half = 0.5 * (a + b), 0.5 * (b - a)
        size = self.log_size(centre, self.loss.log_ratio(centre))
        error = np.full(a.shape, np.inf)
        for rho in _RHOS:
            along, across = 0.5 * (rho + 1.0 / rho) * half, 0.5 * (rho - 1.0 / rho) * half
            grown = size + self._growth(centre, along) + self._off_line(centre, along, across, frequency)
            rule = math.log(64.0 / 15.0 / (1.0 - rho**-2)) - 2.0 * (_NODES.size - 1) * math.log(rho)
            error = np.minimum(error, grown + np.log(half) + rule)
        return error + _MARGIN, size + self._growth(centre, half) + np.log(2.0 * half) + _MARGIN

    def _growth(self, centre: FloatArray, reach: FloatArray) -> FloatArray:
        """Bound on the excess of log |f| over its value at the centre, on the real line within reach."""
        low, high = centre - reach, centre + reach
        shares = [self.kappa * self.share_of_shifted(x, self.loss.log_ratio(x)) for x in (low, high)]
        rise, fall = np.maximum(*shares) - low, np.minimum(*shares) - high
        return reach * np.maximum(np.abs(rise), np.abs(fall)) / self.loss.sigma_over_sensitivity**2

    def _off_line(
        self, centre: FloatArray, along: FloatArray, across: FloatArray, frequency: float
    ) -> FloatArray:
        """Bound on the excess of log |f| within `across` of the real line over its maximum on the line."""
        q, s = self.loss.sampling_prob, self.loss.sigma_over_sensitivity
        end = centre + along
        z, phi = (end - 0.5) / s**2, across / s**2
        log_zeta = math.log(q) - math.log1p(-q) + z
        zeta = np.exp(np.minimum(log_zeta, math.log(0.5)))
        few, near = log_zeta <= math.log(0.5), phi <= 1.5
        weight = np.exp(np.minimum(log_zeta, 600.0))
        turned = np.arctan2(weight * np.sin(phi), 1.0 + weight * np.cos(phi))
        argument = np.minimum(np.where(near, turned, math.pi), np.where(few, np.arcsin(zeta), math.pi))
        found = 0.5 * (across / s) ** 2 + frequency * argument
        if self.kappa < 0.0:
            around = np.where(near, -np.log(np.cos(np.minimum(0.5 * phi, 0.75))), np.inf)
            above = self.loss.log_ratio(end) - math.log1p(-q)
            flat = np.where(few, above - np.log1p(-zeta), np.inf)
            found = found - self.kappa * np.minimum(around, flat)
        return np.where(near | few, found, np.inf)

    def nodes(self, a: FloatArray, b: FloatArray, log_size: float, missed: float) -> Transform:
        """The rule on panels, with bounds on the errors of its parts.

        In units of u = 2^-53, X the farther end of a panel from 0: a computed node has error 7 X, from
        middle, width and the tabulated node, which changes log f by (X + |kappa| share) / s^2 times that, and
        the loss by share / s^2 times that. `Loss.rounding` bounds the error of log r, and of a density times
        a weight; kappa times log r adds that error kappa times, and sums and products in the exponent add 3
        times their terms. A phase has error 4 t |L| in addition to that of L, a sine 8, so that products of
        two exponentials and a mass add 24. A block of n terms, with real and imaginary parts, has error
        2 (2 n + 2) of its mass, and adding it twice the mass so far: nodes are summed by increasing mass.
        """
        s, kappa = self.loss.sigma_over_sensitivity, self.kappa
        middle, half = 0.5 * (a + b), 0.5 * (b - a)
        x = (middle[:, None] + half[:, None] * _NODES).ravel()
        ratio = self.loss.log_ratio(x)
        off, relative = self.loss.rounding(x)
        furthest = np.repeat(np.maximum(np.abs(a), np.abs(b)), _NODES.size)
        share = self.share_of_shifted(x, ratio)
        moved = 8.0 * UNIT * furthest / s**2
        sizes = np.exp(self.log_size(x, ratio) - log_size) * (half[:, None] * _WEIGHTS).ravel()
        total = float(sizes.sum())
        if not (math.isfinite(total) and total > 0.0):
            raise NumericalError(f"the moment of order {kappa!r} of {self.loss!r} leaves float64")
        masses = sizes / total
        parts = 0.5 * (x / s) ** 2 + np.abs(kappa * ratio) + abs(log_size) + abs(math.log(s)) + 8.0
        relative = relative + abs(kappa) * off + moved * (furthest + abs(kappa) * share) + 4.0 * UNIT * parts
        order = np.argsort(masses)
        so_far = np.cumsum(masses[order])
        light = int(np.searchsorted(so_far, _LIGHT))
        small = min(max(math.isqrt(x.size - light) // 2, 8), 64)
        blocks = (*range(0, light, _LARGE_BLOCK), *range(light, x.size, small), x.size)
        ends = so_far[np.array(blocks[1:]) - 1]
        counts, weights = np.diff(blocks), np.diff(ends, prepend=0.0)
        summing = UNIT * (float((4.0 * counts + 4.0) @ weights) + 2.0 * float(ends.sum()) + 64.0 + 24.0)
        slope = float(masses @ (off + moved * share + 4.0 * UNIT * np.abs(ratio)))
        return Transform(
            losses=(ratio if self.loss.remove else -ratio)[order],
            masses=masses[order],
            blocks=blocks,
            log_moment=log_size + math.log(total),
            offset=1.01 * (float(masses @ relative) + summing + missed / total),
            slope=1.01 * slope,
            log_error=UNIT * (4.0 * abs(log_size) + 12.0 * abs(math.log(total)) + 8.0),
        )
