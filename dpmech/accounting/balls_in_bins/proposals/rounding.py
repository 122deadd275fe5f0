r"""What rounding does to the weight of a draw: a proved bound, from the sizes of the numbers that enter it.

The *draw* is taken as it is: floats y, a tuple, all with exactly the law that the mixture is said to have.
That is assumed, and no part of the bound. Normal numbers are floats; a choice among c (a part, a bin, a
tuple, a cell of a site) inverts a uniform number on a grid of 2^-53 against a rounded cumulative sum, whose
law differs from the one that is said by at most 4 c 2^-53 in total variation, for the weights as they are in
float64: each end of a choice's interval is off by a rounding of the sum, one of its division by the total and
one of the grid, and the total by c roundings. Who joins a step (`ChainGram.patterns`) differs by a grain of
the grid and the rounding of a probability for each of the n steps. Within a cell the normal quantile is
rounded. Nothing of this is counted, neither here nor in beta.

The bound is on what is computed from them, the loss L(y) and the log densities log D_j(y), against the same
functions in exact arithmetic. u = 2^-53 is the unit roundoff, E = 8 u the relative error that is granted to
exp, log, expm1 and log1p (`numerics.ELEMENTARY`).

**Lemma (mean of exponentials).** Let x_1, ..., x_b be computed with errors of at most h each, |x_k| <= M,
and let m = log((1/b) sum_k e^x_k) be computed as `top + log(mean(exp(x - top)))`. The result is off by at
most h + 1.05 (u (2 log b + b + 2 M + 8) + E (1 + log b)).

*Proof.* Errors of the x_k move m by at most h, as m is 1-Lipschitz in the sup norm. A difference x_k - top
is off by u |x_k - top| of itself, which multiplies its term by e^(+-u |x_k - top|). With p_k the share of a
term in the sum, sum_k p_k (top - x_k) <= log b: it is top - m - log b plus the entropy of p, and top <= m +
log b. So the sum moves by 1.01 u log b at most, terms that underflow aside (b e^-745 of it). The exponential
adds E, a sum of b positive terms in any order (b - 1) u, the division u. The mean lies in [1 / b, 1], so its
logarithm is off by E log b, and the last addition by u (M + log b). The factor 1.05 covers products of these
errors, all below 1e-3. QED

**Losses and payoffs.** If every loss is off by at most l, then (e^L - e^eps)_+ <= e^l (e^(L' + l) -
e^eps)_+ e^-l for the computed L': a payoff taken at L' + l is not below the exact one, and at L' - l not
above it (for ADD with the signs exchanged). So the relative error of a difference that nearly vanishes never
enters: `Proposal.payoff_side` moves the loss by l to the side that a bound needs, and what is left is a
relative error of the payoff as computed.

**Densities.** All D_j are e^(linear) or means of such. A density that is off by a factor e^(+-r) at most in
every part is so in the mixture. `Proposal.weight_rounding` is the r of all parts, of the payoff, the mixture
and the proved bound on weights together; the bets allow for it.
"""

import math
from typing import NamedTuple

from dpmech.numerics import ELEMENTARY, UNIT

__all__ = ["LogError", "farthest_normal", "mean_rounding", "payoff_rounding", "sum_product_rounding"]

# No normal number that float64 can be drawn as is farther from 0: P(|z| > 40) < 1e-349.
farthest_normal = 40.0


class LogError(NamedTuple):
    """A log density, as computed.

    Attributes:
        error: how far it is off at most.
        size: how large its absolute value is at most.
    """

    error: float
    size: float

    def plus(self, error: float, size: float) -> "LogError":
        """With an addend of that error and size; the addition rounds, too."""
        return LogError(self.error + error + UNIT * (self.size + size), self.size + size)

    def times(self, factor: float) -> "LogError":
        """Multiplied by a float."""
        size = abs(factor) * self.size
        return LogError(abs(factor) * self.error + UNIT * size, size)


def mean_rounding(count: int, size: float, each: float) -> LogError:
    """Log mean exp of `count` exponents of at most that size, each off by at most `each`: the lemma.

    It covers log sum exp, too: log(count) is one of the sizes.
    """
    logs = math.log(count)
    own = UNIT * (2.0 * logs + count + 2.0 * size + 8.0) + ELEMENTARY * (1.0 + logs)
    return LogError(each + 1.05 * own, size + logs)


def sum_product_rounding(terms: int, weight: float, size: float) -> float:
    """An inner product of `terms` terms, in any order: absolute values of one side add up to `weight`.

    Args:
        terms: how many.
        weight: sum of the absolute values of one factor.
        size: the largest absolute value of the other.
    """
    return 1.01 * UNIT * (terms + 2.0) * weight * size


def payoff_rounding(eps: float, largest_loss: float) -> float:
    """Relative error of a payoff (e^L - e^eps)_+ or (1 - e^(eps + L))_+, from the float L.

    L -+ eps is off by a rounding of itself, so that the exponential less 1 is off by E + 2 u of itself; its
    logarithm, which is at least log of the smallest distance of two floats (-45 for eps >= 1e-4, and the
    logarithm is off by E of itself), and two additions of numbers of size L and eps follow.
    """
    return 1.05 * (ELEMENTARY * 50.0 + UNIT * (4.0 * (eps + largest_loss) + 100.0))
