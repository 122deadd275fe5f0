r"""What the few steps with a far larger loss than eps add to delta, without an integral over their sum.

Call a loss far if it is at least l > eps, and let H be the event that one of T is. On H the sum S is below
eps only if the others make up for it, so that with w(x) = (1 - e^-x)_+

  E[w(S - eps); H] = P^T(H) - e^eps Q^T(H) + E[(e^{eps - S} - 1)_+; H],

where P^T(H) = 1 - (1 - p)^T with p the probability of a far loss of one step, Q^T(H) likewise, and the last
term lies between 0 and T p e^{-v (l - eps)} M(-v)^{T-1} for every v >= 1, as (e^y - 1)_+ <= e^{v y}. What is
left is a law without its far tail, whose transform turns slowly: a tail that reaches 1000 times eps, which
little sampling and little noise give, would cost as many nodes, and would keep the line near the pole at 0.
"""

import functools
import math

import numpy as np

from dpmech.accounting.poisson.lattice import Loss
from dpmech.accounting.poisson.line import Line
from dpmech.accounting.poisson.transform import exponent_of, transform
from dpmech.numerics import ELEMENTARY

__all__ = ["FarLosses"]

_SHARE = 1e-14
_MARGIN = 0.01


class FarLosses:
    """The outcomes of T steps of which one or more has a far loss.

    Args:
        loss: of one step.
        steps: T >= 1.
        line: says from where a loss is far.
    """

    def __init__(self, loss: Loss, steps: int, line: Line) -> None:
        self.loss = loss
        self.steps = steps
        sign = 1.0 if loss.remove else -1.0
        # Any output may divide the two: what is near it on the other side is not far.
        edge = np.array([float(loss.output_at(np.array([sign * line.cut]))[0])])
        self.edge = float(edge[0])
        self.level = sign * float(loss.log_ratio(edge)[0]) - float(loss.rounding(edge)[0][0])
        self._opposed = line.opposed

    @property
    def others(self) -> tuple[float, float]:
        """The outputs whose losses are not far."""
        return (-math.inf, self.edge) if self.loss.remove else (self.edge, math.inf)

    @functools.cached_property
    def _once(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Lower and upper end of the probability of a far loss, under P and under Q."""
        interval = (self.edge, math.inf) if self.loss.remove else (-math.inf, self.edge)
        found = []
        for theta in (0.0, -1.0):
            one = transform(self.loss, exponent_of(self.loss, theta), interval, frequency=0.0, share=_SHARE)
            low, high = one.log_ends
            slack = 2.0 * ELEMENTARY
            found.append((math.exp(low) * (1.0 - slack), math.exp(high) * (1.0 + slack)))
        return found[0], found[1]

    @functools.cached_property
    def _log_overlap(self) -> float:
        """Log of the bound on the last term at eps = 0, without its e^{v eps}."""
        share = min(1e-6, 1e-3 / self.steps)
        kappa = exponent_of(self.loss, -self._opposed)
        whole = transform(self.loss, kappa, (-math.inf, math.inf), frequency=0.0, share=share)
        chance = math.log(self._once[0][1])
        return (
            math.log(self.steps)
            + chance
            - self._opposed * self.level
            + (self.steps - 1) * whole.log_ends[1]
            + _MARGIN
        )

    def ends(self, eps: float) -> tuple[float, float]:
        """Lower and upper end of their part of delta at eps."""
        (p_low, p_high), (q_low, q_high) = self._once
        growth = math.exp(min(eps, 700.0))
        slack = 4.0 * ELEMENTARY
        low = self._any(p_low) * (1.0 - slack) - growth * self._any(q_high) * (1.0 + slack)
        high = self._any(p_high) * (1.0 + slack) - growth * self._any(q_low) * (1.0 - slack)
        overlap = math.exp(min(self._log_overlap + self._opposed * eps, 700.0))
        return max(low, 0.0) if low > 0.0 else low, high + overlap

    def _any(self, chance: float) -> float:
        """1 - (1 - p)^T."""
        return -math.expm1(self.steps * math.log1p(-min(chance, 1.0 - 1e-16)))
