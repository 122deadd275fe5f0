"""Canaries under Poisson sampling: the steps of one group, each joined independently."""

import numpy as np

from dpmech.engines import Canary, Independent, SeveralExamples
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism, Participation, Unit


def of_group(participation: Participation, mechanism: Mechanism, cycle: int) -> Canary:
    """A canary in the group with the largest sum of squared column norms.

    Args:
        participation: one with a `sampling_prob`.
        mechanism: what runs.
        cycle: how many groups take turns; 1 where every step may be joined.

    Raises:
        UnsupportedCombinationError: for users, if steps of one group share noise.
    """
    strategy, n, prob = mechanism.strategy, mechanism.steps, participation.sampling_prob  # type: ignore[attr-defined]  # as documented
    users = participation.unit is Unit.USER
    bands = n if strategy.bands is None else strategy.bands
    if users and bands > cycle:
        raise UnsupportedCombinationError(
            f"no test of {strategy!r} under {participation!r}",
            supported="independent noise, or at most as many bands as groups take turns",
        )
    norms = strategy.column_norms() ** 2
    group = max(range(min(cycle, n)), key=lambda start: float(norms[start::cycle].sum()))
    steps = np.arange(group, n, cycle)
    columns = strategy.matmul(np.eye(n)[:, steps]).T
    if users:
        return SeveralExamples(steps, prob, participation.examples, columns)
    return Independent(steps, prob, columns)
