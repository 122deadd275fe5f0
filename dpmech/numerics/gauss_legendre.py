"""Gauss-Legendre rules whose nodes and weights are those of the real numbers, rounded once.

`numpy.polynomial.legendre.leggauss` finds the nodes to an ulp; its weights are off by 70 units in the last
place for 8 nodes and by 600 for 20, which a bound on rounding errors would have to carry.
"""

import decimal
import functools

import numpy as np

from dpmech.numerics.arrays import FloatArray

__all__ = ["gauss_legendre"]

_DIGITS = 60


@functools.cache
def gauss_legendre(count: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights on [-1, 1], each the float nearest to the true one; exact for degree 2 n - 1.

    Examples:
        >>> [values.tolist() for values in gauss_legendre(2)]
        [[-0.5773502691896257, 0.5773502691896257], [1.0, 1.0]]
    """
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        pairs = [
            _refined(decimal.Decimal(float(x)), count) for x in np.polynomial.legendre.leggauss(count)[0]
        ]
    nodes, weights = (np.array([float(pair[end]) for pair in pairs]) for end in (0, 1))
    nodes.flags.writeable = weights.flags.writeable = False
    return nodes, weights


def _refined(x: decimal.Decimal, count: int) -> tuple[decimal.Decimal, decimal.Decimal]:
    """A node after two steps of Newton's method, each of which doubles its digits, and its weight."""
    for _ in range(2):
        value, slope = _legendre(x, count)
        x -= value / slope
    _, slope = _legendre(x, count)
    return x, 2 / ((1 - x * x) * slope * slope)


def _legendre(x: decimal.Decimal, count: int) -> tuple[decimal.Decimal, decimal.Decimal]:
    """The Legendre polynomial of degree n at x in (-1, 1), and its derivative."""
    before, value = decimal.Decimal(1), x
    for degree in range(2, count + 1):
        before, value = value, ((2 * degree - 1) * x * value - (degree - 1) * before) / degree
    return value, count * (x * value - before) / (x * x - 1)
