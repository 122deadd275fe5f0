r"""An upper bound on ADD in closed form: the Gaussian mechanism along one direction.

For any probability vector w the convexity of the logarithm gives `L >= w . y - w . diag(K) / 2 - KL(w ||
uniform)`, that is `-eps - L <= u - c` with `u = -w . y` and `c = eps - w . diag(K) / 2 - KL(w || uniform)`.
So `H(Q || P) = E_Q (1 - e^(eps + L))_+ <= E (1 - e^(c - u))_+` with u of the law `N(0, s^2)` under Q,
`s^2 = w^T K w`. The right side is delta of one Gaussian release with sensitivity over noise s, at
`eps' = c + s^2 / 2`. With one bin it is ADD itself.
"""

import math

from dpmech.engines.gaussian import gaussian_delta
from dpmech.engines.gaussian_mixture.gram import BinGram
from dpmech.engines.gaussian_mixture.points import add_point
from dpmech.numerics import quotient_down

# Far above the roundings of sums over 10^6 bins, relative to the sizes of what is added.
_SLACK = 1e-9


def half_space_add(gram: BinGram, eps: float) -> float:
    """A proved upper bound on H(Q || P) at e^eps, roundings included.

    Args:
        gram: the Gram matrix K.
        eps: >= 0.
    """
    point = add_point(gram, eps)
    # Both are moved by far more than they may be off by. With f(u) = (1 - e^(c - u))_+ and
    # D = E[e^(c - u); u > c] the bound falls by D per unit of c, and changes by (phi_s(c) - D) / 2 >= -D / 2
    # per unit of s^2: a larger s may lower it, for c < 0, by at most _SLACK s^2 D, which the s^2 in `off`
    # outweighs.
    spread = math.sqrt(point.square) * (1.0 + _SLACK)
    half = 0.5 * float(point.direction @ gram.diagonal)
    off = _SLACK * (1.0 + eps + half + math.log(gram.bins) + spread**2)
    level = point.depth - off + 0.5 * spread**2
    if not math.isfinite(level):
        return 1.0
    # Delta falls by less than 1 per unit of eps.
    delta = gaussian_delta(quotient_down(1.0, spread), max(level, 0.0))[1] + max(-level, 0.0)
    return min(1.0, delta * (1.0 + _SLACK))
