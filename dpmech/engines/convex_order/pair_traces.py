r"""Traces for ARMA matrices of order 2 and few bins, from powers of the step in full.

One step T leads from (x, x') to (x', x''), so that it is a product of small matrices, one for each x'. Its
power G = T^m is computed in full. After a few steps it has low rank up to rounding: G = X Y + F with a small
F, whose norm is computed. Then tr T^b is the trace of a power of the small matrix Y X up to a bound on the
other terms (docs/balls_in_bins_proof.md, "ARMA matrices"). This takes up to hundreds of times as long as
`arma_traces`, whose bounds may be insufficient for few bins, slow decays and small traces.
"""

import functools
import math

import numpy as np
import numpy.typing as npt

from dpmech.engines.convex_order.arma_lattice import ArmaLattice
from dpmech.engines.convex_order.traces import Power
from dpmech.numerics import UNIT, FloatArray

Complex = npt.NDArray[np.complex128]

# Degree of the polynomials that span the range of a power of the step, and the size of what it leaves out.
DEGREE = 8
LEFT = 30.0
# Seconds for a product of an N^2 x N^2 matrix with the columns for that range and four others of that size,
# relative to N^4, and for a step of the power in full, relative to N^5.
RANGE_SECONDS, STEP_SECONDS = 1.5e-7, 2e-10


class PairTraces:
    """Traces on one lattice of order 2; nothing is computed before the first of them."""

    def __init__(self, lattice: ArmaLattice) -> None:
        self.lattice, self.bins, self.count = lattice, lattice.gram.bins, lattice.nodes.size
        # eigenvalues are products of the decays, of any degree
        decay = max(*lattice.gram.decays, 0.6)
        self.length = min(max(3, math.ceil(LEFT / ((DEGREE + 1) * -math.log(decay)))), self.bins // 2)
        self.size = lattice.size
        self.steps = np.ascontiguousarray(lattice.steps.transpose(1, 0, 2))
        self.below, self.shares = (one.transpose(1, 0, 2) for one in lattice.places())
        self.most, self.left = divmod(self.bins, self.length)

    @property
    def seconds(self) -> float:
        """An estimate of the time of one trace."""
        return self.size**2 * (RANGE_SECONDS + self.length * self.count * STEP_SECONDS)

    @property
    def memory(self) -> float:
        """Bytes that a trace takes: a few complex matrices of N^2 x N^2."""
        return 64.0 * self.size**2

    @functools.cached_property
    def frobenius(self) -> float:
        """The Frobenius norm of T^length without D."""
        return float(np.linalg.norm(self._full(self.steps, self.length))) * (1.0 + 1e-9)

    @functools.cached_property
    def norm(self) -> float:
        """Bound on the largest singular value of T^length."""
        return self._norm(self.length)

    @functools.cached_property
    def rest(self) -> float:
        """The same for the remaining steps."""
        return self._norm(self.left) if self.left else 1.0

    @functools.cached_property
    def start(self) -> Complex:
        """Columns near the range of a power of T."""
        # without D, polynomials of two successive v up to any degree are mapped to such polynomials
        line = self.lattice.nodes / np.max(np.abs(self.lattice.nodes))
        powers = np.stack([np.polynomial.chebyshev.chebval(line, row) for row in np.eye(DEGREE + 1)])
        pairs = [
            np.multiply.outer(powers[one], powers[two]).reshape(-1)
            for one in range(DEGREE + 1)
            for two in range(DEGREE + 1 - one)
        ]
        density = np.exp(-self.lattice.halves.reshape(-1))
        found = np.linalg.qr(np.stack(pairs, axis=1) * density[:, None])[0]
        return np.asarray(found, dtype=np.complex128)

    def _apply(
        self, steps: npt.NDArray[np.inexact], block: npt.NDArray[np.inexact]
    ) -> npt.NDArray[np.inexact]:
        """T times columns, shape (N^2, m)."""
        moved = np.empty((self.count, self.count, block.shape[1]), dtype=np.result_type(steps, block))
        np.matmul(steps, block.reshape(self.count, self.count, -1), out=moved.transpose(1, 0, 2))
        return moved.reshape(self.size, -1)

    def _powers(
        self, steps: npt.NDArray[np.inexact], block: npt.NDArray[np.inexact], times: int
    ) -> npt.NDArray[np.inexact]:
        for _ in range(times):
            block = self._apply(steps, block)
        return block

    def _full(self, steps: npt.NDArray[np.inexact], times: int) -> npt.NDArray[np.inexact]:
        """A power of T in full."""
        if times < 2:
            return self._powers(steps, np.eye(self.size), times)
        # a single path of two steps leads from one pair to another
        two = np.einsum("jik,kjl->ijkl", steps, steps).reshape(self.size, self.size)
        return self._powers(steps, two, times - 2)

    def _norm(self, times: int) -> float:
        """Bound on the largest singular value of a power A of the step without D, and of |A| <= it.

        For entries >= 0 and any v > 0, the norm of A^T A is at most max (A^T A v)_i / v_i.
        """
        back = np.ascontiguousarray(self.steps.transpose(0, 2, 1))
        vector, norm = np.ones((self.size, 1)), math.inf
        for _ in range(60):
            image = self._powers(self.steps, vector, times)
            for _ in range(times):
                # the transposed step leads from (x', x'') to (x, x')
                turned = image.reshape(self.count, self.count)
                image = np.einsum("jmi,ij->jm", back, turned).reshape(-1, 1)
            norm = min(norm, float(np.max(image / vector)))
            vector = image / np.max(image) + 1e-9
        return math.sqrt(norm) * (1.0 + 1e-10)

    def trace(self, defect: Complex, errors: FloatArray) -> tuple[complex, float]:
        """The trace of T^b with the weights of every step times D, and a bound on its error.

        Args:
            defect: 1 - D at all `sums` of the lattice; |D| is at most 1 up to rounding.
            errors: bounds on the errors of its entries.
        """
        values = 1.0 - defect
        steps = self.steps * (values[self.below] + self.shares * np.diff(values)[self.below])
        # every entry of a power is a sum of N products per step, relative to the same sum without D
        each = 1.01 * (float(np.max(errors)) + (8.0 * self.count + 64.0) * UNIT)
        power = self._full(steps, self.length)
        basis = np.linalg.qr(power @ self.start)[0]
        basis = np.linalg.qr(power @ (power.conj().T @ basis))[0]
        rows = basis.conj().T @ power
        rank = basis.shape[1]
        rounding = 8.0 * (self.size + rank + 8.0) * UNIT
        spread = self.frobenius * (1.0 + self.length * each)
        wide = 1.0 + float(np.linalg.norm(basis.conj().T @ basis - np.eye(rank))) + rounding * rank
        power -= basis @ rows
        missing = math.sqrt(float(np.vdot(power, power).real)) * (1.0 + 1e-9)
        missing += self.length * each * self.frobenius + rounding * math.sqrt(rank) * wide * spread
        norm = (self.norm + missing) * wide * wide
        small = rows @ basis
        ends = rows @ self._powers(steps, basis, self.left) if self.left else small
        # the last factor, Y T^left X, has the errors of its own steps
        last = rounding * spread * wide * math.sqrt(rank) * self.rest
        last += 1.01 * self.left * each * self.rest * math.sqrt(rank) * wide * spread
        error = rounding * math.sqrt(rank) * wide * spread
        product = Power(ends, 1, last)
        base = Power(small, 1, error)
        products = 3.0 * UNIT * (rank + 2.0)
        largest = max(norm, norm * self.rest)
        for _ in range(self.most - 1):
            product = product.times(base, largest, products)
        found = complex(np.trace(product.matrix))
        lost = product.error * math.sqrt(rank) * (1.0 + 1e-9)
        lost += self.most * missing * (spread + missing) * self.rest * max(norm, 1.0) ** (self.most - 1)
        return found, lost if math.isfinite(lost) else math.inf

    def moments(self) -> tuple[float, float, float]:
        """E 1 and E e^(y - V / 2) without white part over the window, and the relative error of both.

        Products of matrices with entries >= 0 have at most as many roundings as rows, relative to each entry.
        """
        count, bins, lattice = self.count, self.bins, self.lattice
        index = np.arange(count)
        # from (x', x'') back to (x, x')
        back = self._full(self.steps, bins - 1).reshape((count,) * 4)[index, :, :, index]
        weights = lattice.steps * back.transpose(2, 0, 1)
        error = 1.01 * (2.0 * bins * (count + 64.0) + count**3) * UNIT
        mass = lattice.norm * float(np.sum(weights))
        sizes = np.exp(lattice.sums())
        below, shares = lattice.places()
        raised = weights * (sizes[below] + shares * np.diff(sizes)[below])
        return mass, lattice.norm * float(np.sum(raised)), error
