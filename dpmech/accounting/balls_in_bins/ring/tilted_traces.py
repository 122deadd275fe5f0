"""Traces of the powers that transforms of one real part are, relative to the real one."""

import dataclasses
import math

import numpy as np

from dpmech.accounting.balls_in_bins.ring.lattice import Lattice
from dpmech.accounting.balls_in_bins.ring.tilted_law import TiltedLaw
from dpmech.accounting.balls_in_bins.ring.traces import Traces
from dpmech.exceptions import NumericalError
from dpmech.numerics import ELEMENTARY, UNIT, FloatArray

__all__ = ["TiltedTraces", "tilted_step"]

# A bound that rounding raises by more than a power of e is of no use.
MOST_LOST = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class _Scaled:
    """A matrix times e^shift."""

    values: FloatArray
    shift: float


def tilted_step(step: FloatArray, law: TiltedLaw) -> _Scaled:
    """D^(1/2) S D^(1/2), over a power of e."""
    shift = float(np.max(law.log_size + np.log(np.maximum(np.diag(step), 1e-300))))
    root = np.exp(0.5 * (law.log_size - shift))
    # symmetric to the last bit
    return _Scaled(np.multiply.outer(root, root) * step, shift)


class TiltedTraces:
    """tr (S D)^b of the exponents with one real part, over e^log_scale."""

    def __init__(self, lattice: Lattice, law: TiltedLaw) -> None:
        self.law = law
        bins = lattice.gram.bins
        scaled = tilted_step(lattice.steps[0], law)
        largest = float(np.linalg.eigvalsh(scaled.values)[-1])
        self.traces = Traces(dataclasses.replace(lattice, steps=(scaled.values / largest,)))
        self.log_scale = bins * (scaled.shift + math.log(largest)) + math.log(lattice.norm)
        # D times a chance, entries of the scaled matrix, and its scale
        lost = law.rounding + 16.0 * ELEMENTARY + UNIT * (8.0 * abs(scaled.shift) + 8.0)
        raised = 1.01 * bins * lost
        if raised > MOST_LOST:
            raise NumericalError(f"rounding may raise the transform by a factor of e^{raised:.3g}")
        self.factor = math.exp(raised)

    def transform(self, frequency: float, ceiling: float) -> tuple[complex, float]:
        """The trace at sign * (tilt + i frequency), and a bound on its error."""
        value, error = self.traces.trace(*self.law.defect(frequency))
        return (value, error) if error < ceiling else (0j, ceiling)

    def ceiling_at(self, frequency: float) -> float:
        """At least the modulus of the trace there."""
        defect, errors = self.law.defect(frequency)
        return self.ceiling(np.maximum(1.0 - np.abs(1.0 - defect) - errors - 8.0 * UNIT, 0.0))

    def ceiling(self, defect: FloatArray) -> float:
        """At least the trace of a real D in [0, 1]."""
        return self.traces.ceiling(defect)
