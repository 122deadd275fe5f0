r"""Delta of steps whose lots are cut down to B examples, by integration of its definition.

The curve that dominates one step is (1 - tau) times that of Poisson sampling and tau times the largest one of
a full lot. One step: that curve is integrated at eps, on panels from where its integrand starts. T steps: the
contour integral of `integrals`, over the law with this curve; where lots are hardly ever full, over that of
Poisson sampling, to which the chance of a full lot is added. The probabilities are sums of scipy's binomial
masses, and what lies at loss 0 is what everything else leaves of 1: the accountant has other formulas, and
lattices.
"""

import math

import numpy as np
import scipy

from dpmech.exceptions import NumericalError
from dpmech.numerics import FloatArray, spend
from dpmech.verifying.integrals import ComposedLaw
from dpmech.verifying.lattice_sums import composed, sampled_delta

__all__ = ["joined_prob", "truncated_delta"]

_REACH = 38.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_PANELS, _MOST_PANELS = 600, 200_000
# So far beyond the mean, in standard deviations and in coins, nothing of a binomial law is left.
_FAR, _FEW = 40.0, 800
# Where lots are full so seldom against delta, that they ever are is added to it.
_RARE = 1e-4


def joined_prob(sampling_prob: float, max_lot_size: int, dataset_size: int) -> float:
    """How likely an example is in a lot: the mean size of lots over the size of the dataset."""
    drawn, chances = _coins(sampling_prob, dataset_size)
    return float(np.minimum(drawn, max_lot_size) @ chances) / dataset_size


def truncated_delta(
    sampling_prob: float, max_lot_size: int, dataset_size: int, multiplier: float, steps: int, eps: float
) -> float:
    """Delta of T steps under the law that dominates them, the larger of both directions.

    Args:
        sampling_prob: q in (0, 1].
        max_lot_size: B >= 1.
        dataset_size: n > B.
        multiplier: sigma over the sensitivity, > 0.
        steps: T >= 1.
        eps: >= 0.

    Raises:
        NumericalError: where the integral does not settle, or a grid would be too fine.
    """
    law = _Law(sampling_prob, max_lot_size, dataset_size, multiplier)
    if steps == 1:
        return max(law.one_step(eps, remove=remove) for remove in (True, False))
    ever = steps * law.full
    if ever <= _RARE and sampling_prob < 1.0:
        plain = sampled_delta(sampling_prob, multiplier, steps, eps)
        if ever <= _RARE * plain:
            return plain + ever
    return composed(
        lambda finer: [
            ComposedLaw(*law.losses(remove=remove, finer=finer), steps, eps) for remove in (True, False)
        ]
    )


def _coins(prob: float, count: int) -> tuple[FloatArray, FloatArray]:
    """Numbers of heads among so many coins, and how likely each is."""
    mean, spread = prob * count, math.sqrt(prob * (1.0 - prob) * count)
    low = max(0, math.floor(mean - _FAR * spread - _FEW))
    high = min(count, math.ceil(mean + _FAR * spread + _FEW))
    spend(1e-6 * (high - low), 80.0 * (high - low), what=f"the law of {count} coins")
    heads = np.arange(low, high + 1.0)
    return heads, np.asarray(scipy.stats.binom.pmf(heads, count, prob))


class _Law:
    """One step: what it loses by the dominating law."""

    def __init__(self, q: float, most: int, size: int, s: float) -> None:
        self.q, self.s = q, s
        others, chances = _coins(q, size - 1)
        full = others >= most
        self.full = float(chances[full].sum())
        self.free = float(chances[~full].sum())
        kept = float((chances * q * most / (others + 1.0))[full].sum())
        self.p = kept / self.full if self.full > 0.0 else q

    def _log_mixture(self, prob: float, shift: float, x: FloatArray) -> FloatArray:
        """Log density of (1 - prob) N(0) + prob N(shift) over that of N(0)."""
        if shift == 0.0:
            return np.zeros_like(x)
        exponent = shift * (x - 0.5 * shift) / self.s**2
        if prob == 1.0:
            return exponent
        return np.asarray(np.logaddexp(math.log1p(-prob), math.log(prob) + exponent))

    def _log_noise(self, x: FloatArray) -> FloatArray:
        return np.asarray(-0.5 * (x / self.s) ** 2 - math.log(self.s * math.sqrt(2.0 * math.pi)))

    def _nodes(self, low: float, high: float, finer: int = 1) -> tuple[FloatArray, FloatArray]:
        """Outputs and log widths of panels no wider than densities and ratios allow."""
        count = max(_PANELS, math.ceil((high - low) / min(0.25 * self.s, self.s**2)))
        if count > _MOST_PANELS:
            raise NumericalError(f"a grid of {count} panels for the outputs of a step")
        edges = np.linspace(low, high, finer * count + 1)
        half = 0.5 * np.diff(edges)[:, None]
        x = edges[:-1, None] + half * (1.0 + _NODES)
        return x.ravel(), np.log(half * _WEIGHTS).ravel()

    def losses(self, *, remove: bool, finer: int = 1) -> tuple[FloatArray, FloatArray]:
        """Losses and log masses under the first law of the pair, on so many more panels."""
        losses, logs = [], []
        top = _REACH * self.s
        if self.free > 0.0:
            x, widths = self._nodes(-top, top + 1.0, finer)
            ratio = self._log_mixture(self.q, 1.0, x)
            losses.append(ratio if remove else -ratio)
            logs.append(math.log(self.free) + self._log_noise(x) + widths + (ratio if remove else 0.0))
        if self.full > 0.0:
            left = 1.0
            # Displaced examples lose above 1.5, plain ones above 0.5, where the sign is that of their law.
            for shift, positive in ((2.0, remove), (1.0, not remove)):
                x, widths = self._nodes(shift - 0.5, top + shift, finer)
                above, below = (self._log_mixture(self.p, at, x) for at in (shift, shift - 1.0))
                own = self._log_noise(x) + widths + (above if positive else below)
                left -= float(np.exp(own).sum())
                losses.append(above - below if positive else below - above)
                logs.append(math.log(self.full) + own)
            losses.append(np.zeros(1))
            logs.append(np.array([math.log(self.full) + math.log(max(left, 1e-16))]))
        return np.concatenate(losses), np.concatenate(logs)

    def one_step(self, eps: float, *, remove: bool) -> float:
        """The curve at eps >= 0."""
        found = 0.0
        if self.free > 0.0:
            found += self.free * self._hockey_stick(self.q, 1.0, 0.0, eps, remove=remove)
        if self.full > 0.0:
            shift = 2.0 if remove else 1.0
            found += self.full * self._hockey_stick(self.p, shift, shift - 1.0, eps, remove=True)
        return found

    def _hockey_stick(self, prob: float, shift: float, other: float, eps: float, *, remove: bool) -> float:
        """Of the mixture with `shift` over that with `other`, or the other way round, at eps."""

        def ratio(x: FloatArray) -> FloatArray:
            return self._log_mixture(prob, shift, x) - self._log_mixture(prob, other, x)

        def gap(at: float) -> float:
            return float(ratio(np.array([at]))[0]) - level

        level = eps if remove else -eps
        reach = _REACH * self.s
        # Without a second shift the ratio rises everywhere; with one it does from where it is 1.
        low, high = (shift - 0.5 if other > 0.0 else -reach), reach + shift
        if gap(high) <= 0.0:
            return 0.0
        if gap(low) <= 0.0:
            start = float(scipy.optimize.brentq(gap, low, high, xtol=1e-13))
        elif remove:
            start = low
        else:
            return 0.0
        x, widths = self._nodes(start, high) if remove else self._nodes(-reach, start)
        difference = ratio(x) - level
        density = self._log_noise(x) + widths + self._log_mixture(prob, shift if remove else other, x)
        return float(np.sum(np.exp(density) * -np.expm1(-difference if remove else difference)))
