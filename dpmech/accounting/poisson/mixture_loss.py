r"""The privacy loss of a step in which a user has a binomial number of examples.

REMOVE: P = sum_k w_k N(k, s^2) with w the binomial law of k out of m with probability q, against
Q = N(0, s^2). ADD: the same pair exchanged. The ratio r(x) = sum_k w_k e^{k x / s^2 - k^2 / (2 s^2)} rises
with x, and log r is convex: its derivative is the mean of k over s^2 under the weights of the sum at x, the
posterior law of k given the output.

That this pair dominates a step whatever the gradients are, of users with m examples or fewer, is shown in
docs/users.md.
"""

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np

from dpmech.accounting.poisson.step_loss import StepLoss
from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, FloatArray

__all__ = ["MixtureLoss"]

# Values of a block of outputs times shifts.
_BLOCK = 1 << 19
_MOST_POINTS = 1 << 20
# Newton steps from a chord over a panel, on which k z moves by half a unit at most: a chord is off by a 16th
# of the panel, and each step squares that and more.
_NEWTON = 3


@dataclasses.dataclass(frozen=True)
class MixtureLoss(StepLoss):
    """The privacy loss of one step in one direction, for a user with m examples.

    Args:
        sampling_prob: q in (0, 1), of each example.
        examples: m >= 1.
        sigma_over_sensitivity: s > 0, of one example: the shifts are 0, 1, ..., m.
        remove: the direction: P is the mixture (True) or the pure noise (False).
        reach: outputs beyond this many standard deviations count as tails, in (0, 38].
    """

    exact_cuts: ClassVar[bool] = False
    sampling_prob: float
    examples: int
    sigma_over_sensitivity: float
    remove: bool
    reach: float = 38.0

    @functools.cached_property
    def _shifts(self) -> FloatArray:
        return np.arange(self.examples + 1, dtype=np.float64)

    @functools.cached_property
    def _log_parts(self) -> tuple[FloatArray, FloatArray]:
        """Log w_k - k^2 / (2 s^2), and 14 or 6 times the sizes of what it is the sum of."""
        m, k = self.examples, self._shifts
        chosen = np.array([math.log(math.comb(m, count)) for count in range(m + 1)])
        joined, absent = k * math.log(self.sampling_prob), (m - k) * math.log1p(-self.sampling_prob)
        energy = k * k / (2.0 * self.sigma_over_sensitivity**2)
        return chosen + joined + absent - energy, 14.0 * (chosen - joined - absent) + 6.0 * energy

    def _ratio_and_means(self, x: FloatArray, *values: FloatArray) -> tuple[FloatArray, list[FloatArray]]:
        """Log r at x, and the posterior means of functions of k."""
        z, constants = x / self.sigma_over_sensitivity**2, self._log_parts[0]
        ratio, means = np.empty_like(x), [np.empty_like(x) for _ in values]
        rows = max(1, _BLOCK // constants.size)
        for start in range(0, x.size, rows):
            part = slice(start, start + rows)
            terms = np.multiply.outer(z[part], self._shifts)
            terms += constants
            top = terms.max(axis=1)
            np.exp(np.subtract(terms, top[:, None], out=terms), out=terms)
            total = terms.sum(axis=1)
            ratio[part] = top + np.log(total)
            for mean, value in zip(means, values, strict=True):
                mean[part] = (terms @ value) / total
        return ratio, means

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Log of the mixture density over the pure one at output x, of any shape."""
        return self._ratio_and_means(x.reshape(-1))[0].reshape(x.shape)

    def rounding(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the absolute error of `log_ratio`, and on the relative one of the mass of a node.

        Both hold for nodes between two points x at most a panel apart, by the larger one: there k z moves by
        half a unit at most, and posterior weights by a factor e^(1/2) < 2.

        In units of u = 2^-53, with 8 for an elementary function. The logarithm of a binomial weight is off by
        14 of its parts at most: 8, 2 for the product, 2 for sums. Its energy is off by 3 of itself and 2 for
        sums, z by 3 and x by 2 of itself, which k z passes on, with 2 for sums. These errors of the exponents
        enter log r by their posterior mean. The difference from the largest exponent is off by itself, of
        which the mean is at most m / e, exponentials by 8, their sum of m + 1 terms by m, its logarithm by 8
        log (m + 1), and the last sum by log r. The mass of a node is what `Loss.rounding` says of it.

        Args:
            x: computed outputs, shape (m,).

        Returns:
            Two arrays of shape (m,).
        """
        s, m = self.sigma_over_sensitivity, self.examples
        ratio, (parts, shift) = self._ratio_and_means(x, self._log_parts[1], self._shifts)
        exponents = parts + 8.0 * shift * np.abs(x) / s**2
        off = UNIT * (2.02 * exponents + 3.0 * m + 8.0 * math.log(m + 1.0) + 2.0 * np.abs(ratio) + 48.0)
        pure = 5.0 * (x / s) ** 2 + 2.0 * np.abs(x) / s**2 + 8.0 * abs(math.log(s))
        mass = UNIT * (pure + np.abs(ratio) + 68.0)
        return off, (mass + off if self.remove else mass)

    def output_at(self, log_ratio: FloatArray) -> FloatArray:
        """The output with this log ratio, by Newton's method: the inverse of `log_ratio`."""
        low, high = self.outputs()
        grid = np.linspace(low, high, 2 + math.ceil((high - low) / self.panel_width))
        values = np.maximum.accumulate(self.log_ratio(grid))
        place = np.clip(np.searchsorted(values, log_ratio, side="right") - 1, 0, grid.size - 2)
        x = np.interp(log_ratio, values, grid)
        for _ in range(_NEWTON):
            found, (mean,) = self._ratio_and_means(x, self._shifts)
            slope = np.maximum(mean / self.sigma_over_sensitivity**2, 1e-300)
            x = np.clip(x - (found - log_ratio) / slope, grid[place], grid[place + 1])
        return x

    @property
    def furthest(self) -> int:
        """All m examples."""
        return self.examples

    @property
    def terms(self) -> int:
        """One for each number of examples; cuts take a few times as many."""
        return self.examples + 1

    @property
    def least_ratio(self) -> float:
        """That nobody of m is there."""
        return self.examples * math.log1p(-self.sampling_prob)

    @property
    def panel_width(self) -> float:
        """Half a unit of m z at most; the farthest component is m / s further away than the tail."""
        s, m = self.sigma_over_sensitivity, self.examples
        return min(0.25 * s, 2.5 * s / (self.reach + m / s), 0.5 * s * s / m)

    @property
    def points(self) -> int:
        """A tenth of the scale on which the ratio changes apart.

        Raises:
            NumericalError: if so little noise asks for more than a million.
        """
        low, high = self.outputs()
        s = self.sigma_over_sensitivity
        count = math.ceil((high - low) / (0.1 * min(s, s * s / self.examples)))
        if count > _MOST_POINTS:
            raise NumericalError(f"{self!r} has too little noise for {self.examples} examples of a user")
        return max(super().points, count)
