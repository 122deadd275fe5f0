"""The white factor, split onto nodes, and the Laplace transform of what one bin adds."""

import dataclasses

import numpy as np
import numpy.typing as npt

from dpmech.numerics import ELEMENTARY, UNIT, FloatArray

__all__ = ["WhiteLaw", "bin_transform"]

Complex = npt.NDArray[np.complex128]

ROWS = 2**19


@dataclasses.dataclass(frozen=True, eq=False)
class WhiteLaw:
    """A finite law above W = exp(sqrt(w) xi - w / 2) in convex order, but for what lies beyond its top.

    Attributes:
        sizes: shape (J,), >= 0.
        chances: shape (J,), of sum 1.
    """

    sizes: FloatArray
    chances: FloatArray

    @property
    def mean(self) -> float:
        """E W on the nodes."""
        return float(self.chances @ self.sizes)


def bin_transform(increments: FloatArray, law: WhiteLaw, exponent: complex) -> tuple[Complex, FloatArray]:
    """1 - E exp(-exponent * increment * W) for every increment, and bounds on its errors.

    From differences to 1, so that small ones keep their digits. An exponent z is known to 4 roundings of |z|,
    which move e^-z by as much times e^(-Re z); functions are known to ELEMENTARY, and a sum over the nodes
    loses less than 64 more (numpy adds 128 numbers in 8 chains, and such blocks in pairs).
    """
    values = np.empty(increments.size, dtype=np.complex128)
    errors = np.empty(increments.size)
    rows = max(1, ROWS // law.sizes.size)
    for start in range(0, increments.size, rows):
        part = slice(start, start + rows)
        size = np.multiply.outer(increments[part], law.sizes)
        lost = np.expm1(-exponent.real * size)
        phase = exponent.imag * size
        half = np.sin(0.5 * phase)
        turned, moved = 2.0 * half * half, (1.0 + lost) * np.sin(phase)
        real = law.chances * (turned * (1.0 + lost) - lost)
        imaginary = law.chances * moved
        values[part] = np.sum(real, axis=1) + 1j * np.sum(imaginary, axis=1)
        spread = turned * (1.0 + lost) - lost + np.abs(moved) + (1.0 + lost) * abs(exponent) * size
        errors[part] = np.sum(law.chances * spread, axis=1)
    return values, errors * (6.0 * ELEMENTARY + 64.0 * UNIT)
