"""What a privacy profile says about guesses: which of two directions is worse, and how often one is right."""

import math
from collections.abc import Iterable

from dpmech.accounting.profiles.tradeoff import Stick
from dpmech.numerics import ELEMENTARY, UNIT, next_down, next_up

__all__ = ["bayes_ends", "larger", "mirrored"]


def larger(ends: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Lower and upper value of the larger of several numbers."""
    every = list(ends)
    return max(lower for lower, _ in every), max(upper for _, upper in every)


def mirrored(lower: float, upper: float) -> tuple[float, float]:
    """Lower and upper value of 1 - x, for x in [0, 1]."""
    ends = (next_down(1.0 - upper) if upper < 1.0 else 0.0, next_up(1.0 - lower) if lower > 0.0 else 1.0)
    return max(0.0, ends[0]), min(1.0, ends[1])


def bayes_ends(stick: Stick, prior: float) -> tuple[float, float]:
    """Lower and upper value of sup_E prior P(E) + (1 - prior) (1 - Q(E)).

    That is 1 - prior + prior h(a), a = (1 - prior) / prior. As h falls by at most as much as a rises, an a
    that is off by a relative error moves the sum by that times prior a = 1 - prior.

    Args:
        stick: bounds on h(a) = H_a(P || Q).
        prior: in [0, 1].

    Returns:
        The lower value rounded down, the upper one up: at least max(prior, 1 - prior), but for one rounding
        of the lower one.
    """
    if prior in {0.0, 1.0}:
        return 1.0, 1.0
    own, other = math.log(prior), math.log1p(-prior)
    lower, upper = stick(other - own)
    # The logarithms are off by that much of themselves, their difference by u, e^eps as read by none.
    relative = 2.0 * (ELEMENTARY + UNIT) * (abs(own) + abs(other))
    off = (1.0 - prior) * relative + 4.0 * UNIT
    # Without the release the best guess is right so often. 1 - prior is exact from 1 / 2 on (Sterbenz).
    least = prior if prior >= 0.5 else next_down(1.0 - prior)
    return (
        min(1.0, max(least, 1.0 - prior + prior * lower - off)),
        min(1.0, 1.0 - prior + prior * upper + off),
    )
