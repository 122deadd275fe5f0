r"""Laplace transforms for cyclic Gram matrices of second order: a lattice of pairs, and traces of powers.

There is one lattice variable v for each bin, and a state is a pair (v_(l-1), v_l). One step T leads from
(x, x') to (x', x''), so that it is a product of small matrices, one for each x'. Its power G = T^m is
computed in full. After a few steps it has low rank up to rounding: G = X Y + F with a small F, whose norm is
computed. Then tr T^b is the trace of a power of the small matrix Y X up to a bound on the other terms
(docs/balls_in_bins_proof.md, "Matrices of second order").
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines.convex_order.second_order import SecondOrderGram, precision
from dpmech.engines.convex_order.traces import Power
from dpmech.exceptions import NumericalError
from dpmech.numerics import UNIT, FloatArray

Complex = npt.NDArray[np.complex128]

LEAST_SPACING, MOST_SPACING = 0.6, 3.0
# With more values of v a trace takes seconds.
MOST_VALUES = 40
# Degree of the polynomials that span the range of a power of the step, and the size of what it leaves out.
DEGREE = 8
LEFT = 30.0


@dataclasses.dataclass(frozen=True, eq=False)
class PairLattice:
    """Values of v and weights of a step, truncated to a window; the attributes are those of `Lattice`.

    Attributes:
        gram: the Gram matrix of the lattice.
        nodes: values of v, shape (N,).
        steps: weights of (x, x', x''), shape (N, N, N), entries >= 0.
        log_factor: log of the factor for a bound on the lattice.
        outside: bound on the expectation of r (REMOVE) or the probability (ADD) of leaving the window.
        norm: determinant of the recursion.
        halves: half the exponent of the density of two successive v, shape (N, N).
    """

    gram: SecondOrderGram
    nodes: FloatArray
    steps: FloatArray
    log_factor: float
    outside: float
    norm: float
    halves: FloatArray

    @property
    def size(self) -> int:
        """Number of states."""
        return self.nodes.size**2

    @property
    def twice(self) -> float:
        """Factor for a charge on the lattice: for the law of y, and for a mean on the lattice itself."""
        return math.exp(2.0 * self.log_factor)

    def seconds(self, white: int) -> float:
        """An estimate of the time of one transform with so many nodes of the white part."""
        values = self.nodes.size
        return values**3 * (8e-8 * white + self.length * values**2 * 1e-9)

    @property
    def length(self) -> int:
        """Steps after which an operator has low rank."""
        # eigenvalues are products of the decays, of any degree
        decay = max(*self.gram.decays, 0.6)
        return min(max(3, math.ceil(LEFT / ((DEGREE + 1) * -math.log(decay)))), self.gram.bins // 2)

    def sums(self) -> FloatArray:
        """c_0 x'' + c_1 x' + c_2 x - V / 2 for every step, shape (N^3,)."""
        new, old, oldest = self.gram.filter
        line = self.nodes
        total = oldest * line[:, None, None] + old * line[None, :, None] + new * line[None, None, :]
        return np.asarray(total - 0.5 * self.gram.exponential).reshape(-1)

    def moments(self) -> tuple[float, float, float]:
        """E 1 and E e^(y - V / 2) without white part over the window, and the relative error of both.

        Products of matrices with entries >= 0 have at most as many roundings as rows, relative to each entry.
        """
        count, bins = self.nodes.size, self.gram.bins
        whole = np.zeros((count,) * 4)
        index = np.arange(count)
        whole[:, index, index, :] = self.steps
        power = np.linalg.matrix_power(whole.reshape(self.size, self.size), bins - 1)
        # from (x', x'') back to (x, x')
        back = power.reshape((count,) * 4)[index, :, :, index]
        weights = self.steps * back.transpose(2, 0, 1)
        error = 1.01 * (2.0 * bins * (self.size + 64.0) + count**3) * UNIT
        mass = self.norm * float(np.sum(weights))
        return mass, self.norm * float(np.sum(weights * np.exp(self.sums()).reshape(weights.shape))), error


def build_pairs(gram: SecondOrderGram, *, remove: bool, ripple: float, outside: float) -> PairLattice:
    """Construct a lattice for one direction; arguments as for `build_lattice`.

    Raises:
        NumericalError: if this requires more than 40 values of v.
    """
    bins, sharp = gram.bins, precision(gram)
    fineness, rho = LEAST_SPACING, math.inf
    while fineness <= MOST_SPACING:
        # sum over k != 0 of exp(-2 pi^2 k^2 / (h^2 precision)), with h = 1 / (f sqrt(precision))
        rho = 2.0 * sum(math.exp(-2.0 * (math.pi * fineness * k) ** 2) for k in range(1, 8)) * (1.0 + 1e-9)
        if bins * rho <= ripple:
            break
        fineness += 0.02
    spacing = 1.0 / (fineness * math.sqrt(sharp))
    raised = bins * max(-math.log1p(-rho), math.log1p(rho))
    variance, means = gram.shifts()
    sd = math.sqrt(variance + gram.error)
    means = means if remove else np.zeros(bins)
    tail = sd * -float(scipy.special.ndtri(max(outside / (4.0 * bins), 1e-290)))
    low = math.floor((float(np.min(means)) - tail) / spacing)
    high = math.ceil((float(np.max(means)) + tail) / spacing)
    if high - low + 1 > MOST_VALUES:
        raise NumericalError(f"a lattice for {gram!r} takes {high - low + 1} values of v")
    line = np.asarray(spacing * np.arange(low, high + 1), dtype=np.float64)
    above = scipy.special.ndtr((means + gram.error - line[-1]) / sd)
    below = scipy.special.ndtr((line[0] - means + gram.error) / sd)
    charge = float(np.sum(above + below)) * (1.0 + 1e-9)
    first, second = gram.recursion
    innovation = second * line[:, None, None] + first * line[None, :, None] + line[None, None, :]
    # sqrt of the density of two successive v: around the cycle these factors cancel
    ratio = -first / (1.0 + second)
    half = 0.25 * (line[:, None] ** 2 + line[None, :] ** 2 - 2.0 * ratio * line[:, None] * line[None, :])
    half /= (1.0 - ratio * ratio) * (1.0 + second) / ((1.0 - second) * ((1.0 + second) ** 2 - first**2))
    exponents = half[None, :, :] - half[:, :, None] - 0.5 * innovation**2
    steps = np.asarray(spacing / math.sqrt(2.0 * math.pi) * np.exp(exponents), dtype=np.float64)
    most = float(np.max(np.abs(line)))
    scale = (1.0 + abs(first) + abs(second)) * most
    # errors of exponents, of weights and of the determinant, whose logarithms are of b values of f
    lost = UNIT * (64.0 + 16.0 * (scale * scale + float(np.max(np.abs(half)))) + 64.0 * gram.conditioning)
    factor = raised + 1.01 * bins * lost
    return PairLattice(
        gram, line, steps, factor, 1.01 * math.exp(2.0 * raised) * charge, gram.determinant(), half
    )


class PairTraces:
    """Traces on one lattice of pairs."""

    def __init__(self, lattice: PairLattice) -> None:
        self.bins, self.count = lattice.gram.bins, lattice.nodes.size
        self.size, self.length = lattice.size, lattice.length
        self.steps = np.ascontiguousarray(lattice.steps.transpose(1, 0, 2))
        self.most, self.left = divmod(self.bins, self.length)
        whole = self._full(self.steps)
        self.frobenius = float(np.linalg.norm(whole)) * (1.0 + 1e-9)
        self.norm = self._norm(self.length)
        self.rest = self._norm(self.left) if self.left else 1.0
        # without D, polynomials of two successive v up to any degree are mapped to such polynomials
        line = lattice.nodes / np.max(np.abs(lattice.nodes))
        powers = np.stack([np.polynomial.chebyshev.chebval(line, row) for row in np.eye(DEGREE + 1)])
        pairs = [
            np.multiply.outer(powers[one], powers[two]).reshape(-1)
            for one in range(DEGREE + 1)
            for two in range(DEGREE + 1 - one)
        ]
        density = np.exp(-lattice.halves.reshape(-1))
        self.start = np.linalg.qr(np.stack(pairs, axis=1) * density[:, None])[0].astype(np.complex128)

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

    def _full(self, steps: npt.NDArray[np.inexact]) -> npt.NDArray[np.inexact]:
        """T^length in full."""
        if self.length < 2:
            return self._powers(steps, np.eye(self.size), self.length)
        # a single path of two steps leads from one pair to another
        two = np.einsum("jik,kjl->ijkl", steps, steps).reshape(self.size, self.size)
        return self._powers(steps, two, self.length - 2)

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
            defect: 1 - D for every step, shape (N^3,); |D| is at most 1 up to rounding.
            errors: bounds on the errors of its entries.
        """
        diagonal = (1.0 - defect).reshape((self.count,) * 3).transpose(1, 0, 2)
        steps = self.steps * diagonal
        # every entry of a power is a sum of N products per step, relative to the same sum without D
        each = 1.01 * (float(np.max(errors)) + (8.0 * self.count + 32.0) * UNIT)
        power = self._full(steps)
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

    def ceiling(self, defect: FloatArray) -> float:
        """Bound on the trace for a real D in [0, 1]."""
        value, error = self.trace(defect.astype(np.complex128), np.zeros(defect.size))
        return max(value.real, 0.0) + error
