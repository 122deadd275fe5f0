r"""Whether another parameter of a strategy's family would have a much smaller error: a fast, rough answer.

The search descends along one path of every family (lambda; the number of bands; the damping of
coefficients) from the given strategy. Errors are compared in the same units:

- without amplification ||B||_F sens, independent of the budget;
- with separately sampled releases ||B||_F times the largest column norm: sigma / sensitivity is the same;
- under Balls-in-Bins ||B||_F times the sigma of the moment bound. It is looser than the accountants, and
  varies by about ten per cent between members, so only large factors are meaningful.

No guarantee depends on this module.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from dpmech.engines import RoughSample, bin_gram
from dpmech.exceptions import DpmechError
from dpmech.fitting.amplified import damped
from dpmech.fitting.gram_gradient import ENTROPY
from dpmech.mechanism import (
    BLT,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    InverseSquareRoot,
    LambdaCGD,
    Mechanism,
    PrivacyBudget,
    SquareRoot,
    Strategy,
    decoder_norm,
    decoder_work,
)
from dpmech.numerics import metered
from dpmech.schemes import scheme_of

_SAMPLE = RoughSample(ENTROPY, pilots=2)
# Maximum estimated cost of one member, and number of bins up to which its Gram matrix is formed at once.
_SECONDS, _MEMORY, _BINS = 0.5, 5e8, 512
_NODES = 12
_FREE = (BandedToeplitz, BandedInverse, BLT)


@dataclasses.dataclass(frozen=True)
class BetterMember:
    """A member of the same family with a smaller error.

    Attributes:
        strategy: the member.
        factor: how many times smaller its RMSE on the prefix sum is, roughly: an estimate.
    """

    strategy: Strategy
    factor: float


def better_member(mechanism: Mechanism, budget: PrivacyBudget, *, factor: float = 1.5) -> BetterMember | None:
    """The best visited member on the path of a strategy if it is better by a factor; else None.

    Args:
        mechanism: strategy, participation and adjacency.
        budget: eps and delta, which matter only under Balls-in-Bins.
        factor: how many times smaller the RMSE must be, > 1.

    Returns:
        Also None for a strategy without a parameter, and if a member cannot be evaluated quickly: more than
        512 bins, or an error that is estimated to take more than half a second.

    Examples:
        >>> import dpmech as dm
        >>> from dpmech.fitting import better_member
        >>> mechanism = dm.Mechanism(dm.LambdaCGD(50, 0.9), dm.BallsInBins(5))
        >>> found = better_member(mechanism, dm.PrivacyBudget(1.0, 1e-5))
        >>> found.strategy.lam < 0.7, found.factor > 1.5
        (True, True)
    """
    path = _path(mechanism.strategy)
    if path is None:
        return None
    error = functools.cache(lambda index: _error(mechanism, budget, path.members[index]()))
    here = error(path.start)
    if here is None:
        return None
    best = path.start
    for direction in (1, -1):
        place = path.start
        while 0 <= place + direction < len(path.members):
            place += direction
            found, before = error(place), error(best)
            if found is None or before is None or found >= before:
                break
            best = place
        if best != path.start:
            break
    there = error(best)
    if there is None:
        return None
    return BetterMember(path.members[best](), here / there) if here >= factor * there else None


@dataclasses.dataclass(frozen=True)
class _Path:
    """Members of a family in order, including the given one."""

    members: Sequence[Callable[[], Strategy]]
    start: int


def _path(strategy: Strategy) -> _Path | None:
    if isinstance(strategy, ColumnNormalized):
        inner = _path(strategy.strategy)
        if inner is None:
            return None
        return _Path([functools.partial(_normalized, member) for member in inner.members], inner.start)
    n = strategy.n
    if isinstance(strategy, LambdaCGD):
        values = [-math.expm1(-place) for place in _places(math.log(4.0 * n + 10.0))]
        return _around(strategy, strategy.lam, values, functools.partial(LambdaCGD, n))
    if isinstance(strategy, SquareRoot | InverseSquareRoot):
        bands = n if strategy.bands is None else strategy.bands
        own = bands if isinstance(strategy, SquareRoot) else strategy.inverse_bands or n
        sizes = [2**power for power in range(n.bit_length()) if 2**power < n] + [n]
        return _around(strategy, own, sizes, functools.partial(type(strategy), n))
    if isinstance(strategy, _FREE):
        # Moving away from the Identity, members are not guaranteed to be valid.
        return _around(
            strategy,
            1.0,
            [-math.expm1(-place) for place in _places(4.0)],
            functools.partial(damped, strategy),
        )
    return None


def _places(longest: float) -> list[float]:
    return [longest * place / _NODES for place in range(_NODES + 1)]


def _around(strategy: Strategy, own: float, values: Sequence[float], make: Callable[..., Strategy]) -> _Path:
    """Members at some values of a parameter, and the given strategy at its value."""
    below = [value for value in values if value < own]
    above = [value for value in values if value > own]
    members: list[Callable[[], Strategy]] = [functools.partial(make, value) for value in below]
    members.append(lambda: strategy)
    members += [functools.partial(make, value) for value in above]
    return _Path(members, len(below))


def _normalized(member: Callable[[], Strategy]) -> Strategy:
    return ColumnNormalized(member())


def _error(mechanism: Mechanism, budget: PrivacyBudget, strategy: Strategy) -> float | None:
    """The RMSE in common units; None if the strategy cannot be evaluated, or not quickly."""
    participation = mechanism.participation
    structure = scheme_of(participation).structure(participation)
    if not (structure.judged and decoder_work(strategy).within(_SECONDS, _MEMORY)):
        return None
    bins, cycle = structure.bins, structure.cycle
    if cycle is not None and (strategy.bands is None or strategy.bands > cycle):
        return None
    try:
        if bins is None:
            with metered(_SECONDS, _MEMORY):
                scale = Mechanism(strategy, participation, mechanism.adjacency).sensitivity.upper
        elif bins > _BINS:
            return None
        else:
            scale = _SAMPLE.moment_sigma(bin_gram(strategy, bins), budget.eps, budget.delta)
        return decoder_norm(strategy) * scale
    except (DpmechError, OverflowError):
        return None  # no theorem or no number, so no better member can be reported
