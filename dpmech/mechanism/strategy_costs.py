"""What the vectors of a strategy cost, from its fields alone: nothing of length n is formed to find out.

On the high side: measured times of one core, times about three.
"""

import dataclasses
import math

import numpy as np

from dpmech.mechanism.strategies import Strategy
from dpmech.numerics import Work

__all__ = ["decoder_work", "form_work"]

_NUMBER = 8.0
# Beyond this many multiplications a series is inverted by FFT; beyond so many bands errors are summed column
# by column.
_DIRECT, _SHORT = 400_000_000, 512


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What a strategy is made of.

    Args:
        n: number of steps.
        bands: coefficients that one of C and C^-1 is given by; 0 where both have a closed form.
        buffers: exponentials.
        inverse_bands: of C^-1, None where it is full.
        scaled: how often its columns are scaled to norm 1.
        dense: whether it is a matrix without structure.
    """

    n: int
    bands: int = 0
    buffers: int = 0
    inverse_bands: int | None = None
    scaled: int = 0
    dense: bool = False


def _shape(strategy: Strategy) -> _Shape:
    inner, scaled = strategy, 0
    while isinstance(below := getattr(inner, "strategy", None), Strategy):
        inner, scaled = below, scaled + 1
    n, kind = inner.n, type(inner).__name__
    coefs = int(np.size(getattr(inner, "coefs", ())))
    found = {
        "Identity": lambda: _Shape(n, inverse_bands=1),
        "Diagonal": lambda: _Shape(n, inverse_bands=1, scaled=1),
        "LambdaCGD": lambda: _Shape(n, inverse_bands=2),
        "SquareRoot": lambda: _Shape(
            n, bands=inner.bands or 0, inverse_bands=1 if inner.bands == 1 else None
        ),
        "InverseSquareRoot": lambda: _Shape(
            n, bands=inner.inverse_bands or n, inverse_bands=inner.inverse_bands
        ),
        "BandedToeplitz": lambda: _Shape(n, bands=coefs),
        "BandedInverse": lambda: _Shape(n, bands=coefs, inverse_bands=coefs),
        "BLT": lambda: _Shape(n, buffers=int(np.size(getattr(inner, "decays", ())))),
    }.get(kind, lambda: _Shape(n, dense=True))()
    return dataclasses.replace(found, scaled=found.scaled + scaled)


def form_work(strategy: Strategy) -> Work:
    """Of the first columns of C and C^-1, or of a matrix."""
    own = _shape(strategy)
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


def decoder_work(strategy: Strategy) -> Work:
    """Of the errors that a certificate states (RMSE and MaxSE), the vectors of the strategy included."""
    own, formed = _shape(strategy), form_work(strategy)
    n = float(own.n)
    if own.dense:
        return formed + Work(2e-9 * n**3 + 1e-7 * n * n, 6.0 * _NUMBER * n * n)
    if own.scaled == 0:
        return formed + Work(4e-7 * n, 24.0 * _NUMBER * n)
    if own.inverse_bands is not None and own.inverse_bands <= _SHORT:
        return formed + Work(4e-7 * n + 6e-8 * n * own.inverse_bands, 24.0 * _NUMBER * n)
    return formed + Work(4e-8 * n * n * (1.0 + math.log2(n)), 512.0 * _NUMBER * n)
