r"""The privacy loss of one Poisson-sampled step if one example is replaced by another one.

P = (1-q) N(0, s^2) + q N(1, s^2) against Q = (1-q) N(0, s^2) + q N(-1, s^2), in units of the norm of one
gradient: docs/poisson.md proves that it dominates a step for all gradients u and v of the two examples; it is
attained by opposite ones. Exchanging P and Q mirrors x, so that both directions have the same loss.

With a(x) = log(1 - q + q e^((x - 1/2) / s^2)), the loss at output x is a(x) - a(-x): odd, and increasing.
"""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from dpmech.engines.losses.lattice import Loss
from dpmech.engines.losses.step_losses import StepLoss
from dpmech.numerics import UNIT, FloatArray

# Beyond this log, asinh of a number is the log of twice the number.
_LARGE = 300.0


@dataclasses.dataclass(frozen=True)
class ReplacedLoss(StepLoss):
    """The privacy loss of one step in either direction, an example being replaced.

    Args:
        sampling_prob: q in (0, 1).
        sigma_over_sensitivity: s > 0, sigma over the largest norm of one example's contribution.
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    exact_cuts: ClassVar[bool] = False
    sampling_prob: float
    sigma_over_sensitivity: float
    reach: float = 38.0
    remove = True

    @property
    def _mixed(self) -> Loss:
        """The loss of either mixture against the noise: a, and its rounding."""
        return Loss(self.sampling_prob, self.sigma_over_sensitivity, remove=True, reach=self.reach)

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Log of the one mixture density over the other at output x."""
        mixed = self._mixed
        return mixed.log_ratio(x) - mixed.log_ratio(-x)

    def log_density(self, x: FloatArray) -> FloatArray:
        """Log density of P at output x."""
        return self._mixed.log_density(x)

    def _log_density(self, x: FloatArray, ratio: FloatArray) -> FloatArray:
        del ratio
        return self.log_density(x)

    def rounding(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the absolute error of `log_ratio` and on the relative error of the mass of a node.

        Both errors of a, as `Loss.rounding` bounds them, and one more rounding of their difference. Panels
        are symmetric to others, and half as wide as those of `Loss`.
        """
        mixed = self._mixed
        off, mass = mixed.rounding(x)
        return off + mixed.rounding(-x)[0] + 2.0 * UNIT * np.abs(self.log_ratio(x)), mass

    def output_at(self, log_ratio: FloatArray) -> FloatArray:
        """The output with this log ratio l: the inverse of `log_ratio`.

        With c = e^(-1 / (2 s^2)) and x / s^2 = l / 2 + w, it is sinh w = (1 - q) / (q c) sinh(l / 2).
        """
        q, square, size = self.sampling_prob, self.sigma_over_sensitivity**2, np.abs(log_ratio)
        with np.errstate(divide="ignore"):
            log_sinh = 0.5 * size + np.log(-np.expm1(-size)) - math.log(2.0)
        exponent = math.log1p(-q) - math.log(q) + 0.5 / square + log_sinh
        near = np.arcsinh(np.exp(np.minimum(exponent, _LARGE)))
        w = np.where(exponent < _LARGE, near, exponent + math.log(2.0))
        return np.copysign(square * (0.5 * size + w), log_ratio)

    @property
    def terms(self) -> int:
        """Two for each of the two mixtures."""
        return 4

    @property
    def least_ratio(self) -> float:
        """The loss has no lower end."""
        return -math.inf

    @property
    def panel_width(self) -> float:
        """As for two examples of a user, whose means are as far apart."""
        s = self.sigma_over_sensitivity
        return min(0.25 * s, 2.5 * s / (self.reach + 2.0 / s), 0.25 * s * s)
