"""The structure of a strategy, and the cost of forming its vectors, derived from its fields only.

Nothing of length n is formed. Costs are overestimates: measured times on one core, times about
three.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

from dpmech.numerics import Work

if TYPE_CHECKING:
    from dpmech.mechanism.strategies.base import Strategy

_NUMBER = 8.0
# Above this number of multiplications a series is inverted by FFT.
_DIRECT = 400_000_000


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes derived from the fields of a strategy; nothing of length n is formed.

    Args:
        n: number of steps.
        bands: number of coefficients that define C or C^-1; 0 if both have a closed form.
        buffers: number of exponentials.
        inverse_bands: number of bands of C^-1, None if it is full.
        scaled: number of times its columns are scaled.
        dense: whether it is an unstructured matrix.
        dense_prefix: whether its leading blocks are unstructured although it is not.
    """

    n: int
    bands: int = 0
    buffers: int = 0
    inverse_bands: int | None = None
    scaled: int = 0
    dense: bool = False
    dense_prefix: bool = False


def form_work(strategy: "Strategy") -> Work:
    """Work to form the first columns of C and C^-1, or the matrix."""
    own = strategy.shape
    n = float(own.n)
    if own.dense:
        return Work(1e-8 * n * n + 5e-10 * n**3, 6.0 * _NUMBER * n * n)
    seconds = n * (3e-7 + 1.5e-7 * own.buffers + 2e-9 * own.buffers**2 + 5e-8 * own.scaled)
    vectors = 24.0 + 3.0 * own.buffers + 2.0 * own.scaled
    if own.bands * n <= _DIRECT:
        seconds += 3e-8 * own.bands * n
    else:
        seconds += 9e-7 * n * math.log2(n)
        vectors += 32.0
    return Work(seconds, _NUMBER * vectors * n)


def decoder_work(strategy: "Strategy") -> Work:
    """Work to form the errors of a certificate (RMSE and MaxSE), including the strategy's vectors."""
    own, formed = strategy.shape, form_work(strategy)
    n = float(own.n)
    if own.dense:
        return formed + Work(2e-9 * n**3 + 1e-7 * n * n, 6.0 * _NUMBER * n * n)
    if own.scaled == 0:
        return formed + Work(4e-7 * n, 24.0 * _NUMBER * n)
    lags = n if own.inverse_bands is None else float(own.inverse_bands)
    return formed + Work(4e-7 * n + 6e-9 * lags * (n + 200.0), 24.0 * _NUMBER * n)
