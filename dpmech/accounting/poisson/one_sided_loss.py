r"""Losses of one sign, of a step whose lot was full without the example.

With p the probability that the example is kept all the same, A_u = (1 - p) N(0, s^2) + p N(u, s^2), and u = 1
or 2: the log ratio of A_u over A_{u-1} (A_0 is the noise alone) is positive exactly where the output is above
u - 1/2, and rises there: its derivative is (u w_u - (u - 1) w_{u-1}) / s^2, w the posterior probability of
having been kept, and from there on w_u >= w_{u-1}. The inverse is the root of a quadratic equation in
e^(x / s^2).

Why these two, see docs/truncated_lots.md.
"""

import dataclasses
import math

import numpy as np
import scipy

from dpmech.accounting.poisson.step_loss import StepLoss
from dpmech.numerics import UNIT, FloatArray, gauss_legendre

__all__ = ["OneSidedLoss"]

_NODES, _WEIGHTS = gauss_legendre(8)


@dataclasses.dataclass(frozen=True)
class OneSidedLoss(StepLoss):
    """The part of a step's loss where A_u is above A_{u-1}.

    Args:
        kept_prob: p in (0, 1).
        shift: u, 1 or 2.
        sigma_over_sensitivity: s > 0.
        remove: whether masses are those of A_u and losses positive (True), or those of A_{u-1} and
            losses negative (False).
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    kept_prob: float
    shift: int
    sigma_over_sensitivity: float
    remove: bool
    reach: float = 38.0

    def _log_mixture(self, shift: int, x: FloatArray) -> FloatArray:
        """Log density of A_shift over the noise."""
        if shift == 0:
            return np.zeros_like(x)
        exponent = shift * (x - 0.5 * shift) / self.sigma_over_sensitivity**2
        return np.logaddexp(math.log1p(-self.kept_prob), math.log(self.kept_prob) + exponent)

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Log density of A_u over that of A_{u-1} at output x."""
        return self._log_mixture(self.shift, x) - self._log_mixture(self.shift - 1, x)

    def _log_density(self, x: FloatArray, ratio: FloatArray) -> FloatArray:
        del ratio
        s, shift = self.sigma_over_sensitivity, self.shift if self.remove else self.shift - 1
        return -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2.0 * math.pi)) + self._log_mixture(shift, x)

    def rounding(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the absolute error of `log_ratio`, and on the relative one of the mass of a node.

        Both hold for nodes between two points x at most a panel apart, by the larger one.

        In units of u = 2^-53, with 8 for an elementary function. The exponent y (x - y / 2) / s^2 of a
        mixture is off by 6 of the sizes |y x| + y^2 / 2 over s^2 of its terms, log p and log (1 - p) by 8 of
        themselves, their sum by itself; all enter log A by a weight of at most 1. The logarithm of the sum
        adds 10 times itself and of log (1 - p). That is doubled for the step within a panel, where exponents
        move by half a unit at most, and taken for both mixtures. The mass of a node is what `Loss.rounding`
        says of it, with log A in place of the ratio.
        """
        s, u, p = self.sigma_over_sensitivity, self.shift, self.kept_prob
        top, below = self._log_mixture(u, x), self._log_mixture(u - 1, x)
        energy = u * (np.abs(x) + 0.5 * u) / s**2
        parts = 8.0 * energy + 10.0 * (abs(math.log(p)) + abs(math.log1p(-p)))
        off = UNIT * (4.0 * parts + 24.0 * (np.abs(top) + np.abs(below)) + 48.0)
        mixed = top if self.remove else below
        pure = 5.0 * (x / s) ** 2 + 2.0 * np.abs(x) / s**2 + 8.0 * abs(math.log(s))
        return off, UNIT * (pure + np.abs(mixed) + 68.0) + off

    def output_at(self, log_ratio: FloatArray) -> FloatArray:
        """The output, above u - 1/2, with this log ratio > 0."""
        p, square = self.kept_prob, self.sigma_over_sensitivity**2
        if self.shift == 1:
            low = np.minimum(log_ratio, 50.0)
            near = np.log1p(np.expm1(low) / p)
            far = log_ratio - math.log(p) + np.log1p(-(1.0 - p) * np.exp(-np.maximum(log_ratio, 50.0)))
            return 0.5 + square * np.where(log_ratio < 50.0, near, far)
        # With y = e^((x - 1) / s^2) and d = e^(1 / (2 s^2)) it is p y^2 = e^l p y d + (1 - p) (e^l - 1).
        added = -4.0 * (1.0 - p) / p * np.expm1(-log_ratio) * np.exp(-log_ratio - 1.0 / square)
        return 1.5 + square * (log_ratio + np.log1p(0.5 * (np.sqrt(1.0 + added) - 1.0)))

    @property
    def furthest(self) -> int:
        """The shift."""
        return self.shift

    @property
    def start(self) -> float:
        """The output above which it lies: u - 1/2."""
        return self.shift - 0.5

    def outputs(self) -> tuple[float, float]:
        """From where the ratio is 1 up."""
        return self.start, self.shift + self.reach * self.sigma_over_sensitivity

    @property
    def whole(self) -> float:
        """The mass of A_u, or A_{u-1}, above the start."""
        s, mean = self.sigma_over_sensitivity, self.shift if self.remove else self.shift - 1
        pure, moved = (float(scipy.special.ndtr((at - self.start) / s)) for at in (0, mean))
        return (1.0 - self.kept_prob) * pure + self.kept_prob * moved

    def sampled(self) -> tuple[FloatArray, FloatArray]:
        """Losses and log masses of a rule of Gauss and Legendre, as it starts where it is not smooth."""
        low, high = self.outputs()
        count = max(64, math.ceil((high - low) / self.panel_width))
        edges = np.linspace(low, high, count + 1)
        half = 0.5 * np.diff(edges)[:, None]
        x = (edges[:-1, None] + half * (1.0 + _NODES)).ravel()
        ratio = self.log_ratio(x)
        widths = np.log((half * _WEIGHTS).ravel())
        return (ratio if self.remove else -ratio), self._log_density(x, ratio) + widths

    @property
    def terms(self) -> int:
        """Two mixtures."""
        return 4

    @property
    def least_ratio(self) -> float:
        """0, where it starts."""
        return 0.0

    @property
    def panel_width(self) -> float:
        """Half a unit of u z at most, as for a user with u examples."""
        s, u = self.sigma_over_sensitivity, self.shift
        return min(0.25 * s, 2.5 * s / (self.reach + u / s), 0.5 * s * s / u)
