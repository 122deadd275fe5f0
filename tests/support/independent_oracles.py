"""Delta of one and of two independent bins by other means: closed forms, and quadrature over one bin."""

import math

import numpy as np
from scipy import special

__all__ = ["call", "delta_of_two", "put"]

_ROOT_HALF = math.sqrt(0.5)


def call(spread, x):
    """E (a - x)_+ of a = exp(spread Z - spread^2 / 2), for x of any sign."""
    above = np.maximum(x, 1e-300)
    first = (0.5 * spread**2 - np.log(above)) / spread
    second = first - spread
    far = np.minimum(first, 0.0)
    tails = special.erfcx(-far * _ROOT_HALF) - special.erfcx((spread - far) * _ROOT_HALF)
    value = np.where(
        first < 0.0,
        0.5 * np.exp(-0.5 * far**2) * tails,
        special.ndtr(first) - above * special.ndtr(second),
    )
    return np.where(x <= 0.0, 1.0 - x, value)


def put(spread, x):
    """E (x - a)_+, for x of any sign."""
    above = np.maximum(x, 1e-300)
    first = (np.log(above) + 0.5 * spread**2) / spread
    second = first - spread
    far = np.minimum(first, 0.0)
    tails = special.erfcx(-far * _ROOT_HALF) - special.erfcx((spread - far) * _ROOT_HALF)
    value = np.where(
        first < 0.0,
        0.5 * np.exp(-0.5 * (far - spread) ** 2) * tails,
        above * special.ndtr(first) - special.ndtr(second),
    )
    return np.where(x <= 0.0, 0.0, value)


def delta_of_two(spread, eps, *, remove):
    """Delta of two bins in one direction: the closed form of one, and Gauss-Legendre over the other."""
    level = 2.0 * math.exp(eps if remove else -eps)
    # The integrand bends where one bin alone reaches the level.
    bend = (math.log(level) + 0.5 * spread**2) / spread
    points = np.unique(
        np.clip(
            np.concatenate(
                [
                    np.linspace(-30.0, 30.0 + spread, 2001),
                    bend - np.geomspace(1e-14, 10.0, 200),
                    bend + np.geomspace(1e-14, 10.0, 200),
                    [bend],
                ]
            ),
            -30.0,
            30.0 + spread,
        )
    )
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half = 0.5 * np.diff(points)[:, None]
    z = 0.5 * (points[1:] + points[:-1])[:, None] + half * nodes
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) * half * weights
    left = level - np.exp(spread * z - 0.5 * spread**2)
    inner = call(spread, left) if remove else put(spread, left) * math.exp(eps)
    return 0.5 * float((density * inner).sum())
