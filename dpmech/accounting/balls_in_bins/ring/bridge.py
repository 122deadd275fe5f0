"""The bridge of a stationary ring: y_m = x_m + rho_m z with z = y_0 and x = 0 at both ends.

All in closed form (docs/balls_in_bins_proof.md), from ratios of sinh that neither overflow nor cancel.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Futures", "RingBridge"]

Vector = npt.NDArray[np.float64]

# Where x_l moves the mean of a later bin by less than this multiple of itself, it is left out, and `at` makes
# up for it; a smaller one costs more terms.
NEGLIGIBLE_SLOPE = 1e-13


class RingBridge:
    """Coefficients of the bridge.

    Args:
        bins: b >= 2.
        variance: V >= 0.
        decay: lam in (0, 1); not looked at if V is 0.
    """

    def __init__(self, bins: int, variance: float, decay: float) -> None:
        self.bins = bins
        self.variance = variance
        self.theta = -math.log(decay) if variance > 0.0 else math.inf

    def ratio(self, m: Any, n: Any) -> Any:  # noqa: ANN401 - integers or arrays of them
        """sinh(m theta) / sinh(n theta), 0 <= m <= n, n >= 1."""
        return (
            np.exp((m - n) * self.theta) * np.expm1(-2.0 * m * self.theta) / np.expm1(-2.0 * n * self.theta)
        )

    def correlation(self, m: Any) -> Any:  # noqa: ANN401 - as above
        """Correlation of y_m and y_0: cosh((b/2 - m) theta) / cosh(b theta / 2)."""
        up, down = np.exp(-m * self.theta), np.exp(-(self.bins - m) * self.theta)
        return (up + down) / (1.0 + math.exp(-self.bins * self.theta))

    def bridge_variance(self, start: int, m: Any) -> Any:  # noqa: ANN401 - as above
        """Variance of y_m given y_start and y_0, for 0 <= start < m < b."""
        b, theta = self.bins, self.theta
        if start == 0:
            # V (1 - rho_m^2) = V sinh(m theta) sinh((b - m) theta) / cosh(b theta / 2)^2
            top = np.expm1(-2.0 * m * theta) * np.expm1(-2.0 * (b - m) * theta)
            return self.variance * top / (1.0 + math.exp(-b * theta)) ** 2
        # 2 V tanh(b theta / 2) sinh((m - start) theta) sinh((b - m) theta) / sinh((b - start) theta)
        half = math.tanh(0.5 * b * theta)
        top = np.expm1(-2.0 * (m - start) * theta) * np.expm1(-2.0 * (b - m) * theta)
        return self.variance * half * top / -np.expm1(-2.0 * (b - start) * theta)

    def step(self, start: int) -> tuple[float, float]:
        """Slope and standard deviation of x_(start + 1) given x_start."""
        if self.variance == 0.0:
            return 0.0, 0.0
        slope = 0.0 if start == 0 else float(self.ratio(self.bins - start - 1, self.bins - start))
        return slope, math.sqrt(float(self.bridge_variance(start, start + 1)))


class Futures:
    """Expected later increments given (x_l, z), in closed form."""

    def __init__(self, ring: RingBridge, x: Vector, z_nodes: Vector, offset: float) -> None:
        self.ring, self.x, self.z, self.offset = ring, x, z_nodes, offset
        bins = np.arange(ring.bins)
        if ring.variance > 0.0:
            self.rho = np.asarray(ring.correlation(bins))
            self.reach = math.ceil(-math.log(NEGLIGIBLE_SLOPE) / ring.theta)
        else:
            self.rho = np.zeros(ring.bins)
            self.reach = 0
        # far[m]: expected increments of the bins from m on given z alone. Given x_l too, far away, the mean
        # moves by a negligible multiple of x_l and the variance can only be smaller.
        spread = 0.5 * ring.variance * (1.0 - self.rho * self.rho)
        rise = np.exp(self.rho[:, None] * z_nodes[None, :] + spread[:, None] - offset)
        self.far = np.concatenate([np.cumsum(rise[::-1], axis=0)[::-1], np.zeros((1, z_nodes.size))])

    def at_start(self) -> Vector:
        """Shape (M,): after bin 0."""
        return np.asarray(self.far[1])

    def at(self, bin_: int) -> Vector:
        """Shape (N, M): after this bin; not below it where x_l is left out far away."""
        ring, b = self.ring, self.ring.bins
        stop = min(b, bin_ + 1 + self.reach)
        # The slope there is at most NEGLIGIBLE_SLOPE, one rounding of the reach included.
        most = np.exp(1.01 * NEGLIGIBLE_SLOPE * np.maximum(self.x, 0.0))
        total: Vector = most[:, None] * self.far[stop]
        near = np.arange(bin_ + 1, stop)
        if near.size:
            slopes = np.asarray(ring.ratio(b - near, b - bin_))
            spread = 0.5 * np.asarray(ring.bridge_variance(bin_, near))
            total += np.exp(self.x[:, None] * slopes[None, :] + spread[None, :] - self.offset) @ np.exp(
                self.rho[near, None] * self.z[None, :]
            )
        return total
