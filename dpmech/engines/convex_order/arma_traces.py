r"""tr T^b for a step T on a lattice of tuples (`arma_lattice`); powers of T are never formed.

Let X and Y be n x k with Y^T X near 1, such that T X is close to X H and T^T Y to Y H^T. Then tr T^b is close
to tr H^b, with an error of second order in the two residuals. The rest of T enters by its p-th power: its
entries are single products, so that its Frobenius norm is computed (docs/balls_in_bins_proof.md, "ARMA
matrices").
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmech.engines.convex_order.arma_lattice import ArmaLattice
from dpmech.numerics import LONGDOUBLE_UNIT, UNIT, FloatArray

Complex = npt.NDArray[np.complex128]
# Real or complex, in single or double precision.
Block = npt.NDArray[Any]

# Residuals at which iterations end: with many states, with few, and for moments, which depend on them to
# first order.
RESIDUAL, FEW_RESIDUAL, FINE_RESIDUAL = 1e-7, 1e-9, 1e-13
ROUGH_RESIDUAL = 5e-7
# Limit on iterations.
MOST_ITERATIONS = 200
# Smaller factors D are replaced by 0, which the error includes; products of them would be denormal.
LEAST_FACTOR = 1e-20
# Entries of steps below it are neglected in single precision, where products of them would be denormal.
LEAST_ROUGH = 1e-9
# Traces whose vectors start the next one.
EARLIER = 3
# Eigenvalues that are kept, relative to the largest, and the largest number of them.
# With more states than `FEW`, only the largest is, except for moments.
KEPT, MOST_KEPT, FEW = 0.5, 4, 2000
# Degree of the polynomials of p successive v from which the first trace starts, and the least of any vector.
DEGREE = 2
FLOOR = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class _Split:
    """T = T~ + E, where T~ maps the span of X and the vectors v with Y^T v = 0 into themselves.

    Attributes:
        right: X, shape (n, k).
        left: Y, shape (n, k), with Y^T X near 1.
        matrix: of T~ on X, shape (k, k), up to `error`.
        error: bound on its error in the Frobenius norm.
        off: bound on |Y^T X - 1|.
        small: bound on |E|, in the Frobenius norm.
        powers: bound on the norms of all powers of T~ up to b.
        outer: bound on the norm of the projection on the vectors with Y^T v = 0.
        rest: bound on the Frobenius norm of the p-th power of T~ on these vectors.
    """

    right: Block
    left: Block
    matrix: Block
    error: float
    off: float
    small: float
    powers: float
    outer: float
    rest: float

    @property
    def spread(self) -> float:
        """|X| |Y|, in the Frobenius norm."""
        return float(np.linalg.norm(self.right) * np.linalg.norm(self.left))

    def power(self, exponent: int) -> tuple[npt.NDArray[np.clongdouble], float]:
        """A power of the matrix, and a bound on its error in the Frobenius norm."""
        rank = self.matrix.shape[0]
        # |H^j| is at most |Y'| |X| times the norm of T~^j, with Y'^T X = 1
        most = self.powers * self.spread / (1.0 - self.off)
        moved = exponent * most * (self.error + 32.0 * LONGDOUBLE_UNIT * (rank + 2.0) * most)
        factor = self.matrix.astype(np.clongdouble)
        found = np.eye(rank, dtype=np.clongdouble)
        # one factor after the other: every rounding is multiplied by a power of the matrix
        for _ in range(exponent):
            found = found @ factor
        return found, most * math.expm1(moved) if moved < 0.3 else math.inf

    def outside(self, exponent: int, order: int) -> float:
        """Bound on the Frobenius norm of a power of T~ on the vectors with Y^T v = 0; exponent >= order."""
        whole, left = divmod(exponent, order)
        return float(self.rest**whole * (self.powers * self.outer if left else 1.0))


class ArmaTraces:
    """Traces on one lattice. A trace starts from the vectors of earlier ones: exponents should be close."""

    def __init__(self, lattice: ArmaLattice) -> None:
        self.lattice, self.bins, self.order = lattice, lattice.gram.bins, lattice.gram.order
        self.count, self.size = lattice.nodes.size, lattice.size
        below, shares = lattice.places()
        self.weights, self.below = self._layout(lattice.steps), self._layout(below)
        self.shared = self.weights * self._layout(shares)
        density = np.exp(-lattice.halves).reshape(-1)
        self.norm = self._norm(density[:, None])
        # tr P^b of the step P without D is at most that without a window
        self.mass = 1.01 * math.exp(lattice.log_factor) / lattice.norm
        self.products, self.tall = 8.0 * UNIT * (self.count + 8.0), 8.0 * UNIT * (self.size + 8.0)
        line = lattice.nodes / np.max(np.abs(lattice.nodes))
        places = np.indices(lattice.halves.shape).reshape(self.order, -1)
        columns = [density]
        for _ in range(DEGREE):
            columns += [line[place] * column for place in places for column in columns]
        found = np.linalg.qr(np.stack(columns, axis=1))
        kept = np.abs(np.diag(found[1])) > 1e-6 * np.max(np.abs(found[1]))
        self.first = found[0][:, kept].astype(np.complex128)
        self.earlier: list[tuple[Block, Block]] = []

    def _layout(self, values: Block) -> Block:
        """Values of steps as one matrix (x_1, x_(p+1)) for each (x_2, ..., x_p)."""
        return np.ascontiguousarray(values.reshape(self.count, -1, self.count).transpose(1, 0, 2))

    def _apply(self, steps: Block, block: Block) -> Block:
        """T times columns, shape (n, m)."""
        moved = np.matmul(steps, block.reshape(steps.shape[0], self.count, -1))
        return np.asarray(moved.transpose(1, 0, 2)).reshape(self.size, -1)

    def _back(self, steps: Block, block: Block) -> Block:
        """The transpose of T times columns."""
        turned = block.reshape(self.count, steps.shape[0], -1).transpose(1, 0, 2)
        return np.asarray(np.matmul(steps.transpose(0, 2, 1), turned)).reshape(self.size, -1)

    def _norm(self, vector: FloatArray) -> float:
        """Bound on the norm of the step P without D, >= 1, and hence of every T with |T| <= P.

        For entries >= 0 and any v > 0, the square of the norm is at most max (P^T P v)_i / v_i.
        """
        square = math.inf
        vector = vector / np.max(vector) + FLOOR
        for _ in range(60):
            image = self._back(self.weights, self._apply(self.weights, vector))
            square = min(square, float(np.max(image / vector)))
            if square**self.bins < 1.1:
                break
            vector = image / np.max(image) + FLOOR
        return math.sqrt(max(square, 1.0)) * (1.0 + 16.0 * UNIT * (self.count + 8.0))

    def trace(self, defect: Complex, errors: FloatArray, goal: float = 0.0) -> tuple[complex, float]:
        """The trace of T^b with the weights of every step times D, and a bound on its error.

        Args:
            defect: 1 - D at all `sums` of the lattice; |D| is at most 1 up to rounding.
            errors: bounds on the errors of its entries.
            goal: an error at which fewer vectors are not tried.
        """
        values = 1.0 - defect
        values[np.abs(values) < LEAST_FACTOR] = 0.0
        steps = np.take(values, self.below)
        steps *= self.weights
        more = np.take(np.diff(values), self.below)
        more *= self.shared
        steps += more
        # errors of D, relative to the weights without it
        each = 1.01 * float(np.max(errors)) + 32.0 * UNIT + LEAST_FACTOR
        grown = math.exp(self.bins * each) * self.mass
        # where no vectors are found (a step that is 0 in float64), |T| <= P alone is a bound
        found, lost = 0j, 1.01 * grown
        with np.errstate(all="ignore"), contextlib.suppress(np.linalg.LinAlgError):
            for split in self._splits(steps, RESIDUAL if self.size > FEW else FEW_RESIDUAL, each):
                found, lost = min((found, lost), self._of(split), key=lambda pair: pair[1])
                if lost <= goal:
                    break
        return found, lost + 1.01 * self.bins * each * grown

    def ceiling(self, defect: FloatArray) -> float:
        """Bound on the trace for a real D in [0, 1]."""
        value, error = self.trace(defect.astype(np.complex128), np.zeros(defect.size))
        return max(value.real, 0.0) + error

    def moments(self) -> tuple[float, float, float]:
        """E 1 and E e^(y - V / 2) without white part over the window, and the relative error of both."""
        sizes = np.exp(self.lattice.sums())
        raised = self.weights * sizes[self.below]
        raised += self.shared * np.diff(sizes)[self.below]
        splits = list(self._splits(self.weights.astype(np.complex128), FINE_RESIDUAL, 0.0))
        mass, lost = min((self._of(split) for split in splits), key=lambda pair: pair[1])
        mean, error = min((self._mean(split, raised) for split in splits), key=lambda pair: pair[1])
        relative = max(lost / mass.real, error / mean) + 64.0 * UNIT * self.bins
        return mass.real * self.lattice.norm, mean * self.lattice.norm, 1.01 * relative

    def _mean(self, split: _Split, raised: FloatArray) -> tuple[float, float]:
        """The trace of P^(b-1) R for a step R with entries >= 0, and a bound on its error."""
        # tr P^(b-p) Q with Q = P^(p-1) R: a path of p steps is unique
        moved, square = self._apply(raised, split.right), self._apply(raised**2, np.ones((self.size, 1)))
        for _ in range(self.order - 1):
            moved, square = self._apply(self.weights, moved), self._apply(self.weights**2, square)
        exponent = self.bins - self.order
        power, lost = split.power(exponent)
        change = self.bins * split.powers * split.small
        if not change < 1.0:
            return 1.0, math.inf
        lost += float(np.linalg.norm(power)) * (self.tall + self.order * self.products + 2.0 * split.off)
        lost = lost * split.spread + split.powers * change * math.exp(change)
        lost += split.outside(exponent, self.order)
        mean = float(np.trace(power @ (split.left.T @ moved)).real)
        return mean, 1.01 * lost * math.sqrt(float(np.sum(square)))

    def _splits(self, steps: Complex, residual: float, each: float) -> Iterator[_Split]:
        """For all vectors that are kept, and for the first of them."""
        right, left = self._vectors(steps, residual)
        yield self._split(steps, (right, left), each)
        if right.shape[1] > 1:
            yield self._split(steps, self._leading(right, left, self._apply(steps, right), 1), each)

    def _vectors(self, steps: Complex, residual: float) -> tuple[Block, Block]:
        """X and Y for the largest eigenvalues, by iterations, first in single precision; any are valid."""
        starts = self.earlier or [(self.first, self.first)]
        right, left = (
            np.linalg.qr(np.hstack(one))[0].astype(np.complex64) for one in zip(*starts, strict=True)
        )
        rough = np.where(np.abs(steps) > LEAST_ROUGH, steps, 0.0).astype(np.complex64)
        most = MOST_KEPT if self.size <= FEW or residual == FINE_RESIDUAL else 1
        right, left = self._leading(right, left, self._apply(rough, right), most)
        for matrix, goal in ((rough, max(residual, ROUGH_RESIDUAL)), (steps, residual)):
            last = math.inf
            for _ in range(MOST_ITERATIONS):
                image, turned = self._apply(matrix, right), self._back(matrix, left)
                cross, form = left.T @ right, left.T @ image
                gap = float(np.linalg.norm(image - right @ np.linalg.solve(cross, form)))
                gap = max(gap, float(np.linalg.norm(turned - left @ np.linalg.solve(cross.T, form.T))))
                right, left = _orthonormal(image), _orthonormal(turned)
                if gap < goal or 0.9 * last < gap < 1e3 * goal:
                    break
                last = gap
        if right.size and np.all(np.isfinite(right)) and np.all(np.isfinite(left)):
            self.earlier = [(right, left), *self.earlier[: EARLIER - 1]]
        return right, left

    @staticmethod
    def _leading(right: Block, left: Block, image: Block, most: int) -> tuple[Block, Block]:
        """Approximate eigenvectors from two spaces, for eigenvalues that are not far below the largest."""
        cross = left.T @ right
        values, turns = np.linalg.eig(np.linalg.solve(cross, left.T @ image))
        order = np.argsort(-np.abs(values))
        count = min(int(np.sum(np.abs(values) > KEPT * np.max(np.abs(values)))), most)
        dual = np.linalg.solve(cross.T, np.linalg.inv(turns[:, order])[:count].T)
        return _orthonormal(right @ turns[:, order[:count]]), _orthonormal(left @ dual)

    def _split(self, steps: Complex, vectors: tuple[Block, Block], each: float) -> _Split:
        """Bounds for any X and Y; `each` is the excess of |T| over P, relative to P."""
        right = _orthonormal(vectors[0])
        left = np.linalg.solve(vectors[1].T @ right, vectors[1].T).T
        rank = right.shape[1]
        high, wide = float(np.linalg.norm(right)), float(np.linalg.norm(left))
        one, norm = self.norm * (1.0 + each), (self.norm * (1.0 + each)) ** self.bins
        off = float(np.linalg.norm(left.T @ right - np.eye(rank))) + self.tall * high * wide
        inverse = 1.01 / (1.0 - off) if off < 0.5 else math.inf
        image = self._apply(steps, right)
        matrix = left.T @ image
        missing = image - right @ matrix
        size = float(np.linalg.norm(matrix))
        rounding = (self.products + 8.0 * UNIT * (rank + 2.0)) * (one + size)
        after = float(np.linalg.norm(missing)) + rounding * high
        before = float(np.linalg.norm(self._back(steps, left) - left @ matrix.T)) + rounding * wide
        # E = (1 - X Y'^T) T X Y'^T + X Y'^T T (1 - X Y'^T) with Y'^T X = 1
        outer = 1.0 + high * wide * inverse
        small = 1.01 * outer * inverse * (after * wide + before * high)
        moved = self.bins * norm * small
        powers = norm * math.exp(moved) if moved < 1.0 else math.inf
        matrix = matrix + left.T @ missing
        error = 1.01 * inverse * wide * (rounding * high + (self.tall + off) * after) + 8.0 * UNIT * size
        split = _Split(right, left, matrix, error, off, small, powers, outer, 0.0)
        # |T^p - X H^p Y^T| in the Frobenius norm
        power, lost = split.power(self.order)
        turned = right @ power.astype(np.complex128)
        squares, crossed = np.abs(steps) ** 2, turned.conj()
        hilbert: Block = np.ones((self.size, 1))
        for _ in range(self.order):
            hilbert, crossed = self._back(squares, hilbert), self._back(steps, crossed)
        own = float(np.sum((turned.conj().T @ turned) * (left.conj().T @ left)).real)
        square = float(np.sum(hilbert).real)
        total = math.sqrt(square) + (norm + 2.0 * float(np.linalg.norm(power))) * high * wide
        apart = max(square - 2.0 * float(np.vdot(left, crossed).real) + own, 0.0)
        apart += 4.0 * (self.tall + self.order * self.products) * total**2
        rest = math.sqrt(apart) + self.order * powers * powers * small
        rest += inverse * high * wide * (lost + 2.0 * off * float(np.linalg.norm(power)))
        return dataclasses.replace(split, rest=1.01 * rest)

    def _of(self, split: _Split) -> tuple[complex, float]:
        """The trace of T^b, and a bound on its error without that of the entries of T."""
        power, lost = split.power(self.bins)
        moved = self.bins * split.powers * split.small
        if not moved < 1.0:
            return 0j, math.inf
        lost = math.sqrt(power.shape[0]) * lost + split.outside(self.bins, self.order)
        return complex(np.trace(power)), 1.01 * (lost + 0.5 * moved**2 * math.exp(moved))


def _orthonormal(block: Block) -> Block:
    """An orthonormal basis of the span of columns."""
    if block.shape[1] == 1:
        return np.asarray(block / np.linalg.norm(block))
    return np.asarray(np.linalg.qr(block)[0])
