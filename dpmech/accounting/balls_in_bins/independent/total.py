r"""The sum of the values of all bins, tilted: E (V - tau)_+ from a lattice of one of them.

With p_theta(y) = p(y) e^(theta y) / M and V = y_1 + ... + y_b,
E (V - tau)_+ = M^b e^(-theta tau) sum_V p_theta^(*b)(V) (V - tau)_+ e^(-theta (V - tau)). The theta that
puts the mean of p_theta^(*b) at tau makes the absolute error of an FFT one relative to the result.
"""

import dataclasses
import math

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.independent.ratio import Lattice
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray, lattice_product, spend

__all__ = ["LONGEST", "Moments", "TiltedTotal", "tilted_total"]

# The tilted mass that may lie beyond either end of the window.
_LOG_WRAP = math.log(1e-15)
LONGEST = 1 << 24
# Excesses of more than so many 1 / theta have weights below e^-64 of the largest.
_FARTHEST = 64.0
_SLIGHTLY_MORE = 1.0 + 2.0**-20


class Moments:
    """The moments of points and masses, for tilts; estimates unless the points are a lattice.

    Args:
        points: shape (m,).
        masses: shape (m,), >= 0.
        times: b, how many are added up.
    """

    def __init__(self, points: FloatArray, masses: FloatArray, times: int) -> None:
        keep = masses > 0.0
        self.points, self.logs = points[keep], np.log(masses[keep])
        self.times = times

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """Log M, and mean and variance of one tilted value."""
        exponent = self.logs + theta * self.points
        top = float(exponent.max())
        weights = np.exp(np.maximum(exponent - top, -700.0))
        total = float(weights.sum())
        mean = float(weights @ self.points) / total
        return top + math.log(total), mean, float(weights @ (self.points - mean) ** 2) / total

    def tilt(self, tau: float) -> float:
        """The theta >= 0 whose mean is tau / b, or close to it; infinite where no value is above that."""
        aim = tau / self.times
        if self.cumulants(0.0)[1] >= aim:
            return 0.0
        top = float(self.points.max())
        if not top > aim:
            return math.inf
        high = 1.0 / (top - float(self.points.min()))
        while self.cumulants(high)[1] < aim:
            high *= 4.0
            if high * (top - aim) > 1e6:
                return high
        low = 0.0 if high * (top - float(self.points.min())) <= 1.0 else 0.25 * high
        return float(
            scipy.optimize.brentq(
                lambda theta: self.cumulants(theta)[1] - aim, low, high, xtol=1e-5 * high, rtol=1e-5
            )
        )

    def log_excess(self, tau: float, theta: float) -> float:
        """Log of about E (V - tau)_+ at a tilt: the saddle point's."""
        log_m, _, variance = self.cumulants(theta)
        spread = math.sqrt(self.times * variance)
        # The integral of y e^(-theta y) against the normal density of this spread.
        z = theta * spread
        tail = math.sqrt(0.5 * math.pi) * float(scipy.special.erfcx(z * math.sqrt(0.5)))
        shape = 1.0 - z * tail if z < 50.0 else z**-2
        return self.times * log_m - theta * tau + math.log(spread * shape / math.sqrt(2.0 * math.pi))

    def reaches(self, theta: float) -> tuple[tuple[float, float], float]:
        """Exponents t > 0 for Chernoff's bounds on the tilted sum, up and down; their distance."""
        log_m, _, variance = self.cumulants(theta)
        scale = math.sqrt(-2.0 * _LOG_WRAP / (self.times * variance))
        found, width = [], 0.0
        for side in (1.0, -1.0):
            ends = []
            for factor in np.geomspace(2.0**-8, 2.0**3, 12):
                t = scale * float(factor)
                ends.append((self._end(theta, side * t, log_m) / t, t))
            found.append(min(ends)[1])
            width += min(ends)[0]
        return (found[0], found[1]), width

    def _end(self, theta: float, t: float, log_m: float) -> float:
        return self.times * (self.cumulants(theta + t)[0] - log_m) - _LOG_WRAP


@dataclasses.dataclass(frozen=True, eq=False)
class TiltedTotal:
    """The tilted sum on a window, as an upper or a lower one.

    Args:
        points: shape (m,), increasing.
        masses: tilted masses, shape (m,); rounding may make some negative.
        theta: the tilt, >= 0.
        log_scale: b log M.
        error: bound on the rounding error of a mass.
        rate: t > 0 such that E e^(t (V - end)) is at most `wrapped` for the end of the window.
        wrapped: bound on the tilted mass that lies outside the window and wraps into it.
        displaced: what the points may be off by, apart from roundings of themselves.
        upper: which of both.
    """

    points: FloatArray
    masses: FloatArray
    theta: float
    log_scale: float
    error: float
    rate: float
    wrapped: float
    displaced: float
    upper: bool

    def excess(self, tau: float) -> float:
        """The bound on E (V - tau)_+ for a tau that is known exactly."""
        side = 1.0 if self.upper else -1.0
        shift = 4.0 * UNIT * abs(tau) + self.displaced
        level = tau - side * shift
        above = int(np.searchsorted(self.points, level, side="right"))
        theta = self.theta
        farthest = _FARTHEST / theta if theta > 0.0 else math.inf
        last = int(np.searchsorted(self.points, level + farthest, side="right"))
        excesses = self.points[above:last] - level
        weights = excesses * np.exp(-theta * excesses)
        value = float(self.masses[above:last] @ weights)
        size = float(np.abs(self.masses[above:last]) @ weights)
        # The largest weight, beyond the window as well.
        top = float(self.points[-1]) - level
        highest = 1.0 / (math.e * theta) if theta > 0.0 else math.inf
        if self.rate * top >= 1.0:
            # Then V - tau <= top e^(rate (V - end)).
            highest = min(highest, top)
        slack = self.error * float(weights.sum()) * _SLIGHTLY_MORE + self.wrapped * highest
        if self.upper and last < self.points.size:
            slack += farthest * math.exp(-_FARTHEST) * (1.0 + 2.0 * float(np.abs(self.masses[last:]).sum()))
        # A weight is off by 12 u and by what its exponent is, sums by 64 u, and what the level moves by.
        moved = 2.0 * theta * (max(abs(float(self.points[0])), abs(float(self.points[-1]))) + abs(tau))
        slack += UNIT * size * (80.0 + moved) * _SLIGHTLY_MORE
        exponent = self.log_scale - theta * level
        relative = ELEMENTARY + 4.0 * UNIT * (abs(self.log_scale) + theta * abs(tau))
        if exponent > 700.0:
            raise NumericalError("the tilt of a sum leaves the range of float64")
        scale = math.exp(exponent)
        if not self.upper:
            return max(0.0, (value - slack) * scale * (1.0 - relative - ELEMENTARY))
        return max(0.0, (value + slack) * scale * (1.0 + relative + ELEMENTARY)) + 1e-300


def tilted_total(
    lattice: Lattice, times: int, theta: float, reaches: tuple[float, float], *, upper: bool, least: float
) -> TiltedTotal:
    """The b-fold sum at one tilt, rounded up or down.

    Args:
        lattice: of one value.
        times: b.
        theta: the tilt, >= 0.
        reaches: exponents for Chernoff's bounds on the ends of the window, > 0.
        upper: whether masses are rounded up.
        least: a tau that the window has to hold.

    Raises:
        NumericalError: if the window needs more than 2^24 points.
    """
    points = lattice.points()
    with np.errstate(divide="ignore"):
        logs = np.log(lattice.masses)
    exponents = logs + theta * points
    highest = float(exponents.max())
    log_m = highest + math.log(float(np.exp(np.maximum(exponents - highest, -700.0)).sum()))
    # Logarithm and exponential are off by 8 u, of themselves and relative; the rest by 4 u of its parts.
    moved = 12.0 * np.abs(logs) + 6.0 * theta * np.abs(points) + 3.0 * abs(log_m) + 12.0
    moved = UNIT * np.where(np.isfinite(logs), moved, 0.0)
    tilted = np.exp(exponents - log_m) * (1.0 + (moved if upper else -moved))
    ends = []
    for side, t in zip((1.0, -1.0), reaches, strict=True):
        with np.errstate(divide="ignore"):
            powers = np.log(tilted) + side * t * points
        highest = float(powers.max())
        log_moment = highest + math.log(float(np.exp(np.maximum(powers - highest, -700.0)).sum()))
        ends.append(side * (times * log_moment - _LOG_WRAP) / t)
    offset = times * lattice.origin
    high, low = max(ends[0], least + 1.0 / reaches[0]), min(ends[1], least)
    start = math.floor((low - offset) / lattice.step) - 1
    needed = math.ceil((high - offset) / lattice.step) + 2 - start
    if needed > LONGEST:
        raise NumericalError(f"a sum over {times} bins needs {needed} lattice points: tolerance too small")
    length = scipy.fft.next_fast_len(needed, real=True)
    spend(1e-8 * length * math.log2(length), 96.0 * length, what=f"a sum over {times} bins")
    masses, error = lattice_product([(tilted, lattice.first, times)], start=start, length=length)
    indices = start + np.arange(length, dtype=np.float64)
    farthest = max(abs(start), abs(start + length)) * lattice.step
    return TiltedTotal(
        points=offset + indices * lattice.step,
        masses=masses,
        theta=theta,
        log_scale=times * log_m,
        error=error,
        rate=reaches[0],
        wrapped=4.0 * math.exp(_LOG_WRAP),
        # Without an origin, points are multiples of a power of two, and known exactly.
        displaced=0.0 if lattice.origin == 0.0 else 4.0 * UNIT * (abs(offset) + farthest),
        upper=upper,
    )
