r"""The Gram matrix of a user with several examples, in which each tuple of bins acts as one bin.

The m examples of a user are in bins `i = (i_1, ..., i_m)`, with equal probability for all b^m tuples, and the
user adds `m_{i_1} + ... + m_{i_m}`. So the pair is that of Balls-in-Bins with b^m bins and the Gram matrix

    K'[i, l] = sum over j and k of K[i_j, l_k],      y_i = y_{i_1} + ... + y_{i_m}.

It has the same rank as K: draws, products and columns are computed for K and expanded to the tuples, in O(1)
time per entry.
"""

import math
from typing import final

import numpy as np

from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram, lower_gram
from dpmech.engines.gaussian_mixture.gram import BinGram, register_family
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.guards import check_integer
from dpmech.mechanism import Strategy
from dpmech.numerics import UNIT, FloatArray, IntArray

register_family("users", "Balls-in-Bins", "{bins} bins, {examples} examples of a user")

# Limit on the coordinates of a draw, and on the rows of the table for drawing tuples of tuples.
MOST_TUPLES = 10_000
_BLOCK_ENTRIES = 2**21


@final
class UserGram(BinGram):
    """The Gram matrix of all tuples of m bins, in lexicographic order.

    Args:
        base: K, of the b bins.
        examples: m >= 1.
    """

    def __init__(self, base: BinGram, examples: int) -> None:
        self.base, self.examples = base, check_integer("examples", examples, minimum=1)
        tuples = self._tuples(np.arange(base.bins**self.examples))
        self._diagonal: FloatArray = base.tuple_fields(tuples).sum(axis=1)
        self._scale = 1.0

    def __repr__(self) -> str:
        return f"UserGram({self.base!r}, examples={self.examples})"

    @property
    def bins(self) -> int:
        """The number of tuples, b^m."""
        return int(self._diagonal.size)

    @property
    def diagonal(self) -> FloatArray:
        """The diagonal of K', shape (b^m,)."""
        return self._scale * self._diagonal

    @property
    def family(self) -> str:
        """Prefix of the accounting method names."""
        return "users"

    @property
    def facts(self) -> dict[str, int]:
        """The number of bins, and of examples per user."""
        return {"bins": self.base.bins, "examples": self.examples}

    @property
    def words(self) -> str:
        """Description of the coordinates of a draw, for messages."""
        return f"{self.bins} tuples of bins"

    @property
    def cheap_columns(self) -> bool:
        """Whether the columns of K are cheap."""
        return self.base.cheap_columns

    @property
    def product_size(self) -> int:
        """That of K: a draw for the bins is expanded to the tuples."""
        return self.base.bins

    @property
    def entry_seconds(self) -> float:
        """Most coordinates are computed by additions: 4e-8 was measured with 4096 tuples."""
        return 1e-7

    @property
    def entry_rounding(self) -> float:
        """Rounding of an entry, a sum of m^2 entries of K."""
        return self.base.entry_rounding + 1.01 * (self.examples**2 + 4.0) * UNIT

    def product_rounding(self, total: float, norm: float) -> float:
        """Error of a product with K for an m times larger sum, added over the tuples and over m bins."""
        del norm
        gathered = self.examples * total
        own = 1.01 * (self.bins + 2.0 * self.examples + 4.0) * UNIT * float(self.diagonal.max()) * total
        return self.examples * self.base.product_rounding(gathered, gathered) + own

    @property
    def row_factors(self) -> int:
        """One factor per example."""
        return self.examples

    def matmat(self, values: FloatArray) -> FloatArray:
        """K' @ values, for values of shape (b^m, k)."""
        shaped = values.T.reshape((values.shape[1],) + (self.base.bins,) * self.examples)
        axes = range(1, self.examples + 1)
        gathered = np.zeros((values.shape[1], self.base.bins))
        for kept in axes:
            gathered += shaped.sum(axis=tuple(axis for axis in axes if axis != kept))
        return self._spread(self.base.matmat(gathered.T).T).T

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draws of N(0, K'), shape (count, b^m)."""
        return self._spread(self.base.sample(rng, count))

    def scaled(self, factor: float) -> "UserGram":
        """`factor * K'`."""
        out = object.__new__(UserGram)
        out.__dict__.update(self.__dict__)
        out.base, out._scale = self.base.scaled(factor), self._scale * factor
        return out

    def columns(self, indices: IntArray) -> FloatArray:
        """Columns of K' as rows, shape (len(indices), b^m)."""
        return self._spread(self.base.column_sums(self._tuples(indices)))

    def column_sums(self, indices: IntArray) -> FloatArray:
        """Sums of columns, shape (k, b^m), for tuples of shape (k, q)."""
        return self._spread(self._sums(self._tuples(indices)))

    def tuple_fields(self, indices: IntArray) -> FloatArray:
        """Sums of K' over each row of tuples, shape (k, q)."""
        tuples = self._tuples(indices)
        sums = self._sums(tuples)
        rows = np.arange(len(indices))[:, None, None]
        fields: FloatArray = sums[rows, tuples].sum(axis=2)
        return fields

    def log_row_means(self, slope: float, offsets: FloatArray, rows: IntArray) -> FloatArray:
        """Log means of exponentials along rows; without offsets the mean over tuples is a power."""
        if offsets.any():
            return super().log_row_means(slope, offsets, rows)
        out = np.empty(rows.size)
        step = max(1, _BLOCK_ENTRIES // self.base.bins)
        for start in range(0, rows.size, step):
            part = slope * self.base.column_sums(self._tuples(rows[start : start + step]))
            top = part.max(axis=1)
            np.exp(part - top[:, None], out=part)
            out[start : start + step] = self.examples * (top + np.log(part.mean(axis=1)))
        return out

    def _sums(self, tuples: IntArray) -> FloatArray:
        """Sums of columns of K, shape (k, b), for the bins of tuples, shape (k, q, m)."""
        count, width, examples = tuples.shape
        return self.base.column_sums(tuples.reshape(count, width * examples))

    def _tuples(self, indices: IntArray) -> IntArray:
        """The bins of tuples given by index, with an additional axis of length m."""
        found: IntArray = np.stack(np.unravel_index(indices, (self.base.bins,) * self.examples), axis=-1)
        return found

    def _spread(self, values: FloatArray) -> FloatArray:
        """Sums over the bins of each tuple, by row: (k, b) to (k, b^m)."""
        out = values
        for joined in range(2, self.examples + 1):
            sums = out[:, :, None] + values[:, None, :]
            out = sums.reshape(len(values), self.base.bins**joined)
        return out


def tuple_gram(strategy: Strategy, bins: int, examples: int) -> UserGram:
    """The Gram matrix of the tuples at sigma 1, rounded so that no entry is too small.

    An entry is a sum of m^2 entries of K, with one rounding per addition, and K / sigma^2 is rounded twice
    more; the entries of K are raised by that much beforehand.

    Args:
        strategy: C >= 0 over n steps.
        bins: b, in [1, n]; the last epoch may be cut short.
        examples: m >= 1.

    Raises:
        UnsupportedCombinationError: as `bin_gram`; for more than 10,000 tuples.
    """
    if examples * math.log(bins) > math.log(MOST_TUPLES) + 1e-9:
        raise UnsupportedCombinationError(
            f"{examples} examples of a user can be in {bins} bins in {bins}^{examples} ways, and at most "
            f"{MOST_TUPLES} are supported",
            supported=f"bins ** max_examples_per_user <= {MOST_TUPLES}, or one bin for all examples of "
            "a user: the unit user without max_examples_per_user (dpmech.optim.UserDataset)",
        )
    return UserGram(bin_gram(strategy, bins).scaled(1.0 + _slack(examples)), examples)


def lower_tuple_gram(strategy: Strategy, bins: int, examples: int) -> UserGram | None:
    """A lower bound on that matrix, for lower bounds on delta; None if it is too costly."""
    below = lower_gram(strategy, bins)
    return None if below is None else UserGram(below.scaled(1.0 - _slack(examples)), examples)


def _slack(examples: int) -> float:
    return 4.0 * (examples**2 + 4) * UNIT
