"""Schemes whose noise is independent at every step that one unit may join; and what is not sampled at all."""

import dataclasses

import numpy as np

from dpmech.engines import (
    Accountant,
    Exact,
    FixedAccountant,
    FixedRelease,
    GaussianAccountant,
    Method,
    Pld,
    Rdp,
    RenyiAccountant,
    TruncatedAccountant,
    TruncatedRelease,
    UserAccountant,
    UserRelease,
)
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism
from dpmech.numerics import Bounds, product_down, quotient_down, quotient_up, spend

# Column norms this close, relative, count as equal. No guarantee rests on it: upper ends take the largest
# norm, lower ends the smallest.
CLOSE = 1e-14


def unsampled(bounds: Bounds, method: Method | None) -> Accountant:
    """The Gaussian mechanism, by its formula or its divergences.

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


def least_of_releases(mechanism: Mechanism) -> float:
    """The smallest column norm, as a part of the largest of all, of the releases that one unit may join.

    Where groups take turns: of the group that comes closest to it.

    Raises:
        UnsupportedCombinationError: if these releases share noise, or none share any and it is not equal.
    """
    groups = mechanism.participation.groups
    return _least_of_equals(mechanism) if groups is None else _least_of_a_group(mechanism, groups)


def _least_of_a_group(mechanism: Mechanism, cycle: int) -> float:
    """The same for one group; 0 where no group has as many releases as one may: none costs what they may.

    Columns a multiple of `cycle` apart are orthogonal, so that the releases of one group compose.
    """
    strategy = mechanism.strategy
    bands = strategy.n if strategy.bands is None else strategy.bands
    if bands > cycle:
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} needs a strategy with at most cycle={cycle} bands, {strategy!r} "
            f"has {bands}",
            supported="SquareRoot(n, bands), BandedToeplitz(n, coefs) and others with bands <= cycle",
        )
    norms = strategy.column_norms()
    spend(1e-5 * min(cycle, strategy.n), what=f"looking at {cycle} groups")
    turns = mechanism.participation.releases(strategy.n)
    groups = (norms[start::cycle] for start in range(min(cycle, strategy.n)))
    least = max((float(group.min()) for group in groups if group.size == turns), default=0.0)
    return quotient_down(least, float(norms.max()))


def _least_of_equals(mechanism: Mechanism) -> float:
    """The smallest column norm, as a part of the largest, of a strategy whose noise is independent and equal.

    Raises:
        UnsupportedCombinationError: if it is not.
    """
    strategy = mechanism.strategy
    norms = strategy.column_norms()
    if strategy.bands != 1 or norms.min() < norms.max() * (1.0 - CLOSE):
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} needs independent, equal noise at every step, which {strategy!r} "
            "has not",
            supported="Identity; for correlated noise CyclicPoisson with a banded strategy, or BallsInBins",
        )
    return quotient_down(float(norms.min()), float(norms.max()))


def user_poisson(mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None) -> Accountant:
    """Users with several examples, each of which tosses a coin of its own."""
    del rng
    participation = mechanism.participation
    prob = participation.example_prob
    if prob is None or not (method is None or isinstance(method, Pld)):
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {participation!r}",
            supported="UserPoisson and UserCyclicPoisson, method=None or Pld()",
        )
    least, bounds, examples = least_of_releases(mechanism), mechanism.sensitivity, participation.examples
    low = product_down(bounds.lower, least) if least >= 1.0 - CLOSE else bounds.lower
    one = dataclasses.replace(
        bounds, lower=quotient_down(low, examples), upper=quotient_up(bounds.upper, examples)
    )
    steps = participation.releases(mechanism.steps)
    release = UserRelease(prob, examples, steps, one, tight=least >= 1.0 - CLOSE)
    return UserAccountant(release, bounds)


def truncated_poisson(
    mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None
) -> Accountant:
    """Poisson sampling of lots that are cut down to B examples."""
    del rng
    participation, truncation = mechanism.participation, mechanism.participation.truncation
    if truncation is None or not (method is None or isinstance(method, Pld)):
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {participation!r}",
            supported="TruncatedPoisson, method=None or Pld()",
        )
    least, bounds = _least_of_equals(mechanism), mechanism.sensitivity
    bounds = dataclasses.replace(bounds, lower=product_down(bounds.lower, least))
    return TruncatedAccountant(TruncatedRelease(truncation, participation.releases(mechanism.steps), bounds))


def fixed_size_lots(
    mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None
) -> Accountant:
    """Lots of exactly B of n examples, one of which is replaced."""
    del rng
    participation, draw = mechanism.participation, mechanism.participation.fixed_draw
    least, bounds = _least_of_equals(mechanism), mechanism.sensitivity
    bounds = dataclasses.replace(bounds, lower=product_down(bounds.lower, least))
    steps = participation.releases(mechanism.steps)
    if mechanism.certain:
        return unsampled(bounds.times_root(steps), None if isinstance(method, Pld) else method)
    if draw is None or not (method is None or isinstance(method, Pld | Rdp)):
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {participation!r}",
            supported="FixedSizeLots, method=None, Pld() or Rdp()",
        )
    if isinstance(method, Rdp):
        return RenyiAccountant(bounds, steps=steps, draw=draw)
    return FixedAccountant(FixedRelease(draw, steps, bounds))
