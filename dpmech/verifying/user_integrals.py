r"""Delta of steps in which a user has a binomial number of examples, by integration of its definition.

One step: the integral of (p - e^eps q)_+ over the outputs, on panels from where the two are equal. T steps:
the contour integral of `integrals`, over the law of this loss. Weights, ratio and grid are made here, apart
from those of the accountant, which composes lattices.
"""

import math

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.numerics import FloatArray, spend
from dpmech.verifying.integrals import ComposedLaw
from dpmech.verifying.lattice_sums import composed

__all__ = ["users_delta"]

_REACH = 38.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
# Points for each scale on which ratio or density change, and at least; values of points times shifts.
_POINTS, _LEAST_POINTS, _MOST_VALUES = 10.0, 20_000, 2e8


def users_delta(sampling_prob: float, examples: int, multiplier: float, steps: int, eps: float) -> float:
    """Delta of T steps for a user with m examples, the larger of both directions.

    Args:
        sampling_prob: q in (0, 1), of each example.
        examples: m >= 1.
        multiplier: sigma over the sensitivity to one example, > 0.
        steps: T >= 1.
        eps: >= 0.

    Raises:
        NumericalError: where the integral does not settle, or a grid would be too fine.
    """
    law = _Pair(sampling_prob, examples, multiplier)
    if steps == 1:
        return max(law.one_step(eps, sign) for sign in (1.0, -1.0))

    def laws(finer: int) -> list[ComposedLaw]:
        x, width = law.grid(finer)
        ratio = law.log_ratio(x)
        pure = -0.5 * (x / multiplier) ** 2 + math.log(width / (multiplier * math.sqrt(2.0 * math.pi)))
        found = [ComposedLaw(ratio, pure + ratio, steps, eps)]
        if eps < -steps * examples * math.log1p(-sampling_prob):  # where the loss of ADD ends
            found.append(ComposedLaw(-ratio, pure, steps, eps))
        return found

    return composed(laws)


class _Pair:
    """The mixture over the number of examples, and the noise alone."""

    def __init__(self, q: float, m: int, s: float) -> None:
        self.q, self.m, self.s = q, m, s
        self.counts = np.arange(m + 1.0)
        self.log_weights = scipy.stats.binom.logpmf(self.counts, m, q)

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Log density of the mixture over that of the noise."""
        total = np.full_like(x, -np.inf)
        for count, weight in zip(self.counts, self.log_weights, strict=True):
            total = np.logaddexp(total, weight + count * (x - 0.5 * count) / self.s**2)
        return total

    def grid(self, finer: int = 1) -> tuple[FloatArray, float]:
        """Outputs, evenly spaced and so many times as many as needed, and how far they are apart."""
        low, high = -_REACH * self.s, _REACH * self.s + self.m
        count = max(_LEAST_POINTS, math.ceil(_POINTS * (high - low) / min(self.s, self.s**2 / self.m)))
        count *= finer
        values = float(count) * (self.m + 1)
        if values > _MOST_VALUES:
            raise NumericalError(f"a grid of {count} outputs for {self.m} examples of a user")
        spend(3e-8 * values, 64.0 * count, what=f"the law of {self.m} examples of a user")
        x = np.linspace(low, high, count + 1)
        return x, float(x[1] - x[0])

    def one_step(self, eps: float, sign: float) -> float:
        """REMOVE for sign 1: p (1 - e^(eps - L)) from where L = eps; ADD for -1: p0 (1 - e^(L + eps))."""
        level = sign * eps
        x, _ = self.grid()
        ratio = self.log_ratio(x)
        if level <= ratio[0] or level >= ratio[-1]:
            return 0.0
        place = int(np.searchsorted(ratio, level))
        start = float(
            scipy.optimize.brentq(
                lambda at: float(self.log_ratio(np.array([at]))[0]) - level,
                x[place - 1],
                x[place],
                xtol=1e-13,
            )
        )
        rest = x[place:] if sign > 0.0 else x[:place][::-1]
        edges = np.concatenate([[start], rest])
        half = 0.5 * np.diff(edges)
        nodes = (edges[:-1] + half)[:, None] + half[:, None] * _NODES
        loss = self.log_ratio(nodes)
        density = -0.5 * (nodes / self.s) ** 2 + (loss if sign > 0.0 else 0.0)
        values = np.exp(density) * -np.expm1(-sign * (loss - level)) / (self.s * math.sqrt(2.0 * math.pi))
        return float(np.sum(values * (np.abs(half)[:, None] * _WEIGHTS)))
