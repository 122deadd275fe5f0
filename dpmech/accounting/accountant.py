"""What every accountant offers, whatever its mathematics."""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar, TypeAlias

from dpmech.numerics import Bounds

__all__ = ["Accountant", "Solution"]

EXACT = "exact"
DETERMINISTIC = "deterministic upper bound"

Progress: TypeAlias = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Solution:
    """A calibrated noise scale.

    Args:
        sigma: meets the budget, on the safe side.
        achieved: bounds on eps at the budget's delta, at this sigma.
        samples: how many draws it rests on, both directions; None where nothing was drawn.
    """

    sigma: float
    achieved: Bounds
    samples: int | None = None


class Accountant(abc.ABC):
    """Privacy of one mechanism as a function of sigma alone.

    Attributes:
        method: the accountant, in words.
        guarantee: "exact", "deterministic upper bound", "with probability 1 - beta" or "estimate".
        sensitivity: what sigma is divided by to give the noise multiplier.
    """

    method: str
    guarantee: str
    sensitivity: Bounds
    amplified: ClassVar[bool] = True

    @abc.abstractmethod
    def delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on the smallest delta at eps >= 0.

        Args:
            sigma: > 0.
            eps: >= 0.
            tolerance: how far apart the ends may be, as a relative change of sigma.

        Raises:
            NumericalError: where the tolerance cannot be met.
        """

    def upper_delta(self, sigma: float, eps: float, *, tolerance: float) -> float:
        """The upper end of `delta`, for searches, which may probe where the lower end is far away."""
        return self.delta(sigma, eps, tolerance=tolerance).upper

    @abc.abstractmethod
    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on the smallest eps >= 0 at delta; arguments and errors as for `delta`."""

    @abc.abstractmethod
    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that meets (eps, delta), at most a factor 1 + rtol above it."""
