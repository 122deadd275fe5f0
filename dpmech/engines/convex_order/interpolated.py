r"""The transform of one bin at many increments, interpolated in the logarithm of the increment.

The logarithms of the nodes of W are equidistant, so that g(x) = sum_j p_j (1 - exp(-zeta e^x W_j)) on a grid
of a fraction of their spacing is a convolution. Between the grid points it is interpolated by a polynomial
through the 16 nearest ones. The error is at most the product of the distances to them times max |g| / R^16 on
the disk of any radius R <= pi / 2 around a point between them. There, |exp(-zeta e^x s)| is at most
exp(s e^(x + R) (|Im zeta| sin R - Re zeta cos R)_+) (docs/balls_in_bins_proof.md).
"""

import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines.convex_order.exponentials import WhiteLaw, bin_transform
from dpmech.numerics import ELEMENTARY, LONGDOUBLE_UNIT, UNIT, FloatArray

Complex = npt.NDArray[np.complex128]

POINTS = 16
# The product of the distances to them is at most (1/2 3/2 ... 15/2)^2 times the spacing to that power.
DISTANCES = math.prod(0.5 + one for one in range(POINTS // 2)) ** 2
# Target for the error of interpolation, relative to g; width of the cells for bounds, and radii to try.
TARGET = 1e-15
CELL = 0.125
RADII = np.geomspace(0.003, 1.5, 16)
MOST_PHASES = 200
MOST_BENT = 1e-13
# Interpolation is used if it saves this much time.
SAVED = 2.0


class InterpolatedTransform:
    """`bin_transform` at the same increments, for many exponents with the same real part.

    Args:
        increments: shape (N,), >= 0; if one is 0 or infinite, all are summed directly.
        law: the law of W; interpolation is used only if its nodes are 0 and equidistant in the logarithm.
        largest: an exponent with real part >= 0. The imaginary parts of others are not larger in size.
    """

    def __init__(self, increments: FloatArray, law: WhiteLaw, largest: complex) -> None:
        self.increments, self.law, self.phases = increments, law, 0
        if law.sizes.size < 3 or law.sizes[0] != 0.0 or increments.size * law.sizes.size < 1e5:
            return
        if not (np.min(increments) > 0.0 and np.max(increments) < np.inf):
            return
        nodes = np.log(law.sizes[1:].astype(np.longdouble))
        step = (nodes[-1] - nodes[0]) / (nodes.size - 1)
        bent = float(np.max(np.abs(nodes - nodes[0] - step * np.arange(nodes.size))))
        logs = np.log(increments.astype(np.longdouble))
        low, high = np.min(logs), np.max(logs)
        # bounds hold on a cell and half a cell on each side, where the points of its interpolants are
        count = max(math.ceil(float(high - low) / CELL), 1)
        self.cells = float(low) + CELL * np.arange(count + 1.0)
        derivative = self._derivative(largest)
        with np.errstate(over="ignore"):
            rough = TARGET * self._least(largest) / (DISTANCES * derivative)
        wanted = float(np.min(rough ** (1.0 / POINTS)))
        wanted = min(wanted, CELL / POINTS)
        if not wanted * MOST_PHASES > step or bent > MOST_BENT:
            return
        phases = max(math.ceil(float(step) / wanted), 1)
        rows = math.ceil(float(high - low) / float(step) + POINTS / phases) + 2
        inner = rows + nodes.size - 1
        cost = inner * phases * (1.0 + 0.01 * rows) + increments.size
        if SAVED * cost > increments.size * law.sizes.size:
            return
        self.phases = phases
        spacing = step / phases
        start = low - (POINTS // 2) * spacing
        grid = start + nodes[0] + spacing * np.arange(inner * phases)
        self.grid = np.exp(grid).astype(np.float64)
        whole = np.concatenate([law.chances[1:], np.zeros(rows - 1)])
        self.weights = scipy.linalg.toeplitz(np.concatenate([whole[:1], np.zeros(rows - 1)]), whole)
        self._interpolants((logs - start) / spacing, rows * phases)
        # increments, points and nodes of W are known to a few roundings of their logarithms
        size = float(np.max(np.abs(logs)) + np.max(np.abs(grid)) + np.max(np.abs(nodes)))
        self.moved = 4.0 * UNIT + 32.0 * LONGDOUBLE_UNIT * size + 2.0 * bent
        self.cell = np.minimum(((logs - low) / CELL).astype(np.int64), count - 1)
        self.missed = DISTANCES * float(spacing) ** POINTS * derivative

    def _interpolants(self, places: npt.NDArray[np.longdouble], points: int) -> None:
        """Lagrange polynomials at places in units of the spacing, in the middle of their points."""
        first = np.floor(places).astype(np.int64) - (POINTS // 2 - 1)
        # a rounding of a place moves it by less than one of the increment
        away = (places - first).astype(np.float64)[:, None] - np.arange(POINTS)
        before, after = np.ones_like(away), np.ones_like(away)
        for one in range(1, POINTS):
            before[:, one] = before[:, one - 1] * away[:, one - 1]
            after[:, -1 - one] = after[:, -one] * away[:, -one]
        other = POINTS - 1
        scales = [(-1) ** (other - k) * math.factorial(k) * math.factorial(other - k) for k in range(POINTS)]
        values = before * after / np.array(scales, dtype=np.float64)
        columns = first[:, None] + np.arange(POINTS)
        self.norm = float(np.max(np.sum(np.abs(values), axis=1)))
        ends = np.arange(0, values.size + 1, POINTS)
        self.basis = scipy.sparse.csr_array(
            (values.reshape(-1), columns.reshape(-1), ends), shape=(places.size, points)
        )

    def _derivative(self, exponent: complex) -> FloatArray:
        """Bounds on the 16th derivative of g over 16!, for each cell and all exponents; shape (cells,)."""
        real, imaginary, size = exponent.real, abs(exponent.imag), abs(exponent)
        best = np.full(self.cells.size - 1, np.inf)
        with np.errstate(over="ignore", invalid="ignore"):
            for radius in RADII.tolist():
                reach = np.multiply.outer(np.exp(self.cells[1:] + 0.5 * CELL + radius), self.law.sizes)
                growth = max(imaginary * math.sin(radius) - real * math.cos(radius), 0.0)
                raised = np.exp(growth * reach)
                # |1 - e^-u| <= 1 + |e^-u|, and <= |u| max(1, |e^-u|)
                heights = np.minimum(1.0 + raised, size * reach * raised) @ self.law.chances
                best = np.fmin(best, heights / radius**POINTS)
        return 1.01 * best

    def _least(self, exponent: complex) -> FloatArray:
        """E min(1, |zeta| e^x W) at the lower end of each cell."""
        sizes = abs(exponent) * np.multiply.outer(np.exp(self.cells[:-1]), self.law.sizes)
        return np.asarray(np.minimum(sizes, 1.0) @ self.law.chances)

    def _errors(self, exponent: complex) -> FloatArray:
        """Bounds on the errors, for each cell."""
        sizes = abs(exponent) * np.multiply.outer(np.exp(self.cells[1:] + 0.5 * CELL), self.law.sizes)
        least = exponent.real * np.multiply.outer(np.exp(self.cells[:-1] - 0.5 * CELL), self.law.sizes)
        # 1 - Re e^-u is at most 2 and |u|, |Im e^-u| at most 1 and |u|
        spread = 3.0 * np.minimum(sizes, 1.0) @ self.law.chances
        slope = (sizes * np.exp(-least)) @ self.law.chances
        roundings = 6.0 * ELEMENTARY + UNIT * (self.law.sizes.size + 5.0 * POINTS + 8.0)
        found = self.missed + (1.0 + self.norm) * slope * (self.moved + 6.0 * ELEMENTARY)
        return np.asarray(1.01 * (found + self.norm * spread * roundings))

    def __call__(self, exponent: complex) -> tuple[Complex, FloatArray]:
        """The values of `bin_transform`, and bounds on their errors; `exponent` as for the class."""
        if not self.phases:
            return bin_transform(self.increments, self.law, exponent)
        lost = np.expm1(-exponent.real * self.grid)
        phase = exponent.imag * self.grid
        half = np.sin(0.5 * phase)
        parts = np.empty((self.grid.size, 2))
        parts[:, 0] = 2.0 * half * half * (1.0 + lost) - lost
        parts[:, 1] = (1.0 + lost) * np.sin(phase)
        summed = (self.weights @ parts.reshape(self.weights.shape[1], -1)).reshape(-1, 2)
        values = np.ascontiguousarray(self.basis @ summed).view(np.complex128)[:, 0]
        return values, self._errors(exponent)[self.cell]
