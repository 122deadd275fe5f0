r"""tr (S D)^b for a symmetric S of norm about 1 and a complex diagonal D of norm at most 1.

Only eigenvalues near the unit circle matter for large b. The method finds a subspace X of k vectors that S D
almost maps into itself; for any X, the difference of tr (S D)^b and tr H^b, H the k x k matrix of S D on X,
is bounded by its residual, squared, and by the part of S outside of X (docs/balls_in_bins_proof.md).
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import scipy

from dpmech.engines.convex_order.exponentials import Lattice
from dpmech.exceptions import NumericalError
from dpmech.numerics import LONGDOUBLE_UNIT, UNIT, FloatArray, spend

Complex = npt.NDArray[np.complex128]

# Negated log of the b-th power of the threshold for eigenvalues, relative to that of the largest.
DROPPED = 38.0
# Up to this many states all eigenvectors are computed, and powers in full; with more, up to the second limit,
# powers in full are computed where a subspace gives no sufficient bound, as with few bins.
DENSE, MOST_FULL = 150, 300
# Seconds for a product of two complex N x N matrices and for all eigenvectors, relative to N^3.
PRODUCT_SECONDS, EIGEN_SECONDS = 2.5e-10, 1e-8
MOST_LEADING = 60
MOST_DEPTH = 24
# The residual enters squared, times the squared number of bins.
RESIDUAL = 3e-10
# Blocks by which a basis grows between two looks at it; traces whose vectors start the next one.
GROWTH, KEPT = 2, 3


@dataclasses.dataclass(frozen=True, eq=False)
class _Leading:
    """Eigenvectors of S whose eigenvalues are above a threshold in size."""

    vectors: FloatArray
    values: FloatArray
    threshold: float


@dataclasses.dataclass(frozen=True, eq=False)
class Power:
    """A computed power of S D, and a bound on its error in the Frobenius norm."""

    matrix: Complex
    exponent: int
    error: float

    def times(self, other: "Power", norm: float, each: float) -> "Power":
        """The product; `norm` bounds S, `each` is the relative error of a product."""
        sizes = [float(np.linalg.norm(one.matrix)) for one in (self, other)]
        largest = [
            min(size + one.error, norm**one.exponent) for size, one in zip(sizes, (self, other), strict=True)
        ]
        error = largest[0] * other.error + largest[1] * self.error + self.error * other.error
        error += each * sizes[0] * sizes[1]
        return Power(self.matrix @ other.matrix, self.exponent + other.exponent, error)


class Traces:
    """Traces on one lattice.

    Args:
        lattice: nodes and steps.

    Raises:
        NumericalError: if too many eigenvalues of S are relevant (few bins, and many states).
    """

    def __init__(self, lattice: Lattice) -> None:
        self.lattice, self.bins, self.size = lattice, lattice.gram.bins, lattice.size
        spectra = [np.linalg.eigh(step) for step in lattice.steps]
        values, vectors = np.ones(1), np.ones((1, 1))
        for value, vector in spectra:
            values = np.multiply.outer(values, value).reshape(-1)
            keep = np.abs(values) >= 1e-4 * math.exp(-DROPPED / self.bins)
            pairs = np.einsum("ia,jb->ijab", vectors, vector).reshape(-1, values.size)
            values, vectors = values[keep], pairs[:, keep]
        # with a negative decay every other eigenvalue is negative
        order = np.argsort(-np.abs(values))
        values, vectors = values[order], vectors[:, order]
        # computed eigenvalues have errors of a few N roundings of the largest
        self.norm = abs(float(values[0])) + 64.0 * UNIT * sum(step.shape[0] for step in lattice.steps)
        threshold = self.norm * math.exp(-DROPPED / self.bins)
        count = min(int(np.sum(np.abs(values) >= threshold)) + 1, self.size)
        if self.size > MOST_FULL and count > MOST_LEADING:
            raise NumericalError(f"{count} eigenvalues of {self.size} states count for {self.bins} bins")
        self.leading = _Leading(vectors[:, :count], values[:count], max(threshold, 0.0))
        self.frobenius = math.prod(float(np.linalg.norm(step)) for step in lattice.steps)
        self.starts: list[Complex] = [self.leading.vectors.astype(np.complex128)]
        self.full = self.size <= DENSE or count > MOST_LEADING

    def step(self, block: npt.NDArray[np.inexact]) -> npt.NDArray[np.inexact]:
        """S times columns, shape (size, m)."""
        kind = block.real.dtype
        if not np.iscomplexobj(block):
            return self._real_step(np.asarray(block, dtype=kind))
        # a real matrix times the columns of real and imaginary parts
        whole = np.ascontiguousarray(block).view(kind)
        return self._real_step(whole).view(block.dtype)

    def _real_step(self, block: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        steps = [step.astype(block.dtype, copy=False) for step in self.lattice.steps]
        if len(steps) == 1:
            return np.asarray(steps[0] @ block)
        rows, inner = steps[0].shape[0], steps[1].shape[0]
        first = (steps[0] @ block.reshape(rows, -1)).reshape(rows, inner, -1)
        turned = np.ascontiguousarray(first.transpose(1, 0, 2)).reshape(inner, -1)
        second = (steps[1] @ turned).reshape(inner, rows, -1).transpose(1, 0, 2)
        return np.ascontiguousarray(second).reshape(rows * inner, -1)

    def trace(self, defect: Complex, errors: FloatArray, goal: float = 0.0) -> tuple[complex, float]:
        """The trace and a bound on its absolute error, infinite if none was found.

        Args:
            defect: 1 - D, shape (size,); |D| is at most 1 up to rounding.
            errors: bounds on the errors of its entries.
            goal: an error at which no other method is tried; if it is 0, no powers in full are tried where
                there are more than `DENSE` states and a subspace may give a bound.
        """
        diagonal, found = 1.0 - defect, (0j, math.inf)
        if self.full:
            found = self._power(diagonal, errors, goal)
        count = self.leading.vectors.shape[1]
        if found[1] <= goal or count == self.size or (self.size > DENSE and count > MOST_LEADING):
            return found
        basis = self._dense(diagonal) if self.size <= DENSE else self._krylov(diagonal)
        found = min(found, self._bounded(defect, errors, basis), key=lambda one: one[1])
        # the least error of powers in full
        least = 8.0 * UNIT * self.bins * self.frobenius
        if goal > 0.0 and found[1] > max(goal, least) and not self.full and self.size <= MOST_FULL:
            whole = self._power(diagonal, errors, goal)
            self.full = whole[1] < found[1]
            found = min(found, whole, key=lambda one: one[1])
        return found

    def ceiling(self, defect: FloatArray) -> float:
        """Bound on tr (S D)^b for a real D in [0, 1]: |S|_F^2 times a power of the norm of D^(1/2) S D^(1/2).

        For a symmetric matrix A with entries >= 0 and any v > 0 that norm is at most max (A v)_i / v_i.
        """
        root = np.sqrt(np.maximum(1.0 - defect, 0.0))
        vector = np.abs(self.leading.vectors[:, :1]) + 1e-12
        norm = self.norm
        for _ in range(60):
            image = root[:, None] * np.asarray(self.step(root[:, None] * vector))
            if not np.max(image) > 0.0:
                # all mass is lost to underflow
                norm = min(norm, 1e-150)
                break
            before, norm = norm, min(norm, float(np.max(image / vector)) * (1.0 + 1e-12))
            if self.bins * (before - norm) < 0.05 * norm and before > norm:
                break
            vector = image + 1e-9 * np.max(image)
        return float(self.frobenius**2 * norm ** (self.bins - 2)) * (1.0 + 1e-9)

    def _power(self, diagonal: Complex, errors: FloatArray, goal: float) -> tuple[complex, float]:
        """The whole matrix by squaring, with a running bound on the error in the Frobenius norm.

        The error of a product of complex matrices is below 3 (size + 2) roundings of the product of their
        norms; the largest singular value of a power is at most that of S to the same power. For q >= 2,
        |tr A^q R| is at most |A|_F^q |R|: where a low power A shows that the trace is below the goal, it is
        replaced by 0.
        """
        seconds = math.log2(self.bins) * PRODUCT_SECONDS * self.size**3
        spend(seconds, 1e3 * self.size**2, what="a power in full")
        each = 3.0 * UNIT * (self.size + 2.0)
        whole = np.asarray(self.step(np.eye(self.size))) * diagonal[None, :]
        base = Power(whole, 1, (float(np.max(errors)) + 8.0 * UNIT) * self.frobenius)
        product: Power | None = None
        left = self.bins
        while left:
            if left % 2:
                product = base if product is None else product.times(base, self.norm, each)
            left //= 2
            if left:
                base = base.times(base, self.norm, each)
                times, rest = divmod(self.bins, base.exponent)
                size = float(np.linalg.norm(base.matrix)) + base.error
                if times > 1 and size < 1.0 and size**times * self.norm**rest <= goal:
                    return 0j, size**times * self.norm**rest * (1.0 + 1e-9)
        if product is None:
            raise NumericalError("there are no bins")
        return complex(np.trace(product.matrix)), product.error * math.sqrt(self.size) * (1.0 + 1e-9)

    def _dense(self, diagonal: Complex) -> Complex:
        spend(EIGEN_SECONDS * self.size**3, what="all eigenvectors of a step")
        matrix = np.asarray(self.step(np.eye(self.size))) * diagonal[None, :]
        values, vectors = np.linalg.eig(matrix)
        order = np.argsort(-np.abs(values))[: self.leading.vectors.shape[1]]
        return np.asarray(vectors[:, order])

    def _krylov(self, diagonal: Complex) -> Complex:
        """Ritz vectors of a space that starts from those of the last traces, and grows by residuals.

        Exponents follow each other closely, so that the vectors of three of them nearly span the next ones.
        """
        count, limit = self.leading.vectors.shape[1], self.size
        start = np.linalg.qr(np.hstack(self.starts))[0]
        most = min(start.shape[1] + (GROWTH * MOST_DEPTH + 1) * count, limit + count)
        basis = np.empty((self.size, most), dtype=np.complex128, order="F")
        images = np.empty((self.size, most), dtype=np.complex128, order="F")
        small = np.empty((most, most), dtype=np.complex128)
        used = self._grown(diagonal, start, basis, images, small, 0)
        ritz = start[:, :count]
        for _ in range(MOST_DEPTH):
            values, vectors = np.linalg.eig(small[:used, :used])
            order = np.argsort(-np.abs(values))[:count]
            ritz = basis[:, :used] @ vectors[:, order]
            new = images[:, :used] @ vectors[:, order] - ritz * values[order]
            if np.linalg.norm(new) <= RESIDUAL or used + GROWTH * count > limit:
                break
            for _ in range(GROWTH):
                for _ in range(2):
                    new = new - basis[:, :used] @ (basis[:, :used].conj().T @ new)
                    new = np.linalg.qr(new)[0]
                used = self._grown(diagonal, new, basis, images, small, used)
                new = images[:, used - count : used]
        self.starts = [ritz, *self.starts[: KEPT - 1]]
        return ritz

    def _grown(
        self, diagonal: Complex, new: Complex, basis: Complex, images: Complex, small: Complex, used: int
    ) -> int:
        """Append orthonormal columns to a basis, to its images under S D and to its matrix; columns used."""
        end = used + int(new.shape[1])
        basis[:, used:end] = new
        images[:, used:end] = self.step(diagonal[:, None] * new)
        adjoint = basis[:, :end].conj().T
        small[:end, used:end] = adjoint @ images[:, used:end]
        small[used:end, :used] = adjoint[used:end] @ images[:, :used]
        return end

    def _bounded(self, defect: Complex, errors: FloatArray, basis: Complex) -> tuple[complex, float]:
        """The trace of H^b and a bound on its error; valid for any basis."""
        bins, count = self.bins, basis.shape[1]
        exact_diagonal = np.longdouble(1.0) - defect.astype(np.clongdouble)
        diagonal = 1.0 - defect
        # X^T D X = 1: the projector X X^T D is then symmetric with respect to D, as S D is
        gram = basis.T @ (diagonal[:, None] * basis)
        if not np.linalg.cond(gram) < 1e12:
            # no bound: some vector of the basis is orthogonal to all of it under D
            return 0j, math.inf
        basis = basis @ scipy.linalg.inv(scipy.linalg.sqrtm(gram))
        exact = basis.astype(np.clongdouble)
        moved = exact_diagonal[:, None] * exact
        images = self.step(moved)
        off = exact.T @ moved - np.eye(count)
        form = moved.T @ images
        matrix = form - off @ form + off @ (off @ form)
        size = float(np.linalg.norm(basis, 2))
        off_size = float(np.linalg.norm(off.astype(np.complex128)))
        if not off_size < 1e-3 or not size < 1e3:
            return 0j, math.inf
        # products in extended precision, and the third power of `off`
        terms = self.size + sum(step.shape[0] for step in self.lattice.steps) + 4.0 * count
        lost = 4.0 * LONGDOUBLE_UNIT * terms * size**2 * (1.0 + size**2) + 2.0 * off_size**3
        first = _power_error(np.asarray(matrix, dtype=np.complex128), lost, bins)
        if math.isinf(first):
            # no bound: powers of this matrix leave float64
            return 0j, math.inf
        value = complex(np.trace(np.linalg.matrix_power(matrix, bins)))
        # D has errors: to first order through X, the remainder by norms
        weights = np.sum(np.abs(basis) ** 2, axis=1)
        worst = float(np.max(errors))
        first += 1.1 * bins * float(weights @ errors) * self.norm**bins
        residual = float(np.linalg.norm((images - exact @ matrix).astype(np.complex128)))
        residual += 2.0 * worst * size + lost * size
        offdiagonal = 1.01 * residual * size * (2.0 + size**2) + worst
        if not bins * offdiagonal < 0.1:
            return value, math.inf
        growth = (self.norm + offdiagonal) ** bins * math.exp(bins * offdiagonal)
        second = bins**2 * math.sqrt(2.0 * count) * offdiagonal**2 * growth
        second += bins**2 * math.sqrt(self.size) * self.frobenius * worst * offdiagonal * growth
        return value, 1.01 * (first + second + self._outside(moved, offdiagonal))

    def _outside(self, moved: npt.NDArray[np.inexact], offdiagonal: float) -> float:
        """Contribution of vectors v with X^T D v = 0: at most |S|_F^2 y^(b - 2), y the norm of S on them."""
        leading = self.leading
        frame = np.linalg.qr(np.asarray(moved, dtype=np.complex128).conj())[0]
        seen = leading.vectors - frame @ (frame.conj().T @ leading.vectors)
        excess = np.sqrt(np.maximum(leading.values**2 - leading.threshold**2, 0.0))
        norm = math.hypot(leading.threshold, float(np.linalg.norm(seen * excess[None, :], 2)))
        norm += offdiagonal + 256.0 * UNIT * max(step.shape[0] for step in self.lattice.steps)
        mass = (self.frobenius + math.sqrt(self.size) * offdiagonal) ** 2
        return float(mass * norm ** (self.bins - 2))


def _power_error(matrix: Complex, error: float, bins: int) -> float:
    """|tr (H + E)^b - tr H^b| for |E| <= error; infinite beyond float64."""
    count = matrix.shape[0]
    norm = float(np.linalg.norm(matrix, 2))
    try:
        return float(count * bins * error * (norm + error) ** (bins - 1))
    except OverflowError:
        return math.inf
