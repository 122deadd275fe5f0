r"""T-fold composition of a lattice loss by FFT, tilted towards the eps of interest.

Plain FFT composition leaves an absolute error near T times machine epsilon in delta: too much for
delta = 1e-12 over 100,000 steps. With p_theta(l) = p(l) e^{theta l} / M(theta),
delta(eps) = M^T sum_{l > eps} (1 - e^{eps - l}) e^{-theta l} p_theta^{*T}(l). The theta of Chernoff's bound
puts the bulk of p_theta^{*T} at eps, so that the same absolute error is relative to delta.

A composition is an upper or a lower bound: every tilted mass is increased, or decreased, by its rounding
error, and the error of the FFT is added to the exact composition of these masses.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from dpmech.engines.gaussian import gaussian_curve
from dpmech.engines.losses.lattice import LatticeLoss
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, lattice_product, next_up, spend

# The tilted mass that may be beyond either end of the window. It is added to the upper bound and subtracted
# from the lower one, with a factor 2: rounding of T log M changes Chernoff's bound on it by far less than
# log 2.
LOG_WRAP = math.log(1e-15)
MAX_LENGTH = 1 << 25
_MAX_TILT = 1e9
# Covers the few roundings of a bound itself.
_SLIGHTLY_MORE = 1.0 + 2.0**-20


class SumMoments(abc.ABC):
    """Log-moments of a sum of independent losses, and its Chernoff tilts.

    Attributes:
        parts: the moments of each kind of losses.
        square: mu^2 of an additional Gaussian loss: log M(theta) = theta (theta + 1) mu^2 / 2.
    """

    parts: tuple["LossMoments", ...]
    square: float

    def summed(self, theta: float) -> tuple[float, float, float]:
        """Log M(theta) of the sum, and its mean and variance under the tilted law."""
        log_m = 0.5 * theta * (theta + 1.0) * self.square
        mean, variance = (theta + 0.5) * self.square, self.square
        for part in self.parts:
            own = part.cumulants(theta)
            log_m, mean = log_m + part.times * own[0], mean + part.times * own[1]
            variance += part.times * own[2]
        return log_m, mean, variance

    def tilt_for_eps(self, eps: float) -> float:
        """The theta >= 0 that puts the mean of the sum at eps."""
        return _root_upwards(lambda theta: self.summed(theta)[1] - eps)

    def tilt_for_delta(self, log_delta: float) -> float:
        """The theta >= 0 of the Chernoff bound at delta: where log M - theta eps = log delta."""

        def gap(theta: float) -> float:
            log_m, mean, _ = self.summed(theta)
            return log_delta - (log_m - theta * mean)

        return _root_upwards(gap)

    def chernoff_log_delta(self, eps: float) -> float:
        """Log of an upper bound on delta(eps)."""
        theta = self.tilt_for_eps(eps)
        return min(0.0, self.summed(theta)[0] - theta * eps)

    def chernoff_eps(self, log_delta: float) -> float:
        """An upper bound on the eps >= 0 at delta."""
        # The bound holds for every theta > 0; the maximum only avoids 0.
        theta = max(self.tilt_for_delta(log_delta), 1e-9)
        return max(0.0, (self.summed(theta)[0] - log_delta) / theta)

    def saddle_log_delta(self, eps: float) -> float:
        """Log of the saddle-point approximation of delta(eps): an estimate, used for starting points only."""
        theta = self.tilt_for_eps(eps)
        log_m, _, variance = self.summed(theta)
        return min(0.0, log_m - theta * eps + _log_tails(theta, variance))

    def saddle_eps(self, log_delta: float) -> float:
        """The eps >= 0 at delta by the saddle-point approximation: an estimate, for starting points only."""

        def gap(theta: float) -> float:
            log_m, mean, variance = self.summed(theta)
            return log_delta - (log_m - theta * mean + _log_tails(theta, variance))

        return max(0.0, self.summed(_root_upwards(gap))[1])

    def window(self, theta: float, log_tail: float) -> tuple[float, float]:
        """An interval: the tilted sum has mass at most e^log_tail on each side (Chernoff)."""
        log_m, mean, variance = self.summed(theta)
        scale = math.sqrt(-2.0 * log_tail / max(variance, 1e-300))
        # Losses may decrease with the output.
        ends = [sorted((float(part.losses[0]), float(part.losses[-1]))) for part in self.parts]
        low = sum(part.times * least for part, (least, _) in zip(self.parts, ends, strict=True))
        high = sum(part.times * most for part, (_, most) in zip(self.parts, ends, strict=True))
        if self.square > 0.0:
            low, high = -math.inf, math.inf
        for factor in np.geomspace(2.0**-6, 2.0**3, 13):
            t = scale * float(factor)
            up = self.summed(theta + t)[0] - log_m
            down = self.summed(theta - t)[0] - log_m
            high = min(high, (up - log_tail) / t)
            low = max(low, -(down - log_tail) / t)
        return min(low, mean), max(high, mean)


class LossMoments(SumMoments):
    """Those of several losses of one kind, given by its points and masses."""

    square = 0.0

    def __init__(self, losses: FloatArray, log_masses: FloatArray, times: int) -> None:
        keep = log_masses > -745.0
        self.losses = losses[keep]
        self.log_masses = log_masses[keep]
        self.times = times

    @classmethod
    def of(cls, loss: LatticeLoss, times: int) -> "LossMoments":
        """The moments of a lattice loss."""
        with np.errstate(divide="ignore"):
            return cls(loss.losses(), np.log(loss.masses), times)

    @property
    def parts(self) -> tuple["LossMoments", ...]:  # type: ignore[override]  # it is not set
        """These losses alone."""
        return (self,)

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """Log M(theta), and mean and variance of one step under the tilted law."""
        exponent = self.log_masses + theta * self.losses
        top = float(exponent.max())
        # Terms below e^-600 relative do not affect the result, but subnormal numbers are slow.
        near = exponent - top > -600.0
        weights, losses = np.exp(exponent[near] - top), self.losses[near]
        total = float(weights.sum())
        mean = float(np.sum(weights * losses)) / total
        variance = float(np.sum(weights * (losses - mean) ** 2)) / total
        return top + math.log(total), mean, variance


@dataclasses.dataclass(frozen=True)
class JointMoments(SumMoments):
    """Those of losses of several kinds."""

    parts: tuple[LossMoments, ...]
    square: float = 0.0


def _log_tails(theta: float, variance: float) -> float:
    """Log of E (1 - e^-X)_+ e^(-theta X) for a normal X with mean 0."""
    spread = math.sqrt(0.5 * variance)
    tails = 0.5 * float(scipy.special.erfcx(theta * spread) - scipy.special.erfcx((theta + 1.0) * spread))
    return math.log(max(tails, 1e-300))


def _root_upwards(gap: Callable[[float], float]) -> float:
    """A root of an increasing function on [0, 1e9]; 0 or 1e9 if there is none."""
    if gap(0.0) >= 0.0:
        return 0.0
    high = 1e-2
    while gap(high) < 0.0:
        high *= 8.0
        if high > _MAX_TILT:
            return _MAX_TILT
    # The accuracy of the tilt enters no guarantee: every theta gives a bound.
    return float(scipy.optimize.brentq(gap, 0.0, high, rtol=1e-4, xtol=1e-12))


@dataclasses.dataclass(frozen=True, eq=False)
class ComposedLoss:
    """The T-fold sum of a lattice loss near one tilt.

    Args:
        losses: lattice points of the window, shape (m,), increasing.
        masses: tilted masses there, shape (m,); rounding errors may make some of them negative.
        log_scale: T log M(theta), summed over the kinds.
        log_size: |T log M(theta)|, summed over the kinds: rounding of `log_scale` is relative to it.
        theta: the tilt.
        error: bound on the rounding error of a single tilted mass.
        wrapped: bound on the tilted mass outside the window, which wraps into it.
        infinite_mass: mass at loss +infinity after composition.
        upper: whether it is an upper bound on delta (and eps), or a lower one.
    """

    losses: FloatArray
    masses: FloatArray
    log_scale: float
    log_size: float
    theta: float
    error: float
    wrapped: float
    infinite_mass: float
    upper: bool

    @functools.cached_property
    def _size(self) -> float:
        return float(np.sum(np.abs(self.masses)))

    def delta(self, eps: float) -> float:
        """The bound on delta at eps; rounding, wrapping and infinite mass are included."""
        above = int(np.searchsorted(self.losses, eps, side="right"))
        # Weights below e^-600 do not affect the result; they would only be slow subnormal numbers.
        last = int(np.searchsorted(self.losses, eps + 600.0 / max(self.theta, 1e-300), side="right"))
        excess = self.losses[above:last] - eps
        weights = -np.expm1(-excess) * np.exp(-self.theta * excess)
        # Losses have error 3 u, as has eps in the comparison: that changes a weight, which falls like
        # e^(-theta excess), by 1 + theta times as much, and excess e^(-theta excess) is at most
        # 1 / (e theta). In addition a weight has error 18 u and that of its exponent, and their sum 64 u.
        furthest = min(float(excess[-1]), 0.37 / max(self.theta, 1e-300)) if excess.size else 0.0
        moved = 3.0 * (1.0 + self.theta) * (2.0 * abs(eps) + furthest) + 97.0 * float(
            weights.max(initial=0.0)
        )
        return self._summed(eps, self.masses[above:last], weights, UNIT * moved, 0.0)

    def tail(self, index: int) -> float:
        """The bound on the probability of the loss at an index of `losses`, and of larger ones."""
        start = float(self.losses[index])
        last = int(np.searchsorted(self.losses, start + 600.0 / max(self.theta, 1e-300), side="right"))
        excess = self.losses[index:last] - start
        weights = np.exp(-self.theta * excess)
        # As in `delta`, but that no loss is compared with eps.
        furthest = min(float(excess[-1]), 0.37 / max(self.theta, 1e-300))
        moved = 3.0 * self.theta * (2.0 * abs(start) + furthest) + 97.0
        return self._summed(start, self.masses[index:last], weights, UNIT * moved, 0.0)

    def delta_beside(self, eps: float, square: float) -> float:
        """The bound on delta at eps of the sum of this loss and an independent Gaussian one.

        H_a of a product is the mean over one loss l of H_(a e^-l) of the other, which has a closed form.

        Args:
            eps: any real number.
            square: mu^2 > 0 of the Gaussian loss.
        """
        mu = math.sqrt(square)
        logs, errors = gaussian_curve(mu, eps - self.losses)
        log_m = 0.5 * self.theta * (self.theta + 1.0) * square
        # Chernoff: H_g(e) <= M_g(theta) e^(-theta e), so that no weight is above 1.
        exponents = np.minimum(logs - self.theta * (self.losses - eps) - log_m, 0.0)
        weights = np.exp(exponents)
        known = np.isfinite(errors)
        if self.upper:
            weights *= 1.0 + np.where(known, errors, 0.0)
        else:
            weights *= np.where(known, np.maximum(1.0 - errors, 0.0), 0.0)
        # A weight falls at most 1 + theta times as fast as losses rise, which have error 3 u; its exponent
        # has error 4 u of its parts, its exponential 8 u, and mu u, which is included in the second term.
        parts = np.abs(logs) + self.theta * np.abs(self.losses - eps) + log_m
        moved = weights * (4.0 * parts + 2.0 * (self.theta + 1.0) ** 2 * square + 40.0)
        moved += 3.0 * (1.0 + self.theta) * (np.abs(self.losses) + abs(eps))
        slack = UNIT * float(np.abs(self.masses) @ moved) / max(self._size, 1e-300)
        return self._summed(eps, self.masses, weights, slack, log_m)

    def _summed(
        self, eps: float, masses: FloatArray, weights: FloatArray, moved: float, log_beside: float
    ) -> float:
        """Masses times weights, with the effects of rounding, wrapping and infinite mass.

        Args:
            eps: of the bound.
            masses: tilted.
            weights: at most 1.
            moved: error of the weights, for a mass of 1.
            log_beside: log of the factor that undoes the tilt of an additional loss, at eps 0, >= 0.
        """
        value = float(np.sum(masses * weights))
        slack = self.error * float(weights.sum()) * _SLIGHTLY_MORE + self.wrapped
        slack += self._size * moved * _SLIGHTLY_MORE
        exponent = self.log_scale + log_beside - self.theta * eps
        scale = math.exp(min(exponent, 700.0))
        relative = ELEMENTARY + 3.0 * UNIT * (self.log_size + log_beside + self.theta * abs(eps))
        if not self.upper:
            return max(0.0, (value - slack) * scale * (1.0 - relative - ELEMENTARY))
        dropped = 1e-250 * scale
        finite = max(0.0, (value + slack) * scale * (1.0 + relative + ELEMENTARY))
        return min(1.0, next_up(finite + dropped + self.infinite_mass) + dropped)


def compose(loss: LatticeLoss, times: int, theta: float, *, upper: bool) -> ComposedLoss:
    """The T-fold composition at one tilt, rounded up or down.

    Raises:
        NumericalError: if the window needs more than 2^25 lattice points.
    """
    return compose_all([(loss, times)], theta, upper=upper)


def compose_all(factors: Sequence[tuple[LatticeLoss, int]], theta: float, *, upper: bool) -> ComposedLoss:
    """The composition of losses of several kinds at one tilt, rounded up or down.

    Args:
        factors: losses on lattices of one step, each with its multiplicity >= 1; at least one.
        theta: the tilt, >= 0.
        upper: whether masses are rounded up.

    Raises:
        NumericalError: if the window needs more than 2^25 lattice points.
    """
    step, steps = factors[0][0].step, sum(times for _, times in factors)
    moments = JointMoments(tuple(LossMoments.of(loss, times) for loss, times in factors))
    tilted = [
        (*_tilted(loss, part, theta, upper=upper), times)
        for (loss, times), part in zip(factors, moments.parts, strict=True)
    ]
    low, high = moments.window(theta, LOG_WRAP)
    offset = sum(times * loss.offset for loss, times in factors)
    start = math.floor((low - offset) / step) - 1
    length = scipy.fft.next_fast_len(math.ceil((high - offset) / step) + 2 - start, real=True)
    if length > MAX_LENGTH:
        raise NumericalError(
            f"composition over {steps} steps needs {length} lattice points: tolerance too small"
        )
    spend(
        1e-8 * length * math.log2(length) * len(factors),
        96.0 * length,
        what=f"composing {steps} steps on {length} points",
    )
    masses, error = lattice_product(tilted, start=start, length=length)
    never = 0.0
    for loss, times in factors:
        one = math.log1p(-loss.infinite_mass) if loss.infinite_mass < 1.0 else -math.inf
        never += times * one
    return ComposedLoss(
        losses=offset + (start + np.arange(length, dtype=np.float64)) * step,
        masses=masses,
        log_scale=moments.summed(theta)[0],
        log_size=sum(part.times * abs(part.cumulants(theta)[0]) for part in moments.parts),
        theta=theta,
        error=error,
        wrapped=4.0 * math.exp(LOG_WRAP),
        infinite_mass=-math.expm1(never) * (1.0 + (4.0 + len(factors)) * ELEMENTARY),
        upper=upper,
    )


def _tilted(loss: LatticeLoss, moments: LossMoments, theta: float, *, upper: bool) -> tuple[FloatArray, int]:
    """Tilted masses, rounded up or down, and the index of the first."""
    log_m, losses = moments.cumulants(theta)[0], loss.losses()
    with np.errstate(divide="ignore"):
        log_masses = np.log(loss.masses)
    # The logarithm has error 8 u, the loss 2 u, products and sums u of each of their terms, the exponential
    # 8 u. Masses of 0 have no error; underflow is covered by the error of the FFT.
    moved = 11.0 * np.abs(log_masses) + 6.0 * theta * np.abs(losses) + 3.0 * abs(log_m) + 12.0
    moved = UNIT * np.where(np.isfinite(log_masses), moved, 0.0)
    masses = np.exp(log_masses + theta * losses - log_m) * (1.0 + (moved if upper else -moved))
    return masses, loss.first
