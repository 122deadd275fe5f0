"""Which accountant answers for users with several examples in bins of their own."""

import numpy as np

from dpmech.engines import (
    Accountant,
    AllocationRenyiAccountant,
    Certified,
    CertifiedAccountant,
    Importance,
    ImportanceAccountant,
    InTurnAccountant,
    Method,
    Rdp,
    Turn,
    check_nonnegative,
    half_space_add,
    lower_tuple_gram,
    tuple_gram,
)
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism


def user_balls_in_bins(
    mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None
) -> Accountant:
    """The accountant of a mechanism whose users have several examples, each in a bin of its own.

    Raises:
        UnsupportedCombinationError: for a signed strategy, too many tuples of bins, or another method.
    """
    participation, strategy, bounds = mechanism.participation, mechanism.strategy, mechanism.sensitivity
    bins, examples = participation.user_bins, participation.examples
    if bins is None:
        raise UnsupportedCombinationError(
            f"{participation!r} puts no examples of users into bins", supported="UserBallsInBins"
        )
    check_nonnegative(strategy)
    gram = tuple_gram(strategy, bins, examples)
    moments = AllocationRenyiAccountant(gram, bounds)
    # One of several calls of which one will be picked comes here as the default with its share of beta.
    unasked = Certified(calls=method.calls) if isinstance(method, Certified) and method.calls > 1 else None
    if method is None or isinstance(method, Certified):
        below = lower_tuple_gram(strategy, bins, examples)
        sampled = CertifiedAccountant(
            gram,
            bounds,
            method or Certified(),
            rng,
            lower=below,
            settled_add=lambda sigma, eps: half_space_add(gram.scaled(sigma**-2), eps),
        )
        if method is None or method == unasked:
            return InTurnAccountant(sampled, [Turn(Rdp(), lambda: moments)])
        return sampled
    if isinstance(method, Importance):
        return ImportanceAccountant(gram, bounds, method, rng)
    if isinstance(method, Rdp):
        return moments
    raise UnsupportedCombinationError(
        f"{method!r} does not apply to {participation!r}",
        supported="method=None, Certified(), Importance(), Rdp()",
    )
