"""Which accountant covers Poisson-sampled releases, of examples and of users; and canaries among them."""

import dataclasses

import numpy as np

from dpmech.engines import (
    Accountant,
    Canary,
    Independent,
    Method,
    Pld,
    PoissonAccountant,
    PoissonRelease,
    Prv,
    PrvAccountant,
    Rdp,
    RenyiAccountant,
    SeveralExamples,
    UserAccountant,
    UserRelease,
)
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism, Participation, Unit
from dpmech.numerics import Bounds, product_down, quotient_down, quotient_up
from dpmech.schemes.releases import CLOSE, unsampled


def of_examples(mechanism: Mechanism, method: Method | None, prob: float, least: float) -> Accountant:
    """Releases that every example joins independently with one probability.

    Args:
        mechanism: what runs.
        method: None, Pld, Prv or Rdp.
        prob: q in (0, 1].
        least: the smallest column norm of the releases one example may join, as a part of the largest.

    Raises:
        UnsupportedCombinationError: for another method.
    """
    steps = mechanism.participation.releases(mechanism.steps)
    # Above, every release counts with the largest norm; below, with the smallest one of a group.
    bounds, tight = mechanism.sensitivity, least >= 1.0 - CLOSE
    if tight:
        bounds = dataclasses.replace(bounds, lower=product_down(bounds.lower, least))
    release = PoissonRelease(prob, steps, bounds, tight=tight)
    if isinstance(method, Rdp):
        return RenyiAccountant(release.sensitivity, release.sampling_prob, release.steps)
    if mechanism.certain:
        # Not sampled at all: T Gaussian releases are one with sensitivity sqrt(T).
        bounds = release.sensitivity.times_root(release.steps)
        if not release.tight:
            bounds = Bounds.bracket(release.sensitivity.lower, bounds.upper, bounds.by)
        return unsampled(bounds, None if isinstance(method, Pld | Prv) else method)
    if method is None or isinstance(method, Pld):
        return PoissonAccountant(release)
    if isinstance(method, Prv):
        return PrvAccountant(release)
    raise UnsupportedCombinationError(
        f"{method!r} does not apply to Poisson sampling", supported="method=None, Pld(), Prv() or Rdp()"
    )


def of_users(mechanism: Mechanism, method: Method | None, prob: float, least: float) -> Accountant:
    """Releases that each of a user's examples joins independently; see `of_examples`."""
    participation = mechanism.participation
    if not (method is None or isinstance(method, Pld)):
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {participation!r}", supported="method=None or Pld()"
        )
    bounds, examples = mechanism.sensitivity, participation.examples
    low = product_down(bounds.lower, least) if least >= 1.0 - CLOSE else bounds.lower
    one = dataclasses.replace(
        bounds, lower=quotient_down(low, examples), upper=quotient_up(bounds.upper, examples)
    )
    steps = participation.releases(mechanism.steps)
    release = UserRelease(prob, examples, steps, one, tight=least >= 1.0 - CLOSE)
    return UserAccountant(release, bounds)


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
