r"""Balls-in-Bins with any Gram matrix from below, without sampling: independent blocks of bins.

Delta increases along K - K' wherever that difference is copositive (docs/balls_in_bins_proof.md). Here K' is
a 1 1^T on each block of g successive bins, and 0 elsewhere: its pair is that of independent bins, one for
each block, whose law is known from both sides. Between blocks K is >= 0; inside, a is at most the minimum of
e^T K e over e >= 0 with sum 1. K' is 0 as well at the last bins, which have smaller entries: their terms of
the likelihood ratio are then 1.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import scipy

from dpmech.engines.gaussian import gaussian_delta, gaussian_epsilon
from dpmech.engines.gaussian_mixture import ORDERS, log_tail_factor
from dpmech.engines.independent_sum.direction import Direction
from dpmech.exceptions import NumericalError, WorkLimitError
from dpmech.numerics import UNIT, FloatArray, quotient_down, quotient_up, root_down

# Sizes of blocks, and numbers of bins that are left out, that are compared.
_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
_LEFT = (0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Relative: far above the rounding of the eigenvalues of a block, far below what would show in eps.
_MARGIN = 1e-6
# Distance of the bounds on the law of independent bins, as a relative change of sigma.
_TOLERANCE = 1e-3
# Far above the rounding of the few operations that follow that law.
_ROUNDING = 1e-14
_LARGEST_EPS = 500.0
# Roots of a / sigma^2 for which laws of sums are known to be found; beyond the last one noise is added.
_LEAST_SCALE, _LARGEST_SCALE = 1e-3, 8.0


def block_entry(entries: FloatArray) -> float:
    """A lower bound on e^T A e over e >= 0 with sum 1, for A with at least these entries at each distance.

    Of all e with sum 1 the least is 1 / (1^T A^-1 1). A slightly smaller a is used where A - a 1 1^T is
    found to be positive semidefinite, and the smallest entry otherwise.

    Args:
        entries: at the distances 0, 1, ..., g - 1, >= 0, shape (g,).

    Examples:
        >>> import numpy as np
        >>> from dpmech.engines.independent_sum.blocks import block_entry
        >>> round(block_entry(np.array([1.0, 0.5])), 5)
        0.75
    """
    least, size = float(entries.min()), entries.size
    if size == 1:
        return least
    matrix = scipy.linalg.toeplitz(entries)
    with contextlib.suppress(np.linalg.LinAlgError):
        found = (1.0 - _MARGIN) / float(np.sum(np.linalg.solve(matrix, np.ones(size))))
        # Eigenvalues have errors of a few g roundings of the norm, which is at most that of all entries.
        error = 64.0 * size * UNIT * float(np.linalg.norm(matrix) + size * abs(found))
        if found > least and np.linalg.eigvalsh(matrix - found)[0] > error:
            return found
    return least


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Independent bins, one for each block.

    Args:
        count: number of blocks, >= 1.
        left: the share of the bins that are in none, in [0, 1).
        scale: root of a at sigma 1, rounded down, > 0.
    """

    count: int
    left: float
    scale: float

    def height(self, sigma: float, eps: float) -> float:
        """Log of a moment bound on delta, by which blocks are compared: it ranks nearly as delta does."""
        orders = np.array(ORDERS, dtype=np.float64)
        others = math.log1p(-1.0 / self.count) if self.count > 1 else -math.inf
        means = np.logaddexp(0.5 * orders * (self.scale / sigma) ** 2 - math.log(self.count), others)
        tails = np.array(_tails(self._inner(eps)))
        return math.log1p(-self.left) + float(np.min((orders - 1.0) * means + tails))

    def delta(self, sigma: float, eps: float) -> float:
        """A lower bound on delta in direction REMOVE.

        The likelihood ratio is p + (1 - p) r with p = `left` and r that of the blocks.
        """
        inner = self._inner(eps) * (1.0 + _ROUNDING) + _ROUNDING
        if self.count == 1:
            found = gaussian_delta(quotient_up(sigma, self.scale), inner)[0]
        else:
            found = self._direction(sigma).delta(inner, _TOLERANCE)[0]
        return found * (1.0 - self.left) * (1.0 - _ROUNDING)

    def epsilon(self, sigma: float, delta: float) -> float:
        """A lower bound on eps in direction REMOVE."""
        inner_delta = delta / (1.0 - self.left) * (1.0 + _ROUNDING)
        if inner_delta >= 1.0:
            return 0.0
        if self.count == 1:
            inner = gaussian_epsilon(quotient_up(sigma, self.scale), inner_delta, safe=False)
        else:
            direction = self._direction(sigma)
            guess = direction.rough_epsilon(math.log(inner_delta))
            inner = direction.epsilon(inner_delta, guess, _TOLERANCE)[0] if guess > 0.0 else 0.0
        found = inner + math.log1p(self.left * math.expm1(-inner))
        return max(0.0, found * (1.0 - _ROUNDING) - _ROUNDING)

    def _inner(self, eps: float) -> float:
        """The level of r where p + (1 - p) r is e^eps."""
        return eps + math.log1p(-self.left * math.exp(-eps)) - math.log1p(-self.left)

    def _direction(self, sigma: float) -> Direction:
        scale = min(quotient_down(self.scale, sigma), _LARGEST_SCALE)
        if scale < _LEAST_SCALE:
            raise NumericalError(f"the law of a sum of terms of scale {scale!r} is not resolved")
        return Direction(self.count, scale, scale, remove=True)


@functools.lru_cache(maxsize=256)
def _tails(eps: float) -> tuple[float, ...]:
    return tuple(log_tail_factor(order, eps) for order in ORDERS)


@dataclasses.dataclass(frozen=True)
class BlockBound:
    """Lower bounds on delta and eps of Balls-in-Bins.

    Args:
        bins: b >= 2.
        read: reads the smallest Gram entries at sigma 1: from the number of distances, and how many of the
            last bins are left out; see `lower_profiles`.
    """

    bins: int
    read: Callable[[int, Sequence[int]], FloatArray]

    def delta(self, sigma: float, eps: float) -> float:
        """A lower bound on delta, in [0, 1]; 0 where none is found.

        Args:
            sigma: > 0.
            eps: >= 0.
        """
        return self._asked(sigma, eps, lambda blocks: blocks.delta(sigma, eps))

    def epsilon(self, sigma: float, delta: float, near: float) -> float:
        """A lower bound on eps, >= 0; 0 where none is found.

        Args:
            sigma: > 0.
            delta: in (0, 1).
            near: an eps that is close, >= 0, for which the blocks are chosen.
        """
        return self._asked(sigma, near, lambda blocks: blocks.epsilon(sigma, delta))

    def _asked(self, sigma: float, eps: float, asked: Callable[[_Blocks], float]) -> float:
        # An upper end is not lost because the lower one takes too much work, or leaves float64.
        with contextlib.suppress(ArithmeticError, WorkLimitError):
            if eps <= _LARGEST_EPS and self._blocks:
                return asked(max(self._blocks, key=lambda blocks: blocks.height(sigma, eps)))
        return 0.0

    @cached_property
    def _blocks(self) -> list[_Blocks]:
        lefts = [left for left in _LEFT if 2 * left < self.bins]
        profiles = self.read(min(self.bins, _SIZES[-1]), lefts)
        found = []
        for left, entries in zip(lefts, profiles, strict=True):
            bins = self.bins - left
            for size in sorted({min(size, bins) for size in _SIZES}):
                entry = block_entry(entries[:size])
                if entry > 0.0:
                    found.append(_Blocks(-(-bins // size), left / self.bins, root_down(entry)))
        return found
