"""What every accountant offers, whatever its mathematics."""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar, TypeAlias

from dpmech.engines.methods import Method
from dpmech.numerics import Bounds, Guarantee, Provenance

Progress: TypeAlias = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Solution:
    """A calibrated noise scale.

    Args:
        sigma: meets the budget, on the safe side.
        achieved: bounds on eps at the budget's delta, at this sigma.
        samples: how many draws it rests on, both directions; None where nothing was drawn.
        randomness: what names the random numbers that it rests on: 128 bits, in hexadecimal; None where
            nothing was drawn, or nothing is known of them.
        method: the method that carried it, with all its settings; None for the one that was asked for.
        excess: how far above the smallest sigma it was aimed at, about, in log; 0 where `rtol` says that.
    """

    sigma: float
    achieved: Bounds
    samples: int | None = None
    randomness: str | None = None
    method: Method | None = None
    excess: float = 0.0


class Accountant(abc.ABC):
    """Privacy of one mechanism as a function of sigma alone.

    Attributes:
        by: the accountant, as data; `method` is the same in words.
        guarantee: how sure its bounds are.
        sensitivity: the largest L2 norm by which one unit may change C G.
    """

    by: Provenance
    guarantee: Guarantee
    sensitivity: Bounds
    amplified: ClassVar[bool] = True

    @property
    def method(self) -> str:
        """The accountant in words, for people."""
        return str(self.by)

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

    def bounded_delta(self, sigma: float, eps: float, *, tolerance: float) -> Bounds:
        """Bounds on what the upper end of `delta` stands for: all that this accountant certifies.

        That is the mechanism's delta, or of a law that dominates it, where its own lower end may be far away.
        """
        return self.delta(sigma, eps, tolerance=tolerance)

    @abc.abstractmethod
    def epsilon(self, sigma: float, delta: float, *, tolerance: float) -> Bounds:
        """Bounds on the smallest eps >= 0 at delta; arguments and errors as for `delta`."""

    @abc.abstractmethod
    def calibrate(self, eps: float, delta: float, *, rtol: float, progress: Progress) -> Solution:
        """The smallest sigma that meets (eps, delta), at most a factor 1 + rtol above it."""
