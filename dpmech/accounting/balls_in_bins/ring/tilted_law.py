r"""What one bin adds to r, under an exponential tilt: its transforms relative to the real one.

A bin at state x adds a = e^(x - V/2) W / b, W on finitely many nodes. With the tilt theta >= 0 and a sign,
E[e^(sign theta a); a <= cut] = D(x), and the law of a given x is tilted by the same factor. Every transform
at an exponent of that real part is D(x) times a number d(x) of modulus at most 1.
"""

import dataclasses
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpmech.accounting.balls_in_bins.ring.white_law import WhiteLaw
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray

__all__ = ["TiltedLaw"]

Complex = npt.NDArray[np.complex128]

# Of the log of a weight: what is smaller is raised to it, which raises the measure of the paths.
LEAST = -600.0


@dataclasses.dataclass(frozen=True, eq=False)
class TiltedLaw:
    """The tilted laws of all states.

    Args:
        increments: shape (N,), e^(x - V/2) / b at every state.
        law: the law of W.
        tilt: theta >= 0, of either end: it multiplies `sign` a.
        sign: 1 (REMOVE) or -1 (ADD).
        cut: larger a are left out; infinite for none.
    """

    increments: FloatArray
    law: WhiteLaw
    tilt: float
    sign: float
    cut: float

    @cached_property
    def sizes(self) -> FloatArray:
        """A at every state and node, shape (N, J)."""
        return np.multiply.outer(self.increments, self.law.sizes)

    @cached_property
    def _raised(self) -> tuple[FloatArray, FloatArray]:
        """Tilted weights over e^(top), and top, for every state; raised where they are less than e^LEAST."""
        tilted = np.maximum(self.sign * self.tilt * self.sizes, LEAST)
        exponents = np.where(self.sizes <= self.cut, tilted, -np.inf)
        top = np.max(exponents, axis=1)
        return self.law.chances * np.exp(exponents - top[:, None]), top

    @cached_property
    def log_size(self) -> FloatArray:
        """Log D(x), shape (N,)."""
        raised, top = self._raised
        return np.asarray(top + np.log(np.sum(raised, axis=1)))

    @cached_property
    def chances(self) -> FloatArray:
        """The tilted laws, shape (N, J); rows of sum 1."""
        raised, _ = self._raised
        return np.asarray(raised / np.sum(raised, axis=1, keepdims=True))

    @property
    def rounding(self) -> float:
        """Relative error of D(x) times a tilted chance, at most.

        A product of theta and a is off by 3 roundings of itself, and so is its distance from the largest one;
        sums over the nodes lose less than 64 (numpy adds in pairs of short chains), exponentials, logarithms
        and quotients some more.
        """
        largest = self.tilt * float(np.max(np.where(self.sizes <= self.cut, self.sizes, 0.0)))
        if self.sign < 0.0:
            largest = min(largest, -LEAST)
        sizes = float(np.max(np.abs(self.log_size)))
        return 1.01 * (UNIT * (12.0 * largest + 8.0 * sizes + 160.0) + 4.0 * ELEMENTARY)

    def defect(self, frequency: float) -> tuple[Complex, FloatArray]:
        """1 - d(x) at the exponent sign * (tilt + i frequency), and bounds on its errors.

        From differences to 1, so that small ones keep their digits.
        """
        phase = frequency * self.sizes
        half = np.sin(0.5 * phase)
        real, imaginary = 2.0 * half * half, np.sin(phase)
        chances = self.chances
        values = np.sum(chances * real, axis=1) - self.sign * 1j * np.sum(chances * imaginary, axis=1)
        spread = np.sum(chances * (real + np.abs(imaginary) + np.abs(phase)), axis=1)
        return values, spread * (6.0 * ELEMENTARY + 64.0 * UNIT)
