"""REMOVE where one bin alone passes the level: then (S - level)_+ is linear, and has a closed form."""

import dataclasses
import math

import numpy as np
import scipy

from dpmech.accounting.gaussian import gaussian_delta
from dpmech.numerics import UNIT, sum_rounding, total

__all__ = ["Jumps"]


@dataclasses.dataclass(frozen=True)
class Jumps:
    """E [(S - T)_+; some a_l > c] for a sum S of b independent a = exp(kappa Z - kappa^2 / 2).

    Args:
        bins: b.
        spread: kappa.
        high: c is a at Z = high, at least kappa / 2.
    """

    bins: int
    spread: float
    high: float

    def bounds(self, log_level: float) -> tuple[float, float]:
        """Lower and upper value for T = e^log_level; the lower one is 0 where c may be below T.

        By the first l with a_l > c: (a_l - T)_+ has mean C(c) + (c - T) p with C(c) = E (a - c)_+, delta of
        the plain Gaussian mechanism at log c, and p = P(a > c); the others have theirs, below c before l.
        Where c < T, still S > c, and (S - T)_+ <= S - c.
        """
        bins, spread, high = self.bins, self.spread, self.high
        log_cut = spread * high - 0.5 * spread**2
        # In units of u: products and sums in log c; p is off by 2 high^2 from its argument and 24 of its own,
        # and so is the mean below c. Powers of 1 - p are off by what their logarithms are, b p / (1 - p)
        # times that of p, and p < 1/2 as c > 1.
        off = UNIT * 4.0 * (spread * abs(high) + spread**2 + 1.0)
        p = float(scipy.special.ndtr(-high))
        below = float(scipy.special.ndtr(high - spread))
        part = UNIT * (4.0 * high**2 + 4.0 * (high - spread) ** 2 + 64.0)
        relative = 2.0 * part * (2.0 + bins * p) + 2.0 * sum_rounding(bins)
        index = np.arange(bins, dtype=np.float64)
        before = np.exp(index * math.log1p(-p))
        first = total(before)
        # Before the jump l - 1 others below c, with (1 - p)^(l - 2); after it b - l with mean 1.
        others = below * total(index[1:] * before[:-1]) + total((bins - 1.0 - index) * before)
        exact = log_cut - off >= log_level + UNIT * 4.0 * log_level
        found = []
        for side in (-1.0, 1.0):
            most = gaussian_delta(1.0 / spread, log_cut - side * off)[0 if side < 0.0 else 1]
            over = math.exp(log_cut + side * off) * (1.0 + side * 16.0 * UNIT)
            level = math.exp(log_level - side * 8.0 * UNIT * (log_level + 2.0))
            gap = max(0.0, over - level) if exact else over - over * (1.0 - 4.0 * off - 64.0 * UNIT)
            found.append((first * (most + gap * p) + p * others) * (1.0 + side * (relative + 16.0 * UNIT)))
        return (max(0.0, found[0]) if exact else 0.0), found[1] + 1e-300
