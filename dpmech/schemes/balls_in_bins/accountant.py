"""Which accountants of Balls-in-Bins answer by default, and in what order."""

import math

import numpy as np

from dpmech.engines import (
    AllocationRenyiAccountant,
    Certified,
    CertifiedAccountant,
    Deterministic,
    DeterministicAccountant,
    IndependentAccountant,
    InTurnAccountant,
    Rdp,
    Turn,
    bin_gram,
    lower_gram,
    ring_profile,
    sampling_gram,
)
from dpmech.mechanism import Strategy
from dpmech.numerics import Bounds

_COARSE = Deterministic(rel_error=0.4)
_FINE = Deterministic(rel_error=0.1)
_QUICK, _LAST_RESORT = 200.0, 600.0
# A proof by sampling that would aim so far above the right sigma, in log, is left to others if they can.
_WIDE = 0.05


def accountant_in_turn(
    strategy: Strategy,
    bins: int,
    bounds: Bounds,
    sampled: Certified,
    rng: np.random.Generator | None,
    *,
    independent: bool,
) -> InTurnAccountant:
    """Where the first refuses, as a proof by sampling would aim too high, the best of the others answers.

    Args:
        strategy: C >= 0.
        bins: b.
        bounds: the sensitivity.
        sampled: the method of the proof by samples.
        rng: its random numbers; None for its own.
        independent: whether bins share no noise: the law of their sum then answers first.
    """
    turns = [
        Turn(_FINE, lambda: deterministic_accountant(strategy, bins, bounds, _FINE), _QUICK),
        Turn(
            _COARSE,
            lambda: deterministic_accountant(strategy, bins, bounds, _COARSE),
            _LAST_RESORT,
            spare=True,
        ),
        Turn(
            sampled,
            lambda: certified_accountant(strategy, bins, bounds, sampled, rng),
            spare=True,
            again=not independent,
        ),
        Turn(Rdp(), lambda: AllocationRenyiAccountant(bin_gram(strategy, bins), bounds)),
    ]
    if independent:
        return InTurnAccountant(IndependentAccountant(bins, bounds), turns)
    return InTurnAccountant(certified_accountant(strategy, bins, bounds, sampled, rng, reach=_WIDE), turns)


def certified_accountant(
    strategy: Strategy,
    bins: int,
    bounds: Bounds,
    method: Certified,
    rng: np.random.Generator | None,
    *,
    reach: float = math.inf,
) -> CertifiedAccountant:
    """The accountant of bounds with probability 1 - beta; `reach` limits how far up a proof may aim."""
    return CertifiedAccountant(
        sampling_gram(strategy, bins),
        bounds,
        method,
        rng,
        lower=lower_gram(strategy, bins),
        settled_add=lambda sigma, eps: deterministic_accountant(strategy, bins, bounds).upper_add(sigma, eps),
        reach=reach,
    )


def deterministic_accountant(
    strategy: Strategy, bins: int, bounds: Bounds, method: Deterministic | None = None
) -> DeterministicAccountant:
    """The accountant of bounds without samples."""
    profile, gram = ring_profile(strategy, bins), bin_gram(strategy, bins)
    return DeterministicAccountant(profile, gram, bounds, method or Deterministic())
