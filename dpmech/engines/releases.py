"""Releases that one unit may join, accounted separately: which accountant covers them, and their canaries.

Mechanisms without sampling are covered too, because sampling with probability 1 reduces to them.
"""

import dataclasses

import numpy as np

from dpmech.engines.accountant import Accountant
from dpmech.engines.gaussian import GaussianAccountant
from dpmech.engines.likelihood_ratios import Canary, Independent, SeveralExamples
from dpmech.engines.losses import (
    PoissonAccountant,
    PoissonRelease,
    PrvAccountant,
    ReplacedAccountant,
    ReplacedRelease,
    UserAccountant,
    UserRelease,
)
from dpmech.engines.renyi import RenyiAccountant
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Adjacency, Mechanism, Participation, Unit
from dpmech.methods import Exact, Method, Pld, Prv, Rdp
from dpmech.numerics import Bounds, product_down, quotient_down, quotient_up, spend

# Column norms this close, relative, count as equal. It enters no guarantee: upper bounds use the largest
# norm, lower bounds the smallest.
CLOSE = 1e-14


def unsampled(bounds: Bounds, method: Method | None) -> Accountant:
    """The Gaussian mechanism, by its formula or its Renyi divergences.

    Raises:
        UnsupportedCombinationError: for any other method.
    """
    if method is None or isinstance(method, Exact):
        return GaussianAccountant(bounds)
    if isinstance(method, Rdp):
        return RenyiAccountant(bounds)
    raise UnsupportedCombinationError(
        f"{method!r} does not apply without sampling, where the Gaussian mechanism has an exact formula",
        supported="method=None, Exact() or Rdp()",
    )


def least_of_a_group(mechanism: Mechanism, cycle: int, turns: int | None = None) -> float:
    """The smallest column norm relative to the largest of all, in the group for which it is largest.

    It is 0 if no group has as many releases as one unit may join: then no unit incurs the full cost. Columns
    whose distance is a multiple of `cycle` are orthogonal, so that the releases of one group compose.

    Args:
        mechanism: the mechanism.
        cycle: number of groups.
        turns: releases that one unit may be offered; None for the `releases` of the participation.

    Raises:
        UnsupportedCombinationError: if releases of one group have correlated noise.
    """
    strategy = mechanism.strategy
    bands = strategy.n if strategy.bands is None else strategy.bands
    if bands > cycle:
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} needs a strategy with at most cycle={cycle} bands, but "
            f"{strategy!r} has {bands}",
            supported="SquareRoot(n, bands), BandedToeplitz(n, coefs) and others with bands <= cycle",
        )
    norms = strategy.column_norms()
    spend(1e-5 * min(cycle, strategy.n), what=f"looking at {cycle} groups")
    often = mechanism.participation.releases(strategy.n) if turns is None else turns
    groups = (norms[start::cycle] for start in range(min(cycle, strategy.n)))
    least = max((float(group.min()) for group in groups if group.size == often), default=0.0)
    return quotient_down(least, float(norms.max()))


def least_of_equals(mechanism: Mechanism) -> float:
    """The smallest column norm relative to the largest, for independent noise of equal scale.

    Raises:
        UnsupportedCombinationError: if the noise is not independent and of equal scale.
    """
    strategy = mechanism.strategy
    norms = strategy.column_norms()
    if strategy.bands != 1 or norms.min() < norms.max() * (1.0 - CLOSE):
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} needs independent, equal noise at every step, which {strategy!r} "
            "does not have",
            supported="Identity; for correlated noise CyclicPoisson with a banded strategy, or BallsInBins",
        )
    return quotient_down(float(norms.min()), float(norms.max()))


def accountant_of_examples(
    mechanism: Mechanism, method: Method | None, prob: float, least: float
) -> Accountant:
    """The accountant of releases that every example joins independently with one probability.

    Args:
        mechanism: the mechanism.
        method: None, Pld, Prv or Rdp.
        prob: q in (0, 1].
        least: the smallest column norm of the releases one example may join, relative to the largest.

    Raises:
        UnsupportedCombinationError: for any other method.
    """
    steps = mechanism.participation.releases(mechanism.steps)
    # Upper bounds use the largest norm for every release; lower bounds use the smallest one of a group.
    bounds, tight = mechanism.sensitivity, least >= 1.0 - CLOSE
    if tight:
        bounds = dataclasses.replace(bounds, lower=product_down(bounds.lower, least))
    if mechanism.adjacency is Adjacency.REPLACE_ONE and not mechanism.certain:
        check_pld(method, mechanism)
        # The sensitivity is that to a replacement, twice that to one example.
        return ReplacedAccountant(ReplacedRelease(prob, steps, bounds.scaled(0.5), tight=tight), bounds)
    release = PoissonRelease(prob, steps, bounds, tight=tight)
    if isinstance(method, Rdp):
        return RenyiAccountant(release.sensitivity, release.sampling_prob, release.steps)
    if mechanism.certain:
        # Without sampling, T Gaussian releases equal one with sensitivity sqrt(T).
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


def check_pld(method: Method | None, mechanism: Mechanism) -> None:
    """Refuse every method but Pld.

    Raises:
        UnsupportedCombinationError: for another method.
    """
    if not (method is None or isinstance(method, Pld)):
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {mechanism.participation!r} under {mechanism.adjacency.name}",
            supported="method=None or Pld()",
        )


def accountant_of_users(mechanism: Mechanism, method: Method | None, prob: float, least: float) -> Accountant:
    """Releases that each of a user's examples joins independently; see `accountant_of_examples`."""
    check_pld(method, mechanism)
    participation = mechanism.participation
    bounds, examples = mechanism.sensitivity, participation.examples
    low = product_down(bounds.lower, least) if least >= 1.0 - CLOSE else bounds.lower
    one = dataclasses.replace(
        bounds, lower=quotient_down(low, examples), upper=quotient_up(bounds.upper, examples)
    )
    steps = participation.releases(mechanism.steps)
    release = UserRelease(prob, examples, steps, one, tight=least >= 1.0 - CLOSE)
    return UserAccountant(release, bounds)


def canary_of_group(participation: Participation, mechanism: Mechanism, cycle: int) -> Canary:
    """A canary in the group with the largest sum of squared column norms.

    Args:
        participation: one with a `sampling_prob`, or one for every step.
        mechanism: the mechanism.
        cycle: number of groups that alternate; 1 if every step may be joined.

    Raises:
        UnsupportedCombinationError: for users, if steps of one group have correlated noise.
    """
    strategy, n = mechanism.strategy, mechanism.steps
    prob = participation.sampling_prob  # type: ignore[attr-defined]  # as documented
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
    if isinstance(prob, tuple):
        prob = np.array(prob)[steps]
    return Independent(steps, prob, columns, replaced=mechanism.adjacency is Adjacency.REPLACE_ONE)
