"""Gram matrices of a ring with several exponentials: white * I + sum_j a_j ring(lam_j) + constant * 1 1^T."""

import dataclasses

import numpy as np

from dpmech.accounting.balls_in_bins.ring.gram import ring_shape
from dpmech.guards import check_integer, check_real
from dpmech.numerics import FloatArray

__all__ = ["MixtureGram"]


@dataclasses.dataclass(frozen=True)
class MixtureGram:
    """A b x b covariance, already divided by sigma^2, that depends on the distance round a ring only.

    Every part is a covariance, hence so is the sum.

    Args:
        bins: b >= 2.
        white: variance of what is independent from bin to bin, > 0.
        parts: (amplitude, decay) of each exponential: its variance, > 0, and its correlation from bin to bin
            on an infinite line, in (0, 1); at most two.
        constant: variance of what all bins share, >= 0.

    Raises:
        InvalidParameterError: if a value is outside its range.

    Examples:
        >>> from dpmech.accounting.balls_in_bins.ring.mixture_gram import MixtureGram
        >>> MixtureGram(4, 0.5, ((1.0, 0.5),), 0.25).profile().round(4).tolist()
        [1.75, 0.8382, 0.7206]
    """

    bins: int
    white: float
    parts: tuple[tuple[float, float], ...]
    constant: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=2))
        object.__setattr__(self, "white", check_real("white", self.white, minimum=0.0, open_minimum=True))
        object.__setattr__(self, "constant", check_real("constant", self.constant, minimum=0.0))
        checked = []
        for amplitude, decay in self.parts:
            checked.append(
                (
                    check_real("amplitude", amplitude, minimum=0.0, open_minimum=True),
                    check_real(
                        "decay", decay, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True
                    ),
                )
            )
        check_integer("len(parts)", len(checked), minimum=0, maximum=2)
        object.__setattr__(self, "parts", tuple(checked))

    def profile(self) -> FloatArray:
        """Entries at ring distances 0, 1, ..., b // 2; shape (b // 2 + 1,)."""
        values = np.full(self.bins // 2 + 1, self.constant)
        for amplitude, decay in self.parts:
            values += amplitude * ring_shape(self.bins, decay)
        values[0] += self.white
        return values

    def scaled(self, factor: float) -> "MixtureGram":
        """Every part times a positive factor: a change of sigma from s to t is the factor (s / t)^2."""
        factor = check_real("factor", factor, minimum=0.0, open_minimum=True)
        parts = tuple((amplitude * factor, decay) for amplitude, decay in self.parts)
        return MixtureGram(self.bins, self.white * factor, parts, self.constant * factor)

    @property
    def exponential(self) -> float:
        """The variance of all exponentials together."""
        return sum(amplitude for amplitude, _ in self.parts)

    @property
    def mean(self) -> float:
        """1^T K 1 / b^2, rounded up."""
        total = self.white / self.bins + self.constant
        for amplitude, decay in self.parts:
            # the sum of a geometric series, twice: q^2 / (1 - lam)^2 with q^2 as in `lattice`
            far = decay**self.bins
            total += amplitude * (1.0 + decay) / (1.0 - decay) * (1.0 - far) / (1.0 + far) / self.bins
        return total * (1.0 + 1e-12)

    @property
    def diagonal(self) -> float:
        """The entry at distance 0."""
        return self.white + self.exponential + self.constant
