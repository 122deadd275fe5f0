r"""The mixtures that samples come from: parts with known densities, and the weight of a sample.

A proposal draws (y, i), y the statistics of `gram` and i a tuple of bins, from a mixture whose parts all
have known densities D_j against `Q(dy) kappa(i|y)` (see `tuples.py`). The weight of a sample is
`f(y) / sum_j alpha_j D_j`, with `f = (e^L - e^eps)_+` for REMOVE and `(1 - e^(eps + L))_+` for ADD; its
mean is the delta of that direction, exactly, whatever the alpha_j.
"""

import abc
from typing import Self

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.numerics import FloatArray, IntArray

__all__ = ["Proposal", "chosen_parts"]


class Proposal(abc.ABC):
    """A mixture with known part densities; immutable and picklable.

    Attributes:
        gram: the Gram matrix.
        eps: the privacy loss level, at least 0.
    """

    gram: BinGram
    eps: float

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """The parts, in the order of the weights."""

    @property
    @abc.abstractmethod
    def weights(self) -> FloatArray:
        """The probabilities alpha of the parts, shape (J,)."""

    @property
    @abc.abstractmethod
    def log_weight_bound(self) -> float:
        """Log of a proved upper bound on every weight."""

    @abc.abstractmethod
    def reweighted(self, weights: FloatArray) -> Self:
        """The same parts with other probabilities."""

    @abc.abstractmethod
    def block(self, seed: np.random.SeedSequence, count: int) -> tuple[FloatArray, FloatArray]:
        """`count` independent samples: log f, shape (count,), and log D, shape (count, J).

        Where f = 0, log f is -inf and log D is 0.
        """

    def log_weights(self, log_payoffs: FloatArray, log_densities: FloatArray) -> FloatArray:
        """Logs of the weights f / sum_j alpha_j D_j, shape (m,)."""
        return log_payoffs - scipy.special.logsumexp(log_densities, axis=1, b=self.weights)


def chosen_parts(weights: FloatArray, uniforms: FloatArray) -> IntArray:
    """The part that draws each sample, by inversion, shape (m,), from uniforms of that shape."""
    bounds = np.cumsum(weights)
    # uniform * sum may round up to the sum
    parts: IntArray = np.minimum(
        np.searchsorted(bounds, uniforms * bounds[-1], side="right"), bounds.size - 1
    )
    return parts
