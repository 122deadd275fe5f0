r"""What the paths hold on which some bin adds more than a threshold: exact sums of terms >= 0.

On these paths r > cut >= tau, so that (r - tau)_+ = r - tau. With S the step of the lattice and diagonal
matrices for what a bin may do, E[r; some a_l > cut] and P(some a_l > cut) are traces of products over the
bins; for n bins, joined in pairs, every difference is written as a sum (docs/balls_in_bins_proof.md).
"""

import dataclasses
import math

import numpy as np

from dpmech.accounting.balls_in_bins.ring.lattice import Lattice
from dpmech.accounting.balls_in_bins.ring.tilted_law import TiltedLaw
from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, FloatArray

__all__ = ["LargeBins", "large_bins"]

# Below what a product may lose to underflow, with room to spare.
TINY = 1e-250


@dataclasses.dataclass(frozen=True)
class LargeBins:
    """Probability, and expected r, of the paths with a bin above the cut.

    Attributes:
        mass: P(some a_l > cut).
        mean: E[r; some a_l > cut].
        error: relative error of both.
    """

    mass: float
    mean: float
    error: float

    def beyond(self, kink: float) -> float:
        """At least E[r - kink; some a_l > cut]."""
        return max(self.mean * (1.0 + self.error) - kink * self.mass * (1.0 - self.error), 0.0) + TINY


@dataclasses.dataclass(frozen=True, eq=False)
class _Chain:
    """Sums over n bins in a row, as matrices from state to state; shape (N, N), entries >= 0.

    Attributes:
        whole: all paths.
        small: those without a large bin.
        large: whole - small.
        mean: all paths, times what the bins add.
        mean_small: those without a large bin, times what the bins add.
        mean_large: mean - mean_small.
    """

    whole: FloatArray
    small: FloatArray
    large: FloatArray
    mean: FloatArray
    mean_small: FloatArray
    mean_large: FloatArray

    def joined(self, other: "_Chain") -> "_Chain":
        """The bins of this one, and then those of the other."""
        return _Chain(
            self.whole @ other.whole,
            self.small @ other.small,
            self.large @ other.whole + self.small @ other.large,
            self.mean @ other.whole + self.whole @ other.mean,
            self.mean_small @ other.small + self.small @ other.mean_small,
            self.mean_large @ other.whole
            + self.mean_small @ other.large
            + self.large @ other.mean
            + self.small @ other.mean_large,
        )


def large_bins(lattice: Lattice, law: TiltedLaw) -> LargeBins:
    """What the paths hold on which some bin adds more than `law.cut`.

    Args:
        lattice: at most one exponential.
        law: its tilt is not looked at.
    """
    if len(lattice.steps) > 1:
        raise NumericalError("large bins are only followed on one exponential")
    step = lattice.steps[0]
    small = law.sizes <= law.cut
    chances = np.broadcast_to(law.law.chances, small.shape)
    values = chances * law.sizes
    factors = [
        np.sum(chances, axis=1),
        np.sum(chances * small, axis=1),
        np.sum(chances * ~small, axis=1),
        np.sum(values, axis=1),
        np.sum(values * small, axis=1),
        np.sum(values * ~small, axis=1),
    ]
    power = _Chain(*(step * factor[None, :] for factor in factors))
    chain: _Chain | None = None
    left = lattice.gram.bins
    while left:
        if left % 2:
            chain = power if chain is None else chain.joined(power)
        left //= 2
        if left:
            power = power.joined(power)
    if chain is None:
        raise NumericalError("there are no bins")
    # products of matrices with entries >= 0 lose N roundings each and sums two; b - 1 joins are in an entry
    rounding = (lattice.gram.bins + 1.0) * (step.shape[0] + 80.0) * UNIT
    return LargeBins(
        lattice.norm * float(np.trace(chain.large)),
        lattice.norm * float(np.trace(chain.mean_large)),
        math.expm1(1.01 * rounding),
    )
