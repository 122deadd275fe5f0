"""What a strategy is made of, and what its vectors cost to form: read off its fields alone.

Nothing of length n is formed to find out. Costs are on the high side: measured times of one core, times about
three.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

from dpmech.numerics import Work

if TYPE_CHECKING:
    from dpmech.mechanism.strategies.base import Strategy

_NUMBER = 8.0
# Beyond this many multiplications a series is inverted by FFT; beyond so many bands errors are summed column
# by column.
_DIRECT, _SHORT = 400_000_000, 512


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes that are read off the fields of a strategy: nothing of length n is formed to find them.

    Args:
        n: number of steps.
        bands: coefficients that one of C and C^-1 is given by; 0 where both have a closed form.
        buffers: exponentials.
        inverse_bands: of C^-1, None where it is full.
        scaled: how often its columns are scaled.
        dense: whether it is a matrix without structure.
        dense_prefix: whether its leading blocks are, though it is not.
    """

    n: int
    bands: int = 0
    buffers: int = 0
    inverse_bands: int | None = None
    scaled: int = 0
    dense: bool = False
    dense_prefix: bool = False


def form_work(strategy: "Strategy") -> Work:
    """Of the first columns of C and C^-1, or of a matrix."""
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
        vectors += 24.0
    return Work(seconds, _NUMBER * vectors * n)


def decoder_work(strategy: "Strategy") -> Work:
    """Of the errors that a certificate states (RMSE and MaxSE), the vectors of the strategy included."""
    own, formed = strategy.shape, form_work(strategy)
    n = float(own.n)
    if own.dense:
        return formed + Work(2e-9 * n**3 + 1e-7 * n * n, 6.0 * _NUMBER * n * n)
    if own.scaled == 0:
        return formed + Work(4e-7 * n, 24.0 * _NUMBER * n)
    if own.inverse_bands is not None and own.inverse_bands <= _SHORT:
        return formed + Work(4e-7 * n + 6e-8 * n * own.inverse_bands, 24.0 * _NUMBER * n)
    return formed + Work(4e-8 * n * n * (1.0 + math.log2(n)), 512.0 * _NUMBER * n)
