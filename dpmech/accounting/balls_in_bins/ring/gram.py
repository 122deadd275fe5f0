"""The Gram matrix of a stationary ring: white * I + amplitude * ring(decay) + constant * 1 1^T."""

import dataclasses

import numpy as np
import numpy.typing as npt

from dpmech.guards import check_integer, check_real

__all__ = ["RingGram"]


@dataclasses.dataclass(frozen=True)
class RingGram:
    """A b x b covariance, already divided by sigma^2, that depends on the distance round a ring only.

    At distance d = min(|i - l|, b - |i - l|) its entry is
    `white [d = 0] + amplitude (decay^d + decay^(b - d)) / (1 + decay^b) + constant`, so `amplitude` is what
    the exponential part has on the diagonal. Every part is a covariance, hence so is the sum.

    Args:
        bins: b >= 1.
        white: variance of what is independent from bin to bin, >= 0.
        amplitude: variance of the exponential part, >= 0.
        decay: its correlation from bin to bin on an infinite line, in [0, 1).
        constant: variance of what all bins share, >= 0.

    Raises:
        InvalidParameterError: if a value is outside its range.

    Examples:
        >>> from dpmech.accounting.balls_in_bins.ring.gram import RingGram
        >>> RingGram(bins=4, white=0.0, amplitude=1.0, decay=0.5, constant=0.25).profile().round(4).tolist()
        [1.25, 0.8382, 0.7206]
    """

    bins: int
    white: float
    amplitude: float
    decay: float
    constant: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", check_integer("bins", self.bins, minimum=1))
        for name in ("white", "amplitude", "constant"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), minimum=0.0))
        decay = check_real("decay", self.decay, minimum=0.0, maximum=1.0, open_maximum=True)
        object.__setattr__(self, "decay", decay)

    def profile(self) -> npt.NDArray[np.float64]:
        """Entries at ring distances 0, 1, ..., b // 2; shape (b // 2 + 1,)."""
        values = self.amplitude * ring_shape(self.bins, self.decay) + self.constant
        values[0] += self.white
        return values

    def scaled(self, factor: float) -> "RingGram":
        """Every part times a positive factor: a change of sigma from s to t is the factor (s / t)^2.

        Raises:
            InvalidParameterError: if the factor is not positive.
        """
        factor = check_real("factor", factor, minimum=0.0, open_minimum=True)
        return dataclasses.replace(
            self,
            white=self.white * factor,
            amplitude=self.amplitude * factor,
            constant=self.constant * factor,
        )

    @property
    def diagonal(self) -> float:
        """The entry at distance 0."""
        return self.white + self.amplitude + self.constant


def ring_shape(bins: int, decay: float) -> npt.NDArray[np.float64]:
    """(decay^d + decay^(b - d)) / (1 + decay^b) for d = 0..b // 2; 1 at d = 0."""
    distance = np.arange(bins // 2 + 1, dtype=np.float64)
    shape = (decay**distance + decay ** (bins - distance)) / (1.0 + decay**bins)
    shape[0] = 1.0
    return np.asarray(shape)
