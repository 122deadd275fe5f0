r"""Delta of steps whose lots are uniform sets of B of n examples, one replaced, by integration.

One step: q times the hockey stick of the Gaussian mechanism at e^a = 1 + (e^eps - 1) / q, q = B / n,
integrated from its definition. T steps: the contour integral of `integrals` over the law with this curve,
which has mirrored losses on both sides of 0; what lies at 0 is what these leave of 1. The accountant has
other formulas, and lattices.
"""

import math

import numpy as np

from dpmech.exceptions import NumericalError
from dpmech.numerics import FloatArray
from dpmech.verifying.integrals import ComposedLaw, composed_integral, gaussian_integral

__all__ = ["replaced_delta"]

_REACH = 38.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_PANELS, _MOST_PANELS = 600, 200_000


def replaced_delta(lot_size: int, dataset_size: int, multiplier: float, steps: int, eps: float) -> float:
    """Delta of T steps under the law that dominates them.

    Args:
        lot_size: B >= 1.
        dataset_size: n > B.
        multiplier: sigma over the sensitivity, which is the distance of a replacement, > 0.
        steps: T >= 1.
        eps: >= 0.

    Raises:
        NumericalError: where the integral does not settle, or a grid would be too fine.
    """
    q = lot_size / dataset_size
    if steps == 1:
        excess = math.expm1(eps) / q if eps < 700.0 else math.inf
        inner = math.log1p(excess) if excess < math.inf else eps - math.log(q)
        return q * gaussian_integral(multiplier, inner)
    return composed_integral([ComposedLaw(*_law(q, multiplier), steps, eps)])


def _law(q: float, s: float) -> tuple[FloatArray, FloatArray]:
    """Losses and log masses of one step."""
    span = 0.5 + _REACH * s
    count = max(_PANELS, math.ceil(span / min(0.25 * s, s * s)))
    if count > _MOST_PANELS:
        raise NumericalError(f"a grid of {count} panels for the outputs of a step")
    half = 0.5 * span / count
    # Outputs from where both laws are alike, 1/2, up.
    x = (0.5 + half * (2.0 * np.arange(count)[:, None] + 1.0 + _NODES)).ravel()
    widths = np.tile(np.log(half * _WEIGHTS), count)
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + (x - 0.5) / s**2)
    noise = widths - 0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2.0 * math.pi))
    left = 1.0 - float(np.exp(noise + ratio).sum()) - float(np.exp(noise).sum())
    losses = np.concatenate([ratio, -ratio, np.zeros(1)])
    return losses, np.concatenate([noise + ratio, noise, [math.log(max(left, 1e-16))]])
