r"""Lower-triangular factors whose off-diagonal part has low rank, as a recursion over groups of columns.

Cut the columns of a lower-triangular F into groups, `x = (x_1, ..., x_P)`. Where the block of F below and to
the left of every cut has low rank, what later rows need of the groups before is a short state:

    [s_p, y_p] = [s_(p-1), x_p] G_p,    y = F x,

and, as every step is linear, the transpose runs backwards through the same tables,
`[t_(p-1), z_p] = [t_p, v_p] G_p^T`, `z = F^T v`. (That is the sequentially semiseparable form of F.) A
product then takes about b (c + 2 r) multiplications in place of b^2, c the size of a group and r that of a
state. Strategies with a short recursion, and those whose columns are nearly sums of a few exponentials, have
r of 2 to 30.

References:
    Chandrasekaran, Dewilde, Gu, Pals, Sun, van der Veen and White 2005, "Some fast algorithms for
    sequentially semiseparable representations".
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np

from dpmech.numerics import UNIT, FloatArray

__all__ = ["SequentialFactor"]

GROUP = 48
# Fewer columns are no worth a recursion; nor is one that saves less.
FEWEST = 128
WORTH = 0.5
# Singular values below so many roundings of the largest row, times sqrt(b), are those of rounding.
ROUNDINGS = 4.0
BATCH_ENTRIES = 2**16


@dataclasses.dataclass(frozen=True, eq=False)
class SequentialFactor:
    """A lower-triangular b x b matrix F as a recursion.

    Attributes:
        cuts: where the groups end, from 0 to b, shape (P + 1,).
        tables: G_p, shape (r_(p-1) + c_p, r_p + c_p), r_0 = r_P = 0.
    """

    cuts: tuple[int, ...]
    tables: tuple[FloatArray, ...]

    @classmethod
    def of(cls, factor: FloatArray) -> "SequentialFactor | None":
        """The recursion of a lower-triangular F, up to rounding; None where it would save little.

        What is left out of every block below a cut has a spectral norm of at most
        `ROUNDINGS sqrt(b)` roundings of the largest row of F. No guarantee rests on that: whoever uses the
        recursion compares what it gives with F.
        """
        bins = factor.shape[0]
        if bins < FEWEST:
            return None
        groups = math.ceil(bins / GROUP)
        cuts = tuple(round(bins * number / groups) for number in range(groups + 1))
        least = ROUNDINGS * UNIT * math.sqrt(bins) * float(np.max(np.linalg.norm(factor, axis=1)))
        budget = WORTH * bins**2
        tables = []
        # Rows from the last cut on, in the coordinates of the state.
        seen = np.zeros((bins, 0))
        for start, stop in itertools.pairwise(cuts):
            size = stop - start
            block = np.concatenate([seen, factor[start:, start:stop]], axis=1)
            shown, below = block[:size].T, block[size:]
            basis = np.zeros((block.shape[1], 0))
            if below.size:
                _, values, vectors = np.linalg.svd(below, full_matrices=False)
                basis = vectors[values > least].T
            seen = below @ basis
            tables.append(np.ascontiguousarray(np.concatenate([basis, shown], axis=1)))
            budget -= tables[-1].size
            if budget < 0.0:
                return None
        return cls(cuts, tuple(tables))

    @property
    def bins(self) -> int:
        """The size b of the matrix."""
        return self.cuts[-1]

    @property
    def rounding(self) -> float:
        """How far a component of F x may be off, relative to the largest row norm of F times |x|.

        Group p multiplies k_p = r_(p-1) + c_p numbers with G_p. States are coordinates in orthonormal bases,
        so that |s_p| <= |x|, and what F x needs of G_p has rows of at most the norm of those of F. Each of
        the at most k_p + r_p results is off by k_p + 2 roundings of |x| times a norm, and later groups pass
        an error on unchanged in norm. The same holds backwards, for the transpose. Twice that.
        """
        parts = (float(max(table.shape)) for table in self.tables)
        return 2.0 * UNIT * math.fsum((part + 2.0) * math.sqrt(part) for part in parts)

    def applied(self, rows: FloatArray) -> FloatArray:
        """F x for every row x of an array of shape (m, b), which it overwrites and returns."""
        for part in _batches(rows):
            state = np.empty((part.shape[0], 0))
            for start, stop, table in zip(self.cuts[:-1], self.cuts[1:], self.tables, strict=True):
                found = np.concatenate([state, part[:, start:stop]], axis=1) @ table
                width = table.shape[1] - (stop - start)
                state, part[:, start:stop] = found[:, :width], found[:, width:]
        return rows

    def transpose_applied(self, rows: FloatArray) -> FloatArray:
        """F^T v for every row v of an array of shape (m, b), which it overwrites and returns."""
        groups = tuple(zip(self.cuts[:-1], self.cuts[1:], self.tables, strict=True))
        for part in _batches(rows):
            state = np.empty((part.shape[0], 0))
            for start, stop, table in reversed(groups):
                found = np.concatenate([state, part[:, start:stop]], axis=1) @ table.T
                width = table.shape[0] - (stop - start)
                state, part[:, start:stop] = found[:, :width], found[:, width:]
        return rows


def _batches(rows: FloatArray) -> Iterator[FloatArray]:
    """A few rows at a time, which stay in the cache."""
    step = max(1, BATCH_ENTRIES // rows.shape[1])
    for start in range(0, len(rows), step):
        yield rows[start : start + step]
